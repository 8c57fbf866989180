"""A key-value store in memory in which chosen values are damaged: they fail their checksum, as after a flipped bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.model.errors import DamagedRowError
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue


class RottenKeyValue(MemoryKeyValue):
    """``rotten`` holds the keys of damaged rows. A put or a delete makes a row sound again."""

    def __init__(self) -> None:
        super().__init__()
        self.rotten: dict[bytes, None] = {}

    def all_keys(self) -> Sequence[bytes]:
        """All keys, in order."""
        return list(self._keys)

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        for key in keys:
            self._check(key)
        return await super().get_many(keys)

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> Sequence[tuple[bytes, bytes]]:
        found = await super().scan(start, end, limit=limit, reverse=reverse)
        for key, _ in found:
            self._check(key)
        return found

    async def commit(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        *,
        delete_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        puts, deletes, delete_ranges = list(puts), list(deletes), list(delete_ranges)
        await super().commit(puts, deletes, delete_ranges=delete_ranges)
        for key in [*(key for key, _ in puts), *deletes]:
            self.rotten.pop(key, None)
        for key in list(self.rotten):
            if any(start <= key < end for start, end in delete_ranges):
                del self.rotten[key]

    def _check(self, key: bytes) -> None:
        if key in self.rotten:
            raise DamagedRowError("value fails its checksum", key=key.hex())
