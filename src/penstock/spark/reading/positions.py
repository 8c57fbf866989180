"""The position of a query in a stream, and how it continues when segments end. Pure decisions.

A query's positions are a stream cut: one offset for each of a set of segments that together take every key once.
A finished segment keeps its place until all segments of its group have finished; then the whole group is replaced by its
successors. A batch goes on in them only while one task can read all of it, in order. So no two tasks, which run side by
side, read a segment and its successor. ``core.cuts.read_order`` decides when a group is replaced, for this reader and all
others.
Source: docs/design/0009-spark.md, docs/design/0019-order-of-readers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, InvalidNameError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.choice import StreamChoice

VERSION = 1
AHEAD_VERSION = 2
"""Version of offsets with segments that were read in part too early. An earlier program would read those parts twice."""
START_VERSION = 3
"""Version of offsets that hold the start of the first batch. An earlier program would begin that batch elsewhere."""
MANY_VERSION = 4
"""Version of offsets of several streams: a list with one offset, of the versions before, for each."""
Positions: TypeAlias = dict[SegmentId, int]


def to_cut(stream: StreamName, positions: Mapping[SegmentId, int]) -> StreamCut:
    return StreamCut(stream, dict(positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Bytes ``start <= offset < end`` of a segment that a query skipped.

    ``end=None``: to the segment's end, whose offset is no longer known. ``events``: their number, if known. ``rule``,
    ``at_ms``: the first retention rule (docs/formats/planner.md; ``manual``: a manual truncation) that deleted some of
    them, and when; None if that is no longer recorded.
    """

    segment: SegmentId
    start: int
    end: int | None
    events: int | None = None
    rule: str | None = None
    at_ms: int | None = None

    def __str__(self) -> str:
        size = "?" if self.end is None else str(self.end - self.start)
        known = {"from": self.start, "to": self.end, "bytes": size, "events": self.events}
        fields = known | {"rule": self.rule, "at_ms": self.at_ms}
        return f"segment={self.segment} " + " ".join(
            f"{name}={'?' if value is None else value}" for name, value in fields.items()
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "segment": self.segment,
            "from": self.start,
            "to": self.end,
            "events": self.events,
            "rule": self.rule,
            "at_ms": self.at_ms,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Loss:
        """Inverse of ``to_json``. Raises KeyError, TypeError, ValueError."""
        return cls(
            segment=SegmentId(int(found["segment"])),
            start=int(found["from"]),
            end=None if found["to"] is None else int(found["to"]),
            events=found.get("events"),
            rule=found.get("rule"),
            at_ms=found.get("at_ms"),
        )


@dataclass(frozen=True, slots=True)
class Offset:
    """What Spark logs at the end of a batch: the positions after it, and the final lengths of segments that it
    finished.

    Finished segments are named because the positions already hold their successors, and a batch must be readable from its
    two offsets alone. ``lost``: data that was deleted when the batch was planned, which it skips.

    ``query``: for a subscriber's query, the id generated for its checkpoint; empty in an offset that is not in Spark's
    log. ``begun``: where the first batch begins, in a start without checkpoint and in the end of the first batch. Spark
    does not keep the start of a first batch. A new process that repeats the batch resolves the start again, perhaps
    differently. ``ahead``: offsets of segments that must wait again, because an earlier version read them too early.
    """

    positions: Positions
    finished: Positions = field(default_factory=dict)
    lost: tuple[Loss, ...] = ()
    ahead: Positions = field(default_factory=dict)
    query: str = ""
    begun: Positions | None = None

    @property
    def is_over(self) -> bool:
        """Whether the stream was deleted and the query goes on without it: the offset only reports what was lost."""
        return not self.positions

    @property
    def is_start(self) -> bool:
        """Whether no batch with data ended before it: the batch after it records where it began."""
        return self.begun == self.positions

    def to_json(self, stream: StreamName) -> dict[str, Any]:
        """For Spark, which compares the text: equal offsets give equal text, with segments sorted by id."""
        version = AHEAD_VERSION if self.ahead else VERSION
        if self.begun is not None:
            version = START_VERSION
        found: dict[str, Any] = {"v": version, "stream": str(stream), "segments": _named(self.positions)}
        if self.finished:
            found["finished"] = _named(self.finished)
        if self.lost:
            found["lost"] = [item.to_json() for item in self.lost]
        if self.ahead:
            found["ahead"] = _named(self.ahead)
        if self.query:
            found["query"] = self.query
        if self.begun is not None:
            found["from"] = _named(self.begun)
        return found

    @classmethod
    def from_json(cls, stream: StreamName, offset: Mapping[str, Any]) -> Offset:
        """Inverse of ``to_json``. Raises InvalidCutError: it belongs to another stream or version, or is not ours at
        all."""
        if offset.get("v") not in (VERSION, AHEAD_VERSION, START_VERSION):
            raise InvalidCutError("checkpoint holds offsets of an unknown version", version=offset.get("v"))
        if offset.get("stream") != str(stream):
            raise InvalidCutError(
                "checkpoint belongs to another stream; use a new checkpoint location",
                stream=stream,
                checkpoint=offset.get("stream"),
            )
        try:
            lost = tuple(Loss.from_json(item) for item in offset.get("lost", ()))
            ahead = _parsed(offset.get("ahead", {}))
            return cls(
                _parsed(offset["segments"]),
                _parsed(offset.get("finished", {})),
                lost,
                ahead,
                str(offset.get("query", "")),
                _parsed(offset["from"]) if "from" in offset else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidCutError(
                "checkpoint holds offsets that Penstock did not write", offset=str(dict(offset))[:200]
            ) from error


Offsets: TypeAlias = Mapping[StreamName, Offset]
"""The offset of a query, by stream."""


def many_to_json(offsets: Offsets) -> dict[str, Any]:
    """An offset of several streams, sorted by name: equal offsets give equal text."""
    return {"v": MANY_VERSION, "streams": [offsets[stream].to_json(stream) for stream in sorted(offsets)]}


def each_offset(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The offsets of single streams in an offset of one or several. Raises InvalidCutError if it is not ours."""
    if found.get("v") != MANY_VERSION:
        return [found]
    entries = found.get("streams")
    if not isinstance(entries, list) or not all(isinstance(item, Mapping) for item in entries):
        raise InvalidCutError("checkpoint holds offsets that Penstock did not write", offset=str(dict(found))[:200])
    return entries


def offsets_of(
    found: Mapping[str, Any], choice: StreamChoice, *, only: StreamName | None = None
) -> dict[StreamName, Offset]:
    """Inverse of ``many_to_json`` and, for a checkpoint of one stream, of ``Offset.to_json``.

    ``only``: the stream of a query that reads one. Raises InvalidCutError: not ours, or of a stream that the query's options
    do not choose.
    """
    offsets: dict[StreamName, Offset] = {}
    for entry in each_offset(found):
        if only is not None and found is entry:
            return {only: Offset.from_json(only, entry)}
        try:
            stream = StreamName.parse(entry.get("stream", ""))
        except InvalidNameError as error:
            raise InvalidCutError(
                "checkpoint holds offsets that Penstock did not write", offset=str(dict(entry))[:200]
            ) from error
        offset = Offset.from_json(stream, entry)
        if not (offset.is_over or choice.holds(stream)):
            raise InvalidCutError(
                "checkpoint holds a stream that the options do not choose; choose it again, or use a new checkpoint location",
                stream=stream,
            )
        offsets[stream] = offset
    return offsets


def is_new(begins: Offsets, ends: Offsets) -> bool:
    """Whether a batch between the offsets has anything to record: events, a loss, or a stream that joined or ended."""
    return begins.keys() != ends.keys() or any(ends[stream].positions != begins[stream].positions for stream in ends)


def _named(positions: Positions) -> dict[str, int]:
    return {str(segment): positions[segment] for segment in sorted(positions)}


def _parsed(segments: Mapping[str, Any]) -> Positions:
    return {SegmentId(int(segment)): int(offset) for segment, offset in segments.items()}


def in_turn(positions: Positions, ahead: Positions) -> tuple[Positions, Positions]:
    """Move segments that may now be read to their offset in ``ahead``. Returns the positions, and the rest of ``ahead``."""
    reached = {item: max(at, ahead.get(item, 0)) if at >= 0 else at for item, at in positions.items()}
    return reached, {item: at for item, at in ahead.items() if reached.get(item, 0) < 0}


def ranges_of(start: Offset, end: Offset) -> list[tuple[SegmentId, int, int]]:
    """What the batch between two offsets reads: (segment, from, to), oldest segment first, without empty ranges and
    lost data.

    Raises: InvalidCutError if an offset moves backwards.
    """
    ends = end.finished | end.positions | end.ahead
    begins = start.positions | start.ahead
    for item in end.lost:
        # Lost data is before the remaining data. A loss that was found later belongs to an earlier batch and moves
        # nothing.
        if item.end is not None and item.segment in ends:
            begins[item.segment] = max(begins.get(item.segment, 0), item.end)
    found = [(segment, max(0, begins.get(segment, 0)), max(0, ends[segment])) for segment in sorted(ends)]
    for segment, low, high in found:
        if low > high:
            raise InvalidCutError("offsets of a batch move backwards", segment=segment, start=low, end=high)
    return [item for item in found if item[1] < item[2]]
