"""What a rebuild compares: the segments that streams need, and those that are stored, which can be of different times.

Source: docs/design/0072-rebuild-of-workers.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

from penstock.core.segments.placement import is_transaction_name, is_transient_name, parent_name
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import InvalidNameError
from penstock.model.names import parse_segment_name
from penstock.model.segments import SegmentId, SegmentRange, epoch_of


def readable_segments(epochs: Sequence[Sequence[SegmentRange]], head: Mapping[SegmentId, int]) -> Set[SegmentId]:
    """The segments that a reader who begins at the head can meet.

    Args:
        epochs: The segments of each epoch.
        head: The cut at which the stream begins; empty: the beginning of its history.
    """
    ranges = {item.segment: item.keys for epoch in epochs for item in epoch}
    first = {segment: ranges[segment] for segment in head if segment in ranges}
    return {
        segment
        for segment, keys in ranges.items()
        if not any(epoch_of(segment) < epoch_of(one) and keys.overlaps(covered) for one, covered in first.items())
    }


def head_after_rebuild(
    history: StreamHistory,
    head: Mapping[SegmentId, int],
    starts: Mapping[SegmentId, int],
    ends: Mapping[SegmentId, int],
) -> Mapping[SegmentId, int]:
    """The head at which reading can begin. What was truncated stays truncated, whichever of both is newer.

    Args:
        history: The epochs of the stream, as the controller's table has them.
        head: The head of the table; empty: the beginning.
        starts: Where each stored segment begins. A segment can be truncated further than the table says.
        ends: Where each stored segment ends. The table can have a head beyond.
    Returns:
        ``head`` itself if nothing has to change.
    """
    found = dict(head) or {item.segment: 0 for item in history.epochs[0].segments}
    for segment in sorted(starts):
        if starts[segment] > max(found.get(segment, 0), 0) and segment in history.ranges():
            _advance(history, found, segment, starts[segment])
    found = {segment: min(at, ends.get(segment, at)) for segment, at in found.items()}
    is_same = found == dict(head) or (not head and not any(found.values()))
    return head if is_same else found


def _advance(history: StreamHistory, head: dict[SegmentId, int], segment: SegmentId, start: int) -> None:
    """Move the head into ``segment``, which passes the older segments of its keys. Their other keys move to the segments that
    are active then."""
    ranges, epoch = history.ranges(), epoch_of(segment)
    if segment not in head and any(one > segment and ranges[one].overlaps(ranges[segment]) for one in head):
        return  # It lies before the head.
    active = next((one.segments for one in history.epochs if one.epoch == epoch), ())
    waiting = [segment]
    while waiting:
        taken = waiting.pop()
        for older in [one for one in head if one < taken and ranges[one].overlaps(ranges[taken])]:
            del head[older]
            waiting += [item.segment for item in active if item.keys.overlaps(ranges[older])]
        head.setdefault(taken, 0)
    head[segment] = max(head[segment], start)


def unreachable_bytes(
    held: Mapping[str, int], *, epochs: Mapping[str, int], deleted: Collection[str], transactions: Collection[str]
) -> Mapping[str, Mapping[str, int]]:
    """Bytes that are stored and that no reader can reach: by stream, then by segment.

    Args:
        held: Readable bytes of each segment of events.
        epochs: The active epoch of each stream of the table. A segment of a later epoch was created after the table.
        deleted: Streams whose deletion can be undone. All their segments are kept for that.
        transactions: Ids of the transactions of the table, as in names of segments.
    """
    found: dict[str, dict[str, int]] = {}
    for name in sorted(held):
        try:
            stream, segment = parse_segment_name(parent_name(name))
        except InvalidNameError:
            continue  # It is no stream's.
        if is_transient_name(name):
            continue  # One event that was being written. Its writer sends it again.
        text = str(stream)
        if is_transaction_name(name):
            is_known = name.rpartition(".")[2] in transactions
        elif text in epochs:
            is_known = epoch_of(segment) <= epochs[text]
        else:
            is_known = text in deleted
        if not is_known:
            found.setdefault(text, {})[name] = held[name]
    return found
