"""A line for appends whose frames the caller's own thread sends and receives: a plain socket, set up in the event
loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from uuid import UUID

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import (
    HEADER,
    REPLY_CODES,
    VERSION_HIGH,
    VERSION_LOW,
    Command,
    acknowledged_number,
    append_block_end_parts,
    check_header,
    decode,
    encode,
)
from penstock.model.errors import NotConnectedError, PenstockError, ProtocolError
from penstock.net.dial.addresses import connected_socket
from penstock.net.dial.checking import tls_error
from penstock.net.dial.direct_channel import PlainChannel, TlsChannel
from penstock.net.dial.security import PLAIN, DialSecurity
from penstock.net.wire.wire_errors import OWN_TOKEN, error_of
from penstock.ports import forks
from penstock.ports.control.layout import Endpoint
from penstock.ports.files import Buffer

_RID = 1  # number of the request; one append is in flight at a time, so one number is enough


class DirectLine:
    """Implements ``ports.data.direct_appends.DirectLine``."""

    def __init__(self, channel: PlainChannel, endpoint: Endpoint, writer: UUID) -> None:
        self.last_number = 0
        self._channel = channel
        self._endpoint = endpoint
        self._writer = writer.bytes
        self._sent_number = 0
        self._received = bytearray()
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``."""
        held = self._channel.socket
        if held.fileno() >= 0:
            forks.disconnect(held.fileno())

    async def set_up(self, segment: str, token: str) -> None:
        """Exchange the protocol's greeting and register the writer. Raises NotConnectedError, and the store's error if
        it refuses."""
        channel = self._channel
        await channel.start(self._endpoint.host.strip("[]"))
        hello = encode(c.Hello(VERSION_HIGH, VERSION_LOW))
        await channel.send_all(hello + encode(c.SetupAppend(_RID, self._writer, segment, token)))
        while True:
            for reply in self._replies(await channel.receive()):
                if isinstance(reply, c.AppendSetup):
                    self.last_number = reply.last_number
                    channel.hand_over()
                    return
                if not isinstance(reply, c.Hello | c.KeepAlive):
                    raise error_of(reply, segment)

    def send(self, data: Buffer, count: int, number: int) -> None:
        frame = b"".join(append_block_end_parts(self._writer, data, count, number, _RID))
        self._sent_number = number
        try:
            whole = self._channel.send(frame)
        except OSError as error:
            raise self._lost(error) from error
        if not whole:
            # The peer does not read. It has only part of the frame, so it stores nothing.
            raise self._lost(None)

    def acknowledged(self, timeout_s: float) -> bool:
        try:
            received = self._channel.take(timeout_s)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(error) from error
        if not self._received and acknowledged_number(received) == self._sent_number:
            return True
        for reply in self._replies(received):
            if isinstance(reply, c.DataAppended) and reply.event_number >= self._sent_number:
                return True
            if not isinstance(reply, c.DataAppended | c.KeepAlive):
                raise NotConnectedError("append was refused", reply=type(reply).__name__)
        return False

    def _replies(self, received: bytes) -> list[Command]:
        """The frames that are complete now, including those of which a part came before. Raises NotConnectedError at
        the end of the stream."""
        if not received:
            raise self._lost(None)
        held = self._received
        held += received
        replies: list[Command] = []
        at = 0
        try:
            while len(held) - at >= HEADER.size:
                code, length = HEADER.unpack_from(held, at)
                check_header(code, length, REPLY_CODES)
                end = at + HEADER.size + length
                if end > len(held):
                    break
                replies.append(decode(code, memoryview(bytes(held[at + HEADER.size : end]))))
                at = end
        except ProtocolError as error:
            raise self._lost(error) from error
        del held[:at]
        return replies

    def _lost(self, cause: Exception | None) -> NotConnectedError:
        return NotConnectedError(
            "connection to a segment store is lost",
            host=self._endpoint.host,
            port=self._endpoint.port,
            reason=str(cause) if cause is not None else "connection was closed",
        )

    def close(self) -> None:
        self._channel.socket.close()


async def dial_direct(
    endpoint: Endpoint,
    segment: str,
    writer: UUID,
    *,
    connect_s: float,
    security: DialSecurity = PLAIN,
    token: str = OWN_TOKEN,
) -> DirectLine:
    """A line, set up. Raises NotConnectedError, TlsError, and the store's error if it refuses. Cancelled: nothing stays
    open."""
    connection: socket.socket | None = None
    try:
        async with asyncio.timeout(connect_s):
            connection = await connected_socket(endpoint.host, endpoint.port)
            # Each append is sent as a whole, so delaying small packets gains nothing.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = security.context()
            channel = PlainChannel(connection) if context is None else TlsChannel(connection, context)
            line = DirectLine(channel, endpoint, writer)
            await line.set_up(segment, token)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise tls_error(error, f"{endpoint.host}:{endpoint.port}") from error
        if isinstance(error, OSError | TimeoutError) and not isinstance(error, PenstockError):
            raise NotConnectedError(
                "segment store cannot be reached", host=endpoint.host, port=endpoint.port, reason=str(error)
            ) from error
        raise
    return line
