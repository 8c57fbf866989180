"""Detects keys that a damaged SQLite file may hide. SQLite has no checksums: a flipped bit in a key hides its row."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from crc32c import crc32c

from penstock.model.errors import CorruptDataError

CRC_BYTES = 4

_ZERO = crc32c(b"\0")
_TABLE = [crc32c(bytes((byte,))) ^ _ZERO for byte in range(256)]
"""How a difference in the last byte changes the checksum."""
_BY_TOP = {change >> 24: byte for byte, change in enumerate(_TABLE)}
_LAST_BYTE = frozenset(_TABLE[1 << bit] for bit in range(8))


def refuse_hidden_rows(connection: sqlite3.Connection, path: Path, *, unsealed: bytes) -> None:
    """Check the pages, and every row's checksum over its key and value (``unsealed`` is the key of a row without one).

    A lookup of a damaged key, or of a key behind a damaged page, would find nothing: a stream would seem deleted, and
    its chunks garbage. So this check runs before anything is served; a million rows take some seconds. A row with one
    flipped bit in its value is accepted: its readers get an error, and everything else can still be read.

    Raises CorruptDataError, sqlite3.Error.
    """
    for (said,) in connection.execute("PRAGMA quick_check(1)"):
        if said not in ("ok", b"ok"):
            raise CorruptDataError("metadata file is damaged", file=str(path), detail=repr(said)[:200])
    # A key of another type has the same bytes, but no lookup finds it.
    for kind, key, stored in connection.execute("SELECT typeof(key) = 'blob', key, value FROM kv"):
        if not kind or (key != unsealed and not (_is_sound(key, stored) or _value_explains(key, stored))):
            raise CorruptDataError("a key of the metadata is damaged", file=str(path), row=repr(key)[:120])


def _is_sound(key: object, stored: object) -> bool:
    if not isinstance(key, bytes) or not isinstance(stored, bytes) or len(stored) < CRC_BYTES:
        return False
    checksum: int = crc32c(stored[CRC_BYTES:], crc32c(key))
    return checksum == int.from_bytes(stored[:CRC_BYTES], "big")


def _value_explains(key: object, stored: object) -> bool:
    """Whether one flipped bit of the checksum or the value explains the mismatch: no two single bits have the same
    effect."""
    if not isinstance(key, bytes) or not isinstance(stored, bytes) or len(stored) < CRC_BYTES:
        return False
    value, wanted = stored[CRC_BYTES:], int.from_bytes(stored[:CRC_BYTES], "big")
    difference = crc32c(value, crc32c(key)) ^ wanted
    if difference.bit_count() == 1:
        return True
    # The effect of a flipped bit on a checksum depends only on its distance from the end. So the search steps back
    # once for each byte: a megabyte takes a third of a second.
    for _ in range(len(value)):
        if difference in _LAST_BYTE:
            return True
        index = _BY_TOP[difference >> 24]
        difference = ((difference ^ _TABLE[index]) << 8 | index) & 0xFFFFFFFF
    return False
