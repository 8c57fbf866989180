"""The client of BookKeeper on simulated bookies: the laws of its port, and the faults of real bookies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from penstock.codec.bookie import ENTRY
from penstock.codec.ledger_metadata import LedgerState, ledger_path
from penstock.model.errors import CorruptDataError, FencedError, NotConnectedError, ThrottledError, UnavailableError
from penstock.model.ledgers import LedgerSpec
from penstock.storage.ledgers.bookkeeper import BookKeeperLedgers, open_ledgers
from penstock.storage.ledgers.limits import LedgerLimits
from penstock.storage.ledgers.writer import BookKeeperWriter
from penstock.testing import FakeClock, SeededRng
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.ledgers import HEADER, BookieLedgerLaws
from tests.cluster.planted_kit import finds

LIMITS = LedgerLimits(timeout_s=0.3, connect_s=0.3)


@asynccontextmanager
async def client(
    world: SimBookKeeper, *, seed: int = 1, limits: LedgerLimits = LIMITS
) -> AsyncIterator[BookKeeperLedgers]:
    async with open_ledgers(
        world.nodes, root=ROOT, clock=FakeClock(), rng=SeededRng(seed), limits=limits, connect=world.connect
    ) as opened:
        yield opened


class SimulatedLaws(BookieLedgerLaws):
    def __init__(self) -> None:
        self.world = SimBookKeeper()

    def open(self):
        return client(self.world)

    async def kill(self, bookie: str) -> None:
        self.world.bookies[bookie].stop()


@pytest.mark.parametrize("law", laws(BookieLedgerLaws))
def test_laws_hold_on_simulated_bookies(law: str) -> None:
    run_conformance(SimulatedLaws, law=law)


def run(scenario: Callable[[SimBookKeeper], Coroutine[None, None, None]], **sizes: object) -> None:
    async def go() -> None:
        async with asyncio.timeout(20):
            await scenario(SimBookKeeper(**sizes))  # type: ignore[arg-type]

    asyncio.run(go())


def test_a_silent_bookie_is_given_up_in_time() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            world.bookies["bookie-1"].is_silent = True
            await writer.add([b"1"])
            while not writer.failed:
                await asyncio.sleep(0.01)
            assert writer.failed == ["bookie-1"]
            assert await writer.add([b"2"]) == 2

    run(scenario)


def test_no_ledger_is_created_if_a_bookie_refuses_its_header() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        world.bookies["bookie-1"].is_silent = True
        async with client(world) as ledgers:
            with pytest.raises(UnavailableError):
                await ledgers.create(LedgerSpec(), HEADER)
            assert not [path for path in world.nodes.nodes if "/L0" in path], "no orphan is left"
            writer = await ledgers.create(LedgerSpec(copies=2), HEADER)
            assert "bookie-1" not in (await ledgers.find(writer.ledger)).bookies

    run(scenario)


def test_a_read_only_bookie_holds_no_new_ledger() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers:
            old = await ledgers.create(LedgerSpec(), HEADER)
            world.bookies["bookie-0"].read_only = True
            assert await old.add([b"1"]) == 1
            assert await old.add([b"2"]) == 2
            assert old.failed == ["bookie-0"]
            new = await ledgers.create(LedgerSpec(), HEADER)
            assert "bookie-0" not in (await ledgers.find(new.ledger)).bookies

    run(scenario, count=4)


def test_a_busy_bookie_gets_the_same_bytes_again() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world, limits=replace(LIMITS, timeout_s=5.0)) as ledgers:
            writer = await ledgers.create(LedgerSpec(acks=3), HEADER)
            world.bookies["bookie-2"].busy = 2
            assert await writer.add([b"1"]) == 1
            assert writer.failed == []
            held = {bookie.memory[writer.ledger].entries[1] for bookie in world.bookies.values()}
            assert len(held) == 1

    run(scenario)


def test_bytes_in_flight_are_bounded() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world, limits=replace(LIMITS, in_flight_bytes=1000, timeout_s=5.0)) as ledgers:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            first = writer.add([bytes(900)])
            with pytest.raises(ThrottledError):
                writer.add([bytes(200)])
            assert await first == 1
            assert await writer.add([bytes(200)]) == 2

    run(scenario)


def test_a_bookie_that_lags_too_far_behind_is_given_up() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world, limits=replace(LIMITS, lag_bytes=1000, timeout_s=5.0)) as ledgers:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            world.bookies["bookie-0"].is_silent = True
            for number in range(1, 6):
                assert await writer.add([bytes(300)]) == number
            assert writer.failed == ["bookie-0"]

    run(scenario)


def test_an_answer_after_closing_acknowledges_nothing() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world, limits=replace(LIMITS, timeout_s=5.0)) as ledgers:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            for bookie in world.bookies.values():
                bookie.sync_s = None
            late = writer.add([b"late"])
            await asyncio.sleep(0)
            assert await writer.close() == 0
            for bookie in world.bookies.values():
                bookie.sync()
            with pytest.raises(UnavailableError):
                await late
            assert (writer.confirmed, (await ledgers.find(writer.ledger)).last) == (0, 0)

    run(scenario)


def test_a_close_whose_answer_was_lost_is_recognized() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            await writer.add([b"1"])
            world.nodes.loses = lambda call: call == "set"
            with pytest.raises(NotConnectedError):
                await writer.close()
            world.nodes.loses = None
            assert await writer.close() == 1

    run(scenario)


@pytest.mark.parametrize("lost", [1, 2])
def test_bookies_that_lost_their_data_prove_nothing(lost: int) -> None:
    """Two that lack an entry would end the ledger before it, if they had not lost it."""

    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers, client(world, seed=2) as other:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            await writer.add([b"1"])
            bookies = list(world.bookies.values())
            for bookie in bookies[:lost]:
                bookie.stop()
                bookie.start(without_disk=True)
            if lost == 2:
                with pytest.raises(UnavailableError):
                    await other.take_over(writer.ledger)
            else:
                assert (await other.take_over(writer.ledger)).last == 1

    run(scenario)


def test_an_entry_on_one_bookie_is_found_and_added_again() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world, limits=replace(LIMITS, timeout_s=5.0)) as ledgers, client(world, seed=2) as other:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            world.bookies["bookie-1"].is_silent = world.bookies["bookie-2"].is_silent = True
            unacknowledged = asyncio.ensure_future(writer.add([b"1"]))
            await asyncio.sleep(0.05)
            world.bookies["bookie-1"].is_silent = world.bookies["bookie-2"].is_silent = False
            info = await other.take_over(writer.ledger)
            assert info.last == 1, "it may have been acknowledged"
            assert info.size_bytes == len(HEADER) + 1
            assert sum(1 in one.memory[writer.ledger].entries for one in world.bookies.values()) == 3
            writer.stop()
            await asyncio.gather(unacknowledged, return_exceptions=True)

    run(scenario)


def test_a_damaged_entry_is_read_from_another_bookie() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            await asyncio.gather(*(writer.add([b"%d" % number]) for number in range(1, 5)))
            await writer.close()
            bookies = list(world.bookies.values())
            for number, bookie in enumerate(bookies):
                held = bookie.memory[writer.ledger].entries
                held[number] = held[number][: ENTRY.size] + b"x"
            found = [data async for _, data in ledgers.read(writer.ledger, 0, 4)]
            assert found == [HEADER, b"1", b"2", b"3", b"4"]
            for bookie in bookies:
                del bookie.memory[writer.ledger].entries[3]
            with pytest.raises(CorruptDataError, match="entry=3"):
                _ = [data async for _, data in ledgers.read(writer.ledger, 0, 4)]

    run(scenario)


def test_an_old_writer_stays_fenced_if_a_bookie_forgets_the_fence() -> None:
    """A fencing read that finds nothing is answered before the fence is on disk: it does not count."""

    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers, client(world, seed=2) as other:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            for bookie in world.bookies.values():
                bookie.memory.pop(writer.ledger)
            with pytest.raises(UnavailableError, match="too few bookies are fenced"):
                await other.take_over(writer.ledger)
            assert not (await other.find(writer.ledger)).closed

    run(scenario)


def test_autorecovery_fences_the_writer() -> None:
    """BookKeeper's autorecovery takes a ledger over that is open and has a dead bookie."""

    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers, client(world, seed=2) as robot:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            await writer.add([b"1"])
            path = f"{ROOT}/{ledger_path(writer.ledger)}"
            await robot.take_over(writer.ledger)
            with pytest.raises(FencedError):
                await writer.add([b"2"])
            assert (await ledgers.take_over(writer.ledger)).last == 1
            metadata, _ = await ledgers.nodes.read(writer.ledger)
            assert metadata.state is LedgerState.CLOSED
            assert path in world.nodes.nodes

    run(scenario)


def test_a_bookie_of_the_previous_session_is_connected_again() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with client(world) as ledgers:
            first = await ledgers.create(LedgerSpec(), HEADER)
            for bookie in world.bookies.values():
                bookie.stop()
                bookie.start()
            with pytest.raises(UnavailableError):
                await first.add([b"1"])
            second = await ledgers.create(LedgerSpec(), HEADER)
            assert await second.add([b"1"]) == 1
            assert (await ledgers.take_over(first.ledger)).last == 0

    run(scenario)


def test_a_planted_belief_in_late_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BookKeeperWriter, "stop", lambda writer: None)
    finds(test_an_answer_after_closing_acknowledges_nothing, "DID NOT RAISE")


def test_a_planted_header_on_a_quorum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def add_header(writer: BookKeeperWriter, header: bytes) -> None:
        await writer.add([header])

    monkeypatch.setattr(BookKeeperWriter, "add_header", add_header)
    finds(test_no_ledger_is_created_if_a_bookie_refuses_its_header, "DID NOT RAISE")
