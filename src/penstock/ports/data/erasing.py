"""Erasure: ranges of bytes become zeros for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.ledgers import LogWipe
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedChunk:
    """The effect of an erasure on a chunk: bytes of the segment with ``start_offset <= offset < end_offset``.

    ``before`` and ``after`` are the SHA-256 of those bytes, ``kept`` is that of the same bytes without the ranges of
    this erasure, and does not change. ``blanked_bytes``: those that it was the first to erase. ``name_before``: the
    chunk that was replaced.
    """

    name_before: str
    start_offset: int
    end_offset: int
    blanked_bytes: int
    before: bytes
    after: bytes
    kept: bytes


class Erasing(Protocol):
    """Blanks ranges of bytes, and reports which are blank."""

    async def event_ranges(self, name: str, offsets: Sequence[int]) -> Sequence[tuple[int, int]]:
        """The byte ranges of the payloads of the events that begin at the offsets: half-open, in order. Events without
        payload and repeated offsets give no range. Tiers the current content of the segment.

        Raises InvalidArgumentError (no event begins there), TruncatedError; UnsupportedError, with the reason: copies of
        these events, or of all, would stay readable in the log.
        """
        ...

    async def erase(self, name: str, ranges: Sequence[tuple[int, int]], *, erasure: str) -> Sequence[ErasedChunk]:
        """Blank ranges of bytes permanently: all later reads return zeros at the same offsets.

        When it returns, tier 2 and the caches hold none of the bytes: the old chunks were overwritten if possible, and
        deleted even if leased. The log may hold them until ``wipe_log``. Chunks of truncated data are wiped. A repeat
        with the same ``erasure`` changes nothing and returns the same. Raises SegmentNotFoundError (the segment was
        deleted, and none of its chunks is on disk, leased or not), InvalidArgumentError (ranges overlap or end after
        the segment), CorruptDataError, UnavailableError, OSError. If cancelled or failed, some ranges may be blank;
        repeat the call.
        """
        ...

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        """The erased parts of ``start <= offset < end``: half-open, in order. Adjacent ranges are merged."""
        ...

    async def wipe_log(self) -> LogWipe:
        """Return once nobody can read a byte from any log that was erased before the call: its files, spare ones included,
        were overwritten, or the keys that encrypted it were destroyed. Tiers and checkpoints everything.

        Raises UnsupportedError as ``event_ranges``, and what the storage raises.
        """
        ...
