"""Appends to a local log that wait to be written: a bounded queue, and the callers outside who found it full."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock.codec.store.wal import frame_bytes
from penstock.model.errors import PenstockError
from penstock.storage.log.entries import Entry


class AppendQueue:
    """What waits, in call order, at most ``limit_bytes`` of it; but one entry of any size always finds room."""

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
        """Of what waits inside."""
        return self._bytes

    @property
    def rests(self) -> bool:
        """Whether nothing waits, inside or outside."""
        return not self._entries and not self._outside

    def is_full(self, size_bytes: int) -> bool:
        """Whether a caller with so much must wait outside."""
        return bool(self._outside) or self._lacks(size_bytes)

    def _lacks(self, size_bytes: int) -> bool:
        return bool(self._bytes) and self._bytes + size_bytes > self._limit_bytes

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._bytes += entry.payload_bytes

    async def room(self, size_bytes: int) -> None:
        """Return when it is the caller's turn and there is room, or when it is over."""
        place = asyncio.get_running_loop().create_future()
        self._outside.append(place)
        try:
            while self._outside[0] is not place or self._lacks(size_bytes):
                if self.over:
                    return
                await place
                index = self._outside.index(place)
                place = self._outside[index] = asyncio.get_running_loop().create_future()
        finally:
            self._outside.remove(place)
            self.let_in()

    def let_in(self) -> None:
        """Let the first of those outside look again."""
        if self._outside and not self._outside[0].done():
            self._outside[0].set_result(None)

    def take(self, room_bytes: int, flight: asyncio.Future[None]) -> tuple[Sequence[Entry], int]:
        """Remove those whose frames fit into the room, one after the other, and say what these take. Until ``flight`` is done
        their parts are being read. Those whose callers went away are left out."""
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
        """Remove the first ones whose callers went away."""
        while self._entries and self._entries[0].done.done():
            self._remove()

    def refuse(self, error: Callable[[], PenstockError]) -> None:
        """Fail all that wait inside, each with an error of its own."""
        while self._entries:
            entry = self._remove()
            if not entry.done.done():
                entry.done.set_exception(error())
        self.let_in()

    def _remove(self) -> Entry:
        entry = self._entries.popleft()
        self._bytes -= entry.payload_bytes
        return entry
