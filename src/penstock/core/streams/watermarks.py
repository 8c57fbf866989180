"""Watermarks: what the times that writers note say about a position of their stream.

A writer's mark says: of my events, those up to this position have times up to this time. A watermark bounds all writers
at once: a reader that has reached its cut has read every event that an active writer wrote before it noted ``lower_ms``. The
store only compares times; milliseconds since the Unix epoch are the convention.
Source: Pravega's PeriodicWatermarking; docs/design/0043-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.core.cuts.order import Positions, at_or_after, check_cut, upper_bound
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import NOT_STARTED
from penstock.model.errors import InvalidArgumentError, InvalidCutError, TimeGoesBackError
from penstock.model.segments import epoch_of
from penstock.model.values.dataclass import dataclass

TIMEOUT_MS = 60_000
"""How long a silent writer holds back the watermark of a stream whose ``timestamp_aggregation_ms`` is 0."""

_TIME_MAX = 1 << 63  # times are signed 64-bit numbers below it


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterMark:
    """What a writer noted last. ``noted_ms``: wall clock. ``left``: it was removed, and notes nothing more."""

    time_ms: int
    position: Positions
    noted_ms: int
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Of events before ``cut``, all up to ``lower_ms`` are there, and none is later than ``upper_ms``."""

    lower_ms: int
    upper_ms: int
    cut: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What follows from the marks. ``watermark=None``: it does not advance. ``due_ms``: when to look again although
    nothing is noted meanwhile; None: there is nothing to wait for. ``redated``: writers whose notes are from the future,
    because the clock went back; they count from now on."""

    watermark: Watermark | None
    forgotten: Sequence[str]
    due_ms: int | None
    redated: Sequence[str] = ()


def timeout_of(aggregation_ms: int) -> int:
    """The timeout of writers from a stream's ``timestamp_aggregation_ms``, of which 0 means the default."""
    return aggregation_ms or TIMEOUT_MS


def writer_position(history: StreamHistory, noted: Positions) -> Positions:
    """The noted position as a cut that is valid and at or after it.

    While a stream scales, Pravega's writers name a segment that they have begun beside a predecessor that they will not
    write to again, or leave out segments that they have not written to. Such a position becomes one of the newest epoch
    in which the writer has written.
    Raises: InvalidCutError (unknown segments; a key without a position, and nothing written).
    """
    try:
        check_cut(history, noted)
    except InvalidCutError:
        started = [segment for segment, offset in noted.items() if offset > NOT_STARTED]
        ranges = history.index.ranges
        if not started or any(segment not in ranges for segment in noted):
            raise
        newest = max(epoch_of(segment) for segment in started)
        epoch = next((item for item in history.epochs if item.epoch == newest), None)
        if epoch is None:
            raise
        return {item.segment: max(noted.get(item.segment, 0), 0) for item in epoch.segments}
    return dict(noted)


def noted(
    history: StreamHistory, known: WriterMark | None, *, time_ms: int, position: Positions, now_ms: int
) -> WriterMark:
    """The mark of a writer after it has noted a time at a position, from ``writer_position``.

    Equal time and position are accepted, so that a call can be repeated.
    Raises: TimeGoesBackError; InvalidCutError (the position lies before the last one at some key); InvalidArgumentError
    (no signed 64-bit number).
    """
    if not -_TIME_MAX <= time_ms < _TIME_MAX:
        raise InvalidArgumentError("time does not fit into 64 bits", time_ms=time_ms)
    if known is not None and time_ms < known.time_ms:
        raise TimeGoesBackError(
            "writer has noted a later time; note times in order", time_ms=time_ms, noted_ms=known.time_ms
        )
    if known is not None and not at_or_after(history, position, known.position):
        raise InvalidCutError("writer has noted a later position", position=dict(position), noted=dict(known.position))
    return WriterMark(time_ms=time_ms, position=position, noted_ms=now_ms)


def advance(
    history: StreamHistory,
    writers: Mapping[str, WriterMark],
    previous: Watermark | None,
    *,
    now_ms: int,
    timeout_ms: int,
) -> Advance:
    """The next watermark, and the writers that are forgotten.

    A writer takes part while it is ahead of the watermark. One that is not ahead holds the watermark back until it notes
    a later time, leaves, or has noted nothing for ``timeout_ms``; in the last two cases it is forgotten. Bounds and cut
    of the result are never before those of ``previous``, and ``lower_ms`` is after.
    """
    redated = sorted(name for name, mark in writers.items() if mark.noted_ms > now_ms)
    writers = {name: replace(mark, noted_ms=min(mark.noted_ms, now_ms)) for name, mark in writers.items()}
    ahead = {name: mark for name, mark in writers.items() if previous is None or mark.time_ms > previous.lower_ms}
    behind = {name: mark for name, mark in writers.items() if name not in ahead}
    forgotten = sorted(name for name, mark in behind.items() if mark.left or now_ms - mark.noted_ms >= timeout_ms)
    waiting = [mark.noted_ms + timeout_ms for name, mark in behind.items() if name not in forgotten]
    if waiting or not ahead:
        due_ms = min(waiting, default=None)
        return Advance(watermark=None, forgotten=forgotten, due_ms=due_ms, redated=redated)
    times = [mark.time_ms for mark in ahead.values()]
    cuts = [mark.position for mark in ahead.values()]
    upper = max(times)
    if previous is not None:
        cuts.append(previous.cut)
        upper = max(upper, previous.upper_ms)
    watermark = Watermark(lower_ms=min(times), upper_ms=upper, cut=upper_bound(history, cuts))
    # The slowest of them is no longer ahead: what it does next, or that it does nothing, is looked at again.
    return Advance(watermark=watermark, forgotten=forgotten, due_ms=now_ms, redated=redated)


def marks_before(history: StreamHistory, cuts: Sequence[Positions], position: Positions) -> int:
    """How many of the marks, whose cuts are in order, a reader at ``position`` has passed."""
    for passed, cut in enumerate(cuts):
        if not at_or_after(history, position, cut):
            return passed
    return len(cuts)
