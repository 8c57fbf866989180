"""Where a query stands in a stream, and how it moves on when segments end. Pure decisions.

A query's positions are a stream cut: one offset for each of a set of segments that together take every key once.
A finished segment keeps its place until all segments of its group have finished; then the whole group is replaced by its
successors, which are read from the next batch on. So a batch never holds events of a successor beside events of a
predecessor. Source: docs/design/0009-spark.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import InvalidCutError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId
from penstock.ports.controller_service import Successor

VERSION = 1
Positions: TypeAlias = dict[SegmentId, int]


def from_cut(cut: StreamCut, ranges: Mapping[SegmentId, KeyRange]) -> Positions:
    """Positions of a cut. A segment that is not started stays so while an older one of the cut shares keys with it.

    ``ranges`` are the key ranges of its segments; they are looked at only where one is not started.
    """
    return {segment: _begun(cut, segment, ranges) for segment in sorted(cut.positions)}


def _begun(cut: StreamCut, segment: SegmentId, ranges: Mapping[SegmentId, KeyRange]) -> int:
    offset = cut.positions[segment]
    if offset != NOT_STARTED:
        return offset
    waits = any(older < segment and ranges[older].overlaps(ranges[segment]) for older in cut.positions)
    return NOT_STARTED if waits else 0


def to_cut(stream: StreamName, positions: Mapping[SegmentId, int]) -> StreamCut:
    return StreamCut(stream, dict(positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Bytes ``start <= offset < end`` of a segment that a query passed over.

    ``end=None``: to its end, wherever that was; nobody knows it any more. ``events``: how many they were, where that is
    known. ``rule``, ``at_ms``: the first retention rule (docs/formats/planner.md; ``manual``: by hand) that removed some of
    them, and when; None where that is forgotten.
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
        told = known | {"rule": self.rule, "at_ms": self.at_ms}
        return f"segment={self.segment} " + " ".join(
            f"{name}={'?' if value is None else value}" for name, value in told.items()
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
    """What Spark logs at the end of a batch: the positions behind it, and the final lengths of segments that it finished.

    Finished segments are named because the positions already hold their successors, and a batch must be readable from its
    two offsets alone. ``lost``: what was gone when the batch was made, and is passed over by it.
    """

    positions: Positions
    finished: Positions = field(default_factory=dict)
    lost: tuple[Loss, ...] = ()

    def to_json(self, stream: StreamName) -> dict[str, Any]:
        """For Spark, which compares the text of it: equal offsets give equal text, segments by id."""
        found: dict[str, Any] = {"v": VERSION, "stream": str(stream), "segments": _named(self.positions)}
        if self.finished:
            found["finished"] = _named(self.finished)
        if self.lost:
            found["lost"] = [item.to_json() for item in self.lost]
        return found

    @classmethod
    def from_json(cls, stream: StreamName, offset: Mapping[str, Any]) -> Offset:
        """Inverse of ``to_json``. Raises InvalidCutError: another stream's, another version's, or not ours at all."""
        if offset.get("v") != VERSION:
            raise InvalidCutError("checkpoint holds offsets of an unknown version", version=offset.get("v"))
        if offset.get("stream") != str(stream):
            raise InvalidCutError(
                "checkpoint belongs to another stream; use a new checkpoint location",
                stream=stream,
                checkpoint=offset.get("stream"),
            )
        try:
            lost = tuple(Loss.from_json(item) for item in offset.get("lost", ()))
            return cls(_parsed(offset["segments"]), _parsed(offset.get("finished", {})), lost)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidCutError(
                "checkpoint holds offsets that are not ours", offset=str(dict(offset))[:200]
            ) from error


def _named(positions: Positions) -> dict[str, int]:
    return {str(segment): positions[segment] for segment in sorted(positions)}


def _parsed(segments: Mapping[str, Any]) -> Positions:
    return {SegmentId(int(segment)): int(offset) for segment, offset in segments.items()}


def enter_successors(positions: Positions, successors: Mapping[SegmentId, Sequence[Successor]]) -> Positions:
    """Replace every group of finished segments by its successors, which stand at 0.

    Args:
        positions: Where the query stands.
        successors: What follows, for each segment of ``positions`` that is read to its end and sealed; nothing follows the
            last segments of a sealed stream, and they stay.
    """
    result = dict(positions)
    for segment in sorted(successors):
        if segment not in result or not successors[segment]:
            continue
        old, new = _group(segment, successors)
        # A predecessor that is no longer among the positions was passed before.
        if all(successors.get(item) or item not in result for item in old):
            for item in old:
                result.pop(item, None)
            result.update({item: max(0, result.get(item, 0)) for item in new})
    return {item: result[item] for item in sorted(result)}


def _group(
    segment: SegmentId, successors: Mapping[SegmentId, Sequence[Successor]]
) -> tuple[set[SegmentId], set[SegmentId]]:
    """The segments that end together with ``segment``, as far as known, and those that follow them."""
    old, new, pending = {segment}, set[SegmentId](), [segment]
    while pending:
        for item in successors.get(pending.pop(), ()):
            new.add(item.range.segment)
            for predecessor in item.predecessors:
                if predecessor not in old:
                    old.add(predecessor)
                    pending.append(predecessor)
    return old, new


def raise_to(
    positions: Positions, floor: Mapping[SegmentId, int], ranges: Mapping[SegmentId, KeyRange]
) -> tuple[Positions, list[SegmentId]]:
    """The later of two positions of one stream, key by key, and the segments of ``positions`` that ``floor`` is past.

    Args:
        positions: Where the query stands.
        floor: A cut of the same stream, say its head.
        ranges: Key ranges of the segments of both.
    """
    result = dict(positions)
    passed: list[SegmentId] = []
    for segment in sorted(floor):
        if segment in positions:
            if floor[segment] > max(0, positions[segment]):
                result[segment] = floor[segment]
                passed.append(segment)
            continue
        rivals = [item for item in positions if ranges[item].overlaps(ranges[segment])]
        # Ids grow with the epoch: what shares keys with a later segment and is not the same one lies before it.
        if all(item < segment for item in rivals):
            passed += [item for item in rivals if result.pop(item, None) is not None]
            result[segment] = floor[segment]
    return {item: result[item] for item in sorted(result)}, sorted(passed)


def ranges_of(start: Offset, end: Offset) -> list[tuple[SegmentId, int, int]]:
    """What the batch between two offsets reads: (segment, from, to), oldest segment first, without empty ranges and what was
    lost.

    Raises: InvalidCutError where an offset runs backwards.
    """
    ends = end.finished | end.positions
    begins = dict(start.positions)
    for item in end.lost:
        # What is lost lies before what is left; a loss that was found later belongs to a batch before, and moves nothing.
        if item.end is not None and item.segment in ends:
            begins[item.segment] = max(begins.get(item.segment, 0), item.end)
    found = [(segment, max(0, begins.get(segment, 0)), max(0, ends[segment])) for segment in sorted(ends)]
    for segment, low, high in found:
        if low > high:
            raise InvalidCutError("offsets of a batch run backwards", segment=segment, start=low, end=high)
    return [item for item in found if item[1] < item[2]]
