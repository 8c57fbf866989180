"""Grace: truncated bytes that are kept for a while. They can be restored; they are freed when due, unless a hold covers
them.

A truncation with a grace period leaves a record, ``grace/<stream>/<time>``. Records of a stream are released in order, each
in three repeatable steps: the record is marked (no undo from here on), the store frees the bytes, the record is
deleted. Source: docs/design/0012-retention-clock.md, "Grace".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import PastTruncationsRecord
from penstock.codec.control.record import dump_positions
from penstock.codec.control.streams import HeadRecord
from penstock.codec.control.truncations import GraceRecord, GraceState
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.records import UNDONE, load_grace
from penstock.controller.grace.undo import begin_undo, finish_undo
from penstock.controller.groups.moved_subscribers import forget_moves
from penstock.controller.metadata import Stored, changing
from penstock.controller.protection.guard import Guard, guard_of
from penstock.controller.segments import delete_segments
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.workflows import exclusive, settle, settled
from penstock.controller.tasks import each
from penstock.core.cuts.order import head_of, segments_to_delete, storage_offsets
from penstock.core.planner_json.stream import encode_cut
from penstock.core.streams.history import StreamHistory
from penstock.model.answers.undo import LostTruncation, RestoredSubscriber, UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError, SegmentNotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.retention import HoldInfo, PolicyTarget
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass

HELD_AGAIN_MS = 600_000
"""Time until bytes that a hold keeps are checked again. Releasing the hold causes a check at once."""


# --- undo --------------------------------------------------------------------------------------------------------


async def undo(ctx: Context, name: StreamName) -> StreamCut:
    """Undo the last truncation whose grace has not ended, and return the new head.

    Rules do not remove the restored data before the time at which its grace would have ended.
    Raises: ScopeNotFoundError, StreamNotFoundError; ConflictError if there is nothing to undo.
    """
    return (await ctx.tasks.run(_undo(ctx, name, None))).head


async def undo_since(ctx: Context, name: StreamName, *, since_ms: int | None) -> UndoneTruncations:
    """As ``undo``, for all truncations at or after that time (wall clock), newest first; None: only the last one.

    Each is one step. To finish an interrupted call, repeat it. See ``ControlPlane.retention.undo``.
    """
    done = await ctx.tasks.run(_undo(ctx, name, since_ms))
    past = await ctx.metadata.get(keys.past_truncations(name), PastTruncationsRecord)
    left = [] if past.value is None or since_ms is None else [x for x in past.value.truncations if x.at_ms >= since_ms]
    return UndoneTruncations(
        stream=str(name),
        head=encode_cut(done.head.positions),
        head_cut=done.head.to_text(),
        truncations=len(done.records),
        bytes=sum(item.size_bytes for item in done.records),
        protected_until_ms=ctx.clock.now_ms() + done.records[-1].due_ms - ctx.retention_clock.now_ms(),
        subscribers=[item for _, item in sorted(done.moved.items())],
        not_restored=[LostTruncation(at_ms=item.at_ms, rule=item.rule, bytes=item.bytes) for item in left],
    )


@dataclass(slots=True)
class _Undone:
    """Result of one call: the undone truncations, newest first, and the outcome for each subscriber."""

    head: StreamCut
    records: list[GraceRecord]
    moved: dict[str, RestoredSubscriber]


async def _undo(ctx: Context, name: StreamName, since_ms: int | None) -> _Undone:
    done = _Undone(StreamCut(name, {}), [], {})

    async def attempt() -> bool:
        view = await settled(ctx, name)
        last = next((item for item in reversed((await load_grace(ctx.metadata, name)).values) if _is_kept(item)), None)
        is_wanted = last is not None and (since_ms is None or _wall_ms(last) >= since_ms)
        if done.records and not (since_ms is not None and is_wanted):
            return False
        if last is None or not is_wanted:
            raise ConflictError("no truncation of the stream can be undone", stream=str(name))
        moved: list[RestoredSubscriber] = []
        view = await finish_undo(ctx, await begin_undo(ctx, view), moved)
        done.moved |= {item.name: item for item in moved}
        done.records.append(last)
        head = await ctx.metadata.get(keys.head(name), HeadRecord)
        history = await ctx.histories.of(view)
        done.head = StreamCut(name, dict((head.value or HeadRecord()).cut or head_of(history)))
        return True

    async with exclusive(ctx, name):
        while await changing(attempt):
            continue
    ctx.audit.soon()
    return done


def _is_kept(record: GraceRecord) -> bool:
    return record.state is GraceState.KEPT


def _wall_ms(record: GraceRecord) -> int:
    return record.at_ms if record.wall_ms is None else record.wall_ms


async def undo_holds(ctx: Context, target: PolicyTarget) -> Sequence[HoldInfo]:
    """The holds that undos have placed. Each ends by itself at its end time (wall clock)."""
    found: list[HoldInfo] = []
    prefix = retention_keys.GRACES if target is None else f"grace/{target}/".encode()
    now_ms, wall_ms = ctx.retention_clock.now_ms(), ctx.clock.now_ms()
    async for entry in ctx.metadata.scan_all(prefix):
        record = ctx.set_aside.read(entry, GraceRecord)
        if record is None or record.state is not GraceState.UNDONE or record.due_ms <= now_ms:
            continue
        _, scope, stream, _ = entry.key.decode().split("/")
        name = StreamName(scope, stream)
        found.append(
            HoldInfo(
                id=f"{UNDONE}-{record.at_ms}",
                scope=scope,
                stream=name,
                owner="undo",
                reason="a truncation was undone; rules do not remove the restored data",
                created_ms=wall_ms - (now_ms - record.at_ms),
                until_ms=wall_ms + record.due_ms - now_ms,
                cut=StreamCut(name, dict(record.before)),
            )
        )
    return found


# --- release -----------------------------------------------------------------------------------------------------


async def release_due(ctx: Context, name: StreamName) -> int | None:
    """Free the bytes that are due, oldest first. Returns when to check again (retention clock); None: nothing is left.

    Bytes that a hold covers are not freed, nor any after them. A deleted stream has nothing left.
    """
    return await ctx.tasks.run(_release_due(ctx, name))


async def _release_due(ctx: Context, name: StreamName) -> int | None:
    async def attempt() -> int | None:
        view = await settle(ctx, name)
        if view is None:
            return None
        return await _Release(ctx, view, await ctx.histories.of(view)).run()

    async with exclusive(ctx, name):
        return await changing(attempt)


class _Release:
    """One pass over a stream's grace records, under its lock."""

    def __init__(self, ctx: Context, view: StreamView, history: StreamHistory) -> None:
        self._ctx = ctx
        self._view = view
        self._history = history

    async def run(self) -> int | None:
        now_ms = self._ctx.retention_clock.now_ms()
        grace = await load_grace(self._ctx.metadata, self._view.name)
        due: list[int] = []
        blocked = False
        for item in grace.records:
            record = item.value
            if record is None:
                continue
            if record.state is GraceState.UNDONE:
                if record.due_ms > now_ms:
                    due.append(record.due_ms)
                else:
                    await self._ctx.metadata.remove(item.remove())
            elif not blocked:
                if record.state is GraceState.RELEASING:
                    await self._release(item, record, None)
                elif record.due_ms <= now_ms and (guard := await self._unheld(record)) is not None:
                    await self._release(item, record, guard)
                else:
                    # Later ones wait for this one: freeing them first would leave a gap in the kept bytes.
                    blocked = True
                    due.append(record.due_ms if record.due_ms > now_ms else now_ms + HELD_AGAIN_MS)
        return min(due, default=None)

    async def _unheld(self, record: GraceRecord) -> Guard | None:
        """The guard of the release. None if a hold covers any of the bytes, up to the end of the truncation."""
        guard = await guard_of(self._ctx, self._view)
        return None if guard.covers(self._history, record.after) else guard

    async def _release(self, found: Stored[GraceRecord], record: GraceRecord, guard: Guard | None) -> None:
        ctx, view, history = self._ctx, self._view, self._history
        version = found.version
        if guard is not None:
            marked = found.put(replace(record, state=GraceState.RELEASING))
            versions = await ctx.metadata.put(
                marked, view.put(view.record), *guard.checks, *ctx.audit.puts([_entry(view.name, record)])
            )
            version = versions[0]
            self._view = view.changed(view.record, versions[1])
            ctx.audit.soon()
        gone = segments_to_delete(history, record.before or None, record.after)
        offsets = storage_offsets(record.after)

        async def release(segment: SegmentId) -> None:
            try:
                await ctx.segments.release(segment_name(view.name, segment), offsets[segment])
            except SegmentNotFoundError:
                # A later truncation passed it and an earlier attempt deleted it, but ended before it removed this
                # record.
                return

        await each([segment for segment, offset in offsets.items() if offset > 0], release)
        await delete_segments(ctx.segments, [segment_name(view.name, segment) for segment in gone])
        await forget_moves(ctx, view.name, record.at_ms)
        ctx.telemetry.add("released_bytes", record.size_bytes)
        await ctx.metadata.remove(Stored(key=found.key, value=record, version=version).remove())


def _entry(name: StreamName, record: GraceRecord) -> AuditEntry:
    return AuditEntry(
        kind=AuditKind.RELEASE,
        target=str(name),
        fields={
            "before": dump_positions(record.before),
            "after": dump_positions(record.after),
            "bytes": record.size_bytes,
            "truncated_at_ms": record.at_ms,
        },
    )
