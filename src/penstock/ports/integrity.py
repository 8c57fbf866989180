"""Verification of checksums while a store serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from penstock.model.damage import Damage
from penstock.model.values.dataclass import dataclass

SCRUB_MAX_BYTES = 8 << 20
"""Most that one page of a scrub reads: some ten milliseconds of a disk and of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubPage:
    """A step of a scrub. ``cursor`` identifies the next one; None: this was the last.

    ``checked`` counts what was verified: ``bytes``, ``rows``, ``frames``, ``objects``, ``segments``, ``chunks``,
    ``blocks``.
    """

    cursor: str | None
    checked: Mapping[str, int] = field(default_factory=dict)
    damage: Sequence[Damage] = ()


@runtime_checkable
class Scrubbable(Protocol):
    """A store that can verify all its checksums while it serves. Changes nothing."""

    async def scrub(self, cursor: str | None, max_bytes: int) -> ScrubPage:
        """Verify the next page, from ``cursor`` on; None: from the beginning.

        A cursor stays valid across restarts of the store. Data that retention deletes meanwhile is not damage. Raises:
        InvalidArgumentError (an invalid cursor), UnavailableError (tier 2 is unavailable: try again).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCheck:
    """Rows that were verified.

    ``next_key``: the start of the next page, None at the end. ``damaged``: keys of rows that fail.
    """

    next_key: bytes | None
    rows: int
    size_bytes: int
    damaged: Sequence[bytes]


@runtime_checkable
class CheckedRows(Protocol):
    """A key-value store with checksums."""

    async def check_rows(self, start: bytes, *, limit: int) -> RowCheck:
        """Verify up to ``limit`` rows from ``start`` on. Raises CorruptDataError if they cannot be read at all."""
        ...

    async def check_pages(self) -> Sequence[str]:
        """Descriptions of all structural problems below the rows. Reads the whole file in a thread."""
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
    """A log that can verify the frames it keeps."""

    async def check_frames(self, after: int) -> FrameCheck:
        """Verify frames behind sequence ``after``: those of one file that were durable when this was called."""
        ...
