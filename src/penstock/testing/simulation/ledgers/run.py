"""Run one seed of a log on ledgers: owners follow each other under faults, then all faults end and the log is read."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.core.cluster.ownership import CLOCK_SLACK_MS
from penstock.model.errors import ContainerOfflineError, CorruptDataError, NotFoundError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog, open_ledger_log
from penstock.storage.ledgers.limits import LedgerLogLimits
from penstock.testing.bookkeeper.bookies import ROOT, SimBookie
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.cluster.tier import SharedTier
from penstock.testing.simulation.ledgers.aims import Aims, revive
from penstock.testing.simulation.ledgers.history import LogHistory
from penstock.testing.simulation.ledgers.machine import SimNodes, make_bookkeeper
from penstock.testing.simulation.ledgers.readable import NotedKeys, ReadablePart, readable_parts
from penstock.testing.simulation.machine.loop import Process, SimLoop, VirtualDeadlineError, make_loop
from penstock.testing.simulation.machine.world import SimClock

_PATH = "/penstock/sim/log"
_DRAIN_S = 120.0
"""Virtual seconds within which a last owner must open the log, once all faults have ended."""
_ARRIVED_S = 200.0
"""Virtual seconds after which every late request to tier 2 has arrived."""
_TIER = "s3://sim"
_FAULT_S = 0.5  # mean pause between faults
_CALM = 6.0
"""By how much faults and the ends of owners are rarer in a run that is about wipes, which need a log that serves."""
_FRAMES_IN_FLIGHT = 6  # frames, which one ledger of 2,000 bytes cannot hold


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRunResult:
    """Result of one seed. ``trace`` is equal for equal runs."""

    seed: int
    anomalies: Sequence[str]
    trace: str
    virtual_s: float
    owners: int
    rivals: int
    """Owners that began while another one lived."""
    acknowledged: int
    replays: int
    ledgers: int
    fences: int
    wipes: int
    last: Sequence[str] = ()


class Owner:
    """One opening of the log, in a process of its own."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.process = Process(f"owner-{number}")
        self.closing = asyncio.Event()
        self._world = world
        self._rng = world.loop.fork(f"owner/{number}")
        self._asking = 0
        self.task = world.loop.create_task(self._live(), context=self.process.context)

    async def _live(self) -> None:
        world = self._world
        try:
            async with world.opened(self.number) as log:
                try:
                    found = [one async for one in log.replay()]
                except (CorruptDataError, NotFoundError) as error:
                    # A deposed owner may read ledgers that its successor deletes.
                    if self.process.alive and world.is_owner(log):
                        world.history.violation(f"owner {self.number} finds damage that nobody did: {error}")
                    raise
                world.history.replayed(log.epoch, found)
                world.aims.recovered()
                await self._serve(log)
        except PenstockError as error:
            world.history.note(f"owner {self.number} ends: {error}")

    async def _serve(self, log: LedgerLog) -> None:
        """Append and truncate until the process closes the log, or until it is offline."""
        rng, number, flying = self._rng, 0, set[asyncio.Task[None]]()
        wiping = asyncio.create_task(self._wipe_often(log)) if self._world.wipes_often else None
        try:
            while not self.closing.is_set():
                await asyncio.sleep(rng.uniform(0, 1) ** 3 * 0.2)
                while len(flying) >= _FRAMES_IN_FLIGHT:
                    await asyncio.sleep(0.01)
                    flying = {one for one in flying if not one.done() or one.exception() is not None}
                    if any(one.done() for one in flying):
                        break
                for one in [one for one in flying if one.done()]:
                    flying.discard(one)
                    one.result()
                number += 1
                flying.add(asyncio.create_task(self._append(log, self._frame(number))))
                if rng.random() < 0.05 and log.last > 0:
                    await self._truncate(log)
        finally:
            if wiping is not None:
                wiping.cancel()

    async def _wipe_often(self, log: LedgerLog) -> None:
        rng = self._world.loop.fork(f"wipes/{self.number}")
        while True:
            await asyncio.sleep(rng.uniform(0, 1) ** 2 * 2.0)
            await self._wipe(log, rng)

    def _frame(self, number: int) -> bytes:
        """A frame that no other equals, with the time at which it was made."""
        return b"%d/%d/%d/" % (self.number, number, self._world.clock.now_ms()) + bytes(self._rng.randrange(900))

    async def _wipe(self, log: LedgerLog, rng: random.Random) -> None:
        """As the store does it, without tiering: this log holds nothing that must stay."""
        world = self._world
        try:
            from_ms = await log.wipes_from_ms()
            upto = await log.begin_wipe()
            world.history.truncating(upto)
            await log.truncate(upto)
            for _ in range(3):
                await asyncio.sleep(rng.uniform(0, 1) ** 3)  # a store tiers what must stay
                if await log.end_wipe() is not None and self.process.alive:
                    world.wiped(log.uid, upto, from_ms)
                    return
        except ContainerOfflineError as error:
            self._judge_end(log, error)  # the next append ends the owner
        except PenstockError as error:
            world.history.note(f"owner {self.number} cannot wipe now: {error}")

    async def _append(self, log: LedgerLog, frame: bytes) -> None:
        try:
            address = await log.append([frame])
        except ContainerOfflineError as error:
            self._judge_end(log, error)
            raise
        if self.process.alive:
            self._world.history.acked(log.epoch, address, frame)

    async def _truncate(self, log: LedgerLog) -> None:
        upto = max(0, log.last - self._rng.randrange(60))
        self._world.history.truncating(upto)
        try:
            await log.truncate(type(log.last)(upto))
        except ContainerOfflineError as error:
            self._judge_end(log, error)
            raise
        except PenstockError:
            return  # its outcome is unknown; the next one repeats it

    def _judge_end(self, log: LedgerLog, error: ContainerOfflineError) -> None:
        """An owner goes offline only when the record names another one, or when it cannot ask after a fence."""
        excused = "does not answer whether" in str(error) or "closed" in str(error)
        if self.process.alive and self._world.is_owner(log) and not excused:
            self._world.history.violation(f"owner {self.number} stopped, and the log is its own: {error}")


class World:
    """Bookies, coordinator and owners of one run."""

    def __init__(self, loop: SimLoop, *, wipes: bool) -> None:
        self.loop = loop
        self.rng = loop.fork("world")
        self.history = LogHistory(loop.note)
        rng = self.rng
        self.bookkeeper = make_bookkeeper(
            rng.choice((3, 3, 4)), loop.fork("links"), sync_s=rng.choice((0.0, 0.002, 0.02))
        )
        self.limits = LedgerLogLimits(
            frame_max_bytes=4_000,
            entry_max_bytes=rng.choice((300, 4_000)),
            ledger_bytes=rng.choice((2_000, 8_000, 100_000)),
            ledger_age_s=rng.choice((1.0, 10.0)),
            ledger_age_min_s=0.5,
            retry_s=rng.choice(((0.05, 0.5), (0.5, 2.0))),
            close_s=2.0,
        )
        self.clock = SimClock(loop)
        self.tier = SharedTier(loop.fork("tier"), lambda: self._tier_is_away)
        self._tier_is_away = False
        self.calm = _CALM if wipes else 1.0
        self.wipes_often = wipes
        mine = loop.fork("wipes")
        self.tier.loss = self._tier_loss = mine.choice((0.0, 0.05, 0.2)) if wipes else 0.0
        self._sealed_s = mine.choice((0.0, 0.0, mine.uniform(0.0, 10.0)))
        """When the level rises from which ledgers are encrypted."""
        self._drawn: dict[bytes, None] = {}
        self._receipts: list[tuple[str, int, int]] = []
        self.wipes = 0
        self.owners: list[Owner] = []
        self.nodes.on_lost = self._rival_at_once
        self.rivals = self.fences = 0
        self.aims = Aims(self.bookkeeper.bookies, loop, self._newest_ledger)
        self._healed = False

    @property
    def nodes(self) -> SimNodes:
        nodes = self.bookkeeper.nodes
        assert isinstance(nodes, SimNodes)
        return nodes

    @asynccontextmanager
    async def opened(self, number: int) -> AsyncIterator[LedgerLog]:
        rng, world = SeededRng(self.loop.fork(f"ids/{number}")), self.bookkeeper
        async with (
            open_ledgers(world.nodes, root=ROOT, clock=self.clock, rng=rng, connect=world.connect) as ledgers,
            open_ledger_log(
                ledgers, world.nodes, path=_PATH, rng=rng, limits=self.limits, sealing=self._sealing()
            ) as log,
        ):
            yield log

    def _sealing(self) -> Sealing:
        objects = self.tier.open(_TIER)
        return Sealing(
            keys=lambda uid: NotedKeys(objects, self._drawn, uid=uid, clock=self.clock),
            clock=self.clock,
            may_write=lambda: self.loop.time() >= self._sealed_s,
        )

    def wiped(self, uid: str, upto: int, from_ms: int) -> None:
        """A wipe of all frames up to this address has ended, so far as they were made after ``from_ms``."""
        self.history.note(f"wiped up to {upto}")
        self.wipes += 1
        # Owners have the same clock here, so the slack for clocks that differ is not needed.
        self._receipts.append((uid, upto, max(0, from_ms - CLOCK_SLACK_MS)))
        self.check_receipts()

    def check_receipts(self) -> None:
        """After a receipt, nobody can read a frame that it covers, with anything that is left or arrives later."""
        objects = self.tier.parts[_TIER]._objects if self._receipts else {}
        left = [*objects.values(), *(data for data, _ in self.nodes.nodes.values())]
        for uid in dict.fromkeys(uid for uid, _, _ in self._receipts):
            for part in readable_parts(self.bookkeeper.bookies.values(), left, self._drawn, uid=uid):
                self._check_part(uid, part)

    def _check_part(self, uid: str, part: ReadablePart) -> None:
        made_ms = int(part.data.split(b"/")[2]) if part.index == 0 else None
        for of, upto, from_ms in self._receipts:
            # The time is in the first part of a frame. Encrypted parts are all covered.
            is_covered = part.sealed or (made_ms is not None and made_ms >= from_ms)
            if of == uid and part.address <= upto and is_covered:
                self.history.violation(f"frame {part.address} in ledger {part.ledger} can be read after a wipe")
                return

    def record(self) -> ContainerRecord | None:
        found = self.nodes.nodes.get(_PATH)
        return None if found is None else decode_record(found[0])

    def _newest_ledger(self) -> int | None:
        record = self.record()
        return record.ledgers[-1].ledger if record is not None and record.ledgers else None

    def _rival_at_once(self) -> None:
        if not self._healed and self.rng.random() < 0.3 / self.calm:
            self.loop.call_later(self.rng.uniform(0.0, 0.05), self.begin_owner)

    def is_owner(self, log: LedgerLog) -> bool:
        """Whether nobody has opened the log since."""
        record = self.record()
        return record is not None and record.epoch == log.epoch

    def begin_owner(self) -> Owner:
        if not self._healed and self.rng.random() < 0.4 / self.calm:
            fault = self.rng.choice((self._restart_all, self._hang_all_but_one))
            self.loop.call_later(self.rng.uniform(0.0, 0.04), fault)  # in the middle of its takeover
        self.rivals += any(one.process.alive and not one.task.done() for one in self.owners)
        self.owners.append(Owner(self, len(self.owners) + 1))
        self.history.note(f"owner {len(self.owners)} starts")
        return self.owners[-1]

    async def fence(self) -> None:
        """BookKeeper's own recovery takes the newest ledger over, as after the death of a bookie."""
        record = self.record()
        if record is None or not record.ledgers:
            return
        rng = SeededRng(self.loop.fork(f"robot/{self.fences}"))
        self.fences += 1
        world = self.bookkeeper
        try:
            async with open_ledgers(
                world.nodes, root=ROOT, clock=SimClock(self.loop), rng=rng, connect=world.connect
            ) as robot:
                await robot.take_over(record.ledgers[-1].ledger)
        except PenstockError as error:
            self.history.note(f"robot gives up: {error}")

    # --- faults -------------------------------------------------------------------------------------------------------

    async def break_things(self) -> None:
        """One fault after the other, until cancelled. Each one ends by itself."""
        faults: list[Callable[[], object]] = [self._stop_one, self._hang, self._refuse, self._restart_all, self._away]
        faults += [self._stop_one, self._lossy, self._lossy, self._busy, self._wipe]
        faults += [self._tier_away, self._tier_lossy] if self.wipes_often else []
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / (_FAULT_S * self.calm)))
            if self.rng.random() < 0.2:
                await self.fence()
            else:
                self.rng.choice(faults)()

    def heal(self) -> None:
        self._healed = self.aims.ended = True
        for bookie in self.bookkeeper.bookies.values():
            revive(bookie)
        self.nodes.is_down, self.nodes.loss = False, 0.0
        self._tier_is_away, self.tier.loss = False, 0.0

    def _bookie(self) -> SimBookie:
        return self.rng.choice(list(self.bookkeeper.bookies.values()))

    def _stop_one(self) -> None:
        bookie = self._bookie()
        self.history.note(f"{bookie.name} stops")
        bookie.stop()
        self.loop.call_later(self.rng.uniform(0.01, 3.0), revive, bookie)

    def _restart_all(self) -> None:
        self.history.note("all bookies lose what is not synced")
        for bookie in self.bookkeeper.bookies.values():
            if self.rng.random() < 0.8:
                bookie.stop()
                self.loop.call_later(self.rng.uniform(0.0, 0.3), revive, bookie)

    def _hang(self) -> None:
        bookie = self._bookie()
        self.history.note(f"{bookie.name} hangs")
        bookie.is_silent = True
        self.loop.call_later(self.rng.uniform(0.1, 5.0), revive, bookie)

    def _hang_all_but_one(self) -> None:
        self.history.note("all bookies but one hang")
        spared = self._bookie()
        for bookie in self.bookkeeper.bookies.values():
            if bookie is not spared:
                bookie.is_silent = True
                self.loop.call_later(self.rng.uniform(0.1, 5.0), revive, bookie)

    def _wipe(self) -> None:
        self.aims.lose_disk(self._bookie())

    def _refuse(self) -> None:
        bookie = self._bookie()
        bookie.read_only = True
        self.loop.call_later(self.rng.uniform(0.1, 3.0), revive, bookie)

    def _busy(self) -> None:
        self._bookie().busy = self.rng.randrange(1, 20)

    def _away(self) -> None:
        self.history.note("coordinator is away")
        self.nodes.is_down = True
        self.loop.call_later(
            self.rng.choice((0.2, 1.0, 30.0)) * self.rng.random(), setattr, self.nodes, "is_down", False
        )

    def _tier_away(self) -> None:
        self.history.note("tier 2 is away")
        self._tier_is_away = True
        back_s = self.rng.choice((0.5, 5.0, 20.0)) * self.rng.random()
        self.loop.call_later(back_s, setattr, self, "_tier_is_away", False)

    def _tier_lossy(self) -> None:
        self.tier.loss = 0.6
        self.loop.call_later(self.rng.uniform(0.5, 5.0), setattr, self.tier, "loss", self._tier_loss)

    def _lossy(self) -> None:
        self.nodes.loss = self.rng.choice((0.05, 0.3))
        self.loop.call_later(self.rng.uniform(0.5, 5.0), setattr, self.nodes, "loss", 0.0)


async def _run(world: World, seconds: float) -> None:
    rng, loop = world.rng, world.loop
    faults = loop.create_task(world.break_things(), name="faults")
    while loop.time() < seconds:
        owner = world.begin_owner()
        await asyncio.wait([owner.task], timeout=world.calm * rng.choice((0.2, 1.0, 4.0)) * (0.5 + rng.random()))
        end = rng.random()
        if end < 0.1:
            world.history.note(f"owner {owner.number} is cut off")
            await world.aims.cut_off(owner.process)
        elif end < 0.4:
            world.history.note(f"owner {owner.number} is killed")
            owner.process.die()
        elif end < 0.6:
            owner.closing.set()
            await asyncio.wait([owner.task], timeout=rng.choice((0.1, 5.0)))
        # Else it goes on, beside the next one.
        await asyncio.sleep(rng.uniform(0.0, 0.3))
    faults.cancel()
    await asyncio.wait([faults])
    if not faults.cancelled() and (error := faults.exception()) is not None:
        raise error
    world.heal()
    await _last_look(world)


async def _last_look(world: World) -> None:
    """Without faults, a last owner finds everything and serves, and so does one after it."""
    for _ in range(2):
        deadline, before = world.loop.time() + _DRAIN_S, world.history.acknowledged
        owner = world.begin_owner()
        while world.history.acknowledged < before + 3:
            if world.loop.time() > deadline:
                world.history.violation(f"owner {owner.number} acknowledges nothing, though all faults have ended")
                return
            if owner.task.done():
                owner = world.begin_owner()
            await asyncio.sleep(0.5)
        owner.closing.set()
        await asyncio.wait([owner.task], timeout=_DRAIN_S)
    for owner in world.owners:
        owner.process.die()
    await asyncio.sleep(_ARRIVED_S)
    world.check_receipts()


def run_log_seed(seed: int, *, seconds: float = 30.0, wipes: bool = False) -> LogRunResult:
    """Run one seed with ``seconds`` of virtual faults. Errors of the product are reported in the result, never raised.
    ``wipes``: owners live longer, and wipe the log often."""
    loop = make_loop(seed)
    world = World(loop, wipes=wipes)
    history = world.history
    logger, collecting = logging.getLogger("penstock"), gc.isenabled()
    propagate, logger.propagate = logger.propagate, False
    quiet = logging.NullHandler()
    logger.addHandler(quiet)
    gc.disable()
    try:
        loop.run(_run(world, seconds), max_seconds=seconds + 4 * _DRAIN_S + _ARRIVED_S)
    except VirtualDeadlineError as error:
        history.violation(f"stuck: {error}")
    except Exception as error:  # noqa: BLE001 - any error that ends a run is a finding, reported with its seed
        history.violation(f"run failed: {type(error).__name__}: {error}")
    finally:
        _bury(world)
        logger.removeHandler(quiet)
        logger.propagate = propagate
        if collecting:
            gc.enable()
    return LogRunResult(
        seed=seed,
        anomalies=history.anomalies,
        trace=loop.trace,
        virtual_s=loop.time(),
        owners=len(world.owners),
        rivals=world.rivals,
        acknowledged=history.acknowledged,
        replays=history.replays,
        ledgers=world.nodes.used(f"{ROOT}/idgen/ID-"),
        fences=world.fences,
        wipes=world.wipes,
        last=history.last[-60:],
    )


def _bury(world: World) -> None:
    """End everything that is left before the loop is closed."""

    async def bury() -> None:
        own = asyncio.current_task()
        for owner in world.owners:
            owner.process.die()
        for _ in range(100):
            left = [task for task in asyncio.all_tasks(world.loop) if task is not own]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0.05)

    try:
        world.loop.run(bury())
    except Exception as error:  # noqa: BLE001 - the result of the run is already known; this is only clean-up
        world.history.note(f"clean-up failed: {error!r}")
