"""The controller: scopes, streams, transactions, reader groups and retention, on top of any segment service.

It keeps only caches in memory. All its state is in one table segment, changed by compare-and-set. Opening it finishes
the work that an earlier controller left incomplete. Source: docs/design/0006-controller.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.controller.buckets import Buckets
from penstock.controller.context import Context, EarlierPassed
from penstock.controller.erasure.cases import Cases
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.erasure.reapply import Reapplied
from penstock.controller.evidence.evidence import Evidence
from penstock.controller.grace.deleted_streams import DeletedStreams
from penstock.controller.grace.kept import undo_holds
from penstock.controller.groups.reader_groups import ReaderGroups
from penstock.controller.groups.subscribers import Subscribers
from penstock.controller.protection.approvals import Approvals
from penstock.controller.protection.approved import facts_of, perform
from penstock.controller.protection.guard import check_removal
from penstock.controller.retention.append_limits import AppendLimits
from penstock.controller.retention.cycle import RetentionCycle
from penstock.controller.retention.holds import Holds
from penstock.controller.retention.loop import RetentionLoop
from penstock.controller.retention.policies import Policies
from penstock.controller.retention_calls import RetentionCalls
from penstock.controller.scaling.loop import ScalingLoop
from penstock.controller.scaling.scaler import Scaler
from penstock.controller.settings import ControllerSettings
from penstock.controller.streams.queries import Cuts, Layout, StreamQueries
from penstock.controller.streams.repair import repair_stream
from penstock.controller.streams.restored import begin_restored
from penstock.controller.streams.scopes import Scopes
from penstock.controller.streams.updates import StreamChanges
from penstock.controller.tables.key_value_tables import KeyValueTables
from penstock.controller.transactions.batches import Batches
from penstock.controller.transactions.calls import Transactions
from penstock.controller.transactions.sweeper import Sweeper
from penstock.controller.watermarks.advancing import Advancing
from penstock.controller.watermarks.watermarks import Watermarks
from penstock.controller.wiring import context_of
from penstock.core.cases.ledger import Ledger
from penstock.core.segments.placement import is_transaction_name, is_transient_name, parent_name
from penstock.model.callers import unattributed
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.ports.access.authenticator import PresentRights
from penstock.ports.clock import Clock
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng
from penstock.ports.signing import SigningKeys
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_CLOSE_S = 5.0
"""How long the last writes of a close wait for the store, seconds. They only shorten the next start."""


class Streams(StreamChanges, StreamQueries, DeletedStreams):
    """``ports.control.streams.Streams``: changes, queries, and deleted streams."""


class CutsAndTimes(Cuts, Watermarks):
    """``ports.control.cuts.Cuts``: positions, and the times that writers note at them."""


class Controller:
    """``ports.control.plane.ControlPlane``. Opened by ``open_controller``; the ports state the rules of its calls."""

    def __init__(self, ctx: Context, buckets: Buckets, endpoint_of: Callable[[str], Endpoint]) -> None:
        self._ctx = ctx
        self._buckets = buckets
        self._limits = AppendLimits(ctx)
        self._cycle = RetentionCycle(ctx, self._limits)
        self._loop = RetentionLoop(ctx, self._cycle, buckets)
        self._ctx.attention = self._loop
        scaler = Scaler(ctx)
        self._scaling = ScalingLoop(ctx, scaler, buckets)
        self._ctx.scaling = self._scaling
        self.scopes = Scopes(ctx)
        self.streams = Streams(ctx)
        self.layout = Layout(ctx, self.streams, endpoint_of, scaler)
        self.cuts = CutsAndTimes(ctx)
        self.transactions = Transactions(ctx)
        self.batches = Batches(ctx)
        self.subscribers = Subscribers(ctx, self._limits)
        self.groups = ReaderGroups(ctx, self.streams, self.subscribers, self._limits)
        self.policies = Policies(ctx, self._limits)
        self.retention = RetentionCalls(ctx, self._cycle, self._loop)
        self.erasures = Erasures(ctx)
        self.cases = Cases(ctx, self.erasures)
        self.holds = Holds(ctx, self._hold_ended, partial(undo_holds, ctx))
        self.evidence = Evidence(ctx, self.erasures, self.cases, lambda: self.holds.list(None))
        self.approvals = Approvals(ctx, partial(facts_of, ctx, self), partial(perform, self, self.erasures, self.cases))
        ctx.gate = self.approvals
        self.tables = KeyValueTables(self.scopes, ctx.segments, self.approvals.check_table)
        self._advancing = Advancing(ctx)
        sweeps = (self.evidence.sweep, self.approvals.sweep)
        self._sweeper = Sweeper(ctx, self.scopes, self.groups, self.holds, self.erasures, self.streams, sweeps)

    def use_rights(self, rights: PresentRights | None) -> None:
        """Check with ``rights`` that requesters still have the right to what is performed in their names. None: as before
        the first call, their rights are not known. Borrowed."""
        self._ctx.rights, self._ctx.rights_known = rights, True

    def _hold_ended(self) -> None:
        self.erasures.resume_soon()
        self.cases.soon()

    async def start(self) -> None:
        """Create the table if it does not exist, finish incomplete work, then start the background tasks."""
        ctx = self._ctx
        looks = ctx.settings.retention_cycle_ms is not None
        await ctx.metadata.bootstrap()
        await ctx.retention_clock.start()
        await self._buckets.start()
        await self._sweeper.resume()
        await ctx.audit.start(self.streams.ensure, now=looks)
        await self._limits.restore()
        await self.erasures.feed.start(self.streams.ensure, now=looks)
        await self.erasures.start()
        await self._advancing.start()
        if ctx.settings.watermark_ms is not None:
            ctx.tasks.start(self._advancing.run())
        if ctx.settings.sweep_ms is not None:
            ctx.tasks.start(self._sweeper.run())
            ctx.tasks.start(self.cases.run())
        if looks:
            loop = self._loop
            for work in (self._buckets.run, loop.run_cycles, loop.run_dirty, loop.run_sweeps, loop.run_limits):
                ctx.tasks.start(work())
        if looks and ctx.settings.scaling_minute_ms is not None:
            ctx.tasks.start(self._scaling.run_reports())
            ctx.tasks.start(self._scaling.run_looks())

    async def close(self) -> None:
        """Stop all work, then append the waiting audit entries, so that a closed store's audit stream has all of them. The
        next controller to open finishes what has begun. Returns soon even if the store does not answer."""
        await self._ctx.tasks.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._ctx.work.flush()
                await self._buckets.close()
                await self._ctx.retention_clock.record()
                if self._ctx.audit.waiting:
                    await self._ctx.audit.drain()
        except (PenstockError, TimeoutError) as error:
            # Each marker left behind costs the next start one read, and an unreleased bucket costs one lease. Audit
            # entries wait in the outbox.
            log.info("not all was written down at the end", extra={"error": repr(error)})

    async def sweep(self) -> None:
        """Abort expired transactions and finish incomplete workflows, now."""
        await self._sweeper.sweep()

    async def run_retention_cycles(self) -> int:
        """One retention cycle of every stream with a policy, now; returns the number of streams checked."""
        return await self._loop.run_once()

    async def advance_watermarks(self) -> int:
        """Look now at the watermarks of all streams that are due; returns how many advanced."""
        return await self._advancing.run_once()

    async def repair_stream(self, stream: StreamName) -> Mapping[str, Any]:
        """Remove records that block the stream: see ``controller.streams.repair.repair_stream``."""
        return await repair_stream(self._ctx, stream)

    async def begin_restored(self, jump: int) -> int:
        """Give all streams of a restored store new segments: see ``controller.streams.restored.begin_restored``."""
        return await begin_restored(self._ctx, jump)

    async def reapply_erasures(self, ledger: Ledger) -> Reapplied:
        """Erase again what the ledger of the original lists: see ``controller.erasure.reapply``. Call it in a store
        from an older copy, before the first read. Repeatable."""
        return await self.cases.reapply(ledger)

    async def audit_keys(self) -> Sequence[str]:
        """The public keys of the store's audit logs, for documents that it has signed."""
        return await self.evidence.public_keys()

    async def record_refusals(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write an entry about refused calls into the audit stream for each mapping of fields, in one step. Raises as
        ``Metadata.put``."""
        audit = self._ctx.audit
        found = [AuditEntry(kind=AuditKind.REFUSED, target="", fields=fields) for fields in entries]
        await self._ctx.metadata.put(*audit.puts(found))
        audit.soon()

    async def drain_audit(self) -> int:
        """Append the waiting entries to the audit stream now; returns how many."""
        return await self._ctx.audit.drain()

    async def check_removal(self, segment: str, offset: int | None) -> None:
        """Raises RetentionHoldError if a hold covers bytes of the segment before ``offset``, or (None) any of it.

        Checks only holds. For removals by the store itself, which may remove any segment.
        """
        await check_removal(self._ctx, segment, offset)

    async def check_client_removal(self, segment: str, offset: int | None) -> None:
        """As ``check_removal``, for clients that remove data by segment. A server calls this before such a removal.

        Raises RetentionLockError while a lock on the stream is in force. Raises InvalidArgumentError for the removal of
        a whole segment (None) of a stream: without it the stream could not be read, sealed or deleted. Truncating such
        a segment is allowed: state synchronizers and byte streams do it. Raises InvalidArgumentError also for any
        removal from a transaction's segment: a transaction is committed as a whole or not at all.
        """
        await check_removal(self._ctx, segment, offset, by_client=True)
        if is_transaction_name(segment) or (offset is None and not is_transient_name(segment)):
            await self._ctx.streams.check_not_of_a_stream(parent_name(segment))

    @asynccontextmanager
    async def client_removal(self, segment: str, offset: int | None) -> AsyncIterator[None]:
        """Within the block a client may remove the bytes: the result of ``check_client_removal`` stays valid until the
        block ends.

        Placing a hold on the segment's stream or scope, and creating its stream, waits for the end of the block. Raises
        the errors of ``check_client_removal`` before the block begins.
        """
        async with self.holds.removal(segment):
            await self.check_client_removal(segment, offset)
            yield


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
    signing: SigningKeys | None = None,
    earlier_removals_passed: EarlierPassed | None = None,
) -> AsyncIterator[Controller]:
    """Open a controller that serves calls. All arguments are borrowed.

    ``steady`` counts elapsed seconds, for the age of data; default: the event loop's clock. Without ``signing``, calls of
    ``evidence`` that sign raise UnsupportedError. ``earlier_removals_passed``: see ``Context``; None: no controller was
    active before whose removals may still run.
    Raises: UnavailableError and ContainerOfflineError from the store; CorruptDataError, VersionTooNewError.
    """
    settings = settings or ControllerSettings()
    passed = steady or asyncio.get_running_loop().time
    ctx = context_of(
        segments, clock=clock, rng=rng, telemetry=telemetry, settings=settings, passed=passed, signing=signing
    )
    if earlier_removals_passed is not None:
        ctx.earlier_removals_passed = earlier_removals_passed
    buckets = Buckets(
        ctx.metadata, rng, passed, ctx.set_aside, count=settings.buckets, lease_ms=settings.bucket_lease_ms
    )
    controller = Controller(ctx, buckets, endpoint_of)
    try:
        with (
            unattributed()
        ):  # Audit entries must not name the caller that opens the store for work that the store does by itself.
            await controller.start()
        yield controller
    finally:
        await controller.close()
