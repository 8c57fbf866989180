"""The whole store inside this process: no port, no server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import for_tier2, open_tier2
from penstock.client.blocking import Store
from penstock.client.options import settings_of
from penstock.client.store import AsyncStore
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.ports.clock import Clock
from penstock.ports.controller_service import Endpoint
from penstock.ports.rng import Rng
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.storage.data_directory import DataDirectory
from penstock.storage.file_disk import FileDisk
from penstock.storage.local_log import open_local_log
from penstock.storage.real_clock import RealClock
from penstock.storage.real_files import RealFiles
from penstock.storage.real_offload import ThreadOffload
from penstock.storage.real_rng import RealRng
from penstock.storage.reserve import keep_reserve
from penstock.storage.sqlite_keyvalue import SqliteKeyValue

_CONTAINERS = 4
_SEGMENT_BYTES = 3 << 10
"""A segment in memory with one writer and one chunk, measured."""
_LOADED_MIN, _LOADED_MAX = 250, 10_000
_UNFLUSHED_MIN_BYTES = 8 << 20

_PLACES = ("tier2", "tier2_endpoint", "tier2_insecure")
"""The settings that are no numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A running store and what serves it."""

    segments: SegmentStore
    controller: Controller
    clock: Clock
    rng: Rng
    telemetry: Counters
    store_settings: StoreSettings


def _nowhere(segment: str) -> Endpoint:
    """Embedded stores have no address; a client in this process never asks for one."""
    return Endpoint(host="embedded", port=0)


def store_settings(settings: EmbeddedSettings) -> StoreSettings:
    """How the budgets of a process are shared out.

    Of what the process does not need for itself: half for the tails, of which half may be not tiered yet; an eighth for
    segments that are loaded, and an eighth for receive buffers. What is left are changed rows, copies in flight, and what the
    allocator does not find a use for. Everything is tiered before half of the log is full, so that appends rarely wait for
    the log's space.
    """
    working = settings.working_bytes
    loaded = max(_LOADED_MIN, min(_LOADED_MAX, working // 8 // _CONTAINERS // _SEGMENT_BYTES))
    return StoreSettings(
        containers=_CONTAINERS,
        cache_bytes=working // 2,
        read_cache_bytes=max(1 << 20, min(4 << 20, working // 64)),
        max_unflushed_bytes=max(_UNFLUSHED_MIN_BYTES, min(working // 4, settings.log_bytes // 2)),
        checkpoint_bytes=max(16 << 20, settings.log_bytes // 4),
        checkpoint_rows_bytes=max(1 << 20, min(8 << 20, working // 64)),
        chunk_bytes=settings.chunk_bytes,
        tier_run_bytes=max(1 << 20, min(8 << 20, working // 32)),
        max_loaded_segments=loaded,
        max_loaded_attributes=max(1_000, loaded),
        max_changed_segments=10 * loaded,
    )


@asynccontextmanager
async def open_runtime(
    settings: EmbeddedSettings, *, endpoint_of: Callable[[str], Endpoint] = _nowhere
) -> AsyncIterator[Runtime]:
    """Open the data directory, recover, and run until the block ends; then everything acknowledged is on disk.

    Raises: DirectoryInUseError (another process has it), VersionTooNewError, InvalidArgumentError (a foreign directory),
    CorruptDataError; in each case nothing was changed.
    """
    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    async with AsyncExitStack() as stack:
        directory = DataDirectory.open(settings.data)
        stack.callback(directory.close)
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
        chunks = await stack.enter_async_context(open_tier2(settings, files, offload=offload, rng=rng))
        held = for_tier2(store_settings(settings), settings, chunks)
        segments = await stack.enter_async_context(
            open_segment_store(
                log=log,
                keyvalue=keyvalue,
                chunks=chunks,
                clock=clock,
                rng=rng,
                offload=offload,
                telemetry=telemetry,
                settings=held,
                disk=FileDisk(files),
            )
        )
        controller = await stack.enter_async_context(
            open_controller(
                segments,
                clock=clock,
                rng=rng,
                endpoint_of=endpoint_of,
                telemetry=telemetry,
                settings=ControllerSettings(retention_cycle_ms=settings.retention_cycle_ms),
            )
        )
        yield Runtime(
            segments=segments,
            controller=controller,
            clock=clock,
            rng=rng,
            telemetry=telemetry,
            store_settings=held,
        )


def open_store(path: str | Path, **settings: Any) -> Store:
    """A store on the directory ``path``, created where it is missing, in this process; nothing listens.

    ``settings`` are fields of ``EmbeddedSettings``. Close it, or use it in a ``with`` block. Raises as ``open_runtime``.
    """
    wanted = embedded_settings(path, settings)

    @asynccontextmanager
    async def opener() -> AsyncIterator[tuple[SegmentStore, Controller]]:
        async with open_runtime(wanted) as runtime:
            yield runtime.segments, runtime.controller

    return Store(opener, place=f"in {wanted.data}")


@asynccontextmanager
async def open_async_store(path: str | Path, settings: Mapping[str, Any]) -> AsyncIterator[AsyncStore]:
    """The same for the running event loop, which then also does the store's work. Raises as ``open_runtime``."""
    async with open_runtime(embedded_settings(path, settings)) as runtime:
        yield AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)


def embedded_settings(path: str | Path, settings: Mapping[str, Any]) -> EmbeddedSettings:
    """Settings as a user names them. Raises InvalidArgumentError for those that there are not."""
    places = {name: settings[name] for name in _PLACES if name in settings}
    numbers = {name: value for name, value in settings.items() if name not in places}
    return settings_of(EmbeddedSettings, "an embedded store", numbers, data=Path(path), **places)
