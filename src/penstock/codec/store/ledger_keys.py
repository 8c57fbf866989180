"""Bytes of the objects that hold the secrets of ledgers, and of the markers that replace them.

All integers are big-endian. Source: docs/formats/ledger-log.md, "Key objects".
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION: Final = 1
MAGIC: Final = b"PsLK"
MARKER_MAGIC: Final = b"PsLX"
SECRET_BYTES: Final = 32
KEY: Final = struct.Struct(">4sB3x32sI")
MARKER: Final = struct.Struct(">4sB3xQ24xI")
"""As long as ``KEY``, so that a marker written over a secret in place leaves no byte of it."""
DIRECTORY: Final = "log-keys"
"""Below it, one directory for each log, named by its uid."""
_CHECKED: Final = KEY.size - 4  # bytes before the checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyedSecret:
    """A marker: the secret was destroyed at this time, milliseconds since the Unix epoch."""

    at_ms: int


def encode_secret(secret: bytes) -> bytes:
    if len(secret) != SECRET_BYTES:
        raise InvalidArgumentError("secret of a ledger has another length", size_bytes=len(secret))
    return _checked(KEY.pack(MAGIC, VERSION, secret, 0))


def encode_marker(at_ms: int) -> bytes:
    return _checked(MARKER.pack(MARKER_MAGIC, VERSION, at_ms, 0))


def decode_key_object(data: bytes, *, name: str) -> bytes | DestroyedSecret:
    """The secret, or what replaced it. Raises CorruptDataError, VersionTooNewError."""
    if len(data) != KEY.size or data[:4] not in (MAGIC, MARKER_MAGIC):
        raise CorruptDataError("object holds no key of a ledger", object=name)
    if int.from_bytes(data[_CHECKED:], "big") != crc32c(data[:_CHECKED]):
        raise CorruptDataError("object with the key of a ledger is damaged", object=name)
    if data[4] > VERSION:
        raise VersionTooNewError(
            "key of a ledger was written by a newer version", object=name, version=data[4], newest_known=VERSION
        )
    if data[:4] == MAGIC:
        return bytes(KEY.unpack(data)[2])
    return DestroyedSecret(at_ms=MARKER.unpack(data)[2])


def _checked(packed: bytes) -> bytes:
    head = packed[:_CHECKED]
    checksum: int = crc32c(head)
    return head + checksum.to_bytes(4, "big")
