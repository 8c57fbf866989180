"""A store whose tier 2 is a bucket in memory."""

from __future__ import annotations

import asyncio

from store_world import World

from penstock.model.errors import UnavailableError
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.memory.memory_objects import MemoryObjects


class ObjectWorld(World):
    """A world whose chunks are objects. ``puts`` counts the uploads that took effect, by name."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.puts: dict[str, int] = {}
        self.deleted: list[str] = []
        self.fail = lambda verb, name, applied: False
        self.objects = MemoryObjects(before=self._before, after=self._after)
        self.chunks = ObjectChunks(self.objects)

    async def _before(self, verb: str, name: str) -> None:
        await asyncio.sleep(0)
        if self.fail(verb, name, False):
            raise UnavailableError("refused", object=name)

    async def _after(self, verb: str, name: str) -> None:
        if verb == "put":
            self.puts[name] = self.puts.get(name, 0) + 1
        if verb == "delete":
            self.deleted.append(name)
        if self.fail(verb, name, True):
            raise UnavailableError("no answer", object=name)

    async def crash(self):
        await self.store.close(checkpoint=False)
        self.chunks = ObjectChunks(self.objects)
        return await self.open()

    async def data_objects(self) -> dict[str, int]:
        found = await self.objects.list("chunks")
        return {name: size for name, size in found.items() if not name.endswith(".idx")}
