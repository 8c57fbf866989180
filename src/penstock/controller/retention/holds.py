"""Holds: no rule and no call removes what a hold covers, until the hold is released or has expired.

A hold is one record. A removal is decided under the stream's lock, and reads the holds under it. Placing a hold waits for
that lock and changes the record of the stream, or of the scope, on which every removal is conditional. A decision made
before the hold is refused, or is complete when the call returns. A client that removes bytes by segment, past streams and
cuts, is registered from its check to its end (``removal``), and placing a hold waits for it.
Source: docs/design/0011-retention-policies.md.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.policies import HoldPlaceRecord, HoldRecord
from penstock.codec.control.record import dump_positions
from penstock.codec.control.streams import ScopeRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import Stored, changing, stored
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.cuts import check_bound
from penstock.controller.streams.tails import head_positions
from penstock.controller.streams.workflows import exclusive, settled
from penstock.core.cuts.order import at_or_after, passed_until
from penstock.core.policies.hold_rules import check_extension, check_hold, check_release
from penstock.core.retention.facts import Hold
from penstock.core.segments.placement import parent_name
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    InvalidCutError,
    InvalidNameError,
    NotFoundError,
    PenstockError,
    RetentionHoldError,
    VersionTooNewError,
)
from penstock.model.names import StreamName, parse_segment_name
from penstock.model.retention import HoldInfo, PolicyTarget
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import KEY_ABSENT, TableCheck, TableEntry, TablePut, TableRemoval

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A hold that is in force, and its place in the table."""

    id: str
    scope: str
    record: HoldRecord
    key: bytes
    version: int

    def check(self) -> TableCheck:
        """Return a condition that refuses the batch if the hold was released or changed since it was read."""
        return TableCheck(key=self.key, version=self.version)

    def covers(self, history: StreamHistory, segment: SegmentId, end: int | None) -> bool:
        """Whether the hold covers bytes of the segment before ``end``, or (None) any of it."""
        cut = self.record.cut
        if cut is None:
            return True
        passed = passed_until(history, cut, segment)
        return passed is not None and (end is None or end > passed)

    def refuse(self, what: str) -> RetentionHoldError:
        return RetentionHoldError(
            f"a hold forbids {what}", hold=self.id, owner=self.record.owner, reason=self.record.reason
        )


def in_force(ctx: Context, record: HoldRecord) -> bool:
    """Whether the hold is in force now. It ends once both the wall clock and the retention clock have passed its
    end."""
    clock = ctx.retention_clock
    return record.ended_ms is None and (record.until_ms is None or clock.now_ms() < clock.until_ms(record.until_ms))


def _read(entry: TableEntry) -> HoldRecord:
    """The hold under a key. One that cannot be read covers its whole scope for as long as it exists."""
    try:
        return HoldRecord.decode(entry.value)
    except (CorruptDataError, VersionTooNewError) as error:
        return HoldRecord(
            stream=None, incarnation=0, owner="", reason=f"the hold cannot be read: {error.message}", created_ms=0
        )


def placed(entry: TableEntry) -> Placed:
    """The hold under a key, ended or not."""
    # A key without a legal name is shown with escapes. Like any unreadable hold, it covers its whole scope.
    _, scope, hold_id = (entry.key.decode("utf-8", "backslashreplace") + "//").split("/", 3)[:3]
    return Placed(id=hold_id, scope=scope, record=_read(entry), key=entry.key, version=entry.version)


async def holds_of_scope(ctx: Context, scope: str | None) -> list[Placed]:
    """All holds in force in a scope, or in all."""
    found = [placed(entry) async for entry in ctx.metadata.scan_all(keys.holds(scope))]
    return [item for item in found if in_force(ctx, item.record)]


async def holds_of(ctx: Context, view: StreamView) -> list[Placed]:
    """The holds in force on the stream, those on its scope included. No hold covers internal streams."""
    if view.name.is_internal:
        return []
    return [
        item
        for item in await holds_of_scope(ctx, view.name.scope)
        if item.record.stream is None
        or (item.record.stream == view.name.stream and item.record.incarnation == view.record.incarnation)
    ]


async def ids_of(ctx: Context, holds: Sequence[Placed]) -> list[TableRemoval]:
    """Removals that free the ids of the holds. An id that now names a hold of another scope is kept."""
    entries = await ctx.metadata.entries([keys.hold_place(item.id) for item in holds]) if holds else ()
    places = [stored(entry, HoldPlaceRecord) for entry in entries]
    return [
        place.remove()
        for item, place in zip(holds, places, strict=True)
        if place.value is not None and place.value.scope == item.scope
    ]


async def forget_ended(ctx: Context, scope: str) -> None:
    """Remove the ended holds of a scope that is being deleted, with their ids. Repeatable."""
    found = [placed(entry) async for entry in ctx.metadata.scan_all(keys.holds(scope))]
    # Remove the ids first, because a repeat finds them through the holds.
    await ctx.metadata.remove_if_unchanged(await ids_of(ctx, found))
    await ctx.metadata.remove_prefix(keys.holds(scope))


def to_facts(ctx: Context, holds: Iterable[Placed]) -> list[Hold]:
    """The holds as facts for the planner."""
    return [
        Hold(
            id=item.id,
            owner=item.record.owner,
            reason=item.record.reason,
            until_ms=None if item.record.until_ms is None else ctx.retention_clock.until_ms(item.record.until_ms),
            positions=item.record.cut,
        )
        for item in holds
    ]


def _target_of(found: Placed) -> StreamName | str:
    return found.scope if found.record.stream is None else StreamName(found.scope, found.record.stream)


class Holds:
    """Holds of all scopes.

    ``ended`` is called after the end of each. ``others`` lists holds that are stored elsewhere: those of undos.
    """

    def __init__(
        self,
        ctx: Context,
        ended: Callable[[], None],
        others: Callable[[PolicyTarget], Awaitable[Sequence[HoldInfo]]],
    ) -> None:
        self._ctx = ctx
        self._others = others
        self._ended = ended
        self._last_removal = 0

    async def add(
        self,
        target: StreamName | str,
        *,
        owner: str,
        reason: str,
        until_ms: int | None = None,
        cut: StreamCut | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        """Place a hold. Repeating the same call changes nothing.

        Raises: ScopeNotFoundError, StreamNotFoundError; AlreadyExistsError (the id is another hold's), InvalidArgumentError,
        InvalidCutError (no cut of the stream, or before its head), UnavailableError (removals that began before may
        still be in progress; the hold may be in force: repeat the call).
        """
        check_hold(
            target,
            owner=owner,
            reason=reason,
            until_ms=until_ms,
            cut=cut,
            hold_id=hold_id,
            now_ms=self._ctx.clock.now_ms(),
        )
        return await self._ctx.tasks.run(self._add(target, owner, reason, until_ms, cut, hold_id))

    async def _add(
        self,
        target: StreamName | str,
        owner: str,
        reason: str,
        until_ms: int | None,
        cut: StreamCut | None,
        hold_id: str | None,
    ) -> HoldInfo:
        ctx = self._ctx
        chosen = hold_id or ctx.rng.uuid().hex
        record = HoldRecord(
            stream=target.stream if isinstance(target, StreamName) else None,
            incarnation=0,
            owner=owner,
            reason=reason,
            created_ms=ctx.clock.now_ms(),
            until_ms=until_ms,
        )
        if isinstance(target, StreamName):
            return await self._seen(target, lambda: self._add_to_stream(target, chosen, record, cut))
        return await self._seen(target, lambda: self._add_to_scope(target, chosen, record))

    async def _seen(self, target: StreamName | str, change: Callable[[], Awaitable[HoldInfo]]) -> HoldInfo:
        """Change a hold. When this returns, each removal that has not seen the change is complete or refused."""
        ctx = self._ctx
        if isinstance(target, StreamName):
            async with exclusive(ctx, target):
                info = await changing(change)
        else:
            async with ctx.locks.hold(f"scope/{target}"):
                info = await changing(change)
            # Every earlier decision is complete when this returns.
            await ctx.locks.passed(f"stream/{target}/")
        try:
            # When this returns, client removals that were checked before the hold have ended. Later ones see the hold.
            await ctx.every_removal_passed(target)
        finally:
            # Also after a failure: the change is durable.
            ctx.audit.soon()
            if isinstance(target, StreamName):
                ctx.attention.dirty(target)
            else:
                ctx.attention.dirty_all(target)
        return info

    async def _add_to_scope(self, scope: str, hold_id: str, record: HoldRecord) -> HoldInfo:
        return await self._put(scope, hold_id, record, await self._touched(scope))

    async def _touched(self, target: StreamName | str) -> Sequence[TablePut]:
        """Writes the record that removals check. One that was decided without the hold fails, and is decided again."""
        if isinstance(target, StreamName):
            view = await settled(self._ctx, target)
            return [view.put(view.record)]
        found = await self._ctx.metadata.get(keys.scope(target), ScopeRecord)
        return [] if found.value is None else [found.put(found.value)]

    async def _add_to_stream(
        self, name: StreamName, hold_id: str, record: HoldRecord, cut: StreamCut | None
    ) -> HoldInfo:
        ctx = self._ctx
        view = await settled(ctx, name)
        record = replace(record, incarnation=view.record.incarnation)
        if cut is not None:
            history = await ctx.histories.of(view)
            await check_bound(ctx.segments, view, history, cut)
        if cut is not None and not cut.is_unbounded:
            _, head = await ctx.streams.get_with_head(name)
            first = head_positions(history, head.value)
            if not at_or_after(history, cut.positions, first):
                raise InvalidCutError(
                    "a hold cannot keep deleted data: its cut is before the head",
                    stream=str(name),
                    head=dict(first),
                    cut=dict(cut.positions),
                )
            record = replace(record, cut=dict(cut.positions))
        return await self._put(name.scope, hold_id, record, [view.put(view.record)])

    async def _put(self, scope: str, hold_id: str, record: HoldRecord, touched: Sequence[TablePut]) -> HoldInfo:
        """Write the hold with its place and its audit entry, unless it exists."""
        async with self._ctx.locks.hold(f"hold/{hold_id}"):
            return await self._put_alone(scope, hold_id, record, touched)

    async def _put_alone(self, scope: str, hold_id: str, record: HoldRecord, touched: Sequence[TablePut]) -> HoldInfo:
        ctx = self._ctx
        await ctx.streams.check_scope(scope)
        place_entry, entry = await ctx.metadata.entries([keys.hold_place(hold_id), keys.hold(scope, hold_id)])
        place: Stored[HoldPlaceRecord] = stored(place_entry, HoldPlaceRecord)
        known: Stored[HoldRecord] = stored(entry, HoldRecord)
        if place.value is not None and place.value.scope != scope:
            (other,) = await ctx.metadata.entries([keys.hold(place.value.scope, hold_id)])
            if other.version != KEY_ABSENT:
                raise AlreadyExistsError("another hold has this id", hold=hold_id, scope=place.value.scope)
            # An earlier version left the id when it deleted the hold's scope. Hold and id are written in one step, so the
            # put below fails if the hold is there again.
        if known.value is not None and in_force(ctx, known.value):
            if replace(known.value, created_ms=0) != replace(record, created_ms=0):
                raise AlreadyExistsError("another hold has this id", hold=hold_id, owner=known.value.owner)
            return known.value.info(scope, hold_id)
        info = record.info(scope, hold_id)
        await ctx.metadata.put(
            *touched,
            place.put(HoldPlaceRecord(scope=scope)),
            known.put(record),
            *ctx.audit.puts([_entry(AuditKind.HOLD, info)]),
        )
        return info

    @asynccontextmanager
    async def removal(self, segment: str) -> AsyncIterator[None]:
        """A removal by segment, from its check to its end. ``Context.removals_passed`` waits for those that have begun."""
        try:
            name, _ = parse_segment_name(parent_name(segment))
        except InvalidNameError:
            yield
            return
        # The name is unique: removals do not wait for each other, nor for the workflows of the stream.
        self._last_removal += 1
        async with self._ctx.locks.hold(f"removal/{name}/{self._last_removal}"):
            yield

    async def list(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        """Holds in force on a stream (its scope's included), in a scope, or all; sorted by scope, stream, id.

        Raises: ScopeNotFoundError, StreamNotFoundError.
        """
        ctx = self._ctx
        if isinstance(target, StreamName):
            found = await holds_of(ctx, await ctx.streams.get(target))
        else:
            if target is not None:
                await ctx.streams.check_scope(target)
            found = await holds_of_scope(ctx, target)
        infos = [item.record.info(item.scope, item.id) for item in found]
        infos += await self._others(target)
        return tuple(sorted(infos, key=lambda info: (info.scope, str(info.stream or ""), info.id)))

    async def extend(self, hold_id: str, *, owner: str, until_ms: int | None = None) -> HoldInfo:
        """Let a hold end later. See ``ControlPlane.holds.extend``."""
        check_release(owner)
        found, _ = await self._find(hold_id)
        target = _target_of(found)
        return await self._ctx.tasks.run(self._seen(target, lambda: self._extend(target, hold_id, owner, until_ms)))

    async def _extend(self, target: StreamName | str, hold_id: str, owner: str, until_ms: int | None) -> HoldInfo:
        ctx = self._ctx
        async with ctx.locks.hold(f"hold/{hold_id}"):
            found, entry = await self._find(hold_id)
            if _target_of(found) != target:
                raise ConflictError("the hold was released, and another one has its id now", hold=hold_id)
            check_extension(found.record.until_ms, until_ms)
            extended = replace(HoldRecord.decode(entry.value), until_ms=until_ms)
            info = extended.info(found.scope, hold_id)
            if extended != found.record:
                await ctx.metadata.put(
                    *await self._touched(target),
                    TablePut(key=entry.key, value=extended.encode(), version=entry.version),
                    *ctx.audit.puts([_entry(AuditKind.HOLD, info, {"by": owner})]),
                )
            return info

    async def _find(self, hold_id: str) -> tuple[Placed, TableEntry]:
        """The hold in force with this id. Raises NotFoundError."""
        place = await self._ctx.metadata.get(keys.hold_place(hold_id), HoldPlaceRecord)
        if place.value is not None:
            (entry,) = await self._ctx.metadata.entries([keys.hold(place.value.scope, hold_id)])
            if entry.version >= 0 and in_force(self._ctx, _read(entry)):
                return placed(entry), entry
        raise NotFoundError("no such hold", hold=hold_id)

    async def release(self, hold_id: str, *, owner: str) -> HoldInfo:
        """Release a hold, and record who did. Raises NotFoundError, InvalidArgumentError."""
        check_release(owner)
        return await self._ctx.tasks.run(self._release(hold_id, owner))

    async def _release(self, hold_id: str, owner: str) -> HoldInfo:
        async with self._ctx.locks.hold(f"hold/{hold_id}"):
            return await changing(lambda: self._release_alone(hold_id, owner))

    async def _release_alone(self, hold_id: str, owner: str) -> HoldInfo:
        found, entry = await self._find(hold_id)
        target = _target_of(found)
        gate = await self._ctx.gate.puts("release", target, {"hold": hold_id, "owner": owner})
        await self._end(found, entry, {"by": owner}, gate)
        return found.record.info(found.scope, found.id)

    async def _end(
        self, found: Placed, entry: TableEntry, why: dict[str, object], gate: Sequence[TablePut | TableCheck] = ()
    ) -> None:
        """End the hold durably with its audit entry, then remove its record."""
        ctx = self._ctx
        ended = replace(found.record, ended_ms=ctx.clock.now_ms())
        info = found.record.info(found.scope, found.id)
        try:
            await ctx.metadata.put(
                TablePut(key=entry.key, value=ended.encode(), version=entry.version),
                *gate,
                *ctx.audit.puts([_entry(AuditKind.UNHOLD, info, why)]),
            )
            # After a crash here, the remaining record has no effect, and the next sweep removes it.
            await self._remove(found)
        finally:
            # Also after a failure: the end can be durable although the answer was lost.
            ctx.audit.soon()
            self._look_again(found)

    def _look_again(self, found: Placed) -> None:
        self._ended()
        if found.record.stream is None:
            self._ctx.attention.dirty_all(found.scope)
        else:
            self._ctx.attention.dirty(StreamName(found.scope, found.record.stream))

    async def sweep(self) -> int:
        """Remove expired holds and the remains of interrupted releases; returns how many."""
        ctx = self._ctx
        over = [entry async for entry in ctx.metadata.scan_all(keys.holds(None)) if not in_force(ctx, _read(entry))]
        for seen in over:
            try:
                await self._remove_ended(seen)
            except PenstockError as error:
                log.warning("ended hold could not be removed yet", extra={"hold": placed(seen).id, "error": str(error)})
        return len(over)

    async def _remove_ended(self, seen: TableEntry) -> None:
        ctx, found = self._ctx, placed(seen)
        async with ctx.locks.hold(f"hold/{found.id}"):
            (entry,) = await ctx.metadata.entries([seen.key])
            if entry.version != seen.version:
                # Since it was listed, the hold was released and removed, or placed again.
                return
            if found.record.ended_ms is None:
                await self._end(found, entry, {"by": "", "rule": "until_ms"})
            else:
                await self._remove(found)
        self._look_again(found)

    async def _remove(self, found: Placed) -> None:
        """Remove the record of an ended hold, and its id unless a hold of another scope now has the id."""
        ctx = self._ctx
        await ctx.metadata.remove_if_unchanged(await ids_of(ctx, [found]))
        await ctx.metadata.remove_keys([found.key])


def _entry(kind: AuditKind, info: HoldInfo, more: dict[str, object] | None = None) -> AuditEntry:
    fields: dict[str, object] = {
        "hold": info.id,
        "owner": info.owner,
        "reason": info.reason,
        "until_ms": info.until_ms,
        "cut": None if info.cut is None else dump_positions(info.cut.positions),
        "by": info.owner,
        **(more or {}),
    }
    return AuditEntry(kind=kind, target=info.scope if info.stream is None else str(info.stream), fields=fields)
