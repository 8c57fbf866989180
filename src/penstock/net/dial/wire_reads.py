"""Remote reads: kept where they were received, retried while their store is unavailable, and not requested twice."""

from __future__ import annotations

import asyncio
import zlib

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import Command
from penstock.model.errors import InvalidArgumentError, NotConnectedError, TruncatedError
from penstock.net.dial.wire_dial import DialConnection
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.net.wire.wire_errors import error_of
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.segments import READ_MAX_BYTES, SegmentInfo, SegmentRead

_Place = tuple[str, int]


class RemoteReads:
    """Reads over a few connections to each store. A segment always uses the same one."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        # The reply to a cancelled read still arrives. The next read of that place waits for it, so that readers that
        # poll with short deadlines do not pile up reads in the store. Then it reads again: the reply may be older than
        # the new read, and the bytes may have been erased or truncated since.
        self._abandoned: dict[DialConnection, dict[_Place, asyncio.Future[Command]]] = {}

    async def read(self, name: str, offset: int, max_bytes: int) -> SegmentRead:
        """As ``SegmentService.read`` with ``wait``. The data is a view of the memory it was received in."""
        if offset < 0 or max_bytes < 1:
            raise InvalidArgumentError("read is out of range", segment=name, offset=offset, max_bytes=max_bytes)
        use = f"read {zlib.crc32(name.encode()) % self._pool.limits.read_connections}"

        async def once() -> Command:
            endpoint = await self._pool.endpoint(name)
            connection = await self._pool.shared(endpoint, use)
            reply = await self._reply(connection, endpoint, use, name, offset, max_bytes)
            if isinstance(reply, c.SegmentRead) and not reply.end_of_segment and not len(reply.data):
                # A store that closes answers waiting reads like this.
                raise NotConnectedError("store is closing", segment=name)
            return reply

        reply = await self._pool.retried(name, once, repeat=True)
        if isinstance(reply, c.SegmentIsSealed):
            return SegmentRead(offset=offset, parts=(), at_tail=False, end_of_segment=True)
        if not isinstance(reply, c.SegmentRead):
            raise error_of(reply, name)
        return _cut(reply, offset, max_bytes)

    async def _reply(
        self, connection: DialConnection, endpoint: Endpoint, use: str, name: str, offset: int, max_bytes: int
    ) -> Command:
        place = (name, offset)
        abandoned = self._abandoned.get(connection)
        earlier = abandoned.pop(place, None) if abandoned else None
        if earlier is not None:
            await self._shielded(connection, endpoint, use, place, earlier)
        size = min(max_bytes, READ_MAX_BYTES)
        _, reply = connection.begin(lambda rid: c.ReadSegment(name, offset, size, "", rid))
        return await self._shielded(connection, endpoint, use, place, reply)

    async def _shielded(
        self,
        connection: DialConnection,
        endpoint: Endpoint,
        use: str,
        place: _Place,
        reply: asyncio.Future[Command],
    ) -> Command:
        """The reply. If cancelled, the next read of the place waits for it."""
        try:
            return await asyncio.shield(reply)
        except asyncio.CancelledError:
            if not reply.done():
                self._abandon(connection, endpoint, use, place, reply)
            raise

    def _abandon(
        self, connection: DialConnection, endpoint: Endpoint, use: str, place: _Place, reply: asyncio.Future[Command]
    ) -> None:
        known = self._abandoned.get(connection)
        if known is None:
            known = self._abandoned[connection] = {}
            connection.closed.add_done_callback(lambda _: self._abandoned.pop(connection, None))
        if place in known:
            # Two readers of one place gave up: one reply is enough, the other is ignored.
            reply.add_done_callback(_ignore)
            return
        known[place] = reply

        def arrived(done: asyncio.Future[Command]) -> None:
            if known.get(place) is done:
                del known[place]
                _ignore(done)

        reply.add_done_callback(arrived)
        if len(known) > self._pool.limits.abandoned_reads:
            # Closing makes the store drop them; reads that still wait here continue over the next connection.
            self._pool.replace(endpoint, use, connection)
            connection.close()


def _ignore(reply: asyncio.Future[Command]) -> None:
    if not reply.cancelled():
        reply.exception()


def _cut(reply: c.SegmentRead, offset: int, max_bytes: int) -> SegmentRead:
    data = reply.data
    if len(data) <= max_bytes:
        parts = (data,) if len(data) else ()
        return SegmentRead(offset=offset, parts=parts, at_tail=reply.at_tail, end_of_segment=reply.end_of_segment)
    return SegmentRead(offset=offset, parts=(memoryview(data)[:max_bytes],), at_tail=False, end_of_segment=False)


def waitless(info: SegmentInfo, offset: int) -> SegmentRead | None:
    """The result of a read that must not wait, if it needs no data; None: there are bytes at ``offset``.

    The wire protocol has only reads that wait. Raises TruncatedError, InvalidArgumentError.
    """
    if offset < info.start_offset:
        raise TruncatedError("data is truncated", segment=info.name, start_offset=info.start_offset, offset=offset)
    if offset < info.length:
        return None
    if info.sealed and offset > info.length:
        raise InvalidArgumentError("read begins after the end", segment=info.name, offset=offset, length=info.length)
    return SegmentRead(offset=offset, parts=(), at_tail=not info.sealed, end_of_segment=info.sealed)
