"""The controller: scopes, streams, transactions, reader groups and retention, on top of any segment service.

It keeps nothing of its own but caches: all it knows lies in one table segment, changed by compare-and-set. Opening it
finishes whatever an earlier one left half done. Source: docs/design/0006-controller.md.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from penstock.controller.batches import Batches
from penstock.controller.context import Context
from penstock.controller.epochs import Histories
from penstock.controller.metadata import Metadata
from penstock.controller.queries import Queries
from penstock.controller.reader_groups import ReaderGroups
from penstock.controller.retention_cycle import RetentionCycle
from penstock.controller.retention_loop import RetentionLoop
from penstock.controller.scopes import Scopes
from penstock.controller.settings import ControllerSettings
from penstock.controller.streams import Streams
from penstock.controller.subscribers import Subscribers
from penstock.controller.transaction_sweeper import Sweeper
from penstock.controller.transactions import Transactions
from penstock.model.cuts import StreamCut
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.ports.clock import Clock
from penstock.ports.controller_service import (
    PAGE_MAX,
    Endpoint,
    PingStatus,
    ReaderGroupConfig,
    ScaleResult,
    ScaleStatus,
    StreamDescription,
    Successor,
    Transaction,
    TransactionStatus,
)
from penstock.ports.rng import Rng
from penstock.ports.segment_service import SegmentService
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)


class Controller:
    """``ports.controller_service.ControllerService``. Opened by ``open_controller``; its laws are the port's."""

    def __init__(self, ctx: Context, endpoint_of: Callable[[str], Endpoint]) -> None:
        self._ctx = ctx
        self._endpoint_of = endpoint_of
        self._scopes = Scopes(ctx)
        self._streams = Streams(ctx)
        self._queries = Queries(ctx)
        self._transactions = Transactions(ctx)
        self._batches = Batches(ctx)
        self._cycle = RetentionCycle(ctx)
        self._loop = RetentionLoop(ctx, self._cycle)
        self._subscribers = Subscribers(ctx, self._loop.soon)
        self._groups = ReaderGroups(ctx, self._streams, self._subscribers)
        self._sweeper = Sweeper(ctx, self._scopes, self._groups)

    async def start(self) -> None:
        """Create the table if need be, finish what was left half done, then begin the background work."""
        await self._ctx.metadata.bootstrap()
        await self._sweeper.resume()
        if self._ctx.settings.sweep_ms is not None:
            self._ctx.tasks.start(self._sweeper.run())
        if self._ctx.settings.retention_cycle_ms is not None:
            self._ctx.tasks.start(self._loop.run_cycles())
            self._ctx.tasks.start(self._loop.run_acknowledged())

    async def close(self) -> None:
        """Stop all work. What has begun is finished by whoever opens next."""
        await self._ctx.tasks.close()
        try:
            await self._ctx.flush_finished()
        except PenstockError as error:
            # Markers of ended workflows cost the next opening a look each, nothing more.
            log.info("markers of ended workflows stay", extra={"error": str(error)})

    async def sweep(self) -> None:
        """Abort what has expired and finish what was left half done, now."""
        await self._sweeper.sweep()

    async def run_retention_cycles(self) -> int:
        """One retention cycle of every stream with a policy, now; returns how many were looked at."""
        return await self._loop.run_once()

    # --- scopes --------------------------------------------------------------------------------------------------

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

    async def delete_stream(self, stream: StreamName) -> None:
        await self._streams.delete(stream)

    async def truncate_stream(self, stream: StreamName, cut: StreamCut) -> None:
        await self._streams.truncate(stream, cut)

    async def describe_stream(self, stream: StreamName) -> StreamDescription:
        return await self._queries.describe(stream)

    async def current_segments(self, stream: StreamName) -> Sequence[SegmentRange]:
        return await self._queries.current_segments(stream)

    async def epoch_segments(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        return await self._queries.epoch_segments(stream, epoch)

    async def head(self, stream: StreamName) -> StreamCut:
        return await self._queries.head(stream)

    async def tail(self, stream: StreamName) -> StreamCut:
        return await self._queries.tail(stream)

    async def successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        return await self._queries.successors(stream, segment)

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        return await self._queries.segments_between(stream, start, end)

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

    async def ping_transaction(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus:
        return await self._transactions.ping(stream, txn, lease_ms=lease_ms)

    async def commit_transaction(self, stream: StreamName, txn: UUID) -> None:
        await self._transactions.commit(stream, txn)

    async def abort_transaction(self, stream: StreamName, txn: UUID) -> None:
        await self._transactions.abort(stream, txn)

    async def transaction_status(self, stream: StreamName, txn: UUID) -> TransactionStatus:
        return await self._transactions.status(stream, txn)

    async def list_completed_transactions(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        return await self._transactions.completed(stream)

    async def commit_batch(self, stream: StreamName, *, writer: str, batch: int, transactions: Sequence[UUID]) -> bool:
        return await self._batches.commit(stream, writer=writer, batch=batch, transactions=transactions)

    async def last_batch(self, stream: StreamName, *, writer: str) -> int | None:
        return await self._batches.last(stream, writer=writer)

    # --- reader groups and subscribers ---------------------------------------------------------------------------

    async def create_reader_group(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        return await self._groups.create(config)

    async def update_reader_group(self, config: ReaderGroupConfig) -> int:
        return await self._groups.update(config)

    async def get_reader_group(self, scope: str, name: str) -> ReaderGroupConfig:
        return await self._groups.get(scope, name)

    async def delete_reader_group(self, scope: str, name: str, *, group_id: UUID | None = None) -> None:
        await self._groups.delete(scope, name, group_id=group_id)

    async def list_reader_groups(self, scope: str) -> Sequence[str]:
        return await self._groups.names(scope)

    async def list_subscribers(self, stream: StreamName) -> Sequence[str]:
        return await self._subscribers.names(stream)

    async def update_subscriber_cut(
        self, subscriber: str, *, group_id: UUID | None, generation: int | None, cut: StreamCut
    ) -> None:
        await self._subscribers.publish(subscriber, group_id=group_id, generation=generation, cut=cut)

    # --- retention -----------------------------------------------------------------------------------------------

    async def run_retention(self, stream: StreamName) -> Mapping[str, Any]:
        return await self._cycle.run(stream)

    async def explain_retention(self, stream: StreamName) -> Mapping[str, Any]:
        return await self._cycle.explain(stream)

    async def list_evictions(self, stream: StreamName) -> Sequence[Mapping[str, Any]]:
        """The latest times that a maximum took unread data from subscribers, oldest first."""
        return await self._cycle.evictions(stream)


@asynccontextmanager
async def open_controller(
    segments: SegmentService,
    clock: Clock,
    rng: Rng,
    endpoint_of: Callable[[str], Endpoint],
    telemetry: Telemetry,
    settings: ControllerSettings | None = None,
) -> AsyncIterator[Controller]:
    """A serving controller; everything it is given stays the caller's.

    Raises: UnavailableError and ContainerOfflineError from the store; CorruptDataError, VersionTooNewError.
    """
    settings = settings or ControllerSettings()
    metadata = Metadata(segments)
    ctx = Context(
        metadata=metadata,
        segments=segments,
        clock=clock,
        rng=rng,
        telemetry=telemetry,
        settings=settings,
        histories=Histories(metadata, limit=settings.histories_max),
    )
    controller = Controller(ctx, endpoint_of)
    try:
        await controller.start()
        yield controller
    finally:
        await controller.close()
