"""The stores of several workers, behind one router, keep the laws of one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from workers_world import LAYOUT, NAMES, PATIENCE_S, STREAM, WorkersWorld, by_worker, run_in_world

from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.workers.layout import settle_layout
from penstock.app.workers.supervisor import open_workers
from penstock.model.errors import (
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    QuotaExceededError,
    QuotaHeldError,
    SegmentNotFoundError,
)
from penstock.ports.data.chunks import Leased
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import NO_EVENT, Append, Appended
from penstock.ports.data.tables import TableKind, TablePut
from penstock.storage.machine.data_directory import DataDirectory
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.erasure import ErasureLaws
from penstock.testing.conformance.segments import SegmentLaws

WRITER = UUID(int=9)


class InProcessLaws(SegmentLaws, ErasureLaws):
    def __init__(self, *, checkpoint: bool) -> None:
        self.world = WorkersWorld()
        self.checkpoint = checkpoint

    @asynccontextmanager
    async def open(self):
        async with self.world.open(checkpoint=self.checkpoint) as segments:
            yield segments


class ProcessLaws(SegmentLaws, ErasureLaws):
    """Two real processes, started anew for each opening."""

    def __init__(self, data: Path) -> None:
        self.settings = StandaloneSettings(store=EmbeddedSettings(data=data), store_port=0, workers=2)

    @asynccontextmanager
    async def open(self):
        data = self.settings.store.data
        with DataDirectory.open(data):
            async with open_workers(self.settings, settle_layout(data, 2)) as workers:
                yield workers.segments


@pytest.mark.parametrize("checkpoint", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("law", [*laws(SegmentLaws), *laws(ErasureLaws)])
def test_laws_of_segments_over_two_workers(law: str, checkpoint: bool) -> None:
    @asynccontextmanager
    async def suite() -> AsyncIterator[InProcessLaws]:
        made = InProcessLaws(checkpoint=checkpoint)
        try:
            yield made
        finally:
            made.world.close()

    run_conformance(suite, law=law, timeout_s=PATIENCE_S)


FEW = ("law_counters_are_exact_while_appends_are_in_flight",)


def run_in_processes(law: str, data: Path) -> None:
    run_conformance(lambda: ProcessLaws(data), law=law, timeout_s=4 * PATIENCE_S)


@pytest.mark.server
@pytest.mark.parametrize("law", FEW)
def test_laws_of_segments_over_two_processes(law: str, tmp_path: Path) -> None:
    run_in_processes(law, tmp_path)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("law", [law for law in [*laws(SegmentLaws), *laws(ErasureLaws)] if law not in FEW])
def test_all_laws_of_segments_over_two_processes(law: str, tmp_path: Path) -> None:
    run_in_processes(law, tmp_path)


async def append(segments, name: str, data: bytes, number: int, previous: int) -> Appended | PenstockError:
    answer: asyncio.Future = asyncio.get_running_loop().create_future()
    request = Append(segment=name, writer=WRITER, data=data, event_number=number, previous=previous)
    segments.submit_append(request, answer.set_result)
    return await answer


def test_a_limit_bounds_segments_of_several_workers_together() -> None:
    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        assert sorted(by_worker(segments)) == [0, 1]
        for name in NAMES:
            await segments.create_segment(name)
            assert await segments.setup_append(name, WRITER) == NO_EVENT
        limit = AppendLimit(stream=STREAM, segments=NAMES, total_bytes=40, action=LimitAction.REJECT)
        await segments.limit_appends([limit])
        outcomes = await asyncio.gather(
            *(append(segments, name, b"0123456789"[:size], 1, NO_EVENT) for name in NAMES for size in (7,))
        )
        assert all(isinstance(outcome, Appended) for outcome in outcomes), "28 of 40"
        outcomes = await asyncio.gather(*(append(segments, name, b"12345", 2, 1) for name in NAMES))
        kinds = sorted(type(outcome).__name__ for outcome in outcomes)
        assert kinds == ["Appended"] * 2 + ["QuotaExceededError"] * 2, "38 of 40, wherever they went"
        for name, outcome in zip(NAMES, outcomes, strict=True):
            last = 2 if isinstance(outcome, Appended) else 1
            assert isinstance(await append(segments, name, b"abc", 3, last), QuotaExceededError)
        await segments.limit_appends([AppendLimit(stream=STREAM, segments=())])
        assert isinstance(await append(segments, NAMES[0], b"x" * 100, 9, await last_of(segments, NAMES[0])), Appended)

    run_in_world(body)


async def last_of(segments, name: str) -> int:
    return await segments.setup_append(name, WRITER)


@pytest.mark.parametrize("action", [LimitAction.HOLD, LimitAction.REJECT])
def test_stores_without_shared_memory_divide_a_limit_and_waste_nothing(action: LimitAction) -> None:
    """As the controller of a cluster does it: the limit is set again whenever a store has reached its share."""

    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        last = dict.fromkeys(NAMES, NO_EVENT)
        for name in NAMES:
            await segments.create_segment(name)
            assert await last_of(segments, name) == NO_EVENT
        limit = AppendLimit(stream=STREAM, segments=NAMES, total_bytes=40, quota_bytes=40, action=action)
        await segments.limit_appends([limit])
        written, turns = 0, 0
        while written < 40:
            turns += 1
            assert turns < 20, f"{written} of 40 after {turns} turns"
            for name in NAMES[:1] * 3 + NAMES:
                number = 1 if last[name] == NO_EVENT else last[name] + 1
                outcome = await append(segments, name, b"12345", number, last[name])
                if isinstance(outcome, Appended):
                    last[name], written = number, written + 5
                elif written < 40:
                    assert isinstance(outcome, QuotaHeldError), "there is room elsewhere"
                assert written <= 40
            async with asyncio.timeout(PATIENCE_S):
                assert list(await segments.limits_reached()) == [STREAM]
            await segments.limit_appends([limit])
        expected = QuotaHeldError if action is LimitAction.HOLD else QuotaExceededError
        await segments.limit_appends([limit])
        for name in NAMES:
            number = 1 if last[name] == NO_EVENT else last[name] + 1
            assert type(await append(segments, name, b"1", number, last[name])) is expected

    run_in_world(body, shared=False)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_worker_that_comes_back_knows_the_limits_and_what_it_holds(dies: int) -> None:
    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        first, second = by_worker(segments)[0][0], by_worker(segments)[1][0]
        await segments.create_segment(first)
        assert await last_of(segments, first) == NO_EVENT
        limit = AppendLimit(stream=STREAM, segments=[first], total_bytes=10, action=LimitAction.REJECT)
        await segments.limit_appends([limit])
        # Created under the limit, and in no list: a worker that restarts must count it all the same.
        await segments.create_segment(second)
        assert await last_of(segments, second) == NO_EVENT
        assert isinstance(await append(segments, first, b"1234", 1, NO_EVENT), Appended)
        assert isinstance(await append(segments, second, b"1234", 1, NO_EVENT), Appended)
        await world.restart(dies)
        for name in (first, second):
            assert await last_of(segments, name) == 1
            assert isinstance(await append(segments, name, b"123", 2, 1), QuotaExceededError)
        async with asyncio.timeout(PATIENCE_S):
            assert list(await segments.limits_reached()) == [STREAM], "and the caller that sets limits checks again"
        assert isinstance(await append(segments, first, b"12", 3, 1), Appended)

    run_in_world(body)


def test_calls_wait_for_a_worker_that_is_away_and_the_other_goes_on() -> None:
    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        here, there = by_worker(segments)[0][0], by_worker(segments)[1][0]
        for name in (here, there):
            await segments.create_segment(name)
        mark = (await segments.changed_segments(0)).mark
        parked = asyncio.ensure_future(segments.read(there, 0, 100))
        await asyncio.sleep(0)
        await world.workers[1].die()
        waiting = [
            asyncio.ensure_future(call)
            for call in (
                segments.info(there),
                segments.create_segment(f"{there}#transaction.{'b' * 32}"),
                segments.spaces([here, there]),
                segments.lease_chunks([there, here, f"{there}0"], WRITER, until_ms=1),
            )
        ]
        refused = await append(segments, there, b"x", 1, NO_EVENT)
        assert isinstance(refused, NotConnectedError), "an append is never repeated behind its caller's back"
        assert await last_of(segments, here) == NO_EVENT
        assert isinstance(await append(segments, here, b"abc", 1, NO_EVENT), Appended)
        found = await segments.changed_segments(mark)
        assert (list(found.names), found.complete) == ([here], True), "what is away has not changed yet"
        assert not any(call.done() for call in (*waiting, parked))
        await world.workers[1].start(segments)
        info, _, spaces, leased = await asyncio.gather(*waiting)
        assert leased == Leased(granted=(there, here)), "each worker leases its own, in the order of the call"
        assert (info.name, set(spaces)) == (there, {here, there})
        assert await last_of(segments, there) == NO_EVENT
        assert isinstance(await append(segments, there, b"abc", 1, NO_EVENT), Appended)
        assert b"".join((await parked).parts) == b"abc", "a reader that waited waits on"
        assert not (await segments.changed_segments(found.mark)).complete, "a restart forgets what had changed"

    run_in_world(body)


def test_what_must_not_be_repeated_says_that_it_may_have_happened() -> None:
    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        table = next(f"s/_tables/{number}" for number in range(9) if segments.worker_of(f"s/_tables/{number}") == 1)
        await segments.create_table(table, kind=TableKind.HASH)
        await segments.table_update(table, [TablePut(key=b"k", value=b"1")])
        call = asyncio.ensure_future(segments.table_update(table, [TablePut(key=b"k", value=b"2")]))
        await asyncio.sleep(0)
        await world.workers[1].die()
        with pytest.raises(NotConnectedError):
            await call
        await world.workers[1].start(segments)
        (entry,) = await segments.table_get(table, [b"k"])
        assert entry.value in (b"1", b"2")

    run_in_world(body)


def test_a_worker_that_does_not_come_back_fails_its_calls_at_last() -> None:
    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        there = by_worker(segments)[1][0]
        await world.workers[1].die()
        world.workers[1].line._patience_s = 0.05
        with pytest.raises(NotConnectedError, match="worker is down"):
            await segments.info(there)
        waiting = asyncio.ensure_future(segments.spaces([there]))
        await asyncio.sleep(0)
        world.workers[1].line.give_up(InvalidArgumentError("the disk is gone"))
        with pytest.raises(InvalidArgumentError, match="the disk is gone"):
            await waiting
        await world.workers[1].start(segments)

    run_in_world(body)


def test_a_worker_serves_its_own_containers_alone() -> None:
    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        there = by_worker(segments)[1][0]
        await segments.create_segment(there)
        with pytest.raises(PenstockError, match="segment belongs to another store"):
            await world.workers[0].store.info(there)
        with pytest.raises(SegmentNotFoundError):
            await segments.info(by_worker(segments)[0][0])
        with pytest.raises(InvalidArgumentError, match="source must be"):
            await segments.merge(there, by_worker(segments)[0][0])
        owned = [container.index for worker in world.workers for container in worker.store.containers]
        assert sorted(owned) == list(range(LAYOUT.containers))

    run_in_world(body)
