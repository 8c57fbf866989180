"""Which container owns a segment."""

from __future__ import annotations

import re

from crc32c import crc32c

_VARIANT = re.compile(r"\.?#(?:epoch|transaction|transient)\.")


def primary_name(segment: str) -> str:
    """The name that a segment shares with all segments that may be merged into it, so that one container owns them all.

    That is its name without the epoch: a transaction's segment is named after a segment of the epoch in which the
    transaction began, and may be merged into the duplicate of that segment, of the same number, in a later epoch.
    """
    match = _VARIANT.search(segment)
    return segment[: match.start()] if match else segment


def is_transient_name(segment: str) -> bool:
    """Whether the segment holds one large event, to be merged into its parent."""
    return "#transient." in segment


def is_transaction_name(segment: str) -> bool:
    """Whether the segment holds the events of a transaction, to be merged into its parent."""
    return "#transaction." in segment


def parent_name(segment: str) -> str:
    """What a transaction's or transient segment was made to be merged into; any other segment is its own parent."""
    for mark in ("#transaction.", "#transient."):
        segment = segment.partition(mark)[0]
    return segment


def container_of(segment: str, containers: int) -> int:
    """Index of the owning container."""
    return int(crc32c(primary_name(segment).encode()) % containers)
