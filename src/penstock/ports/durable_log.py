"""Tier 1: a fenced log of frames."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NewType, Protocol

from penstock.model.errors import StorageFullError
from penstock.model.ledgers import LogWipe
from penstock.ports.files import Buffer

LogAddress = NewType("LogAddress", int)
"""Sequence number of a frame: 1 for the first of a log, strictly increasing, never reused."""


class DurableLog(Protocol):
    """Fenced log of frames, shared by the containers of one process.

    Guarantees. Appends become durable and resolve in call order. Once one fails, all later ones fail with
    ``ContainerOfflineError``: the log must be opened again. A frame is replayed whole or not at all. Every later
    opening replays acknowledged frames until they are truncated. Unacknowledged frames are replayed by every later
    opening or by none. Opening fences every earlier opening: it acknowledges nothing more.
    """

    @property
    def epoch(self) -> int:
        """Grows with every opening."""
        ...

    @property
    def last(self) -> LogAddress:
        """The address of the last durable frame, truncated or not; 0 for a new log. Known once ``replay`` has ended."""
        ...

    @property
    def max_frame_bytes(self) -> int:
        """Size of the largest frame that the log accepts."""
        ...

    async def append(self, parts: Sequence[Buffer], *, vital: bool = False) -> LogAddress:
        """Append one frame made of the parts; return once it is durable (``fdatasync``).

        Calls of one pass of the event loop share one write and one sync. The parts may be reused once this returns.
        ``vital``: the frame leads to freed space, and may use room that is reserved for that on a full disk. Cancelled:
        the frame may or may not become durable. Raises: StorageFullError (nothing written, the log goes on),
        ContainerOfflineError, InvalidArgumentError (frame over the limit).
        """
        ...

    def append_in_place(self, frames: Sequence[Sequence[Buffer]]) -> Sequence[LogAddress] | None:
        """As ``append`` for each frame, without an await: they are durable when this returns, with one write and one
        sync. None: nothing was done, because the log is busy, needs another file, or its disk is slow. Raises as
        ``append``."""
        ...

    def refuse_waits(self, error: StorageFullError | None) -> None:
        """While ``error`` is set, an append that would wait for a truncation raises StorageFullError: no truncation
        will come, because the log's content finds no room elsewhere. None: appends wait again. A log without a limit
        ignores it."""
        ...

    async def truncate(self, upto: LogAddress) -> None:
        """Drop the frames up to and including ``upto``; whole files are recycled. Never touches later frames."""
        ...

    async def begin_wipe(self) -> LogAddress:
        """From now on, frames go to a new file, and recycled files are overwritten. Returns the last address before
        that. Raises ContainerOfflineError, StorageFullError, OSError, UnsupportedError as ``wipes_from_ms``."""
        ...

    async def end_wipe(self) -> LogWipe | None:
        """What was done once nobody can read bytes of frames up to the address that ``begin_wipe`` returned: no file,
        including spare ones, holds them, or the keys that decrypt them are destroyed.

        None: some of them are not truncated yet, or nothing was appended since. Recycled files are still overwritten;
        call again. Raises as ``begin_wipe``.
        """
        ...

    async def wipes_from_ms(self) -> int:
        """Bytes that were appended before this wall-clock time, in milliseconds since the Unix epoch, may stay readable
        whatever is wiped; 0: there are none.

        Raises UnsupportedError, with the reason: the log cannot be wiped. UnavailableError: it still has such bytes, which a
        wipe drops, or the place of its keys does not answer.
        """
        ...

    def replay(self) -> AsyncIterator[tuple[LogAddress, bytes]]:
        """All frames not truncated, in order. Called once, before the first append.

        A torn tail is trimmed. Raises CorruptDataError if a frame below the durable mark is damaged: nothing was
        deleted.
        """
        ...

    async def close(self) -> None:
        """Wait for appends in flight, then close the files."""
        ...
