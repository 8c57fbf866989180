"""Deletion of an unused stream: decided by a rule, and begun only after its writers are stopped.

Source: docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.codec.control.streams import StreamState, TransactionRecord, TransactionState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing
from penstock.controller.protection.guard import guard_of
from penstock.controller.retention.append_limits import AppendLimits
from penstock.controller.retention.facts import Snapshot, load_subscribers
from penstock.controller.retention.policies import load_levels
from penstock.controller.retention.removals import deletion_puts
from penstock.controller.retention.steps import mattered
from penstock.controller.streams.tails import tail_positions
from penstock.controller.streams.workflows import settle
from penstock.core.retention.facts import RetentionRule
from penstock.model.names import StreamName

log = logging.getLogger(__name__)


async def delete_idle(ctx: Context, name: StreamName, found: Snapshot, limits: AppendLimits) -> bool:
    """Seal and delete the stream, unless it was used since ``found``; returns whether it was deleted.

    Writers are stopped first, and the tail is read again: data that is appended while the rule decides must not be
    deleted. The caller holds the stream's lock. A crash at any point leaves either a stream in use or a deletion that
    the next call finishes. If it leaves writers stopped, the next cycle lets them continue.
    """
    if name.is_internal or found.holds:
        return False
    rule = RetentionRule.IDLE_STREAM
    await limits.hold(found, rule.value)

    async def attempt() -> bool:
        view = await settle(ctx, name)
        if view is None:
            return True
        same = view.record.state is found.view.record.state and view.record.epoch == found.view.record.epoch
        history = await ctx.histories.of(view)
        same = same and await tail_positions(ctx, view, history) == found.tail.positions
        now_there = await load_subscribers(ctx, view)
        same = same and set(now_there) <= set(found.subscribers)
        levels = await load_levels(ctx, view)
        same = same and levels == found.levels
        guard = await guard_of(ctx, view)
        if not same or guard.holds or await _has_open_transactions(ctx, name):
            return False
        state = StreamState.DELETING if view.record.state is StreamState.SEALED else StreamState.SEALING
        ending = replace(view.record, state=state, ending=True)
        puts = await deletion_puts(ctx, view, rule=rule.value, policy=mattered(found, rule))
        await ctx.metadata.put(view.put(ending), ctx.work.put(name), *levels.checks, *guard.checks, *puts)
        ctx.audit.soon()
        await settle(ctx, name)
        return True

    deleted = await changing(attempt)
    await limits.lift(name)
    if deleted:
        log.info("retention deleted an idle stream", extra={"stream": str(name)})
        ctx.telemetry.add("idle_streams_deleted")
    return deleted


async def _has_open_transactions(ctx: Context, name: StreamName) -> bool:
    async for entry in ctx.metadata.scan_all(keys.transactions(name)):
        record = ctx.set_aside.read(entry, TransactionRecord)
        if record is None or record.state is TransactionState.OPEN:
            return True
    return False
