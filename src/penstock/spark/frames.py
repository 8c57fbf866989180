"""What the sink sends: Arrow columns to framed events, one buffer for each segment. Needs numpy and pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES
from penstock.core.routing import Router
from penstock.model.errors import EventTooLargeError, InvalidArgumentError
from penstock.model.segments import KeyRange

APPEND_BYTES = 2 << 20
"""Size of one append: large enough to carry its own cost, small enough to overlap with the next."""


@dataclass(frozen=True, slots=True)
class Framed:
    """Framed events for one segment. ``data`` is whole events, ``count`` how many."""

    index: int
    data: memoryview
    count: int


def event_bytes(column: pa.Array) -> pa.Array:
    """A column of events as plain binary. Raises InvalidArgumentError where one is null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise InvalidArgumentError("an event is null; filter or fill the column first", nulls=column.null_count)
    return column if column.type == pa.binary() else column.cast(pa.binary())


def frame(values: pa.Array) -> tuple[memoryview, np.ndarray[Any, Any]]:
    """The events with their headers, back to back, and where each begins and the last ends.

    ``values`` is plain binary without nulls. One pass of Arrow, about 10 ns per event.
    Raises: EventTooLargeError.
    """
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False)
    if len(lengths) and int(lengths.max()) > EVENT_MAX_BYTES:
        raise EventTooLargeError("event is too large", length_bytes=int(lengths.max()), limit_bytes=EVENT_MAX_BYTES)
    count = len(values)
    header_places = np.arange(0, (count + 1) * HEADER_BYTES, HEADER_BYTES, dtype=np.int32)
    headers = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(header_places), pa.py_buffer(lengths.astype(">i8"))]
    )
    joined = pc.binary_join_element_wise(headers, values, pa.scalar(b"", pa.binary()))
    places = np.concatenate(([0], np.cumsum(lengths.astype(np.int64) + HEADER_BYTES)))
    data = joined.buffers()[2]
    return memoryview(data)[: int(places[-1])] if count else memoryview(b""), places


class Sorter:
    """Distributes events over the segments of a transaction: by routing key where there is one, else in turn."""

    def __init__(self, ranges: Sequence[KeyRange], *, turn: int) -> None:
        """``ranges`` of the segments; ``turn`` is which of them is first in turn."""
        self._router = Router(ranges)
        self._count = len(ranges)
        self._turn = turn

    def sort(self, events: pa.Array, keys: pa.Array | None) -> Iterator[Framed]:
        """Framed parts of at most about ``APPEND_BYTES``, in the order of the events within each segment."""
        self._turn = (self._turn + 1) % self._count
        if self._count == 1 or keys is None:
            yield from _parts(self._turn, events)
            return
        places = self._places(keys)
        for index in np.unique(places):
            rows = np.flatnonzero(places == index)
            chosen = events if len(rows) == len(events) else events.take(pa.array(rows))
            yield from _parts(int(index), chosen)

    def _places(self, keys: pa.Array) -> np.ndarray[Any, Any]:
        """The segment of each key. Each distinct key is hashed once; events without a key take the turn."""
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        coded = keys.dictionary_encode()
        index_of = self._router.index_of
        known = np.array([index_of(key) for key in coded.dictionary.to_pylist()] + [self._turn], dtype=np.int64)
        codes = coded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
        chosen: np.ndarray[Any, Any] = known[codes]
        return chosen


def _parts(index: int, events: pa.Array) -> Iterator[Framed]:
    data, places = frame(events)
    first, last = 0, len(places) - 1
    while first < last:
        fits = int(np.searchsorted(places, places[first] + APPEND_BYTES, side="right")) - 1
        end = min(last, max(first + 1, fits))
        yield Framed(index, data[int(places[first]) : int(places[end])], end - first)
        first = end
