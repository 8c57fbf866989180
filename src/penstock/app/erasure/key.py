"""The key of the digests that stand for values in cases of erasure: a file that only the store's user can read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import CorruptDataError
from penstock.ports.rng import Rng
from penstock.storage.machine.calls import sync_directory

ERASURE_KEY = "erasure.key"
KEY_BYTES = 32


def erasure_key(data: Path, rng: Rng) -> bytes:
    """The key of the store in ``data``; made at its first start. Raises CorruptDataError, OSError."""
    file = data / ERASURE_KEY
    try:
        return read_key(file)
    except FileNotFoundError:
        key = rng.randrange(1 << 8 * KEY_BYTES).to_bytes(KEY_BYTES)
        write_key(file, key)
        return read_key(file)


def check_key(data: Path) -> None:
    """Read the key of the store in ``data``, if it has one. Raises CorruptDataError, OSError."""
    with suppress(FileNotFoundError):
        read_key(data / ERASURE_KEY)


def read_key(file: Path) -> bytes:
    """The key in the file. Raises CorruptDataError, OSError."""
    try:
        key = bytes.fromhex(file.read_text().strip())
    except ValueError as error:
        raise CorruptDataError("file erasure.key cannot be read", file=str(file)) from error
    if len(key) < KEY_BYTES:
        raise CorruptDataError("file erasure.key is too short", file=str(file), least_bytes=KEY_BYTES)
    return key


def write_key(file: Path, key: bytes) -> None:
    """Put the key into the file, durably. Raises OSError."""
    fresh = file.with_name(file.name + ".tmp")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, key.hex().encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    fresh.rename(file)
    sync_directory(file.parent)
