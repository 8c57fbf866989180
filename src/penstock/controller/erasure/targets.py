"""The streams that the targets of a case stand for: those that exist, and deleted ones that can be restored."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.left_tables import all_left_tables
from penstock.core.cases.case import EVERYTHING, concerns
from penstock.model.errors import ScopeNotFoundError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.ports.data.tables import KEY_ABSENT


async def check_exist(ctx: Context, targets: Sequence[str]) -> None:
    """Raises ScopeNotFoundError, StreamNotFoundError: a case about a mistyped name, or about no stream, would prove that
    nothing is left there."""
    names = [item for item in targets if item != EVERYTHING]
    wanted = [keys.stream(StreamName.parse(item)) if "/" in item else keys.scope(item) for item in names]
    for name, entry in zip(names, await ctx.metadata.entries(wanted), strict=True):
        if entry.version == KEY_ABSENT:
            missing = StreamNotFoundError if "/" in name else ScopeNotFoundError
            left = await _left(ctx, [name])
            raise missing("no such stream or scope; no case was opened", target=name, **left)
    if not await concerned(ctx, targets) and not await restorable(ctx, targets):
        raise StreamNotFoundError(
            "the targets contain no stream; no case was opened",
            targets=" ".join(targets)[:120],
            **await _left(ctx, targets),
        )


async def _left(ctx: Context, targets: Sequence[str]) -> dict[str, str]:
    """Fields of an error: the tables that still have rows of deleted streams, which no case can search."""
    found = [table async for name, _, left in all_left_tables(ctx) if concerns(targets, name) for table in left.tables]
    return {"tables_of_deleted_streams": ", ".join(dict.fromkeys(found))[:500]} if found else {}


async def concerned(ctx: Context, targets: Sequence[str]) -> Sequence[StreamName]:
    """The streams that exist and are covered by the targets."""
    names = [ctx.set_aside.stream(entry, b"stream/") async for entry in ctx.metadata.scan_all(b"stream/")]
    return [name for name in names if name is not None and concerns(targets, name)]


async def restorable(ctx: Context, targets: Sequence[str]) -> str:
    """Why a case about the targets must wait: one of their deleted streams can still be restored. Empty: it need not
    wait."""
    async for entry in ctx.metadata.scan_all(retention_keys.DELETED):
        place = ctx.set_aside.key(entry, retention_keys.deleted_stream)
        if place is not None and concerns(targets, place[0]):
            return f"{place[0]} is deleted and can still be restored; wait for the end of its grace, or restore it"
    return ""
