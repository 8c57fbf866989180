"""Every call that takes a cut refuses one that no reader can have reached, and changes nothing then.

The calls are found by their annotations: one that is not in the table below fails the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from uuid import UUID

import pytest
from controller_world import STREAM, config, cut_at, name_of, scale_to, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, TruncatedError
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import SegmentId
from penstock.ports.control.groups import ReaderGroupConfig
from tests.flat_control import calls_of_the_port

OTHER = StreamName("s", "other")
GROUP = "s/known"
ID, FRESH = UUID(int=5), UUID(int=6)

Call = Callable[[Controller, StreamCut], Awaitable[object]]


def _group(name: str, group_id: UUID, cut: StreamCut, *, retention: ReaderGroupRetention) -> ReaderGroupConfig:
    return ReaderGroupConfig(scope="s", name=name, id=group_id, retention=retention, start_cuts={STREAM: cut})


def _ending(name: str, group_id: UUID, cut: StreamCut) -> ReaderGroupConfig:
    start = StreamCut(STREAM, {})
    return replace(_group(name, group_id, start, retention=ReaderGroupRetention.NONE), end_cuts={STREAM: cut})


async def _refused_as_invalid(controller: Controller, cut: StreamCut) -> object:
    if not await controller.cuts.is_valid(STREAM, cut):
        raise InvalidCutError("cut is not valid")
    return None


async def _measure_to(controller: Controller, cut: StreamCut) -> object:
    return await controller.cuts.measure(STREAM, await controller.cuts.head(STREAM), cut)


MANUAL, NONE = ReaderGroupRetention.MANUAL, ReaderGroupRetention.NONE
UNBOUNDED = StreamCut(STREAM, {})

CALLS: Mapping[str, Mapping[str, Call]] = {
    "streams.truncate": {"cut": lambda c, cut: c.streams.truncate(STREAM, cut)},
    "cuts.segments_between": {
        "start": lambda c, cut: c.cuts.segments_between(STREAM, cut, UNBOUNDED),
        "end": lambda c, cut: c.cuts.segments_between(STREAM, UNBOUNDED, cut),
    },
    "cuts.measure": {
        "start": lambda c, cut: c.cuts.measure(STREAM, cut, UNBOUNDED),
        "end": _measure_to,
    },
    "cuts.before": {"cut": lambda c, cut: c.cuts.before(STREAM, cut, 1)},
    "cuts.is_valid": {"cut": _refused_as_invalid},
    "cuts.note_time": {"position": lambda c, cut: c.cuts.note_time(STREAM, "w", 5, position=cut)},
    "cuts.time_window": {"position": lambda c, cut: c.cuts.time_window(cut)},
    "groups.create": {
        "start": lambda c, cut: c.groups.create(_group("fresh", FRESH, cut, retention=MANUAL)),
        "start, no subscriber": lambda c, cut: c.groups.create(_group("fresh", FRESH, cut, retention=NONE)),
        "end": lambda c, cut: c.groups.create(_ending("fresh", FRESH, cut)),
    },
    "groups.update": {
        "start": lambda c, cut: c.groups.update(_group("known", ID, cut, retention=MANUAL)),
        "start, no subscriber": lambda c, cut: c.groups.update(_group("known", ID, cut, retention=NONE)),
        "end": lambda c, cut: c.groups.update(_ending("known", ID, cut)),
    },
    "subscribers.publish": {
        "cut": lambda c, cut: c.subscribers.publish(GROUP, group_id=None, generation=None, cut=cut)
    },
    "retention.explain": {"position": lambda c, cut: c.retention.explain(STREAM, position=cut)},
    "holds.add": {"cut": lambda c, cut: c.holds.add(STREAM, owner="o", reason="r", cut=cut)},
    "subscribers.move": {
        "cut": lambda c, cut: c.subscribers.move(STREAM, GROUP, cut),
        "cut, dry": lambda c, cut: c.subscribers.move(STREAM, GROUP, cut, dry_run=True),
    },
}

NAMES_THE_STREAM_BY_ITS_CUT = {"subscribers.publish", "cuts.time_window"}
"""A cut of another stream is a call about that stream here, and this subscriber is not one of it."""

COMPLETES_POSITIONS = {"cuts.note_time"}
"""Pravega's writers leave out segments, and name ones of two epochs, while a stream scales."""
INCOMPLETE = ("incomplete", "a hole in the middle", "two epochs that do not fit", "passed on part of its range")

REFUSES_WAITING_SEGMENTS = {"cuts.before"}
"""It counts events back from positions, and a segment that waits for an older one has none."""

REFUSES_BEHIND_THE_HEAD = {"streams.truncate", "holds.add", "subscribers.move"}


def _calls_with_a_cut() -> set[str]:
    found = set()
    for name, member in calls_of_the_port():
        given = [text for key, text in member.__annotations__.items() if key != "return"]
        if any("StreamCut" in str(text) or "ReaderGroupConfig" in str(text) for text in given):
            found.add(name)
    return found


def test_the_table_names_every_call_of_the_port_that_takes_a_cut() -> None:
    assert _calls_with_a_cut() == set(CALLS)


async def _bad_cuts(controller: Controller, segments: MemorySegments) -> dict[str, StreamCut]:
    """Two old halves, sealed at 100 bytes; three segments now, with 10 bytes in the first."""
    old = [item.segment for item in await controller.layout.current(STREAM)]
    for segment in old:
        segments.write(name_of(segment), b"x" * 100)
    await scale_to(controller, 3)
    now = [item.segment for item in await controller.layout.current(STREAM)]
    segments.write(name_of(now[0]), b"x" * 10)
    tail = (await controller.cuts.tail(STREAM)).positions
    positions: dict[str, dict[SegmentId, int]] = {
        "beyond the tail": {**tail, now[0]: 11},
        "far beyond the tail": {**tail, now[2]: 1 << 62},
        "more than 64 bits": {**tail, now[1]: 1 << 70},
        "beyond the end of a sealed segment": {old[0]: 101, old[1]: 0},
        "incomplete": {now[0]: 0, now[1]: 0},
        "a hole in the middle": {now[0]: 0, now[2]: 0},
        "a segment that never was": {**tail, SegmentId(77): 0},
        "only a segment that never was": {SegmentId(77): 0},
        "two epochs that do not fit": {old[0]: 5, now[0]: 3, now[1]: 0, now[2]: 0},
        "passed on part of its range": {old[0]: 100, now[2]: 0},
    }
    return {what: cut_at(item) for what, item in positions.items()}


async def _state(segments: MemorySegments) -> object:
    """All records of the controller except the marks of ended workflows."""
    return {
        (table, key): value
        for table, found in segments.tables.items()
        for key, (value, _) in found.entries.items()
        if not key.startswith(b"work/")
    }


async def _with_a_subscriber(controller: Controller) -> None:
    await controller.streams.create(OTHER, config(2))
    head = await controller.cuts.head(STREAM)
    await controller.groups.create(_group("known", ID, head, retention=MANUAL))


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_cut_that_nobody_can_have_reached_is_refused_and_changes_nothing(call: str) -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            await _with_a_subscriber(controller)
            bad = await _bad_cuts(controller, segments)
            if call not in NAMES_THE_STREAM_BY_ITS_CUT:
                bad["of another stream"] = await controller.cuts.head(OTHER)
                bad["the whole of another stream"] = StreamCut(OTHER, {})
            if call in COMPLETES_POSITIONS:
                bad = {what: cut for what, cut in bad.items() if what not in INCOMPLETE}
            before = await _state(segments)
            for argument, ask in CALLS[call].items():
                for what, cut in bad.items():
                    print(f"{call} is asked for a cut that is {what}, as {argument}")
                    with pytest.raises(InvalidCutError):
                        await ask(controller, cut)
                    assert await _state(segments) == before, (argument, what)

    asyncio.run(run())


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_cut_of_an_earlier_stream_of_the_name_is_refused(call: str) -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            earlier = await controller.cuts.tail(STREAM)
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            await controller.streams.create(STREAM, config(2))
            await _with_a_subscriber(controller)
            for ask in CALLS[call].values():
                with pytest.raises(InvalidCutError):
                    await ask(controller, earlier)

    asyncio.run(run())


@pytest.mark.parametrize("call", sorted(REFUSES_BEHIND_THE_HEAD))
def test_a_cut_before_the_head_is_refused_if_the_call_needs_the_data_there(call: str) -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            await _with_a_subscriber(controller)
            behind = await controller.cuts.head(STREAM)
            for segment in behind.positions:
                segments.write(name_of(segment), b"x" * 100)
            await controller.streams.truncate(STREAM, cut_at(dict.fromkeys(behind.positions, 50)))
            for ask in CALLS[call].values():
                with pytest.raises((InvalidCutError, TruncatedError)):
                    await ask(controller, behind)

    asyncio.run(run())


@pytest.mark.parametrize("call", sorted(CALLS))
def test_every_position_from_the_head_to_the_tail_is_accepted(call: str) -> None:
    async def run() -> None:
        for ask in CALLS[call].values():
            segments = MemorySegments()
            async with with_stream(segments, 2) as controller:
                await _with_a_subscriber(controller)
                old = [item.segment for item in await controller.layout.current(STREAM)]
                for segment in old:
                    segments.write(name_of(segment), b"x" * 100)
                halfway = cut_at({old[0]: 40, old[1]: 100})
                await scale_to(controller, 3)
                now = [item.segment for item in await controller.layout.current(STREAM)]
                segments.write(name_of(now[0]), b"x" * 10)
                mixed = cut_at({old[0]: 100, now[1]: -1, now[2]: 0})
                for cut in (halfway, mixed, await controller.cuts.tail(STREAM)):
                    if cut is mixed and call in REFUSES_WAITING_SEGMENTS:
                        with pytest.raises(InvalidCutError, match="waits for an older one"):
                            await ask(controller, cut)
                        continue
                    await ask(controller, cut)
                    if call in ("groups.create", "groups.update"):
                        break  # Once, because the group then has another generation.

    asyncio.run(run())


def test_an_end_before_the_start_is_refused() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            head = await controller.cuts.head(STREAM)
            for segment in head.positions:
                segments.write(name_of(segment), b"x" * 100)
            tail = await controller.cuts.tail(STREAM)
            crossed = cut_at({min(head.positions): 0, max(head.positions): 100})
            for start, end in ((tail, head), (tail, crossed)):
                with pytest.raises(InvalidCutError):
                    await controller.cuts.segments_between(STREAM, start, end)
                with pytest.raises(InvalidCutError):
                    await controller.cuts.measure(STREAM, start, end)
                for retention in (MANUAL, NONE):
                    group = replace(_group("fresh", FRESH, start, retention=retention), end_cuts={STREAM: end})
                    with pytest.raises(InvalidCutError):
                        await controller.groups.create(group)

    asyncio.run(run())


def test_a_subscriber_never_releases_what_is_written_after_its_cut() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            await _with_a_subscriber(controller)
            tail = await controller.cuts.tail(STREAM)
            (segment,) = tail.positions
            segments.write(name_of(segment), b"x" * 100)
            beyond = cut_at({segment: 1_000_000})
            with pytest.raises(InvalidCutError, match="beyond the tail"):
                await controller.subscribers.publish(GROUP, group_id=ID, generation=0, cut=beyond)
            (known,) = await controller.subscribers.describe(STREAM)
            assert known.cut == tail
            assert known.lag_bytes == 100

    asyncio.run(run())


def test_calls_without_the_lock_check_cuts_against_the_current_stream_while_it_scales() -> None:
    """All calls accept the current tail, however often the stream scales and is truncated during the call."""

    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            await _with_a_subscriber(controller)
            done = asyncio.Event()

            async def scale() -> None:
                for round_ in range(20):
                    for item in await controller.layout.current(STREAM):
                        segments.write(name_of(item.segment), b"x" * 10)
                    await scale_to(controller, 1 + round_ % 4)
                    await controller.streams.truncate(STREAM, await controller.cuts.tail(STREAM))
                done.set()

            async def ask() -> int:
                accepted = 0
                while not done.is_set():
                    cut = await controller.cuts.tail(STREAM)
                    assert await controller.cuts.is_valid(STREAM, cut)
                    assert await controller.cuts.segments_between(STREAM, cut, cut)
                    await controller.subscribers.publish(GROUP, group_id=ID, generation=0, cut=cut)
                    await controller.retention.explain(STREAM, position=cut)
                    accepted += 1
                return accepted

            async with asyncio.TaskGroup() as group:
                group.create_task(scale())
                asked = group.create_task(ask())
            assert asked.result() > 20

    asyncio.run(run())
