"""Scopes and streams: what each call changes, and what it refuses."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import (
    QUIET,
    STREAM,
    check_invariants,
    config,
    cut_at,
    name_of,
    opened,
    scale_to,
    seg,
    table_keys,
    with_stream,
)
from memory_segments import MemorySegments

from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidCutError,
    InvalidNameError,
    NotEmptyError,
    ScaleConflictError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
)
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig
from penstock.model.segments import KeyRange, even_ranges
from penstock.ports.control.layout import Endpoint, ScaleStatus


def test_scopes_are_created_once_and_deleted_only_while_empty() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            await controller.scopes.create("b")
            await controller.scopes.create("a")
            with pytest.raises(AlreadyExistsError):
                await controller.scopes.create("a")
            with pytest.raises(InvalidNameError):
                await controller.scopes.create("_system")
            for dots in (".", ".."):
                with pytest.raises(InvalidNameError):
                    await controller.scopes.create(dots)
            with pytest.raises(InvalidNameError):
                await controller.scopes.create("a/b")
            assert await controller.scopes.list() == ["a", "b"]
            assert await controller.scopes.list(after="a") == ["b"]
            assert await controller.scopes.list(after="b") == []
            await controller.streams.create(StreamName("a", "x"), config())
            before = table_keys(segments)
            with pytest.raises(NotEmptyError):
                await controller.scopes.delete("a")
            assert table_keys(segments) == before
            assert await controller.scopes.exists("a")
            await controller.scopes.delete("b")
            assert not await controller.scopes.exists("b")
            with pytest.raises(ScopeNotFoundError):
                await controller.scopes.delete("b")
            assert await controller.scopes.list() == ["a"]

    asyncio.run(run())


@pytest.mark.parametrize("count", [1, 3, 49, 196])
def test_a_new_stream_tiles_the_key_space_and_has_a_mark_stream(count: int) -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, count) as controller:
            ranges = await controller.layout.current(STREAM)
            assert [item.segment for item in ranges] == [seg(0, number) for number in range(count)]
            assert ranges[0].keys.low == 0.0
            assert ranges[-1].keys.high == 1.0
            assert all(a.keys.high == b.keys.low for a, b in zip(ranges, ranges[1:], strict=False))
            assert await controller.streams.list("s") == ["_MARKt", "t"]
            assert len(await controller.layout.current(StreamName("s", "_MARKt"))) == 1
            assert await controller.streams.config(STREAM) == config(count)
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_creation_refuses_what_it_must_and_changes_nothing() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            before = table_keys(segments)
            with pytest.raises(AlreadyExistsError):
                await controller.streams.create(STREAM, config(2))
            with pytest.raises(ScopeNotFoundError):
                await controller.streams.create(StreamName("nowhere", "t"), config())
            for bad in ("_x", "a_b", "", "x" * 251, ".."):
                with pytest.raises(InvalidNameError):
                    await controller.streams.create(StreamName("s", bad), config())
            assert table_keys(segments) == before
            with pytest.raises(ScopeNotFoundError):
                await controller.layout.current(StreamName("nowhere", "t"))
            with pytest.raises(StreamNotFoundError):
                await controller.layout.current(StreamName("s", "other"))
            assert not await controller.streams.exists(StreamName("nowhere", "t"))
            assert await controller.layout.endpoint("anything/at/all") == Endpoint(host="here", port=1)

    asyncio.run(run())


def test_creating_a_stream_takes_three_durable_round_trips() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            await controller.scopes.create("s")
            before = segments.syncs
            await controller.streams.create(STREAM, config(4))
            assert segments.syncs - before == 3

    asyncio.run(run())


def test_listing_pages_and_filters_by_tag() -> None:
    async def run() -> None:
        async with opened(MemorySegments()) as controller:
            await controller.scopes.create("s")
            for number in range(5):
                tags = ("even",) if number % 2 == 0 else ()
                await controller.streams.create(StreamName("s", f"n{number}"), config(tags=tags))
            everything: list[str] = []
            while page := await controller.streams.list("s", after=everything[-1] if everything else "", limit=3):
                assert len(page) <= 3
                everything += page
            assert everything == [f"_MARKn{n}" for n in range(5)] + [f"n{n}" for n in range(5)]
            assert await controller.streams.list("s", tag="even") == ["n0", "n2", "n4"]
            assert await controller.streams.list("s", tag="even", limit=2) == ["n0", "n2"]
            assert await controller.streams.list("s", tag="none") == []
            with pytest.raises(ScopeNotFoundError):
                await controller.streams.list("nowhere")

    asyncio.run(run())


def test_a_stream_created_anew_never_uses_a_segment_name_again() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            with pytest.raises(StreamNotSealedError):
                await controller.streams.delete(STREAM)
            await scale_to(controller, 3)
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            assert not await controller.streams.exists(STREAM)
            assert await controller.streams.list("s") == []
            assert segments.segments == {}
            with pytest.raises(StreamNotFoundError):
                await controller.streams.delete(STREAM)
            await controller.streams.create(STREAM, config(1))
            assert [item.segment for item in await controller.layout.current(STREAM)] == [seg(0, 5)]
            assert (await controller.streams.describe(STREAM)).written_bytes == 0
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_sealed_stream_takes_no_change_but_still_answers() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            await controller.streams.seal(STREAM)
            await controller.streams.seal(STREAM)
            assert await controller.layout.current(STREAM) == ()
            assert not await controller.layout.is_active(STREAM, seg(0, 0))
            assert await controller.layout.successors(STREAM, seg(0, 0)) == ()
            assert (await controller.cuts.tail(STREAM)).positions == {seg(0, 0): 10, seg(0, 1): 0}
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 0, seg(0, 1): 0}
            description = await controller.streams.describe(STREAM)
            assert (description.sealed, description.size_bytes) == (True, 10)
            for call in (
                controller.streams.update(STREAM, config(3)),
                # The cut is not even looked at.
                controller.streams.truncate(STREAM, cut_at({seg(7, 7): 1})),
                controller.layout.scale(STREAM, sealed=[seg(0, 0)], new_ranges=even_ranges(1)),
                controller.transactions.create(STREAM, lease_ms=10_000),
            ):
                with pytest.raises(StreamSealedError):
                    await call
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_scaling_opens_successors_with_all_their_predecessors() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            segments.write(name_of(seg(0, 1)), b"y" * 7)
            result = await controller.layout.scale(
                STREAM, sealed=[seg(0, 1)], new_ranges=[KeyRange(low=0.5, high=0.75), KeyRange(low=0.75, high=1.0)]
            )
            assert result.epoch_before == 0
            assert [item.segment for item in result.segments] == [seg(1, 2), seg(1, 3)]
            active = await controller.layout.current(STREAM)
            assert [item.segment for item in active] == [seg(0, 0), seg(1, 2), seg(1, 3)]
            assert segments.segments[name_of(seg(0, 1))].sealed
            assert not segments.segments[name_of(seg(0, 0))].sealed
            following = await controller.layout.successors(STREAM, seg(0, 1))
            assert [(item.range.segment, list(item.predecessors)) for item in following] == [
                (seg(1, 2), [seg(0, 1)]),
                (seg(1, 3), [seg(0, 1)]),
            ]
            assert await controller.layout.successors(STREAM, seg(0, 0)) == ()
            with pytest.raises(SegmentNotFoundError):
                await controller.layout.successors(STREAM, seg(9, 9))
            await controller.layout.scale(
                STREAM, sealed=[seg(0, 0), seg(1, 2)], new_ranges=[KeyRange(low=0.0, high=0.75)]
            )
            (merged,) = await controller.layout.successors(STREAM, seg(1, 2))
            assert list(merged.predecessors) == [seg(0, 0), seg(1, 2)]
            assert [item.segment for item in await controller.layout.of_epoch(STREAM, 0)] == [seg(0, 0), seg(0, 1)]
            with pytest.raises(InvalidArgumentError):
                await controller.layout.of_epoch(STREAM, 3)
            assert await controller.layout.scale_status(STREAM, 0) is ScaleStatus.DONE
            assert await controller.layout.scale_status(STREAM, 2) is ScaleStatus.IN_PROGRESS
            assert await controller.layout.scale_status(STREAM, 3) is ScaleStatus.UNKNOWN_EPOCH
            assert (await controller.layout.ranges(STREAM, [seg(0, 1)]))[seg(0, 1)] == KeyRange(low=0.5, high=1.0)
            with pytest.raises(SegmentNotFoundError):
                await controller.layout.ranges(STREAM, [seg(5, 5)])
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_scaling_refuses_what_does_not_fit() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            with pytest.raises(InvalidArgumentError):
                await controller.layout.scale(STREAM, sealed=[seg(0, 1)], new_ranges=[KeyRange(low=0.4, high=1.0)])
            with pytest.raises(InvalidArgumentError):
                await controller.layout.scale(STREAM, sealed=[seg(0, 0), seg(0, 1)], new_ranges=even_ranges(1))
            await controller.layout.scale(STREAM, sealed=[seg(0, 1)], new_ranges=[KeyRange(low=0.5, high=1.0)])
            with pytest.raises(ScaleConflictError):
                await controller.layout.scale(STREAM, sealed=[seg(0, 1)], new_ranges=[KeyRange(low=0.5, high=1.0)])
            assert (await controller.streams.describe(STREAM)).epoch == 1

    asyncio.run(run())


def test_concurrent_scales_of_the_same_segments_let_one_win() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            scales = [controller.layout.scale(STREAM, sealed=[seg(0, 0)], new_ranges=even_ranges(2)) for _ in range(4)]
            results = await asyncio.gather(*scales, return_exceptions=True)
            assert sum(isinstance(item, ScaleConflictError) for item in results) == 3
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_another_fixed_number_scales_and_other_changes_do_not() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            await controller.streams.update(STREAM, config(4))
            assert len(await controller.layout.current(STREAM)) == 4
            await controller.streams.update(STREAM, config(1))
            (only,) = await controller.layout.current(STREAM)
            assert only.keys == KeyRange(low=0.0, high=1.0)
            await scale_to(controller, 3)
            await controller.streams.update(STREAM, config(1, tags=("a",)))
            assert len(await controller.layout.current(STREAM)) == 3
            by_rate = StreamConfig(
                scaling=ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=10, factor=2, min_segments=5)
            )
            await controller.streams.update(STREAM, by_rate)
            assert len(await controller.layout.current(STREAM)) == 5
            assert await controller.streams.config(STREAM) == by_rate
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_policy_puts_the_stream_on_the_retention_list() -> None:
    async def run() -> None:
        segments = MemorySegments()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=5)
        async with with_stream(segments, retention=policy) as controller:
            assert await controller.run_retention_cycles() == 1
            await controller.streams.update(STREAM, config())
            assert await controller.run_retention_cycles() == 0
            await controller.streams.update(STREAM, config(retention=policy))
            assert await controller.run_retention_cycles() == 1
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            assert await controller.run_retention_cycles() == 0

    asyncio.run(run())


def test_truncation_moves_the_head_and_only_forward() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            segments.write(name_of(seg(0, 0)), b"a" * 10)
            segments.write(name_of(seg(0, 1)), b"b" * 20)
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 4, seg(0, 1): 5}))
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 4, seg(0, 1): 5}
            assert segments.segments[name_of(seg(0, 1))].start == 5
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 4, seg(0, 1): 5}))
            for bad in (
                {seg(0, 0): 3, seg(0, 1): 5},
                {seg(0, 0): 5, seg(0, 1): 4},
                {seg(0, 0): 11, seg(0, 1): 5},
                {seg(0, 0): 5},
                {seg(0, 0): 5, seg(3, 1): 4},
                {},
            ):
                with pytest.raises(InvalidCutError):
                    await controller.streams.truncate(STREAM, cut_at(bad))
            with pytest.raises(InvalidCutError):
                await controller.streams.truncate(STREAM, StreamCut(StreamName("s", "u"), {seg(0, 0): 5, seg(0, 1): 5}))
            description = await controller.streams.describe(STREAM)
            assert (description.size_bytes, description.written_bytes, description.freed_bytes) == (21, 30, 9)
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_truncation_past_a_scale_deletes_whole_segments_and_keeps_their_sizes() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            segments.write(name_of(seg(0, 0)), b"a" * 10)
            segments.write(name_of(seg(0, 1)), b"b" * 20)
            await controller.layout.scale(STREAM, sealed=[seg(0, 0)], new_ranges=[KeyRange(low=0.0, high=0.5)])
            segments.write(name_of(seg(1, 2)), b"c" * 5)
            # Not started: its predecessor is unfinished. Never sent to the store, kept as the head.
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 10, seg(1, 2): NOT_STARTED, seg(0, 1): 1}))
            assert name_of(seg(0, 0)) in segments.segments
            await controller.streams.truncate(STREAM, cut_at({seg(1, 2): 3, seg(0, 1): 1}))
            assert name_of(seg(0, 0)) not in segments.segments
            description = await controller.streams.describe(STREAM)
            assert (description.size_bytes, description.written_bytes) == (21, 35)
            assert description.freed_bytes == 14
            # History answers for deleted segments too.
            assert [item.range.segment for item in await controller.layout.successors(STREAM, seg(0, 0))] == [seg(1, 2)]
            assert await controller.cuts.segments_between(STREAM, cut_at({}), cut_at({})) == [seg(0, 1), seg(1, 2)]
            spans = await controller.cuts.measure(STREAM, cut_at({seg(0, 0): 4, seg(0, 1): 0}), cut_at({}))
            assert [(item.segment, item.start, item.end) for item in spans] == [
                (seg(0, 0), 4, 10),
                (seg(0, 1), 0, 20),
                (seg(1, 2), 0, 5),
            ]
            assert spans[0].events is None, "nobody counted them before they went"
            for start, end in (
                ({}, {}),
                ({seg(1, 2): 0, seg(0, 1): 1}, {seg(0, 0): 10, seg(0, 1): 1}),
                ({seg(9, 0): 1}, {}),
            ):
                with pytest.raises(InvalidCutError):
                    await controller.cuts.measure(STREAM, cut_at(start), cut_at(end))
            assert await controller.cuts.is_valid(STREAM, cut_at({seg(0, 0): 1, seg(0, 1): 1}))
            assert not await controller.cuts.is_valid(STREAM, cut_at({seg(0, 0): 1}))
            assert not await controller.cuts.is_valid(STREAM, cut_at({seg(9, 0): 1}))
            with pytest.raises(InvalidCutError):
                await controller.cuts.segments_between(
                    STREAM, cut_at({seg(1, 2): 3, seg(0, 1): 1}), cut_at({seg(0, 0): 1, seg(0, 1): 1})
                )
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_caller_that_goes_away_does_not_stop_what_has_begun() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            task = asyncio.ensure_future(scale_to(controller, 2))
            before = segments.mutations
            while segments.mutations == before:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The next call waits for the lock, and finds the scale complete.
            await controller.streams.update(STREAM, config(1, tags=("x",)))
            assert len(await controller.layout.current(STREAM)) == 2
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_scope_cannot_be_deleted_under_a_stream_that_is_being_created() -> None:
    async def run() -> None:
        for delay in range(12):
            segments = MemorySegments()
            async with opened(segments, settings=QUIET) as controller:
                await controller.scopes.create("s")

                async def later(controller=controller, delay=delay) -> None:
                    for _ in range(delay):
                        await asyncio.sleep(0)
                    await controller.scopes.delete("s")

                created, deleted = await asyncio.gather(
                    controller.streams.create(STREAM, config()), later(), return_exceptions=True
                )
                if deleted is None:
                    assert isinstance(created, ScopeNotFoundError)
                    assert segments.segments == {}
                    assert not await controller.scopes.exists("s")
                else:
                    assert isinstance(deleted, NotEmptyError)
                    assert created is None or isinstance(created, ScopeNotFoundError)
                    assert await controller.scopes.exists("s")
                await check_invariants(controller, segments)

    asyncio.run(run())
