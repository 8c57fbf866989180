"""An object store: whole objects under names, written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Objects(Protocol):
    """One prefix of a bucket, ours alone. Names are relative, with ``/``, made by us.

    An object appears whole or not at all. Nothing here is conditional: a name that only one owner uses is the only fence.
    What a failed ``put`` sent may still arrive later, so its name must never be given other bytes.
    Everything may raise UnavailableError: it may or may not have happened.
    """

    async def put(self, name: str, data: bytes) -> None:
        """Make the object ``data``. Durable, readable and looked after (its size was asked back) when this returns.

        Repeating it with the same bytes is harmless. Raises: StorageFullError; CorruptDataError (the store keeps something
        else than it was given).
        """
        ...

    async def read(self, name: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start`` on; shorter only at the end. Raises FileNotFoundError."""
        ...

    async def size(self, name: str) -> int:
        """Bytes of the object. Raises FileNotFoundError."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the object; no error where it is gone."""
        ...

    async def list(self, directory: str) -> Mapping[str, int]:
        """Names below ``directory``, sorted, with their sizes; all pages. May lag behind puts and deletes."""
        ...

    def location(self, name: str) -> str | None:
        """The URL by which another host may read the object, or None where there is none."""
        ...
