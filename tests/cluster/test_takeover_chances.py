"""Takeovers of a ledger whose bookies die, hang and return at random moments, by two clients at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager

import pytest

from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.ledgers import LedgerSpec
from penstock.storage.ledgers.bookkeeper import BookKeeperLedgers, open_ledgers
from penstock.storage.ledgers.limits import LedgerLimits
from penstock.testing import FakeClock, SeededRng
from penstock.testing.bookkeeper.bookies import ROOT, SimBookie, SimBookKeeper
from tests.cluster.virtual_time import run_virtually

LIMITS = LedgerLimits(timeout_s=0.05, connect_s=0.05, rest_s=0.01)
SPECS = (LedgerSpec(), LedgerSpec(copies=2, acks=2), LedgerSpec(copies=2, acks=2))


def client(world: SimBookKeeper, seed: int) -> AbstractAsyncContextManager[BookKeeperLedgers]:
    return open_ledgers(
        world.nodes, root=ROOT, clock=FakeClock(), rng=SeededRng(seed), limits=LIMITS, connect=world.connect
    )


def revive(bookie: SimBookie) -> None:
    bookie.is_silent = False
    if not bookie.is_up:
        bookie.start()


async def take_over(ledgers: BookKeeperLedgers, ledger: int, world: SimBookKeeper, chance: random.Random) -> int | None:
    """The ledger's last entry, unless it cannot be found out in four attempts."""
    bookies = list(world.bookies.values())
    for _ in range(4):
        try:
            return (await ledgers.take_over(ledger)).last
        except UnavailableError:
            revive(chance.choice(bookies))
            if chance.random() < 0.3:
                chance.choice(bookies).stop()
    return None


async def scenario(seed: int) -> None:
    chance = random.Random(seed)
    world = SimBookKeeper(chance.choice([3, 4, 5]))
    bookies = list(world.bookies.values())
    for bookie in bookies:
        bookie.sync_s = chance.choice([0, 0.001, 0.004])
    async with client(world, seed) as owner, client(world, seed + 1) as one, client(world, seed + 2) as other:
        writer = await owner.create(chance.choice(SPECS), b"header")
        acknowledged: list[int] = []

        async def add(number: int) -> None:
            try:
                acknowledged.append(await writer.add([b"%d" % number]))
            except PenstockError:
                return  # it may be in the ledger, or not

        adds = []
        for number in range(1, chance.randrange(2, 25)):
            adds.append(asyncio.ensure_future(add(number)))
            await asyncio.sleep(chance.choice([0, 0, 0.001]))
            if chance.random() < 0.06:
                chance.choice(bookies).stop()
            if chance.random() < 0.06:
                hung = chance.choice(bookies)
                hung.is_silent = not hung.is_silent
        if chance.random() < 0.6:
            chance.choice(bookies).stop()
        ends = await asyncio.gather(*(take_over(each, writer.ledger, world, chance) for each in (one, other)))
        await asyncio.gather(*adds)
        for bookie in bookies:
            revive(bookie)
        last = (await one.take_over(writer.ledger)).last
        assert all(end in (None, last) for end in ends), "all takeovers agree"
        assert last >= max(acknowledged, default=0), "nothing acknowledged is cut off"
        chance.choice(bookies).stop()
        found = [data async for _, data in other.read(writer.ledger, 0, last)]
        assert found == [b"header", *(b"%d" % number for number in range(1, last + 1))], "any one bookie may die"


@pytest.mark.parametrize("first", [0, 1000])
def test_takeovers_agree_and_cut_nothing_off(first: int) -> None:
    for seed in range(first, first + 5):
        run_virtually(scenario(seed))


@pytest.mark.slow
def test_takeovers_agree_and_cut_nothing_off_in_many_worlds() -> None:
    for seed in range(10_000, 10_300):
        run_virtually(scenario(seed))
