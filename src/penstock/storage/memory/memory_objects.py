"""An object store in memory: for simulation and tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from penstock.model.errors import AlreadyExistsError


class MemoryObjects:
    """Implements ``ports.objects.Objects``.

    Args:
        before: Awaited before each request takes effect, with its verb and name; its errors reach the caller.
        after: Awaited after each request has taken effect: its errors simulate a lost answer.
    """

    def __init__(
        self,
        *,
        before: Callable[[str, str], Awaitable[None]] | None = None,
        after: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._before = before
        self._after = after
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes) -> None:
        await self._enter("put", name)
        self._objects[name] = data
        await self._leave("put", name)

    async def create(self, name: str, data: bytes) -> None:
        await self._enter("create", name)
        if name in self._objects:
            raise AlreadyExistsError("object exists", object=name)
        self._objects[name] = data
        await self._leave("create", name)

    async def overwrite(self, name: str, data: bytes) -> None:
        await self._enter("overwrite", name)
        self._find(name)
        self._objects[name] = data
        await self._leave("overwrite", name)

    async def keeps_versions(self, name: str) -> bool:
        await self._enter("keeps_versions", name)
        self._find(name)
        await self._leave("keeps_versions", name)
        return False

    async def read(self, name: str, start: int, length: int) -> bytes:
        await self._enter("read", name)
        data = self._find(name)[start : start + length]
        await self._leave("read", name)
        return data

    async def size(self, name: str) -> int:
        await self._enter("size", name)
        size = len(self._find(name))
        await self._leave("size", name)
        return size

    async def delete(self, name: str) -> None:
        await self._enter("delete", name)
        self._objects.pop(name, None)
        await self._leave("delete", name)

    async def list(self, directory: str) -> Mapping[str, int]:
        await self._enter("list", directory)
        found = {name: len(data) for name, data in sorted(self._objects.items()) if name.startswith(f"{directory}/")}
        await self._leave("list", directory)
        return found

    def location(self, name: str) -> str | None:
        return None

    async def _enter(self, verb: str, name: str) -> None:
        if self._before is not None:
            await self._before(verb, name)

    async def _leave(self, verb: str, name: str) -> None:
        if self._after is not None:
            await self._after(verb, name)

    def _find(self, name: str) -> bytes:
        data = self._objects.get(name)
        if data is None:
            raise FileNotFoundError(f"no such object: {name}")
        return data
