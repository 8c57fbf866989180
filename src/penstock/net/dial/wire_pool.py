"""Connections to segment stores: finds the store of a segment, keeps one connection per use, retries with growing
pauses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import Command
from penstock.core.segments.placement import primary_name
from penstock.model.errors import NotConnectedError, PenstockError
from penstock.net.dial.security import PLAIN, DialSecurity
from penstock.net.dial.segment_tokens import SegmentTokens
from penstock.net.dial.wire_dial import DialConnection, DialLimits, NeverSentError, dial
from penstock.net.wire.arena import ArenaPool
from penstock.net.wire.wire_errors import TOKEN_EXPIRED, error_of
from penstock.ports import forks
from penstock.ports.control.layout import Endpoint
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

T = TypeVar("T")

_ENDPOINTS_MAX = 65_536  # streams and segments whose store is remembered
_CONTROL = "control"
_ALIKE = 8
"""How many segments of a stream must be on one store before the others are looked for there first."""


class Backoff:
    """Growing, jittered pauses between attempts; gives up once failures have lasted too long."""

    def __init__(self, rng: Rng, limits: DialLimits) -> None:
        self._rng = rng
        self._limits = limits
        self._attempt = 0
        self._give_up = 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Record that an attempt starts."""
        self._began = asyncio.get_running_loop().time()

    async def pause(self, error: PenstockError) -> None:
        """Wait before the next attempt, or raise ``error`` if the retry time is over."""
        limits = self._limits
        now = asyncio.get_running_loop().time()
        if self._attempt == 0 or now - self._began > limits.retry_for_s:
            # A long attempt, such as a waiting read, found its store alive: the retry time starts again.
            self._attempt = 0
            self._give_up = now + limits.retry_for_s
        # The exponent is bounded too: the retry time may be set to days.
        pause = min(limits.backoff_max_s, limits.backoff_s * 2 ** min(self._attempt, 16))
        pause *= 0.5 + self._rng.random() / 2
        self._attempt += 1
        if now + pause >= self._give_up:
            raise error
        await asyncio.sleep(pause)


class _Stream:
    """Where the segments of a stream were found: all on one store so far, or ``spread`` over several."""

    __slots__ = ("alike", "asking", "endpoint", "spread")

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.alike = 0
        self.spread = False
        self.asking = asyncio.Semaphore(_ALIKE)

    @property
    def guess(self) -> Endpoint | None:
        return self.endpoint if self.alike >= _ALIKE and not self.spread else None

    def note(self, found: Endpoint) -> None:
        self.spread = self.spread or self.endpoint not in (None, found)
        self.endpoint = found
        self.alike += 1


class ConnectionPool:
    """Open connections by store and use. Owned and closed by ``RemoteSegments``."""

    def __init__(
        self,
        locate: Callable[[str], Awaitable[Endpoint]],
        *,
        rng: Rng,
        telemetry: Telemetry,
        limits: DialLimits,
        security: DialSecurity = PLAIN,
        tokens: SegmentTokens | None = None,
    ) -> None:
        """``locate``: where a segment is, as ``Layout.endpoint``. ``tokens``: None where segments need none; otherwise
        borrowed."""
        self.security = security
        self.tokens = tokens or SegmentTokens()
        self.limits = limits
        self.telemetry = telemetry
        self._locate = locate
        self._rng = rng
        self._arenas = ArenaPool(telemetry=telemetry, limit_bytes=limits.arena_bytes)
        self._endpoints: dict[str, Endpoint] = {}
        self._streams: dict[str, _Stream] = {}
        self._doubted: dict[str, None] = {}
        self._connections: dict[tuple[str, int, str], DialConnection] = {}
        self._locks: dict[tuple[str, int, str], asyncio.Lock] = {}
        self._extra: dict[DialConnection, None] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_end = self._ended  # one method for all tasks
        self._closed = False
        self._owner = forks.current()

    def backoff(self) -> Backoff:
        return Backoff(self._rng, self.limits)

    async def endpoint(self, segment: str) -> Endpoint:
        """The store of the segment, from the controller's last answer about it or about a segment that may be merged
        with it. There is a valid token for the segment then. Raises UnauthenticatedError, PermissionDeniedError.

        For a stream with very many segments, the controller is asked only about some. If one store serves all of these,
        the others are assumed to be there too. A store that does not have a segment replies WrongHost and does nothing;
        after ``forget`` the controller is asked about that segment.
        """
        forks.check(self._owner)
        await self.tokens.ensure(segment)
        place = primary_name(segment)
        known = self._endpoints.get(place)
        if known is not None:
            return known
        name = place.rpartition("/")[0]
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= _ENDPOINTS_MAX:
                self._streams.clear()
            stream = self._streams[name] = _Stream()
        if place in self._doubted or stream.spread:
            return await self._ask(stream, segment, place)
        if stream.guess is None:
            async with stream.asking:
                if stream.guess is None and not stream.spread:
                    return await self._ask(stream, segment, place)
        return self._keep(place, stream.guess or await self._ask(stream, segment, place))

    async def _ask(self, stream: _Stream, segment: str, place: str) -> Endpoint:
        found = await self._locate(segment)
        stream.note(found)
        return self._keep(place, found)

    def _keep(self, place: str, found: Endpoint) -> Endpoint:
        if len(self._endpoints) >= _ENDPOINTS_MAX:
            self._endpoints.clear()
        self._endpoints[place] = found
        return found

    def forget(self, segment: str) -> None:
        """Ask the controller again next time."""
        place = primary_name(segment)
        self._endpoints.pop(place, None)
        # The stream may be served from another store by now.
        self._streams.pop(place.rpartition("/")[0], None)
        if len(self._doubted) >= _ENDPOINTS_MAX:
            self._doubted.clear()
        self._doubted[place] = None

    async def open(self, endpoint: Endpoint) -> DialConnection:
        """A new connection, closed with the pool at the latest. Raises NotConnectedError, ForkedError."""
        forks.check(self._owner)
        if self._closed:
            raise NeverSentError("client is closed", host=endpoint.host, port=endpoint.port)
        connection = await dial(
            endpoint, pool=self._arenas, limits=self.limits, security=self.security, token_of=self.tokens.of
        )
        self._extra[connection] = None
        connection.closed.add_done_callback(lambda _: self._left(connection))
        self.telemetry.add("dialled_connections")
        return connection

    def _left(self, connection: DialConnection) -> None:
        self._extra.pop(connection, None)
        if connection.silent:
            # A process that hangs still accepts connections, so another attempt there would wait for ``connect_s``.
            lost = connection.endpoint
            self._endpoints = {place: found for place, found in self._endpoints.items() if found != lost}
            self._streams = {name: stream for name, stream in self._streams.items() if stream.guess != lost}

    async def shared(self, endpoint: Endpoint, use: str) -> DialConnection:
        """The one connection to a store for ``use``, opened if there is none. Raises NotConnectedError."""
        key = (endpoint.host, endpoint.port, use)
        connection = self._connections.get(key)
        if connection is not None and connection.is_open:
            return connection
        async with self._locks.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.is_open:
                connection = await self.open(endpoint)
                self._connections[key] = connection
            return connection

    def replace(self, endpoint: Endpoint, use: str, connection: DialConnection) -> None:
        """Open another connection for ``use`` next time, if it is still this one."""
        key = (endpoint.host, endpoint.port, use)
        if self._connections.get(key) is connection:
            del self._connections[key]

    async def call(self, segment: str, build: Callable[[int], Command], *, repeat: bool) -> Command:
        """The reply to a request about ``segment``.

        Requests that were never sent are retried; with ``repeat`` also those whose connection was lost. Raises
        NotConnectedError, ContainerOfflineError, and what ``build`` and the controller raise.
        """

        async def once() -> Command:
            connection = await self.shared(await self.endpoint(segment), _CONTROL)
            return await connection.request(build)

        return await self.retried(segment, once, repeat=repeat)

    async def retried(self, segment: str, once: Callable[[], Coroutine[Any, Any, Command]], *, repeat: bool) -> Command:
        """The reply of ``once``, retried while its store is unavailable. A reply that the segment is elsewhere counts
        as a failure."""
        backoff = self.backoff()
        while True:
            backoff.begin()
            try:
                reply = await once()
            except NotConnectedError as error:
                self.forget(segment)
                if self._closed or not (repeat or isinstance(error, NeverSentError)):
                    raise
                await backoff.pause(error)
                continue
            if isinstance(reply, c.AuthTokenCheckFailed):
                self.tokens.refused(segment)
                if reply.code == TOKEN_EXPIRED:
                    # Refused before anything was done. The clock of the server may have jumped.
                    await backoff.pause(error_of(reply, segment))
                    continue
            if not isinstance(reply, c.WrongHost):
                return reply
            # Refused before anything was done: any request may be retried.
            self.forget(segment)
            await backoff.pause(error_of(reply, segment))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` as a task of the pool: its failure is logged, and closing cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_end)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("remote segment work failed", exc_info=error)

    async def close(self) -> None:
        """Close all connections; calls that wait for a reply get NotConnectedError. Does nothing in a forked child."""
        if self._owner is not forks.current():
            return
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        connections = list(self._extra)
        for connection in connections:
            connection.close()
        if connections:
            _, late = await asyncio.wait([one.closed for one in connections], timeout=self.limits.connect_s)
            for connection in connections:
                if not connection.closed.done():
                    connection.abort()
            if late:
                await asyncio.wait(late)
