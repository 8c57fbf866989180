"""The reclaim report of a stream: the size of its files, what is not yet freed, why and until when."""

from __future__ import annotations

from penstock.codec.control.truncations import GraceState
from penstock.controller.context import Context
from penstock.controller.grace.records import load_grace
from penstock.controller.retention.holds import holds_of, to_facts
from penstock.controller.streams.cuts import asked_again
from penstock.controller.streams.tails import head_positions
from penstock.core.segments.reclaim import KeptRange, ReclaimFacts, SegmentFacts
from penstock.core.segments.reclaim import reclaim_report as account_of
from penstock.model.answers.reclaim import PendingLease, ReclaimReport
from penstock.model.names import StreamName, segment_name
from penstock.ports.data.space import SegmentSpace


@asked_again
async def reclaim_report(ctx: Context, name: StreamName) -> ReclaimReport:
    """The current report; its sums equal those of ``spaces``. Raises ScopeNotFoundError, StreamNotFoundError."""
    view, head = await ctx.streams.get_with_head(name)
    history = await ctx.histories.of(view)
    kept = [item for item in (await load_grace(ctx.metadata, name)).values if item.state is not GraceState.UNDONE]
    start = head_positions(history, head.value)
    # Deleted ones too: their files may wait for a lease, or for the next checkpoint.
    segments = history.index.ids
    names = {segment: segment_name(name, segment) for segment in segments}
    spaces = await ctx.segments.spaces(list(names.values()))
    return account_of(
        ReclaimFacts(
            history=history,
            head=start,
            segments={segment: _facts(spaces[text]) for segment, text in names.items() if text in spaces},
            kept=[KeptRange(before=item.before, after=item.after, due_ms=item.due_ms) for item in kept],
            holds=to_facts(ctx, await holds_of(ctx, view)),
        ),
        stream=str(name),
        at_ms=ctx.retention_clock.now_ms(),
    )


def _facts(space: SegmentSpace) -> SegmentFacts:
    return SegmentFacts(
        live_bytes=space.live_bytes,
        tiered_bytes=space.tiered_bytes,
        pending_free_bytes=space.pending_free_bytes,
        freed_bytes=space.freed_bytes,
        kept_bytes=space.kept_bytes,
        leased_bytes=space.leased_bytes,
        leased_until_ms=space.leased_until_ms,
        partial_bytes=space.partial_bytes,
        leases=tuple(
            PendingLease(id=str(lease.id), until_ms=lease.until_ms, holder=lease.holder) for lease in space.leases
        ),
    )
