"""Keys that follow from the secret of the cluster, so that all its processes have the same ones without copying."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.app.cluster.access.sealed import unseal
from penstock.app.cluster.access.secret import SecretInForce
from penstock.app.erasure.key import ERASURE_KEY, write_key
from penstock.model.errors import CorruptDataError, InvalidArgumentError, UnauthenticatedError
from penstock.ports.access.tokens import Delegated
from penstock.ports.clock import Clock
from penstock.ports.objects import Objects
from penstock.storage.access.delegation import Verifier
from penstock.storage.access.secret_files import locked, read_secret, write_secret
from penstock.storage.access.store_key import StoreKey, key_id, key_path

ERASURE_OBJECT: Final = "erasure-key"
"""Object of tier 2 with the key of digests in cases of erasure, encrypted. Written when the secret is changed first: until
then, the key follows from the secret."""
AUDIT_KEYS: Final = "keys of the audit log"
USERS: Final = "users and tokens"
_ERASURE: Final = "digests of erasure cases"
_SEALED_ERASURE: Final = "key of erasure cases"
_FILE_MAX_BYTES = 4096


def derived(secret: bytes, cluster: str, purpose: str) -> bytes:
    """32 bytes that only those who know the secret can compute. Different for each cluster and purpose.

    The first step keeps them apart from the proofs of links, which use the secret directly.
    """
    base = hmac.digest(secret, b"penstock derived keys", "sha256")
    return hmac.digest(base, f"{purpose}\0{cluster}".encode(), "sha256")


def derived_keys(secrets: Sequence[bytes], cluster: str, purpose: str) -> tuple[bytes, ...]:
    """The key of each secret, in the same order."""
    return tuple(derived(one, cluster, purpose) for one in secrets)


def token_key(secret: bytes, cluster: str) -> StoreKey:
    """The key with which all controllers of the cluster sign tokens, and stores verify them."""
    key = StoreKey(id="", secret=derived(secret, cluster, "tokens"))
    return StoreKey(id=key_id(key.public_bytes()), secret=key.secret)


class ClusterVerifier:
    """A ``TokenVerifier`` of a store: accepts what controllers sign with any secret that is valid now."""

    def __init__(self, secrets: SecretInForce, cluster: str, clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock
        self._verifiers = {one: Verifier(token_key(one, cluster).public_bytes(), clock) for one in secrets.valid}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def verify(self, token: str) -> Delegated:
        """As the protocol says."""
        current, *others = self._secrets.valid
        try:
            return self._verifiers[current].verify(token)
        except UnauthenticatedError:
            for one in others:
                with suppress(UnauthenticatedError):
                    return self._verifiers[one].verify(token)
            raise


async def shared_erasure_key(objects: Objects, secrets: Sequence[bytes], cluster: str) -> bytes:
    """The key of digests in cases of erasure: that of tier 2, or else the one that follows from the earliest secret.

    Raises CorruptDataError (it cannot be decrypted), UnavailableError, OSError.
    """
    try:
        sealed = await objects.read(ERASURE_OBJECT, 0, await objects.size(ERASURE_OBJECT))
    except FileNotFoundError:
        return derived(secrets[-1], cluster, _ERASURE)
    return unseal_any(derived_keys(secrets, cluster, _SEALED_ERASURE), sealed, about=erasure_about(cluster))


def erasure_sealing_key(secret: bytes, cluster: str) -> bytes:
    """The key that encrypts the object of ``shared_erasure_key``."""
    return derived(secret, cluster, _SEALED_ERASURE)


def erasure_about(cluster: str) -> str:
    return f"{cluster}\0{ERASURE_OBJECT}"


def unseal_any(keys: Sequence[bytes], sealed: bytes, *, about: str) -> bytes:
    """``unseal`` with the key that fits. Raises CorruptDataError: none does."""
    *others, last = keys
    for key in others:
        with suppress(CorruptDataError):
            return unseal(key, sealed, about=about)
    return unseal(last, sealed, about=about)


def has_erasure_key(data: Path) -> bool:
    return (data / ERASURE_KEY).exists()


def settle_erasure_key(data: Path, key: bytes) -> None:
    """Give the controller the key of digests in cases of erasure, unless its directory has one: it may be older than this
    rule. Raises OSError."""
    if not has_erasure_key(data):
        write_key(data / ERASURE_KEY, key)


def settle_token_key(data: Path, key: StoreKey, earlier: StoreKey | None = None) -> None:
    """Put the key where ``penstock token issue --data`` and the controller look for it; it replaces the ``earlier`` one.
    Raises InvalidArgumentError (another key is there, or others can read the file), OSError."""
    path, text = key_path(data), key.secret.hex().encode() + b"\n"
    with locked(path):
        found = read_secret(path, max_bytes=_FILE_MAX_BYTES)
        if found is None or (earlier is not None and found.strip() == earlier.secret.hex().encode()):
            write_secret(path, text)
        elif found.strip() != text.strip():
            raise InvalidArgumentError(
                "the key that signs tokens in this directory belongs to another cluster or secret; remove the file. Tokens"
                " that it signed are then refused",
                path=str(path),
            )
