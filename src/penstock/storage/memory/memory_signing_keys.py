"""Signing keys in memory. ``ports.signing``."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.model.errors import NotFoundError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class MemorySigningKeys:
    """Real keys, which end with the process."""

    def __init__(self) -> None:
        self._keys: dict[bytes, Ed25519PrivateKey] = {}

    async def create(self) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        self._keys[public] = key
        return public

    def sign(self, public: bytes, message: bytes) -> bytes:
        key = self._keys.get(public)
        if key is None:
            raise NotFoundError("the private key of the audit log is not here")
        return key.sign(message)

    async def listed(self) -> Collection[bytes]:
        return list(self._keys)

    async def discard(self, replaced: Collection[bytes]) -> None:
        self._keys = {name: key for name, key in self._keys.items() if name not in replaced}
