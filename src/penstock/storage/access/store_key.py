"""The key with which a store signs its tokens: Ed25519, generated at the first use, in the data directory."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.storage.access.secret_files import FOLDER, locked, read_secret, write_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKey:
    """A key pair. ``id`` names it in tokens and, because no two stores share a key, it also names the store."""

    id: str
    secret: bytes = field(repr=False)

    def private(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret)

    def public_bytes(self) -> bytes:
        """The public key, 32 bytes."""
        return self.private().public_key().public_bytes_raw()


def key_id(public: bytes) -> str:
    """The id of a public key."""
    return base64.urlsafe_b64encode(hashlib.sha256(public).digest()[:12]).decode()


def public_key(public: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public)


def key_path(data: Path) -> Path:
    return data / FOLDER / "tokens.key"


def load_key(data: Path) -> StoreKey:
    """The store's key; a new one if there is none. Raises InvalidArgumentError (others can read it), CorruptDataError,
    OSError."""
    path = key_path(data)
    secret = read_secret(path, max_bytes=4096)
    if secret is None:
        with locked(path):
            secret = read_secret(path, max_bytes=4096)
            if secret is None:
                secret = os.urandom(_BYTES).hex().encode() + b"\n"
                write_secret(path, secret)
    try:
        plain = bytes.fromhex(secret.decode("ascii"))
    except ValueError:
        plain = b""
    if len(plain) != _BYTES:
        raise CorruptDataError(
            "the key of the store's tokens cannot be read; remove the file for a new key", path=str(path)
        )
    key = StoreKey(id="", secret=plain)
    return StoreKey(id=key_id(key.public_bytes()), secret=plain)
