"""Run one seed of a cluster: clients under faults, recovery, a last look at everything, and the checker."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    HOLDERS,
    REQUESTS,
    STORES,
    TERM,
    Assignment,
    Requests,
    Term,
    encode_node,
)
from penstock.model.errors import PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import Node
from penstock.storage.memory.memory_coordination import Entry
from penstock.testing.simulation import segment_actors as on_segments
from penstock.testing.simulation.actors import SCOPE, Env
from penstock.testing.simulation.checker import check
from penstock.testing.simulation.cluster.aims import OF_CLIENTS
from penstock.testing.simulation.cluster.clients import ClientPort, TierPort
from penstock.testing.simulation.cluster.controllers import Controllers
from penstock.testing.simulation.cluster.faults import Faults
from penstock.testing.simulation.cluster.machine import Machine
from penstock.testing.simulation.cluster.shared import SharedWorld
from penstock.testing.simulation.driver import until
from penstock.testing.simulation.history import Anomaly, History
from penstock.testing.simulation.machine.files import NodeCrashed
from penstock.testing.simulation.machine.loop import SimLoop, VirtualDeadlineError, current_process, make_loop

DRAIN_S = 180.0
"""Virtual seconds within which everything must end after all faults have been removed."""
_STORES = ("a", "b", "c")
_IDLE_S = 3.0
"""How long a client waits for a container to change."""
_LOOK_S = 0.05
"""Virtual seconds between two looks for stores that would give outdated answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRunResult:
    """Result of one seed. ``trace`` is equal for equal runs. ``openings``: of containers. ``late``: requests to tier 2 that
    arrived after their sender had given up. ``aimed``: faults that have met the moment for which they waited."""

    seed: int
    anomalies: Sequence[Anomaly]
    trace: str
    virtual_s: float
    crashes: int
    openings: int
    expired: int
    late: int
    acked: int
    reads: int
    steps: int
    aimed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    last: Sequence[str] = ()


class ClientsOfCluster:
    """What the actors of the single store use of their cluster."""

    node = None

    def __init__(self, world: SharedWorld, machines: Sequence[Machine]) -> None:
        self._world = world
        self._machines = machines
        self._clients: list[ClientPort] = []
        self.clock = world.clock
        self.moments = world.moments
        self.local = self.client("local")
        self.chunks = TierPort(world, self._clients)

    def client(self, label: str) -> ClientPort:
        """Another client, with connections of its own."""
        made = ClientPort(self._world, self._machines, label)
        self._clients.append(made)
        return made


class ClusterEnv(Env):
    """Each actor has connections of its own."""

    def segments(self, label: str) -> Any:
        """As in the base class."""
        return cast("ClientsOfCluster", self.cluster).client(label)

    async def pause(self, rng: random.Random, *, factor: float = 1.0) -> None:
        """As in the base class. Some clients that are idle act again when a container changes."""
        if self.stopping.is_set() or rng.random() < 0.5:
            await super().pause(rng, factor=factor)
            return
        idle_s = min(_IDLE_S, rng.expovariate(1 / (self.config.think_s * factor)))
        await cast("ClientsOfCluster", self.cluster).moments.next(OF_CLIENTS, within_s=idle_s)
        await asyncio.sleep(rng.choice((0.0, 0.01, 0.1)) * rng.random())


class _Watch(logging.Handler):
    """Reports a failure that the product logs, but should never have."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.WARNING)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        if process is not None and not process.alive:
            return
        error = record.exc_info[1] if record.exc_info else None
        self._history.note(f"log {record.getMessage()} {type(error).__name__}")
        if error is not None and not isinstance(error, PenstockError | OSError | NodeCrashed):
            self._history.violation("unexpected error", f"{record.getMessage()}: {error!r}")


class ClusterRun:
    """The parts of one run."""

    def __init__(self, loop: SimLoop, path: Path) -> None:
        self.loop = loop
        self.history = History(loop.time, loop.note)
        self.world = SharedWorld(loop, path, self.history)
        nodes = {STORES: b"", HOLDERS: b"", REQUESTS: encode_node(Requests()), ASSIGNMENT: encode_node(Assignment())}
        nodes[TERM] = encode_node(Term(term=1, controller="none"))
        self.world.coordinator.commit({path: Entry(Node(data=data, version=0)) for path, data in nodes.items()})
        self.machines = [Machine(self.world, name) for name in _STORES]
        self.controllers = Controllers(self.world)
        self.faults = Faults(self.world, self.machines, self.controllers)
        clients: Any = ClientsOfCluster(self.world, self.machines)
        self.env = ClusterEnv(loop, clients, self.history, self.world.config)

    async def run(self, seconds: float, *, stops: bool) -> None:
        """Raises what a supervisor raises. ``stops``: return once a promise was seen to be broken."""
        work = self.loop.create_task(self._work(seconds), name="work")
        broken = self.loop.create_task(self.history.broken.wait(), name="broken")
        await asyncio.wait({work, broken} if stops else {work}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, broken):
            task.cancel()
        await asyncio.wait({work, broken})
        if not work.cancelled():
            work.result()

    async def _work(self, seconds: float) -> None:
        env, loop = self.env, self.loop
        supervisors = [loop.create_task(one.supervise(), name=one.name) for one in self.machines]
        supervisors += self.controllers.start()
        supervisors.append(loop.create_task(self._look_for_outdated(), name="outdated"))
        try:
            await self._until_all_are_served("at the start")
            tables = on_segments.table_names(env.rng("tables"))
            for name in ("shared", "merged"):
                env.raw[f"{SCOPE}/{name}"] = None
                await on_segments.create(env, env.local, f"{SCOPE}/{name}")
            actors = [loop.create_task(work, name=name) for name, work in self._actors(tables)]
            breaking = loop.create_task(self.faults.run(), name="faults")
            await asyncio.sleep(seconds)
            breaking.cancel()
            await asyncio.wait({breaking})
            if not breaking.cancelled():
                breaking.result()
            self.faults.heal()
            env.stopping.set()
            await until(env, actors, DRAIN_S)
            await self._last_look(tables)
        finally:
            for task in supervisors:
                task.cancel()
            await asyncio.wait(supervisors)
            self.bury()
        for task in supervisors:
            if not task.cancelled():
                task.result()

    async def _look_for_outdated(self) -> None:
        """Note when a store would answer from a container that another opening serves, whether or not a client asks."""
        noted: dict[tuple[str, int], None] = {}
        while True:
            await asyncio.sleep(_LOOK_S)
            for text in self.world.overlaps():
                self.history.violation("two owners", text)
            for life in [one.life for one in self.machines if one.life is not None]:
                if life.node is None or not life.process.alive or life.process.paused:
                    continue
                for number, unit in life.units().items():
                    place = life.process.name, number
                    if place not in noted and self.world.is_outdated(number, unit) and life.node.answer_check()():
                        noted[place] = None
                        self.history.violation("outdated store", f"{life.process.name} answers for container {number}")

    def _actors(self, tables: Sequence[str]) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        env = self.env
        made: list[tuple[str, Coroutine[Any, Any, None]]] = []
        for number in range(2):
            name = f"appender{number}"
            made.append((name, on_segments.append_conditionally(env, name, f"{SCOPE}/shared")))
        made.append(("tail", on_segments.read_segment(env, "tail", f"{SCOPE}/shared")))
        made.append(("merger", on_segments.merge_segments(env, "merger", f"{SCOPE}/merged")))
        made.append(("merge-tail", on_segments.read_segment(env, "merge-tail", f"{SCOPE}/merged")))
        made.append(("segments", on_segments.live_segments(env, "segments")))
        made.append(("leases", on_segments.lease_chunks(env, "leases")))
        for table in tables:
            for number in range(2):
                name = f"counter{number}/{table}"
                made.append((name, on_segments.count_in_table(env, name, table)))
        return made

    async def _until_all_are_served(self, when: str) -> None:
        deadline = self.loop.time() + DRAIN_S
        while sum(one.serving for one in self.world.held().values()) < self.world.containers:
            if self.loop.time() > deadline:
                self.history.violation("not served", f"{when}: {sorted(self.world.held())}")
                return
            await asyncio.sleep(0.2)

    async def _last_look(self, tables: Sequence[str]) -> None:
        """Others take over all containers, from nothing but the log and tier 2, and show everything."""
        for keep in (True, False):
            await self._until_all_are_served("after all faults")
            for machine in self.machines:
                machine.crash(keep=keep)
            await asyncio.sleep(5.0)
        await self._until_all_are_served("in the end")
        await until(self.env, [self.loop.create_task(self._look_at_all(tables), name="last look")], DRAIN_S)

    async def _look_at_all(self, tables: Sequence[str]) -> None:
        env = self.env
        for segment in env.raw:
            await on_segments.look(env, env.local, segment)
            await on_segments.read_whole(env, segment)
        for fact in list(self.history.facts):
            if fact.what == "created":
                await on_segments.look(env, env.local, fact.subject)
        for table in tables:
            await on_segments.look_at_counters(env, table)

    def bury(self) -> None:
        """End all processes."""
        for machine in self.machines:
            machine.crash(keep=False)
        self.controllers.kill_all()


def run_cluster_seed(seed: int, *, seconds: float = 60.0, stops: bool = False) -> ClusterRunResult:
    """Run one seed with ``seconds`` of virtual faults. Errors of the product are reported in the result, never raised.
    ``stops``: end with the first broken promise, which takes less time than to see all of them."""
    loop = make_loop(seed)
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="penstock-sim-", dir=memory if os.access(memory, os.W_OK) else None))
    logger, collecting = logging.getLogger("penstock"), gc.isenabled()
    propagate, logger.propagate = logger.propagate, False
    run = ClusterRun(loop, path)
    watch = _Watch(run.history)
    logger.addHandler(watch)
    gc.disable()
    try:
        with run.world.machinery():
            try:
                loop.run(run.run(seconds, stops=stops), max_seconds=seconds + 6 * DRAIN_S)
            except VirtualDeadlineError as error:
                run.history.violation("stuck", str(error))
            except Exception as error:  # noqa: BLE001 - any error that ends a run is a finding, reported with its seed
                run.history.violation("run failed", f"{type(error).__name__}: {error}")
            finally:
                _end_all(run)
    finally:
        logger.removeHandler(watch)
        logger.propagate = propagate
        gc.collect()
        if collecting:
            gc.enable()
        shutil.rmtree(path, ignore_errors=True)
    return ClusterRunResult(
        seed=seed,
        anomalies=check(run.history),
        trace=loop.trace,
        virtual_s=loop.time(),
        crashes=sum(one.crashes for one in run.machines),
        openings=run.world.openings,
        expired=run.world.coordinator.expired,
        late=run.world.tier.late,
        acked=run.history.acked,
        reads=sum(len(one.reads) for one in run.history.readings),
        steps=loop.steps,
        aimed=run.faults.aimed,
        faults=run.faults.done,
        last=list(run.history.last),
    )


def _end_all(run: ClusterRun) -> None:
    """End everything that is left before the loop is closed."""

    async def end() -> None:
        run.bury()
        own = asyncio.current_task()
        for _ in range(100):
            left = [task for task in asyncio.all_tasks(run.loop) if task is not own]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0.05)

    for _ in range(20):
        try:
            run.loop.run(end())
        except Exception as error:  # noqa: BLE001 - the result of the run is already known; this is only clean-up
            run.history.note(f"clean-up failed: {type(error).__name__}")
        else:
            return
