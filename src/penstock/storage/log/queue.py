"""Appends to a local log that wait to be written: a bounded queue, and callers that wait outside because it is full."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock.codec.store.wal import frame_bytes
from penstock.model.errors import PenstockError
from penstock.storage.log.entries import Entry


class AppendQueue:
    """Waiting appends in call order, at most ``limit_bytes`` of them; an empty queue accepts one entry of any size."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._outside: deque[asyncio.Future[None]] = deque()
        self.over = False
        """Nothing will be written any more: nobody waits for room."""

    @property
    def first(self) -> Entry | None:
        return self._entries[0] if self._entries else None

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries inside the queue."""
        return self._bytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, inside or outside."""
        return not self._entries and not self._outside

    def is_full(self, size_bytes: int) -> bool:
        """Whether a caller with ``size_bytes`` must wait outside."""
        return bool(self._outside) or self._lacks_room(size_bytes)

    def _lacks_room(self, size_bytes: int) -> bool:
        return bool(self._bytes) and self._bytes + size_bytes > self._limit_bytes

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._bytes += entry.payload_bytes

    async def room(self, size_bytes: int) -> None:
        """Return when it is the caller's turn and there is room, or when the queue was refused."""
        place = asyncio.get_running_loop().create_future()
        self._outside.append(place)
        try:
            while self._outside[0] is not place or self._lacks_room(size_bytes):
                if self.over:
                    return
                await place
                index = self._outside.index(place)
                place = self._outside[index] = asyncio.get_running_loop().create_future()
        finally:
            self._outside.remove(place)
            self.wake_outside()

    def wake_outside(self) -> None:
        """Let the first caller outside check again."""
        if self._outside and not self._outside[0].done():
            self._outside[0].set_result(None)

    def take(self, room_bytes: int, flight: asyncio.Future[None]) -> tuple[Sequence[Entry], int]:
        """Remove entries whose frames fit into the room, in order, and return the bytes they take. Their parts are
        being read until ``flight`` is done. Entries of cancelled callers are skipped."""
        group: list[Entry] = []
        size = 0
        while self._entries:
            entry = self._entries[0]
            needed = frame_bytes(entry.payload_bytes)
            if size + needed > room_bytes:
                break
            self._remove()
            if not entry.done.done():
                entry.flight = flight
                group.append(entry)
                size += needed
        return group, size

    def drop_cancelled(self) -> None:
        """Remove entries of cancelled callers from the front."""
        while self._entries and self._entries[0].done.done():
            self._remove()

    def refuse(self, error: Callable[[], PenstockError]) -> None:
        """Fail all entries inside, each with its own error."""
        while self._entries:
            entry = self._remove()
            if not entry.done.done():
                entry.done.set_exception(error())
        self.wake_outside()

    def _remove(self) -> Entry:
        entry = self._entries.popleft()
        self._bytes -= entry.payload_bytes
        return entry
