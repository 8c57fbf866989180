"""The secret that all processes of a cluster share: they prove to each other that they know it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.rng import Rng
from penstock.storage.access.secret_files import locked, read_secret, write_secret

SECRET_BYTES: Final = 32
"""As long as the output of SHA-256, which the proof uses: more would add nothing."""
_FILE_MAX_BYTES: Final = 1024


def read_cluster_secret(path: Path) -> bytes:
    """The 32 bytes of the secret. The file holds them as 64 hexadecimal digits.

    Raises NotFoundError, InvalidArgumentError (others can read the file), CorruptDataError, OSError.
    """
    text = read_secret(path, max_bytes=_FILE_MAX_BYTES)
    if text is None:
        raise NotFoundError(
            "the file with the secret of the cluster does not exist: copy it from where `penstock cluster init` ran",
            path=str(path),
        )
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError as error:
        raise CorruptDataError("the secret of the cluster cannot be read", path=str(path)) from error
    if len(secret) != SECRET_BYTES:
        raise CorruptDataError("the secret of the cluster has the wrong length", path=str(path), size_bytes=len(secret))
    return secret


def ensure_cluster_secret(path: Path, rng: Rng) -> bool:
    """Create the file with a random secret and mode 0600, if there is no file. Returns whether it is new. Raises as
    ``read_cluster_secret``."""
    with locked(path):
        try:
            read_cluster_secret(path)
        except NotFoundError:
            secret = rng.randrange(1 << 8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
            write_secret(path, secret.hex().encode() + b"\n")
            return True
    return False
