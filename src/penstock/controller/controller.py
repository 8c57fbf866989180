"""The controller: scopes, streams, transactions, reader groups and retention, on top of any segment service.

It keeps nothing of its own but caches: all it knows lies in one table segment, changed by compare-and-set. Opening it
finishes whatever an earlier one left half done. Source: docs/design/0006-controller.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from penstock.controller.buckets import Buckets
from penstock.controller.context import Context
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.grace.deleted_streams import DeletedStreams
from penstock.controller.grace.kept import listed_holds, undo, undo_since
from penstock.controller.groups.reader_groups import ReaderGroups
from penstock.controller.groups.subscribers import Subscribers
from penstock.controller.retention.answers import facts_told
from penstock.controller.retention.cycle import RetentionCycle
from penstock.controller.retention.forecast import forecast
from penstock.controller.retention.holds import Holds
from penstock.controller.retention.loop import RetentionLoop
from penstock.controller.retention.policies import Policies
from penstock.controller.retention.reclaim import reclaim_report
from penstock.controller.settings import ControllerSettings
from penstock.controller.streams.queries import Queries
from penstock.controller.streams.repair import repair_stream
from penstock.controller.streams.restored import begin_restored
from penstock.controller.streams.scopes import Scopes
from penstock.controller.streams.updates import Streams
from penstock.controller.transactions.batches import Batches
from penstock.controller.transactions.calls import Transactions
from penstock.controller.transactions.sweeper import Sweeper
from penstock.controller.wiring import context_of
from penstock.core.segments.placement import is_transaction_name, is_transient_name, parent_name
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.callers import unattributed
from penstock.model.cuts import StreamCut
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.model.queries import QuerySource
from penstock.model.retention import EffectivePolicy, HoldInfo, PolicyDocument, PolicyTarget
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.ports.clock import Clock
from penstock.ports.controller_service import (
    PAGE_MAX,
    DeletedStream,
    Endpoint,
    EpochInfo,
    EventBlock,
    PingStatus,
    ReaderGroupConfig,
    RestoredStream,
    ScaleResult,
    ScaleStatus,
    SegmentSpan,
    StreamDescription,
    SubscriberInfo,
    Successor,
    Transaction,
    TransactionStatus,
)
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)


class Controller:
    """``ports.controller_service.ControllerService``. Opened by ``open_controller``; its laws are the port's."""

    def __init__(self, ctx: Context, buckets: Buckets, endpoint_of: Callable[[str], Endpoint]) -> None:
        self._ctx = ctx
        self._buckets = buckets
        self._endpoint_of = endpoint_of
        self._scopes = Scopes(ctx)
        self._streams = Streams(ctx)
        self._queries = Queries(ctx)
        self._transactions = Transactions(ctx)
        self._batches = Batches(ctx)
        self._cycle = RetentionCycle(ctx)
        self._loop = RetentionLoop(ctx, self._cycle, buckets)
        self._ctx.attention = self._loop
        self._policies = Policies(ctx)
        self._erasures = Erasures(ctx)
        self._holds = Holds(ctx, self._erasures.resume_soon)
        self._subscribers = Subscribers(ctx)
        self._groups = ReaderGroups(ctx, self._streams, self._subscribers)
        self._deleted = DeletedStreams(ctx)
        self._sweeper = Sweeper(ctx, self._scopes, self._groups, self._holds, self._erasures, self._deleted)

    async def start(self) -> None:
        """Create the table if need be, finish what was left half done, then begin the background work."""
        ctx = self._ctx
        looks = ctx.settings.retention_cycle_ms is not None
        await ctx.metadata.bootstrap()
        await ctx.retention_clock.start()
        await self._buckets.start()
        await self._sweeper.resume()
        await ctx.audit.start(self._streams.ensure, now=looks)
        await self._cycle.restore_limits()
        await self._erasures.start()
        if ctx.settings.sweep_ms is not None:
            ctx.tasks.start(self._sweeper.run())
        if looks:
            loop = self._loop
            for work in (self._buckets.run, loop.run_cycles, loop.run_dirty, loop.run_sweeps, loop.run_limits):
                ctx.tasks.start(work())

    async def close(self) -> None:
        """Stop all work. What has begun is finished by whoever opens next."""
        await self._ctx.tasks.close()
        try:
            await self._ctx.flush_finished()
            await self._buckets.close()
            await self._ctx.retention_clock.record()
        except PenstockError as error:
            # Markers of ended workflows cost the next opening a look each, and buckets a lease, nothing more.
            log.info("markers of ended workflows stay", extra={"error": str(error)})

    async def sweep(self) -> None:
        """Abort what has expired and finish what was left half done, now."""
        await self._sweeper.sweep()

    async def run_retention_cycles(self) -> int:
        """One retention cycle of every stream with a policy, now; returns how many were looked at."""
        return await self._loop.run_once()

    async def repair_stream(self, stream: StreamName) -> Mapping[str, Any]:
        """Remove records that block the stream: see ``controller.streams.repair.repair_stream``."""
        return await repair_stream(self._ctx, stream)

    async def begin_restored(self, jump: int) -> int:
        """Give all streams of a restored store new segments: see ``controller.streams.restored.begin_restored``."""
        return await begin_restored(self._ctx, jump)

    async def drain_audit(self) -> int:
        """Append now what waits to be told by the audit stream; returns how many entries."""
        return await self._ctx.audit.drain()

    async def create_scope(self, scope: str) -> None:
        await self._scopes.create(scope)

    async def delete_scope(self, scope: str) -> None:
        await self._scopes.delete(scope)

    async def scope_exists(self, scope: str) -> bool:
        return await self._scopes.exists(scope)

    async def list_scopes(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        return await self._scopes.names(after=after, limit=min(limit, PAGE_MAX))

    # --- streams -------------------------------------------------------------------------------------------------

    async def create_stream(self, stream: StreamName, config: StreamConfig) -> None:
        await self._streams.create(stream, config)

    async def update_stream(self, stream: StreamName, config: StreamConfig) -> None:
        await self._streams.update(stream, config)

    async def stream_exists(self, stream: StreamName) -> bool:
        return await self._queries.exists(stream)

    async def get_config(self, stream: StreamName) -> StreamConfig:
        return await self._queries.config(stream)

    async def list_streams(
        self, scope: str, *, tag: str | None = None, after: str = "", limit: int = PAGE_MAX
    ) -> Sequence[str]:
        return await self._queries.names(scope, tag=tag, after=after, limit=limit)

    async def seal_stream(self, stream: StreamName) -> None:
        await self._streams.seal(stream)

    async def delete_stream(self, stream: StreamName, *, seal: bool = False) -> None:
        await self._streams.delete(stream, seal=seal)

    async def list_deleted_streams(self, scope: str | None = None) -> Sequence[DeletedStream]:
        return await self._deleted.names(scope)

    async def restore_stream(self, stream: StreamName, *, incarnation: int | None = None) -> RestoredStream:
        return await self._deleted.restore(stream, incarnation=incarnation)

    async def truncate_stream(self, stream: StreamName, cut: StreamCut) -> None:
        await self._streams.truncate(stream, cut)

    async def describe_stream(self, stream: StreamName) -> StreamDescription:
        return await self._queries.describe(stream)

    async def current_segments(self, stream: StreamName) -> Sequence[SegmentRange]:
        return await self._queries.current_segments(stream)

    async def epoch_segments(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        return await self._queries.epoch_segments(stream, epoch)

    async def list_epochs(self, stream: StreamName) -> Sequence[EpochInfo]:
        return await self._queries.list_epochs(stream)

    async def head(self, stream: StreamName) -> StreamCut:
        return await self._queries.head(stream)

    async def tail(self, stream: StreamName) -> StreamCut:
        return await self._queries.tail(stream)

    async def successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        return await self._queries.successors(stream, segment)

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        return await self._queries.segments_between(stream, start, end)

    async def measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        return await self._queries.measure(stream, start, end)

    async def segment_ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        return await self._queries.segment_ranges(stream, segments)

    async def is_segment_active(self, stream: StreamName, segment: SegmentId) -> bool:
        return await self._queries.is_segment_active(stream, segment)

    async def is_cut_valid(self, stream: StreamName, cut: StreamCut) -> bool:
        return await self._queries.is_cut_valid(stream, cut)

    async def scale(
        self, stream: StreamName, *, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        return await self._streams.scale(stream, sealed=sealed, new_ranges=new_ranges)

    async def scale_status(self, stream: StreamName, epoch: int) -> ScaleStatus:
        return await self._streams.scale_status(stream, epoch)

    async def endpoint(self, segment: str) -> Endpoint:
        return self._endpoint_of(segment)

    # --- transactions --------------------------------------------------------------------------------------------

    async def create_transaction(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        return await self._transactions.begin(stream, lease_ms=lease_ms)

    async def join_transaction(self, stream: StreamName, key: UUID, *, lease_ms: int) -> Transaction:
        return await self._transactions.join(stream, key, lease_ms=lease_ms)

    async def ping_transaction(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus:
        return await self._transactions.ping(stream, txn, lease_ms=lease_ms)

    async def commit_transaction(
        self, stream: StreamName, txn: UUID, *, blocks: Sequence[EventBlock] = ()
    ) -> TransactionStatus:
        return await self._transactions.commit(stream, txn, blocks)

    async def abort_transaction(self, stream: StreamName, txn: UUID) -> None:
        await self._transactions.abort(stream, txn)

    async def transaction_status(self, stream: StreamName, txn: UUID) -> TransactionStatus:
        return await self._transactions.status(stream, txn)

    async def list_completed_transactions(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        return await self._transactions.completed(stream)

    async def commit_batch(
        self,
        stream: StreamName,
        *,
        writer: str,
        batch: int,
        transactions: Sequence[UUID],
        source: QuerySource | None = None,
        one_job: bool = False,
    ) -> bool:
        return await self._batches.commit(
            stream, writer=writer, batch=batch, transactions=transactions, source=source, one_job=one_job
        )

    async def last_batch(self, stream: StreamName, *, writer: str, source: QuerySource | None = None) -> int | None:
        return await self._batches.last(stream, writer=writer, source=source)

    # --- reader groups and subscribers ---------------------------------------------------------------------------

    async def create_reader_group(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        created = await self._groups.create(config)
        await self._limit_for(created)
        return created

    async def update_reader_group(self, config: ReaderGroupConfig) -> int:
        generation = await self._groups.update(config)
        await self._limit_for(config)
        return generation

    async def _limit_for(self, config: ReaderGroupConfig) -> None:
        """A subscriber that has just come counts for quotas from here on, not from the next cycle on."""
        if config.retention is not ReaderGroupRetention.NONE:
            for stream in config.start_cuts:
                await self._cycle.renew_limit(stream)

    async def get_reader_group(self, scope: str, name: str) -> ReaderGroupConfig:
        return await self._groups.get(scope, name)

    async def delete_reader_group(self, scope: str, name: str, *, group_id: UUID | None = None) -> None:
        await self._groups.delete(scope, name, group_id=group_id)

    async def list_reader_groups(self, scope: str) -> Sequence[str]:
        return await self._groups.names(scope)

    async def list_subscribers(self, stream: StreamName) -> Sequence[str]:
        return await self._subscribers.names(stream)

    async def update_subscriber_cut(
        self,
        subscriber: str,
        *,
        group_id: UUID | None,
        generation: int | None,
        cut: StreamCut,
        source: QuerySource | None = None,
    ) -> None:
        await self._subscribers.publish(subscriber, group_id=group_id, generation=generation, cut=cut, source=source)
        self._cycle.refresh_limit_soon(cut.stream)

    # --- policies ------------------------------------------------------------------------------------------------

    async def get_policy(self, target: PolicyTarget) -> PolicyDocument:
        return await self._policies.get(target)

    async def set_policy(self, target: PolicyTarget, document: PolicyDocument) -> None:
        await self._policies.set(target, document)
        if isinstance(target, StreamName):
            await self._cycle.refresh_limit(target)

    async def effective_policy(self, stream: StreamName) -> EffectivePolicy:
        return await self._policies.effective(stream)

    # --- retention -----------------------------------------------------------------------------------------------

    async def run_retention(self, stream: StreamName) -> RetentionRun:
        return await self._loop.run_stream(stream)

    async def plan_retention(
        self, stream: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        return await self._cycle.plan(stream, change=change, at_ms=at_ms)

    async def explain_retention(self, stream: StreamName, *, position: StreamCut | None = None) -> Explanation:
        return await self._cycle.explain(stream, position=position)

    async def retention_facts(self, stream: StreamName, *, change: PolicyDocument | None = None) -> Mapping[str, Any]:
        return await facts_told(self._ctx, stream, change=change)

    async def reclaim_report(self, stream: StreamName) -> Mapping[str, Any]:
        return await reclaim_report(self._ctx, stream)

    async def forecast_retention(self, stream: StreamName) -> Mapping[str, Any]:
        return await forecast(self._ctx, stream)

    async def undo_truncation(self, stream: StreamName) -> StreamCut:
        return await undo(self._ctx, stream)

    async def undo_truncations(self, stream: StreamName, *, since_ms: int | None = None) -> Mapping[str, Any]:
        return await undo_since(self._ctx, stream, since_ms=since_ms)

    async def list_evictions(self, stream: StreamName) -> Sequence[Mapping[str, Any]]:
        return await self._cycle.evictions(stream)

    async def add_hold(
        self,
        target: StreamName | str,
        *,
        owner: str,
        reason: str,
        until_ms: int | None = None,
        cut: StreamCut | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        return await self._holds.add(target, owner=owner, reason=reason, until_ms=until_ms, cut=cut, hold_id=hold_id)

    async def list_holds(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        return await listed_holds(self._ctx, self._holds, target)

    async def release_hold(self, hold_id: str, *, owner: str) -> HoldInfo:
        return await self._holds.release(hold_id, owner=owner)

    async def check_removal(self, segment: str, offset: int | None) -> None:
        """Raises RetentionHoldError where a hold covers bytes of the segment before ``offset``, or (None) any of it.

        Holds and nothing else: what removes segments for the store itself, which may, asks this.
        """
        await self._holds.check_removal(segment, offset)

    async def check_client_removal(self, segment: str, offset: int | None) -> None:
        """As ``check_removal``, for a client that knows of segments alone: what a server asks before it removes any for it.

        Raises InvalidArgumentError for the whole (None) of a segment of a stream: a stream without one of its segments cannot
        be read, sealed or deleted any more. Its head such a client may remove: state synchronizers and byte streams do.
        InvalidArgumentError too for any of the segment of a stream's transaction, which is committed whole or not at all.
        """
        await self._holds.check_removal(segment, offset)
        if is_transaction_name(segment) or (offset is None and not is_transient_name(segment)):
            await self._ctx.check_not_of_a_stream(parent_name(segment))

    @asynccontextmanager
    async def client_removal(self, segment: str, offset: int | None) -> AsyncIterator[None]:
        """Within the block a client may remove the bytes: what ``check_client_removal`` found stays true until its end.

        Placing a hold on the segment's stream or scope, and creating its stream, waits for the end of the block. Raises
        what ``check_client_removal`` raises, before the block begins.
        """
        async with self._holds.removal(segment):
            await self.check_client_removal(segment, offset)
            yield

    # --- erasures ------------------------------------------------------------------------------------------------

    async def erase(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None = None,
        last: bool = True,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        return await self._erasures.erase(stream, asked, positions, page=page, last=last, dry_run=dry_run)

    async def erasure(self, erasure: str) -> Mapping[str, Any]:
        return await self._erasures.status(erasure)

    async def erasure_part(self, erasure: str, part: int) -> Mapping[str, Any]:
        return await self._erasures.part(erasure, part)

    async def erasures(self, stream: StreamName | None = None) -> Sequence[Mapping[str, Any]]:
        return await self._erasures.names(stream)

    async def withdraw_erasure(self, erasure: str, *, who: str, why: str) -> Mapping[str, Any]:
        return await self._erasures.withdraw(erasure, who=who, why=why)

    # --- subscribers, by people ----------------------------------------------------------------------------------

    async def describe_subscribers(self, stream: StreamName) -> Sequence[SubscriberInfo]:
        return await self._subscribers.describe(stream)

    async def move_subscriber(
        self, stream: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        moved = await self._subscribers.move(stream, subscriber, cut, dry_run=dry_run)
        if not dry_run:
            await self._cycle.renew_limit(stream)
        return moved

    async def remove_subscriber(self, stream: StreamName, subscriber: str) -> None:
        await self._subscribers.remove(stream, subscriber)
        self._cycle.refresh_limit_soon(stream)


@asynccontextmanager
async def open_controller(
    segments: SegmentService,
    clock: Clock,
    rng: Rng,
    endpoint_of: Callable[[str], Endpoint],
    telemetry: Telemetry,
    settings: ControllerSettings | None = None,
    *,
    steady: Callable[[], float] | None = None,
) -> AsyncIterator[Controller]:
    """A serving controller; everything it is given stays the caller's.

    ``steady`` counts seconds that have really passed, by which data ages; the event loop's clock unless given.
    Raises: UnavailableError and ContainerOfflineError from the store; CorruptDataError, VersionTooNewError.
    """
    settings = settings or ControllerSettings()
    passed = steady or asyncio.get_running_loop().time
    ctx = context_of(segments, clock=clock, rng=rng, telemetry=telemetry, settings=settings, passed=passed)
    buckets = Buckets(
        ctx.metadata, rng, passed, ctx.set_aside, count=settings.buckets, lease_ms=settings.bucket_lease_ms
    )
    controller = Controller(ctx, buckets, endpoint_of)
    try:
        with (
            unattributed()
        ):  # The caller that opens the store does not request what the store finishes or does by itself.
            await controller.start()
        yield controller
    finally:
        await controller.close()
