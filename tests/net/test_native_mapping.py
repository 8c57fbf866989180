"""Values of ours come back from their messages as they went in, each field of them, known or not."""

from __future__ import annotations

from dataclasses import fields, replace
from uuid import UUID

import pytest

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import HoldInfo
from penstock.model.segments import SegmentId
from penstock.net.grpc import native_mapping as own
from penstock.ports.control.cuts import SegmentSpan
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.data.chunks import ChunkBlock, ChunkRange, Lease
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.space import DiskSpace, SegmentSpace

STREAM = StreamName("s", "t")
CUT = StreamCut(STREAM, {SegmentId(3): 4})


def again(item: object) -> object:
    """The value after it was a message, as bytes on a wire."""
    match item:
        case ImportedChunk():
            return own.imported_of(own.imported_message(item))
        case ImportGrant():
            return own.grant_of(item.segment, own.grant_message(item))
        case DiskSpace():
            return own.disk_of(own.disk_message(item))
        case SegmentSpan():
            return own.span_of(own.span_message(item))
        case SegmentInfo():
            return own.info_of(own.info_message(item))
        case SegmentSpace():
            return own.space_of(own.space_message(item))
        case SubscriberInfo():
            return own.subscriber_of(own.subscriber_message(item))
        case HoldInfo():
            return own.hold_of(own.hold_message(item))
        case ChunkRange():
            return own.chunk_of(own.chunk_message(item))
    raise AssertionError(item)


BLOCKS = (
    ChunkBlock(start_offset=10, end_offset=30, crc32c=0xFFFFFFFF, event_count=2, first_ms=100, last_ms=105),
    ChunkBlock(start_offset=30, end_offset=31, crc32c=1, event_count=0),
    ChunkBlock(start_offset=31, end_offset=40, crc32c=2, event_count=1, first_ms=90, last_ms=90),
)
VALUES = [
    ImportedChunk(name="c", size_bytes=1, event_count=2, index_crc32c=0xFFFFFFFF),
    ImportGrant(
        segment="s/t/0", prefix="p", location="/l", marker="m", appends=True, chunk_bytes=1 << 40, block_bytes=2
    ),
    DiskSpace(total_bytes=1, free_bytes=2, used_bytes=3, budget_bytes=4),
    SegmentSpan(segment=SegmentId(1 << 40), start=1, end=2, events=3),
    SegmentInfo(name="s/t/0", start_offset=1, length=2, sealed=True, last_modified_ms=3, kept_offset=1, event_count=4),
    SegmentSpace(
        name="s/t/0",
        live_bytes=1,
        tiered_bytes=2,
        pending_free_bytes=3,
        freed_bytes=4,
        kept_bytes=5,
        leased_bytes=6,
        leased_until_ms=7,
        partial_bytes=8,
        leases=(Lease(id=UUID(int=9), until_ms=7, holder="who"),),
    ),
    SubscriberInfo(
        name="s/g",
        generation=1,
        cut=CUT,
        updated_ms=2,
        lag_bytes=3,
        lag_events=4,
        lag_ms=5,
        held_bytes=6,
        holes=7,
        query="q",
    ),
    HoldInfo(id="h", scope="s", stream=STREAM, owner="o", reason="r", created_ms=1, until_ms=2, cut=CUT),
    ChunkRange(name="c", location="/l", start_offset=10, end_offset=40, blocks=BLOCKS),
]
IDS = [type(item).__name__ for item in VALUES]


@pytest.mark.parametrize("item", VALUES, ids=IDS)
def test_every_field_comes_back(item: object) -> None:
    assert again(item) == item


@pytest.mark.parametrize("item", VALUES, ids=IDS)
def test_what_is_not_known_comes_back_as_such(item: object) -> None:
    optional = [field.name for field in fields(item) if "None" in str(field.type)]
    for name in optional:
        missing = replace(item, **{name: None})
        assert again(missing) == missing
