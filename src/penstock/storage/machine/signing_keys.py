"""Signing keys as files in the data directory, which only their owner can read. ``ports.signing``."""

from __future__ import annotations

import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import CorruptDataError, InvalidArgumentError, NotFoundError
from penstock.storage.machine.calls import make_directories, replace_file, sync_directory

DIRECTORY = "audit-keys"
_SEED_BYTES = 32


class FileSigningKeys:
    """One file for each key, named by its public part. It holds the private key as 64 hexadecimal digits."""

    def __init__(self, data: Path) -> None:
        self._directory = data / DIRECTORY

    async def create(self) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        public = key.public_key().public_bytes_raw()
        self.put(public, key.private_bytes_raw())
        return public

    def put(self, public: bytes, private: bytes) -> None:
        """Keep a key that was made elsewhere; both parts have 32 bytes. Raises StorageFullError, OSError."""
        make_directories(self._directory)
        self._directory.chmod(0o700)
        # The file is made with mode 0600.
        replace_file(self._path(public), private.hex().encode() + b"\n")

    async def listed(self) -> Collection[bytes]:
        found: list[bytes] = []
        for path in sorted(self._directory.glob("*.key")):
            with suppress(ValueError):  # not a file of ours
                found.append(bytes.fromhex(path.stem))
        return found

    async def discard(self, replaced: Collection[bytes]) -> None:
        paths = [path for path in map(self._path, replaced) if path.exists()]
        for path in paths:
            path.unlink()
        if paths:
            sync_directory(self._directory)

    def sign(self, public: bytes, message: bytes) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.private(public)).sign(message)

    def private(self, public: bytes) -> bytes:
        """The private key, 32 bytes. Raises as ``sign``."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        path = self._path(public)
        try:
            mode, text = path.stat().st_mode, path.read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(
                "the private key of the audit log is not in this data directory; "
                "put its file back, or begin with a new key that auditors must be given",
                file=str(path),
            ) from error
        if stat.S_IMODE(mode) & 0o077:
            raise InvalidArgumentError("others can read the private key of the audit log: chmod 600", file=str(path))
        try:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text.decode("ascii")))
        except ValueError as error:
            raise CorruptDataError("the private key of the audit log cannot be read", file=str(path)) from error
        if key.public_key().public_bytes_raw() != public:
            raise CorruptDataError("the private key of the audit log is another one", file=str(path))
        return key.private_bytes_raw()

    def _path(self, public: bytes) -> Path:
        return self._directory / f"{public.hex()}.key"
