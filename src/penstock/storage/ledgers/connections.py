"""Connections to bookies, one for each, shared by all ledgers of a client."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from penstock.codec.bookie import Answer, Bytes, decode_answer, take_frames
from penstock.codec.ledger_metadata import Registration
from penstock.model.errors import CorruptDataError, NotConnectedError, PenstockError
from penstock.storage.ledgers.limits import LedgerLimits

_log = logging.getLogger(__name__)

Key: TypeAlias = tuple[int, int, int]
"""Operation, ledger and entry: what an answer repeats of its request."""
OnAnswer: TypeAlias = Callable[[Answer | None], None]
"""Gets the answer, whose body is valid as long as it is kept; None: the connection ended first."""
Connect: TypeAlias = Callable[[str, int, Callable[[], asyncio.Protocol]], Awaitable[None]]
"""Connects a protocol to host and port. Raises OSError."""
Locate: TypeAlias = Callable[[str], Awaitable[Registration]]


class BookieConnection(asyncio.Protocol):
    """One connection. A request whose key is in flight waits until that key is answered."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[Key, deque[tuple[Sequence[Bytes], OnAnswer]]] = {}
        self._closed = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._closed

    def send(self, key: Key, frame: Sequence[Bytes], on_answer: OnAnswer) -> bool:
        """Send a frame; ``on_answer`` is called once, never from inside this call. False: the connection has ended, and
        nothing will be called."""
        if self._closed or self._transport is None:
            return False
        queue = self._waiting.get(key)
        if queue is None:
            self._waiting[key] = deque([(frame, on_answer)])
            self._transport.writelines(frame)
        else:
            queue.append((frame, on_answer))
        return True

    async def call(self, key: Key, frame: Sequence[Bytes], *, timeout_s: float) -> Answer | None:
        """Send a frame and return its answer; None if none came in time. The connection is then closed, so that a late
        answer is not taken for that of another request with the same key."""
        answered: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

        def on_answer(answer: Answer | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        if not self.send(key, frame, on_answer):
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            self.abort()
            return None

    def abort(self) -> None:
        """End the connection at once. Requests in flight get None soon."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        plain = transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._buffer += data
        try:
            answers = [decode_answer(frame) for frame in take_frames(self._buffer)]
        except PenstockError as error:
            _log.warning("bookie sent an answer that cannot be decoded", extra={"error": str(error)})
            self.abort()
            return
        for answer in answers:
            key = (answer.operation, answer.ledger, answer.entry)
            queue = self._waiting.get(key)
            if queue is None:
                continue
            _, on_answer = queue.popleft()
            if not queue:
                del self._waiting[key]
            elif self._transport is not None:
                self._transport.writelines(queue[0][0])
            on_answer(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for _, on_answer in queue:
                on_answer(None)


class BookieConnections:
    """Connects to bookies by name, once for each, and again after a connection has ended."""

    def __init__(self, locate: Locate, connect: Connect, limits: LedgerLimits) -> None:
        self._locate = locate
        self._connect = connect
        self._limits = limits
        self._open: dict[str, BookieConnection] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._places: dict[str, Registration] = {}
        self._failed_at: dict[str, float] = {}

    async def get(self, name: str) -> BookieConnection:
        """A connection that is open. Raises NotConnectedError."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            found = self._open.get(name)
            if found is not None and found.is_open:
                return found
            connection = BookieConnection()
            try:
                place = await self._place(name)
                async with asyncio.timeout(self._limits.connect_s):
                    await self._connect(place.host, place.port, lambda: connection)
            except (OSError, TimeoutError, ValueError, OverflowError, CorruptDataError) as error:
                # The last three: what the bookie registered is no address.
                connection.abort()
                self.note_failure(name)
                raise NotConnectedError("bookie does not accept connections", bookie=name, cause=repr(error)) from error
            except BaseException:
                connection.abort()
                raise
            self._open[name] = connection
            return connection

    async def call(self, name: str, key: Key, frame: Sequence[Bytes]) -> Answer | None:
        """The bookie's answer; None: it does not answer, or cannot be reached."""
        try:
            connection = await self.get(name)
        except NotConnectedError:
            return None
        answer = await connection.call(key, frame, timeout_s=self._limits.timeout_s)
        if answer is None:
            self.note_failure(name)
        return answer

    def note_failure(self, name: str) -> None:
        """Let the bookie rest from now on; see ``resting``."""
        self._failed_at[name] = asyncio.get_running_loop().time()

    def resting(self) -> set[str]:
        """Bookies that failed less than ``rest_s`` ago."""
        now = asyncio.get_running_loop().time()
        self._failed_at = {name: at for name, at in self._failed_at.items() if now - at < self._limits.rest_s}
        return set(self._failed_at)

    def close(self) -> None:
        for connection in self._open.values():
            connection.abort()

    async def _place(self, name: str) -> Registration:
        """Where the bookie was registered last, if the coordinator cannot be asked."""
        try:
            self._places[name] = await self._locate(name)
        except PenstockError:
            if name not in self._places:
                raise
        return self._places[name]


async def connect_tcp(host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> None:
    """``Connect`` over TCP."""
    await asyncio.get_running_loop().create_connection(protocol, host, port)
