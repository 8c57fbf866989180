"""A registration of one session: made when its place is free, changed, and deleted, whatever happens to answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final, TypeVar

from penstock.codec.store.cluster_nodes import HeldContainer, StoreEntry, decode_node
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NodeChangedError,
    NodeNotFoundError,
    SessionEndedError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.ports.cluster.coordination import Coordination, Node

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_RETRY_S: Final = 0.2
"""Pause after the coordinator did not answer: it elects a leader in about a second."""


class Registration:
    """The registration of one path by a session. All calls repeat while the coordinator does not answer, and raise
    SessionEndedError. ``kind``: of the node; its ``session`` field names the owner."""

    def __init__(self, session: Coordination, path: str, kind: type[HeldContainer | StoreEntry]) -> None:
        self._session = session
        self._path = path
        self._kind = kind

    async def take(self, data: bytes, found: Callable[[HeldContainer | StoreEntry], None] = lambda _: None) -> None:
        """Wait until the path is free, and register it. ``found`` is called with each registration of another session.
        Cancelled: it may be registered; ``drop`` it."""
        async with aclosing(self._session.notices(self._path)) as notices:
            async for _ in notices:
                if await self._repeated(lambda: self._attempt(data, found)):
                    return
        raise SessionEndedError("the session with the coordinator has ended", session=self._session.session().id)

    async def _attempt(self, data: bytes, found: Callable[[HeldContainer | StoreEntry], None]) -> bool:
        try:
            await self._session.register(self._path, data)
        except AlreadyExistsError:
            node = await self._read()
            if node is None:
                return False  # deleted in between: its notice follows
            entry = self._decoded(node)
            if not self._is_ours(entry):
                if entry is not None:
                    found(entry)
                return False
        return True

    async def set(self, data: bytes) -> None:
        """Replace the data of our registration. Raises NodeNotFoundError: it does not exist, or is another session's."""

        async def attempt() -> None:
            while True:
                node = await self._session.read(self._path)
                if node.data == data:
                    return
                if not self._is_ours(self._decoded(node)):
                    raise NodeNotFoundError("the registration is another session's", node=self._path)
                with suppress(NodeChangedError):
                    await self._session.set(self._path, data, node.version)
                    return

        await self._repeated(attempt)

    async def drop(self) -> None:
        """Delete our registration, if it exists. Then none of our earlier calls can make it any more."""

        async def attempt() -> None:
            # A change with an unknown outcome does not happen after a later one was answered.
            await self._session.sync()
            while (node := await self._read()) is not None:
                if not self._is_ours(self._decoded(node)):
                    return
                with suppress(NodeChangedError, NodeNotFoundError):
                    await self._session.delete(self._path, node.version)
                    return

        await self._repeated(attempt)

    async def _read(self) -> Node | None:
        with suppress(NodeNotFoundError):
            return await self._session.read(self._path)
        return None

    def _decoded(self, node: Node) -> HeldContainer | StoreEntry | None:
        """What the node says; None: it cannot be read. It is not ours then, because we write nothing damaged."""
        try:
            return decode_node(self._kind, node.data)
        except (CorruptDataError, VersionTooNewError) as error:
            log.error("registration cannot be read; waiting", extra={"node": self._path, "reason": str(error)})
            return None

    def _is_ours(self, entry: HeldContainer | StoreEntry | None) -> bool:
        return entry is not None and entry.session == self._session.session().id

    async def _repeated(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await attempt()
            except UnavailableError as error:
                log.warning("coordinator does not answer", extra={"node": self._path, "reason": str(error)})
            await asyncio.sleep(_RETRY_S)
