"""Rows of chunks that are missing: nothing else shows it where all rows that are there are sound."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec import records
from penstock.core.erasure import Range, joined, without
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError
from penstock.segmentstore.metadata import MetadataRows


async def missing_ranges(rows: MetadataRows, container: int, uid: int) -> Sequence[Range]:
    """Bytes of a segment that no chunk holds although all of it is tiered, in order; half-open.

    Looks at what the last checkpoint has committed. A segment with bytes that are only in the log is passed over, since its
    rows do not say which they are; so is a table, and what cannot be read, which other checks report.
    """
    found = await _look(rows.committed(), container, uid)
    # A checkpoint may come between two reads. What is the same in two looks belongs together.
    while found:
        again = await _look(rows.committed(), container, uid)
        if again == found:
            break
        found = again
    return found


def missing_chunk(container: int, uid: int, segment: str, start: int, end: int) -> Damage:
    """What is reported of one of the ranges."""
    return Damage(
        kind=DamageKind.ROW,
        place=records.uid_key(records.TAG_CHUNK, container, uid).hex(),
        why="rows of chunks are missing: these bytes are tiered, and no row says in which chunk",
        container=container,
        segment=segment,
        start=start,
        end=end,
    )


async def _look(rows: MetadataRows, container: int, uid: int) -> Sequence[Range]:
    try:
        row = await rows.get(records.uid_key(records.TAG_SEGMENT, container, uid))
        if row is None or await rows.get(records.flushed_key(container, uid)) is not None:
            return ()
        segment = records.decode_segment(row)
        if segment.kind or segment.kept_offset >= segment.length:
            return ()
        bounds = records.range_of(records.uid_key(records.TAG_CHUNK, container, uid))
        starts = [
            (records.parse_number(key[-8:]), records.decode_chunk(value)) for key, value in await rows.scan_all(bounds)
        ]
    except CorruptDataError:
        return ()
    held = joined((start, start + chunk.length) for start, chunk in starts if chunk.length)
    return without([(segment.kept_offset, segment.length)], held)
