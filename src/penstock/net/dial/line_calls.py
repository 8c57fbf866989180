"""Controller calls over a data connection, if the server accepts them there."""

from __future__ import annotations

import grpc

from penstock.codec.wire import commands as c
from penstock.model.errors import InternalError, NotConnectedError
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.net.grpc.grpc_errors import code_of, decode_error
from penstock.net.wire.wire_errors import error_of

_USE = "calls"
_ANYWHERE = "_system/_calls/0.#epoch.0"
"""A segment name by which the pool finds a server. A server that accepts calls serves all segments."""


class LineCalls:
    """Uses a pool of connections, which is borrowed. No call is retried here: the caller falls back to gRPC."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def call(self, name: str, request: bytes) -> bytes:
        """The reply.

        Raises: NotConnectedError (it may have happened, or may happen later), UnsupportedError (not offered there); else
        what the controller raises.
        """
        # A server that accepts calls serves all segments.
        try:
            connection = await self._pool.shared(await self._pool.endpoint(_ANYWHERE), _USE)
            reply = await connection.request(lambda rid: c.CallController(rid, name, request))
        except NotConnectedError:
            self._pool.forget(_ANYWHERE)
            raise
        if isinstance(reply, c.ControllerAnswered):
            return bytes(reply.message)
        if not isinstance(reply, c.ControllerRefused):
            raise error_of(reply, name)
        error = decode_error(bytes(reply.error)) or InternalError("the server failed", call=name)
        if code_of(error) is grpc.StatusCode.UNAVAILABLE:
            # To be repeated, as over gRPC; the caller repeats it.
            raise NotConnectedError("the server accepts no calls now", call=name, reason=str(error))
        raise error
