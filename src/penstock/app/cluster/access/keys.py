"""Keys that follow from the secret of the cluster, so that all its processes have the same ones without copying."""

from __future__ import annotations

import hmac
from pathlib import Path

from penstock.app.erasure.key import ERASURE_KEY, write_key
from penstock.model.errors import InvalidArgumentError
from penstock.storage.access.secret_files import locked, read_secret, write_secret
from penstock.storage.access.store_key import StoreKey, key_id, key_path

_FILE_MAX_BYTES = 4096


def derived(secret: bytes, cluster: str, purpose: str) -> bytes:
    """32 bytes that only those who know the secret can compute. Different for each cluster and purpose.

    The first step keeps them apart from the proofs of links, which use the secret directly.
    """
    base = hmac.digest(secret, b"penstock derived keys", "sha256")
    return hmac.digest(base, f"{purpose}\0{cluster}".encode(), "sha256")


def token_key(secret: bytes, cluster: str) -> StoreKey:
    """The key with which all controllers of the cluster sign tokens, and stores verify them."""
    key = StoreKey(id="", secret=derived(secret, cluster, "tokens"))
    return StoreKey(id=key_id(key.public_bytes()), secret=key.secret)


def settle_erasure_key(data: Path, secret: bytes, cluster: str) -> None:
    """Give the controller the key of digests in cases of erasure, unless its directory has one: it may be older than this
    rule. Raises OSError."""
    file = data / ERASURE_KEY
    if not file.exists():
        write_key(file, derived(secret, cluster, "digests of erasure cases"))


def settle_token_key(data: Path, key: StoreKey) -> None:
    """Put the key where ``penstock token issue --data`` and the controller look for it. Raises InvalidArgumentError (another
    key is there, or others can read the file), OSError."""
    path, text = key_path(data), key.secret.hex().encode() + b"\n"
    with locked(path):
        found = read_secret(path, max_bytes=_FILE_MAX_BYTES)
        if found is None:
            write_secret(path, text)
        elif found.strip() != text.strip():
            raise InvalidArgumentError(
                "the key that signs tokens in this directory belongs to another cluster or secret; remove the file. Tokens"
                " that it signed are then refused",
                path=str(path),
            )
