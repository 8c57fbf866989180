"""Restore the metadata of one worker from its part of tier 2. The directories of the other workers stay as they are.

Source: docs/design/0072-rebuild-of-workers.md.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from penstock.app.integrity.log_behind import look_behind
from penstock.app.integrity.rebuild_report import RebuildReport
from penstock.app.integrity.source import Source, open_source
from penstock.app.integrity.start_check import LOG, METADATA
from penstock.app.integrity.worker_parts import (
    check_belongs,
    check_mark,
    find_places,
    part_place,
    readable_record,
    total_containers,
)
from penstock.app.restored import write_marker
from penstock.app.workers.layout import WorkerLayout, load_layout, worker_directory
from penstock.codec.store import rows as records
from penstock.codec.store.catalogue import ObjectName
from penstock.codec.store.chunk_index import SUFFIX
from penstock.codec.store.wal import EpochRecord, encode_epoch
from penstock.core.segments.garbage import chunk_epoch
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import InvalidArgumentError
from penstock.model.urls import url_parts
from penstock.ports.chunks import ChunkStorage
from penstock.segmentstore.repair import rebuild as rows_of
from penstock.segmentstore.repair.rebuild_aside import restore_aside
from penstock.storage.chunks.claim import RECORD, adopt_tier, tier_mark
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.log.check import LogReport, look_at_log
from penstock.storage.machine.calls import make_directories, replace_file, sync_directory
from penstock.storage.machine.copy import sync_tree
from penstock.storage.machine.data_directory import FORMAT_VERSION, VERSION, DataDirectory
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

_NEW, _REPLACED, _REPLACING = "rebuilding", "replaced", "replacing"
"""In the worker's directory, which can be a disk of its own: the new parts; replaced parts; those of a repair that has not
ended."""


async def repair_worker(
    data: Path,
    worker: int,
    *,
    tier2: str | None = None,
    endpoint: str | None = None,
    insecure: bool = False,
) -> RebuildReport:
    """Make new metadata for a worker of the store in ``data``, from the worker's part of tier 2. Chunks stay where they are.

    If the worker's log is sound and continues the catalogue, it stays, and a start replays it: nothing is lost. Otherwise the
    worker gets an empty log, and the next start moves all streams of the store to new segments. The replaced files are kept
    in ``replaced-N`` in the worker's directory. After an interruption, call it again. ``tier2``: the tier 2 of the store;
    None: as the directories of the workers have it.

    Raises: InvalidArgumentError (no such worker; its part of tier 2 is missing, or another worker's or store's; a part to
    replace is a mount point), CorruptDataError (there is no catalogue), DirectoryInUseError, UnavailableError,
    StorageFullError, OSError.
    """
    async with ThreadOffload() as offload, AsyncExitStack() as stack:
        held = DataDirectory.open(data)
        stack.callback(held.close)
        data = held.path  # A place of tier 2 is absolute, and is compared with it.
        layout = load_layout(data)
        if layout is None:
            raise InvalidArgumentError(
                "the store in this directory has no workers: rebuild it into a new directory, with --source",
                data=str(data),
            )
        if worker not in range(layout.workers):
            raise InvalidArgumentError(
                "the store has no worker with this number; numbers begin at 0", worker=worker, workers=layout.workers
            )
        own = worker_directory(data, worker)
        if own.is_dir():
            # A worker can run on for a moment after its server was killed.
            stack.callback(DataDirectory.look(own).close)
        place, endpoint = await _place(data, worker, tier2, offload=offload, endpoint=endpoint, insecure=insecure)
        await check_belongs(data, worker, layout, place=place, endpoint=endpoint, insecure=insecure, offload=offload)
        source = await stack.enter_async_context(
            open_source(place, offload=offload, endpoint=endpoint, insecure=insecure)
        )
        work = _Repair(data, worker, layout, source, endpoint, offload)
        return await work.run()


async def _place(
    data: Path, worker: int, tier2: str | None, *, offload: ThreadOffload, endpoint: str | None, insecure: bool
) -> tuple[str, str | None]:
    """Where the worker's part is, for ``open_source``, and the endpoint of its bucket. Raises InvalidArgumentError."""
    own = worker_directory(data, worker)
    if tier2 is not None:
        return part_place(tier2, worker), endpoint
    found = await find_places(str(data), offload=offload, endpoint=endpoint, insecure=insecure)
    place = None if found is None else found.places.get(worker)
    if found is None or place is None:
        raise InvalidArgumentError(
            "the tier 2 of this worker was in its directory and is lost, or its place is not known. Put it back, or name the "
            "store's tier 2 with --tier2. Without it, restore a backup",
            worker=worker,
            missing=str(own / "catalogue"),
        )
    return place, found.endpoint


class _Repair:
    def __init__(
        self,
        data: Path,
        worker: int,
        layout: WorkerLayout,
        source: Source,
        endpoint: str | None,
        offload: ThreadOffload,
    ) -> None:
        self._data = data
        self._own = worker_directory(self._data, worker)
        self._staging = self._own / _NEW
        self._layout = layout
        self._owned = layout.owned(worker)
        self._source = source
        self._endpoint = endpoint
        self._offload = offload
        self._report = RebuildReport(place=source.place, data=str(self._own), workers=layout.workers, worker=worker)

    async def run(self) -> RebuildReport:
        catalogue = await self._check()
        was_there = self._own.is_dir()
        self._resume()
        make_directories(self._staging / METADATA)
        try:
            keyvalue = await SqliteKeyValue.open(self._staging / METADATA / "store.db", self._offload)
            try:
                states = await self._load(catalogue, keyvalue)
                log = await look_at_log(self._files(), LOG)
                if self._continues(states, log):
                    self._report.log_kept = True
                    await self._keep_log(states, log, keyvalue)
                else:
                    await self._drop_log(catalogue, states, log, keyvalue)
            finally:
                await keyvalue.close()
            await self._bind_tier()
            self._swap()
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
            if not was_there:
                with suppress(OSError):  # It is not empty: the repair has succeeded.
                    self._own.rmdir()
        return self._report

    def _resume(self) -> None:
        """Go back to what an interrupted attempt found: its decisions and its report depend on the log."""
        shutil.rmtree(self._staging, ignore_errors=True)
        replacing = self._own / _REPLACING
        if (replacing / LOG).exists() and not (self._own / METADATA).exists():
            self._put_aside(LOG, self._free_place())
            (replacing / LOG).rename(self._own / LOG)
            sync_directory(self._own)

    def _files(self) -> RealFiles:
        return RealFiles(self._own, self._offload, read_only=True)

    async def _check(self) -> Mapping[int, Sequence[ObjectName]]:
        """The objects of the catalogue. Raises InvalidArgumentError: it is not the catalogue of this worker of this store."""
        await check_mark(self._source)
        catalogue = await rows_of.list_catalogue(self._source.objects)
        total = await total_containers(self._source.objects)
        strange = [index for index in catalogue if index not in self._owned]
        if total is None or strange or total != self._layout.containers:
            raise InvalidArgumentError(
                "this tier 2 has no catalogue, or that of another worker or another store. Nothing was changed",
                place=self._source.place,
                containers=total,
                expected=self._layout.containers,
                strange=", ".join(map(str, strange)) or None,
            )
        return catalogue

    async def _load(
        self, catalogue: Mapping[int, Sequence[ObjectName]], keyvalue: SqliteKeyValue
    ) -> Sequence[rows_of.ContainerCatalogue]:
        states = []
        for index in self._owned:
            state = await rows_of.load_container(self._source.objects, index, catalogue.get(index, ()), keyvalue)
            states.append(state)
            self._report.note_container(state)
            for key in await rows_of.take_missing_rows(keyvalue, index):
                why = "the catalogue lacks this row: it was damaged when the catalogue was written"
                self._report.damage.append(Damage(kind=DamageKind.ROW, place=key.hex()[:200], why=why, container=index))
        row = records.encode_store(self._layout.containers)
        await keyvalue.commit([(key, row) for key in (records.STORE_KEY, records.STORE_COPY_KEY)])
        return states

    def _continues(self, states: Sequence[rows_of.ContainerCatalogue], log: LogReport) -> bool:
        """Whether the log has all frames after those that the rows of each container hold."""
        if log.damage or log.image is None or not log.image.chain or log.epoch is None:
            return False
        first, last = log.image.chain[0].header.first_sequence, log.image.last
        return all(
            not state.damage and not state.lost_batches and first - 1 <= state.complete_upto <= last for state in states
        )

    async def _keep_log(
        self, states: Sequence[rows_of.ContainerCatalogue], log: LogReport, keyvalue: SqliteKeyValue
    ) -> None:
        """Let the log continue at the rows, as ``repair.load`` does."""
        epoch = 0 if log.epoch is None else log.epoch.epoch
        for state in states:
            upto = state.complete_upto
            row = records.encode_container(records.ContainerRecord(epoch=epoch, complete_upto=upto))
            outbox = records.CatalogueRecord(sequence=state.applied or 0, epoch=epoch, complete_upto=upto)
            await keyvalue.commit(
                [
                    (records.prefix(records.TAG_CONTAINER, state.container), row),
                    (records.container_copy_key(state.container), row),
                    (records.prefix(records.TAG_CATALOGUE, state.container), records.encode_catalogue(outbox)),
                ]
            )

    async def _drop_log(
        self,
        catalogue: Mapping[int, Sequence[ObjectName]],
        states: Sequence[rows_of.ContainerCatalogue],
        log: LogReport,
        keyvalue: SqliteKeyValue,
    ) -> None:
        """Cut the rows to what tier 2 holds, and begin an empty log, above every epoch that a name shows."""
        report = self._report
        behind, damage = await look_behind(
            replace(self._source, files=self._files()), {state.container: state.complete_upto for state in states}
        )
        report.log += behind
        report.damage += damage
        listed = dict.fromkeys(await self._source.chunks.list())
        epochs = [name.epoch for names in catalogue.values() for name in names]
        epochs += [found for text in listed if (found := chunk_epoch(text.removesuffix(SUFFIX))) is not None]
        epoch = max([*epochs, 0 if log.epoch is None else log.epoch.epoch]) + 1
        async with self._writable_chunks() as chunks:
            for state in states:
                await self._settle(state, keyvalue, chunks, listed, epoch=epoch)
                # A number is left out, so that no batch of the new log can follow the batches before the repair.
                newest = max((name.last for name in catalogue.get(state.container, ())), default=0)
                outbox = records.CatalogueRecord(sequence=newest + 1, epoch=0, complete_upto=0)
                key = records.prefix(records.TAG_CATALOGUE, state.container)
                await keyvalue.commit([(key, records.encode_catalogue(outbox))])
        make_directories(self._staging / LOG)
        record = EpochRecord(epoch=epoch, seed=RealRng().randrange(1 << 32))
        replace_file(self._staging / LOG / "EPOCH", encode_epoch(record))

    @asynccontextmanager
    async def _writable_chunks(self) -> AsyncIterator[ChunkStorage]:
        """The chunks, to add those of segments that were set aside."""
        place = self._source.place
        if url_parts(place).scheme:
            yield self._source.chunks
            return
        chunks = FileChunks(RealFiles(place, self._offload), directory="chunks")
        try:
            yield chunks
        finally:
            await chunks.close()

    async def _settle(
        self,
        state: rows_of.ContainerCatalogue,
        keyvalue: SqliteKeyValue,
        chunks: ChunkStorage,
        listed: Mapping[str, None],
        *,
        epoch: int,
    ) -> None:
        report = self._report
        found = await restore_aside(keyvalue, state.container, epoch=epoch, chunks=chunks)
        report.note_aside(state.container, found)
        async for segment in rows_of.settle_container(keyvalue, state.container, epoch=epoch):
            report.note_segment(segment)
            for begin, chunk in segment.chunks:
                report.chunks += 1
                if chunk.name not in listed and chunk.name not in found.made:
                    report.damage.append(
                        Damage(
                            kind=DamageKind.CHUNK,
                            place=chunk.name,
                            why="the chunk is not there",
                            container=segment.container,
                            segment=segment.name,
                            start=max(begin, segment.record.kept_offset),
                            end=begin + chunk.length,
                        )
                    )

    async def _bind_tier(self) -> None:
        """Let the worker's directory claim its part of tier 2, if that is elsewhere and the directory no longer says so."""
        if await readable_record(self._own, self._offload) is not None or self._source.place == str(self._own):
            return
        store = await tier_mark(self._source.objects)
        if store is None:
            raise InvalidArgumentError("this tier 2 has no mark of a store", tier2=self._source.place)
        files = RealFiles(self._staging, self._offload)
        await adopt_tier(self._source.objects, files, store=store, place=self._source.place, endpoint=self._endpoint)

    def _swap(self) -> None:
        """Put the new parts in place of the old ones, which are kept. After an interruption no store starts on the directory,
        and a repetition finds what the first attempt found."""
        report, own = self._report, self._own
        parts = [METADATA] if report.log_kept else [METADATA, LOG]
        for name in parts:
            if os.path.ismount(own / name):
                raise InvalidArgumentError(
                    "a mount point cannot be replaced. Unmount the disk, keep what it holds, and try again",
                    path=str(own / name),
                )
        if not report.log_kept:
            times = [item["as_of_ms"] for item in report.containers if item["as_of_ms"] is not None]
            write_marker(self._data, backup_ms=min(times, default=0), rng=RealRng(), reconcile=True)
        replacing = own / _REPLACING
        others = [RECORD] if (self._staging / RECORD).exists() else []
        for name in [*parts, *others]:
            self._put_aside(name, self._free_place() if (replacing / name).exists() else replacing)
        # The metadata comes last: without it, no store starts on the directory.
        for name in [*others, *reversed(parts)]:
            if name in parts:
                sync_tree(self._staging / name)
            if name == METADATA:
                replace_file(own / VERSION, f"{FORMAT_VERSION}\n".encode())
            (self._staging / name).rename(own / name)
            sync_directory(own)
        if replacing.exists():
            report.replaced = str(self._free_place())
            replacing.rename(report.replaced)
            sync_directory(own)

    def _put_aside(self, name: str, kept: Path) -> None:
        """Move a part of the worker's directory to ``kept``, if it exists."""
        if (self._own / name).exists():
            kept.mkdir(mode=0o700, exist_ok=True)
            (self._own / name).rename(kept / name)
            sync_directory(kept)
            sync_directory(self._own)

    def _free_place(self) -> Path:
        return next(
            place for number in itertools.count(1) if not (place := self._own / f"{_REPLACED}-{number}").exists()
        )
