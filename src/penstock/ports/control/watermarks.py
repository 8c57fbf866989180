"""Times that writers note, and what they say about a position of the stream."""

from __future__ import annotations

from typing import Protocol

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """What a reader at a position knows of the times of events; None: nothing yet.

    ``lower_ms``: every event that an active writer wrote before it noted this time has been read. ``upper_ms``: no event
    before the position is later, by what the writers noted. ``place``: where to look on for a later position.
    """

    lower_ms: int | None
    upper_ms: int | None
    place: int = 0


class Watermarks(Protocol):
    """Watermarks of a stream. Times are numbers that only writers and readers interpret: by convention milliseconds
    since the Unix epoch. All calls may raise ScopeNotFoundError and StreamNotFoundError.

    Source: docs/design/0043-watermarks.md.
    """

    async def note_time(
        self, stream: StreamName, writer: str, time_ms: int, *, position: StreamCut | None = None
    ) -> None:
        """State that all events that ``writer`` has written, and that are durable, have times up to ``time_ms``.

        ``position``: where the writer has written to; None: the tail. The watermark follows within the store's period.
        Can be repeated. Raises TimeGoesBackError, InvalidCutError (no cut of the stream, or before the position that the
        writer noted last), InvalidArgumentError (a name of no or more than 255 characters).
        """
        ...

    async def remove_writer(self, stream: StreamName, writer: str) -> None:
        """The writer notes nothing more, and no longer holds the watermark back. Does nothing for an unknown writer."""
        ...

    async def time_window(self, position: StreamCut, *, place: int = 0) -> TimeWindow:
        """What a reader at ``position`` knows. ``place``: from the answer for an earlier position of the same stream; it
        only saves work. Raises InvalidCutError."""
        ...
