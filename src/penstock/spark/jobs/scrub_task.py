"""One task of a scrub: verify chunks in tier 2 with the checksums that the store has for them. Changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from penstock.codec.store.chunk_index import RECORD_BYTES, IndexRecord, decode_records, index_name
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError, InvalidArgumentError, SegmentNotFoundError, TruncatedError
from penstock.model.names import SYSTEM_SCOPE
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.chunks import ChunkBlock, ChunkRange
from penstock.spark.connect import Connector, Services, link

RESULT = "finding string, events bigint, segment string, chunk_start bigint, checked string"
_RESULT = pa.schema(
    [
        pa.field("finding", pa.string()),
        pa.field("events", pa.int64()),
        pa.field("segment", pa.string()),
        pa.field("chunk_start", pa.int64()),
        pa.field("checked", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Chunks of a segment that begin at ``low <= offset < high``. If ``low`` is the head, also the chunk that contains it."""

    segment: str
    head: int
    low: int
    high: int

    @property
    def is_own(self) -> bool:
        """Whether it belongs to a stream of the store itself."""
        return self.segment.startswith(f"{SYSTEM_SCOPE}/")


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage to the chunk that begins at ``chunk_start``, and the number of events that begin in the damaged range."""

    damage: Damage
    events: int
    segment: str
    chunk_start: int


@dataclass(slots=True)
class Findings:
    """The checked amounts by kind, and the damage."""

    checked: dict[str, int] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)

    def count(self, what: str, amount: int = 1) -> None:
        self.checked[what] = self.checked.get(what, 0) + amount


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubTask:
    """Pickled to tasks. ``todo``: the stretches to verify, per task."""

    connector: Connector
    controller: str
    todo: tuple[tuple[Stretch, ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``mapInArrow``. Input: indexes into ``todo``. Output: a row for each finding, and one with the counts."""
        for batch in batches:
            for place in batch.column(0).to_pylist():
                found = self.verify(self.todo[place])
                rows = [
                    {
                        "finding": json.dumps(item.damage.as_json()),
                        "events": item.events,
                        "segment": item.segment,
                        "chunk_start": item.chunk_start,
                        "checked": None,
                    }
                    for item in found.found
                ]
                none = dict.fromkeys(_RESULT.names)
                yield pa.RecordBatch.from_pylist([*rows, none | {"checked": json.dumps(found.checked)}], _RESULT)

    def verify(self, stretches: Sequence[Stretch]) -> Findings:
        """Every block and sidecar of the stretches."""
        found = Findings()
        server = link(self.connector, self.controller)
        for stretch in stretches:
            try:
                chunks = server.ask(_listing(stretch))
            except (SegmentNotFoundError, TruncatedError):
                continue  # deleted, or truncated past it, meanwhile
            except CorruptDataError as error:
                damage = Damage(
                    kind=DamageKind.ROW,
                    place=stretch.segment,
                    why=error.message,
                    segment=stretch.segment,
                    start=stretch.low,
                    end=stretch.high,
                )
                found.found.append(Finding(damage, 0, stretch.segment, stretch.low))
                continue
            for chunk in chunks:
                if chunk.start_offset >= stretch.low or stretch.low == stretch.head:
                    _Check(chunk, stretch, found).run()
        return found


def _listing(stretch: Stretch) -> Any:
    async def listing(services: Services) -> Sequence[ChunkRange]:
        return await services.segments.chunk_ranges(stretch.segment, stretch.low, stretch.high)

    return listing


class _Check:
    """Check one chunk as the store's own scrub does (``repair.scrub``), with the same findings and messages."""

    def __init__(self, chunk: ChunkRange, stretch: Stretch, found: Findings) -> None:
        self._chunk = chunk
        self._segment = stretch.segment
        self._head = stretch.head
        self._found = found

    def run(self) -> None:
        if self._chunk.location is None:
            return  # in the store's memory, or on a server that other processes cannot reach
        location = self._chunk.location
        if "://" not in location and not Path(location).parent.is_dir():
            raise InvalidArgumentError(
                "tier 2 is not mounted here; run on machines that mount it", directory=str(Path(location).parent)
            )
        self._found.count("chunks")
        self._check_index()
        with _Source(location) as source:
            for block in self._chunk.blocks:
                # Bytes before the head are deleted, or can be deleted at any moment.
                if block.end_offset > self._head and not self._check_block(source, block):
                    return

    def _check_block(self, source: _Source, block: ChunkBlock) -> bool:
        """Verify a block. False if the rest of the chunk need not be read."""
        size = block.end_offset - block.start_offset
        begin = block.start_offset - self._chunk.start_offset
        last = self._chunk.blocks[-1].end_offset
        try:
            data = source.read(begin, size)
        except FileNotFoundError:
            self._add_finding(DamageKind.CHUNK, "the chunk is missing", block.start_offset, last)
            return False
        except OSError as error:
            self._add_finding(DamageKind.BLOCK, f"cannot be read: {error}", block.start_offset, block.end_offset)
            return True
        self._found.count("blocks")
        self._found.count("bytes", size)
        if len(data) != size:
            why = f"the chunk ends after {begin + len(data)} bytes of {last - self._chunk.start_offset}"
            self._add_finding(DamageKind.BLOCK, why, block.start_offset, last)
            return False
        if crc32c(data) != block.crc32c:
            self._add_finding(DamageKind.BLOCK, "block fails its checksum", block.start_offset, block.end_offset)
        return True

    def _add_finding(self, kind: DamageKind, why: str, start: int, end: int) -> None:
        damage = Damage(
            kind=kind,
            place=self._chunk.name,
            why=why,
            container=self._container(),
            segment=self._segment,
            start=max(start, self._head),
            end=end,
            fields={"chunk_position": start - self._chunk.start_offset},
        )
        lost = [item.event_count for item in self._chunk.blocks if start <= item.start_offset < end]
        self._found.found.append(Finding(damage, sum(lost), self._segment, self._chunk.start_offset))

    def _check_index(self) -> None:
        blocks = self._chunk.blocks
        why: str | None = None
        base, mark, query = (self._chunk.location or "").partition("?")
        try:
            with _Source(index_name(base) + mark + query) as source:
                data = source.read(0, len(blocks) * RECORD_BYTES)
            self._found.count("indexes")
            self._found.count("bytes", len(data))
            why = self._index_differs(list(decode_records(data))[: len(blocks)])
        except FileNotFoundError:
            why = "the sidecar is missing"
        except CorruptDataError as error:
            why = error.message
        except OSError as error:
            why = f"cannot be read: {error}"
        if why is not None:
            damage = Damage(
                kind=DamageKind.INDEX,
                place=index_name(self._chunk.name),
                why=why,
                container=self._container(),
                fields={"of_segment": self._segment},
            )
            self._found.found.append(Finding(damage, 0, self._segment, self._chunk.start_offset))

    def _index_differs(self, records: Sequence[IndexRecord]) -> str | None:
        blocks, shift = self._chunk.blocks, self._chunk.start_offset
        if len(records) < len(blocks):
            return f"the sidecar ends after {len(records)} blocks of {len(blocks)}"
        for item, block in zip(records, blocks, strict=True):
            expected = (block.start_offset - shift, block.end_offset - shift, block.event_count, block.crc32c)
            if (item.start, item.end, item.event_count, item.crc32c) != expected:
                return f"the sidecar and the metadata differ in block {item.index}"
        return None

    def _container(self) -> int:
        return int(self._chunk.name.partition("/")[0], 16)


class _Source:
    """A file or an object, opened with the first read. Not mapped: a disk that fails would kill the process."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._file: int | None = None

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def read(self, start: int, size: int) -> bytes:
        """Up to ``size`` bytes. Raises FileNotFoundError, OSError, UnavailableError (an object store)."""
        if "://" in self._location:
            from penstock.storage.objects.locations import read_location

            return read_location(self._location, start, size)
        if self._file is None:
            self._file = os.open(self._location, os.O_RDONLY)
        parts: list[bytes] = []
        got = 0
        while got < size and (part := os.pread(self._file, size - got, start + got)):
            parts.append(part)
            got += len(part)
        return b"".join(parts)
