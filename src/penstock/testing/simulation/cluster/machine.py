"""A machine with a store of the cluster: its lives, its cache directory, and its connections."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from penstock.app.cluster.holding import HoldingLimits, UnitHost
from penstock.app.cluster.node import NodeLimits, StoreNode
from penstock.app.cluster.unit import UnitsMemory, UnitsShared, open_unit
from penstock.app.cluster.unit_links import UnitLinks
from penstock.app.cluster.units_router import UnitsRouter
from penstock.app.segments import StoreSource
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.codec.store.cluster_nodes import StoreEntry
from penstock.model.errors import CoordinatorUnavailableError, InvalidArgumentError, PenstockError
from penstock.segmentstore.store import SegmentStore
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.testing.bookkeeper.bookies import ROOT
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.cluster.shared import ADDRESS, SharedWorld
from penstock.testing.simulation.ledgers.machine import SimNodes, link_delay_s
from penstock.testing.simulation.machine.coordination import SimCoordination
from penstock.testing.simulation.machine.files import NodeCrashed
from penstock.testing.simulation.machine.loop import Process

T = TypeVar("T")

_LIMITS = NodeLimits(holding=HoldingLimits(pause_max_s=2.0, flush_s=2.0, close_s=20.0))


class MachineOffload:
    """Implements ``ports.offload.Offload`` without threads. The work of a dead process never runs."""

    def __init__(self, process: Process, world: SharedWorld) -> None:
        self._process = process
        self._latency_s = world.config.latency_s
        self._rng = world.loop.fork(f"offload/{process.name}")

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(self._rng.expovariate(1 / self._latency_s))
        if not self._process.alive:
            raise NodeCrashed
        return work()


class StoreLife:
    """One life of the process of a store."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.process = Process(f"{machine.name}.{number}")
        self.node: StoreNode | None = None
        self.router = UnitsRouter(machine.world.containers)
        self.died = asyncio.Event()
        self.main = machine.world.loop.create_task(self._live(), context=self.process.context)

    def units(self) -> dict[int, SegmentStore]:
        """The containers that this process answers for."""
        units: Any = self.router._units
        return dict(units)

    async def _live(self) -> None:
        machine, world, process = self.machine, self.machine.world, self.process
        rng = SeededRng(world.loop.fork(f"ids/{process.name}"))
        async with open_ledgers(
            machine.nodes, root=ROOT, clock=world.clock, rng=rng, connect=machine.connect
        ) as ledgers:
            memory = UnitsMemory(world.config.store)
            source = StoreSource(
                clock=world.clock,
                rng=rng,
                offload=MachineOffload(process, world),
                telemetry=Counters(),
                memory=memory.events,
            )
            base = EmbeddedSettings(
                data=machine.directory, tier2_unit_bytes=world.tier_unit_bytes, tier2_wait_ms=world.tier_wait_ms
            )
            shared = UnitsShared(
                address=ADDRESS,
                config=world.cluster_config,
                base=base,
                nodes=machine.nodes,
                ledgers=ledgers,
                source=source,
                memory=memory,
            )
            links = UnitLinks(self.router.container_of)

            @asynccontextmanager
            async def opened(number: int) -> AsyncIterator[SegmentStore]:
                async with open_unit(number, shared) as store:
                    world.serves(number, store)
                    yield store

            host = UnitHost(open=opened, router=self.router, links=links)
            self.node = StoreNode(host, open_session=self._open_session, boot_clock=world.loop.time, limits=_LIMITS)
            name = machine.name
            await self.node.run(StoreEntry(store=name, clients=f"{name}:1", links=f"{name}:2", pid=1))

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[SimCoordination]:
        machine = self.machine
        if machine.is_cut_from_coordinator:
            await asyncio.sleep(1.0)
            raise CoordinatorUnavailableError("planted: cut off")
        session = machine.session = machine.world.coordinator.open()
        try:
            yield session
        finally:
            # A process that died says nothing: its session expires.
            if self.process.alive:
                await session.close()


class Machine:
    """Keeps a store running. ``directory``: that of the current life; a crash keeps a copy of what it had written."""

    def __init__(self, world: SharedWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.life: StoreLife | None = None
        self.session: SimCoordination | None = None
        self.nodes = SimNodes(world.bookkeeper.nodes.nodes, world.loop.fork(f"nodes/{name}"))
        self.nodes._numbers = world.bookkeeper.nodes._numbers
        self.nodes.on_changed = world.node_changed
        self.nodes.slow_s = world.record_slow_s
        self.is_cut_from_coordinator = False
        self.is_healed = False
        """Whether the time of faults is over."""
        self.crashes = self.lives = 0
        self._bookies_back_s = 0.0
        self._rng = world.loop.fork(f"links/{name}")
        self._ends: list[Callable[[], None]] = []
        self.directory = self._path()
        self.directory.mkdir()
        self.dead: list[StoreLife] = []

    def _path(self) -> Path:
        return self.world.path / f"{self.name}-{self.lives}"

    # --- life

    async def supervise(self) -> None:
        """Start the store, and start it again some time after its end. Runs until it is cancelled."""
        rng = self.world.loop.fork(f"supervisor/{self.name}")
        while True:
            self.lives += 1
            self.world.history.note(f"{self.name} starts")
            life = self.life = StoreLife(self, self.lives)
            ended = asyncio.ensure_future(life.died.wait())
            await asyncio.wait({life.main, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if life.process.alive:
                self._judge(life)
                self.crash(keep=True)
            await asyncio.sleep(rng.uniform(0.1, 2.0 * self.world.coordinator.session_s))

    def _judge(self, life: StoreLife) -> None:
        error = None if life.main.cancelled() else life.main.exception()
        self.world.history.note(f"{self.name} has ended {type(error).__name__}")
        # Its name is still registered for an earlier life, or nothing answers: it is started again.
        if error is not None and not isinstance(error, PenstockError):
            self.world.history.violation("store failed", f"{self.name}: {error!r}")
        if isinstance(error, InvalidArgumentError) and "has this name" not in str(error):
            self.world.history.violation("store refused", f"{self.name}: {error}")

    def crash(self, *, keep: bool) -> None:
        """Kill the process now. ``keep``: the next life finds the cache directory as it is now."""
        life = self.life
        if life is None or not life.process.alive:
            return
        self.crashes += 1
        self.world.history.note(f"{self.name} dies, keep={keep}")
        before, self.directory = self.directory, self.world.path / f"{self.name}-{self.lives}"
        if keep:
            shutil.copytree(before, self.directory)
        else:
            self.directory.mkdir()
        self.world.loop.resume(life.process)
        life.process.die()
        life.died.set()
        self.dead.append(life)
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    def pause(self) -> Callable[[], None]:
        """Stop the process, unless all faults have ended. Returns what lets it continue."""
        life, loop = self.life, self.world.loop
        if life is None or not life.process.alive or life.process.paused or self.is_healed:
            return lambda: None
        self.world.history.note(f"{self.name} is paused")
        loop.pause(life.process)

        def resume() -> None:
            if life.process.paused:
                self.world.history.note(f"{self.name} continues")
                loop.resume(life.process)

        return resume

    # --- connections

    async def connect(self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Implements ``storage.ledgers.connections.Connect``."""
        left_s = self._bookies_back_s - self.world.loop.time()
        if left_s > 0:
            await asyncio.sleep(left_s)
        life = self.life
        if life is None or not life.process.alive:
            raise ConnectionRefusedError("the process is gone")
        self._ends.append(self.world.bookkeeper.link(host, port, protocol, self._delay_s))

    def _delay_s(self) -> float:
        # Nothing is lost: what was sent into a cut connection arrives after it.
        return max(0.0, self._bookies_back_s - self.world.loop.time()) + link_delay_s(self._rng)

    def cut_from_bookies(self, seconds: float) -> None:
        self.world.history.note(f"{self.name} cut from bookies for {seconds:.1f} s")
        self._bookies_back_s = self.world.loop.time() + seconds

    def cut_from_tier(self, seconds: float) -> None:
        self.world.history.note(f"{self.name} cut from tier 2 for {seconds:.1f} s")
        self.world.cut_from_tier[self.name] = None
        self.world.loop.call_later(seconds, self.world.cut_from_tier.pop, self.name, None)

    def cut_from_coordinator(self) -> None:
        """Until ``reconnect``."""
        self.world.history.note(f"{self.name} cut from the coordinator")
        self.is_cut_from_coordinator = self.nodes.is_down = True
        self.nodes.silent_s = 1.0
        if self.session is not None:
            self.session.cut()

    def reconnect(self) -> None:
        self.is_cut_from_coordinator = self.nodes.is_down = False
        if self.session is not None:
            self.session.heal()

    def heal(self) -> None:
        """End all faults of this machine."""
        self.reconnect()
        self.world.cut_from_tier.pop(self.name, None)
        self._bookies_back_s, self.nodes.loss, self.nodes.slow_s = 0.0, 0.0, 0.0
        if self.life is not None:
            self.world.loop.resume(self.life.process)
