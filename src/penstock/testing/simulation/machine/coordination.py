"""A simulated coordinator: sessions on virtual time, late answers, lost connections, and a leader that fails.

It behaves as ZooKeeper does behind our port. A session expires at the server when nothing was heard of it; its client
learns of that only when it reaches the server again. Reads come from a replica that lags. A notice comes late, and one
stands for several changes. A request whose answer is lost is found out when the connection is back, or ends as an
unknown outcome, and then may still happen.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from contextvars import Context

from penstock.core.cluster.leases import lease_end_s, renewal_pause_s
from penstock.model.errors import (
    ConflictError,
    CoordinatorUnavailableError,
    NotFoundError,
    PenstockError,
    SessionEndedError,
    UnknownOutcomeError,
)
from penstock.ports.cluster.coordination import Change, Node, Session, check_change, check_path
from penstock.storage.memory.memory_coordination import (
    SingleChanges,
    Tree,
    changed_by,
    differences,
    entry_of,
    names_below,
    without_session,
)

_HOP_MS = (0.2, 3.0)
"""Milliseconds of one way between a client and the coordinator, or of a late notice: drawn evenly between them."""
_KEPT = 64
"""Earlier trees from which a lagging replica may answer. More are not needed: a replica lags for some changes."""


class SimCoordinator:
    """The ensemble. All sessions that it opened share one tree.

    Args:
        rng: Draws delays, lags and losses. session_s: A session that is not heard of for so long is expired.
        patience_s: How long a call of a client waits for the coordinator.
    """

    def __init__(self, rng: random.Random, *, session_s: float = 4.0, patience_s: float = 10.0) -> None:
        self.rng = rng
        self.session_s = session_s
        self.patience_s = patience_s
        self.loss = 0.0
        """Share of requests whose connection is lost: before they arrive, or before their answer does."""
        self.lag = 0.3
        """Share of reads that a lagging replica answers."""
        self.expired = 0
        self.on_commit: Callable[[Tree, Sequence[str]], None] = lambda before, paths: None
        """Called after each change, with the tree before it and the paths that differ."""
        self._trees: list[Tree] = [{}]
        self._first = 0  # number of the first kept tree
        self._heard_s: dict[str, float] = {}
        self._clients: dict[str, SimCoordination] = {}
        self._opened = 0
        self._leads = asyncio.Event()
        self._leads.set()

    @property
    def tree(self) -> Tree:
        """What is committed now."""
        return self._trees[-1]

    @property
    def position(self) -> int:
        """Number of the last committed tree."""
        return self._first + len(self._trees) - 1

    def tree_at(self, position: int) -> Tree:
        """A committed tree, or the oldest that is kept if that is newer."""
        return self._trees[max(0, position - self._first)]

    def alive(self, session: str) -> bool:
        return session in self._heard_s

    def open(self, *, clock: Callable[[], float] | None = None) -> SimCoordination:
        """Begin a session in the running loop. ``clock`` is the client's own, in seconds; None: the loop's."""
        self._opened += 1
        name = f"session-{self._opened}"
        loop = asyncio.get_running_loop()
        client = SimCoordination(self, name, clock or loop.time)
        self._clients[name] = client
        self._heard_s[name] = loop.time()
        self._expect(name)
        client.begin()
        return client

    def fail_leader(self, seconds: float) -> None:
        """No request is answered until another leader is elected, which then waits a whole session for everybody."""
        self._leads.clear()
        asyncio.get_running_loop().call_later(seconds, self._elect)

    def _elect(self) -> None:
        self._leads.set()
        now = asyncio.get_running_loop().time()
        self._heard_s = dict.fromkeys(self._heard_s, now)

    async def until_leader(self) -> None:
        await self._leads.wait()

    @property
    def has_leader(self) -> bool:
        return self._leads.is_set()

    def hear(self, session: str) -> None:
        """A request of the session has arrived."""
        if session in self._heard_s:
            self._heard_s[session] = asyncio.get_running_loop().time()

    def commit(self, tree: Tree) -> None:
        before = self.tree
        self._trees.append(tree)
        if len(self._trees) > _KEPT:
            del self._trees[0]
            self._first += 1
        paths = differences(before, tree)
        for client in tuple(self._clients.values()):
            client.committed(paths, self.position)
        self.on_commit(before, paths)

    def end(self, session: str) -> None:
        """End the session at the server, and delete its registrations. Its client is not informed."""
        if self._heard_s.pop(session, None) is not None:
            self.commit(without_session(self.tree, session))

    def forget(self, session: str) -> None:
        self._clients.pop(session, None)

    def _expect(self, session: str) -> None:
        """Expire the session when nothing was heard of it for its whole length."""
        heard_s = self._heard_s.get(session)
        if heard_s is None:
            return
        loop = asyncio.get_running_loop()
        left_s = heard_s + self.session_s - loop.time()
        if left_s > 0 or not self.has_leader:
            # Outside of the client's context: one that is paused does not stop the coordinator.
            loop.call_later(max(left_s, self.session_s / 10), self._expect, session, context=Context())
            return
        self.expired += 1
        self.end(session)


class SimCoordination(SingleChanges):
    """Implements ``ports.cluster.coordination.Coordination``. ``cut``, ``heal`` and ``slow_s`` are for the test. ``slow_s``:
    how late answers to this client can be, in seconds, although its requests arrive in time."""

    def __init__(self, coordinator: SimCoordinator, name: str, clock: Callable[[], float]) -> None:
        self._coordinator = coordinator
        self._name = name
        self._clock = clock
        self._lease_end_s = -math.inf
        self.slow_s = 0.0
        self._seen = coordinator.position
        self._end = asyncio.Event()
        self._linked = asyncio.Event()
        self._linked.set()
        self._listening: list[tuple[str, asyncio.Event]] = []
        self._keeper: asyncio.Task[None] | None = None
        self._started = self._settled = 0  # numbers of the last change, and of the last one that was answered

    def begin(self) -> None:
        """Start renewing the lease. Called by the coordinator."""
        self._lease_end_s = lease_end_s(self._clock(), self._coordinator.session_s)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"{self._name} lease")

    def cut(self) -> None:
        """Cut the client off. Requests under way lose their answers."""
        self._linked.clear()

    def heal(self) -> None:
        self._linked.set()

    def session(self) -> Session:
        ended = self._end.is_set()
        return Session(id=self._name, lease_end_s=-math.inf if ended else self._lease_end_s, ended=ended)

    async def ended(self) -> None:
        await self._end.wait()

    async def read(self, path: str) -> Node:
        check_path(path)
        return entry_of(await self._replica(), path).node

    async def members(self, path: str) -> Sequence[str]:
        check_path(path)
        return names_below(await self._replica(), path)

    async def multi(self, changes: Sequence[Change]) -> Sequence[int]:
        for change in changes:
            check_change(change)
        coordinator = self._coordinator
        loop = asyncio.get_running_loop()
        deadline = loop.time() + coordinator.patience_s
        self._started += 1
        number = self._started
        while True:
            await self._arrive(deadline)
            sent_s = self._clock()
            if self._loses():
                self.cut_shortly()
                if await self._is_lost(changes, number, deadline):
                    continue
            await self._hop()
            if not self._linked.is_set() or not coordinator.has_leader:
                continue  # it never arrived, which is found out when the connection is back
            self._reach()
            versions = self._outcome(changes)
            position = coordinator.position
            answered = not self._loses()
            if not answered:
                self.cut_shortly()
            await self._hop()
            if self.slow_s:
                await asyncio.sleep(coordinator.rng.uniform(0.5, 1.0) * self.slow_s)
            await self._answer(deadline)
            self._settled = max(self._settled, number)
            self._seen = max(self._seen, position)
            if answered:
                self._lease_end_s = max(self._lease_end_s, lease_end_s(sent_s, coordinator.session_s))
            if isinstance(versions, PenstockError):
                raise versions
            return versions

    async def sync(self) -> None:
        await self.multi(())

    async def notices(self, path: str) -> AsyncGenerator[None, None]:
        check_path(path)
        changed = asyncio.Event()
        changed.set()
        item = (path, changed)
        self._listening.append(item)
        try:
            while True:
                await changed.wait()
                self._check_open()
                # A watch is set anew by a request: what comes before it arrives is seen by the reads after it.
                try:
                    await self._arrive(asyncio.get_running_loop().time() + self._coordinator.patience_s)
                except CoordinatorUnavailableError:
                    continue
                changed.clear()
                self._seen = self._coordinator.position
                yield None
        finally:
            self._listening.remove(item)

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        if self._linked.is_set():
            self._coordinator.end(self._name)
        self._coordinator.forget(self._name)
        self._learn_end()

    def committed(self, paths: Sequence[str], position: int) -> None:
        """Notify those who listen at the paths, some time later. Called by the coordinator."""
        events = [changed for path, changed in self._listening if path in paths]
        if events:
            asyncio.get_running_loop().call_later(self._delay_s(), self._notify, events, context=Context())

    def cut_shortly(self) -> None:
        """Lose the connection, and find another server within a second."""
        if self._linked.is_set():
            self._linked.clear()
            seconds = self._coordinator.rng.uniform(0.01, 1.0) * self._coordinator.session_s / 4
            asyncio.get_running_loop().call_later(seconds, self._linked.set)

    def _notify(self, events: Sequence[asyncio.Event]) -> None:
        for changed in events:
            changed.set()

    async def _keep(self) -> None:
        while not self._end.is_set():
            await asyncio.sleep(renewal_pause_s(self._coordinator.session_s))
            try:
                await self.sync()
            except (CoordinatorUnavailableError, UnknownOutcomeError):
                continue
            except SessionEndedError:
                return

    async def _replica(self) -> Tree:
        """The tree of the server that answers: not older than what this session has seen."""
        coordinator = self._coordinator
        await self._arrive(asyncio.get_running_loop().time() + coordinator.patience_s)
        await self._hop()
        self._check_open()
        newest = coordinator.position
        oldest = max(self._seen, newest - _KEPT + 1)
        if oldest < newest and coordinator.rng.random() < coordinator.lag:
            newest = coordinator.rng.randrange(oldest, newest + 1)
        self._seen = newest
        return coordinator.tree_at(newest)

    async def _arrive(self, deadline: float) -> None:
        """Wait for a connection to a server that has a leader, and learn there whether the session has ended."""
        self._check_open()
        try:
            async with asyncio.timeout_at(deadline):
                while not (self._linked.is_set() and self._coordinator.has_leader):
                    await self._linked.wait()
                    await self._coordinator.until_leader()
        except TimeoutError:
            raise CoordinatorUnavailableError("the coordinator does not answer", session=self._name) from None
        self._reach()

    async def _answer(self, deadline: float) -> None:
        """Wait for the answer to a change that was made, or for the connection by which that is found out.

        The coordinator hears of a client by its requests, and an answer is none."""
        if self._linked.is_set() and self._coordinator.has_leader:
            self._check_open()
            return
        try:
            await self._arrive(deadline)
        except CoordinatorUnavailableError as error:
            raise UnknownOutcomeError("the coordinator was lost during a change", session=self._name) from error

    async def _is_lost(self, changes: Sequence[Change], number: int, deadline: float) -> bool:
        """The connection is lost with the request on its way. True: it was found not to have been made."""
        if not self._coordinator.rng.randrange(4):
            # Nobody finds out in time. It arrives after all if the session lives and has made no later change.
            loop = asyncio.get_running_loop()
            loop.call_later(
                self._coordinator.rng.uniform(0.0, self._coordinator.session_s / 4), self._arrive_late, changes, number
            )
            raise UnknownOutcomeError("the coordinator was lost during a change", session=self._name)
        await self._answer(deadline)
        return True

    def _arrive_late(self, changes: Sequence[Change], number: int) -> None:
        is_overtaken = self._settled > number
        if self._coordinator.alive(self._name) and not self._end.is_set() and not is_overtaken:
            with suppress(ConflictError, NotFoundError):  # nobody waits for this answer any more
                self._make(changes)

    def _make(self, changes: Sequence[Change]) -> Sequence[int]:
        after, versions = changed_by(self._coordinator.tree, changes, self._name)
        if after != self._coordinator.tree:
            self._coordinator.commit(after)
        return versions

    def _outcome(self, changes: Sequence[Change]) -> Sequence[int] | PenstockError:
        try:
            return self._make(changes)
        except (ConflictError, NotFoundError) as refusal:
            return refusal

    def _reach(self) -> None:
        """The session is heard of, or learns that it has ended."""
        if not self._coordinator.alive(self._name):
            self._learn_end()
        self._check_open()
        self._coordinator.hear(self._name)

    def _learn_end(self) -> None:
        self._end.set()
        for _, changed in self._listening:
            changed.set()

    def _check_open(self) -> None:
        if self._end.is_set():
            raise SessionEndedError("the session with the coordinator has ended", session=self._name)

    def _loses(self) -> bool:
        return self._coordinator.rng.random() < self._coordinator.loss

    async def _hop(self) -> None:
        await asyncio.sleep(self._delay_s())

    def _delay_s(self) -> float:
        return self._coordinator.rng.uniform(*_HOP_MS) / 1000
