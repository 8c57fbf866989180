"""What tasks request from a store: the bytes of a segment in a plan, and which of them were erased since."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.model.errors import CorruptDataError, SegmentNotFoundError, UnavailableError, UnsupportedError
from penstock.ports.data.segments import READ_MAX_BYTES
from penstock.spark.connect import RETRY_S, Services


async def read_bytes(services: Services, name: str, offset: int, size: int) -> bytes:
    """At least one byte from ``offset`` on, at most ``size``.

    Raises UnavailableError (none came in ``RETRY_S``), CorruptDataError (the segment ends there), and what a read raises.
    """
    # The plan ends at durable data, so waiting is safe; a store that is recovering takes time.
    try:
        async with asyncio.timeout(RETRY_S):
            read = await services.segments.read(name, offset, min(size, READ_MAX_BYTES))
    except TimeoutError:
        raise UnavailableError("store returned no bytes where some must exist", segment=name, offset=offset) from None
    data = b"".join(read.parts)
    if not data:
        raise CorruptDataError("segment ends before the planned end", segment=name, offset=offset)
    return data


async def erased_ranges(services: Services, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
    """Erased ranges of ``start <= offset < end``, which a task skips."""
    try:
        return await services.segments.erased_ranges(name, start, end)
    except (SegmentNotFoundError, UnsupportedError):
        # Either the segment was deleted since, so the ranges are unknown. Or the store cannot erase: then a writer
        # wrote the zeros.
        return ()
