"""The asynchronous API of one store, embedded or remote: its scopes, streams, reader groups and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from penstock.client.audit import AsyncAuditLog
from penstock.client.byte_stream import AsyncByteStream
from penstock.client.cases import AsyncCases
from penstock.client.erasure import AsyncErasures
from penstock.client.moments import past_ms
from penstock.client.options import COUNT_MAX, check_printable, number, position_of, start_of, tags_of
from penstock.client.reading.cursor import resolve_start
from penstock.client.reading.group_report import GroupReport
from penstock.client.reading.group_reset import GroupReset, ResetTo
from penstock.client.reading.liveness import GroupTimes
from penstock.client.reading.reader import AsyncStreamsReader, OnTruncated
from penstock.client.reading.reader_group import AsyncReaderGroup, GroupRetention, retention_of
from penstock.client.retention import AsyncApprovals, AsyncHolds, AsyncLevelPolicy
from penstock.client.retry import retrying
from penstock.client.selection import GroupEnd, GroupStart, Selection, Streams
from penstock.client.stream import AsyncStream
from penstock.client.tables.entries import whole
from penstock.client.tables.table import AsyncTable
from penstock.model.answers.groups import GroupDescription
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidCutError,
    NotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName, check_name, check_text
from penstock.model.policies import RetentionPolicy, ScalingPolicy, StreamConfig
from penstock.ports.clock import Clock
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.scopes import ScopeContents
from penstock.ports.control.streams import DeletedStream, RestoredStream
from penstock.ports.control.tables import TableConfig
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng


class AsyncStore:
    """A store on top of its two services. It owns neither: the caller that opened them closes them."""

    def __init__(self, segments: SegmentService, controller: ControlPlane, clock: Clock, rng: Rng) -> None:
        self.segments = segments
        self.controller = controller
        self.clock = clock
        self.rng = rng

    async def create_scope(self, scope: str, *, if_absent: bool = False) -> None:
        """Create an empty scope. Raises AlreadyExistsError unless ``if_absent``, InvalidNameError."""
        check_text(scope)
        try:
            await self.controller.scopes.create(scope)
        except AlreadyExistsError:
            if not if_absent:
                raise

    async def delete_scope(self, scope: str) -> None:
        """Delete an empty scope.

        Raises ScopeNotFoundError, NotEmptyError, RetentionHoldError (a hold is placed on it), InvalidNameError.
        """
        check_text(scope)
        await self.controller.scopes.delete(scope)

    async def describe_scope(self, scope: str) -> ScopeContents:
        """How many streams, reader groups and tables the scope holds, including those being created or deleted.

        The scope can be deleted once all numbers are 0, unless a hold is placed on it. Not a snapshot: objects created
        or deleted during the call may be missing. Raises ScopeNotFoundError.
        """
        check_text(scope)
        return await self.controller.scopes.describe(scope)

    async def scopes(self) -> list[str]:
        """Names of all scopes, sorted."""
        found: list[str] = []
        while page := await self.controller.scopes.list(after=found[-1] if found else ""):
            found += page
        return found

    async def streams(self, scope: str, *, tag: str | None = None, internal: bool = False) -> list[str]:
        """Names of the scope's streams, sorted: those with the ``tag``, if one is given; those of the system itself only
        with ``internal``. Raises ScopeNotFoundError."""
        check_text(scope)
        if tag is not None:
            check_printable("tag", tag)
        found: list[str] = []
        after = ""
        while page := await self.controller.streams.list(scope, tag=tag, after=after):
            found += [name for name in page if internal or not StreamName(scope, name).is_internal]
            after = page[-1]
        return found

    async def deleted_streams(self, scope: str | None = None) -> Sequence[DeletedStream]:
        """The deleted streams that can be restored, of one scope or all, including those of deleted scopes."""
        return await self.controller.streams.list_deleted(scope)

    async def restore_stream(self, name: str | StreamName, *, incarnation: int | None = None) -> RestoredStream:
        """Restore a deleted stream before its grace ends, with its events, policy and subscribers' positions.

        ``incarnation``: which one, if several streams of this name were deleted; None: the last. A stream that was not
        sealed accepts events again. Raises StreamNotFoundError, ConflictError (its grace has just ended),
        AlreadyExistsError (another stream has the name), ScopeNotFoundError (create the scope first).
        """
        return await self.controller.streams.restore(self.stream(name).name, incarnation=incarnation)

    async def create_stream(
        self,
        name: str | StreamName,
        *,
        segments: int = 1,
        retention: RetentionPolicy | None = None,
        scaling: ScalingPolicy | None = None,
        tags: Sequence[str] = (),
        if_absent: bool = False,
        create_scope: bool = False,
    ) -> AsyncStream:
        """Create ``scope/stream``. ``scaling`` replaces ``segments``. ``tags`` select streams in ``streams``.

        Without ``retention`` the scope's policy applies, else the server's; if neither sets any, all data is kept.

        Raises AlreadyExistsError unless ``if_absent`` (its configuration is then left as it is), ScopeNotFoundError unless
        ``create_scope``, InvalidNameError, InvalidArgumentError.
        """
        stream = self.stream(name)
        stream.name.checked()
        policy = scaling or ScalingPolicy(min_segments=segments)
        config = StreamConfig(scaling=policy, retention=retention, tags=tags_of(tags))
        if create_scope:
            await self.create_scope(stream.name.scope, if_absent=True)
        try:
            await self.controller.streams.create(stream.name, config)
        except AlreadyExistsError:
            if not if_absent:
                raise
        return stream

    def stream(self, name: str | StreamName) -> AsyncStream:
        """The stream ``scope/stream``, whether it exists or not. Raises InvalidNameError."""
        parsed = name if isinstance(name, StreamName) else StreamName.parse(name)
        return AsyncStream(parsed, self.segments, self.controller, self.clock, self.rng)

    def byte_stream(self, name: str | StreamName, *, follow: bool = False) -> AsyncByteStream:
        """The bytes of the stream ``scope/stream``, as a file. The stream has one segment (``create_stream``).

        ``follow``: reads wait at the tail for more, until the stream is sealed. Raises InvalidNameError.
        """
        stream = self.stream(name).name
        return AsyncByteStream(stream, self.segments, self.controller, self.clock, self.rng, follow=follow)

    def reader(
        self,
        streams: Streams,
        *,
        start: GroupStart = None,
        end: GroupEnd = None,
        until_tail: bool = False,
        on_truncated: OnTruncated = "raise",
        append_times: bool = False,
    ) -> AsyncStreamsReader:
        """A reader of several streams without a group, not opened: use it in a ``with`` or ``async with`` block.

        Args:
            streams: A list of streams, or a pattern: ``re.compile("shop/.*")`` reads the users' streams whose whole name
                ``scope/stream`` it matches when the reader is opened.
            start: As for the reader of one stream, for all streams; or a mapping from stream to any of these, for example
                ``positions`` of an earlier reader. Streams without one, and those beside the stream of a cut, are read from
                their head.
            end: As for the reader of one stream, for all streams, or a mapping. Streams without one have no end.
            until_tail: All streams without an ``end`` end at their tail as it is on opening.
            on_truncated: What to do where data was truncated before it was read: "raise" TruncatedError, or "skip" it.
            append_times: Ask the store when the events were appended: ``Event.appended_at``.
        Raises:
            InvalidArgumentError: Anything else; a time in the future; a start or end for a stream that is not read.
        """
        selection = Selection(streams, start, end, until_tail=until_tail, now_ms=self.clock.now_ms())
        return AsyncStreamsReader(
            lambda: selection.find(self.controller, self.rng),
            self.segments,
            self.controller,
            self.rng,
            on_truncated=on_truncated,
            append_times=append_times,
        )

    async def reader_group(
        self,
        name: str,
        streams: Sequence[str | StreamName],
        *,
        start: GroupStart = "head",
        retention: GroupRetention = "none",
        checkpoint_interval_s: float = 30.0,
        lease_s: float = 10.0,
        refresh_s: float = 1.0,
    ) -> AsyncReaderGroup:
        """Create the group ``name`` or ``scope/name`` (else of the first stream's scope), or open it where it exists.

        Args:
            streams: The streams to read, as a list.
            start: "earliest" (or "head"), "latest" (or "tail"), a cut (or its text) of one of the streams, a datetime with
                a zone (the events appended from then on), or a mapping from stream to any of these. Streams without one
                are read from their head. An existing group continues where it is.
            retention: When its progress releases data of its streams: "none" (never), "manual" (on ``publish``) or
                "automatic" (at each checkpoint). With the last two, streams keep the events that the group has not
                read, within their own limits.
            checkpoint_interval_s: How often readers begin a checkpoint while they read.
            lease_s: After this long without a report a reader counts as dead, and others take over its segments.
            refresh_s: How often readers report and look for free segments; less than ``lease_s``.
        Raises:
            InvalidArgumentError, StreamNotFoundError; InvalidCutError: a start is no position of its stream;
            AlreadyExistsError: the group exists with other streams or another retention;
            GenerationMismatchError: it exists, and a stream was deleted and made anew since.
        """
        if isinstance(streams, str | StreamName):
            raise InvalidArgumentError("streams of a reader group must be a list", streams=str(streams))
        names = [self.stream(item).name for item in streams]
        if not names:
            raise InvalidArgumentError("a reader group must read at least one stream", group=name)
        check_text(name)
        times = GroupTimes(lease_s=lease_s, refresh_s=refresh_s)
        number("checkpoint_interval_s", checkpoint_interval_s, above=0)
        scope, _, short = name.rpartition("/")
        scope = scope or names[0].scope
        check_name("reader group", short)
        starts = await self._starts_of_group(scope, short, names, start)
        wanted = ReaderGroupConfig(
            scope=scope,
            name=short,
            id=self.rng.uuid(),
            retention=retention_of(retention),
            start_cuts=starts,
            refresh_ms=round(refresh_s * 1000),
            checkpoint_interval_ms=round(checkpoint_interval_s * 1000),
        )
        stored = await retrying(lambda: self.controller.groups.create(wanted), self.rng)
        if set(stored.start_cuts) != set(names) or stored.retention is not wanted.retention:
            raise AlreadyExistsError(
                "reader group exists with another configuration",
                group=stored.full_name,
                streams=[str(item) for item in sorted(stored.start_cuts)],
                retention=stored.retention.name,
            )
        return await self._open(stored, times)

    async def open_reader_group(self, name: str, *, lease_s: float = 10.0, refresh_s: float = 1.0) -> AsyncReaderGroup:
        """The group ``scope/name``; ``lease_s`` and ``refresh_s`` as for ``reader_group``.

        Its deleted streams leave it, which is logged.

        Raises ReaderGroupNotFoundError, GenerationMismatchError (a stream of it was deleted and made anew since).
        """
        times = GroupTimes(lease_s=lease_s, refresh_s=refresh_s)
        stored = await self._group_config(name)
        return await self._open(stored, times)

    async def reset_reader_group(
        self,
        name: str,
        to: ResetTo,
        *,
        streams: Sequence[str | StreamName] = (),
        lease_s: float = 10.0,
        dry_run: bool = False,
    ) -> Sequence[Mapping[str, Any]]:
        """Move the readers and the acknowledged position of group ``scope/name`` to one place, while no reader is
        online.

        Args:
            to: "earliest" (or "head"), "latest" (or "tail"), a time with a zone (the group reads what was appended from
                then on), a cut or its text, which moves only its own stream, or a negative number: so many events before
                the group's position in each stream, or a few less where segments end.
            streams: Only these streams; empty: all that the group reads.
            lease_s: A reader counts as offline after this time without a heartbeat. If the group lists readers, the call
                waits this long to see whether they are online.
            dry_run: Check everything and change nothing.
        Returns:
            A mapping for each stream: ``stream``, ``from`` and ``to`` (offsets by segment), and the ``bytes`` and ``events``
            that the readers skip (negative: they read them again; None: unknown). For a subscriber also
            ``acknowledged_bytes`` and ``acknowledged_events``.
        Raises:
            ConflictError: A reader is online (``readers`` names them), or another program keeps the positions: a Spark query
                in its checkpoint, or Pravega's Java client. Nothing was changed.
            ReaderGroupNotFoundError, SubscriberNotFoundError, InvalidArgumentError, InvalidCutError; TruncatedError (before
            the head). Nothing was changed.

        Cancelled: the data that the readers need is held, and the same call completes the reset.
        """
        number("lease_s", lease_s, above=0)
        config = await self._group_config(name)
        names = [self.stream(item).name for item in streams] or sorted(config.start_cuts)
        if isinstance(to, datetime):
            start_of(to, name="to")
        elif isinstance(to, int) and not isinstance(to, bool):
            if not -COUNT_MAX <= to < 0:
                raise InvalidArgumentError(
                    "to must be a position, a time, or a negative number of events", to=str(to)[:60]
                )
        else:
            to = position_of(to, name="to")
        if isinstance(to, StreamCut):
            names = [self.stream(item).name for item in streams] or [to.stream]
        unknown = sorted(set(names) - set(config.start_cuts))
        if unknown:
            raise InvalidArgumentError("reader group does not read the stream", group=name, stream=str(unknown[0]))
        reset = GroupReset(self, config, self.clock, self.rng, lease_s=lease_s)
        await reset.check_state_is_ours(names)
        await self._open(config, GroupTimes(lease_s=lease_s, refresh_s=lease_s / 2))
        return await reset.run(to, names, dry_run=dry_run)

    async def _group_config(self, name: str) -> ReaderGroupConfig:
        check_text(name)
        scope, slash, short = name.rpartition("/")
        if not slash:
            raise InvalidArgumentError("not a reader group; write SCOPE/GROUP", name=name)
        return await retrying(lambda: self.controller.groups.get(scope, short), self.rng)

    async def create_table(
        self,
        name: str | StreamName,
        *,
        primary_key_bytes: int,
        secondary_key_bytes: int = 0,
        partitions: int = 1,
        if_absent: bool = False,
        create_scope: bool = False,
    ) -> AsyncTable:
        """Create the key-value table ``scope/name``. It is a table of Pravega: its Java client reads and changes it too.

        Args:
            primary_key_bytes: Length of each primary key. Entries of one primary key can change in one step.
            secondary_key_bytes: Length of each secondary key. 0: keys have only the primary part.
            partitions: Number of segments over which primary keys are spread by their hash. It never changes.
            if_absent: Open an existing table that has this configuration.
            create_scope: Create the scope where it is missing.
        Raises:
            AlreadyExistsError: A table has the name; with ``if_absent``, one of another configuration. It is unchanged.
            ScopeNotFoundError, InvalidNameError; InvalidArgumentError: keys of less than 1 or more than 8192 bytes.
        """
        table = self.table(name)
        table.name.checked(kind="table")
        config = TableConfig(
            partitions=whole("partitions", partitions, least=1),
            primary_key_bytes=whole("primary_key_bytes", primary_key_bytes, least=1),
            secondary_key_bytes=whole("secondary_key_bytes", secondary_key_bytes),
            rollover_bytes=0,
        )
        if create_scope:
            await self.create_scope(table.name.scope, if_absent=True)
        try:
            await self.controller.tables.create(table.name.scope, table.name.stream, config)
        except AlreadyExistsError:
            if not if_absent or replace(await table.config(), rollover_bytes=0) != config:
                raise
        return table

    def table(self, name: str | StreamName) -> AsyncTable:
        """The key-value table ``scope/name``, whether it exists or not. Raises InvalidNameError."""
        parsed = name if isinstance(name, StreamName) else StreamName.parse(name, kind="table")
        return AsyncTable(parsed, self.segments, self.controller, self.rng)

    async def tables(self, scope: str) -> list[str]:
        """Names of the scope's key-value tables, sorted. Raises ScopeNotFoundError, InvalidNameError (no text)."""
        check_text(scope)
        found: list[str] = []
        while page := await self.controller.tables.list(scope, after=found[-1] if found else ""):
            found += page
        if not found and not await self.controller.scopes.exists(scope):
            raise ScopeNotFoundError("no such scope", scope=scope)
        return found

    def policy(self, scope: str | None = None) -> AsyncLevelPolicy:
        """The policy that streams inherit: from their scope, or (None) from the server."""
        return AsyncLevelPolicy(scope, self.controller)

    def holds(self, target: StreamName | str | None = None) -> AsyncHolds:
        """Holds on the ``target``: a stream (``scope/stream``), a scope, or (None) all of the store."""
        chosen = StreamName.parse(target) if isinstance(target, str) and "/" in target else target
        return AsyncHolds(chosen, self.controller, self.rng)

    def audit(self) -> AsyncAuditLog:
        """The audit log: its key, checkpoints, exports and signed documents."""
        return AsyncAuditLog(self.segments, self.controller)

    def approvals(self) -> AsyncApprovals:
        """Actions that need the approval of a second identity, and the requests for it."""
        return AsyncApprovals(self.controller)

    def erasures(self, stream: StreamName | str | None = None) -> AsyncErasures:
        """Erasures of a stream (``scope/stream``), or (None) all of the store, with their receipts."""
        name = StreamName.parse(stream) if isinstance(stream, str) else stream
        return AsyncErasures(name, self.segments, self.controller, self.rng)

    def cases(self) -> AsyncCases:
        """All cases: erasures of a person's data, each from the request to the proof."""
        return AsyncCases(self.segments, self.controller, self.clock, self.rng)

    async def reader_groups(self, scope: str | None = None) -> Sequence[str]:
        """The reader groups of a scope, or (None) of the store, as ``scope/group``, sorted.

        Raises ScopeNotFoundError, InvalidNameError (no text).
        """
        if scope is not None:
            check_text(scope)
            return [f"{scope}/{name}" for name in await self.controller.groups.list(scope)]
        found: list[str] = []
        for each in await self.scopes():
            with suppress(ScopeNotFoundError):  # It was deleted meanwhile.
                found += await self.reader_groups(each)
        return found

    async def describe_reader_group(self, name: str) -> GroupDescription:
        """The group ``scope/name`` as it is now: its readers, what each reads, and its lag in each stream.

        It works for every group, also one that holds no data, and one of another client; it changes nothing. Members,
        positions and lags are read one after the other, so a running group may move in between. Raises
        ReaderGroupNotFoundError, InvalidArgumentError (not SCOPE/GROUP).
        """
        config = await self._group_config(name)
        return await GroupReport(self, config, self.clock, self.rng).make()

    async def _open(self, config: ReaderGroupConfig, times: GroupTimes) -> AsyncReaderGroup:
        group = AsyncReaderGroup(config, self.segments, self.controller, self.clock, self.rng, times)
        await group.initialise()
        return group

    async def _starts_of_group(
        self, scope: str, group: str, names: Sequence[StreamName], start: GroupStart
    ) -> Mapping[StreamName, StreamCut]:
        """As ``_starts``. If a stream was deleted since the group was created, the starts with which it was created."""
        try:
            return await self._starts(names, start)
        except (ScopeNotFoundError, StreamNotFoundError) as error:
            try:
                stored = await retrying(lambda: self.controller.groups.get(scope, group), self.rng)
            except NotFoundError:
                raise error from None
            if set(stored.start_cuts) != set(names):
                raise
            return stored.start_cuts

    async def _starts(self, names: Sequence[StreamName], start: GroupStart) -> dict[StreamName, StreamCut]:
        if isinstance(start, Mapping):
            given = {self.stream(item).name: start_of(bound) for item, bound in start.items()}
        else:
            bound = start_of(start)
            given = {bound.stream: bound} if isinstance(bound, StreamCut) else dict.fromkeys(names, bound)
        if set(given) - set(names):
            raise InvalidArgumentError(
                "a start cut names a stream that the group does not read",
                streams=[str(item) for item in sorted(set(given) - set(names))],
            )
        for bound in given.values():
            if isinstance(bound, datetime):
                past_ms(bound, now_ms=self.clock.now_ms())
        starts: dict[StreamName, StreamCut] = {}
        for name in names:
            starts[name] = await resolve_start(self.segments, self.controller, name, given.get(name))
            # Before the group is stored: with a cut of an earlier stream of the name it could never be opened.
            if isinstance(given.get(name), StreamCut) and not await self.controller.cuts.is_valid(name, starts[name]):
                raise InvalidCutError("start is not a position of the stream", stream=str(name), cut=repr(starts[name]))
        return starts
