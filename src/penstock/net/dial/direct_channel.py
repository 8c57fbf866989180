"""A socket that the caller's own thread reads and writes, plain or with TLS. It is set up in the event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct

_RECEIVE_BYTES = 16 << 10
_TIME = struct.Struct("@ll")


class PlainChannel:
    """A connected, non-blocking socket, which it owns."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._timeout_s = 0.0

    async def start(self, host: str) -> None:
        """Do what comes before the first byte. Raises OSError."""

    async def send_all(self, data: bytes) -> None:
        """Raises OSError."""
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self) -> bytes:
        """Some bytes; none at the end of the stream. Raises OSError."""
        return await asyncio.get_running_loop().sock_recv(self.socket, _RECEIVE_BYTES)

    def hand_over(self) -> None:
        """From here on, the system itself waits, with a timeout: a separate call to wait would be an extra cost per
        answer."""
        self.socket.setblocking(True)

    def send(self, frame: bytes) -> bool:
        """Send without waiting. False: only part of it fits, so the connection is of no more use. Raises OSError."""
        return self.socket.send(frame, socket.MSG_DONTWAIT) == len(frame)

    def take(self, timeout_s: float) -> bytes:
        """Some bytes; none at the end of the stream. Raises BlockingIOError if none come in time, OSError."""
        if timeout_s > 0 and timeout_s != self._timeout_s:
            seconds = int(timeout_s)
            limit = _TIME.pack(seconds, max(1, int((timeout_s - seconds) * 1e6)))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._timeout_s = timeout_s
        return self.socket.recv(_RECEIVE_BYTES, 0 if timeout_s > 0 else socket.MSG_DONTWAIT)


class TlsChannel(PlainChannel):
    """The same with TLS, in memory between the caller and the socket."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(connection)
        self._context = context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None

    async def start(self, host: str) -> None:
        tls = self._context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await super().send_all(self._outgoing.read())
                received = await super().receive()
                if not received:
                    raise ConnectionResetError("the server closed during the TLS handshake") from None
                self._incoming.write(received)
        await super().send_all(self._outgoing.read())
        self._tls = tls

    async def send_all(self, data: bytes) -> None:
        await super().send_all(self._encrypted(data))

    async def receive(self) -> bytes:
        while True:
            found = self._decrypted()
            if found is not None:
                return found
            received = await super().receive()
            if not received:
                return b""
            self._incoming.write(received)

    def send(self, frame: bytes) -> bool:
        return super().send(self._encrypted(frame))

    def take(self, timeout_s: float) -> bytes:
        while True:
            # A vain attempt costs a call of OpenSSL and an exception, as much as a successful one.
            if self._has_input:
                found = self._decrypted()
                if found is not None:
                    return found
            received = super().take(timeout_s)
            if not received:
                return b""
            self._incoming.write(received)

    @property
    def _has_input(self) -> bool:
        """Whether bytes were received that have not been decrypted, or decrypted and not read."""
        return self._incoming.pending > 0 or (self._tls is not None and self._tls.pending() > 0)

    def _encrypted(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view and self._tls is not None:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    def _decrypted(self) -> bytes | None:
        """Bytes that have arrived whole; None: more must arrive first."""
        if self._tls is None:
            return None
        try:
            return self._tls.read(_RECEIVE_BYTES)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return b""
