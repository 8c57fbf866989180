"""What several stores hold of one stream, where its segments are spread over them and one limit bounds them together."""

from __future__ import annotations

from typing import Protocol


class StreamCounts(Protocol):
    """The counts of one stream. Each store writes its own and reads the others'. No call waits."""

    def lock(self) -> bool:
        """Keep the other stores from deciding until ``unlock``. False: one of them is at it, try again later.

        Never held across an await. A store that dies lets go of it.
        """
        ...

    def unlock(self) -> None: ...

    def others(self) -> tuple[int, int]:
        """Bytes and events that the other stores hold together, as they said last: those that are away included."""
        ...

    def publish(self, size_bytes: int, events: int) -> None:
        """Tell the others what this store holds."""
        ...


class SharedCounts(Protocol):
    """Counts by stream. Whoever sets the limits says which streams share."""

    def of(self, stream: str) -> StreamCounts | None:
        """None: no other store holds segments of the stream, or the limit counts in this store alone."""
        ...
