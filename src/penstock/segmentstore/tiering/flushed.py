"""What of a segment would be left without the log: rows that tell it, for whoever rebuilds a store from tier 2.

A segment's own row counts bytes and events, and its writers' rows numbers, that may be in the log alone. Given back without
them, a writer that asks for its last number would believe stored what is lost. So for as long as a segment has bytes not
tiered, rows say how many events those are, and what each of their writers' numbers was before them.
"""

from __future__ import annotations

from penstock.codec.store import rows as records
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.segment import Segment


def write_flushed(rows: MetadataRows, index: int, segment: Segment) -> None:
    """Put the rows as they are at this instant, or delete them where all is tiered. ``index``: the container's number."""
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
