"""What breaks in a run of a cluster: machines, their connections, controllers, bookies, the coordinator, tier 2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.codec.store.cluster_nodes import REQUESTS, Requests, encode_node
from penstock.storage.memory.memory_coordination import Entry
from penstock.testing.bookkeeper.bookies import SimBookie
from penstock.testing.simulation.cluster.aims import OF_OWNERS, Moment
from penstock.testing.simulation.cluster.controllers import Controllers
from penstock.testing.simulation.cluster.machine import Machine
from penstock.testing.simulation.cluster.shared import SharedWorld

_WAIT_S = 3.0
"""How long a fault waits for its moment. If there is none in time, it comes without it."""

Fault = Callable[[], None]


class Faults:
    """Breaks one thing after the other. Each fault ends by itself, except what an operator requests, which ``heal`` ends.

    Many faults wait for a moment at which they hurt most, and strike the machine that the moment is about. Many faults
    of a machine end when another machine takes its place."""

    def __init__(self, world: SharedWorld, machines: list[Machine], controllers: Controllers) -> None:
        self._world = world
        self._machines = machines
        self._controllers = controllers
        self._rng = world.loop.fork("faults")
        self.done: dict[str, int] = {}
        self._mean_s = self._rng.choice((0.4, 0.8, 2.0))
        self._aimed = self._rng.choice((0.3, 0.6, 0.9))
        """Share of faults that wait for a moment."""
        self.aimed = 0
        """Faults that have met their moment."""
        self._struck: str | None = None
        """The machine or controller that the fault's moment is about."""
        self._tasks: asyncio.TaskGroup

    async def run(self) -> None:
        """Runs until it is cancelled."""
        if self._rng.random() < 0.7:
            # Each container returns to its store after each loss.
            names = [one.name for one in self._machines]
            self._request(pinned={number: self._rng.choice(names) for number in range(self._world.containers)})
        groups = (
            (0.55, self._of_machines(), tuple(one for one in Moment if one not in (Moment.ELECTED, Moment.STRUCK))),
            (0.1, (self._controller_dies, self._controller_is_paused), (Moment.ELECTED, Moment.ELECTED, Moment.HELD)),
            (
                0.2,
                self._of_bookies(),
                (Moment.LONE, Moment.THIN, Moment.CREATED, Moment.CREATED, Moment.CLOSED, Moment.EXTENDED),
            ),
            (0.15, self._of_coordinators(), (*OF_OWNERS, Moment.CREATED, Moment.NOTED, Moment.ELECTED)),
        )
        weights = [weight for weight, _, _ in groups]
        async with asyncio.TaskGroup() as self._tasks:
            while True:
                await asyncio.sleep(self._rng.expovariate(1 / self._mean_s))
                _, faults, moments = self._rng.choices(groups, weights)[0]
                fault = self._rng.choice(faults)
                if self._rng.random() < self._aimed:
                    self._tasks.create_task(self._strike_at(self._rng.choice(moments), fault))
                else:
                    self._strike(fault)

    def _of_machines(self) -> tuple[Fault, ...]:
        changes_owner = (self._crash_with_cache, self._crash_without_cache, self._pause, self._pause, self._expire)
        return (
            *(2 * changes_owner),
            self._pin,
            self._pin,
            self._drain,
            self._part,
            self._freeze,
            self._cut_from_coordinator,
            self._answers_are_late,
            self._cut_from_bookies,
            self._cut_from_tier,
            self._tier_fails,
        )

    def _of_coordinators(self) -> tuple[Fault, ...]:
        return (self._leader_fails, self._coordinator_loses, self._record_answers_are_lost, self._records_are_slow)

    def _of_bookies(self) -> tuple[Fault, ...]:
        return (
            self._bookie_stops,
            self._bookie_hangs,
            self._bookies_restart,
            self._bookies_are_slow,
            self._bookie_refuses,
            self._bookies_are_busy,
        )

    def _strike(self, fault: Fault, moment: str = "any time") -> None:
        name = fault.__name__.strip("_")
        self.done[name] = self.done.get(name, 0) + 1
        self._world.history.note(f"fault: {name} at {moment}")
        fault()
        self._world.moments.note(Moment.STRUCK)

    async def _strike_at(self, moment: Moment, fault: Fault) -> None:
        """Perform the fault at the next such moment, or a little later."""
        rng = self._rng
        delay_s = rng.choice((0.0, 0.0, 0.003, 0.03, 0.5)) * rng.random()
        struck = await self._world.moments.next((moment,), within_s=_WAIT_S)
        self.aimed += struck is not None
        if delay_s:
            await asyncio.sleep(delay_s)
        # Sometimes another machine, such as the owner before.
        self._struck = struck if rng.random() < 0.8 else None
        self._strike(fault, moment.name)
        self._struck = None
        if struck is not None and fault in self._of_machines() and rng.random() < 0.4:
            await self._strike_successor(struck)

    async def _strike_successor(self, before: str) -> None:
        """Let the machine that takes over from another one fail too."""
        rng, moment = self._rng, self._rng.choice(OF_OWNERS)
        fault = rng.choice(self._of_machines())
        within_s = 2 * self._session_s + _WAIT_S
        self._struck = await self._world.moments.next((moment,), within_s=within_s, but=before)
        self._strike(fault, f"{moment.name} after {before}")
        self._struck = None

    def _end_at_takeover(self, machine: Machine, end: Callable[[], None], *, within_s: float) -> None:
        """Sometimes end a fault of a machine when another one takes its place, and always after the time."""
        rng = self._rng
        self._later(within_s, end)
        if rng.random() < 0.5:
            return
        moment, delay_s = rng.choice(OF_OWNERS), rng.choice((0.0, 0.03, 0.5)) * rng.random()

        async def end_early() -> None:
            await self._world.moments.next((moment,), within_s=within_s, but=machine.name)
            await asyncio.sleep(delay_s)
            end()

        self._tasks.create_task(end_early())

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
            bookie.sync_s = world.sync_s
        world.coordinator.loss, world.tier.slow_s, world.tier.loss = 0.0, 0.0, 0.0
        self._controllers.heal()
        self._request()

    def _machine(self) -> Machine:
        struck = [one for one in self._machines if one.name == self._struck]
        return struck[0] if struck else self._rng.choice(self._machines)

    @property
    def _session_s(self) -> float:
        return self._world.coordinator.session_s

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        self._world.loop.call_later(seconds, call, *args)

    # --- machines

    def _crash_with_cache(self) -> None:
        self._machine().crash(keep=True)

    def _crash_without_cache(self) -> None:
        self._machine().crash(keep=False)

    def _pause(self) -> None:
        # Up to several sessions: others take over meanwhile, and it goes on where it was.
        machine, seconds = (
            self._machine(),
            self._session_s * self._rng.choice((0.3, 2.0, 4.0)) * (0.5 + self._rng.random()),
        )
        self._end_at_takeover(machine, machine.pause(), within_s=seconds)

    def _expire(self) -> None:
        """The coordinator ends a session, and its store learns of that later. Not before the session's length has passed
        without a word of the store: the lease rests on that."""
        machine = self._machine()
        machine.cut_from_coordinator()
        self._end_at_takeover(machine, machine.reconnect, within_s=self._session_s * self._rng.uniform(1.2, 4.0))

    def _part(self) -> None:
        """A machine loses all connections, and what it has sent arrives after others have taken over."""
        machine, seconds = self._machine(), self._session_s * self._rng.uniform(1.2, 4.0)
        machine.cut_from_bookies(seconds * self._rng.uniform(0.5, 1.0))
        machine.cut_from_tier(seconds * self._rng.uniform(0.5, 1.0))
        machine.cut_from_coordinator()
        self._end_at_takeover(machine, machine.reconnect, within_s=seconds)

    def _freeze(self) -> None:
        """A machine stops, and the requests that it has just sent are still under way while others take over."""
        machine, rng = self._machine(), self._rng
        seconds = self._session_s * rng.uniform(1.2, 4.0)
        machine.cut_from_bookies(seconds * rng.uniform(0.5, 1.0))

        def pause() -> None:
            self._later(seconds, machine.pause())

        self._later(rng.choice((0.01, 0.1, 0.5)) * rng.random(), pause)

    def _cut_from_coordinator(self) -> None:
        machine = self._machine()
        machine.cut_from_coordinator()
        self._later(self._session_s * self._rng.choice((0.3, 3.0)) * self._rng.random(), machine.reconnect)

    def _answers_are_late(self) -> None:
        """Answers of the coordinator are under way when a store is paused, and it gets them after its session has ended."""
        machine, rng = self._machine(), self._rng
        session = machine.session
        if session is not None:
            session.slow_s = self._session_s * rng.uniform(0.25, 0.6)

            def pause() -> None:
                self._later(self._session_s * rng.uniform(1.2, 2.2), machine.pause())

            self._later(self._session_s * rng.uniform(0.25, 0.75), pause)
            self._later(self._session_s * rng.uniform(2.0, 5.0), setattr, session, "slow_s", 0.0)

    def _cut_from_bookies(self) -> None:
        self._machine().cut_from_bookies(self._rng.choice((1.0, 12.0)) * self._rng.random())

    def _cut_from_tier(self) -> None:
        self._machine().cut_from_tier(self._rng.choice((1.0, 20.0)) * self._rng.random())

    def _drain(self) -> None:
        """An operator wants up to two stores to be empty: the one that the moment is about, or any."""
        share = 0.35 if self._struck is None else 0.1
        chosen = [one.name for one in self._machines if one.name == self._struck or self._rng.random() < share]
        self._request(drained=tuple(chosen[:2]))

    def _pin(self) -> None:
        """An operator moves containers, or no longer cares where they are."""
        rng, machine = self._rng, self._machine()
        pinned = {number: machine.name for number in range(self._world.containers) if rng.random() < 0.5}
        self._request(pinned=pinned)

    def _request(self, *, drained: tuple[str, ...] = (), pinned: Mapping[int, str] | None = None) -> None:
        coordinator = self._world.coordinator
        node = coordinator.tree[REQUESTS].node
        requests = Requests(drained=drained, pinned=pinned or {})
        changed = replace(node, data=encode_node(requests), version=node.version + 1)
        coordinator.commit({**coordinator.tree, REQUESTS: Entry(changed)})

    # --- controllers

    def _controller_dies(self) -> None:
        self._controllers.kill(self._rng, self._struck)

    def _controller_is_paused(self) -> None:
        self._controllers.pause(self._rng, self._session_s * self._rng.uniform(0.1, 3.0), self._struck)

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

    def _bookies_are_slow(self) -> None:
        """Entries are under way for long, so that whatever changes finds some."""
        slow_s, seconds = self._rng.choice((0.03, 0.1, 0.5)), self._rng.uniform(1.0, 6.0)
        for bookie in self._world.bookkeeper.bookies.values():
            bookie.sync_s = slow_s
            self._later(seconds, setattr, bookie, "sync_s", self._world.sync_s)

    def _bookie_refuses(self) -> None:
        bookie = self._bookie()
        bookie.read_only = True
        self._later(self._rng.uniform(0.1, 3.0), _revive, bookie)

    def _bookies_are_busy(self) -> None:
        for bookie in self._world.bookkeeper.bookies.values():
            if self._rng.random() < 0.7:
                bookie.busy = self._rng.randrange(1, 20)

    def _leader_fails(self) -> None:
        self._world.coordinator.fail_leader(self._rng.uniform(0.2, 3.0))

    def _coordinator_loses(self) -> None:
        self._world.coordinator.loss = self._rng.choice((0.02, 0.1, 0.35))
        self._later(self._rng.uniform(1.0, 8.0), setattr, self._world.coordinator, "loss", 0.0)

    def _record_answers_are_lost(self) -> None:
        machine = self._machine()
        machine.nodes.loss = self._rng.choice((0.05, 0.3, 1.0))
        self._later(self._rng.uniform(0.5, 5.0), setattr, machine.nodes, "loss", 0.0)

    def _records_are_slow(self) -> None:
        machine = self._machine()
        machine.nodes.slow_s = self._rng.choice((0.1, 0.5))
        self._later(self._rng.uniform(1.0, 6.0), setattr, machine.nodes, "slow_s", self._world.record_slow_s)

    def _tier_fails(self) -> None:
        tier = self._world.tier
        tier.loss, tier.slow_s = self._rng.choice((0.0, 0.1, 0.5)), self._rng.choice((0.1, 2.0, 6.0))
        self._later(self._rng.uniform(1.0, 10.0), setattr, tier, "loss", 0.0)
        self._later(self._rng.uniform(1.0, 10.0), setattr, tier, "slow_s", 0.0)


def _revive(bookie: SimBookie) -> None:
    bookie.is_silent = bookie.read_only = False
    bookie.start()
