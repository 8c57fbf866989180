"""A month of some streams: policies at all levels, quotas, holds, undo, subscribers of all speeds, and crashes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field

from penstock.client.retry import RETRYABLE
from penstock.model.errors import AlreadyExistsError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.testing.simulation.driver import recorded
from penstock.testing.simulation.history import Anomaly, History
from penstock.testing.simulation.machine.loop import SimLoop, make_loop
from penstock.testing.simulation.retention.actions import SCOPE, Users
from penstock.testing.simulation.retention.checks import (
    check_audit,
    check_explained,
    check_plan,
    check_readable,
    check_reclaim,
)
from penstock.testing.simulation.retention.model import Reading
from penstock.testing.simulation.retention.world import CYCLE_S, DAY_S, HOUR_S, RetentionCluster, retention_config

STREAMS = tuple(StreamName(SCOPE, name) for name in ("alpha", "beta", "gamma"))
THINK_S = HOUR_S / 3
_HALF_HOUR_MS = 1_800_000


@dataclass(slots=True, kw_only=True)
class MonthResult:
    """The result of one seed. ``done``: how often each action and check was done."""

    seed: int
    anomalies: list[Anomaly]
    virtual_s: float
    crashes: int
    recoveries: int
    moves: int
    trace: str
    done: dict[str, int] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)


def run_retention_seed(seed: int, *, days: float = 30.0) -> MonthResult:
    """Run one seed over ``days`` of virtual time. Never raises because of what the product does."""
    loop = make_loop(seed)
    history = History(loop.time, loop.note)
    cluster = RetentionCluster(loop, retention_config(seed), history)
    users = Users(loop, cluster, history)
    with recorded(loop, cluster, history):
        loop.run(_Month(loop, cluster, history, users).run(days * DAY_S), max_seconds=(days + 3) * DAY_S)
    return MonthResult(
        seed=seed,
        anomalies=list(history.violations),
        virtual_s=loop.time(),
        crashes=cluster.crashes,
        recoveries=cluster.recoveries,
        moves=sum(model.moves for model in users.models.values()),
        trace=loop.trace,
        done=users.done,
        last=list(history.last),
    )


class _Month:
    """One run: one action after another, with pauses in which the node's control loop runs."""

    def __init__(self, loop: SimLoop, cluster: RetentionCluster, history: History, users: Users) -> None:
        self._loop = loop
        self._cluster = cluster
        self._history = history
        self._users = users
        self._rng = loop.fork("month")
        self._alive: dict[StreamName, list[Reading]] = {name: [] for name in STREAMS}
        self._tails: dict[StreamName, list[Mapping[SegmentId, int]]] = {name: [] for name in STREAMS}
        self._deeds: list[tuple[float, Callable[[StreamName], Awaitable[None]]]] = [
            (10, self._write),
            (6, self._read_fast),
            (2, self._read_slow),
            (1, self._join),
            (0.4, self._leave),
            (1.2, self._set_policy),
            (0.5, users.hold),
            (0.7, users.release_hold),
            (1.5, self._undo),
            (0.4, users.scale),
            (0.2, users.truncate),
            (1, lambda name: check_readable(users, name)),
            (1, lambda name: check_plan(users, name)),
            (0.7, lambda name: check_reclaim(users, name)),
            (0.5, lambda name: check_explained(users, name)),
            (0.4, lambda _: check_audit(users, complete=False)),
        ]

    async def run(self, seconds: float) -> None:
        supervisor = self._loop.create_task(self._cluster.supervise(), name="supervisor")
        try:
            await self._prepare()
            swept_s = 0.0
            while self._loop.time() < seconds and not self._history.violations:
                await asyncio.sleep(self._rng.expovariate(1 / THINK_S))
                await self._step()
                if self._loop.time() > swept_s + DAY_S:
                    # Only at fixed moments: when garbage is collected must not depend on the process.
                    swept_s = self._loop.time()
                    gc.collect()
            await self._end()
        finally:
            supervisor.cancel()
            await asyncio.wait({supervisor})
            await self._cluster.close()
        if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
            raise error

    async def _prepare(self) -> None:
        try:
            await self._cluster.insist(lambda: self._cluster.controller.scopes.create(SCOPE))
        except AlreadyExistsError:
            self._history.note("scope was created by a lost attempt")
        for name in STREAMS:
            await self._users.create(name)
            await self._users.set_policy(name, self._users.draw_policy())
            self._alive[name].append(await self._users.join(name))

    async def _step(self) -> None:
        self._maybe_break()
        name = self._rng.choice(STREAMS)
        (deed,) = self._rng.choices([deed for _, deed in self._deeds], [weight for weight, _ in self._deeds])
        await deed(name)
        for stream in STREAMS:
            await self._users.observe(stream)
        node = self._cluster.node
        if node is not None and node.serves and node.store.offline is not None:
            self._history.violation("offline without a fault", str(node.store.offline))

    # --- faults -----------------------------------------------------------------------------------------

    def _maybe_break(self) -> None:
        """A crash in the middle of this step, or of the next cycle; or a wall clock that jumps."""
        rng, cluster = self._rng, self._cluster
        chance = rng.random()
        if chance < 0.03:
            power = rng.random() < 0.5
            if rng.random() < 0.4:
                self._loop.call_later(rng.random() * 0.05, self._crash, power)
            else:
                self._crash_with_write(power=power, left=rng.randrange(12))
        elif chance < 0.05:
            # Never more than an hour between two readings of the clock, whatever happens in between.
            cluster.clock.jump_ms = rng.choice((-_HALF_HOUR_MS, 0, _HALF_HOUR_MS))
            self._history.note(f"clock jumps to {cluster.clock.jump_ms}")
            if rng.random() < 0.5:
                self._crash(power=True)

    def _crash(self, power: bool) -> None:
        self._cluster.disk.on_write = None
        self._cluster.crash(power=power)

    def _crash_with_write(self, *, power: bool, left: int) -> None:
        def written(path: str) -> None:
            nonlocal left
            if path.startswith("wal/"):
                left -= 1
                if left < 0:
                    self._crash(power)

        self._cluster.disk.on_write = written

    # --- what users do -------------------------------------------------------------------------------------------

    async def _write(self, name: StreamName) -> None:
        await self._users.write(name, self._rng.choice((1, 3, 10)))
        self._tails[name] = [*self._tails[name][-40:], await self._users.tail(name)]

    def _readers(self, name: StreamName) -> list[Reading]:
        now_s = self._users.now()
        self._alive[name] = [item for item in self._alive[name] if item.span.ends_s > now_s]
        return self._alive[name]

    async def _read_fast(self, name: StreamName) -> None:
        """All subscribers that are not dead read to the end."""
        for place, reading in enumerate(list(self._readers(name))):
            if place % 3 == 0:
                await self._users.publish(name, reading, await self._users.tail(name))

    async def _read_slow(self, name: StreamName) -> None:
        """Some read to where the end was a while ago. Every third one never publishes anything."""
        tails = self._tails[name]
        for place, reading in enumerate(list(self._readers(name))):
            if place % 3 == 1 and tails:
                await self._users.publish(name, reading, self._rng.choice(tails))

    async def _join(self, name: StreamName) -> None:
        if len(self._readers(name)) < 5:
            self._alive[name].append(await self._users.join(name))

    async def _leave(self, name: StreamName) -> None:
        if self._readers(name):
            await self._users.leave(name, self._rng.choice(self._readers(name)))

    async def _set_policy(self, name: StreamName) -> None:
        target = self._rng.choices((name, SCOPE, None), (6, 2, 1))[0]
        await self._users.set_policy(target, self._users.draw_policy())

    async def _undo(self, name: StreamName) -> None:
        """Mostly when something can certainly be restored."""
        now_s = self._users.now()
        sure = [stream for stream, until_s in self._users.undoable_until_s.items() if until_s > now_s]
        await self._users.undo(self._rng.choice(sure) if sure else name)

    # --- the end -------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """All faults end; after some cycles all guaranteed data must be there, and reported."""
        self._cluster.disk.on_write = None
        self._cluster.crash(power=True)
        await asyncio.sleep(3 * CYCLE_S)
        for name in STREAMS:
            await check_readable(self._users, name)
            await check_reclaim(self._users, name)
            await check_plan(self._users, name)
        for _ in range(3):
            try:
                node = self._cluster.serving()
                await node.call(node.store.flush)
            except RETRYABLE:
                await asyncio.sleep(1.0)
        await check_audit(self._users, complete=True)
