"""The whole store inside this process: no port, no server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import for_tier2, open_tier
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


def _nowhere(segment: str) -> Endpoint:
    """Embedded stores have no address; a client in this process never asks for one."""
    return Endpoint(host="embedded", port=0)


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
        tier = await stack.enter_async_context(open_tier(settings, files, offload=offload, rng=rng))
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
                settings=for_tier2(store_settings(settings), settings, tier.chunks),
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
        yield Runtime(segments=segments, controller=controller, clock=clock, rng=rng, telemetry=telemetry)


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
