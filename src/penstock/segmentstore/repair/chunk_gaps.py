"""Find missing rows of chunks. No other check finds them if all remaining rows are sound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.codec.store import rows as records
from penstock.core.segments.erasure import Range, joined, without
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError
from penstock.segmentstore.metadata import MetadataRows

_PAGE = 1000  # rows of one scan, which bounds the memory of a page


async def missing_ranges(rows: MetadataRows, container: int, uid: int) -> Sequence[Range]:
    """Bytes of a segment that no chunk holds although all of it is tiered, in order; half-open.

    Reads what the last checkpoint has committed. Skips a segment with bytes that are only in the log, because its rows do
    not show which they are. Also skips tables, and rows that cannot be read, which other checks report.
    """
    found = await _look(rows.committed(), container, uid)
    # A checkpoint may come between two reads. If two passes agree, their rows belong to one checkpoint.
    while found:
        again = await _look(rows.committed(), container, uid)
        if again == found:
            break
        found = again
    return found


async def segments_with_gaps(rows: MetadataRows, container: int) -> list[int]:
    """Segments with ``missing_ranges``, in order of their ids. Reads the rows of all chunks and segments in pages."""
    held: dict[int, list[Range]] = {}
    damaged: list[bytes] = []
    committed = rows.committed()
    async for key, value in _pages(committed, records.prefix(records.TAG_CHUNK, container), damaged):
        chunk, start = records.decode_chunk(value), records.parse_number(key[-8:])
        ranges = held.setdefault(records.parse_number(key[3:11]), [])
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], start + chunk.length)
        elif chunk.length:
            ranges.append((start, start + chunk.length))
    doubtful: list[int] = []
    async for key, value in _pages(committed, records.prefix(records.TAG_SEGMENT, container), damaged):
        uid, segment = records.parse_number(key[3:11]), records.decode_segment(value)
        if not segment.kind and without([(segment.kept_offset, segment.length)], held.get(uid, [])):
            doubtful.append(uid)
    # Most of these have bytes that only the log holds.
    return [uid for uid in doubtful if await missing_ranges(rows, container, uid)]


async def _pages(rows: MetadataRows, prefix: bytes, damaged: list[bytes]) -> AsyncIterator[tuple[bytes, bytes]]:
    start, end = records.range_of(prefix)
    while True:
        page = await rows.scan((start, end), limit=_PAGE, damaged=damaged)
        for item in page:
            yield item
        if len(page) < _PAGE:
            return
        start = page[-1][0] + b"\0"


def missing_chunk(container: int, uid: int, segment: str, start: int, end: int) -> Damage:
    """The report of one missing range."""
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
