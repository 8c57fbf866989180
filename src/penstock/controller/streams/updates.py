"""Changes of streams. Each call finishes pending work, decides, and performs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

from penstock.codec.control.streams import ScopeRecord, StreamRecord, StreamState, WorkKind
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import mark_stream
from penstock.controller.metadata import changing, stored
from penstock.controller.protection.guard import guard_of
from penstock.controller.retention.audit import check_not_own
from penstock.controller.retention.policies import (
    POLICIES,
    check_own_policy,
    document_of,
    gate_puts,
    load_levels,
    own_policy_puts,
    policy_change,
    shown_policy,
    with_retention,
)
from penstock.controller.retention.removals import MANUAL, deletion_puts, truncation_puts
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.cuts import check_given
from penstock.controller.streams.epochs import begin_scale, finish_scale, put_stream
from penstock.controller.streams.lifecycle import creation_puts, finish_creation, finish_deletion, finish_sealing
from penstock.controller.streams.numbers import first_number
from penstock.controller.streams.tails import head_positions
from penstock.controller.streams.truncation import begin_truncation, finish_truncation
from penstock.controller.streams.workflows import exclusive, settle, settled
from penstock.core.cuts.order import at_or_after
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.core.streams.scaling import plan_resize, plan_scale
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
)
from penstock.model.names import READER_GROUP_PREFIX, SYSTEM_SCOPE, StreamName, check_name
from penstock.model.policies import ScaleType, ScalingPolicy, StreamConfig
from penstock.model.segments import KeyRange, SegmentId
from penstock.ports.control.layout import ScaleResult, ScaleStatus
from penstock.ports.data.tables import KEY_ABSENT, TableCheck, TablePut

T = TypeVar("T")


class StreamChanges:
    """Changes of streams. Work that has begun is not stopped by cancellation of the caller."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    # --- creation ------------------------------------------------------------------------------------------------

    async def create(self, stream: StreamName, config: StreamConfig, *, internal: bool = False) -> None:
        """Raises ScopeNotFoundError, AlreadyExistsError, InvalidNameError, InvalidArgumentError (a number is too large).

        ``internal`` streams may have names that users may not choose.
        """
        # Clients older than reader groups in the controller create the group's stream themselves.
        may_be_internal = internal or stream.stream.startswith(READER_GROUP_PREFIX)
        # Groups that read the store's own streams are in the same scope.
        check_name("scope", stream.scope, internal=may_be_internal and stream.scope == SYSTEM_SCOPE)
        check_name("stream", stream.stream, internal=may_be_internal)
        config.check_storable()
        await self._ctx.tasks.run(self._create(stream, config))

    async def _create(self, name: StreamName, config: StreamConfig) -> None:
        async with AsyncExitStack() as checked, AsyncExitStack() as stack:
            if config.retention is not None:
                # The policies above the stream must not change between their check and the write.
                await checked.enter_async_context(self._ctx.locks.hold(POLICIES))
            await stack.enter_async_context(exclusive(self._ctx, name))
            view = await changing(lambda: self._begin_creation(name, config))
            await checked.aclose()
            if not await self._scope_exists(name.scope):
                # The scope was deleted while the intent was written: undo the creation.
                await self._mark_for_deletion(view)
                raise ScopeNotFoundError("no such scope", scope=name.scope)
            created = await finish_creation(self._ctx, view)
        if config.scaling.type is not ScaleType.FIXED:
            self._ctx.scaling.changed(name)
        if (await load_levels(self._ctx, created)).effective.stream_idle_ms is not None:
            # It may never be written to, so its idle time starts now. All other rules start with the first event.
            self._ctx.attention.dirty(name)

    async def _begin_creation(self, name: StreamName, config: StreamConfig) -> StreamView:
        ctx = self._ctx
        mark = mark_stream(name)
        names = [name] if mark is None else [name, mark]
        found = await ctx.metadata.entries(
            [
                keys.scope(name.scope),
                *(key for item in names for key in (keys.stream(item), keys.number(item))),
                keys.NUMBER_FLOOR,
            ]
        )
        scope = stored(found[0], ScopeRecord).value
        if scope is None or scope.deleting:
            raise ScopeNotFoundError("no such scope", scope=name.scope)
        existing = stored(found[1], StreamRecord).value
        if existing is not None:
            await self._meet_existing(name, existing, config)
            return await self._begin_creation(name, config)
        puts: list[TablePut] = []
        checks: list[TableCheck] = []
        for place, item in enumerate(names):
            if stored(found[1 + 2 * place], StreamRecord).value is not None:
                continue
            number, conditions = first_number(found[2 + 2 * place], found[-1])
            checks += conditions
            settings = config if place == 0 else StreamConfig()
            puts += creation_puts(item, settings, number=number, now_ms=ctx.clock.now_ms())
        if config.retention is not None:
            record = StreamRecord.decode(puts[0].value)
            checks += await check_own_policy(ctx, StreamView(name=name, record=record, version=KEY_ABSENT))
            # A change of a level above finds the stream by its mark.
            puts += own_policy_puts(name, record)
        versions = await ctx.metadata.put(*puts, ctx.work.put(name), *checks)
        record = StreamRecord.decode(puts[0].value)
        return StreamView(name=name, record=record, version=versions[0], marker=versions[len(puts)])

    async def _meet_existing(self, name: StreamName, existing: StreamRecord, config: StreamConfig) -> None:
        """Finish incomplete work under this name; return if the name is free after that."""
        if existing.state is StreamState.CREATING and existing.config != config:
            await settle(self._ctx, name)
            raise AlreadyExistsError("stream exists", stream=str(name))
        if existing.state not in (StreamState.CREATING, StreamState.DELETING):
            raise AlreadyExistsError("stream exists", stream=str(name))
        if await settle(self._ctx, name) is not None:
            raise AlreadyExistsError("stream exists", stream=str(name))

    async def _scope_exists(self, scope: str) -> bool:
        found = await self._ctx.metadata.get(keys.scope(scope), ScopeRecord)
        return found.value is not None and not found.value.deleting

    async def _mark_for_deletion(self, view: StreamView) -> None:
        deleting = await put_stream(self._ctx, view, replace(view.record, state=StreamState.DELETING))
        await finish_deletion(self._ctx, deleting)

    # --- change --------------------------------------------------------------------------------------------------

    async def update(self, stream: StreamName, config: StreamConfig, *, before: StreamConfig | None = None) -> None:
        """Replace the configuration; another number of segments scales. ``before``: see ``ports.control.streams``.

        Raises ConflictError (it is no longer ``before``), InvalidArgumentError (a stream of the store's own, a number is
        too large), StreamSealedError, RetentionLockError (the retention keeps less than a lock promises); CorruptDataError,
        VersionTooNewError if the retention changes and the stream's policy document cannot be read, because the rest of
        the document must be kept.
        """
        check_not_own(stream)
        config.check_storable()
        async with self._ctx.locks.hold(POLICIES):
            await self._ctx.tasks.run(self._change(stream, lambda view: self._update(view, config, before)))

    async def _change(self, name: StreamName, change: Callable[[StreamView], Awaitable[T]]) -> T:
        """Run ``change`` on the settled stream under its lock; retry if another writer was faster."""

        async def attempt() -> T:
            return await change(await settled(self._ctx, name))

        async with exclusive(self._ctx, name):
            return await changing(attempt)

    async def _update(self, view: StreamView, config: StreamConfig, expected: StreamConfig | None) -> None:
        ctx = self._ctx
        check_not_sealed(view)
        history = await ctx.histories.of(view)
        had = view.record.config
        kept = with_retention(view.record, config.retention)
        record = replace(kept, config=replace(config, retention=kept.config.retention))
        if expected is not None and had not in (expected, record.config):
            # The same configuration: an earlier call, whose answer was lost.
            raise ConflictError("the configuration has changed since it was read; read it again", stream=str(view.name))
        own = own_policy_puts(view.name, record)
        marker: list[TablePut | TableCheck] = [*own]
        audit_puts = ctx.audit.puts(policy_change(view.name, view.record, record))
        changed = replace(view, record=record)
        if kept is not view.record:
            before = (await load_levels(ctx, view)).documents
            marker += await check_own_policy(ctx, changed, before)
            marker += await gate_puts(ctx, view.name, before, replace(before, stream=document_of(record)))
        following = _resized(history, had.scaling, config.scaling, view.record.next_number, ctx.clock.now_ms())
        if following is None:
            await put_stream(ctx, view, changed.record, *marker, *audit_puts)
        else:
            await finish_scale(ctx, await begin_scale(ctx, changed, following, *marker, *audit_puts))
        if audit_puts:
            ctx.audit.soon()
        if not own and had.retention is not None:
            # Change the mark last: a mark without a policy costs one read, a policy without a mark would never be
            # applied.
            await ctx.metadata.remove_keys([keys.policy(view.name)])
        if ScaleType.FIXED not in (had.scaling.type, config.scaling.type) or had.scaling.type != config.scaling.type:
            ctx.scaling.changed(view.name)
        ctx.attention.dirty(view.name)

    async def truncate(self, stream: StreamName, cut: StreamCut) -> None:
        """Raises InvalidArgumentError (a stream of the store's own), InvalidCutError, StreamSealedError,
        RetentionHoldError."""
        check_not_own(stream)
        await self._ctx.tasks.run(self._change(stream, lambda view: self._truncate(view, cut)))

    async def _truncate(self, view: StreamView, cut: StreamCut) -> None:
        check_not_sealed(view)
        ctx = self._ctx
        _, head = await ctx.streams.get_with_head(view.name)
        history = await ctx.histories.of(view)
        first = head_positions(history, head.value)
        await check_given(ctx.segments, view, history, cut)
        if at_or_after(history, first, cut.positions):
            # A cut at the head changes nothing, and one before it is an error; holds matter for neither.
            await begin_truncation(ctx, view, cut)
            return
        levels = await load_levels(ctx, view)
        guard = await guard_of(ctx, view)
        guard.check_truncation(history, cut.positions)
        policy = levels.effective
        gate = await ctx.gate.puts("truncate", view.name, {"cut": cut.to_text()})
        puts: list[TablePut] = []
        if at_or_after(history, cut.positions, first):
            puts = await truncation_puts(
                ctx, view, history, first, cut.positions, rule=MANUAL, policy=shown_policy(policy, ("grace_s",))
            )
        begun = await begin_truncation(
            ctx, view, cut, *puts, *levels.checks, *guard.checks, *gate, grace_ms=policy.grace_ms
        )
        if begun is not None:
            await finish_truncation(ctx, begun)
        ctx.audit.soon()
        ctx.attention.dirty(view.name)

    async def scale(
        self, stream: StreamName, *, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        """Raises ScaleConflictError, InvalidArgumentError, StreamSealedError."""
        check_not_own(stream)
        return await self._ctx.tasks.run(self._change(stream, lambda view: self._scale(view, sealed, new_ranges)))

    async def _scale(
        self, view: StreamView, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        ctx = self._ctx
        check_not_sealed(view)
        history = await ctx.histories.of(view)
        following = plan_scale(
            history,
            sealed,
            new_ranges,
            next_number=view.record.next_number,
            min_segments=view.record.config.scaling.min_segments,
            created_ms=ctx.clock.now_ms(),
        )
        await finish_scale(ctx, await begin_scale(ctx, view, following))
        old = {item.segment for item in history.active.segments}
        fresh = tuple(item for item in following.segments if item.segment not in old)
        ctx.telemetry.add("stream_scales")
        # Append limits apply to segments, so the new segments need theirs.
        ctx.attention.dirty(view.name)
        if view.record.config.scaling.type is not ScaleType.FIXED:
            ctx.scaling.changed(view.name)
        return ScaleResult(segments=fresh, epoch_before=history.active.epoch)

    async def scale_status(self, stream: StreamName, epoch: int) -> ScaleStatus:
        """``DONE`` once a later epoch is active and its predecessors are sealed."""
        record = (await self._ctx.streams.get(stream)).record
        if epoch > record.epoch or epoch < 0:
            return ScaleStatus.UNKNOWN_EPOCH
        work = record.work
        scaling = work is not None and work.kind in (WorkKind.SCALE, WorkKind.ROLL)
        busy = work is not None and scaling and epoch >= work.base_epoch
        return ScaleStatus.IN_PROGRESS if epoch == record.epoch or busy else ScaleStatus.DONE

    # --- the end -------------------------------------------------------------------------------------------------

    async def seal(self, stream: StreamName) -> None:
        """Idempotent. Raises InvalidArgumentError (a stream of the store's own)."""
        check_not_own(stream)
        await self._ctx.tasks.run(self._change(stream, self._seal))

    async def _seal(self, view: StreamView) -> None:
        if view.record.state is StreamState.SEALED:
            return
        sealing = replace(view.record, state=StreamState.SEALING)
        versions = await self._ctx.metadata.put(view.put(sealing), self._ctx.work.put(view.name))
        await finish_sealing(self._ctx, view.changed(sealing, versions[0], marker=versions[1]))

    async def delete(self, stream: StreamName, *, seal: bool = False) -> None:
        """Delete a sealed stream; with ``seal`` any stream. A refused call changes nothing.

        Raises InvalidArgumentError (a stream of the store's own), StreamNotSealedError (not with ``seal``),
        RetentionHoldError.
        """
        check_not_own(stream)
        await self._ctx.tasks.run(self._delete(stream, seal=seal))

    async def _delete(self, name: StreamName, *, seal: bool) -> None:
        async with exclusive(self._ctx, name):
            await changing(lambda: self._delete_once(name, seal=seal))
            self._ctx.audit.soon()

    async def _delete_once(self, name: StreamName, *, seal: bool) -> None:
        found = await self._ctx.streams.find(name)
        view = await settle(self._ctx, name)
        if view is None:
            if found is not None and (found.record.state is StreamState.DELETING or found.record.ending):
                return
            await self._ctx.streams.check_scope(name.scope)
            raise StreamNotFoundError("no such stream", stream=str(name))
        sealed = view.record.state is StreamState.SEALED
        if not sealed and not seal:
            raise StreamNotSealedError(
                "the stream is open: delete it with seal, which seals it once its deletion is allowed", stream=str(name)
            )
        guard = await guard_of(self._ctx, view)
        guard.check_deletion()
        gate = await self._ctx.gate.puts("delete", name, {"seal": seal})
        puts = [*await deletion_puts(self._ctx, view, rule=MANUAL, policy={}), *gate]
        if sealed:
            await self._delete_settled(view, *puts, *guard.checks)
            return
        # Sealing cannot be taken back, so the step that begins it is the one that decides the deletion: no hold that is
        # placed in between can find the stream sealed and forbid the rest.
        ending = replace(view.record, state=StreamState.SEALING, ending=True)
        await self._ctx.metadata.put(view.put(ending), self._ctx.work.put(name), *puts, *guard.checks)
        await settle(self._ctx, name)

    async def _delete_settled(self, view: StreamView, *puts: TablePut | TableCheck) -> None:
        deleting = replace(view.record, state=StreamState.DELETING)
        versions = await self._ctx.metadata.put(view.put(deleting), self._ctx.work.put(view.name), *puts)
        await finish_deletion(self._ctx, view.changed(deleting, versions[0], marker=versions[1]))

    async def discard(self, stream: StreamName) -> None:
        """Seal and delete an internal stream; nothing happens where there is none."""
        async with exclusive(self._ctx, stream):
            view = await settle(self._ctx, stream)
            if view is not None:
                await self._seal(view)
                sealed = await settle(self._ctx, stream)
                if sealed is not None:
                    await self._delete_settled(sealed)

    async def ensure(self, stream: StreamName, config: StreamConfig) -> None:
        """Create an internal stream unless it is there."""
        try:
            await self._create(stream, config)
        except AlreadyExistsError:
            return


def check_not_sealed(view: StreamView, *, writes: bool = False) -> None:
    """Raises StreamSealedError. ``writes``: the caller wants to write events, and not to change the stream."""
    if view.record.state is not StreamState.ACTIVE:
        todo = StreamSealedError.TO_WRITE if writes else StreamSealedError.TO_CHANGE
        raise StreamSealedError(todo, stream=str(view.name))


def _resized(
    history: StreamHistory, had: ScalingPolicy, wants: ScalingPolicy, next_number: int, now_ms: int
) -> EpochRecord | None:
    """The epoch that a new scaling policy needs: another fixed number, or a minimum that is not reached."""
    count = len(history.active.segments)
    if wants.type is ScaleType.FIXED:
        changes = (had.type, had.min_segments) != (wants.type, wants.min_segments)
        target = wants.min_segments if changes else count
    else:
        target = max(count, wants.min_segments)
    resize = plan_resize(history, target) if target != count else None
    if resize is None:
        return None
    return plan_scale(
        history,
        resize.sealed,
        resize.new_ranges,
        next_number=next_number,
        min_segments=wants.min_segments,
        created_ms=now_ms,
    )
