"""Segments whose row or name row is missing: all rows that are left are sound, so that no checksum shows the loss."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from penstock.codec import records
from penstock.model.damage import Damage, DamageKind
from penstock.segmentstore.metadata import MetadataRows

_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """Names of segments by their ids. ``segments``: only the name row is left. ``names``: only the segment row is left."""

    segments: Mapping[int, str] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


async def unmatched(rows: MetadataRows, container: int) -> Unmatched:
    """Compare the name rows of a container with its segment rows. Damaged rows count as present.

    Reads both kinds in pages. Where they match, this takes constant memory.
    """
    if await _sum_of_names(rows, container) == await _sum_of_segments(rows, container):
        return Unmatched()
    named: dict[int, str] = {}
    async for key, value in _pages(rows, records.prefix(records.TAG_NAME, container), []):
        named[records.parse_number(value)] = key[3:].decode()
    doubtful = dict(named)
    damaged: list[bytes] = []
    async for key, value in _pages(rows, records.prefix(records.TAG_SEGMENT, container), damaged):
        uid = records.parse_number(key[3:11])
        if uid in named:
            del doubtful[uid]
        else:
            doubtful[uid] = records.decode_segment(value).name
    for key in damaged:
        doubtful.pop(records.parse_number(key[3:11]), None)
    segments: dict[int, str] = {}
    names: dict[int, str] = {}
    for uid, name in doubtful.items():
        # Both rows as of one instant: a segment may have been created or deleted between two pages.
        keys = [records.name_key(container, name), records.uid_key(records.TAG_SEGMENT, container, uid)]
        rotten: list[bytes] = []
        name_row, segment_row = await rows.get_many(keys, damaged=rotten)
        if rotten:
            continue
        if name_row is not None and records.parse_number(name_row) == uid and segment_row is None:
            segments[uid] = name
        if name_row is None and segment_row is not None:
            names[uid] = name
    return Unmatched(segments=segments, names=names)


def missing_segment(container: int, uid: int, name: str) -> Damage:
    """What is reported of a segment whose row is missing."""
    place = records.uid_key(records.TAG_SEGMENT, container, uid).hex()
    why = "row of the segment is missing: its name leads to nothing"
    return Damage(kind=DamageKind.ROW, place=place, why=why, container=container, segment=name)


def missing_name(container: int, name: str) -> Damage:
    """What is reported of a segment whose name row is missing."""
    place = records.name_key(container, name).hex()
    why = "the segment is not found by its name"
    return Damage(kind=DamageKind.ROW, place=place, why=why, container=container, segment=name)


async def _sum_of_names(rows: MetadataRows, container: int) -> tuple[int, int]:
    """The count of the rows, and a sum over their ids."""
    count = total = 0
    async for _, value in _pages(rows, records.prefix(records.TAG_NAME, container), []):
        count, total = count + 1, total + _spread(records.parse_number(value))
    return count, total


async def _sum_of_segments(rows: MetadataRows, container: int) -> tuple[int, int]:
    count = total = 0
    damaged: list[bytes] = []
    async for key, _ in _pages(rows, records.prefix(records.TAG_SEGMENT, container), damaged):
        count, total = count + 1, total + _spread(records.parse_number(key[3:11]))
    for key in damaged:
        count, total = count + 1, total + _spread(records.parse_number(key[3:11]))
    return count, total


def _spread(uid: int) -> int:
    """The square: two other ids do not have the same sum by chance of being neighbours."""
    return uid * uid


async def _pages(rows: MetadataRows, prefix: bytes, damaged: list[bytes]) -> AsyncIterator[tuple[bytes, bytes]]:
    start, end = records.range_of(prefix)
    while True:
        page = await rows.scan((start, end), limit=_PAGE, damaged=damaged)
        for item in page:
            yield item
        if len(page) < _PAGE:
            return
        start = page[-1][0] + b"\0"
