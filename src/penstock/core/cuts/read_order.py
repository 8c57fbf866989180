"""The position of a reader, and the segments it may start: one rule for all kinds of readers.

The rule: start a segment once all its predecessors in the epoch history are read to their end. Segments at one key follow
each other in the order of their ids. So a segment may start if at none of its keys the reader is at an older segment.
A segment that is absent from a reader's positions was not always passed. It may lie ahead, after a present older one.

The Python reader, reader groups, the streaming source and the search for a time use these functions. A batch read takes
all segments between two cuts in the order of their ids. Source: docs/design/0019-order-of-readers.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock.core.cuts.order import upper_bound
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.cuts import NOT_STARTED
from penstock.model.segments import KeyRange, SegmentId, SegmentRange

Positions = Mapping[SegmentId, int]
Ranges = Mapping[SegmentId, KeyRange]
Followers = Mapping[SegmentId, Sequence[tuple[SegmentRange, Sequence[SegmentId]]]]
"""For each finished segment its successors, each with all of its predecessors."""


def is_reached(segment: SegmentId, unfinished: Iterable[SegmentId], ranges: Ranges) -> bool:
    """Whether a reader has reached or passed the segment: it is not at an older segment for any of its keys.

    ``unfinished``: the segments that the reader is in, and those that wait. ``ranges`` has their keys.
    """
    keys = ranges[segment]
    return not any(other < segment and ranges[other].overlaps(keys) for other in unfinished)


def startable(waiting: Iterable[SegmentId], unfinished: Iterable[SegmentId], ranges: Ranges) -> list[SegmentId]:
    """Those of ``waiting`` that may be started, oldest first.

    Comparing all older segments, not only the named predecessors, covers predecessors that are not discovered yet. Their
    own unfinished ancestors hold the same keys.
    """
    waiting = sorted(waiting)
    blockers = [*unfinished, *waiting]
    return [segment for segment in waiting if is_reached(segment, blockers, ranges)]


def normalised(positions: Positions, ranges: Ranges) -> dict[SegmentId, int]:
    """Return the positions as one consistent cut: at each key the oldest segment counts.

    A segment is "not started" if the reader is at an older one for some of its keys. It is dropped if that holds for all.
    """
    result: dict[SegmentId, int] = {}
    for segment in sorted(positions):
        covered = [other for other in result if ranges[other].overlaps(ranges[segment])]
        if not covered:
            result[segment] = positions[segment]
        elif not _covers([ranges[other] for other in covered], ranges[segment]):
            result[segment] = NOT_STARTED
    return result


def _covers(parts: Iterable[KeyRange], whole: KeyRange) -> bool:
    edge = whole.low
    for part in sorted(parts):
        if part.low > edge:
            return False
        edge = max(edge, part.high)
    return edge >= whole.high


def settled(positions: Positions, ranges: Ranges) -> tuple[dict[SegmentId, int], dict[SegmentId, int]]:
    """Split positions by the rule: positions in which blocked segments wait, and the offsets to which those were
    already read.

    A segment that waits for no other stands at 0. Earlier versions of the streaming source started some segments too early.
    Such a segment waits. Its offset is in the second mapping, and it continues there later (``enter_successors``).
    """
    result: dict[SegmentId, int] = {}
    ahead: dict[SegmentId, int] = {}
    for segment in sorted(positions):
        if is_reached(segment, positions, ranges):
            result[segment] = max(0, positions[segment])
            continue
        result[segment] = NOT_STARTED
        if positions[segment] > 0:
            ahead[segment] = positions[segment]
    return result, ahead


def enter_successors(
    positions: Positions, followers: Followers, ranges: Ranges, ahead: Positions | None = None
) -> dict[SegmentId, int]:
    """Replace every group of finished segments by its successors.

    Segments that one scale replaced together are a group. All of a group is replaced at once, so that the result is a cut.

    Args:
        positions: The position of the reader: a cut.
        followers: For each segment of ``positions`` that is sealed and read to its end. Nothing follows the last segments
            of a sealed stream, and they stay.
        ranges: Keys of all segments of ``positions``, and of all predecessors that ``followers`` name.
        ahead: Offset at which a successor continues that was read in part too early; the others begin at 0.
    """
    result = dict(positions)
    # Segments that are entered here count for the next group.
    known = {**ranges, **{item.segment: item.keys for found in followers.values() for item, _ in found}}
    for segment in sorted(followers):
        if segment not in result or not followers[segment]:
            continue
        old, new = _group(segment, followers)
        if all(followers.get(item) if item in result else is_reached(item, result, known) for item in old):
            for item in old:
                result.pop(item, None)
            result.update({item: max(0, result.get(item, 0), (ahead or {}).get(item, 0)) for item in new})
    return {item: result[item] for item in sorted(result)}


def predecessors_named(followers: Followers) -> set[SegmentId]:
    """All predecessors of all these successors."""
    return {item for found in followers.values() for _, before in found for item in before}


def _group(segment: SegmentId, followers: Followers) -> tuple[set[SegmentId], set[SegmentId]]:
    """The known segments that end together with ``segment``, and their successors."""
    old, new, pending = {segment}, set[SegmentId](), [segment]
    while pending:
        for item, before in followers.get(pending.pop(), ()):
            new.add(item.segment)
            for predecessor in before:
                if predecessor not in old:
                    old.add(predecessor)
                    pending.append(predecessor)
    return old, new


def later_of(positions: Positions, floor: Positions, ranges: Ranges) -> tuple[dict[SegmentId, int], list[SegmentId]]:
    """The later of two cuts of one stream, key by key, and the segments of ``positions`` that ``floor`` is past.

    Args:
        positions: The position of the reader.
        floor: A cut of the same stream, for example its head.
        ranges: Keys of the segments of both.
    Raises: InvalidCutError if one of them leaves a key without a position.
    """
    raised = upper_bound(_known(ranges), [positions, floor])
    for segment, offset in positions.items():
        # If older segments cover all its keys, it has no position at any key. It waits anyway.
        if offset == NOT_STARTED and segment not in raised and not is_reached(segment, raised, ranges):
            raised[segment] = NOT_STARTED
    result, _ = settled(raised, ranges)
    passed = [segment for segment, offset in positions.items() if _is_passed(segment, offset, result, ranges)]
    return result, sorted(passed)


def _is_passed(segment: SegmentId, offset: int, result: Positions, ranges: Ranges) -> bool:
    if segment in result:
        return result[segment] > max(0, offset)
    return is_reached(segment, result, ranges)


def _known(ranges: Ranges) -> StreamHistory:
    """A history that knows only the keys of these segments. A bound needs no more."""
    segments: Collection[SegmentRange] = [SegmentRange(segment=item, keys=keys) for item, keys in ranges.items()]
    return StreamHistory(epochs=[EpochRecord(epoch=0, segments=list(segments))])
