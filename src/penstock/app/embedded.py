"""The whole store inside this process: no port, no server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.erasure.key import erasure_key
from penstock.app.restored import settle_restored
from penstock.app.segments import open_segments
from penstock.app.settings import EmbeddedOptions, EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import check_place
from penstock.app.workers.layout import load_layout
from penstock.client.options import settings_of
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.ports import forks
from penstock.ports.clock import Clock
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.service import LocalSegmentService
from penstock.ports.rng import Rng
from penstock.segmentstore.store import SegmentStore
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.rng import RealRng
from penstock.storage.machine.signing_keys import FileSigningKeys

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store
    from penstock.client.store import AsyncStore

_PLACES = ("log_at", "ack", "take_over", "tier2", "tier2_endpoint", "tier2_insecure")
"""The settings that are not numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A running store and what serves it. ``failure``: why the store takes no more requests, or None; ``not_ready``: which
    functions (see ``core.segments.readiness``) do not work now, and why."""

    segments: LocalSegmentService
    controller: Controller
    clock: Clock
    rng: Rng
    telemetry: Counters
    failure: Callable[[], PenstockError | None]
    not_ready: Callable[[], Mapping[str, str]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRuntime(Runtime):
    """A store in this process."""

    segments: SegmentStore


def nowhere(segment: str) -> Endpoint:
    """A placeholder: an embedded store has no address, and a client in this process never requests one."""
    return Endpoint(host="embedded", port=0)


@asynccontextmanager
async def open_runtime(
    settings: EmbeddedSettings,
    *,
    endpoint_of: Callable[[str], Endpoint] = nowhere,
    waits_for_rights: bool = False,
) -> AsyncIterator[LocalRuntime]:
    """Open the data directory, recover, and run until the block ends. Then everything acknowledged is on disk.

    ``waits_for_rights``: nothing that was approved is performed before ``use_rights`` of the controller.

    Raises DirectoryInUseError (another process has it), VersionTooNewError, InvalidArgumentError (the directory belongs to
    something else or to several workers), CorruptDataError. In each case nothing was changed.
    """
    check_place(settings)
    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    async with forks.OwnedExitStack() as stack:
        directory = DataDirectory.open(settings.data)
        stack.callback(directory.close)
        layout = load_layout(settings.data)
        if layout is not None:
            raise InvalidArgumentError(
                "this store is spread over several workers: serve it with `penstock standalone`, and connect to that",
                data=str(settings.data),
                workers=layout.workers,
            )
        segments = await stack.enter_async_context(open_segments(settings, clock=clock, rng=rng, telemetry=telemetry))
        directory.mark_complete()
        controller = await stack.enter_async_context(
            open_controller(
                segments,
                clock=clock,
                rng=rng,
                endpoint_of=endpoint_of,
                telemetry=telemetry,
                signing=FileSigningKeys(settings.data),
                settings=ControllerSettings(
                    retention_cycle_ms=settings.retention_cycle_ms,
                    deletion_grace_ms=settings.deletion_grace_ms,
                    scaling_minute_ms=settings.scaling_minute_ms,
                    erasure_key=erasure_key(settings.data, rng),
                    waits_for_rights=waits_for_rights,
                ),
            )
        )
        await settle_restored(settings.data, controller)
        yield LocalRuntime(
            segments=segments,
            controller=controller,
            clock=clock,
            rng=rng,
            telemetry=telemetry,
            failure=lambda: segments.offline,
            not_ready=segments.not_ready,
        )


def open_store(path: str | Path, settings: EmbeddedOptions) -> Store:
    """Open a store on the directory ``path`` in this process, without ports. Creates the directory if it is missing.

    ``settings`` are fields of ``EmbeddedSettings``. Close it, or use it in a ``with`` block. Raises as ``open_runtime``.
    """
    wanted = embedded_settings(path, settings)

    @asynccontextmanager
    async def opener() -> AsyncIterator[tuple[LocalSegmentService, Controller]]:
        async with open_runtime(wanted) as runtime:
            yield runtime.segments, runtime.controller

    # Imported here: a server opens a store without a client, and starts earlier.
    from penstock.client.blocking.stores import Store

    return Store(opener, place=f"in {wanted.data}", local=True)


@asynccontextmanager
async def open_async_store(path: str | Path, settings: EmbeddedOptions) -> AsyncIterator[AsyncStore]:
    """The same for the running event loop, which then also does the store's work. Raises as ``open_runtime``."""
    async with open_runtime(embedded_settings(path, settings)) as runtime:
        from penstock.client.store import AsyncStore  # only here, as above

        yield AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)


def embedded_settings(path: str | Path, settings: Mapping[str, Any]) -> EmbeddedSettings:
    """The settings from a user's names and values. Raises InvalidArgumentError for unknown names."""
    places = {name: settings[name] for name in _PLACES if name in settings}
    numbers = {name: value for name, value in settings.items() if name not in places}
    return settings_of(EmbeddedSettings, "an embedded store", numbers, data=Path(path), **places)
