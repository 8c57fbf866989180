"""What can check its own checksums, while it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from penstock.model.damage import Damage

SCRUB_MAX_BYTES = 8 << 20
"""Most that one page of a scrub reads: some ten milliseconds of a disk and of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPage:
    """A step of a scrub. ``cursor`` leads to the next one; None: this was the last.

    ``checked`` counts what was looked at: ``bytes``, ``rows``, ``frames``, ``objects``, ``segments``, ``chunks``, ``blocks``.
    """

    cursor: str | None
    checked: Mapping[str, int] = field(default_factory=dict)
    damage: Sequence[Damage] = ()


@runtime_checkable
class Scrubbable(Protocol):
    """A store whose every checksum can be verified while it serves. Nothing is changed by it."""

    async def scrub(self, cursor: str | None, max_bytes: int) -> ScrubPage:
        """Verify some more, from where ``cursor`` leads; None: from the beginning.

        A cursor outlives restarts of the store. What retention takes away meanwhile is no damage.
        Raises: InvalidArgumentError (no cursor of ours), UnavailableError (tier 2 is away: try again).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCheck:
    """Rows that were verified.

    ``next_key``: where the next ones begin, None at the end. ``damaged``: keys of rows that fail.
    """

    next_key: bytes | None
    rows: int
    size_bytes: int
    damaged: Sequence[bytes]


@runtime_checkable
class CheckedRows(Protocol):
    """A key-value store that knows checksums."""

    async def check_rows(self, start: bytes, *, limit: int) -> RowCheck:
        """Verify up to ``limit`` rows from ``start`` on. Raises CorruptDataError where they cannot be read at all."""
        ...

    async def check_pages(self) -> Sequence[str]:
        """What is wrong with the structure below the rows, in words. Reads all of it, in a thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCheck:
    """Log frames that were verified. ``upto``: the last of them; None: there are no more."""

    upto: int | None
    frames: int
    size_bytes: int
    damage: Sequence[Damage]


@runtime_checkable
class CheckedLog(Protocol):
    """A log that can read again what it still keeps."""

    async def check_frames(self, after: int) -> FrameCheck:
        """Verify frames behind sequence ``after``: those of one file, as far as they were durable when this was called."""
        ...
