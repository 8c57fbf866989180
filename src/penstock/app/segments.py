"""A segment store on a data directory, as every process that holds data opens it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import for_tier2, open_tier
from penstock.net.wire_limits import WireLimits
from penstock.ports.clock import Clock
from penstock.ports.rng import Rng
from penstock.ports.shared_counts import SharedCounts
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.storage.file_disk import FileDisk
from penstock.storage.local_log import open_local_log
from penstock.storage.real_files import RealFiles
from penstock.storage.real_offload import ThreadOffload
from penstock.storage.reserve import keep_reserve
from penstock.storage.sqlite_keyvalue import SqliteKeyValue


def store_settings(settings: EmbeddedSettings) -> StoreSettings:
    """How the budgets of a process are shared out.

    Half of the memory for the tails, a quarter for what is not tiered yet; a quarter is left for receive buffers and the
    rest. Everything is tiered before half of the log is full, so that appends rarely wait for the log's space.
    """
    return StoreSettings(
        cache_bytes=settings.memory_bytes // 2,
        max_unflushed_bytes=max(32 << 20, min(settings.memory_bytes // 4, settings.log_bytes // 2)),
        checkpoint_bytes=max(16 << 20, settings.log_bytes // 4),
        chunk_bytes=settings.chunk_bytes,
    )


def wire_limits(settings: EmbeddedSettings) -> WireLimits:
    """Receive buffers and unanswered bytes take the quarter of the budget that caches and tiering leave."""
    share = max(32 << 20, settings.memory_bytes // 4)
    return WireLimits(held_bytes_total=share, arena_bytes=share, replies_bytes=settings.memory_bytes // 16)


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
    """The recovered store of the directory ``settings.data``, which the caller holds; all it acknowledged is on disk after.

    ``containers`` and ``owned``: how many the whole store has, and which of them this process serves; None: the usual number,
    and all. Raises: InvalidArgumentError, CorruptDataError, VersionTooNewError; in each case nothing was changed.
    """
    async with AsyncExitStack() as stack:
        offload = ThreadOffload()
        stack.push_async_callback(offload.close)
        files = RealFiles(settings.data, offload)
        await keep_reserve(files)
        log = await stack.enter_async_context(
            open_local_log(
                files,
                directory="wal",
                segment_bytes=settings.log_file_bytes,
                budget_bytes=settings.log_bytes,
                rng=rng,
            )
        )
        await files.make_dir("metadata")
        keyvalue = await SqliteKeyValue.open(settings.data / "metadata" / "store.db", offload)
        stack.push_async_callback(keyvalue.close)
        tier = await stack.enter_async_context(open_tier(settings, files, offload=offload, rng=rng))
        budgets = for_tier2(store_settings(settings), settings, tier.chunks)
        segments = await stack.enter_async_context(
            open_segment_store(
                log=log,
                keyvalue=keyvalue,
                chunks=tier.chunks,
                catalogue=tier.objects,
                clock=clock,
                rng=rng,
                offload=offload,
                telemetry=telemetry,
                settings=budgets if containers is None else replace(budgets, containers=containers),
                disk=FileDisk(files),
                owned=owned,
                shared=shared,
            )
        )
        yield segments
