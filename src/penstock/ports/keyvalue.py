"""An ordered key-value store: where containers checkpoint their metadata and tables keep their index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class KeyValueStore(Protocol):
    """Ordered map from bytes to bytes, with atomic, durable batches.

    Guarantees. ``commit`` is all or nothing, also across power loss, and durable when it returns. Reads see every
    commit that returned, and no partial commit. Keys are ordered as unsigned bytes. A store that checks its values
    raises DamagedRowError, which names the first damaged row in the order of the call. All other rows can be read.
    """

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """The values, in the order of the keys; None where absent. Raises DamagedRowError."""
        ...

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> Sequence[tuple[bytes, bytes]]:
        """Up to ``limit`` entries with ``start <= key < end``, in key order (or from the end backwards).

        Raises DamagedRowError.
        """
        ...

    async def commit(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        *,
        delete_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Apply ``delete_ranges`` (half-open), then ``deletes``, then ``puts``, as one atomic and durable step.

        Cancelled: may or may not have happened. Raises: StorageFullError, CorruptDataError, OSError.
        """
        ...

    async def close(self) -> None: ...
