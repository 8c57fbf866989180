"""Counts of one stream whose segments are spread over several stores under one common limit."""

from __future__ import annotations

from typing import Protocol


class StreamCounts(Protocol):
    """The counts of one stream. Each store writes its own and reads the others'. No call waits."""

    def lock(self) -> bool:
        """Keep the other stores from deciding until ``unlock``. False: another store holds the lock, try again later.

        Never held across an await. Released if the store dies.
        """
        ...

    def unlock(self) -> None: ...

    def others(self) -> tuple[int, int]:
        """Total bytes and events of the other stores as last published, including stores that are down."""
        ...

    def publish(self, size_bytes: int, events: int) -> None:
        """Publish the counts of this store."""
        ...


class SharedCounts(Protocol):
    """Counts by stream. The code that sets limits decides which streams share counts."""

    def of(self, stream: str) -> StreamCounts | None:
        """None: no other store holds segments of the stream, or the limit applies to this store only."""
        ...
