"""Calls of the controller over a data connection, where the server takes them there."""

from __future__ import annotations

import grpc

from penstock.codec.wire import commands as c
from penstock.model.errors import InternalError, NotConnectedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.net.grpc.grpc_errors import code_of, decode_error
from penstock.net.wire.wire_errors import error_of

_USE = "calls"


class LineCalls:
    """Lives in a pool of connections, which is borrowed. No call is tried again here: the caller has another way."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def call(self, rpc: str, stream: StreamName, request: bytes) -> tuple[bytes, bytes]:
        """The response message, and what the server notes beside it.

        Raises: NotConnectedError (it may have happened, or may happen later), UnsupportedError (not offered there); else
        what the controller raises.
        """
        # Who takes calls serves all segments.
        place = segment_name(stream, SegmentId(0))
        try:
            connection = await self._pool.shared(await self._pool.endpoint(place), _USE)
            reply = await connection.request(lambda rid: c.CallController(rid, rpc, request))
        except NotConnectedError:
            self._pool.forget(place)
            raise
        if isinstance(reply, c.ControllerAnswered):
            return bytes(reply.message), bytes(reply.note)
        if not isinstance(reply, c.ControllerRefused):
            raise error_of(reply, str(stream))
        error = decode_error(bytes(reply.error)) or InternalError("the server failed", rpc=rpc)
        if code_of(error) is grpc.StatusCode.UNAVAILABLE:
            # To be repeated, as over gRPC; whoever does that does it there.
            raise NotConnectedError("the server takes no calls now", rpc=rpc, reason=str(error))
        raise error
