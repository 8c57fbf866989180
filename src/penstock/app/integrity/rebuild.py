"""A working store in a new directory, from tier 2 alone. Source: docs/design/0015-integrity.md.

A store of several workers has a part for each: docs/design/0072-rebuild-of-workers.md.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import field, replace
from pathlib import Path

from penstock.app.backup.places import new_place
from penstock.app.erasure.key import ERASURE_KEY, read_key, write_key
from penstock.app.erasure.ledger import leave_ledger, read_ledger
from penstock.app.integrity.rebuild_part import PartRebuild, Share
from penstock.app.integrity.rebuild_report import Progress, RebuildReport
from penstock.app.integrity.reconcile import Part, Recovered, reconcile
from penstock.app.integrity.source import Source, open_source
from penstock.app.integrity.worker_parts import (
    WorkerPart,
    WorkerPlaces,
    check_mark,
    check_parts,
    find_places,
    one_worker,
    total_containers,
)
from penstock.app.restored import write_marker
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import tier2_of_worker
from penstock.app.workers.layout import CONTAINERS_EACH, WorkerLayout, settle_layout, worker_directory
from penstock.core.cases.ledger import Ledger
from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.storage.machine.calls import sync_directory
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng

_SUFFIX, _WHAT = "rebuilding", "a rebuilt store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a rebuild adds to the new directory. ``erased``: a ledger of erasures, signed by one of ``keys``; ``key``: the
    file of the original's key, for digests in it."""

    erased: Ledger | None = None
    key: Path | None = None
    keys: Sequence[str] = field(default=())


async def rebuild(
    place: str,
    data: Path,
    *,
    tier2: str | None = None,
    endpoint: str | None = None,
    insecure: bool = False,
    ledger: Path | None = None,
    key: Path | None = None,
    keys: Sequence[str] = (),
    progress: Progress | None = None,
) -> RebuildReport:
    """Make a store in ``data``, which must be new or empty, from the data in ``place`` (see ``open_source``; for a store of
    several workers ``find_places``). It gets as many workers as it had.

    ``place`` is not changed. Until the directory is complete, it is called ``data.rebuilding``. ``tier2``: where the
    new store keeps its chunks; None: in ``data``. Before it serves anybody, the first opening moves all streams to new
    segments, and erases again what the ``ledger`` lists. ``key``: of the original, for digests in it. ``keys``: public
    keys that may have signed it; none: those of the source.

    Raises: InvalidArgumentError (``backup.places.new_place``, ``find_places``, ``check_parts``), CorruptDataError (there is
    no catalogue), DirectoryInUseError, UnavailableError, StorageFullError, OSError.
    """
    offload = ThreadOffload()
    try:
        new_place(data, suffix=_SUFFIX, what=_WHAT)
        extras = Extras(
            erased=None if ledger is None else read_ledger(ledger, keys), key=key or _key_in(place), keys=keys
        )
        target = EmbeddedSettings(
            data=data, tier2=tier2, tier2_endpoint=endpoint if tier2 else None, tier2_insecure=insecure
        )
        found = await find_places(place, offload=offload, endpoint=endpoint, insecure=insecure)
        if found is not None:
            return await _rebuild_workers(
                place, found, target, offload=offload, insecure=insecure, extras=extras, progress=progress
            )
        async with open_source(place, offload=offload, endpoint=endpoint, insecure=insecure) as source:
            return await _rebuild_store(source, target, offload=offload, extras=extras, progress=progress)
    finally:
        await offload.close()


async def rebuild_source(source: Source, data: Path, *, offload: ThreadOffload) -> RebuildReport:
    """The same from an open source, which is borrowed. The new store keeps its chunks in ``data``."""
    return await _rebuild_store(source, EmbeddedSettings(data=data), offload=offload, extras=Extras(), progress=None)


async def _rebuild_store(
    source: Source, target: EmbeddedSettings, *, offload: ThreadOffload, extras: Extras, progress: Progress | None
) -> RebuildReport:
    await check_mark(source)
    total = await total_containers(source.objects)
    if total is None:
        raise CorruptDataError(
            "tier 2 holds no catalogue: it was written by an earlier version, or this is not the place",
            place=source.place,
        )
    if total > CONTAINERS_EACH:
        raise one_worker(source.place)
    work = _Work(target, RebuildReport(place=source.place, data=""), offload, extras, progress)
    return await work.run([source], None, containers=total)


async def _rebuild_workers(
    place: str,
    found: WorkerPlaces,
    target: EmbeddedSettings,
    *,
    offload: ThreadOffload,
    insecure: bool,
    extras: Extras,
    progress: Progress | None,
) -> RebuildReport:
    async with AsyncExitStack() as stack:
        if found.data is not None:
            # A server holds this directory; its workers hold theirs.
            stack.callback(DataDirectory.look(found.data).close)
        parts = [
            WorkerPart(
                worker=worker,
                source=await stack.enter_async_context(
                    open_source(part, offload=offload, endpoint=found.endpoint, insecure=insecure)
                ),
            )
            for worker, part in sorted(found.places.items())
        ]
        layout = await check_parts(found, parts, place=place)
        work = _Work(target, RebuildReport(place=place, data="", workers=layout.workers), offload, extras, progress)
        return await work.run([part.source for part in parts], layout, containers=layout.containers)


def _key_in(place: str) -> Path | None:
    """The key of a data directory that is the source."""
    file = Path(place) / ERASURE_KEY
    return file if file.exists() else None


def _recovered(report: RebuildReport) -> Recovered:
    return Recovered(held=report.held, as_of_ms={item["container"]: item["as_of_ms"] for item in report.containers})


class _Work:
    """A rebuild into a directory that appears when it is complete."""

    def __init__(
        self,
        target: EmbeddedSettings,
        report: RebuildReport,
        offload: ThreadOffload,
        extras: Extras,
        progress: Progress | None,
    ) -> None:
        self._target = target
        self._report = report
        self._offload = offload
        self._extras = extras
        self._progress = progress

    async def run(self, sources: Sequence[Source], layout: WorkerLayout | None, *, containers: int) -> RebuildReport:
        """``layout``: None for a store of one process, which has one source. ``containers``: of the whole store."""
        data, staging = new_place(self._target.data, suffix=_SUFFIX, what=_WHAT)
        try:
            with ExitStack() as stack:
                await self._fill(staging, sources, layout, containers, stack)
            extras = self._extras
            if extras.key is not None:
                write_key(staging / ERASURE_KEY, read_key(extras.key))
            if extras.erased is not None:
                leave_ledger(staging, extras.erased, keys=extras.keys)
        except BaseException:
            if self._target.tier2 is None:
                shutil.rmtree(staging, ignore_errors=True)
            raise
        self._report.data = str(data)
        staging.rename(data)
        sync_directory(data.parent)
        return self._report

    async def _fill(
        self, staging: Path, sources: Sequence[Source], layout: WorkerLayout | None, containers: int, stack: ExitStack
    ) -> None:
        report = self._report
        directory = DataDirectory.open(staging)
        stack.callback(directory.close)
        parts = self._parts(staging, layout, containers)
        held = [directory]
        for part, source in zip(parts, sources, strict=True):
            if layout is not None:
                held.append(DataDirectory.open(part.settings.data))
                stack.callback(held[-1].close)
            share = Share(containers=part.containers, owned=part.owned)
            await PartRebuild(source, share, report, self._offload, self._progress).run(part.settings)
        report.streams = await reconcile(parts, offload=self._offload, clock=RealClock(), recovered=_recovered(report))
        as_of = [item["as_of_ms"] for item in report.containers if item["as_of_ms"] is not None]
        # Old positions in the lost range must not refer to events that are written later.
        write_marker(staging, backup_ms=min(as_of, default=0), rng=RealRng())
        for one in reversed(held):
            one.mark_complete()

    def _parts(self, staging: Path, layout: WorkerLayout | None, containers: int) -> Sequence[Part]:
        settings = replace(self._target, data=staging)
        if layout is None:
            return [Part(settings=settings, containers=containers, owned=range(containers))]
        settle_layout(staging, layout.workers)
        return [
            Part(
                settings=replace(
                    settings, data=worker_directory(staging, worker), tier2=tier2_of_worker(settings, worker)
                ),
                containers=layout.containers,
                owned=layout.owned(worker),
            )
            for worker in range(layout.workers)
        ]
