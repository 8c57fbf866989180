"""What guards a stream against removals: the holds on it, and the retention locks of its policy.

Source: docs/design/0011-retention-policies.md, docs/design/0054-locks.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.control.policies import HoldRecord
from penstock.codec.control.record import Positions
from penstock.controller.context import Context
from penstock.controller.retention.holds import Placed, holds_of
from penstock.controller.retention.policies import Levels, load_levels
from penstock.controller.stream_view import StreamView
from penstock.core.cuts.order import at_or_after
from penstock.core.policies.locks import Promise, promises
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import InvalidNameError
from penstock.model.names import TABLE_SUFFIX, parse_segment_name
from penstock.model.retention import Level
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import TableCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The holds and locks on a stream, and the checks that refuse a removal if one was added after its decision.

    A hold on the stream changes the stream's record, and a hold on the scope changes the scope's record. A lock changes the
    document of its level; the stream's own is in its record. A removal writes the stream's record and checks the others:
    every batch that decides a removal contains ``checks``. ``locks`` stop what people request; rules keep the locked
    minimum in any case.
    """

    holds: Sequence[Placed]
    locks: Sequence[Promise]
    checks: Sequence[TableCheck]

    def check_deletion(self) -> None:
        """Raises RetentionHoldError if any hold is on the stream, RetentionLockError if a lock is in force."""
        for item in self.holds:
            raise item.refuse("the deletion of the stream")
        for lock in self.locks:
            raise lock.refuse("the deletion of the stream")

    def check_truncation(self, history: StreamHistory, cut: Positions) -> None:
        """Raises RetentionHoldError if a hold covers data before ``cut``, RetentionLockError if a lock is in force."""
        for item in self.holds:
            if item.record.cut is None or not at_or_after(history, item.record.cut, cut):
                raise item.refuse("the truncation")
        for lock in self.locks:
            raise lock.refuse("a truncation by hand; the rules of the policy delete what is past its minimum")

    def covers(self, history: StreamHistory, cut: Positions) -> bool:
        """Whether a hold covers data before ``cut``."""
        cuts = [item.record.cut for item in self.holds]
        return any(held is None or not at_or_after(history, held, cut) for held in cuts)


async def guard_of(ctx: Context, view: StreamView) -> Guard:
    """The guard of a removal from the stream. Nothing guards internal streams."""
    if view.name.is_internal:
        return Guard(holds=(), locks=(), checks=())
    # The documents and the scope's record are read before the holds: a hold that the scan misses changes the record later.
    levels = await load_levels(ctx, view)
    holds = await holds_of(ctx, view)
    return Guard(holds=holds, locks=locks_of(ctx, levels), checks=levels.checks)


def locks_of(ctx: Context, levels: Levels) -> Sequence[Promise]:
    """The locks in force on a stream, the one that ends last first."""
    return promises(levels.documents, now_ms=ctx.retention_clock.certain_ms())


def as_holds(view: StreamView, guard: Guard) -> list[Placed]:
    """The locks of a stream in the form of holds on all of it, for what they defer. Ids of real holds have no colon."""
    found: list[Placed] = []
    for lock in guard.locks:
        own = view.check() if lock.level is Level.STREAM else guard.checks[0 if lock.level is Level.SCOPE else 1]
        record = HoldRecord(
            stream=view.name.stream,
            incarnation=view.record.incarnation,
            owner="retention policy",
            reason=f"retain.lock_until of the {lock.level.value}'s policy",
            created_ms=0,
            until_ms=lock.until_ms,
        )
        hold_id = f"lock:{lock.level.value}"
        found.append(Placed(id=hold_id, scope=view.name.scope, record=record, key=own.key, version=own.version))
    return found


async def check_removal(ctx: Context, segment: str, offset: int | None, *, by_client: bool = False) -> None:
    """Raises RetentionHoldError if a hold covers bytes of the segment before ``offset`` (None: any of it).

    For removals by segment, without a stream or cut. No hold covers a segment that is not part of a stream, such as
    a transaction's segment. ``by_client``: also RetentionLockError if a lock on the stream is in force.
    """
    try:
        name, part = parse_segment_name(segment)
    except InvalidNameError:
        return
    view = await ctx.streams.find(name)
    if view is None:
        if by_client and name.stream.endswith(TABLE_SUFFIX):
            await ctx.gate.check_segment(name)
        return
    history = await ctx.histories.of(view)
    guard = await guard_of(ctx, view)
    for item in guard.holds:
        if item.covers(history, part, offset):
            raise item.refuse("the removal")
    if by_client and offset != 0:
        await ctx.gate.check_segment(name)
        for lock in guard.locks:
            raise lock.refuse("the removal", stream=str(name))
