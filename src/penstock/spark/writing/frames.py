"""Converts Arrow columns to framed events, one buffer per segment. Needs numpy and pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES
from penstock.core.streams.routing import Router
from penstock.model.errors import EventTooLargeError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange
from penstock.model.values.dataclass import dataclass
from penstock.spark.arrays import NO_BYTES, integers, numbers

APPEND_BYTES = 2 << 20
"""Size of one append: large enough to pay for its overhead, small enough to overlap with the next."""


Places: TypeAlias = np.ndarray[Any, Any]
"""Places of rows in a batch, in order."""

EVENT, KEY = "event", "key"
"""Columns of rows in transit: plain events, and routing keys if there are any."""


@dataclass(frozen=True, slots=True)
class Framed:
    """Framed events for one segment. ``data`` holds ``count`` whole events."""

    index: int
    data: memoryview
    count: int


def event_bytes(column: pa.Array) -> pa.Array:
    """A column of events as plain binary. Raises InvalidArgumentError if one is null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise InvalidArgumentError("events contain nulls; filter or fill them first", nulls=column.null_count)
    return column if column.type == pa.binary() else column.cast(pa.binary())


def check_targets(rows: pa.RecordBatch, columns: Sequence[str], stream: StreamName) -> None:
    """Raise InvalidArgumentError if a row's ``scope`` or ``stream`` names another stream. ``columns``: which of them
    exist.

    Null is refused too. ``stream`` may hold the full name.
    """
    own = {"scope": [stream.scope], "stream": [stream.stream, str(stream)]}
    for name in columns:
        column = rows.column(name)
        allowed = pc.is_in(column, value_set=pa.array(own[name], column.type))
        row = pc.index(allowed, pa.scalar(False)).as_py()
        if row >= 0:
            raise InvalidArgumentError(
                "a row names another stream than the target; filter the rows, or drop the column. To send each row to the "
                "stream that it names, drop option stream (or the path)",
                column=name,
                found=str(column[row].as_py())[:200],
                stream=stream,
            )


def largest_event(rows: pa.RecordBatch) -> int:
    """Length of the largest event in bytes; 0 if there is none."""
    return int(pc.max(pc.binary_length(rows.column(EVENT))).as_py() or 0)


def inline_rows(held: Sequence[pa.RecordBatch]) -> bytes:
    """Rows of one schema as bytes, for ``rows_inline``."""
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, held[0].schema) as stream:
        for rows in held:
            stream.write_batch(rows)
    return bytes(target.getvalue())


def rows_inline(data: bytes) -> Iterator[tuple[pa.Array, pa.Array | None]]:
    """The events and keys that ``inline_rows`` encoded."""
    with pa.ipc.open_stream(data) as stream:
        for rows in stream:
            yield rows.column(EVENT), rows.column(KEY) if KEY in rows.schema.names else None


def frame(values: pa.Array) -> tuple[memoryview, np.ndarray[Any, Any]]:
    """The events with their headers, back to back; and the offset at which each begins and the last ends.

    ``values`` is plain binary without nulls. One pass of Arrow, about 10 ns per event.
    Raises: EventTooLargeError.
    """
    lengths = numbers(pc.binary_length(values))
    if len(lengths) and int(lengths.max()) > EVENT_MAX_BYTES:
        raise EventTooLargeError("event is too large", length_bytes=int(lengths.max()), limit_bytes=EVENT_MAX_BYTES)
    count = len(values)
    header_places = np.arange(0, (count + 1) * HEADER_BYTES, HEADER_BYTES, dtype=np.int32)
    headers = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(header_places), pa.py_buffer(lengths.astype(">i8"))]
    )
    joined = pc.binary_join_element_wise(headers, values, NO_BYTES)
    places = np.concatenate(([0], np.cumsum(lengths.astype(np.int64) + HEADER_BYTES)))
    data = joined.buffers()[2]
    return memoryview(data)[: int(places[-1])] if count else memoryview(b""), places


class Sorter:
    """Distributes events over the segments of a transaction: by routing key if there is one, else in turn."""

    def __init__(self, ranges: Sequence[KeyRange], *, turn: int, part_bytes: int = APPEND_BYTES) -> None:
        """``ranges``: of the segments. ``turn``: index of the segment that is first in turn. A part has at most
        ``part_bytes``, or one event."""
        self._part_bytes = part_bytes
        self._router = Router(ranges)
        self._count = len(ranges)
        self._turn = turn

    def sort(self, events: pa.Array, keys: pa.Array | None) -> Iterator[Framed]:
        """Framed parts, in the order of the events within each segment."""
        self._turn = (self._turn + 1) % self._count
        if self._count == 1 or keys is None:
            yield from _parts(self._turn, events, self._part_bytes)
            return
        places = self._places(keys)
        for index in np.unique(places):
            rows = np.flatnonzero(places == index)
            chosen = events if len(rows) == len(events) else events.take(integers(rows))
            yield from _parts(int(index), chosen, self._part_bytes)

    def _places(self, keys: pa.Array) -> np.ndarray[Any, Any]:
        """The segment of each key. Each distinct key is hashed once; events without a key go to the segments in
        turn."""
        if isinstance(keys, pa.ChunkedArray):
            keys = keys.combine_chunks()
        coded = keys.dictionary_encode()
        index_of = self._router.index_of
        known = np.array([index_of(key) for key in coded.dictionary.to_pylist()] + [self._turn], dtype=np.int64)
        chosen: np.ndarray[Any, Any] = known[numbers(coded.indices, absent=len(known) - 1)]
        return chosen


def _parts(index: int, events: pa.Array, part_bytes: int) -> Iterator[Framed]:
    data, places = frame(events)
    first, last = 0, len(places) - 1
    while first < last:
        fits = int(np.searchsorted(places, places[first] + part_bytes, side="right")) - 1
        end = min(last, max(first + 1, fits))
        yield Framed(index, data[int(places[first]) : int(places[end])], end - first)
        first = end
