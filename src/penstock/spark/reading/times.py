"""When events were appended, as far as the store knows: the time of a block.


The store keeps the time of the first and the last append of each block of tier 2, and of a segment's last change. What is not
tiered lies between the last block and that change. So an event's time is known to a block: seconds, where blocks are written
for age, and less where much is written. Source: docs/spark.md, "Append time".
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ports.segment_service import ChunkRange
from penstock.spark.reading.plan import Times


def times_of(start: int, end: int, chunks: Sequence[ChunkRange], modified_ms: int) -> Times:
    """Append times of ``start <= offset < end``, from the chunks that hold some of it, in order.

    The time of an event is that of the last append of its block: it came then, or up to a block earlier. What lies in no
    chunk came at ``modified_ms`` at the latest.
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
