"""The segment store: containers over one log, one key-value store and one chunk storage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from uuid import UUID

from penstock.core.segments.append_rules import is_text
from penstock.core.segments.placement import container_of
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
    SegmentNotFoundError,
    UnsupportedError,
)
from penstock.model.ledgers import LogWipe
from penstock.model.names import transient_segment_name
from penstock.model.scaling import SegmentRates
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.chunks import LEASE_PARTS_MAX, ChunkRange, Leased
from penstock.ports.data.direct_appends import AppendsDone, FrameAppend
from penstock.ports.data.erasing import ErasedChunk
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.limits import AppendLimit, SegmentChanges
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import Append, AppendDone, Appended, SegmentInfo, SegmentRead
from penstock.ports.data.service import Watch
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.data.tables import (
    TableCheck,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)
from penstock.ports.disk import Disk
from penstock.ports.durable_log import DurableLog
from penstock.ports.integrity import SCRUB_MAX_BYTES, ScrubPage
from penstock.ports.shared_counts import SharedCounts
from penstock.segmentstore.append_limits import AppendLimits
from penstock.segmentstore.calls import leases, tables
from penstock.segmentstore.calls import segments as segment_calls
from penstock.segmentstore.changes import Changes
from penstock.segmentstore.container import Container, close_all
from penstock.segmentstore.durability.recovery import recover
from penstock.segmentstore.durability.shared_log import SharedLog
from penstock.segmentstore.erasure.log_wipe import wipe_log, wipes_from
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.rates import RateMeters
from penstock.segmentstore.repair.scrub import Scrubber
from penstock.segmentstore.segment import Segment
from penstock.segmentstore.shortage import functions_not_ready
from penstock.segmentstore.tasks import finish
from penstock.segmentstore.tiering.tail_cache import CacheMemory

_log = logging.getLogger(__name__)


class SegmentStore:
    """Implements ``ports.data.service.LocalSegmentService``. Made by ``open_segment_store``.

    The caller may keep a read's views indefinitely: their buffers are never written again. An appended memoryview of 16
    KiB or more is kept for reads, so its buffer must not be written again while it is referenced.
    """

    withdraw_appends = None
    open_direct = None

    def __init__(
        self,
        log: DurableLog,
        parts: StoreParts,
        *,
        disk: Disk | None = None,
        owned: Sequence[int] | None = None,
        shared: SharedCounts | None = None,
        memory: CacheMemory | None = None,
    ) -> None:
        """See ``open_segment_store``."""
        settings = parts.settings
        self._parts = parts
        self._log = log
        self._disk = disk
        self._wiping = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._rates = RateMeters(self._counters)
        self._limits = AppendLimits(shared, left=self._left)
        self._changes = Changes(epoch=log.epoch, limit=settings.max_changed_segments)
        self.settings = settings
        self._memory = memory or CacheMemory(settings.cache_bytes, settings.max_unflushed_bytes)
        self._shared_log = SharedLog(
            log, fill_bytes=settings.checkpoint_bytes, pause_s=settings.retry_min_s, telemetry=parts.telemetry
        )
        self._routes: dict[str, Container] = {}
        self.containers = [
            Container(
                index, parts, log=self._shared_log, memory=self._memory, limits=self._limits, changes=self._changes
            )
            for index in (range(settings.containers) if owned is None else owned)
        ]
        self._total = settings.containers
        self._by_index = {container.index: container for container in self.containers}

    # --- life ---------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Rebuild the state. Raises: CorruptDataError, VersionTooNewError, InvalidArgumentError (another number of
        containers than the store was created with)."""
        await recover(self.containers, self._total, log=self._log, keyvalue=self._parts.keyvalue)
        self._shared_log.last_address = self._log.last

    def start(self) -> None:
        """Begin to serve, after ``recover``."""
        self._shared_log.filled = self._log_filled
        for container in self.containers:
            container.checkpointer.truncate_log = self._truncate_log
            container.went_offline = self._stopped.set
            container.start()

    async def close(self, *, checkpoint: bool = True) -> None:
        """End background work; with ``checkpoint``, answer what is queued and checkpoint first, all containers together.

        What takes longer than ``settings.close_s``, because something does not answer, is given up. Queued calls then fail,
        and the next start takes longer. Nothing acknowledged is lost. The memory of events is free afterwards.
        """
        settling = [asyncio.create_task(container.settle()) for container in self.containers if checkpoint]
        try:
            if settling:
                _, late = await asyncio.wait(settling, timeout=self.settings.close_s)
                if late:
                    _log.warning("store was closed without a checkpoint", extra={"waited_s": self.settings.close_s})
        finally:
            await finish(close_all(self.containers, settling))
        for task in settling:
            if task.done() and not task.cancelled():
                task.result()  # raises what stopped it

    @property
    def offline(self) -> ContainerOfflineError | None:
        """Why a container has stopped, or None while all serve. A stopped container comes back only when the store is
        reopened."""
        return next((container.offline for container in self.containers if container.offline is not None), None)

    async def until_offline(self) -> None:
        """Wait until a container has stopped, by an error or by ``close``; see ``offline``."""
        await self._stopped.wait()

    def not_ready(self) -> Mapping[str, str]:
        """See ``core.segments.readiness``: the functions that do not work now, each with the reason."""
        return functions_not_ready(self._shared_log.shortage, self._memory, self.offline)

    def _log_filled(self) -> None:
        for container in self.containers:
            container.tiering.force()
            container.checkpointer.ask()

    async def _truncate_log(self) -> None:
        bounds = [bound for one in self.containers if (bound := one.log_free_upto()) is not None]
        with self._parts.holds.log() as may_free:
            if may_free:
                await self._shared_log.truncate(min(bounds, default=self._shared_log.last_address))

    def report_memory(self) -> None:
        """Set the gauges of the memory of events."""
        telemetry, memory = self._parts.telemetry, self._memory
        telemetry.gauge("unflushed_bytes", memory.unflushed_bytes)
        telemetry.gauge("unflushed_limit_bytes", memory.unflushed_limit_bytes)
        telemetry.gauge("tail_cache_bytes", memory.cached_bytes)

    @property
    def cached_bytes(self) -> int:
        """Bytes that the tail caches hold now."""
        return self._memory.cached_bytes

    def allow_memory(self, *, cache_bytes: int, unflushed_bytes: int) -> None:
        """Change the limits of the tail caches and of untiered bytes, up to those of the settings."""
        self._memory.allow(cache_bytes, unflushed_bytes)

    async def flush(self) -> None:
        """Tier and checkpoint everything durable now, truncate the log, free space.

        Raises what the storage raises; the work done until then stays.
        """
        for container in self.containers:
            await container.drain()
            await container.tiering.tier_all()
            await container.checkpointer.checkpoint()
            await container.reclaimer.free()

    def _container(self, name: str) -> Container:
        container = self._routes.get(name)
        if container is None:
            if len(self._routes) >= self.settings.max_loaded_segments * len(self.containers):
                self._routes.clear()
            if not is_text(name):
                raise InvalidNameError("segment name is not text", segment=name.encode(errors="replace")[:200])
            index = container_of(name, self._total)
            container = self._by_index.get(index)
            if container is None:
                raise ContainerOfflineError("segment belongs to another store", segment=name, container=index)
            self._routes[name] = container
        return container

    # --- segments -----------------------------------------------------------------------------------------

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        await segment_calls.create(self._container(name), name, rollover_bytes=rollover_bytes)

    async def create_fresh(self, names: Sequence[str]) -> None:
        """See ``SegmentBatches``."""
        answers = [segment_calls.submit_creation(self._container(name), name) for name in names]
        ended = await asyncio.gather(*(answer.future for answer in answers), return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, BaseException):
                raise outcome

    async def setup_append(self, name: str, writer: UUID) -> int:
        return await segment_calls.setup_append(self._container(name), name, writer)

    def submit_append(self, request: Append, done: AppendDone) -> None:
        (self._routes.get(request.segment) or self._container(request.segment)).appends.submit(request, done)

    def submit_appends(self, appends: Sequence[FrameAppend], done: AppendsDone) -> None:
        containers = [self._routes.get(one[0]) or self._container(one[0]) for one in appends]
        segment_calls.submit_to_each([container.appends for container in containers], appends, done)

    async def append(self, request: Append) -> Appended:
        return await segment_calls.append(self.submit_append, request)

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        return await self._container(name).reads.read(name, offset, max_bytes, wait=wait)

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        return (self._routes.get(name) or self._container(name)).reads.read_now(name, offset, max_bytes)

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        return self._container(name).reads.watch(name, offset, changed)

    async def info(self, name: str) -> SegmentInfo:
        container = self._container(name)
        return (await container.segments.find_visible(name)).require_plain().info()

    async def seal(self, name: str) -> int:
        return await segment_calls.seal(self._container(name), name)

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        await segment_calls.truncate(self._container(name), name, offset, keep=keep)

    async def release(self, name: str, offset: int) -> None:
        await segment_calls.release(self._container(name), name, offset)

    async def restore(self, name: str, offset: int) -> int:
        return await segment_calls.restore(self._container(name), name, offset)

    async def count_events(self, name: str, start: int, end: int) -> int:
        return await self._container(name).events.count(name, start, end)

    async def delete(self, name: str) -> None:
        await segment_calls.delete(self._container(name), name)

    async def create_transient(self, parent: str, writer: UUID) -> str:
        container = self._container(parent)
        (await container.segments.find_visible(parent)).require_plain()
        name = transient_segment_name(parent, writer, self._parts.rng.uuid())
        await segment_calls.create(container, name)
        return name

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        container = self._container(target)
        if self._container(source) is not container:
            raise InvalidArgumentError(
                "source must be a transaction or transient segment of the target", target=target, source=source
            )
        return await segment_calls.merge(container, target, source, updates)

    async def merge_run(self, target: str, sources: Sequence[str]) -> int:
        """See ``SegmentBatches``."""
        return await segment_calls.merge_run(self._container(target), target, sources)

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        return await segment_calls.get_attribute(self._container(name), name, attribute)

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool:
        return await segment_calls.update_attribute(self._container(name), name, attribute, value, expected=expected)

    # --- tables -------------------------------------------------------------------------------------------

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        await tables.create(self._container(name), name, kind=kind, key_bytes=key_bytes)

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        await tables.delete(self._container(name), name, must_be_empty=must_be_empty)

    async def table_update(self, name: str, puts: Sequence[TablePut | TableCheck | TableLength]) -> Sequence[int]:
        return await tables.change(self._container(name), name, puts)

    async def table_remove(self, name: str, removals: Sequence[TableRemoval | TableLength]) -> None:
        await tables.change(self._container(name), name, removals)

    async def table_change(self, name: str, changes: Sequence[TablePut | TableRemoval | TableCheck]) -> Sequence[int]:
        return await tables.change(self._container(name), name, changes)

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        return await tables.get(self._container(name), name, keys)

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        return await tables.scan(self._container(name), name, after=after, limit=limit, first=first, last=last)

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        return await tables.delta(self._container(name), name, position, limit)

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        return await tables.info(self._container(name), name)

    # --- chunks -------------------------------------------------------------------------------------------

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        return await self._container(name).reads.chunk_ranges(name, start, end)

    async def event_ranges(self, name: str, offsets: Sequence[int]) -> Sequence[tuple[int, int]]:
        return await self._container(name).eraser.event_ranges(name, offsets, await wipes_from(self, self._shared_log))

    async def erase(self, name: str, ranges: Sequence[tuple[int, int]], *, erasure: str) -> Sequence[ErasedChunk]:
        return await self._container(name).eraser.erase(name, ranges, erasure)

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        return await self._container(name).eraser.erased_ranges(name, start, end)

    async def wipe_log(self) -> LogWipe:
        async with self._wiping:
            return await wipe_log(self, self._shared_log, self.containers[0].index, self._parts.clock.now_ms())

    async def lease_chunks(self, names: Sequence[str], lease: UUID, *, until_ms: int, holder: str = "") -> Leased:
        return await leases.take(self.containers, self._container, names, lease.int, until_ms=until_ms, holder=holder)

    async def release_lease(self, lease: UUID) -> None:
        for container in self.containers:
            container.check_online()
            await container.leases.release(lease.int)

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        if not 0 <= part < parts <= LEASE_PARTS_MAX:
            raise InvalidArgumentError("part of a lease is out of range", part=part, parts=parts, limit=LEASE_PARTS_MAX)
        for container in self.containers:
            container.check_online()
            await container.leases.finish(lease.int, part, parts)

    async def grant_import(self, name: str) -> ImportGrant:
        """See ``ports.data.imports.ChunkImports``."""
        return await self._container(name).imports.grant(name)

    async def adopt_chunks(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """See ``ports.data.imports.ChunkImports``."""
        return await self._container(name).imports.adopt(name, offset, chunks)

    async def next_event_boundary(self, name: str, offset: int) -> int:
        return await self._container(name).reads.next_event_boundary(name, offset)

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        found: dict[str, SegmentInfo] = {}
        for name in names:
            with suppress(SegmentNotFoundError):
                found[name] = await self.info(name)
        return found

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        found: dict[str, SegmentSpace] = {}
        for name in names:
            container = self._container(name)
            try:
                segment = await container.segments.find_visible(name)
            except NotFoundError:
                gone = container.reclaimer.space_of_deleted(name)
                if gone is not None:
                    found[name] = gone
                continue
            found[name] = await container.reclaimer.space(segment)
        return found

    async def disk(self) -> DiskSpace:
        if self._disk is None:
            raise UnsupportedError("store was opened without a disk to measure")
        return await self._disk.space()

    async def scrub(self, cursor: str | None, max_bytes: int) -> ScrubPage:
        """See ``ports.integrity.Scrubbable``."""
        for container in self.containers:
            container.check_online()
        scrubber = Scrubber(
            {container.index: container.rows for container in self.containers},
            keyvalue=self._parts.keyvalue,
            log=self._log,
            chunks=self._parts.chunks,
            objects=self._parts.catalogue,
            offload=self._parts.offload,
        )
        page = await scrubber.page(cursor, min(max_bytes, SCRUB_MAX_BYTES))
        self._parts.telemetry.add("scrubbed_bytes", page.checked.get("bytes", 0))
        if page.damage:
            self._parts.telemetry.add("scrub_findings", len(page.damage))
        return page

    # --- calls of retention ------------------------------------------------------------------------------

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        for container in self.containers:
            container.segments.held += 1
        try:
            await self._limit_appends(limits)
        finally:
            for container in self.containers:
                container.segments.held -= 1

    def limit_used(self, stream: str) -> tuple[int, int]:
        """See ``ports.data.limits.LimitUse``."""
        return self._limits.used(stream)

    async def _limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        for limit in limits:
            absent: dict[str, None] = {}
            while True:
                # In memory they are counted as they grow. Find all in one step, since some may be evicted while another
                # loads.
                names = [name for name in self._limits.unknown(limit) if name not in absent]
                known = [self._container(name).segments.pending(name) for name in names]
                missing = [name for name, segment in zip(names, known, strict=True) if segment is None]
                if not missing:
                    self._limits.set(limit, [segment for segment in known if segment is not None])
                    break
                for name in missing:
                    try:
                        if await self._container(name).segments.find(name) is None:
                            absent[name] = None
                    except CorruptDataError:
                        absent[name] = None  # Its metadata is damaged: it takes no appends, and does not limit others.

    async def limits_reached(self) -> Sequence[str]:
        return await self._limits.reached()

    async def changed_segments(self, after: int) -> SegmentChanges:
        return self._changes.take(after)

    def _left(self, segment: Segment) -> None:
        self._rates.note(segment.name, segment.event_count, segment.length)

    def _counters(self, name: str) -> tuple[int, int] | None:
        segment = self._container(name).segments.visible(name)
        return None if segment is None else (segment.event_count, segment.length)

    async def measure_rates(self, watches: Sequence[RateWatch]) -> None:
        wanted = [(watch, self._rates.unknown(watch)) for watch in watches]
        for watch, unknown in wanted:
            self._rates.set(watch, await self.infos(unknown))

    async def segment_rates(self, names: Sequence[str]) -> Mapping[str, SegmentRates]:
        return self._rates.rates(names)

    async def rates_reported(self) -> Sequence[str]:
        return await self._rates.reported()


@asynccontextmanager
async def open_segment_store(
    log: DurableLog,
    parts: StoreParts,
    *,
    disk: Disk | None = None,
    owned: Sequence[int] | None = None,
    shared: SharedCounts | None = None,
    memory: CacheMemory | None = None,
) -> AsyncIterator[SegmentStore]:
    """A recovered, serving store. The arguments are borrowed, and closed by their owners after it.

    ``disk`` answers ``SegmentService.disk``, which raises UnsupportedError without it. ``owned`` are the containers
    that this store owns (None: all); calls for segments of others raise ContainerOfflineError.
    ``shared``: what the other stores hold, for limits on all of them together. ``memory``: that of events, if several
    stores of this process share it; None: the store has its own, of the size in the settings.

    On normal exit, queued operations are answered and checkpointed. On an error, background work stops at once, and the
    next opening recovers. Raises what ``SegmentStore.recover`` raises.
    """
    store = SegmentStore(log, parts, disk=disk, owned=owned, shared=shared, memory=memory)
    try:
        await store.recover()
        store.start()
        yield store
    except BaseException:
        await store.close(checkpoint=False)
        raise
    await store.close(checkpoint=True)
