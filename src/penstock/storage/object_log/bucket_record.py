"""The record of a log, as an object that is replaced only if it still is what was read."""

from __future__ import annotations

from typing import Protocol

from penstock.model.errors import (
    ConditionFailedError,
    CorruptDataError,
    NotConnectedError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
)


class TaggedObjects(Protocol):
    """Objects with tags: a tag changes with the bytes of its object."""

    async def create_new(self, name: str, data: bytes) -> None:
        """As ``ports.objects.ExclusiveObjects``."""
        ...

    async def read_tagged(self, name: str) -> tuple[bytes, str]:
        """Bytes and tag. Raises FileNotFoundError, UnavailableError."""
        ...

    async def replace(self, name: str, data: bytes, *, tag: str) -> str:
        """Write ``data`` if the object still has this tag. Returns the new one. Raises ConditionFailedError,
        FileNotFoundError, StorageFullError, UnavailableError (it may happen later)."""
        ...


class BucketRecord:
    """Implements ``ports.cluster.nodes.VersionedNodes`` for one node at a time: its path is the name of the object.

    The first line of the object is its version. So two versions never have the same bytes, nor the same tag.
    """

    def __init__(self, objects: TaggedObjects) -> None:
        self._objects = objects
        self._tags: dict[tuple[str, int], str] = {}

    async def read(self, path: str) -> tuple[bytes, int]:
        """As the port says."""
        try:
            stored, tag = await self._objects.read_tagged(path)
        except FileNotFoundError as error:
            raise NotFoundError("node does not exist", path=path) from error
        except UnavailableError as error:
            raise _unknown(path, error) from error
        number, _, data = stored.partition(b"\n")
        if not number.isdigit():
            raise CorruptDataError("record of a log cannot be read", object=path)
        self._tags = {(path, int(number)): tag}
        return data, int(number)

    async def create(self, path: str, data: bytes) -> None:
        """As the port says."""
        try:
            await self._objects.create_new(path, b"0\n" + data)
        except (UnavailableError, StorageFullError) as error:
            raise _unknown(path, error) from error

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        """As the port says."""
        if (path, version) not in self._tags and (await self.read(path))[1] != version:
            raise ConditionFailedError("node has another version", path=path)
        try:
            tag = await self._objects.replace(path, b"%d\n" % (version + 1) + data, tag=self._tags[path, version])
        except FileNotFoundError as error:
            raise NotFoundError("node does not exist", path=path) from error
        except (UnavailableError, StorageFullError) as error:
            raise _unknown(path, error) from error
        self._tags = {(path, version + 1): tag} if tag else {}
        return version + 1


def _unknown(path: str, error: Exception) -> NotConnectedError:
    return NotConnectedError("tier 2 did not answer; the change may have happened", path=path, cause=str(error))
