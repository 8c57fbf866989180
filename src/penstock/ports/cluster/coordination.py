"""A coordinator: a small tree of nodes with versions, sessions that end, and notices of change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

MAX_NODE_BYTES = 100_000
"""Bytes of one node: ZooKeeper refuses a request of 1 MB as shipped, and one transaction holds several nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a node holds. ``version`` is 0 after the creation and grows by one with each ``set``."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The session of one ``Coordination``.

    ``id`` is never used again. ``lease_end_s`` is on the clock that the implementation was given, in seconds. Until
    then no other session can have seen this one end, if both clocks run at about the same rate. ``ended``: the end of
    the session is known here, which may be long after it ended; ``lease_end_s`` is then ``-inf``.
    """

    id: str
    lease_end_s: float
    ended: bool


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. With ``ephemeral`` it is a registration: the end of the session deletes it."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace the data of a node whose version is ``version``."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node whose version is ``version`` and that has no nodes below it."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but refuse all changes unless the node's version is ``version``."""

    path: str
    version: int


Change = Create | Set | Delete | Check


class Coordination(Protocol):
    """One session with a coordinator, within the namespace of one cluster.

    Paths are relative to the namespace, with ``/`` between names: ``containers/7``. The root is ``""``. No name begins
    with ``_``. A node is created below a node that exists, and never below a registration.

    Guarantees. Changes are linearizable: all sessions agree on one order of them, and a change is in it before its
    call returns. Reads of one session never go back, and include its own changes; they may lag behind those of others
    until ``sync``. A change with an unknown outcome does not happen after a later one of the same session was made or
    refused; ``sync`` counts as one. An ended session changes nothing more. Its registrations are deleted before its
    end is known here, for every session that calls ``sync``. A node that is deleted and created again starts at
    version 0 again.

    Every call but ``session``, ``ended`` and ``close`` may raise CoordinatorUnavailableError (nothing was changed) and
    SessionEndedError (from then on, all calls do). A changing call may also raise UnknownOutcomeError: it may have
    happened, may still happen, or never will. Read to find out. A cancelled change has an unknown outcome too.
    """

    def session(self) -> Session:
        """The session as it is known now. Never waits."""
        ...

    async def ended(self) -> None:
        """Wait until the end of the session is known here, by expiry or ``close``. May be late: rely on the lease."""
        ...

    async def register(self, path: str, data: bytes) -> None:
        """Create a node that is deleted when this session ends. Raises as ``create``."""
        ...

    async def create(self, path: str, data: bytes) -> None:
        """Create a node. Raises AlreadyExistsError, NodeNotFoundError (no node above it), ConflictError (the node above
        is a registration), InvalidArgumentError."""
        ...

    async def read(self, path: str) -> Node:
        """Raises NodeNotFoundError."""
        ...

    async def members(self, path: str) -> Sequence[str]:
        """Names of the nodes directly below, sorted. Raises NodeNotFoundError."""
        ...

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Replace the data if the version is ``version``; return the new version. Of several calls with one version,
        one succeeds. Raises NodeChangedError, NodeNotFoundError, InvalidArgumentError."""
        ...

    async def delete(self, path: str, version: int) -> None:
        """Delete a node without nodes below it. Raises NodeChangedError, NodeNotFoundError, NotEmptyError."""
        ...

    async def multi(self, changes: Sequence[Change]) -> Sequence[int]:
        """Make all changes or none, in order: a change sees those before it. Return the versions after them (of a
        deleted node, its last). Raises the error of the first change that is refused."""
        ...

    async def sync(self) -> None:
        """Later reads of this session include all changes that returned anywhere before this call."""
        ...

    def notices(self, path: str) -> AsyncGenerator[None, None]:
        """Yield once, then after changes of the node's data, its creation, its deletion, or the names below it.

        A change after a notice leads to another notice. One notice may stand for several changes or for none. Read
        after each notice to find what changed. Waits while the coordinator is away. Raises SessionEndedError. One task
        iterates; close the iterator to stop it.
        """
        ...

    async def close(self) -> None:
        """End the session: its registrations are deleted, at the latest after a session's length. A second call does
        nothing."""
        ...


def check_change(change: Change) -> None:
    """Raise InvalidArgumentError unless the path and the size can be used."""
    check_path(change.path)
    if change.path == "":
        raise InvalidArgumentError("the root of the namespace cannot be changed")
    if isinstance(change, Create | Set) and len(change.data) > MAX_NODE_BYTES:
        raise InvalidArgumentError(
            "a node is too large", path=change.path, size_bytes=len(change.data), limit_bytes=MAX_NODE_BYTES
        )


def check_path(path: str) -> None:
    """Raise InvalidArgumentError unless ``path`` is ``""`` or names with ``/`` between them."""
    if path and not all(_is_name(name) for name in path.split("/")):
        raise InvalidArgumentError(
            "not a path of the coordinator: names with / between them, none of which begins with _", node=repr(path)
        )


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and name[0] != "_" and name.isascii() and name.isprintable()
