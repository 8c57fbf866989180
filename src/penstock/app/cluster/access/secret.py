"""The secret that all processes of a cluster share: they prove to each other that they know it.

The cluster records a digest of each valid secret, so that a process with another secret is refused when it starts. Source:
docs/design/0065-cluster.md, "The secret".
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import field
from pathlib import Path
from typing import Final, NoReturn

from penstock.codec.store.cluster_nodes import SECRET, SecretDigests, decode_node
from penstock.model.errors import (
    CorruptDataError,
    NodeNotFoundError,
    NotFoundError,
    UnavailableError,
    VersionTooNewError,
    WrongClusterError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.access.secret_files import locked, read_secret, write_secret

log = logging.getLogger(__name__)

SECRET_BYTES: Final = 32
"""As long as the output of SHA-256, which the proof uses: more would add nothing."""
_FILE_MAX_BYTES: Final = 1024
_RETRY_S: Final = 1.0
_SCRYPT_N: Final = 1 << 14
"""With r = 8, a digest takes 16 MiB and about 50 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecret:
    """``current``: the secret that this process uses. ``earlier``: the one before it, which others may still use while the
    secret is changed. Each has 32 bytes."""

    current: bytes = field(repr=False)
    earlier: bytes | None = field(default=None, repr=False)

    @property
    def all(self) -> Sequence[bytes]:
        """The current one, and then the earlier one if there is one."""
        return (self.current,) if self.earlier is None else (self.current, self.earlier)


def read_cluster_secret(path: Path) -> ClusterSecret:
    """The secret. The file holds it as 64 hexadecimal digits; a second line has the earlier one.

    Raises NotFoundError, InvalidArgumentError (others can read the file), CorruptDataError, OSError.
    """
    text = read_secret(path, max_bytes=_FILE_MAX_BYTES)
    if text is None:
        raise NotFoundError(
            "the file with the secret of the cluster does not exist: copy it from where `penstock cluster init` ran",
            path=str(path),
        )
    try:
        secrets = [bytes.fromhex(line) for line in text.decode("ascii").splitlines()]
    except ValueError as error:
        raise CorruptDataError("the secret of the cluster cannot be read", path=str(path)) from error
    if not 1 <= len(secrets) <= 2:
        raise CorruptDataError("the file of the cluster's secret needs one or two lines", path=str(path))
    for secret in secrets:
        if len(secret) != SECRET_BYTES:
            raise CorruptDataError(
                "the secret of the cluster has the wrong length", path=str(path), size_bytes=len(secret)
            )
    return ClusterSecret(current=secrets[0], earlier=secrets[1] if secrets[1:] else None)


def write_cluster_secret(path: Path, secret: ClusterSecret) -> None:
    """Replace the file, with mode 0600. Raises OSError."""
    with locked(path):
        write_secret(path, _encoded(secret))


def replace_cluster_secret(path: Path, secret: ClusterSecret, *, expected: ClusterSecret) -> bool:
    """Replace the file if it still has the ``expected`` secrets. False: it has changed, and was left, because it may have the
    only copy of a secret. Raises as ``read_cluster_secret``."""
    with locked(path):
        if read_cluster_secret(path) != expected:
            return False
        write_secret(path, _encoded(secret))
        return True


def _encoded(secret: ClusterSecret) -> bytes:
    return "".join(f"{one.hex()}\n" for one in secret.all).encode()


def draw_secret(rng: Rng) -> bytes:
    return rng.randrange(1 << 8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")


def ensure_cluster_secret(path: Path, rng: Rng) -> bool:
    """Create the file with a random secret and mode 0600, if there is no file. Returns whether it is new. Raises as
    ``read_cluster_secret``."""
    with locked(path):
        try:
            read_cluster_secret(path)
        except NotFoundError:
            write_secret(path, draw_secret(rng).hex().encode() + b"\n")
            return True
    return False


def secret_digest(secret: bytes, cluster: str) -> str:
    """What the cluster with this id records of a secret. Slow on purpose, so that it does not help to guess one."""
    salt = b"penstock cluster secret\0" + cluster.encode()
    return hashlib.scrypt(secret, salt=salt, n=_SCRYPT_N, r=8, p=1, dklen=SECRET_BYTES).hex()


async def read_digests(coordination: Coordination) -> tuple[SecretDigests | None, int | None]:
    """The digests of the valid secrets, and the version of their node; None: the cluster records none. Raises
    CorruptDataError, VersionTooNewError, UnavailableError."""
    try:
        node = await coordination.read(SECRET)
    except NodeNotFoundError:
        return None, None
    return decode_node(SecretDigests, node.data), node.version


class SecretInForce:
    """The secrets of this process that are valid now. Opened by ``check_secret``, kept up to date by ``obey_secret``."""

    def __init__(self, secret: ClusterSecret, digests: Sequence[str], path: Path) -> None:
        """``digests``: of ``secret.all``, in the same order. ``path``: of the file, for errors."""
        self._secrets = dict(zip(digests, secret.all, strict=True))
        self._path = path
        self.digest = digests[0]
        self.valid: Sequence[bytes] = secret.all
        """The current secret first."""

    @property
    def current(self) -> bytes:
        return self.valid[0]

    @property
    def earlier(self) -> bytes | None:
        return self.valid[1] if self.valid[1:] else None

    def note(self, found: SecretDigests) -> None:
        """Drop the earlier secret once the cluster does not accept it. Raises WrongClusterError: it does not accept the
        current one."""
        if self.digest not in found.digests:
            raise WrongClusterError(
                "the secret of this process is not that of the cluster: copy the file from a machine whose processes run",
                path=str(self._path),
            )
        self.valid = [secret for digest, secret in self._secrets.items() if digest in found.digests]


async def check_secret(
    coordination: Coordination, cluster: str, path: Path, secret: ClusterSecret, offload: Offload
) -> SecretInForce:
    """The secrets of the file that the cluster accepts now.

    A cluster that records no digest, or whose node is damaged, accepts any: only operators write the node, because the
    first process could be the wrong one. Raises WrongClusterError (the cluster has another secret), UnavailableError.
    """
    digests = [await offload.run(lambda one=one: secret_digest(one, cluster)) for one in secret.all]  # type: ignore[misc]
    in_force = SecretInForce(secret, digests, path)
    await _note(coordination, in_force)
    return in_force


async def obey_secret(coordination: Coordination, in_force: SecretInForce) -> NoReturn:
    """Watch which secrets are valid. Raises WrongClusterError (that of this process is not valid any more),
    SessionEndedError."""
    async with aclosing(coordination.notices(SECRET)) as notices:
        async for _ in notices:
            while True:
                try:
                    await coordination.sync()
                    await _note(coordination, in_force)
                except UnavailableError as error:
                    log.warning("digests of the secret are not known", extra={"reason": str(error)})
                    await asyncio.sleep(_RETRY_S)
                    continue
                break
    raise AssertionError("notices end only with an error")


async def _note(coordination: Coordination, in_force: SecretInForce) -> None:
    try:
        found, _ = await read_digests(coordination)
    except (CorruptDataError, VersionTooNewError) as error:
        log.error("digests of the secret cannot be decoded, so it is not checked", extra={"reason": str(error)})
        return
    if found is None:
        log.warning("the cluster records no digest of its secret: run `penstock cluster secret record`")
        return
    in_force.note(found)
