"""Every timer of the controller counts time that passed: a wall clock that is set by an hour ends none early, and none late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from controller_world import QUIET, STREAM, cut_at, join, name_of, opened, seg, with_stream, write_transaction
from memory_segments import MemorySegments

from penstock.codec.control.erasures import ErasureMarkRecord, ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import overwrite
from penstock.model.errors import StreamNotFoundError
from penstock.model.retention import Backlog, Idle, PolicyDocument, Retain
from penstock.ports.control.transactions import TransactionStatus
from penstock.testing.fakes import FakeClock

HOUR_MS = 3_600_000
SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)


@dataclass
class Timed:
    controller: Controller
    segments: MemorySegments
    clock: FakeClock
    txn: UUID = field(default_factory=lambda: UUID(int=0))

    def has(self, key: bytes) -> bool:
        return key in self.segments.tables[keys.TABLE].entries


@dataclass(frozen=True)
class Timer:
    """``begin`` starts it, ``over`` returns whether it has ended. ``both``: it also waits for the wall clock."""

    length_ms: int
    begin: Callable[[Timed], Awaitable[None]]
    over: Callable[[Timed], Awaitable[bool]]
    both: bool = False


async def _begin_lease(world: Timed) -> None:
    world.txn = (await world.controller.transactions.create(STREAM, lease_ms=600_000)).id


async def _begin_lifetime(world: Timed) -> None:
    await _begin_lease(world)


async def _aborted(world: Timed) -> bool:
    await world.controller.sweep()
    return await world.controller.transactions.status(STREAM, world.txn) is TransactionStatus.ABORTED


async def _past_lifetime(world: Timed) -> bool:
    """It ends even if it is renewed as often as possible."""
    await world.controller.transactions.ping(STREAM, world.txn, lease_ms=600_000)
    return await _aborted(world)


async def _commit(world: Timed) -> None:
    world.txn = await write_transaction(world.controller, world.segments, b"x")
    await world.controller.transactions.commit(STREAM, world.txn)
    await world.controller.sweep()


async def _forgotten(world: Timed) -> bool:
    await world.controller.sweep()
    return not world.has(keys.completed(STREAM, world.txn))


async def _gather(world: Timed) -> None:
    record = ErasureRecord(
        stream=str(STREAM), incarnation=0, state=ErasureState.GATHERING, asked={}, asked_ms=world.clock.ms, receipt=None
    )
    await world.controller._ctx.metadata.put(
        overwrite(keys.erasure("e"), record), overwrite(keys.erasure_mark("e"), ErasureMarkRecord())
    )


async def _dropped(world: Timed) -> bool:
    await world.controller.erasures.start()
    return not world.has(keys.erasure("e"))


async def _hold(world: Timed) -> None:
    await world.controller.holds.add(STREAM, owner="o", reason="r", hold_id="h", until_ms=world.clock.ms + 4 * HOUR_MS)


async def _lifted(world: Timed) -> bool:
    await world.controller.sweep()
    return not world.has(keys.hold("s", "h"))


async def _write(world: Timed) -> None:
    world.segments.write(NAME, b"x" * 10)
    await world.controller.retention.run(STREAM)


async def _head_moved(world: Timed) -> bool:
    await world.controller.retention.run(STREAM)
    return (await world.controller.cuts.head(STREAM)).positions != {SEGMENT: 0}


async def _age(world: Timed) -> None:
    await world.controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0, max_age_s=4 * 3600)))
    await join(world.controller, "a", {SEGMENT: 0})
    await _write(world)


async def _ttl(world: Timed) -> None:
    document = PolicyDocument(retain=Retain(min_bytes=0), backlog=Backlog(ttl_s=4 * 3600))
    await world.controller.policies.set(STREAM, document)
    await join(world.controller, "a", {SEGMENT: 0})
    await _write(world)


async def _grace(world: Timed) -> None:
    await world.controller.policies.set(STREAM, PolicyDocument(grace_s=4 * 3600))
    world.segments.write(NAME, b"x" * 10)
    await world.controller.streams.truncate(STREAM, cut_at({SEGMENT: 10}))


async def _released(world: Timed) -> bool:
    await world.controller.retention.run(STREAM)
    return world.segments.segments[NAME].kept in (None, 10)


async def _silent(world: Timed) -> None:
    await world.controller.policies.set(STREAM, PolicyDocument(idle=Idle(subscriber_s=4 * 3600)))
    await join(world.controller, "a", {SEGMENT: 0})


async def _subscriber_gone(world: Timed) -> bool:
    await world.controller.retention.run(STREAM)
    return not await world.controller.subscribers.list(STREAM)


async def _quiet(world: Timed) -> None:
    await world.controller.policies.set(STREAM, PolicyDocument(idle=Idle(stream_s=4 * 3600)))
    world.segments.write(NAME, b"x" * 10)


async def _stream_gone(world: Timed) -> bool:
    try:
        await world.controller.retention.run(STREAM)
    except StreamNotFoundError:
        return True
    return not await world.controller.streams.exists(STREAM)


TIMERS = {
    "lease of a transaction": Timer(600_000, _begin_lease, _aborted),
    "lifetime of a transaction": Timer(4 * HOUR_MS, _begin_lifetime, _past_lifetime),
    "outcome of a transaction": Timer(24 * HOUR_MS, _commit, _forgotten),
    "gathered positions of an erasure": Timer(24 * HOUR_MS, _gather, _dropped, both=True),
    "end of a hold": Timer(4 * HOUR_MS, _hold, _lifted, both=True),
    "age of data": Timer(4 * HOUR_MS, _age, _head_moved),
    "time to live": Timer(4 * HOUR_MS, _ttl, _head_moved),
    "grace": Timer(4 * HOUR_MS, _grace, _released),
    "silent subscriber": Timer(4 * HOUR_MS, _silent, _subscriber_gone, both=True),
    "idle stream": Timer(4 * HOUR_MS, _quiet, _stream_gone, both=True),
}


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 0], ids=["ahead", "back", "none"])
@pytest.mark.parametrize("name", TIMERS)
def test_a_timer_counts_elapsed_time(name: str, jump_ms: int) -> None:
    timer = TIMERS[name]
    settings = replace(QUIET, lifetime_max_ms=4 * HOUR_MS)

    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, settings=settings) as controller:
            world = Timed(controller, segments, clock)
            await timer.begin(world)
            assert not await timer.over(world)
            steps = max(1, timer.length_ms // 500_000)
            clock.jump(jump_ms)
            for _ in range(steps):
                # So that what is renewed is renewed; and each step is short of the end.
                clock.ms += (timer.length_ms - 5000) // steps
                assert not await timer.over(world), "it must not end early"
            # If the timer also waits for the wall clock, a jump back is added.
            clock.ms += 10_000 + (max(0, -jump_ms) if timer.both else 0)
            assert await timer.over(world), "nor late"

    asyncio.run(work())


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS], ids=["right", "an hour ahead"])
def test_a_lease_survives_a_crash_with_a_clock_that_is_an_hour_ahead(ahead_ms: int) -> None:
    """The record of the clock is young while transactions are open, so that a crash makes a lease little longer."""
    settings = replace(QUIET, clock_slack_ms=HOUR_MS)

    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, settings=settings) as controller:
            txn = (await controller.transactions.create(STREAM, lease_ms=60_000)).id
            for _ in range(6):
                clock.ms += 5000
                await controller.sweep()
            segments.offline = True  # It crashes: nothing more is recorded.
        segments.heal()
        clock.ms += 5000 + ahead_ms
        async with opened(segments, clock, settings) as controller:
            await controller.sweep()
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.OPEN
            # 30 s of the lease are left, and at most 10 s were not recorded.
            clock.ms += 40_001
            await controller.sweep()
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.ABORTED

    asyncio.run(work())


def test_a_lease_goes_on_after_a_crash_before_the_first_sweep_of_a_new_store() -> None:
    settings = replace(QUIET, clock_slack_ms=HOUR_MS)

    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, settings=settings) as controller:
            txn = (await controller.transactions.create(STREAM, lease_ms=60_000)).id
            segments.offline = True  # It crashes: nothing more is recorded.
        segments.heal()
        clock.ms += 5000 + HOUR_MS
        async with opened(segments, clock, settings) as controller:
            await controller.sweep()
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.OPEN

    asyncio.run(work())


def test_a_lease_ends_while_the_store_is_closed_for_longer_than_the_slack() -> None:
    settings = replace(QUIET, clock_slack_ms=HOUR_MS)

    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, settings=settings) as controller:
            txn = (await controller.transactions.create(STREAM, lease_ms=60_000)).id
        clock.ms += HOUR_MS + 60_001
        async with opened(segments, clock, settings) as controller:
            await controller.sweep()
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.ABORTED

    asyncio.run(work())
