"""Parse the headers of HTTP/2 frames, for a proxy that counts bytes and changes nothing. Source: RFC 9113, 4.1 and
6."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from penstock.model.errors import ProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, CONTINUATION = 0, 1, 3, 9  # types of frames, RFC 9113 section 6
END_STREAM, END_HEADERS = 0x1, 0x4  # flags of frames, RFC 9113 section 6
PAYLOAD_MAX_BYTES = 16_384
"""The largest payload that a client may send by default."""

_HEAD = Struct(">BHBBI")
_STREAM = (1 << 31) - 1  # mask; the highest bit of a stream's number is reserved


class FrameHead(NamedTuple):
    """``kind`` and ``flags`` are those of RFC 9113; ``stream`` 0 is the connection. ``start``: where the frame
    begins in the bytes fed last; negative if it began in earlier ones."""

    kind: int
    flags: int
    stream: int
    payload_bytes: int
    start: int


class FrameScan:
    """One direction of one connection, after the preface."""

    def __init__(self, *, payload_max_bytes: int = PAYLOAD_MAX_BYTES) -> None:
        self._most_bytes = payload_max_bytes
        self._skip_bytes = 0
        self._begun = b""

    def feed(self, data: bytes) -> list[FrameHead]:
        """The frame headers that end in these bytes, in order. The payload may be incomplete.

        Raises ProtocolError: a payload of more than ``payload_max_bytes``.
        """
        if self._skip_bytes >= len(data):
            self._skip_bytes -= len(data)
            return []
        at = self._skip_bytes
        begun_bytes = len(self._begun)
        if self._begun:  # No payload is being skipped.
            data, self._begun = self._begun + data, b""
        heads: list[FrameHead] = []
        end = len(data)
        while at + _HEAD.size <= end:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            size = high << 16 | low
            if size > self._most_bytes:
                raise ProtocolError("HTTP/2 frame is too large", size_bytes=size, limit_bytes=self._most_bytes)
            heads.append(FrameHead(kind, flags, stream & _STREAM, size, at - begun_bytes))
            at += _HEAD.size + size
        self._skip_bytes = max(0, at - end)
        self._begun = data[at:]
        return heads

    @property
    def is_inside(self) -> bool:
        """Whether the payload of the last frame is incomplete."""
        return self._skip_bytes > 0

    def restart(self) -> None:
        """Expect a frame at the start of the next bytes: the caller feeds a frame again from its start."""
        self._skip_bytes, self._begun = 0, b""
