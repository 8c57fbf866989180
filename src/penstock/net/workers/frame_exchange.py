"""Exchanges the frames of a handshake on a connection, which may have TLS, and then gives the connection to a link."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from penstock.model.errors import NotConnectedError, ProtocolError
from penstock.net.workers.handshake import FRAME_MAX_BYTES, LENGTH

_RECEIVED_MAX_BYTES: Final = 4 * FRAME_MAX_BYTES
"""Received and not used yet. More is left in the kernel: a peer that has proved nothing must not use memory."""


class FrameExchange(asyncio.Protocol):
    """One end of a connection during its handshake. The first owner of the transport, until ``hand_over``."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._ended = False
        self._failure: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _RECEIVED_MAX_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> bool:
        self._ended = True
        self._changed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._failure = exc
        self._changed.set()

    def send(self, frame: bytes) -> None:
        """Send a frame. It is lost if the connection has ended, which ``receive`` reports."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(LENGTH.pack(len(frame)) + frame)

    async def receive(self) -> bytes:
        """The next frame. Raises NotConnectedError, ProtocolError (the frame is too large)."""
        (size,) = LENGTH.unpack(await self._exactly(LENGTH.size))
        if size > FRAME_MAX_BYTES:
            raise ProtocolError("frame of a handshake is too large", size_bytes=size)
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            if self._ended:
                raise NotConnectedError("the other end hung up during the handshake") from self._failure
            self._changed.clear()
            await self._changed.wait()
        found = bytes(self._received[:size])
        del self._received[:size]
        if len(self._received) <= _RECEIVED_MAX_BYTES and self._transport is not None:
            self._transport.resume_reading()
        return found

    def hand_over(self, link: asyncio.Protocol) -> None:
        """Give the connection to the link, with what was received after the last frame. Raises NotConnectedError: it has
        ended."""
        if self._ended or self._transport is None or self._transport.is_closing():
            raise NotConnectedError("the other end hung up during the handshake") from self._failure
        transport, self._transport = self._transport, None
        transport.set_protocol(link)
        link.connection_made(transport)
        transport.resume_reading()
        if self._received:
            link.data_received(bytes(self._received))

    def close(self) -> None:
        """End the connection after what was sent. Does nothing after ``hand_over``."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once. Does nothing after ``hand_over``."""
        if self._transport is not None:
            self._transport.abort()
