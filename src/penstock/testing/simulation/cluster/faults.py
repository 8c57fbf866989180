"""What breaks in a run of a cluster: machines, their connections, controllers, bookies, the coordinator, tier 2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from penstock.codec.store.cluster_nodes import REQUESTS, Requests, encode_node
from penstock.storage.memory.memory_coordination import Entry
from penstock.testing.bookkeeper.bookies import SimBookie
from penstock.testing.simulation.cluster.controllers import Controllers
from penstock.testing.simulation.cluster.machine import Machine
from penstock.testing.simulation.cluster.shared import SharedWorld


class Faults:
    """Breaks one thing after the other. Each fault ends by itself, except drains, which ``heal`` ends."""

    def __init__(self, world: SharedWorld, machines: list[Machine], controllers: Controllers) -> None:
        self._world = world
        self._machines = machines
        self._controllers = controllers
        self._rng = world.loop.fork("faults")
        self.done: dict[str, int] = {}
        self._mean_s = self._rng.choice((0.7, 1.5, 4.0))

    async def run(self) -> None:
        """Runs until it is cancelled."""
        common: tuple[Callable[[], None], ...] = (
            self._crash_with_cache,
            self._crash_without_cache,
            self._pause,
            self._expire,
            self._cut_from_coordinator,
            self._answers_are_late,
            self._cut_from_bookies,
            self._cut_from_tier,
            self._drain,
        )
        rare: tuple[Callable[[], None], ...] = (
            self._controller_dies,
            self._controller_is_paused,
            self._bookie_stops,
            self._bookie_hangs,
            self._bookies_restart,
            self._bookie_refuses,
            self._bookie_is_busy,
            self._leader_fails,
            self._coordinator_loses,
            self._record_answers_are_lost,
            self._tier_fails,
        )
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._mean_s))
            fault = self._rng.choice(common if self._rng.random() < 0.6 else rare)
            name = fault.__name__.strip("_")
            self.done[name] = self.done.get(name, 0) + 1
            self._world.history.note(f"fault: {name}")
            fault()

    def heal(self) -> None:
        """End all faults."""
        world = self._world
        for machine in self._machines:
            machine.is_healed = True
            machine.heal()
            if machine.session is not None:
                machine.session.slow_s = 0.0
        for bookie in world.bookkeeper.bookies.values():
            _revive(bookie)
        world.coordinator.loss, world.tier.slow_s, world.tier.loss = 0.0, 0.0, 0.0
        self._controllers.heal()
        self._request(())

    def _machine(self) -> Machine:
        return self._rng.choice(self._machines)

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        self._world.loop.call_later(seconds, call, *args)

    # --- machines

    def _crash_with_cache(self) -> None:
        self._machine().crash(keep=True)

    def _crash_without_cache(self) -> None:
        self._machine().crash(keep=False)

    def _pause(self) -> None:
        # Up to three sessions: others take over meanwhile, and it goes on where it was.
        self._machine().pause(self._rng.choice((1.0, 5.0, 12.0)) * (0.5 + self._rng.random()))

    def _expire(self) -> None:
        """The coordinator ends a session, and its store learns of that later. Not before the session's length has passed
        without a word of the store: the lease rests on that."""
        self._machine().cut_from_coordinator(self._world.coordinator.session_s * self._rng.uniform(1.2, 3.0))

    def _cut_from_coordinator(self) -> None:
        self._machine().cut_from_coordinator(self._rng.choice((1.0, 12.0)) * self._rng.random())

    def _answers_are_late(self) -> None:
        """Answers of the coordinator are under way when a store is paused, and it gets them after its session has ended."""
        machine, rng = self._machine(), self._rng
        session = machine.session
        if session is not None:
            session.slow_s = rng.uniform(1.0, 2.5)
            self._later(rng.uniform(1.0, 3.0), machine.pause, rng.uniform(5.0, 9.0))
            self._later(rng.uniform(8.0, 20.0), setattr, session, "slow_s", 0.0)

    def _cut_from_bookies(self) -> None:
        self._machine().cut_from_bookies(self._rng.choice((1.0, 12.0)) * self._rng.random())

    def _cut_from_tier(self) -> None:
        self._machine().cut_from_tier(self._rng.choice((1.0, 20.0)) * self._rng.random())

    def _drain(self) -> None:
        chosen = [one.name for one in self._machines if self._rng.random() < 0.35]
        self._request(tuple(chosen[:2]))

    def _request(self, drained: tuple[str, ...]) -> None:
        coordinator = self._world.coordinator
        node = coordinator.tree[REQUESTS].node
        changed = replace(node, data=encode_node(Requests(drained=drained)), version=node.version + 1)
        coordinator.commit({**coordinator.tree, REQUESTS: Entry(changed)})

    # --- controllers

    def _controller_dies(self) -> None:
        self._controllers.kill(self._rng)

    def _controller_is_paused(self) -> None:
        self._controllers.pause(self._rng, self._rng.uniform(0.5, 12.0))

    # --- bookies, coordinator, tier 2

    def _bookie(self) -> SimBookie:
        return self._rng.choice(list(self._world.bookkeeper.bookies.values()))

    def _bookie_stops(self) -> None:
        bookie = self._bookie()
        bookie.stop()
        self._later(self._rng.uniform(0.01, 5.0), _revive, bookie)

    def _bookie_hangs(self) -> None:
        bookie = self._bookie()
        bookie.is_silent = True
        self._later(self._rng.uniform(0.1, 5.0), _revive, bookie)

    def _bookies_restart(self) -> None:
        for bookie in self._world.bookkeeper.bookies.values():
            if self._rng.random() < 0.8:
                bookie.stop()
                self._later(self._rng.uniform(0.0, 0.3), _revive, bookie)

    def _bookie_refuses(self) -> None:
        bookie = self._bookie()
        bookie.read_only = True
        self._later(self._rng.uniform(0.1, 3.0), _revive, bookie)

    def _bookie_is_busy(self) -> None:
        self._bookie().busy = self._rng.randrange(1, 20)

    def _leader_fails(self) -> None:
        self._world.coordinator.fail_leader(self._rng.uniform(0.2, 3.0))

    def _coordinator_loses(self) -> None:
        self._world.coordinator.loss = self._rng.choice((0.02, 0.1, 0.35))
        self._later(self._rng.uniform(1.0, 8.0), setattr, self._world.coordinator, "loss", 0.0)

    def _record_answers_are_lost(self) -> None:
        machine = self._machine()
        machine.nodes.loss = self._rng.choice((0.05, 0.3))
        self._later(self._rng.uniform(0.5, 5.0), setattr, machine.nodes, "loss", 0.0)

    def _tier_fails(self) -> None:
        tier = self._world.tier
        tier.loss, tier.slow_s = self._rng.choice((0.0, 0.1, 0.5)), self._rng.choice((0.1, 2.0, 6.0))
        self._later(self._rng.uniform(1.0, 10.0), setattr, tier, "loss", 0.0)
        self._later(self._rng.uniform(1.0, 10.0), setattr, tier, "slow_s", 0.0)


def _revive(bookie: SimBookie) -> None:
    bookie.is_silent = bookie.read_only = False
    bookie.start()
