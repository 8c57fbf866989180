"""Reader groups: their records, their streams, their subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.control.readers import GroupRecord, GroupState
from penstock.codec.control.streams import MarkerRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.groups.subscribers import Subscribers
from penstock.controller.metadata import Stored, changing, create, overwrite
from penstock.controller.retention.append_limits import AppendLimits
from penstock.controller.retention.removals import group_deletion
from penstock.controller.streams.updates import StreamChanges
from penstock.core.cuts.check import check_same_stream
from penstock.model.callers import unattributed
from penstock.model.cuts import StreamCut
from penstock.model.errors import GenerationMismatchError, ReaderGroupNotFoundError, ScopeNotFoundError
from penstock.model.names import READER_GROUP_PREFIX, SYSTEM_SCOPE, StreamName, check_name
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.model.segments import SegmentId
from penstock.ports.control.groups import ReaderGroupConfig


class ReaderGroups:
    """Reader groups of all scopes. A change is one record first, then its subscriptions, then the record again."""

    def __init__(self, ctx: Context, streams: StreamChanges, subscribers: Subscribers, limits: AppendLimits) -> None:
        self._ctx = ctx
        self._limits = limits
        self._streams = streams
        self._subscribers = subscribers

    async def create(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        """Create the group, or return the stored one unchanged. If a rule or a person ended one of its subscriptions, the
        subscription is registered again, from the group's start or the head, whichever is later.

        Raises: InvalidNameError, ScopeNotFoundError; for subscribers StreamNotFoundError, InvalidCutError.
        """
        check_name("scope", config.scope, internal=config.scope == SYSTEM_SCOPE)
        check_name("reader group", config.name)
        created = await self._ctx.tasks.run(self._create(config))
        await self._renew_limits(created)
        return created

    async def _create(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        ctx = self._ctx
        async with ctx.locks.hold(f"group/{config.full_name}"):
            await ctx.streams.check_scope(config.scope)
            stored_one = await self._settle(config.scope, config.name)
            if stored_one is not None:
                await self._subscribe(config.full_name, _to_record(stored_one, GroupState.ACTIVE))
                return stored_one
            await self._check_starts(config)
            record = _to_record(replace(config, generation=0), GroupState.CREATING)
            await ctx.metadata.put(
                create(keys.group(config.full_name), record),
                overwrite(keys.group_work(config.full_name), MarkerRecord()),
            )
            created = await self._finish(config.scope, config.name)
            if created is None:
                await ctx.streams.check_scope(config.scope)
                raise ReaderGroupNotFoundError("reader group was deleted meanwhile", group=config.full_name)
            return created

    async def _check_starts(self, config: ReaderGroupConfig) -> None:
        """Check that all cuts are positions of their streams. A subscriber joins all its streams or none."""
        subscribes = config.retention is not ReaderGroupRetention.NONE
        for name in sorted({*config.start_cuts, *config.end_cuts}):
            unbounded = StreamCut(name, {})
            start, end = config.start_cuts.get(name, unbounded), config.end_cuts.get(name, unbounded)
            check_same_stream(name, start)
            check_same_stream(name, end)
            if subscribes or not (start.is_unbounded and end.is_unbounded):
                await self._subscribers.check_bounds(name, start, end)

    async def _settle(self, scope: str, name: str) -> ReaderGroupConfig | None:
        """As ``_finish``, before the caller's own change. Audit entries do not name the caller for work of others."""
        with unattributed():
            return await self._finish(scope, name)

    async def _finish(self, scope: str, name: str) -> ReaderGroupConfig | None:
        """Finish incomplete work on the group and return its state afterwards. The caller holds the group's lock."""
        ctx, full_name = self._ctx, f"{scope}/{name}"
        (marker, found) = await ctx.metadata.entries([keys.group_work(full_name), keys.group(full_name)])
        record = None if found.version < 0 else GroupRecord.decode(found.value)
        if record is None:
            if marker.version >= 0:
                await ctx.metadata.remove_keys([keys.group_work(full_name)])
            return None
        at = Stored(key=found.key, value=record, version=found.version)
        if record.state is GroupState.DELETING:
            await self._finish_deletion(scope, name, record)
            return None
        if record.state is GroupState.CREATING:
            config = StreamConfig(rollover_bytes=record.rollover_bytes)
            try:
                await self._streams.ensure(stream_of(scope, name), config)
            except ScopeNotFoundError:
                # The scope was deleted between its check and the write of the group's record: remove the record.
                await ctx.metadata.put(at.put(replace(record, state=GroupState.DELETING)))
                await self._finish_deletion(scope, name, record)
                return None
        if record.state is GroupState.CREATING or marker.version >= 0:
            await self._subscribe(full_name, record)
            record = replace(record, state=GroupState.ACTIVE, leaving=())
            await ctx.metadata.put(at.put(record))
            await ctx.metadata.remove_keys([keys.group_work(full_name)])
        return _to_config(scope, name, record)

    async def _subscribe(self, full_name: str, record: GroupRecord) -> None:
        for stream in record.leaving:
            await self._subscribers.leave(
                StreamName.parse(stream), full_name, group_id=record.id, generation=record.generation
            )
        if record.retention is ReaderGroupRetention.NONE:
            return
        for stream in sorted(record.start_cuts):
            await self._subscribers.join(
                StreamName.parse(stream),
                full_name,
                group_id=record.id,
                generation=record.generation,
                start=record.start_cuts[stream],
            )

    async def update(self, config: ReaderGroupConfig) -> int:
        """Replace the configuration; returns the new generation.

        Raises: ReaderGroupNotFoundError; GenerationMismatchError (generation or id is not the stored one); for subscribers
        StreamNotFoundError, InvalidCutError.
        """
        generation = await self._ctx.tasks.run(self._update(config))
        await self._renew_limits(config)
        return generation

    async def _renew_limits(self, config: ReaderGroupConfig) -> None:
        """Make a new subscriber count for quotas now, not only from the next cycle on."""
        if config.retention is not ReaderGroupRetention.NONE:
            for stream in config.start_cuts:
                await self._limits.renew(stream)

    async def _update(self, config: ReaderGroupConfig) -> int:
        ctx = self._ctx
        async with ctx.locks.hold(f"group/{config.full_name}"):
            await self._settle(config.scope, config.name)
            found = await self._found(config.scope, config.name)
            record = _value(found, config.full_name)
            if config.generation != record.generation or config.id != record.id:
                raise GenerationMismatchError(
                    "reader group has changed since it was read",
                    group=config.full_name,
                    generation=config.generation,
                    now=record.generation,
                )
            await self._check_starts(config)
            wanted = _to_record(replace(config, generation=record.generation + 1), GroupState.ACTIVE)
            subscribed = set() if record.retention is ReaderGroupRetention.NONE else set(record.start_cuts)
            stays = set() if wanted.retention is ReaderGroupRetention.NONE else set(wanted.start_cuts)
            wanted = replace(wanted, leaving=tuple(sorted(subscribed - stays)))
            await ctx.metadata.put(found.put(wanted), overwrite(keys.group_work(config.full_name), MarkerRecord()))
            await self._finish(config.scope, config.name)
            return wanted.generation

    async def delete(self, scope: str, name: str, *, group_id: UUID | None = None) -> None:
        """Raises ReaderGroupNotFoundError, also if the id belongs to another group."""
        await self._ctx.tasks.run(self._delete(scope, name, group_id))

    async def _delete(self, scope: str, name: str, group_id: UUID | None) -> None:
        full_name = f"{scope}/{name}"
        async with self._ctx.locks.hold(f"group/{full_name}"):
            await self._settle(scope, name)
            found = await self._found(scope, name)
            record = _value(found, full_name)
            if group_id is not None and group_id != record.id:
                raise ReaderGroupNotFoundError("reader group was created anew", group=full_name)
            await self._ctx.metadata.put(
                found.put(replace(record, state=GroupState.DELETING)),
                overwrite(keys.group_work(full_name), MarkerRecord()),
                *self._ctx.audit.puts([group_deletion(scope, full_name, sorted(record.start_cuts))]),
            )
            await self._finish(scope, name)
            self._ctx.audit.soon()

    async def _finish_deletion(self, scope: str, name: str, record: GroupRecord) -> None:
        full_name = f"{scope}/{name}"
        for stream in sorted({*record.start_cuts, *record.leaving}):
            await self._subscribers.leave(
                StreamName.parse(stream), full_name, group_id=record.id, generation=record.generation
            )
        await self._streams.discard(stream_of(scope, name))
        await self._ctx.metadata.remove_keys([keys.group(full_name)])
        # Last: until its record is removed, a reader of the group may still commit.
        await self._ctx.metadata.remove_prefix(keys.position_commits(full_name))
        await self._ctx.metadata.remove_keys([keys.group_work(full_name)])

    async def _found(self, scope: str, name: str) -> Stored[GroupRecord]:
        return await self._ctx.metadata.get(keys.group(f"{scope}/{name}"), GroupRecord)

    async def get(self, scope: str, name: str) -> ReaderGroupConfig:
        """Raises ReaderGroupNotFoundError."""
        found = await self._found(scope, name)
        return _to_config(scope, name, _value(found, f"{scope}/{name}"))

    async def list(self, scope: str) -> Sequence[str]:
        """Sorted. Raises ScopeNotFoundError."""
        await self._ctx.streams.check_scope(scope)
        prefix = f"group/{scope}/".encode()
        return [
            name
            async for entry in self._ctx.metadata.scan_all(prefix)
            if (name := self._ctx.set_aside.text(entry, prefix)) is not None
            and ((record := self._ctx.set_aside.read(entry, GroupRecord)) is None or record.state is GroupState.ACTIVE)
        ]

    async def resume(self, full_name: str) -> None:
        """Finish incomplete work on the group."""
        scope, _, name = full_name.partition("/")
        async with self._ctx.locks.hold(f"group/{full_name}"):
            await changing(lambda: self._finish(scope, name))


def stream_of(scope: str, name: str) -> StreamName:
    """The stream in which the group keeps its state. Raises InvalidNameError if the group's name is too long."""
    check_name("reader group", name, internal=True)
    return StreamName(scope, READER_GROUP_PREFIX + name)


def _value(found: Stored[GroupRecord], full_name: str) -> GroupRecord:
    if found.value is None or found.value.state is not GroupState.ACTIVE:
        raise ReaderGroupNotFoundError("no such reader group", group=full_name)
    return found.value


def _to_record(config: ReaderGroupConfig, state: GroupState) -> GroupRecord:
    return GroupRecord(
        state=state,
        id=config.id,
        generation=config.generation,
        retention=config.retention,
        start_cuts={str(name): dict(cut.positions) for name, cut in sorted(config.start_cuts.items())},
        end_cuts={str(name): dict(cut.positions) for name, cut in sorted(config.end_cuts.items())},
        refresh_ms=config.refresh_ms,
        checkpoint_interval_ms=config.checkpoint_interval_ms,
        max_outstanding_checkpoints=config.max_outstanding_checkpoints,
        rollover_bytes=config.rollover_bytes,
    )


def _to_config(scope: str, name: str, record: GroupRecord) -> ReaderGroupConfig:
    return ReaderGroupConfig(
        scope=scope,
        name=name,
        id=record.id,
        generation=record.generation,
        retention=record.retention,
        start_cuts=_cuts(record.start_cuts),
        end_cuts=_cuts(record.end_cuts),
        refresh_ms=record.refresh_ms,
        checkpoint_interval_ms=record.checkpoint_interval_ms,
        max_outstanding_checkpoints=record.max_outstanding_checkpoints,
        rollover_bytes=record.rollover_bytes,
    )


def _cuts(cuts: Mapping[str, Mapping[SegmentId, int]]) -> dict[StreamName, StreamCut]:
    return {StreamName.parse(text): StreamCut(StreamName.parse(text), cut) for text, cut in cuts.items()}
