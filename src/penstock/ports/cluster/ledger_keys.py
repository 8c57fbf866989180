"""The secrets that encrypt the ledgers of one log, outside the log."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from penstock.model.ledgers import LedgerKey, LogWipe


class LedgerKeys(Protocol):
    """Secrets of one log by their names, which are never used twice. Every call may raise UnavailableError.

    Guarantees. A secret that ``write`` has returned for is read by every later owner until it is destroyed. Once ``destroy``
    has returned for it, or ``destroy_others`` has returned a wipe, no object that the storage has, or gets from an earlier
    request, holds it.
    """

    async def write(self, key: LedgerKey, secret: bytes) -> None:
        """Store 32 bytes under a new name. If this raises, the secret may or may not be stored: never use it.

        Raises: UnavailableError, also if the name is taken or the storage is full.
        """
        ...

    async def read(self, key: LedgerKey) -> bytes:
        """The secret. Raises NotFoundError (missing or destroyed), CorruptDataError; both name the object."""
        ...

    async def destroy(self, keys: Collection[LedgerKey]) -> None:
        """Replace the secrets by markers. Missing ones are no error. Raises UnsupportedError as ``check``."""
        ...

    async def destroy_others(self, kept: Collection[LedgerKey], *, epoch: int) -> LogWipe | None:
        """Destroy all secrets of the log whose names have at most this epoch, except those in ``kept``; then look again.

        Returns None if it is not certain yet that none of them is left: call again. Raises UnsupportedError as ``check``.
        """
        ...

    async def forget_markers(self) -> None:
        """Delete markers that are older than a day."""
        ...

    async def check(self, key: LedgerKey) -> None:
        """Raises UnsupportedError, with the reason and the place: the storage keeps bytes after their destruction, as the
        object with this name shows."""
        ...
