"""Rows that record what would remain of a segment without the log, for a rebuild of the store from tier 2.

The row of a segment counts bytes and events that may be only in the log, and so do the numbers in its writers' rows. If
they were restored unchanged, a writer that requests its last number would consider lost events stored. So while a
segment has untiered bytes, these rows record how many events those are, and each writer's number before them.
"""

from __future__ import annotations

from penstock.codec.store import rows as records
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.segment import Segment


def write_flushed(rows: MetadataRows, index: int, segment: Segment) -> None:
    """Put the rows for the current state, or delete them if everything is tiered. ``index``: the container's number."""
    uid = segment.uid
    if segment.marks is False and not segment.cache.untiered:
        return
    if segment.marks is None or not segment.cache.untiered:
        rows.delete_range(records.range_of(records.flushed_key(index, uid)))
        segment.marks = False
        if not segment.cache.untiered:
            return
    events = sum(entry.events for entry in segment.cache.untiered)
    rows.put(records.flushed_key(index, uid), records.encode_flushed(events))
    before = segment.marks if isinstance(segment.marks, dict) else {}
    now = segment.cache.waiting_writers()
    for writer, number in now.items():
        if before.get(writer) != number:
            rows.put(records.flushed_key(index, uid, writer), records.encode_int(number))
    for writer in before:
        if writer not in now:
            rows.delete(records.flushed_key(index, uid, writer))
    segment.marks = dict(now)
