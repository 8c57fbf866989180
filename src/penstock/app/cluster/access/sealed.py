"""Bytes in tier 2 that only processes with the secret of the cluster can read or make: AES-256-GCM."""

from __future__ import annotations

from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.ports.rng import Rng

_NONCE_BYTES: Final = 12


def seal(key: bytes, data: bytes, *, about: str, rng: Rng) -> bytes:
    """Encrypt. ``key``: 32 bytes. ``about``: what the bytes are, such as cluster and name. Decryption needs the same
    value."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = rng.randrange(1 << 8 * _NONCE_BYTES).to_bytes(_NONCE_BYTES, "big")
    return nonce + AESGCM(key).encrypt(nonce, data, about.encode())


def unseal(key: bytes, sealed: bytes, *, about: str) -> bytes:
    """Inverse of ``seal``. Raises CorruptDataError: another key, other bytes, or they were sealed as something else."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about.encode())
    except (InvalidTag, ValueError) as error:
        raise CorruptDataError(
            "an object cannot be decrypted: this process has a different secret, or the object is damaged", about=about
        ) from error
