"""For what a log on ledgers waits, and for how long: a bookie that hangs, a coordinator that is away, a fence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.model.errors import ContainerOfflineError, NotConnectedError
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.ledgers.limits import LedgerLogLimits
from penstock.storage.ledgers.log_record import HeldRecord, Opening
from penstock.testing import FakeClock, SeededRng
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.conformance.durable_log import replayed
from tests.cluster.ledger_log_kit import (
    BOOKIE_LIMITS,
    FRAMES,
    LIMITS,
    PATH,
    append_all,
    content,
    open_log,
    record_of,
    run,
)
from tests.cluster.planted_kit import finds

PATIENT = replace(BOOKIE_LIMITS, timeout_s=60.0, rest_s=60.0)
"""A bookie that hangs is given up long after the test has ended."""
HASTY = replace(LIMITS, fenced_s=0.2, close_s=0.1)


@asynccontextmanager
async def fenced(world: SimBookKeeper, *, limits: LedgerLogLimits = HASTY) -> AsyncIterator[LedgerLog]:
    """A log whose ledger BookKeeper's own recovery has fenced, which it has not noticed yet."""
    async with (
        open_ledgers(world.nodes, root=ROOT, clock=FakeClock(), rng=SeededRng(9), connect=world.connect) as robot,
        open_log(world, limits=limits) as log,
    ):
        await replayed(log)
        await log.append([b"kept"])
        await robot.take_over(record_of(world).ledgers[-1].ledger)
        yield log


def test_a_bookie_that_hangs_stops_no_append_while_the_next_ledger_begins() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world, limits=replace(LIMITS, close_s=0.1), bookies=PATIENT) as log:
            await replayed(log)
            world.bookies["bookie-1"].is_silent = True
            async with asyncio.timeout(5):
                assert await append_all(log, FRAMES) == list(range(1, 61)), "twice as many bytes as one ledger takes"
            world.bookies["bookie-1"].is_silent = False
        assert await content(world, seed=2) == FRAMES

    run(scenario)


def test_closing_does_not_wait_for_a_ledger_that_is_not_needed() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world, bookies=PATIENT) as log:
            await replayed(log)
            world.bookies["bookie-1"].is_silent = True
            await append_all(log, FRAMES)
            closing_s = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - closing_s < 1
        assert record_of(world).ledgers[-1].last is not None, "the next opening need not fence it"
        world.bookies["bookie-1"].is_silent = False
        assert await content(world, seed=2) == FRAMES

    run(scenario)


def test_appends_go_on_in_the_current_ledger_while_the_coordinator_is_away() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            world.nodes.is_down = True
            assert await append_all(log, FRAMES) == list(range(1, 61))
            world.nodes.is_down = False
            assert await append_all(log, FRAMES) == list(range(61, 121))
            async with asyncio.timeout(10):
                while len(record_of(world).ledgers) == 1:
                    await asyncio.sleep(0.01)
        assert await content(world, seed=2) == FRAMES * 2

    run(scenario)


def test_a_fenced_log_that_cannot_ask_whose_it_is_goes_offline() -> None:
    """It may be a deposed owner: it must not answer reads without end."""

    async def scenario(world: SimBookKeeper) -> None:
        async with fenced(world) as log:
            world.nodes.is_down = True
            async with asyncio.timeout(10):
                with pytest.raises(ContainerOfflineError, match="another store may own the log now") as found:
                    await log.append([b"unknown"])
            assert isinstance(found.value.__cause__, ContainerOfflineError)
            assert isinstance(found.value.__cause__.__cause__, NotConnectedError)
            with pytest.raises(ContainerOfflineError):
                await log.append([b"later"])
            world.nodes.is_down = False
        assert await content(world, seed=2) == [b"kept"]

    run(scenario)


def test_a_fenced_log_goes_on_if_the_coordinator_returns_in_time() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with fenced(world, limits=replace(HASTY, fenced_s=20.0)) as log:
            world.nodes.is_down = True
            waiting = asyncio.ensure_future(log.append([b"waits"]))
            waiting.add_done_callback(lambda one: one.cancelled() or one.exception())  # a failed check leaves it behind
            await asyncio.sleep(0.1)
            assert not waiting.done()
            world.nodes.is_down = False
            assert await waiting == 2
        assert await content(world, seed=2) == [b"kept", b"waits"]

    run(scenario)


def test_a_fenced_log_that_is_still_the_owner_waits_for_bookies_as_long_as_it_takes() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with fenced(world) as log:
            for name in world.bookies:
                world.unregister(name)
            waiting = asyncio.ensure_future(log.append([b"waits"]))
            await asyncio.sleep(10 * HASTY.fenced_s)
            assert not waiting.done()
            for name in world.bookies:
                world.register(name)
            assert await waiting == 2
        assert await content(world, seed=2) == [b"kept", b"waits"]

    run(scenario)


def test_a_deposed_log_learns_it_while_it_waits_for_bookies() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with fenced(world, limits=replace(HASTY, fenced_s=20.0)) as old:
            for name in world.bookies:
                world.unregister(name)
            waiting = asyncio.ensure_future(old.append([b"zombie"]))
            await asyncio.sleep(1)
            assert not waiting.done()
            await HeldRecord.take(world.nodes, PATH, rng=SeededRng(2), opening=Opening())
            with pytest.raises(ContainerOfflineError, match="later opening"):
                async with asyncio.timeout(1):
                    await waiting

    run(scenario)


def test_a_planted_wait_without_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(log: LedgerLog) -> None:
        await log._held.check()

    monkeypatch.setattr(LedgerLog, "_check_owner", check)
    with pytest.raises(TimeoutError):
        test_a_fenced_log_that_cannot_ask_whose_it_is_goes_offline()


def test_a_planted_end_without_asking_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(log: LedgerLog) -> None:
        raise ContainerOfflineError("log was fenced")

    monkeypatch.setattr(LedgerLog, "_check_owner", check)
    finds(test_a_fenced_log_goes_on_if_the_coordinator_returns_in_time, "assert not True")


def test_an_outage_of_bookies_is_two_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            for bookie in ("bookie-0", "bookie-1"):
                world.bookies[bookie].stop()
            waiting = asyncio.ensure_future(log.append([b"waits"]))
            await asyncio.sleep(60)
            assert not waiting.done()
            for bookie in ("bookie-0", "bookie-1"):
                world.bookies[bookie].start()
            await waiting

    run(scenario)
    lines = [record.message for record in caplog.records if record.name.endswith("ledger_log")]
    assert lines == ["log waits and tries again", "log continues after a wait"]
