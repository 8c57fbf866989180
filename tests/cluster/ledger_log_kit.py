"""Opens the log on simulated bookies, for the tests of what bookies, coordinator and rivals can do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.model.ledgers import LedgerSpec
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog, open_ledger_log
from penstock.storage.ledgers.limits import LedgerLimits, LedgerLogLimits
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys
from penstock.testing import FakeClock, SeededRng
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.conformance.durable_log import replayed
from tests.cluster.virtual_time import run_virtually

PATH = "/penstock/test/log"
CLOCK = FakeClock()
_TIERS: WeakKeyDictionary[SimBookKeeper, MemoryObjects] = WeakKeyDictionary()
LIMITS = LedgerLogLimits(frame_max_bytes=20_000, entry_max_bytes=4_000, ledger_bytes=30_000, retry_s=(0.01, 0.05))

BOOKIE_LIMITS = LedgerLimits(timeout_s=0.3, connect_s=0.3, rest_s=0.1)


def tier_of(world: SimBookKeeper) -> MemoryObjects:
    """Tier 2 of the log of this world."""
    return _TIERS.setdefault(world, MemoryObjects())


def sealing_of(world: SimBookKeeper, *, encrypts: bool | list[bool] = True) -> Sealing:
    """Encrypts the ledgers of this world, with keys in its tier 2. ``encrypts``: may change if it is a list."""

    def keys(uid: str) -> ObjectLedgerKeys:
        return ObjectLedgerKeys(tier_of(world), uid=uid, clock=CLOCK)

    return Sealing(keys=keys, clock=CLOCK, may_write=lambda: encrypts if isinstance(encrypts, bool) else encrypts[0])


@asynccontextmanager
async def open_log(
    world: SimBookKeeper,
    *,
    seed: int = 1,
    limits: LedgerLogLimits = LIMITS,
    bookies: LedgerLimits = BOOKIE_LIMITS,
    spec: LedgerSpec | None = None,
    encrypts: bool | list[bool] = True,
) -> AsyncIterator[LedgerLog]:
    """``encrypts``: whether new ledgers have version 2."""
    rng = SeededRng(seed)
    sealing = sealing_of(world, encrypts=encrypts)
    async with (
        open_ledgers(
            world.nodes, root=ROOT, clock=FakeClock(), rng=rng, limits=bookies, connect=world.connect
        ) as ledgers,
        open_ledger_log(ledgers, world.nodes, path=PATH, rng=rng, spec=spec, limits=limits, sealing=sealing) as log,
    ):
        yield log


def run(scenario: Callable[[SimBookKeeper], Coroutine[None, None, None]]) -> None:
    """On virtual time: no limit of a bookie or pause of the log is waited for, and a busy machine changes nothing."""

    async def go() -> None:
        await scenario(SimBookKeeper())

    run_virtually(go())


async def content(world: SimBookKeeper, *, seed: int) -> list[bytes]:
    async with open_log(world, seed=seed) as log:
        return [frame for _, frame in await replayed(log)]


async def append_all(log: LedgerLog, frames: list[bytes]) -> list[int]:
    return list(await asyncio.gather(*(log.append([frame]) for frame in frames)))


def record_of(world: SimBookKeeper, path: str = PATH) -> ContainerRecord:
    return decode_record(world.nodes.nodes[path][0])


FRAMES = [b"%d," % number * 700 for number in range(60)]
