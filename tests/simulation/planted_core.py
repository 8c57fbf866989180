"""Planted bugs of what is in memory: segments that were replaced while somebody waited, leases with two ways to their row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from penstock.codec.store import rows as records
from penstock.segmentstore.segment import Segment
from penstock.segmentstore.tiering.leases import Leases


def segments_in_use_leave_memory() -> Any:
    """Nothing pins a segment: reads, tiering, erasures and freeing use the object that they found first."""
    return patch.object(Segment, "pinned", lambda _: nullcontext())


def a_lease_is_released_behind_the_changes() -> Any:
    """A release deletes the row at once, and once more with the next checkpoint: a lease taken in between is lost."""

    async def take_durable(self: Leases, keys: Any) -> None:
        index = self._state.index
        rows = [(records.lease_key(index, *key), self._held[key].encoded()) for key in keys]
        await self._state.rows._store.commit(rows)

    async def release(self: Leases, lease: int) -> None:
        index = self._state.index
        keys = [key for key in self._held if key[0] == lease]
        if keys:
            await self._state.rows._store.commit([], [records.lease_key(index, *key) for key in keys])
            for key in keys:
                self._held.pop(key, None)
                self._state.rows.delete(records.lease_key(index, *key))
            self._ask_checkpoint()

    def put(self: Leases, key: Any, held: Any) -> None:
        self._held[key] = held

    return patch.multiple(Leases, durable=take_durable, release=release, _put=put)


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        segments_in_use_leave_memory,
        a_lease_is_released_behind_the_changes,
    )
}
