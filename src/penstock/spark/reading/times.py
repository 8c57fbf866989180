"""When events were appended, exact to one block.

The store keeps the time of the first and last append of each block in tier 2, and of the last change of a segment. Events
that are not tiered lie between the last block and that change. So the time of an event is exact to one block: some seconds
if little is written, less if much is written. Source: docs/reference/spark.md, "Append time".
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ports.data.chunks import ChunkRange
from penstock.spark.reading.plan import Times


def times_of(start: int, end: int, chunks: Sequence[ChunkRange], modified_ms: int) -> Times:
    """Append times for ``start <= offset < end``, from the chunks that hold some of the range, in order.

    The time of an event is that of the last append of its block; it was appended then or up to one block earlier. Events
    in no chunk were appended at ``modified_ms`` or earlier.
    """
    found: list[tuple[int, int | None]] = []
    at = start
    for block in (block for chunk in chunks for block in chunk.blocks):
        if block.end_offset <= at or block.start_offset >= end:
            continue
        if block.start_offset > at:
            found.append((block.start_offset, modified_ms))
        at = min(end, block.end_offset)
        found.append((at, block.last_ms))
    if at < end:
        found.append((end, modified_ms))
    return tuple(found)
