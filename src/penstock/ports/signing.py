"""Private keys that sign evidence, kept outside of the metadata."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class SigningKeys(Protocol):
    """Ed25519 keys. A private key never leaves its place."""

    async def create(self) -> bytes:
        """Make a key and keep it durably; returns its public part, 32 bytes. Raises StorageFullError, OSError,
        UnavailableError (of keys that several controllers share)."""
        ...

    def sign(self, public: bytes, message: bytes) -> bytes:
        """The signature, 64 bytes, by the key with this public part. Raises NotFoundError: it is not here;
        InvalidArgumentError: others can read it; CorruptDataError."""
        ...

    async def listed(self) -> Collection[bytes]:
        """The public parts of all keys. Raises OSError, UnavailableError."""
        ...

    async def discard(self, replaced: Collection[bytes]) -> None:
        """Delete keys that are never used again. Missing ones are no error. Raises OSError, UnavailableError."""
        ...
