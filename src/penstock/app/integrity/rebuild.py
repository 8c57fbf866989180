"""A working store in a new directory, from tier 2 alone. Source: docs/design/0015-integrity.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crc32c import crc32c

from penstock.app.backup.places import new_place
from penstock.app.erasure.key import ERASURE_KEY, read_key, write_key
from penstock.app.erasure.ledger import leave_ledger, read_ledger
from penstock.app.integrity.log_behind import look_behind
from penstock.app.integrity.reconcile import Reconciled, reconcile
from penstock.app.integrity.source import Source, open_source
from penstock.app.restored import write_marker
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import Tier2, open_tier
from penstock.app.workers.layout import CONTAINERS_EACH
from penstock.app.workers.layout import RECORD as WORKERS_RECORD
from penstock.codec.store import rows as records
from penstock.codec.store.catalogue import ObjectName
from penstock.codec.store.chunk_index import SUFFIX, IndexRecord, encode_record, index_name
from penstock.codec.store.wal import EpochRecord, encode_epoch
from penstock.core.cases.ledger import Ledger
from penstock.core.segments.garbage import chunk_epoch, is_marker, parse_chunk_name
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError, InvalidArgumentError, SegmentNotFoundError
from penstock.ports.chunks import ChunkReads, ChunkStorage
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair import rebuild as rows_of
from penstock.segmentstore.repair.rebuild_aside import restore_aside
from penstock.storage.machine.calls import sync_directory
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

Progress = Callable[[Mapping[str, int]], None]
_SUFFIX, _WHAT = "rebuilding", "a rebuilt store"


@dataclass(slots=True, kw_only=True)
class RebuildReport:
    """What was recovered, and what was not. Damaged data was copied unchanged: the new store refuses to read it too."""

    place: str
    data: str
    containers: list[dict[str, Any]] = field(default_factory=list)
    segments: int = 0
    tables: int = 0
    chunks: int = 0
    bytes: int = 0
    events: int = 0
    lost: list[dict[str, Any]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    unnamed_chunks: list[str] = field(default_factory=list)
    streams: Reconciled = field(default_factory=Reconciled)
    log: list[dict[str, Any]] = field(default_factory=list)
    """Frames and operations of the source's own log that were not applied, for each container. A start applies them."""
    restored: list[str] = field(default_factory=list)
    """Segments that were set aside and that the rebuild restored in full."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is known to be missing. The contents of a lost log are never known."""
        return not (self.lost or self.damage or self.unnamed_chunks or self.streams.made or self.log)

    def unknown(self) -> list[str]:
        """Sentences about losses that cannot be determined."""
        times = [item["as_of_ms"] for item in self.containers if item["as_of_ms"] is not None]
        said = [
            "what was written after the catalogue's last entry was only in the log, and tier 2 does not show how much: "
            "log_not_applied counts it only if the source is a data directory that still has its log, and could be read"
        ]
        if times and min(times) != max(times):
            said.append(
                f"parts of the store are up to {(max(times) - min(times)) / 1000:.1f} s apart: a transaction that committed "
                "in between can be present in some segments and missing in others"
            )
        if self.unnamed_chunks:
            said.append(
                "chunks that no entry names are garbage or the last ones written: they do not show their segment"
            )
        return said

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "place": self.place,
            "data": self.data,
            "complete": self.is_complete,
            "containers": self.containers,
            "streams": self.streams.streams,
            "segments": self.segments,
            "tables": self.tables,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "events": self.events,
            "lost": self.lost,
            "damage": [item.as_json() for item in self.damage],
            "log_not_applied": self.log,
            "made_anew": self.streams.made,
            "unnamed_chunks": self.unnamed_chunks,
            "restored": self.restored,
            "unknown": self.unknown(),
        }


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
    """Make a store in ``data``, which must be new or empty, from the data in ``place`` (see ``open_source``).

    ``place`` is not changed. Until the directory is complete, it is called ``data.rebuilding``. ``tier2``: where the
    new store keeps its chunks; None: in ``data``. Before it serves anybody, the first opening moves all streams to new
    segments, and erases again what the ``ledger`` lists. ``key``: of the original, for digests in it. ``keys``: public
    keys that may have signed it; none: those of the source.

    Raises: InvalidArgumentError (``backup.places.new_place``), CorruptDataError (there is no catalogue), DirectoryInUseError,
    UnavailableError, StorageFullError, OSError.
    """
    offload = ThreadOffload()
    try:
        _refuse_workers(place)
        new_place(data, suffix=_SUFFIX, what=_WHAT)
        async with open_source(place, offload=offload, endpoint=endpoint, insecure=insecure) as source:
            return await rebuild_source(
                source,
                data,
                offload=offload,
                tier2=tier2,
                endpoint=endpoint,
                insecure=insecure,
                erased=None if ledger is None else read_ledger(ledger, keys),
                key=key or _key_in(place),
                keys=keys,
                progress=progress,
            )
    finally:
        await offload.close()


async def rebuild_source(
    source: Source,
    data: Path,
    *,
    offload: ThreadOffload,
    tier2: str | None = None,
    endpoint: str | None = None,
    insecure: bool = False,
    erased: Ledger | None = None,
    key: Path | None = None,
    keys: Sequence[str] = (),
    progress: Progress | None = None,
) -> RebuildReport:
    """The same from an open source, which is borrowed. ``erased``: the ledger. ``key``: the file that it needs. ``keys``:
    one of them has signed it."""
    data, staging = new_place(data, suffix=_SUFFIX, what=_WHAT)
    try:
        report = await _Rebuild(source, staging, offload, progress).run(tier2, endpoint, insecure)
        if key is not None:
            write_key(staging / ERASURE_KEY, read_key(key))
        if erased is not None:
            leave_ledger(staging, erased, keys=keys)
    except BaseException:
        if tier2 is None:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    report.data = str(data)
    _appear(staging, data)
    return report


def _key_in(place: str) -> Path | None:
    """The key of a data directory that is the source."""
    file = Path(place) / ERASURE_KEY
    return file if file.exists() else None


def _refuse_workers(place: str) -> None:
    """Each worker has some segments of a stream, and only one has its metadata. So one worker's data gives no store.

    Raises InvalidArgumentError.
    """
    path = Path(place).absolute()
    for directory in (path, path.parent.parent):
        if (directory / WORKERS_RECORD).exists():
            raise _of_workers(str(directory))


def _of_workers(place: str) -> InvalidArgumentError:
    return InvalidArgumentError("a store of several workers cannot be rebuilt from tier 2 yet", place=place)


def _appear(staging: Path, data: Path) -> None:
    staging.rename(data)
    sync_directory(data.parent)


class _Rebuild:
    def __init__(self, source: Source, staging: Path, offload: ThreadOffload, progress: Progress | None) -> None:
        self._source = source
        self._staging = staging
        self._offload = offload
        self._progress = progress
        self._report = RebuildReport(place=source.place, data="")
        self._listed: dict[str, None] = {}
        self._copied: dict[str, None] = {}
        self._complete_upto: dict[int, int] = {}
        self._made: dict[str, None] = {}
        """Chunks that the rebuild wrote and that are not in the source."""

    async def run(self, tier2: str | None, endpoint: str | None, insecure: bool) -> RebuildReport:
        catalogue = await rows_of.list_catalogue(self._source.objects)
        if not catalogue:
            raise CorruptDataError(
                "tier 2 holds no catalogue: it was written by an earlier version, or this is not the place",
                place=self._source.place,
            )
        self._listed = dict.fromkeys(await self._source.chunks.list())
        epoch = await self._epoch(catalogue)
        settings = EmbeddedSettings(
            data=self._staging, tier2=tier2, tier2_endpoint=endpoint if tier2 else None, tier2_insecure=insecure
        )
        async with AsyncExitStack() as stack:
            directory = DataDirectory.open(self._staging)
            stack.callback(directory.close)
            files = RealFiles(self._staging, self._offload)
            await files.make_dir("metadata")
            keyvalue = await SqliteKeyValue.open(self._staging / "metadata" / "store.db", self._offload)
            stack.push_async_callback(keyvalue.close)
            tier = await stack.enter_async_context(open_tier(settings, files, offload=self._offload, rng=RealRng()))
            containers = await self._load(catalogue, keyvalue)
            if containers > CONTAINERS_EACH:
                raise _of_workers(self._source.place)
            self._report.log, log_damage = await look_behind(self._source, self._complete_upto)
            self._report.damage += log_damage
            for container in sorted(catalogue):
                await self._restore_aside(container, keyvalue, tier, epoch)
                async for segment in rows_of.settle_container(keyvalue, container, epoch=epoch):
                    await self._copy_segment(segment, MetadataRows(keyvalue), tier)
            await keyvalue.commit(
                [(key, records.encode_store(containers)) for key in (records.STORE_KEY, records.STORE_COPY_KEY)]
            )
            self._report.unnamed_chunks = [
                name
                for name in self._listed
                if not name.endswith(SUFFIX) and name not in self._copied and not is_marker(name)
            ]
            await self._begin_log(files, epoch)
            self._report.streams = await reconcile(
                files, keyvalue, tier, offload=self._offload, containers=containers, clock=RealClock()
            )
            as_of = [item["as_of_ms"] for item in self._report.containers if item["as_of_ms"] is not None]
            # Old positions in the lost range must not refer to events that are written later.
            write_marker(self._staging, backup_ms=min(as_of, default=0), rng=RealRng())
            directory.mark_complete()
        return self._report

    async def _epoch(self, catalogue: Mapping[int, Sequence[ObjectName]]) -> int:
        """The highest epoch of any log with frames: the new store must not reuse an old name."""
        epochs = [name.epoch for names in catalogue.values() for name in names]
        epochs += [epoch for text in self._listed if (epoch := chunk_epoch(text.removesuffix(SUFFIX))) is not None]
        return max(epochs)

    async def _load(self, catalogue: Mapping[int, Sequence[ObjectName]], keyvalue: SqliteKeyValue) -> int:
        states = [
            await rows_of.load_container(self._source.objects, index, names, keyvalue)
            for index, names in sorted(catalogue.items())
        ]
        containers = max((state.containers for state in states), default=0)
        if not containers:
            raise CorruptDataError("no container has a sound snapshot", place=self._source.place)
        known = {state.container: state for state in states}
        for index in range(containers):
            state = known.get(index)
            if state is None:
                state = rows_of.ContainerCatalogue(container=index)
                state.damage.append((f"catalogue/{index:x}", "catalogue of the container is missing"))
            self._complete_upto[index] = state.complete_upto
            self._report.containers.append(
                {
                    "container": index,
                    "recovered": state.applied is not None,
                    "as_of_ms": state.time_ms,
                    "batch": state.applied,
                    "lost_batches": state.lost_batches,
                }
            )
            self._report.damage += [
                Damage(kind=DamageKind.CATALOGUE, place=place, why=why, container=index) for place, why in state.damage
            ]
        return containers

    async def _begin_log(self, files: RealFiles, epoch: int) -> None:
        await files.make_dir("wal")
        file = await files.open("wal/EPOCH", create=True)
        try:
            await file.write_at(0, [encode_epoch(EpochRecord(epoch=epoch, seed=RealRng().randrange(1 << 32)))])
            await file.sync()
        finally:
            await file.close()
        await files.sync_dir("wal")
        await files.sync_dir(".")

    async def _restore_aside(self, container: int, keyvalue: SqliteKeyValue, tier: Tier2, epoch: int) -> None:
        """Apply changes that were set aside. Report those that cannot be applied, and rows that the catalogue lacks."""
        for key in await rows_of.take_missing_rows(keyvalue, container):
            why = "the catalogue lacks this row: it was damaged when the catalogue was written"
            self._report.damage.append(Damage(kind=DamageKind.ROW, place=key.hex()[:200], why=why, container=container))
        found = await restore_aside(keyvalue, container, epoch=epoch, chunks=tier.chunks)
        self._report.restored += found.restored
        self._made.update(found.made)
        self._copied.update(found.dropped)
        for uid, name, why in found.failed:
            self._report.damage.append(
                Damage(
                    kind=DamageKind.ROW,
                    place=records.aside_key(container, uid).hex(),
                    why=f"the segment was set aside, and some of the log's changes to it are lost: {why}",
                    container=container,
                    segment=name,
                    fields={"uid": f"{uid:x}"},
                )
            )

    # --- chunks -------------------------------------------------------------------------------------------

    async def _copy_segment(self, segment: rows_of.RebuiltSegment, rows: MetadataRows, tier: Tier2) -> None:
        report = self._report
        if segment.record.kind:
            report.tables += 1
            return
        report.segments += 1
        report.bytes += segment.record.length - segment.record.start_offset
        report.events += segment.record.event_count
        if segment.lost_bytes:
            report.lost.append(
                {
                    "segment": segment.name,
                    "start": segment.record.length,
                    "bytes": segment.lost_bytes,
                    "events": segment.lost_events,
                    "writers_set_back": segment.writers_set_back,
                }
            )
        for begin, chunk in segment.chunks:
            self._copied[chunk.name] = None
            if chunk.name in self._made:
                report.chunks += 1
                continue
            try:
                blocks = await rows_of.blocks_of(rows, segment.container, chunk)
            except CorruptDataError as error:
                self._damaged(DamageKind.ROW, segment, chunk.name, error.message, begin, begin + chunk.length)
                continue
            if chunk.name not in self._listed:
                why = "the chunk is not there: lost, or truncated after the catalogue's last entry"
                self._damaged(DamageKind.CHUNK, segment, chunk.name, why, begin, begin + chunk.length)
                continue
            dead = min(chunk.length, max(chunk.freed, segment.record.kept_offset - begin))
            for position, block, why in await _copy_chunk(self._source.chunks, tier.chunks, chunk, blocks, dead):
                self._damaged(DamageKind.BLOCK, segment, chunk.name, why, begin + position, begin + block.end)
            report.chunks += 1
            if self._progress is not None:
                self._progress({"segments": report.segments, "chunks": report.chunks, "bytes": report.bytes})

    def _damaged(
        self, kind: DamageKind, segment: rows_of.RebuiltSegment, place: str, why: str, start: int, end: int
    ) -> None:
        self._report.damage.append(
            Damage(
                kind=kind,
                place=place,
                why=why,
                container=segment.container,
                segment=segment.name,
                start=max(start, segment.record.kept_offset),
                end=end,
            )
        )


async def _copy_chunk(
    source: ChunkReads,
    target: ChunkStorage,
    chunk: records.ChunkRecord,
    blocks: Sequence[tuple[int, records.BlockRecord]],
    dead: int,
) -> list[tuple[int, records.BlockRecord, str]]:
    """Copy block by block, and return the damaged ones. Their bytes are copied unchanged, and fail their checksum again.

    ``dead``: the offset before which the segment is truncated. Bytes before it may be a hole that the rows do not record.
    """
    damaged: list[tuple[int, records.BlockRecord, str]] = []
    name = parse_chunk_name(chunk.name)
    first = 0 if name is None else name.start
    index: list[bytes] = []
    for number, (position, block) in enumerate(blocks):
        size = block.end - position
        if block.end <= dead:
            data = bytes(size)  # No reader sees these bytes, and they become a hole again.
        else:
            data, why = await _read_block(source, chunk.name, position, size)
            if why is None and crc32c(data) != block.crc32c:
                why = "checksum"
            if why is not None:
                damaged.append((position, block, why))
                data = data.ljust(size, b"\0")
        await target.append(chunk.name, position, [data])
        index.append(
            encode_record(
                IndexRecord(
                    index=number,
                    start=position,
                    end=block.end,
                    segment_start=first + position,
                    event_count=block.event_count,
                    crc32c=block.crc32c,
                )
            )
        )
    await target.sync(chunk.name)
    await target.append(index_name(chunk.name), 0, index)
    await target.sync(index_name(chunk.name))
    if chunk.freed:
        await target.free_head(chunk.name, chunk.freed)
    return damaged


async def _read_block(source: ChunkReads, name: str, position: int, size: int) -> tuple[bytes, str | None]:
    try:
        data = await source.read(name, position, size)
    except SegmentNotFoundError:
        return b"", "the chunk is not there"
    except OSError as error:
        return b"", f"cannot be read: {error}"
    return data, None if len(data) == size else f"chunk ends after {len(data)} bytes of {size}"
