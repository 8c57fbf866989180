"""Two controllers of a cluster, as far as they place containers and stand for election."""

from __future__ import annotations

import asyncio
import random

from penstock.app.cluster.election import leading
from penstock.app.cluster.keeper import keep_assignment
from penstock.model.errors import SessionEndedError
from penstock.testing.simulation.cluster.shared import SharedWorld
from penstock.testing.simulation.machine.coordination import SimCoordination
from penstock.testing.simulation.machine.loop import Process

_NAMES = ("controller-1", "controller-2")


class _ControllerLife:
    """One life of a controller's process."""

    def __init__(self, world: SharedWorld, name: str, number: int, leaders: dict[str, int]) -> None:
        self.process = Process(f"{name}.{number}")
        self.died = asyncio.Event()
        self._world = world
        self._name = self.process.name
        self._leaders = leaders
        self.main = world.loop.create_task(self._live(), context=self.process.context)

    async def _live(self) -> None:
        world = self._world
        session = world.coordinator.open()
        placing = asyncio.ensure_future(keep_assignment(session, containers=world.containers, clock=world.clock))
        try:
            async with leading(session, self._name, boot_clock=world.loop.time) as term:
                self._note_leader(session, term.term)
                await placing
        finally:
            self._leaders.pop(self._name, None)
            placing.cancel()
            await asyncio.gather(placing, return_exceptions=True)
            if self.process.alive:
                await session.close()

    def _note_leader(self, session: SimCoordination, term: int) -> None:
        self._world.history.note(f"{self._name} is elected for term {term}")
        if term in self._leaders.values():
            self._world.history.violation("two leaders", f"term {term}: {self._name} and {self._leaders}")
        self._leaders[self._name] = term


class Controllers:
    """Keeps the controllers running."""

    def __init__(self, world: SharedWorld) -> None:
        self._world = world
        self._lives: dict[str, _ControllerLife] = {}
        self._leaders: dict[str, int] = {}
        self.dead: list[_ControllerLife] = []

    def start(self) -> list[asyncio.Task[None]]:
        """One supervisor for each. They run until they are cancelled."""
        return [self._world.loop.create_task(self._supervise(name), name=name) for name in _NAMES]

    async def _supervise(self, name: str) -> None:
        rng, number = self._world.loop.fork(f"supervisor/{name}"), 0
        while True:
            number += 1
            life = self._lives[name] = _ControllerLife(self._world, name, number, self._leaders)
            ended = asyncio.ensure_future(life.died.wait())
            await asyncio.wait({life.main, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if life.process.alive:
                error = None if life.main.cancelled() else life.main.exception()
                if not isinstance(error, SessionEndedError):
                    self._world.history.violation("controller failed", f"{name}: {error!r}")
            self._end(life)
            await asyncio.sleep(rng.uniform(0.1, 3.0))

    def _end(self, life: _ControllerLife) -> None:
        if life.process.alive:
            self._world.loop.resume(life.process)
            life.process.die()
            life.died.set()
            self.dead.append(life)

    def kill(self, rng: random.Random, name: str | None) -> None:
        """One of them dies: the one with the name, if there is one."""
        self._end(self._chosen(rng, name))

    def _chosen(self, rng: random.Random, name: str | None) -> _ControllerLife:
        return self._lives[name] if name in self._lives else rng.choice(list(self._lives.values()))

    def pause(self, rng: random.Random, seconds: float, name: str | None) -> None:
        life, loop = self._chosen(rng, name), self._world.loop
        if life.process.alive and not life.process.paused:
            loop.pause(life.process)
            loop.call_later(seconds, loop.resume, life.process)

    def heal(self) -> None:
        for life in self._lives.values():
            self._world.loop.resume(life.process)

    def kill_all(self) -> None:
        for life in self._lives.values():
            self._end(life)
