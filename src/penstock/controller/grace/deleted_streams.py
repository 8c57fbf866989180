"""Deleted streams: listed and restored while their grace lasts, and freed by the sweeper when it ends.

Source: docs/design/0037-deleted-streams.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.streams import StreamRecord, StreamState
from penstock.codec.control.truncations import DeletedRecord, DeletedState
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import (
    delete_data,
    finish_restoration,
    forget_deleted,
    load_deleted,
    placed_at,
    restored_record,
    with_mark,
)
from penstock.controller.metadata import Stored, changing, create, stored
from penstock.controller.protection.guard import guard_of
from penstock.controller.retention.policies import POLICIES, restorable
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.workflows import exclusive, settle
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InternalError,
    PenstockError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName
from penstock.ports.control.streams import DeletedStream, RestoredStream
from penstock.ports.data.tables import KEY_ABSENT, TableCheck

log = logging.getLogger(__name__)

CLOCK_RECORD_MS = 60_000
"""Maximum age of the clock's record while a grace runs. A crash can extend the grace by this much."""


class DeletedStreams:
    """Deleted streams of all scopes."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def list_deleted(self, scope: str | None = None) -> Sequence[DeletedStream]:
        """See ``ports.control.streams.Streams.list_deleted``."""
        ctx = self._ctx
        prefix = retention_keys.DELETED if scope is None else retention_keys.deleted_in(scope)
        to_wall_ms = ctx.clock.now_ms() - ctx.retention_clock.now_ms()
        found: list[DeletedStream] = []
        async for entry in ctx.metadata.scan_all(prefix):
            place = ctx.set_aside.key(entry, retention_keys.deleted_stream)
            record = ctx.set_aside.read(entry, DeletedRecord)
            if place is not None and record is not None and record.state is DeletedState.KEPT:
                found.append(
                    DeletedStream(
                        stream=place[0],
                        incarnation=place[1],
                        deleted_ms=record.deleted_ms,
                        restorable_until_ms=record.due_ms + to_wall_ms,
                        rule=record.rule,
                        size_bytes=record.size_bytes,
                        caller=dict(record.caller),
                    )
                )
        return found

    # --- restoring -----------------------------------------------------------------------------------------------

    async def restore(self, stream: StreamName, *, incarnation: int | None = None) -> RestoredStream:
        """See ``ControlPlane.streams.restore``."""
        return await self._ctx.tasks.run(self._restore(stream, incarnation))

    async def _restore(self, name: StreamName, incarnation: int | None) -> RestoredStream:
        ctx = self._ctx
        dropped: list[str] = []
        async with AsyncExitStack() as checked, AsyncExitStack() as stack:
            # The policies above the stream must not change between their check and the write.
            await checked.enter_async_context(ctx.locks.hold(POLICIES))
            await stack.enter_async_context(exclusive(ctx, name))
            record, begun = await changing(lambda: self._begin(name, incarnation))
            await checked.aclose()
            ended = await finish_restoration(ctx, begun, dropped)
        ctx.audit.soon()
        ctx.attention.dirty(name)
        ctx.telemetry.add("restored_streams")
        return RestoredStream(
            stream=name,
            incarnation=ended.record.incarnation,
            sealed=ended.record.state is StreamState.SEALED,
            size_bytes=record.size_bytes,
            dropped_subscribers=tuple(sorted(dropped)),
        )

    async def _begin(self, name: StreamName, incarnation: int | None) -> tuple[DeletedRecord, StreamView]:
        """Decide in one step, which also checks the scope and the name."""
        ctx = self._ctx
        if await settle(ctx, name) is not None:
            raise AlreadyExistsError("nothing was restored: a stream of this name exists", stream=str(name))
        found, number = await self._chosen(name, incarnation)
        (scope,) = await ctx.metadata.entries([keys.scope(name.scope)])
        try:
            await ctx.streams.check_scope(name.scope)
        except ScopeNotFoundError as error:
            raise ScopeNotFoundError(
                "the scope of the deleted stream does not exist; create it, then restore the stream",
                scope=name.scope,
            ) from error
        record, conditions = await restored_record(ctx, name, number)
        if record is None or found.value is None:
            raise InternalError("record of a deleted stream is missing", stream=str(name), incarnation=number)
        record, levels = await restorable(ctx, StreamView(name=name, record=record, version=KEY_ABSENT))
        restoring = replace(record, state=StreamState.RESTORING)
        entry = _entry(AuditKind.RESTORE, name, found.value)
        versions = await ctx.metadata.put(
            create(keys.stream(name), restoring),
            ctx.work.put(name),
            found.put(replace(found.value, state=DeletedState.RESTORING)),
            TableCheck(key=scope.key, version=scope.version),
            *conditions,
            *levels,
            *ctx.audit.puts([entry]),
        )
        begun = StreamView(name=name, record=restoring, version=versions[0], marker=versions[1])
        return found.value, begun

    async def _chosen(self, name: StreamName, incarnation: int | None) -> tuple[Stored[DeletedRecord], int]:
        """The deleted stream of that incarnation, or the one that was deleted last."""
        found: list[tuple[Stored[DeletedRecord], int]] = []
        async for entry in self._ctx.metadata.scan_all(retention_keys.deleted_in(str(name))):
            place = self._ctx.set_aside.key(entry, retention_keys.deleted_stream)
            if place is not None and incarnation in (None, place[1]):
                found.append((stored(entry, DeletedRecord), place[1]))
        kept = [item for item in found if item[0].value is not None and item[0].value.state is DeletedState.KEPT]
        if kept:
            # Versions grow with every change of the table, independently of clocks.
            return max(kept, key=lambda item: item[0].version)
        if found:
            raise ConflictError("the grace of the deleted stream has ended", stream=str(name))
        if incarnation is not None:
            raise StreamNotFoundError(
                "no deleted stream of this name and incarnation can be restored",
                stream=str(name),
                incarnation=incarnation,
            )
        raise StreamNotFoundError(
            "no deleted stream of this name can be restored: its grace has ended, or there was none", stream=str(name)
        )

    # --- the end of the grace ------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Free the data of deleted streams whose grace has ended, unless a hold on their scope keeps it."""
        ctx = self._ctx
        is_waiting = False
        now_ms = ctx.retention_clock.now_ms()
        for entry in [entry async for entry in ctx.metadata.scan_all(retention_keys.DELETED)]:
            place = ctx.set_aside.key(entry, retention_keys.deleted_stream)
            record = ctx.set_aside.read(entry, DeletedRecord)
            if place is None or record is None:
                continue
            if record.state is DeletedState.KEPT and record.due_ms > now_ms:
                is_waiting = True
                continue
            try:
                await ctx.tasks.run(self._end(*place))
            except PenstockError as error:
                log.warning(
                    "deleted stream could not be freed yet", extra={"stream": str(place[0]), "error": str(error)}
                )
        if is_waiting:
            await ctx.retention_clock.record_within(CLOCK_RECORD_MS)

    async def _end(self, name: StreamName, incarnation: int) -> None:
        ctx = self._ctx
        async with exclusive(ctx, name):
            # The deletion itself may still be under way: its records are moved first.
            await settle(ctx, name)
            if not await changing(lambda: self._begin_end(name, incarnation)):
                return
            for item in with_mark(name):
                await delete_data(ctx, item, place=placed_at(item, incarnation))
            await forget_deleted(ctx, name, incarnation)

    async def _begin_end(self, name: StreamName, incarnation: int) -> bool:
        """Mark the record if needed, so that the stream can no longer be restored. Returns whether to free the data."""
        ctx = self._ctx
        found = await load_deleted(ctx, name, incarnation)
        record = found.value
        if record is not None and record.state is DeletedState.RESTORING:
            # The stream is restored. Only the last step is missing: the removal of this record.
            await ctx.metadata.remove_if_unchanged([found.remove()])
            return False
        if record is None or record.state is DeletedState.ENDING:
            return record is not None
        if record.due_ms > ctx.retention_clock.now_ms():
            return False
        own = await ctx.metadata.get(placed_at(name, incarnation)(keys.stream(name)), StreamRecord)
        if own.value is None:
            raise InternalError("record of a deleted stream is missing", stream=str(name), incarnation=incarnation)
        guard = await guard_of(ctx, StreamView(name=name, record=own.value, version=own.version))
        if guard.holds:
            return False
        ending = replace(record, state=DeletedState.ENDING)
        entry = _entry(AuditKind.RELEASE, name, record)
        await ctx.metadata.put(found.put(ending), *guard.checks, *ctx.audit.puts([entry]))
        ctx.audit.soon()
        ctx.telemetry.add("released_bytes", record.size_bytes or 0)
        return True


def _entry(kind: AuditKind, name: StreamName, record: DeletedRecord) -> AuditEntry:
    return AuditEntry(
        kind=kind,
        target=str(name),
        fields={"bytes": record.size_bytes, "deleted_ms": record.deleted_ms, "rule": record.rule},
    )
