"""Holds: no rule or call deletes what they cover; each is reported, and somebody releases it."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import STREAM, audit_entries, config, cut_at, name_of, opened, seg, table_keys, with_stream
from memory_segments import MemorySegments

from penstock.controller import keys
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidCutError,
    NotFoundError,
    RetentionHoldError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import Idle, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

EVERYTHING_GOES = RetentionPolicy(type=RetentionType.SIZE)
OTHER = StreamName("s", "u")


def run(work) -> None:
    asyncio.run(work())


def hold_keys(segments: MemorySegments) -> list[str]:
    return [key for key in table_keys(segments) if key.startswith("hold")]


def test_a_hold_beats_truncation_by_hand_by_rule_and_deletion_and_names_itself() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=EVERYTHING_GOES) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            await controller.holds.add(STREAM, owner="legal", reason="case 7", hold_id="h1")
            expected = {"hold": "h1", "owner": "legal", "reason": "case 7"}
            with pytest.raises(RetentionHoldError) as caught:
                await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 1}))
            assert caught.value.fields == expected
            clock.ms += 1000
            decision = await controller.retention.run(STREAM)
            assert (decision.candidate, decision.truncate) == ({"0#0": 10}, None)
            assert (await controller.streams.describe(STREAM)).held_by == "hold h1"
            await controller.streams.seal(STREAM)
            with pytest.raises(RetentionHoldError) as caught:
                await controller.streams.delete(STREAM)
            assert caught.value.fields == expected
            with pytest.raises(RetentionHoldError) as caught:
                await controller.scopes.delete("s")
            assert caught.value.fields == expected
            assert (await controller.holds.release("h1", owner="court")).id == "h1"
            await controller.retention.run(STREAM)
            assert (await controller.streams.describe(STREAM)).size_bytes == 0
            await controller.streams.delete(STREAM)
            assert hold_keys(segments) == []

    run(work)


def test_segments_are_held_as_their_streams_are() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            for check in (controller.check_removal, controller.check_client_removal):
                await check(name_of(seg(0, 0)), 10)
            await controller.holds.add(STREAM, owner="o", reason="r", cut=cut_at({seg(0, 0): 4}), hold_id="cut")
            for check in (controller.check_removal, controller.check_client_removal):
                await check(name_of(seg(0, 0)), 4)
                for offset in (5, None):
                    with pytest.raises(RetentionHoldError):
                        await check(name_of(seg(0, 0)), offset)
            await controller.holds.add("s", owner="o", reason="r", hold_id="all")
            for check in (controller.check_removal, controller.check_client_removal):
                with pytest.raises(RetentionHoldError):
                    await check(name_of(seg(0, 0)), 1)
                for other in ("s/none/0.#epoch.0", "no/segment"):
                    await check(other, None)

    run(work)


def test_a_stream_loses_no_segment_to_a_client_that_knows_of_segments_alone() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            whole = name_of(seg(0, 0))
            transaction, transient = f"{whole}#transaction.{'0' * 32}", f"{whole}#transient.{'0' * 32}.{'1' * 32}"
            for name, offset in ((whole, None), (transaction, None), (transaction, 1)):
                await controller.check_removal(name, offset)
                with pytest.raises(InvalidArgumentError, match="belongs to a stream"):
                    await controller.check_client_removal(name, offset)
            # A state synchronizer may remove the head of its segment; a large event's segment belongs to its writer.
            for name, offset in ((whole, 5), (transient, None), ("s/none/0.#epoch.0", None), ("no/segment", None)):
                await controller.check_client_removal(name, offset)

    run(work)


def test_a_hold_from_a_cut_on_lets_go_what_lies_before() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=EVERYTHING_GOES) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            await controller.holds.add(STREAM, owner="o", reason="r", cut=cut_at({seg(0, 0): 4}))
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 3}))
            with pytest.raises(RetentionHoldError):
                await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 5}))
            clock.ms += 1000
            assert (await controller.retention.run(STREAM)).truncate == {"0#0": 4}
            with pytest.raises(InvalidCutError):
                await controller.holds.add(STREAM, owner="o", reason="too late", cut=cut_at({seg(0, 0): 3}))
            with pytest.raises(InvalidCutError):
                await controller.holds.add(STREAM, owner="o", reason="nonsense", cut=cut_at({seg(5, 0): 3}))

    run(work)


def test_a_hold_on_a_scope_covers_all_its_streams_those_to_come_included() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            hold = await controller.holds.add("s", owner="o", reason="r")
            await controller.streams.create(OTHER, config(1, EVERYTHING_GOES))
            await controller.scopes.create("free")
            segments.write(name_of(seg(0, 0), OTHER), b"x")
            clock.ms += 1000
            assert (await controller.retention.run(OTHER)).truncate is None
            with pytest.raises(RetentionHoldError):
                await controller.streams.truncate(OTHER, cut_at({seg(0, 0): 1}, OTHER))
            assert [item.id for item in await controller.holds.list(OTHER)] == [hold.id]
            await controller.scopes.delete("free")

    run(work)


def test_the_same_hold_again_changes_nothing_and_another_of_its_id_is_refused() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.scopes.create("z")
            first = await controller.holds.add(STREAM, owner="o", reason="r", until_ms=clock.ms + 50, hold_id="h")
            clock.ms += 10
            await controller.drain_audit()
            before = segments.mutations
            again = await controller.holds.add(STREAM, owner="o", reason="r", until_ms=clock.ms + 40, hold_id="h")
            assert again == first
            assert segments.mutations == before
            for target, owner in ((STREAM, "another"), ("s", "o"), ("z", "o")):
                with pytest.raises(AlreadyExistsError):
                    await controller.holds.add(target, owner=owner, reason="r", hold_id="h")
            # Its time over, the id is free.
            clock.ms += 100
            renewed = await controller.holds.add(STREAM, owner="another", reason="r", hold_id="h")
            assert renewed.owner == "another"

    run(work)


def test_a_hold_ends_with_its_time_whatever_the_wall_clock_is_set_to() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=EVERYTHING_GOES) as controller:
            segments.write(name_of(seg(0, 0)), b"x")
            await controller.holds.add(STREAM, owner="o", reason="r", until_ms=clock.ms + 1000)
            clock.jump(3_600_000)
            assert (await controller.retention.run(STREAM)).truncate is None
            assert len(await controller.holds.list(STREAM)) == 1
            clock.jump(-3_600_000)
            clock.ms += 999
            assert (await controller.retention.run(STREAM)).truncate is None
            clock.ms += 1
            assert (await controller.retention.run(STREAM)).truncate == {"0#0": 1}
            assert await controller.holds.list() == ()
            await controller.sweep()
            assert hold_keys(segments) == []
            (reported,) = await audit_entries(controller, segments, "unhold")
            assert (reported["rule"], reported["by"], reported["owner"]) == ("until_ms", "", "o")

    run(work)


def test_holds_are_listed_by_stream_scope_and_store_and_outlive_a_restart() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.streams.create(OTHER, config())
            await controller.scopes.create("a")
            for target, hold_id in ((STREAM, "t2"), (STREAM, "t1"), (OTHER, "u1"), ("s", "s1"), ("a", "a1")):
                await controller.holds.add(target, owner="o", reason="r", hold_id=hold_id)
        async with opened(segments) as controller:

            async def ids(target=None) -> list[str]:
                return [item.id for item in await controller.holds.list(target)]

            assert await ids() == ["a1", "s1", "t1", "t2", "u1"]
            assert await ids("s") == ["s1", "t1", "t2", "u1"]
            assert await ids(STREAM) == ["s1", "t1", "t2"]
            with pytest.raises(ScopeNotFoundError):
                await controller.holds.list("no")

    run(work)


def test_who_placed_and_who_lifted_a_hold_is_told() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.holds.add(STREAM, owner="anna", reason="why", hold_id="h", cut=cut_at({seg(0, 0): 0}))
            await controller.holds.release("h", owner="bert")
            with pytest.raises(NotFoundError):
                await controller.holds.release("h", owner="bert")
            placed, lifted = await audit_entries(controller, segments, "hold", "unhold")
            assert (placed["target"], placed["by"], placed["reason"], placed["cut"]) == ("s/t", "anna", "why", {"0": 0})
            assert (lifted["by"], lifted["owner"]) == ("bert", "anna")

    run(work)


@pytest.mark.parametrize(
    "fields",
    [
        {"owner": "", "reason": "r"},
        {"owner": "o", "reason": " "},
        {"owner": "o", "reason": "r" * 2000},
        {"owner": "o", "reason": "r", "hold_id": "a/b"},
        {"owner": "o", "reason": "r", "hold_id": ""},
        {"owner": "o", "reason": "r", "until_ms": 5},
        {"owner": "\x1b[31mlegal", "reason": "r"},
        {"owner": "o\nlegal", "reason": "r"},
        {"owner": "o", "reason": "half a pair: \ud800"},
    ],
)
def test_a_hold_that_cannot_be_is_refused_by_the_field(fields: dict[str, object]) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            with pytest.raises(InvalidArgumentError) as caught:
                await controller.holds.add(STREAM, **fields)
            assert caught.value.fields["field"] in fields
            assert hold_keys(segments) == []

    run(work)


def test_holds_need_something_to_hold() -> None:
    async def work() -> None:
        async with with_stream(MemorySegments()) as controller:
            with pytest.raises(StreamNotFoundError):
                await controller.holds.add(StreamName("s", "no"), owner="o", reason="r")
            with pytest.raises(ScopeNotFoundError):
                await controller.holds.add("no", owner="o", reason="r")
            with pytest.raises(InvalidArgumentError):
                await controller.holds.add("s", owner="o", reason="r", cut=cut_at({seg(0, 0): 0}))
            with pytest.raises(InvalidArgumentError):
                await controller.holds.add(StreamName("s", "_MARKt"), owner="o", reason="r")
            for offset in (1, 1 << 70):
                # The stream is empty: a hold on what may never be would be one that nobody can describe.
                with pytest.raises(InvalidCutError):
                    await controller.holds.add(STREAM, owner="o", reason="r", cut=cut_at({seg(0, 0): offset}))
            assert list(await controller.holds.list()) == []
            with pytest.raises(NotFoundError):
                await controller.holds.release("no", owner="o")

    run(work)


def test_a_hold_that_cannot_be_read_holds_its_whole_scope_until_somebody_lifts_it() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=EVERYTHING_GOES) as controller:
            await controller.streams.create(OTHER, config())
            await controller.holds.add(OTHER, owner="o", reason="r", hold_id="h")
            table = segments.tables[keys.TABLE]
            table.entries[keys.hold("s", "h")] = (b"\x00", table.entries[keys.hold("s", "h")][1])
            segments.write(name_of(seg(0, 0)), b"x")
            clock.ms += 1000
            assert (await controller.retention.run(STREAM)).truncate is None
            (item,) = await controller.holds.list(STREAM)
            assert "cannot be read" in item.reason
            await controller.holds.release("h", owner="o")
            assert (await controller.retention.run(STREAM)).truncate == {"0#0": 1}

    run(work)


def test_what_a_hold_has_kept_from_a_rule_is_told_and_not_again_and_again() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=EVERYTHING_GOES) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10, event_bytes=5)
            await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
            for _ in range(5):
                clock.ms += 1000
                await controller.retention.run(STREAM)
            (reported,) = await audit_entries(controller, segments, "held")
            assert (reported["would"], reported["rule"], reported["bytes"], reported["events"]) == (
                "truncate",
                "minimum",
                10,
                2,
            )
            assert reported["holds"] == [{"hold": "h", "owner": "o", "reason": "r"}]
            clock.ms += 3_600_000
            await controller.retention.run(STREAM)
            assert len(await audit_entries(controller, segments, "held")) == 2

    run(work)


def test_a_held_stream_is_never_deleted_for_being_idle() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(stream_s=10)))
            await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
            clock.ms += 20_000
            assert not (await controller.retention.run(STREAM)).delete_stream
            assert await controller.streams.exists(STREAM)
            (reported,) = await audit_entries(controller, segments, "held")
            assert (reported["would"], reported["rule"]) == ("delete", "idle-stream")
            await controller.holds.release("h", owner="o")
            await controller.retention.run(STREAM)
            assert not await controller.streams.exists(STREAM)

    run(work)


def test_a_hold_that_has_returned_was_seen_by_every_truncation_after_it() -> None:
    """A truncation under way when a hold is placed is complete, or refused, once the hold is there."""

    async def work() -> None:
        for target in (STREAM, "s"):
            segments, clock = MemorySegments(), FakeClock()
            async with with_stream(segments, 1, clock) as controller:
                segments.write(name_of(seg(0, 0)), b"x" * 50)

                async def truncate_on(controller=controller) -> None:
                    for offset in range(1, 50):
                        await controller.streams.truncate(STREAM, cut_at({seg(0, 0): offset}))

                async with asyncio.TaskGroup() as group:
                    task = group.create_task(_refused(truncate_on()))
                    for _ in range(30):
                        await asyncio.sleep(0)
                    await controller.holds.add(target, owner="o", reason="r")
                    start = segments.segments[name_of(seg(0, 0))].start
                    await task
                assert 0 < start < 49
                assert segments.segments[name_of(seg(0, 0))].start == start

    run(work)


async def _refused(work) -> None:
    with pytest.raises(RetentionHoldError):
        await work
