"""Reader groups and subscribers: checks in their order, generations, cuts that only go forward."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from controller_world import STREAM, check_invariants, config, cut_at, name_of, opened, seg, with_stream
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_segments import MemorySegments

from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    GenerationMismatchError,
    InvalidCutError,
    InvalidNameError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.retention import Idle, PolicyDocument, Retain
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import FakeClock

ID = UUID(int=7)
OTHER = UUID(int=8)
SECOND = StreamName("s", "u")
MANUAL = ReaderGroupRetention.MANUAL
NONE = ReaderGroupRetention.NONE


def group(
    retention: ReaderGroupRetention = MANUAL,
    starts: dict[StreamName, dict[int, int]] | None = None,
    *,
    name: str = "g",
    group_id: UUID = ID,
    generation: int = 0,
) -> ReaderGroupConfig:
    starts = {STREAM: {}} if starts is None else starts
    return ReaderGroupConfig(
        scope="s",
        name=name,
        id=group_id,
        generation=generation,
        retention=retention,
        start_cuts={stream: StreamCut(stream, positions) for stream, positions in starts.items()},
    )


def test_a_group_is_created_once_with_its_stream_and_comes_back_as_it_was() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            created = await controller.groups.create(group())
            assert created == group()
            again = await controller.groups.create(group(NONE, {}, group_id=OTHER))
            assert again == group()
            assert await controller.groups.get("s", "g") == group()
            assert await controller.groups.list("s") == ["g"]
            assert "_RGg" in await controller.streams.list("s")
            assert await controller.subscribers.list(STREAM) == ("s/g",)
            with pytest.raises(ReaderGroupNotFoundError):
                await controller.groups.get("s", "none")
            with pytest.raises(ScopeNotFoundError):
                await controller.groups.list("nowhere")
            with pytest.raises(StreamNotFoundError):
                await controller.subscribers.list(StreamName("s", "none"))
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_creation_refuses_what_it_must_and_leaves_nothing() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            refused = [
                (group(name="a_b"), InvalidNameError),
                (group(name="x" * 249), InvalidNameError),
                (group(starts={SECOND: {}}), StreamNotFoundError),
                (group(starts={STREAM: {}, SECOND: {}}), StreamNotFoundError),
                (group(starts={STREAM: {seg(5, 5): 0}}), InvalidCutError),
                (ReaderGroupConfig(scope="nowhere", name="g", id=ID), ScopeNotFoundError),
            ]
            for wrong, error in refused:
                with pytest.raises(error):
                    await controller.groups.create(wrong)
            assert await controller.groups.list("s") == []
            assert await controller.subscribers.list(STREAM) == ()
            assert await controller.streams.list("s") == ["_MARKt", "t"]

    asyncio.run(run())


def test_an_explicit_start_is_acknowledged_in_the_act_of_registering_and_an_unbounded_one_is_not() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.groups.create(group(starts={STREAM: {seg(0, 0): 0}}))
            await controller.groups.create(group(name="silent", group_id=OTHER))
            await controller.groups.create(group(NONE, {STREAM: {seg(0, 0): 0}}, name="idle"))
            ours, silent = (await controller.streams.describe(STREAM)).subscribers
            assert (ours.name, ours.cut) == ("s/g", cut_at({seg(0, 0): 0}))
            assert (silent.name, silent.cut) == ("s/silent", None)

    asyncio.run(run())


def test_publications_are_checked_in_the_order_of_the_protocol() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 2, clock) as controller:
            await controller.groups.create(group())
            await controller.groups.update(group())
            for segment in (seg(0, 0), seg(0, 1)):
                segments.write(name_of(segment), b"x" * 9)
            good = {seg(0, 0): 4, seg(0, 1): 2}

            async def publish(subscriber="s/g", group_id=ID, generation=1, positions=good, stream=STREAM) -> None:
                await controller.subscribers.publish(
                    subscriber, group_id=group_id, generation=generation, cut=StreamCut(stream, positions)
                )

            with pytest.raises(StreamNotFoundError):
                await publish(subscriber="s/none", stream=SECOND, generation=9)
            with pytest.raises(SubscriberNotFoundError):
                await publish(subscriber="s/none", generation=9, positions={})
            with pytest.raises(SubscriberNotFoundError):
                await publish(group_id=OTHER, generation=9, positions={})
            with pytest.raises(GenerationMismatchError):
                await publish(generation=0, positions={})
            with pytest.raises(GenerationMismatchError):
                await publish(generation=2)
            for wrong in ({}, {seg(0, 0): 1}, {seg(4, 0): 1, seg(0, 1): 1}):
                with pytest.raises(InvalidCutError):
                    await publish(positions=wrong)
            await publish()
            clock.ms += 5
            await publish()
            for back in ({seg(0, 0): 3, seg(0, 1): 2}, {seg(0, 0): 9, seg(0, 1): 1}):
                with pytest.raises(InvalidCutError):
                    await publish(positions=back)
            await publish(positions={seg(0, 0): 4, seg(0, 1): 3}, group_id=None, generation=None)
            (info,) = (await controller.streams.describe(STREAM)).subscribers
            assert info.cut == cut_at({seg(0, 0): 4, seg(0, 1): 3})
            assert (info.generation, info.updated_ms) == (1, clock.ms)

    asyncio.run(run())


def test_updates_need_generation_and_id_and_move_subscriptions() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.streams.create(SECOND, config())
            with pytest.raises(ReaderGroupNotFoundError):
                await controller.groups.update(group())
            segments.write(name_of(seg(0, 0)), b"x" * 3)
            await controller.groups.create(group(starts={STREAM: {seg(0, 0): 3}}))
            for stale in (group(generation=1), group(group_id=OTHER)):
                with pytest.raises(GenerationMismatchError):
                    await controller.groups.update(stale)
            with pytest.raises(StreamNotFoundError):
                await controller.groups.update(group(starts={StreamName("s", "none"): {}}))
            both = {STREAM: {seg(0, 0): 0}, SECOND: {seg(0, 0): 0}}
            assert await controller.groups.update(group(starts=both)) == 1
            (first,) = (await controller.streams.describe(STREAM)).subscribers
            # Asked to go back: the group may, what it has acknowledged does not.
            assert (first.generation, first.cut) == (1, cut_at({seg(0, 0): 3}))
            assert await controller.subscribers.list(SECOND) == ("s/g",)
            assert await controller.groups.update(group(starts={SECOND: {}}, generation=1)) == 2
            assert await controller.subscribers.list(STREAM) == ()
            assert await controller.subscribers.list(SECOND) == ("s/g",)
            assert await controller.groups.update(group(NONE, {SECOND: {}}, generation=2)) == 3
            assert await controller.subscribers.list(SECOND) == ()
            assert (await controller.groups.get("s", "g")).generation == 3
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_deleting_a_group_takes_its_stream_and_subscriptions_along() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.groups.create(group())
            with pytest.raises(ReaderGroupNotFoundError):
                await controller.groups.delete("s", "g", group_id=OTHER)
            await controller.groups.delete("s", "g", group_id=ID)
            assert await controller.groups.list("s") == []
            assert await controller.subscribers.list(STREAM) == ()
            assert await controller.streams.list("s") == ["_MARKt", "t"]
            with pytest.raises(ReaderGroupNotFoundError):
                await controller.groups.delete("s", "g")
            assert (await controller.groups.create(group(group_id=OTHER))).id == OTHER
            (info,) = (await controller.streams.describe(STREAM)).subscribers
            assert info.cut is None
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_subscription_does_not_pass_to_a_later_stream_of_the_same_name() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.groups.create(group(starts={STREAM: {seg(0, 0): 0}}))
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            await controller.streams.create(STREAM, config())
            assert await controller.subscribers.list(STREAM) == ()
            with pytest.raises(SubscriberNotFoundError):
                await controller.subscribers.publish("s/g", group_id=ID, generation=0, cut=cut_at({seg(0, 1): 0}))
            await check_invariants(controller, segments)

    asyncio.run(run())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 5), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("update"), st.integers(0, 5), st.sampled_from([MANUAL, NONE]), st.booleans()),
        st.tuples(st.just("recreate"), st.integers(0, 5), st.sampled_from([MANUAL, NONE]), st.booleans()),
        st.tuples(st.just("reopen"), st.just(0), st.just(0), st.just(False)),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_generations_and_cuts_follow_the_model(steps) -> None:
    """A model of one group on one stream: (id, generation, subscribed, acknowledged offset)."""

    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 5)
            await controller.groups.create(group())
        number, generation, subscribed, acked = 1, 0, True, None
        position = 0
        while position <= len(steps):
            async with opened(segments) as controller:
                while position < len(steps) and steps[position][0] != "reopen":
                    verb, offset, argument, right = steps[position]
                    position += 1
                    current = UUID(int=6 + number)
                    if verb == "publish":
                        given_generation = generation if right else argument
                        call = controller.subscribers.publish(
                            "s/g", group_id=current, generation=given_generation, cut=cut_at({seg(0, 0): offset})
                        )
                        if not subscribed:
                            with pytest.raises(SubscriberNotFoundError):
                                await call
                        elif given_generation != generation:
                            with pytest.raises(GenerationMismatchError):
                                await call
                        elif acked is not None and offset < acked:
                            with pytest.raises(InvalidCutError):
                                await call
                        else:
                            await call
                            acked = offset
                    elif verb == "update":
                        wanted = group(
                            argument,
                            {STREAM: {seg(0, 0): offset} if offset else {}},
                            group_id=current if right else UUID(int=99),
                            generation=generation,
                        )
                        if not right:
                            with pytest.raises(GenerationMismatchError):
                                await controller.groups.update(wanted)
                            continue
                        generation += 1
                        assert await controller.groups.update(wanted) == generation
                        if argument is NONE:
                            subscribed, acked = False, None
                        elif not subscribed:
                            subscribed, acked = True, offset or None
                    else:
                        await controller.groups.delete("s", "g", group_id=current)
                        number, generation = number + 1, 0
                        subscribed = argument is MANUAL
                        acked = (offset or None) if subscribed else None
                        await controller.groups.create(
                            group(
                                argument, {STREAM: {seg(0, 0): offset} if offset else {}}, group_id=UUID(int=6 + number)
                            )
                        )
                    infos = (await controller.streams.describe(STREAM)).subscribers
                    cut = None if acked is None else cut_at({seg(0, 0): acked})
                    found = [(info.generation, info.cut) for info in infos]
                    assert found == ([(generation, cut)] if subscribed else [])
                position += 1

    asyncio.run(run())


@pytest.mark.parametrize("ended_by", ["a person", "the rule on idle subscribers"])
def test_creating_a_group_again_registers_a_subscription_that_was_ended(ended_by: str) -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 2, clock) as controller:
            positions = {seg(0, 0): 0, seg(0, 1): 0}
            for name, start in (("explicit", positions), ("silent", {})):
                await controller.groups.create(group(starts={STREAM: start}, name=name))
            await controller.groups.create(group(NONE, name="none"))
            for segment in positions:
                segments.write(name_of(segment), b"x" * 10)
            if ended_by == "a person":
                for name in await controller.subscribers.list(STREAM):
                    await controller.subscribers.remove(STREAM, name)
            else:
                idle = PolicyDocument(retain=Retain(min_bytes=1000), idle=Idle(subscriber_s=100))
                await controller.policies.set(STREAM, idle)
                clock.ms += 100_000
                await controller.retention.run(STREAM)
            assert await controller.subscribers.list(STREAM) == ()
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 10, seg(0, 1): 4}))
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            stored = await controller.groups.get("s", "explicit")
            again = group(starts={STREAM: {seg(0, 0): 12, seg(0, 1): 5}}, name="explicit", group_id=OTHER)
            assert await controller.groups.create(again) == stored
            await controller.groups.create(group(name="silent", group_id=OTHER))
            await controller.groups.create(group(NONE, name="none", group_id=OTHER))
            explicit, silent = await controller.subscribers.describe(STREAM)
            # Its own start, not that of the second create call: unread data may lie between the two.
            assert (explicit.name, explicit.cut) == ("s/explicit", await controller.cuts.head(STREAM))
            assert (silent.name, silent.cut) == ("s/silent", None)
            assert explicit.updated_ms == silent.updated_ms == clock.ms
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_creating_a_group_again_neither_moves_nor_renews_an_existing_subscription() -> None:
    """A program that fails at every start does not look alive."""

    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            await controller.groups.create(group(starts={STREAM: {seg(0, 0): 0}}))
            await controller.subscribers.publish("s/g", group_id=ID, generation=0, cut=cut_at({seg(0, 0): 6}))
            published_ms = clock.ms
            clock.ms += 50_000
            await controller.groups.create(group(starts={STREAM: {seg(0, 0): 0}}))
            (known,) = await controller.subscribers.describe(STREAM)
            assert (known.cut, known.updated_ms) == (cut_at({seg(0, 0): 6}), published_ms)

    asyncio.run(run())


def test_a_group_is_not_registered_with_a_stream_that_was_created_again() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            made = await controller.groups.create(group(starts={STREAM: {seg(0, 0): 0}}))
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            assert await controller.groups.create(group(starts={STREAM: {seg(0, 0): 0}})) == made
            await controller.streams.create(STREAM, config())
            assert await controller.groups.create(group(starts={STREAM: {seg(0, 0): 0}})) == made
            assert await controller.subscribers.list(STREAM) == ()

    asyncio.run(run())
