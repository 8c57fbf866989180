"""A coordinator in memory: for tests, and the tree that the simulated one stands on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    NodeChangedError,
    NodeNotFoundError,
    NotEmptyError,
    SessionEndedError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import (
    Change,
    Check,
    Create,
    Delete,
    Node,
    Session,
    Set,
    check_change,
    check_path,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A node, and the session whose registration it is, or None."""

    node: Node
    owner: str | None = None


Tree = dict[str, Entry]
"""Nodes by path. The root is always there and has no entry."""


def changed_by(tree: Tree, changes: Sequence[Change], session: str) -> tuple[Tree, Sequence[int]]:
    """The tree after the changes of a session, and the versions after them. Raises as ``Coordination.multi``."""
    after = dict(tree)
    return after, [_apply(after, change, session) for change in changes]


def without_session(tree: Tree, session: str) -> Tree:
    """The tree after the session has ended."""
    return {path: entry for path, entry in tree.items() if entry.owner != session}


def names_below(tree: Tree, path: str) -> Sequence[str]:
    """Names directly below a path, sorted. Raises NodeNotFoundError."""
    if path:
        entry_of(tree, path)
    start = f"{path}/" if path else ""
    below = (other.removeprefix(start) for other in tree if other.startswith(start))
    return sorted(name for name in below if "/" not in name)


def entry_of(tree: Tree, path: str) -> Entry:
    """The entry of a path. Raises NodeNotFoundError."""
    try:
        return tree[path]
    except KeyError:
        raise NodeNotFoundError("the coordinator has no such node", node=path) from None


def differences(before: Tree, after: Tree) -> Sequence[str]:
    """Paths at which something changed that ``Coordination.notices`` reports, sorted."""
    touched = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    parents = {path.rpartition("/")[0] for path in touched if (path in before) != (path in after)}
    return sorted(touched | parents)


def _apply(tree: Tree, change: Change, session: str) -> int:
    if isinstance(change, Create):
        _check_place(tree, change.path)
        tree[change.path] = Entry(Node(data=bytes(change.data), version=0), session if change.ephemeral else None)
        return 0
    entry = entry_of(tree, change.path)
    if entry.node.version != change.version:
        raise NodeChangedError("the node has another version", node=change.path, expected=change.version)
    match change:
        case Set():
            node = Node(data=bytes(change.data), version=change.version + 1)
            tree[change.path] = replace(entry, node=node)
            return node.version
        case Delete():
            if names_below(tree, change.path):
                raise NotEmptyError("the node has nodes below it", node=change.path)
            del tree[change.path]
        case Check():
            pass
    return change.version


def _check_place(tree: Tree, path: str) -> None:
    above = path.rpartition("/")[0]
    if above and entry_of(tree, above).owner is not None:
        raise ConflictError("no node can be below a registration", node=path)
    if path in tree:
        raise AlreadyExistsError("the node exists", node=path)


class MemoryCoordinator:
    """The tree that several sessions share, and the listeners to its changes."""

    def __init__(self) -> None:
        self.tree: Tree = {}
        self._opened = 0
        self._sessions: dict[str, MemoryCoordination] = {}
        self._listeners: dict[str, list[Callable[[], None]]] = {}

    def open(self) -> MemoryCoordination:
        """Begin a session."""
        self._opened += 1
        session = MemoryCoordination(self, f"memory-{self._opened}")
        self._sessions[session.session().id] = session
        return session

    def expire(self, session: str) -> None:
        """End a session as a coordinator does that has not heard of it. Nothing happens if it has ended."""
        ending = self._sessions.pop(session, None)
        if ending is not None:
            self.become(without_session(self.tree, session))
            ending.end()

    def become(self, tree: Tree) -> None:
        """Replace the tree, then notify those who listen where it changed."""
        before, self.tree = self.tree, tree
        for path in differences(before, tree):
            for listener in tuple(self._listeners.get(path, ())):
                listener()

    def listen(self, path: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each change at the path; returns what stops it."""
        self._listeners.setdefault(path, []).append(listener)

        def stop() -> None:
            left = self._listeners[path]
            left.remove(listener)
            if not left:
                del self._listeners[path]

        return stop


class SingleChanges:
    """The changing calls of ``Coordination``, each by ``multi``."""

    async def multi(self, changes: Sequence[Change]) -> Sequence[int]:
        raise NotImplementedError

    async def register(self, path: str, data: bytes) -> None:
        await self.multi([Create(path, data, ephemeral=True)])

    async def create(self, path: str, data: bytes) -> None:
        await self.multi([Create(path, data)])

    async def set(self, path: str, data: bytes, version: int) -> int:
        (after,) = await self.multi([Set(path, data, version)])
        return after

    async def delete(self, path: str, version: int) -> None:
        await self.multi([Delete(path, version)])


class MemoryCoordination(SingleChanges):
    """Implements ``ports.cluster.coordination.Coordination``. The session ends only by ``expire`` or ``close``, so its
    lease has no end until then."""

    def __init__(self, coordinator: MemoryCoordinator, session: str) -> None:
        self._coordinator = coordinator
        self._id = session
        self._end = asyncio.Event()
        self._listening: list[asyncio.Event] = []

    def session(self) -> Session:
        ended = self._end.is_set()
        return Session(id=self._id, lease_end_s=-math.inf if ended else math.inf, ended=ended)

    async def ended(self) -> None:
        await self._end.wait()

    async def read(self, path: str) -> Node:
        check_path(path)
        await self._enter()
        return entry_of(self._coordinator.tree, path).node

    async def members(self, path: str) -> Sequence[str]:
        check_path(path)
        await self._enter()
        return names_below(self._coordinator.tree, path)

    async def multi(self, changes: Sequence[Change]) -> Sequence[int]:
        for change in changes:
            check_change(change)
        await self._enter()
        after, versions = changed_by(self._coordinator.tree, changes, self._id)
        self._coordinator.become(after)
        return versions

    async def sync(self) -> None:
        await self._enter()

    async def notices(self, path: str) -> AsyncGenerator[None, None]:
        check_path(path)
        changed = asyncio.Event()
        changed.set()
        stop = self._coordinator.listen(path, changed.set)
        self._listening.append(changed)
        try:
            while True:
                await changed.wait()
                changed.clear()
                self._check_open()
                yield None
        finally:
            stop()
            self._listening.remove(changed)

    async def close(self) -> None:
        self._coordinator.expire(self._id)

    def end(self) -> None:
        """Note that the session has ended. Called by the coordinator, after its registrations are deleted."""
        self._end.set()
        for changed in self._listening:
            changed.set()

    async def _enter(self) -> None:
        """Let others run, as a request to a server does."""
        await asyncio.sleep(0)
        self._check_open()

    def _check_open(self) -> None:
        if self._end.is_set():
            raise SessionEndedError("the session with the coordinator has ended", session=self._id)
