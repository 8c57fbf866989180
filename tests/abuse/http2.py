"""A client of the gRPC port that begins calls and sends half of each request, as fast as it is allowed to."""

from __future__ import annotations

import socket
from contextlib import suppress
from struct import Struct, unpack_from

from penstock.codec.wire import http2_frames as h2

_SETTINGS, _PING, _WINDOW_UPDATE = 4, 6, 8
_INITIAL_WINDOW = 4
_WINDOW_BYTES = 65_535
_SETTING = Struct(">HI")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


CALL = (
    b"\x83\x86"
    + _literal(b":path", b"/io.pravega.controller.stream.api.grpc.v1.ControllerService/createScope")
    + _literal(b":authority", b"localhost")
    + _literal(b"content-type", b"application/grpc")
    + _literal(b"te", b"trailers")
)
"""The head of a call, as HPACK without a table."""


class HalfSender:
    """One connection with this many calls. Each sends half of a request of ``request_bytes``.

    Use it in a ``with`` block, and call ``step`` until all is sent or the server has closed.
    """

    def __init__(self, port: int, *, calls: int, request_bytes: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.closed = False
        half = b"\x00" + request_bytes.to_bytes(4, "big") + bytes(request_bytes // 2)
        self._left = {2 * index + 1: half for index in range(calls)}
        self._windows = dict.fromkeys((0, *self._left), _WINDOW_BYTES)
        self._initial = _WINDOW_BYTES
        self._received = b""
        self._unsent = h2.PREFACE + frame(_SETTINGS, 0, 0, _SETTING.pack(_INITIAL_WINDOW, (1 << 31) - 1))
        self._unsent += b"".join(frame(h2.HEADERS, h2.END_HEADERS, stream, CALL) for stream in self._left)
        self.socket.setblocking(False)

    @property
    def left_bytes(self) -> int:
        """The bytes that it still has to send."""
        return sum(map(len, self._left.values()))

    def step(self) -> None:
        """Receive what has come, and send what the server's windows and the socket take, without waiting."""
        try:
            with suppress(BlockingIOError):
                while data := self.socket.recv(1 << 16):
                    self._received += data
                self.closed = True
                return
            self._parse()
            for stream in list(self._left):
                self._send(stream)
            with suppress(BlockingIOError):
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except ConnectionError:
            self.closed = True

    def _send(self, stream: int) -> None:
        left = self._left[stream]
        size = min(h2.PAYLOAD_MAX_BYTES, len(left), self._windows[stream], self._windows[0])
        if size <= 0 or len(self._unsent) > 1 << 16:
            return
        self._windows[stream] -= size
        self._windows[0] -= size
        self._unsent += frame(h2.DATA, 0, stream, left[:size])
        self._left[stream] = left[size:]
        if size == len(left):
            del self._left[stream]

    def _parse(self) -> None:
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], "big") & ((1 << 31) - 1)
            payload, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            if kind == _SETTINGS and not flags & 1:
                self._settle(payload)
            elif kind == _WINDOW_UPDATE and stream in self._windows:
                self._windows[stream] += int.from_bytes(payload, "big")
            elif kind == _PING and not flags & 1:
                self._unsent += frame(_PING, 1, 0, payload)
            elif kind == h2.RST_STREAM:
                self._left.pop(stream, None)

    def _settle(self, payload: bytes) -> None:
        for at in range(0, len(payload), _SETTING.size):
            name, value = unpack_from(">HI", payload, at)
            if name == _INITIAL_WINDOW:
                for stream in self._left:
                    self._windows[stream] += value - self._initial
                self._initial = value
        self._unsent += frame(_SETTINGS, 1, 0, b"")

    def __enter__(self) -> HalfSender:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
