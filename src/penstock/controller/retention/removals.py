"""The records written in the same step as a truncation: who removed what from which subscriber, and by which rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import PastTruncation, PastTruncationsRecord
from penstock.codec.control.record import Positions, dump_positions
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import kept_puts
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.tails import head_positions, tail_positions
from penstock.core.cuts.order import size_till
from penstock.core.streams.history import StreamHistory
from penstock.ports.data.tables import TablePut

MANUAL = "manual"
"""Rule name for an action of a person, not of a policy."""

LEFT = "left"
"""Rule name for a subscription whose reader group was deleted or no longer reads the stream."""


async def truncation_puts(
    ctx: Context,
    view: StreamView,
    history: StreamHistory,
    before: Positions,
    after: Positions,
    *,
    rule: str,
    policy: Mapping[str, Any],
    hurt: Sequence[Mapping[str, Any]] = (),
) -> list[TablePut]:
    """The audit entry of a truncation, and its line in the list of the stream's past truncations. Counts are exact; events
    are None where the cuts are no boundaries of events. Internal streams have none: the audit stream must not report on
    itself."""
    if view.name.is_internal:
        return []
    size = size_till(history, after) - size_till(history, before)
    entry = AuditEntry(
        kind=AuditKind.TRUNCATE,
        target=str(view.name),
        fields={
            "rule": rule,
            "policy": dict(policy),
            "before": dump_positions(before),
            "after": dump_positions(after),
            "bytes": size,
            "events": await ctx.events.between(view.name, history, before, after),
            "subscribers": list(hurt),
        },
    )
    known = await ctx.metadata.get(keys.past_truncations(view.name), PastTruncationsRecord)
    past = PastTruncation(at_ms=ctx.clock.now_ms(), rule=rule, bytes=size, cut=dict(after))
    return [known.put((known.value or PastTruncationsRecord()).with_(past)), *ctx.audit.puts([entry])]


def scope_deletion(scope: str, document: Mapping[str, Any]) -> AuditEntry:
    """The audit entry of an empty scope's deletion, with the policy ``document`` that is deleted with it."""
    return AuditEntry(kind=AuditKind.DELETE, target=scope, fields={"rule": MANUAL, "document": dict(document)})


def group_deletion(scope: str, full_name: str, streams: Sequence[str]) -> AuditEntry:
    """The audit entry of a reader group's deletion. Each stream that it subscribed to also gets its own entry."""
    fields = {"rule": MANUAL, "group": full_name, "streams": list(streams)}
    return AuditEntry(kind=AuditKind.DELETE, target=scope, fields=fields)


async def deletion_puts(ctx: Context, view: StreamView, *, rule: str, policy: Mapping[str, Any]) -> list[TablePut]:
    """The audit entry of a stream's deletion, with everything that is deleted, and the record that keeps its data for
    the grace. Internal streams have neither. ``bytes`` and ``events`` are None if the record of an epoch is lost,
    because then the contents of its segments are not known."""
    if view.name.is_internal:
        return []
    history = await ctx.histories.remaining(view)
    is_whole = history.gap is None
    _, head = await ctx.streams.get_with_head(view.name)
    first = head_positions(history, head.value)
    tail = await tail_positions(ctx, view, history)
    size_bytes = size_till(history, tail) - size_till(history, first) if is_whole else None
    entry = AuditEntry(
        kind=AuditKind.DELETE,
        target=str(view.name),
        fields={
            "rule": rule,
            "policy": dict(policy),
            "before": dump_positions(first),
            "after": dump_positions(tail),
            "bytes": size_bytes,
            "events": await ctx.events.between(view.name, history, first, tail) if is_whole else None,
            "grace_ms": ctx.settings.deletion_grace_ms,
        },
    )
    return [*ctx.audit.puts([entry]), *await kept_puts(ctx, view, rule=rule, size_bytes=size_bytes)]
