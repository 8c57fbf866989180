"""Registrations of one session: created when their place is free, changed, and deleted, even if answers are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final, NoReturn, TypeVar

from penstock.codec.store.cluster_nodes import (
    FAILED,
    FailedOpening,
    HeldContainer,
    StoreEntry,
    decode_node,
    encode_node,
    failed_path,
)
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

_REASON_CHARS: Final = 500
_TRIALS: Final = 40
"""A failure may be lifted after this part of its time: 15 s of the first ten minutes, as long as it took to notice it."""
_RETRY_S: Final = 0.2
"""Pause after the coordinator did not answer: it elects a leader in about a second."""


class Registration:
    """The registration of one path by a session. All calls repeat while the coordinator does not answer, and raise
    SessionEndedError. ``kind``: of the node; its ``session`` field names the owner."""

    def __init__(self, session: Coordination, path: str, kind: type[HeldContainer | StoreEntry]) -> None:
        self._session = session
        self._path = path
        self._kind = kind

    async def take(
        self, data: Callable[[], bytes], found: Callable[[HeldContainer | StoreEntry], None] = lambda _: None
    ) -> None:
        """Wait until the path is free, and register it. ``data`` is called before each attempt. ``found`` is
        called with each registration of another session.
        Cancelled: it may be registered; ``drop`` it."""
        async with aclosing(self._session.notices(self._path)) as notices:
            async for _ in notices:
                if await self._repeated(lambda: self._attempt(data, found)):
                    return
        raise SessionEndedError("the session with the coordinator has ended", session=self._session.session().id)

    async def _attempt(self, data: Callable[[], bytes], found: Callable[[HeldContainer | StoreEntry], None]) -> bool:
        try:
            await self._session.register(self._path, data())
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
                    raise NodeNotFoundError("the registration belongs to another session", node=self._path)
                with suppress(NodeChangedError):
                    await self._session.set(self._path, data, node.version)
                    return

        await self._repeated(attempt)

    async def drop(self) -> None:
        """Delete our registration, if it exists. Afterwards, none of our earlier calls can create it."""

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
        """The content of the node; None: it cannot be read. Then it is not ours, because we write nothing damaged."""
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


class FailedOpenings:
    """Containers that a store could not open, or that cannot be reached at a store. Controllers assign them to other
    stores. The registrations are those of one session.

    Each one is deleted by ``clear``, and otherwise after ``again_s`` by ``forget``. Without this limit, a store would
    never be tried again after its fault is repaired. The time doubles after each failure, up to ``again_max_s``.
    """

    def __init__(self, session: Coordination, *, again_s: float = 600.0, again_max_s: float = 14_400.0) -> None:
        self._session = session
        self._again_s = again_s
        self._again_max_s = again_max_s
        self._until_s: dict[tuple[int, str], float] = {}
        """Registered failures, and when each one is forgotten."""
        self._pauses_s: dict[tuple[int, str], float] = {}
        self._trial_s: dict[tuple[int, str], float] = {}
        """When each registered failure may be lifted early."""
        self._changed = asyncio.Event()

    async def add(self, number: int, store: str, reason: str) -> None:
        """Register a failure, or its new reason. Raises SessionEndedError. Cancelled: it may be registered."""
        key = number, store
        if key not in self._pauses_s or key not in self._until_s:
            self._pauses_s[key] = min(2 * self._pauses_s.get(key, self._again_s / 2), self._again_max_s)
        now_s = asyncio.get_running_loop().time()
        self._until_s[key] = now_s + self._pauses_s[key]
        self._trial_s[key] = now_s + self._pauses_s[key] / _TRIALS
        self._changed.set()
        path = failed_path(number, store)
        data = encode_node(FailedOpening(store=store, container=number, reason=reason[:_REASON_CHARS]))
        try:
            with suppress(AlreadyExistsError):  # a cluster of the first version has no node above it
                await self._session.create(FAILED, b"")
            try:
                await self._session.register(path, data)
                log.error("container is left to other stores", extra={"container": number, "store": store})
            except AlreadyExistsError:
                await self._session.set(path, data, (await self._session.read(path)).version)
        except (NodeNotFoundError, NodeChangedError, AlreadyExistsError, UnavailableError) as error:
            log.warning("failure could not be registered", extra={"container": number, "reason": str(error)})

    async def clear(self, number: int, store: str) -> None:
        """The store serves the container after all. Raises SessionEndedError."""
        key = number, store
        self._pauses_s.pop(key, None)
        if key not in self._until_s:
            return
        if await self._delete(number, store):
            self._until_s.pop(key, None)
        elif key in self._until_s:
            self._until_s[key] = 0.0  # ``forget`` repeats it
            self._changed.set()

    def on_trial(self) -> Sequence[tuple[int, str]]:
        """Failures that may be lifted now, because a fortieth of their time is over. So a fault that returns at once keeps
        the container away for longer each time."""
        now_s = asyncio.get_running_loop().time()
        return [key for key in self._until_s if self._trial_s[key] <= now_s]

    async def lift(self, number: int, store: str) -> None:
        """The cause is gone, so the store may have the container again. Its next failure still lasts longer than this one.
        Raises SessionEndedError."""
        pause_s = self._pauses_s.get((number, store))
        await self.clear(number, store)
        if pause_s is not None:
            self._pauses_s[number, store] = pause_s

    async def forget(self) -> NoReturn:
        """Delete each registration when its time is over. Runs until it is cancelled. Raises SessionEndedError."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            for key, until_s in list(self._until_s.items()):
                if until_s <= loop.time() and await self._delete(*key) and self._until_s.get(key) == until_s:
                    del self._until_s[key]
            waits_s = [max(_RETRY_S, until_s - loop.time()) for until_s in self._until_s.values()]
            with suppress(TimeoutError):
                async with asyncio.timeout(min(waits_s, default=None)):
                    await self._changed.wait()

    async def _delete(self, number: int, store: str) -> bool:
        """Delete a registration. False: it may still be there."""
        path = failed_path(number, store)
        try:
            await self._session.delete(path, (await self._session.read(path)).version)
        except NodeNotFoundError:
            return True
        except (NodeChangedError, UnavailableError) as error:
            log.warning("failure stays registered", extra={"container": number, "reason": str(error)})
            return False
        return True
