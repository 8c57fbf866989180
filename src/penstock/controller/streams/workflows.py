"""Settles a stream: finishes a pending workflow before the next one is decided.

All workflows have one shape: decide, write the intent (durable), perform repeatable steps, write the end. A call that
holds the stream's lock and finds an intent performs it, whether a crash, a failure or a cancelled caller left it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import assert_never

from penstock.codec.control.streams import StreamState, WorkKind
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import finish_restoration
from penstock.controller.grace.undo import finish_undo
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import finish_scale
from penstock.controller.streams.lifecycle import finish_creation, finish_deletion, finish_sealing
from penstock.controller.streams.truncation import finish_truncation
from penstock.controller.transactions.commits import drain, finish_roll
from penstock.model.callers import unattributed
from penstock.model.errors import StreamNotFoundError
from penstock.model.names import StreamName


@asynccontextmanager
async def exclusive(ctx: Context, name: StreamName) -> AsyncIterator[None]:
    """Hold the stream's lock: nobody else in this process changes the stream."""
    async with ctx.locks.hold(f"stream/{name}"):
        yield


async def settle(ctx: Context, name: StreamName) -> StreamView | None:
    """Finish pending work on the stream and return its state afterwards; None if there is no such stream.

    The caller holds the stream's lock. Audit entries do not name the current caller: another call, or none, began the
    work.
    """
    with unattributed():
        return await _settle(ctx, name)


async def _settle(ctx: Context, name: StreamName) -> StreamView | None:
    view = await ctx.streams.find(name)
    while view is not None:
        record = view.record
        if record.work is not None:
            view = await _finish_work(ctx, view, record.work.kind)
        elif record.state is StreamState.CREATING:
            view = await finish_creation(ctx, view)
        elif record.state is StreamState.SEALING:
            view = await finish_sealing(ctx, view)
        elif record.state is StreamState.DELETING:
            await finish_deletion(ctx, view)
            view = None
        elif record.state is StreamState.RESTORING:
            view = await finish_restoration(ctx, view)
        else:
            return await drain(ctx, view)
    return None


async def _finish_work(ctx: Context, view: StreamView, kind: WorkKind) -> StreamView:
    match kind:
        case WorkKind.SCALE:
            return await finish_scale(ctx, view)
        case WorkKind.ROLL:
            return await finish_roll(ctx, view)
        case WorkKind.TRUNCATE:
            return await finish_truncation(ctx, view)
        case WorkKind.UNDO:
            return await finish_undo(ctx, view)
        case _:
            assert_never(kind)


async def settled(ctx: Context, name: StreamName) -> StreamView:
    """As ``settle``. Raises ScopeNotFoundError, StreamNotFoundError."""
    view = await settle(ctx, name)
    if view is None:
        await ctx.streams.check_scope(name.scope)
        raise StreamNotFoundError("no such stream", stream=str(name))
    return view


async def settle_alone(ctx: Context, name: StreamName) -> None:
    """Take the stream's lock and settle it."""
    async with exclusive(ctx, name):
        await settle(ctx, name)


def settle_soon(ctx: Context, name: StreamName) -> None:
    """Settle the stream in the background. Many calls cause at most one further run after the current one."""
    if name in ctx.work.waiting:
        return
    ctx.work.waiting.add(name)

    async def run() -> None:
        async with exclusive(ctx, name):
            # From here on this run may miss a new entry of the queue.
            ctx.work.waiting.discard(name)
            await settle(ctx, name)

    ctx.tasks.start(run())
