"""Parse a stream, its cuts and its records from the planner's JSON.

Every field is checked separately, so that an error names the exact field; ``lines`` is the fast parser. Values that
depend only on the epochs are kept in a bounded cache for the next line with the same epochs: a fleet has few different
ones.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Mapping, Sequence
from typing import Any, overload

from penstock.core.cuts.order import Positions, check_cut
from penstock.core.planner_json.values import (
    check_known,
    refuse,
    take_list,
    take_number,
    take_object,
    take_optional,
    take_segment,
    take_whole,
)
from penstock.core.retention.facts import StreamCutRecord
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.errors import InvalidCutError
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, epoch_of, number_of

_CACHED_MAX = 256  # histories that stay decoded
_CACHED_BYTES_MAX = 64 * 1024
_SPELLINGS_MAX = 64  # spellings of one stream's segments
_NAMES_MAX = 4096  # names that stay parsed
_RECORD_FIELDS = ("time_ms", "size_bytes", "cut", "event_count")


class Epochs:
    """All epochs of a stream, checked."""

    __slots__ = ("_names", "_sets", "_spelled", "history")

    def __init__(self, history: StreamHistory) -> None:
        self.history = history
        self._names = {name_of(segment): segment for segment in history.index.ids}
        self._sets = {frozenset(item.segment for item in record.segments) for record in history.epochs}
        self._spelled: dict[tuple[str, ...], tuple[SegmentId, ...] | None] = {}

    def segment_named(self, name: str) -> SegmentId | None:
        """The segment with this name, if the stream ever had it."""
        return self._names.get(name)

    def segments_named(self, names: tuple[str, ...]) -> tuple[SegmentId, ...] | None:
        """The segments, in the same order, if they are all segments of one epoch: then any offsets make a valid cut."""
        if names in self._spelled:
            return self._spelled[names]
        found = tuple(self._names[name] for name in names if name in self._names)
        known = found if len(found) == len(names) and frozenset(found) in self._sets else None
        if len(self._spelled) >= _SPELLINGS_MAX:
            self._spelled.clear()
        self._spelled[names] = known
        return known


_cached: dict[bytes, Epochs] = {}


@functools.lru_cache(maxsize=_NAMES_MAX)
def name_of(segment: SegmentId) -> str:
    """The segment as ``NUMBER#EPOCH``."""
    return f"{number_of(segment)}#{epoch_of(segment)}"


@overload
def encode_cut(positions: Positions) -> dict[str, int]: ...
@overload
def encode_cut(positions: Positions | None) -> dict[str, int] | None: ...
def encode_cut(positions: Positions | None) -> dict[str, int] | None:
    """Offsets by ``number#epoch``, oldest segment first."""
    if positions is None:
        return None
    return {name_of(segment): positions[segment] for segment in sorted(positions)}


def take_stream(stream: Mapping[str, Any]) -> tuple[Epochs, StreamHistory]:
    """The epochs, and the history that they make with the lengths of sealed segments."""
    epochs = _epochs(stream.get("epochs"))
    given = stream.get("sealed")
    if not given and (given is None or isinstance(given, dict)):
        return epochs, epochs.history
    known = epochs.history.index.ranges
    sealed: dict[SegmentId, int] = {}
    for name, length in take_object(given, "stream.sealed").items():
        segment = take_segment(name, "stream.sealed")
        if segment not in known:
            refuse("sealed names a segment that no epoch has", "stream.sealed", segment=name)
        sealed[segment] = take_whole(length, f"stream.sealed.{name}")
    return epochs, epochs.history.with_lengths(sealed)


def _epochs(value: Any) -> Epochs:
    try:
        # Version 2 writes equal values alike, independent of shared references.
        key = marshal.dumps(value, 2)
    except ValueError:
        return checked_epochs(value)
    found = _cached.get(key)
    if found is None:
        found = checked_epochs(value)
        if len(key) <= _CACHED_BYTES_MAX:
            if len(_cached) >= _CACHED_MAX:
                _cached.clear()
            _cached[key] = found
    return found


def checked_epochs(value: Any) -> Epochs:
    """Parse all epochs from JSON. Raises InvalidArgumentError."""
    epochs = take_list(value, "stream.epochs")
    if not epochs:
        refuse("a stream has at least one epoch", "stream.epochs")
    known: dict[SegmentId, KeyRange] = {}
    before: set[SegmentId] = set()
    records = []
    for number, items in enumerate(epochs):
        field = f"stream.epochs[{number}]"
        segments = [_range(item, f"{field}[{place}]") for place, item in enumerate(take_list(items, field))]
        segments.sort(key=lambda item: item.keys.low)
        _check_tiles(segments, field)
        for item in segments:
            _check_segment(item, number, known, before, field)
        before = {item.segment for item in segments}
        if len(before) != len(segments):
            refuse("a segment is named twice in one epoch", field)
        records.append(EpochRecord(epoch=number, segments=tuple(segments)))
    return Epochs(StreamHistory(epochs=tuple(records)))


def _range(value: Any, field: str) -> SegmentRange:
    item = take_object(value, field)
    check_known(item, ("segment", "low", "high"), f"{field}.")
    low, high = take_number(item.get("low"), f"{field}.low"), take_number(item.get("high"), f"{field}.high")
    if not 0.0 <= low < high <= 1.0:
        refuse("key range is empty or outside [0, 1]", field, low=low, high=high)
    return SegmentRange(
        segment=take_segment(item.get("segment"), f"{field}.segment"), keys=KeyRange(low=low, high=high)
    )


def _check_tiles(segments: Sequence[SegmentRange], field: str) -> None:
    edge = 0.0
    for item in segments:
        if item.keys.low > edge:
            refuse("key space has a gap", field, low=edge, high=item.keys.low)
        if item.keys.low < edge:
            refuse("key ranges overlap", field, low=item.keys.low, high=edge)
        edge = item.keys.high
    if edge != 1.0:
        refuse("key space has a gap", field, low=edge, high=1.0)


def _check_segment(
    item: SegmentRange, number: int, known: dict[SegmentId, KeyRange], before: set[SegmentId], field: str
) -> None:
    segment = item.segment
    name = name_of(segment)
    if segment not in known:
        if epoch_of(segment) != number:
            refuse("a segment does not carry the epoch in which it first appears", field, segment=name, epoch=number)
        known[segment] = item.keys
        return
    if known[segment] != item.keys:
        refuse("a segment has another key range than in an earlier epoch", field, segment=name)
    if segment not in before and epoch_of(segment) != number:
        refuse("a segment comes back after an epoch without it", field, segment=name)


class Cuts:
    """Parses cuts and records of one stream, each checked completely, so that an error names the exact field."""

    __slots__ = ("_epochs", "_history")

    def __init__(self, epochs: Epochs, history: StreamHistory) -> None:
        self._epochs = epochs
        self._history = history

    def cut(self, value: Any, field: str) -> dict[SegmentId, int]:
        """A valid cut. Raises InvalidArgumentError, InvalidCutError."""
        positions: dict[SegmentId, int] = {}
        for name, offset in take_object(value, field).items():
            segment = take_segment(name, field)
            if segment not in self._history.index.ranges:
                refuse("cut names a segment that the stream never had", field, segment=name)
            if segment in positions:
                refuse("cut names a segment twice", field, segment=name)
            positions[segment] = take_whole(offset, f"{field}.{name}", least=-1)
        try:
            check_cut(self._history, positions)
        except InvalidCutError as error:
            raise InvalidCutError(error.message, field=field, **error.fields) from error
        return positions

    def optional(self, value: Any, field: str) -> dict[SegmentId, int] | None:
        """A cut, or None for null and for one without positions."""
        return self.cut(value, field) if value else None

    def record(self, value: Any, field: str) -> StreamCutRecord:
        """A record of the retention set, the tail, or a boundary."""
        item = take_object(value, field)
        check_known(item, _RECORD_FIELDS, f"{field}.")
        return StreamCutRecord(
            time_ms=take_whole(item.get("time_ms"), f"{field}.time_ms"),
            size_bytes=take_whole(item.get("size_bytes"), f"{field}.size_bytes"),
            positions=self.cut(item.get("cut"), f"{field}.cut"),
            event_count=take_optional(item.get("event_count"), f"{field}.event_count"),
        )

    def records(self, value: Any) -> Sequence[StreamCutRecord]:
        """The retention set, oldest first."""
        items = take_list([] if value is None else value, "retention_set")
        records = tuple(self.record(item, f"retention_set[{place}]") for place, item in enumerate(items))
        for place in range(1, len(records)):
            before, record = records[place - 1], records[place]
            if record.time_ms <= before.time_ms:
                refuse("records are not in order of time, oldest first", f"retention_set[{place}].time_ms")
            if record.size_bytes < before.size_bytes:
                refuse("a record is smaller than the one before it", f"retention_set[{place}].size_bytes")
        return records
