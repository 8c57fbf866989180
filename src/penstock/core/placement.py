"""Which container owns a segment."""

from __future__ import annotations

import re

from crc32c import crc32c

_CHILD = re.compile(r"#(?:transaction|transient)\.")


def primary_name(segment: str) -> str:
    """The segment itself, or the parent into which it is to be merged: both live in one container."""
    match = _CHILD.search(segment)
    return segment[: match.start()] if match else segment


def container_of(segment: str, containers: int) -> int:
    """Index of the owning container."""
    return int(crc32c(primary_name(segment).encode()) % containers)
