"""An object store: whole objects under names, written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Objects(Protocol):
    """One prefix of a bucket, used only by us. Names are relative, with ``/``.

    An object appears whole or not at all. Nothing depends on conditional writes: only unique names keep owners apart. The
    bytes of a failed ``put`` may still arrive later, so its name must never be used for other bytes. Every call may
    raise UnavailableError: it may or may not have happened.
    """

    async def put(self, name: str, data: bytes) -> None:
        """Write ``data`` as the object. When this returns it is durable and readable, and its size was verified.

        Repeating it with the same bytes is harmless. Raises: StorageFullError; CorruptDataError (the stored object
        differs from ``data``).
        """
        ...

    async def create(self, name: str, data: bytes) -> None:
        """As ``put``, only if no object has the name. One process at a time uses a name. Object stores that ignore the
        condition replace the object. A crash may leave a part of a small file.

        Raises: AlreadyExistsError (an earlier attempt of this call may have made it), StorageFullError.
        """
        ...

    async def overwrite(self, name: str, data: bytes) -> None:
        """Replace the bytes of an object by as many others, so that the storage need not keep the earlier ones: a file is
        overwritten in place. Durable when it returns. Raises FileNotFoundError."""
        ...

    async def keeps_versions(self, name: str) -> bool:
        """Whether the storage is known to keep the object's bytes after it is overwritten or deleted. Raises
        FileNotFoundError."""
        ...

    async def read(self, name: str, start: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``start`` on; shorter only at the end. Raises FileNotFoundError."""
        ...

    async def size(self, name: str) -> int:
        """Bytes of the object. Raises FileNotFoundError."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the object; no error if it does not exist."""
        ...

    async def list(self, directory: str) -> Mapping[str, int]:
        """Names below ``directory``, sorted, with their sizes; all pages. May lag behind puts and deletes."""
        ...

    def location(self, name: str) -> str | None:
        """The URL by which another host may read the object, or None if there is none."""
        ...


class ExclusiveObjects(Protocol):
    """An object store that decides which of several writers makes an object: what a log needs of it.

    An object appears whole or not at all, and never changes. Reads see every object whose ``create_new`` has returned. A
    call that raises UnavailableError, or that is cancelled, may take effect at any later time.
    """

    async def create_new(self, name: str, data: bytes) -> None:
        """Write ``data`` as the object if no object has the name. Of all calls with one name, one succeeds.

        Raises: AlreadyExistsError (perhaps by an earlier attempt of ours: compare the bytes), StorageFullError,
        UnavailableError, UnsupportedError (the storage ignores the condition).
        """
        ...

    async def read_whole(self, name: str) -> bytes:
        """All bytes of the object. Raises FileNotFoundError, UnavailableError."""
        ...

    async def read(self, name: str, start: int, length: int) -> bytes:
        """As ``Objects.read``."""
        ...

    async def delete(self, name: str) -> None:
        """As ``Objects.delete``."""
        ...

    async def list(self, directory: str) -> Mapping[str, int]:
        """As ``Objects.list``."""
        ...
