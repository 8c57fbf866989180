"""The rows, chunks and log of one data directory, from its part of tier 2. Source: docs/design/0015-integrity.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from crc32c import crc32c

from penstock.app.integrity.log_behind import look_behind
from penstock.app.integrity.rebuild_report import Progress, RebuildReport
from penstock.app.integrity.source import Source
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import Tier2, open_tier
from penstock.codec.store import rows as records
from penstock.codec.store.catalogue import ObjectName
from penstock.codec.store.chunk_index import SUFFIX, IndexRecord, encode_record, index_name
from penstock.codec.store.wal import EpochRecord, encode_epoch
from penstock.core.segments.garbage import chunk_epoch, is_marker, parse_chunk_name
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError, SegmentNotFoundError
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkReads, ChunkStorage
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair import rebuild as rows_of
from penstock.segmentstore.repair.rebuild_aside import restore_aside
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The containers of the whole store, and those of one data directory."""

    containers: int
    owned: Sequence[int]


class PartRebuild:
    """Fills one new data directory from one part of tier 2, and adds to the report."""

    def __init__(
        self, source: Source, share: Share, report: RebuildReport, offload: ThreadOffload, progress: Progress | None
    ) -> None:
        self._source = source
        self._share = share
        self._offload = offload
        self._progress = progress
        self._report = report
        self._listed: dict[str, None] = {}
        self._copied: dict[str, None] = {}
        self._complete_upto: dict[int, int] = {}
        self._made: dict[str, None] = {}
        """Chunks that the rebuild wrote and that are not in the source."""

    async def run(self, settings: EmbeddedSettings) -> None:
        """Fill the directory of ``settings``, which is new and which the caller holds.

        Raises CorruptDataError (there is no catalogue, or no sound snapshot), and what the storage raises.
        """
        catalogue = await rows_of.list_catalogue(self._source.objects)
        self._listed = dict.fromkeys(await self._source.chunks.list())
        epoch = await self._epoch(catalogue)
        async with AsyncExitStack() as stack:
            files = RealFiles(settings.data, self._offload)
            await files.make_dir("metadata")
            keyvalue = await SqliteKeyValue.open(settings.data / "metadata" / "store.db", self._offload)
            stack.push_async_callback(keyvalue.close)
            tier = await stack.enter_async_context(open_tier(settings, files, offload=self._offload, rng=RealRng()))
            await self._load(catalogue, keyvalue)
            log, log_damage = await look_behind(self._source, self._complete_upto)
            self._report.log += log
            self._report.damage += log_damage
            for container in sorted(catalogue):
                await self._restore_aside(container, keyvalue, tier, epoch)
                async for segment in rows_of.settle_container(keyvalue, container, epoch=epoch):
                    await self._copy_segment(segment, MetadataRows(keyvalue), tier)
            row = records.encode_store(self._share.containers)
            await keyvalue.commit([(key, row) for key in (records.STORE_KEY, records.STORE_COPY_KEY)])
            self._report.unnamed_chunks += [
                name
                for name in self._listed
                if not name.endswith(SUFFIX) and name not in self._copied and not is_marker(name)
            ]
            await self._begin_log(files, epoch)

    async def _epoch(self, catalogue: Mapping[int, Sequence[ObjectName]]) -> int:
        """The highest epoch of any log with frames: the new store must not reuse an old name."""
        epochs = [name.epoch for names in catalogue.values() for name in names]
        epochs += [epoch for text in self._listed if (epoch := chunk_epoch(text.removesuffix(SUFFIX))) is not None]
        return max(epochs)

    async def _load(self, catalogue: Mapping[int, Sequence[ObjectName]], keyvalue: SqliteKeyValue) -> None:
        states = [
            await rows_of.load_container(self._source.objects, index, names, keyvalue)
            for index, names in sorted(catalogue.items())
        ]
        if not any(state.containers for state in states):
            raise CorruptDataError("no container has a sound snapshot", place=self._source.place)
        known = {state.container: state for state in states}
        for index in self._share.owned:
            state = known.get(index)
            if state is None:
                state = rows_of.ContainerCatalogue(container=index)
                state.damage.append((f"catalogue/{index:x}", "catalogue of the container is missing"))
            self._complete_upto[index] = state.complete_upto
            self._report.note_container(state)

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
        self._report.note_aside(container, found)
        self._made.update(found.made)
        self._copied.update(found.dropped)

    # --- chunks -------------------------------------------------------------------------------------------

    async def _copy_segment(self, segment: rows_of.RebuiltSegment, rows: MetadataRows, tier: Tier2) -> None:
        report = self._report
        report.note_segment(segment)
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
