"""Limits on how long the segments of a stream may grow together, decided as appends are queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.core.segments.placement import parent_name
from penstock.model.errors import PenstockError, QuotaExceededError, QuotaHeldError, ThrottledError
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.shared_counts import SharedCounts, StreamCounts
from penstock.segmentstore.segment import Segment


class _Bound(NamedTuple):
    """One bound of a limit. ``quota``: how much may be unread, None if unknown; ``used``: the current total."""

    rule: str
    total: int
    quota: int | None
    used: int
    action: LimitAction

    @property
    def is_empty(self) -> bool:
        """Whether everything before the bound has been read."""
        return bool(self.quota) and self.used <= self.total - (self.quota or 0)

    def unread(self) -> dict[str, object]:
        """The quota, and how much is unread now; empty if unknown."""
        if self.quota is None:
            return {}
        return {"rule": self.rule, "limit": self.quota, "used": max(0, self.used - (self.total - self.quota))}


class StreamGate:
    """The limit of one stream, and the size of its segments including queued appends.

    Segments in memory are counted as they grow. One that leaves memory counts with its last length: it cannot grow
    until it is loaded again. So does a deleted one, because the bounds were meant to include it.

    If other stores also have segments of the stream, ``counts`` reports their sizes. ``used_bytes`` and ``used_events``
    are this store's own.
    """

    __slots__ = (
        "_counting",
        "_counts",
        "_created",
        "_members",
        "_met",
        "_other_bytes",
        "_other_events",
        "_was_met",
        "limit",
        "used_bytes",
        "used_events",
    )

    def __init__(self, limit: AppendLimit, met: Callable[[str], None], counts: StreamCounts | None = None) -> None:
        self.limit = limit
        self.used_bytes = 0
        self.used_events = 0
        self._other_bytes = 0
        self._other_events = 0
        self._counts = counts
        self._counting = True
        self._members: dict[str, Segment | tuple[int, int]] = {}
        self._created: dict[str, None] = {}
        self._met = met
        self._was_met = False

    # --- appends ------------------------------------------------------------------------------------------

    def take(self, segment: Segment, size_bytes: int, events: int, *, single: bool = True) -> PenstockError | None:
        counts = self._counts
        if counts is None:
            return self._take(segment, size_bytes, events, single)
        # From reading the others' counts until our own is published, no other store may decide.
        if not counts.lock():
            return ThrottledError("another worker decides about this limit", resource="limit", stream=self.limit.stream)
        try:
            self._look(counts)
            error = self._take(segment, size_bytes, events, single)
            if error is None:
                counts.publish(self.used_bytes, self.used_events)
            return error
        finally:
            counts.unlock()

    def _take(self, segment: Segment, size_bytes: int, events: int, single: bool) -> PenstockError | None:
        if not single and self._passed(self._all_bytes + size_bytes, self._all_events + events):
            return QuotaExceededError("appends reach a backlog quota together", stream=self.limit.stream)
        for bound in self._met_bounds(self._all_bytes + size_bytes, self._all_events + events):
            error = self._refusal(segment, bound)
            if error is not None:
                return error
        self.used_bytes += size_bytes
        self.used_events += events
        return None

    def count(self, segment: Segment, size_bytes: int, events: int) -> None:
        self._add(size_bytes, events)
        if size_bytes > 0 or events > 0:
            self._look(self._counts)
            if self._passed(self._all_bytes, self._all_events):
                self._report_once()

    def take_part(self, segment: Segment) -> PenstockError | None:
        """Decide whether a transaction or transient segment may grow. It counts once merged; it is refused while the
        stream is full."""
        self._look(self._counts)
        for bound in self._bounds():
            if bound.used >= bound.total:
                error = self._refusal(segment, bound)
                if error is not None:
                    return error
        return None

    @property
    def _all_bytes(self) -> int:
        return self.used_bytes + self._other_bytes

    @property
    def _all_events(self) -> int:
        return self.used_events + self._other_events

    def _look(self, counts: StreamCounts | None) -> None:
        if counts is not None:
            self._other_bytes, self._other_events = counts.others()

    def _bounds(self) -> Sequence[_Bound]:
        """Bytes before events."""
        limit = self.limit
        found: list[_Bound] = []
        if limit.total_bytes is not None:
            used = self._all_bytes
            found.append(_Bound("backlog-bytes", limit.total_bytes, limit.quota_bytes, used, limit.action))
        if limit.total_events is not None:
            action = limit.events_action or limit.action
            found.append(_Bound("backlog-events", limit.total_events, limit.quota_events, self._all_events, action))
        return found

    def _passed(self, used_bytes: int, used_events: int) -> bool:
        limit = self.limit
        return (limit.total_bytes is not None and used_bytes > limit.total_bytes) or (
            limit.total_events is not None and used_events > limit.total_events
        )

    def _met_bounds(self, would_bytes: int, would_events: int) -> Sequence[_Bound]:
        """The bounds that apply to an append. A bound with nothing unread before it does not apply: waiting would not
        help."""
        if not self._passed(would_bytes, would_events):
            return ()
        return [
            item
            for item in self._bounds()
            if (would_bytes if item.rule == "backlog-bytes" else would_events) > item.total and not item.is_empty
        ]

    def _refusal(self, segment: Segment, bound: _Bound) -> PenstockError | None:
        self._report_once()
        if bound.action is LimitAction.NOTIFY:
            return None
        fields: dict[str, object] = {"stream": self.limit.stream, **self.limit.reason, **bound.unread()}
        fields["segment"] = segment.name
        if bound.action is LimitAction.HOLD:
            return QuotaHeldError("backlog quota is reached, the append has to wait", **fields)
        return QuotaExceededError("backlog quota is reached", **fields)

    def report_if_passed(self) -> None:
        """Report a limit that is already exceeded when it is set: otherwise appends made meanwhile would go
        unnoticed."""
        self._look(self._counts)
        if any(item.action is LimitAction.NOTIFY and item.used > item.total for item in self._bounds()):
            self._report_once()

    def _report_once(self) -> None:
        if not self._was_met:
            self._was_met = True
            self._met(self.limit.stream)

    # --- members ------------------------------------------------------------------------------------------

    def attach(self, segment: Segment) -> None:
        """A member was loaded: from here on it is counted as it grows."""
        was = self._members.get(segment.name, (0, 0))
        if was is segment:
            return
        if isinstance(was, tuple):
            self._add(segment.next_length - was[0], segment.next_events - was[1])
        else:
            # An older segment of this name is being deleted, and counts with its last length.
            self._add(segment.next_length, segment.next_events)
        self._members[segment.name] = segment
        segment.gate = self

    def attach_created(self, segment: Segment) -> None:
        """A segment of the stream is created: its growth counts, though no limit lists it yet."""
        self._created[segment.name] = None
        self.attach(segment)

    def detach(self, segment: Segment) -> None:
        """A member leaves memory, or is deleted."""
        segment.gate = None
        if segment.gone:
            self._created.pop(segment.name, None)
        if self._members.get(segment.name) is segment:
            self._members[segment.name] = (segment.next_length, segment.next_events)

    def replace(self, limit: AppendLimit) -> Sequence[str]:
        """Adopt a new limit. Returns the members that it does not name."""
        self.limit = limit
        self._was_met = False
        for name in limit.segments:
            self._created.pop(name, None)
            # A segment that does not exist counts as empty until it is created.
            self._members.setdefault(name, (0, 0))
        listed = dict.fromkeys([*limit.segments, *self._created])
        return [name for name in self._members if name not in listed]

    def remove(self, name: str) -> None:
        """Stop counting the member."""
        member = self._members.pop(name, (0, 0))
        if isinstance(member, tuple):
            self._add(-member[0], -member[1])
        else:
            self._add(-member.next_length, -member.next_events)
            member.gate = None

    def members(self) -> Sequence[str]:
        return list(self._members)

    def counts(self, name: str) -> bool:
        return name in self._members

    def _add(self, size_bytes: int, events: int) -> None:
        self.used_bytes += size_bytes
        self.used_events += events
        self._publish()

    def _publish(self) -> None:
        if self._counts is not None and not self._counting:
            self._counts.publish(self.used_bytes, self.used_events)

    def counted(self) -> None:
        """All existing members are attached: from here on the counts may be published.

        Earlier, the counts would be too low, and a restarted store would let the others exceed the bound."""
        self._counting = False
        self._publish()


class _PartGate:
    """Gate of a transaction or transient segment: checks whether its parent may grow. The part counts once it is
    merged."""

    __slots__ = ("_gates", "_parent")

    def __init__(self, gates: Mapping[str, StreamGate], parent: str) -> None:
        self._gates = gates
        self._parent = parent

    def take(self, segment: Segment, size_bytes: int, events: int, *, single: bool = True) -> PenstockError | None:
        gate = self._gates.get(self._parent)
        return None if gate is None else gate.take_part(segment)

    def count(self, segment: Segment, size_bytes: int, events: int) -> None:
        """Does nothing: parts are not counted."""


class AppendLimits:
    """The limits of a store, by stream. Segments are attached as they are loaded."""

    def __init__(self, shared: SharedCounts | None = None, *, left: Callable[[Segment], None] = lambda _: None) -> None:
        """``shared`` reports what other stores hold of the same streams. It is borrowed. ``left`` is called with each
        segment that leaves memory."""
        self._shared = shared
        self._left = left
        self._by_stream: dict[str, StreamGate] = {}
        self._by_segment: dict[str, StreamGate] = {}
        self._met: dict[str, None] = {}
        self._wake = asyncio.Event()

    # --- called by the directories --------------------------------------------------------------------------

    def segment_created(self, segment: Segment) -> None:
        """The creation is queued."""
        if not segment.is_part and self._by_stream:
            gate = self._by_segment.get(segment.name) or self._by_stream.get(segment.name.rpartition("/")[0])
            if gate is not None:
                self._by_segment[segment.name] = gate
                gate.attach_created(segment)
        self.segment_loaded(segment)

    def segment_loaded(self, segment: Segment) -> None:
        """The segment is in memory."""
        if segment.gate is not None:
            return
        if segment.is_part:
            segment.gate = _PartGate(self._by_segment, parent_name(segment.name))
        elif self._by_segment:
            gate = self._by_segment.get(segment.name)
            if gate is not None:
                gate.attach(segment)

    def segment_left(self, segment: Segment) -> None:
        """The segment left memory."""
        self._left(segment)
        if isinstance(segment.gate, StreamGate):
            segment.gate.detach(segment)

    # --- limits -------------------------------------------------------------------------------------------

    def used(self, stream: str) -> tuple[int, int]:
        """Bytes and events of the segments that are counted for the stream; zeros if it has no limit."""
        gate = self._by_stream.get(stream)
        return (0, 0) if gate is None else (gate.used_bytes, gate.used_events)

    def unknown(self, limit: AppendLimit) -> Sequence[str]:
        """The segments of the limit that are not counted yet: load them before it is set."""
        gate = self._by_stream.get(limit.stream)
        names = dict.fromkeys(limit.segments)
        return [name for name in names if gate is None or not gate.counts(name)]

    def set(self, limit: AppendLimit, loaded: Sequence[Segment]) -> None:
        """Put a limit in force. ``loaded``: the existing ones among its unknown segments."""
        gate = self._by_stream.get(limit.stream)
        if limit.total_bytes is None and limit.total_events is None:
            if gate is not None:
                del self._by_stream[limit.stream]
                self._drop(gate, gate.members())
            return
        if gate is None:
            counts = None if self._shared is None else self._shared.of(limit.stream)
            gate = self._by_stream[limit.stream] = StreamGate(limit, self._note_reached, counts)
        for name in limit.segments:
            other = self._by_segment.get(name, gate)
            if other is not gate:
                other.remove(name)
            self._by_segment[name] = gate
        self._drop(gate, gate.replace(limit))
        for segment in loaded:
            gate.attach(segment)
        gate.counted()
        gate.report_if_passed()

    def _drop(self, gate: StreamGate, names: Sequence[str]) -> None:
        for name in names:
            gate.remove(name)
            if self._by_segment.get(name) is gate:
                del self._by_segment[name]

    def _note_reached(self, stream: str) -> None:
        self._met[stream] = None
        self._wake.set()

    async def reached(self) -> Sequence[str]:
        """See ``SegmentService.limits_reached``. Cancelled: nothing is lost."""
        while not self._met:
            self._wake.clear()
            await self._wake.wait()
        met, self._met = self._met, {}
        return list(met)
