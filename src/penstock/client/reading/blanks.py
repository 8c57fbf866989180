"""Find erased events in a block that was read. They are zeros of the old length, and our readers skip them.

A writer may write an event of zeros itself, so the reader asks the store, but only if a block contains such an event.
Source: docs/how-to/erasure.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from penstock.client.reading.blocks import Block
from penstock.codec.events import HEADER_BYTES
from penstock.core.segments.erasure import covers

_PIECE_BYTES = 64 << 10
"""Smallest read while more data is available."""


def blank_events(raw: bytes | bytearray, bounds: Sequence[int], *, torn: bool = False) -> list[int]:
    """The indexes of events that consist of one or more zeros only. ``bounds``: from ``event_bounds``.

    ``torn``: the first event was read in several pieces, some of which may be older than its erasure. It is included if
    it begins or ends with a zero, or, if a piece may lie in its middle, contains any zero.
    """
    found = _blank_events(raw, bounds)
    if torn and len(bounds) > 1 and found[:1] != [0]:
        start, end = bounds[0] + HEADER_BYTES, bounds[1]
        if start < end and (not (raw[start] and raw[end - 1]) or (end - start > _PIECE_BYTES and 0 in raw[start:end])):
            return [0, *found]
    return found


def _blank_events(raw: bytes | bytearray, bounds: Sequence[int]) -> list[int]:
    if len(bounds) < 2:
        return []
    if isinstance(bounds, range):
        return _among_equals(raw, bounds)
    # The first byte of each payload, in C; for an empty event this is a byte of the next header, or past the end.
    starts = [start + HEADER_BYTES for start in bounds[:-1]]
    if starts[-1] < len(raw) and 0 not in map(raw.__getitem__, starts):
        return []
    return [
        index
        for index, (start, end) in enumerate(pairwise(bounds))
        if end - start > HEADER_BYTES and not raw[end - 1] and _is_blank(raw, start, end)
    ]


def _among_equals(raw: bytes | bytearray, bounds: range) -> list[int]:
    if bounds.step <= HEADER_BYTES:
        return []
    # One byte of each event, in C: nearly always none of them is zero.
    first = raw[HEADER_BYTES : bounds[-1] : bounds.step]
    found: list[int] = []
    index = first.find(0)
    while index >= 0:
        if _is_blank(raw, bounds[index], bounds[index + 1]):
            found.append(index)
        index = first.find(0, index + 1)
    return found


def _is_blank(raw: bytes | bytearray, start: int, end: int) -> bool:
    size = end - start - HEADER_BYTES
    return size > 0 and raw.count(0, start + HEADER_BYTES, end) == size


def without_erased(block: Block, blank: Sequence[int], erased: Sequence[tuple[int, int]]) -> list[Block]:
    """The block without the erased events: one block for each run between them.

    ``blank``: its events of zeros, in order. ``erased``: ordered, joined ranges of the segment.
    """
    bounds, offset, raw = block.bounds, block.offset, bytes(block.framed)
    runs: list[Block] = []
    first = 0
    gone = [
        index for index in blank if covers(erased, offset + bounds[index] + HEADER_BYTES, offset + bounds[index + 1])
    ]
    if not gone:
        return [block]
    for index in [*gone, len(bounds) - 1]:
        if index > first:
            start, end = bounds[first], bounds[index]
            part = (
                range(0, end - start + 1, bounds.step)
                if isinstance(bounds, range)
                else [bound - start for bound in bounds[first : index + 1]]
            )
            runs.append(Block(block.stream, block.segment, offset + start, raw[start:end], part))
        first = index + 1
    return runs
