"""A segment store on a data directory, as every process that holds data opens it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from penstock.app.integrity.start_check import StartFacts, check_start
from penstock.app.settings import MEMORY_BASE_BYTES, SERVER_MEMORY_MIN_BYTES, EmbeddedSettings
from penstock.app.tier2 import for_tier2, open_tier
from penstock.model.values.dataclass import dataclass
from penstock.net.grpc.gate import GateLimits
from penstock.net.http.http_limits import RestLimits
from penstock.net.wire.wire_limits import WireLimits
from penstock.ports import forks
from penstock.ports.clock import Clock
from penstock.ports.cluster.publications import Publications
from penstock.ports.durable_log import DurableLog
from penstock.ports.holds import SpaceHolds
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.ports.shared_counts import SharedCounts
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.segmentstore.tiering.tail_cache import CacheMemory
from penstock.storage.chunks.claim import reserve_tier
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.disk import FileDisk
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.holds import FileHolds
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.reserve import keep_reserve
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

if TYPE_CHECKING:
    from penstock.storage.ledgers.keyring import Sealing

CONTAINERS = 4  # containers of a new store; each has its own queue and checkpoint
_SEGMENT_BYTES = 3 << 10
"""A segment in memory with one writer and one chunk, measured."""
_LOADED_MIN, _LOADED_MAX = 1_000, 10_000  # segments in memory: at least of all containers, at most of one
_PARKED_BYTES = 1 << 10
"""A read that waits at a tail, with its request: twice the measured size."""
_PARKED_MIN, _PARKED_MAX = 10_000, 20_000  # waiting reads: at least of all containers, at most of one
_WRITER_BYTES = 1280
"""A writer set up on a connection, measured."""
_UNIT_BYTES = 6 << 20
"""Memory for each container of a cluster: two verified blocks of chunks, loaded segments, changed rows, some events."""
_UNFLUSHED_MIN_BYTES = 8 << 20
_CONNECTIONS_MAX = 4096  # connections; the memory budget allows fewer on small machines
_CONNECTION_BYTES = 96 << 10
"""A connection that is in use: its objects, and a small receive buffer."""

_HTTP_CONNECTION_BYTES = 256 << 10
"""Memory of an HTTP connection with a small body: received, collected and parsed."""

_GRPC_CONNECTIONS_MAX = 1024  # connections; the memory budget allows fewer on small machines
_GRPC_CONNECTION_BYTES = 256 << 10
"""Memory of a gRPC connection in use: its objects, the buffers on both sides of the gate, and its uncounted
requests."""


def store_settings(settings: EmbeddedSettings, *, containers: int = CONTAINERS) -> StoreSettings:
    """Divide the budgets of a process that owns up to ``containers``, which share the memory of events.

    The process itself needs some memory. Of the rest, half is for the tails, and half of that can be data that is not
    tiered yet. An eighth is for loaded segments, and an eighth for receive buffers. The remainder is for changed rows,
    copies in flight, and memory that the allocator cannot use. Each container keeps at least two verified blocks of chunks,
    which concurrent reads share; those of many containers reduce the share of the tails. Everything is tiered before half
    of the log is full, so that appends rarely wait for log space.
    """
    working, each = settings.working_bytes, settings.working_bytes // containers
    loaded = max(_LOADED_MIN // containers, min(_LOADED_MAX, each // 8 // _SEGMENT_BYTES))
    parked = max(_PARKED_MIN // containers, min(_PARKED_MAX, each // 8 // _PARKED_BYTES))
    blocks = max(2 << 20, min(4 << 20, each // 16))
    many_blocks = max(0, containers * blocks - max(8 << 20, working // 16))
    return StoreSettings(
        containers=containers,
        cache_bytes=max(working // 4, working // 2 - many_blocks),
        read_cache_bytes=blocks,
        max_unflushed_bytes=max(_UNFLUSHED_MIN_BYTES, min(working // 4, settings.log_bytes // 2)),
        checkpoint_bytes=max(64 << 20, settings.log_bytes) // containers,
        checkpoint_rows_bytes=max((4 << 20) // containers, min(8 << 20, each // 16)),
        catalogue_part_bytes=max((1 << 20) // containers, min(4 << 20, each // 16)),
        chunk_bytes=settings.chunk_bytes,
        tier_run_bytes=max(1 << 20, min(8 << 20, each // 8)),
        max_loaded_segments=loaded,
        max_loaded_attributes=max(1_000, loaded),
        max_parked_reads=parked,
        max_changed_segments=10 * loaded,
    )


def cluster_memory_min_bytes(containers: int) -> int:
    """The smallest memory budget of a store of a cluster. After the loss of all others, it owns all containers."""
    return max(SERVER_MEMORY_MIN_BYTES, MEMORY_BASE_BYTES + containers * _UNIT_BYTES)


def wire_limits(settings: EmbeddedSettings, *, connections: int = _CONNECTIONS_MAX) -> WireLimits:
    """The limits of the wire protocol. Of the memory that the process does not need itself, an eighth is for receive buffers
    and unanswered bytes, and a sixteenth for replies.

    A single reader may use the whole share for replies, because a smaller limit halves its catch-up rate.
    ``connections``: the most that the system allows.
    """
    share = max(4 << 20, settings.working_bytes // 8)
    return WireLimits(
        held_bytes=min(16 << 20, share),
        held_bytes_total=share,
        arena_bytes=share,
        receiving_bytes=share,
        connections=min(connections, max(256, min(_CONNECTIONS_MAX, settings.working_bytes // _CONNECTION_BYTES))),
        writers_total=max(16_384, settings.working_bytes // 8 // _WRITER_BYTES),
        replies_bytes=max(1 << 20, settings.working_bytes // 16),
        write_buffer_bytes=4 << 20,
    )


def rest_limits(settings: EmbeddedSettings) -> RestLimits:
    """A sixteenth of the memory that the process does not need itself is for bodies. A parsed body takes 30 times its
    size."""
    working = settings.working_bytes
    most = RestLimits()
    return RestLimits(
        body_bytes=min(most.body_bytes, working // 32),
        bodies_bytes=min(most.bodies_bytes, working // 16),
        connections=max(64, min(most.connections, working // _HTTP_CONNECTION_BYTES)),
    )


def gate_limits(settings: EmbeddedSettings, *, connections: int = _GRPC_CONNECTIONS_MAX) -> GateLimits:
    """The same share for gRPC requests, but at least the largest request fits. ``connections``: the most that the
    system allows."""
    working = settings.working_bytes
    return GateLimits(
        requests_bytes=max(4 << 20, min(GateLimits().requests_bytes, working // 16)),
        connections=min(connections, max(64, min(_GRPC_CONNECTIONS_MAX, working // _GRPC_CONNECTION_BYTES))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLog:
    """``load``: fills the metadata of a directory that takes over a store. ``publications``: None for a local log.
    ``owns_tier``: the owner of the log also owns tier 2, which then needs no claim."""

    log: DurableLog
    publications: Publications | None = None
    load: Callable[[Objects, SqliteKeyValue], Awaitable[None]] | None = None
    owns_tier: bool = False


class _KnownLog(TypedDict):
    """What a start knows about the log outside its directory. See ``open_replicated_log``."""

    is_new: bool
    epoch_min: int
    tier: str | None
    sealing: Sealing


@asynccontextmanager
async def _open_log(
    settings: EmbeddedSettings, files: RealFiles, facts: StartFacts, *, offload: Offload, clock: Clock, rng: Rng
) -> AsyncIterator[OpenLog]:
    if settings.log_url is None:
        async with open_local_log(
            files, directory="wal", segment_bytes=settings.log_file_bytes, budget_bytes=settings.log_bytes, rng=rng
        ) as local:
            yield OpenLog(log=local)
        return
    # Imported here: a store with a local log needs neither the client of BookKeeper nor that of ZooKeeper.
    from penstock.app.replicated.log_keys import open_sealing
    from penstock.app.replicated.takeover import load_store

    tier = None
    if facts.tier.place is not None:
        tier = await reserve_tier(files, place=facts.tier.place, endpoint=facts.tier.endpoint, rng=rng)
    async with AsyncExitStack() as stack:
        sealing = await stack.enter_async_context(open_sealing(settings, files, offload=offload, clock=clock))
        known = _KnownLog(is_new=facts.is_new, epoch_min=facts.epoch_min, tier=tier, sealing=sealing)
        if settings.log_at is None:
            from penstock.app.replicated.object_log import open_object_log

            opening = open_object_log(settings, files, offload=offload, clock=clock, rng=rng, **known)
        else:
            from penstock.app.replicated.replicated_log import open_replicated_log

            opening = open_replicated_log(settings.log_at, settings.data, clock=clock, rng=rng, **known)
        log = await stack.enter_async_context(opening)

        async def load(objects: Objects, keyvalue: SqliteKeyValue) -> None:
            await load_store(log, settings.data, objects, keyvalue, max_lease_ms=store_settings(settings).max_lease_ms)

        yield OpenLog(log=log, publications=log.publications, load=load)


async def _take_over(settings: EmbeddedSettings, *, offload: ThreadOffload, rng: Rng) -> None:
    from penstock.app.replicated.takeover import prepare_takeover  # only here, as above

    await prepare_takeover(settings, offload=offload, rng=rng)


@asynccontextmanager
async def _holds(settings: EmbeddedSettings, *, offload: Offload) -> AsyncIterator[SpaceHolds]:
    holds = FileHolds(settings.data)
    if settings.log_url is None:
        yield holds
        return
    from penstock.app.replicated.takeover import held_after_takeover  # only here, as above

    async with held_after_takeover(settings.data, holds, offload=offload) as held:
        yield held


@asynccontextmanager
async def open_segments(
    settings: EmbeddedSettings,
    *,
    clock: Clock,
    rng: Rng,
    telemetry: Telemetry,
    containers: int | None = None,
    owned: Sequence[int] | None = None,
    shared: SharedCounts | None = None,
) -> AsyncIterator[SegmentStore]:
    """Recover the store in ``settings.data``, which the caller holds. After the block, all acknowledged data is on disk.

    ``containers``: number of containers of the whole store; None: the default. ``owned``: those that this process serves;
    None: all. Raises InvalidArgumentError, CorruptDataError, VersionTooNewError, and what ``check_start`` raises before
    anything changes.
    """
    async with forks.OwnedExitStack() as stack:
        offload = ThreadOffload()
        stack.push_async_callback(offload.close)
        total = containers or CONTAINERS
        if settings.take_over:
            await _take_over(settings, offload=offload, rng=rng)
        facts = await check_start(settings, offload=offload, containers=total, owned=owned)
        files = RealFiles(settings.data, offload)
        await keep_reserve(files)
        opened = await stack.enter_async_context(
            _open_log(settings, files, facts, offload=offload, clock=clock, rng=rng)
        )
        segments = await stack.enter_async_context(
            open_on_log(
                opened,
                settings,
                files,
                StoreSource(clock=clock, rng=rng, offload=offload, telemetry=telemetry, shared=shared),
                budgets=replace(store_settings(settings), containers=total),
                owned=owned,
            )
        )
        yield segments


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSource:
    """What a store needs beside its directory, its log and its tier 2. ``shared`` and ``memory``: see
    ``open_segment_store``."""

    clock: Clock
    rng: Rng
    offload: Offload
    telemetry: Telemetry
    shared: SharedCounts | None = None
    memory: CacheMemory | None = None


@asynccontextmanager
async def open_on_log(
    opened: OpenLog,
    settings: EmbeddedSettings,
    files: RealFiles,
    source: StoreSource,
    *,
    budgets: StoreSettings,
    owned: Sequence[int] | None = None,
) -> AsyncIterator[SegmentStore]:
    """Recover the store in ``files`` from a log that is open. Raises as ``open_segments``."""
    async with forks.OwnedExitStack() as stack:
        await files.make_dir("metadata")
        database = settings.data / "metadata" / "store.db"
        keyvalue = await SqliteKeyValue.open(database, source.offload, checked=True)
        stack.push_async_callback(keyvalue.close)
        tier = await stack.enter_async_context(
            open_tier(settings, files, offload=source.offload, rng=source.rng, claims=not opened.owns_tier)
        )
        if opened.load is not None:
            await opened.load(tier.objects, keyvalue)
        budgets = for_tier2(budgets, settings, tier.chunks)
        holds = await stack.enter_async_context(_holds(settings, offload=source.offload))
        segments = await stack.enter_async_context(
            open_segment_store(
                opened.log,
                StoreParts(
                    keyvalue=keyvalue,
                    chunks=tier.chunks,
                    catalogue=tier.objects,
                    clock=source.clock,
                    rng=source.rng,
                    offload=source.offload,
                    telemetry=source.telemetry,
                    settings=budgets,
                    publications=opened.publications,
                    holds=holds,
                ),
                disk=FileDisk(files),
                owned=owned,
                shared=source.shared,
                memory=source.memory,
            )
        )
        yield segments
