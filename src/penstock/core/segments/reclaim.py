"""Account for a stream's disk space: bytes in use, and bytes still to be freed, with the reason and the time. Pure.

Every byte that ``spaces`` counts appears exactly once: live, or pending for one reason. Source:
docs/design/0012-retention-clock.md, "The reclaim account".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from penstock.core.cuts.order import Positions, at_or_after, head_of, segments_to_delete
from penstock.core.retention.facts import Hold
from penstock.core.streams.history import StreamHistory
from penstock.model.answers.reclaim import PendingBytes, PendingLease, PendingReason, ReclaimReport
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """Disk space of a segment, as the store reports it (``ports.data.space.SegmentSpace``)."""

    live_bytes: int
    tiered_bytes: int
    pending_free_bytes: int
    freed_bytes: int
    kept_bytes: int = 0
    leased_bytes: int = 0
    leased_until_ms: int | None = None
    partial_bytes: int = 0
    leases: Sequence[PendingLease] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRange:
    """A truncation from ``before`` (empty: the beginning of history) to ``after`` whose bytes are kept until
    ``due_ms``."""

    before: Positions
    after: Positions
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimFacts:
    """A stream. ``segments``: those that the store has, from the oldest kept byte on. ``kept``: oldest first.
    ``holds``: those in force."""

    history: StreamHistory
    head: Positions
    segments: Mapping[SegmentId, SegmentFacts]
    kept: Sequence[KeptRange] = ()
    holds: Sequence[Hold] = ()


def reclaim_report(facts: ReclaimFacts, *, stream: str, at_ms: int) -> ReclaimReport:
    """The account of the stream at that time. Raises InvalidCutError for cuts that do not belong to its history."""
    account = _Account(facts)
    for segment in sorted(facts.segments):
        account.add(segment, facts.segments[segment])
    return account.report(stream, at_ms)


VERSION = 1

_Reason: TypeAlias = tuple[PendingReason, int | None, str, tuple[PendingLease, ...]]


class _Account:
    """Adds up the account."""

    def __init__(self, facts: ReclaimFacts) -> None:
        self._facts = facts
        self._passed = set(segments_to_delete(facts.history, None, facts.head))
        self._ranges = _ranges_by_segment(facts)
        self._pending: dict[_Reason, int] = {}
        self._disk = self._live = self._tiered = self._freed = 0

    def _put(
        self,
        why: PendingReason,
        size: int,
        until_ms: int | None = None,
        name: str = "",
        leases: Sequence[PendingLease] = (),
    ) -> None:
        if size > 0:
            key = (why, until_ms, name, tuple(leases))
            self._pending[key] = self._pending.get(key, 0) + size

    def add(self, segment: SegmentId, space: SegmentFacts) -> None:
        self._disk += space.tiered_bytes + space.pending_free_bytes
        self._freed += space.freed_bytes
        left = space.pending_free_bytes
        if segment in self._passed and not space.kept_bytes:
            # The segment is before the head and nothing keeps it: its deletion has begun or is about to begin.
            left += space.tiered_bytes
            self._give_leased(space, left, PendingReason.DELETED)
            return
        self._live += space.live_bytes
        self._tiered += space.tiered_bytes
        kept = min(space.kept_bytes, left)
        self._give_kept(segment, kept)
        self._give_leased(space, left - kept, PendingReason.CHECKPOINT)

    def _give_leased(self, space: SegmentFacts, left: int, rest: PendingReason) -> None:
        leased = min(space.leased_bytes, left)
        self._put(PendingReason.LEASE, leased, space.leased_until_ms, leases=space.leases)
        partial = min(space.partial_bytes, left - leased)
        self._put(PendingReason.BLOCK, partial)
        self._put(rest, left - leased - partial)

    def _give_kept(self, segment: SegmentId, kept: int) -> None:
        """Assign kept bytes to truncations, oldest first: kept bytes that are not on disk yet are the newest."""
        ranges = self._ranges.get(segment, ())
        for size, why, until_ms, name in ranges:
            given = min(size, kept)
            self._put(why, given, until_ms, name)
            kept -= given
        if kept:
            # A truncation that is being recorded or released now keeps these bytes.
            _, why, until_ms, name = ranges[-1] if ranges else (0, PendingReason.GRACE, None, "")
            self._put(why, kept, until_ms, name)

    def report(self, stream: str, at_ms: int) -> ReclaimReport:
        history, present = self._facts.history, self._facts.segments
        gone = sum(
            length
            for segment, length in history.sealed_lengths.items()
            if segment in self._passed and segment not in present
        )
        order = sorted(
            self._pending,
            key=lambda key: (key[1] is None, key[1] or 0, key[0].value, key[2], [item.id for item in key[3]]),
        )
        return ReclaimReport(
            version=VERSION,
            stream=stream,
            at_ms=at_ms,
            disk_bytes=self._disk,
            live_bytes=self._live,
            tiered_bytes=self._tiered,
            freed_bytes=self._freed + gone,
            pending_bytes=sum(self._pending.values()),
            pending=[
                PendingBytes(bytes=self._pending[key], why=key[0], until_ms=key[1], name=key[2], leases=key[3])
                for key in order
            ],
        )


def _ranges_by_segment(facts: ReclaimFacts) -> dict[SegmentId, list[tuple[int, PendingReason, int | None, str]]]:
    """For each segment the sizes that each truncation keeps of it, oldest first, with why and until when."""
    history = facts.history
    found: dict[SegmentId, list[tuple[int, PendingReason, int | None, str]]] = {}
    blocked: tuple[PendingReason, int | None, str] | None = None
    latest_ms = 0
    for kept in facts.kept:
        # Truncations are released in order: none before an older one.
        latest_ms = max(latest_ms, kept.due_ms)
        blocked = _held(facts, kept) or blocked
        why, until_ms, name = blocked or (PendingReason.GRACE, latest_ms, "")
        if blocked is not None and until_ms is not None:
            until_ms = max(until_ms, latest_ms)
        before = kept.before or head_of(history)
        for segment in segments_to_delete(history, kept.before or None, kept.after):
            size = history.sealed_lengths.get(segment, 0) - max(before.get(segment, 0), 0)
            found.setdefault(segment, []).append((size, why, until_ms, name))
        for segment, offset in kept.after.items():
            size = max(offset, 0) - max(before.get(segment, 0), 0)
            if size > 0:
                found.setdefault(segment, []).append((size, why, until_ms, name))
    return found


def _held(facts: ReclaimFacts, kept: KeptRange) -> tuple[PendingReason, int | None, str] | None:
    """The hold that covers some of the bytes the longest, or None."""
    holds = [
        hold
        for hold in facts.holds
        if hold.positions is None or not at_or_after(facts.history, hold.positions, kept.after)
    ]
    if not holds:
        return None
    last = max(holds, key=lambda hold: (hold.until_ms is None, hold.until_ms or 0, hold.id))
    return PendingReason.HOLD, last.until_ms, last.id
