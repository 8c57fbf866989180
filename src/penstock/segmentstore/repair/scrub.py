"""Scrub: verify every checksum of a store, one page at a time, while it serves. Changes nothing.

It verifies the metadata's structure and rows, the log's frames, the catalogue's objects, and for each segment its row,
its chunks' sidecars and every block. A cursor marks the start of the next page; it names rows, so it stays valid across
restarts. An object that is missing or damaged, but no longer named by a row, was truncated, merged or deleted
meanwhile: that is not damage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from penstock.codec.store import catalogue as catalogue_codec
from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import RECORD_BYTES, IndexRecord, decode_records, index_name
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError, InvalidArgumentError, SegmentNotFoundError
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkReads
from penstock.ports.integrity import CheckedLog, CheckedRows, ScrubPage
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair.catalogue_gaps import missing_objects
from penstock.segmentstore.repair.chunk_gaps import missing_chunk, missing_ranges
from penstock.segmentstore.repair.rebuild import blocks_of, list_catalogue, read_object
from penstock.segmentstore.tiering.blocks import checksum_of

_ROWS = 2000
_ROW_BYTES = 100
"""What looking at a row or a name is counted as, so that a page of many small things ends too."""

_OF_SEGMENTS = frozenset((b"s", b"a", b"k", b"t", b"v", b"m", b"f"))
"""Tags of rows whose key goes on with the uid of a segment."""

PHASES = ("pages", "rows", "log", "catalogue", "segments")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cursor:
    """The phase defines ``first`` and ``second``: a key or a uid, an offset or a position."""

    phase: str = PHASES[0]
    container: int = 0
    first: int = 0
    second: int = 0
    third: int = 0
    key: bytes = b""

    def __str__(self) -> str:
        numbers = "-".join(f"{value:x}" for value in (self.container, self.first, self.second, self.third))
        return f"{self.phase}:{numbers}:{self.key.hex()}"

    @classmethod
    def parse(cls, text: str) -> _Cursor:
        phase, _, rest = text.partition(":")
        numbers, _, key = rest.partition(":")
        try:
            container, first, second, third = (int(item, 16) for item in numbers.split("-"))
            cursor = cls(
                phase=phase, container=container, first=first, second=second, third=third, key=bytes.fromhex(key)
            )
        except ValueError as error:
            raise InvalidArgumentError("not a cursor of a scrub", cursor=text[:80]) from error
        if phase not in PHASES:
            raise InvalidArgumentError("not a cursor of a scrub", cursor=text[:80])
        return cursor


class _Tally:
    """What one page has found so far."""

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes
        self.counts: dict[str, int] = {}
        self.damage: list[Damage] = []

    def count(self, what: str, amount: int = 1, *, size_bytes: int = 0) -> None:
        self.counts[what] = self.counts.get(what, 0) + amount
        if size_bytes:
            self.counts["bytes"] = self.counts.get("bytes", 0) + size_bytes
        self.left -= size_bytes or _ROW_BYTES


class Scrubber:
    """Verifies a store given by its parts, whether it runs or is closed.

    ``rows`` are those of each container, by index. ``keyvalue`` and ``log`` are verified if they have checksums;
    ``objects`` hold the catalogue, None if there is none.
    """

    def __init__(
        self,
        rows: Mapping[int, MetadataRows],
        *,
        keyvalue: object,
        log: object,
        chunks: ChunkReads,
        objects: Objects | None,
        offload: Offload,
    ) -> None:
        self._rows = rows
        self._keyvalue = keyvalue
        self._log = log
        self._chunks = chunks
        self._objects = objects
        self._offload = offload
        self._listed: Mapping[int, Sequence[catalogue_codec.ObjectName]] | None = None

    async def page(self, cursor: str | None, max_bytes: int) -> ScrubPage:
        """See ``ports.integrity.Scrubbable.scrub``."""
        if max_bytes <= 0:
            raise InvalidArgumentError("a page of a scrub must read at least 1 byte", max_bytes=max_bytes)
        at: _Cursor | None = _Cursor() if cursor is None else _Cursor.parse(cursor)
        tally = _Tally(max_bytes)
        steps = {
            "pages": self._pages,
            "rows": self._check_rows,
            "log": self._check_log,
            "catalogue": self._check_catalogue,
            "segments": self._check_segments,
        }
        while at is not None and tally.left > 0:
            following = await steps[at.phase](at, tally)
            if following is None:
                index = PHASES.index(at.phase) + 1
                following = _Cursor(phase=PHASES[index]) if index < len(PHASES) else None
            at = following
        return ScrubPage(cursor=None if at is None else str(at), checked=tally.counts, damage=tally.damage)

    # --- the metadata as a whole --------------------------------------------------------------------------

    async def _pages(self, at: _Cursor, tally: _Tally) -> _Cursor | None:
        if isinstance(self._keyvalue, CheckedRows):
            tally.count("files")
            for said in await self._keyvalue.check_pages():
                tally.damage.append(Damage(kind=DamageKind.PAGE, place="metadata", why=said[:300]))
        return None

    async def _check_rows(self, at: _Cursor, tally: _Tally) -> _Cursor | None:
        if not isinstance(self._keyvalue, CheckedRows):
            return None
        try:
            found = await self._keyvalue.check_rows(at.key, limit=_ROWS)
        except CorruptDataError as error:
            tally.damage.append(Damage(kind=DamageKind.PAGE, place="metadata", why=str(error)[:300]))
            return None
        tally.count("rows", found.rows, size_bytes=found.size_bytes)
        for key in found.damaged:
            tally.damage.append(await self._row_damage(key))
        return None if found.next_key is None else replace(at, key=found.next_key)

    async def _row_damage(self, key: bytes) -> Damage:
        """A row that fails, with the container and segment if its key still identifies them."""
        fields: dict[str, object] = {"row": key[:1].decode("ascii", "replace")}
        container = int.from_bytes(key[1:3], "big") if len(key) >= 3 and key[:1] != records.TAG_STORE else None
        if container is not None and container in self._rows and key[:1] in _OF_SEGMENTS and len(key) >= 11:
            uid = records.parse_number(key[3:11])
            fields["uid"] = f"{uid:x}"
            try:
                row = await self._rows[container].get(records.uid_key(records.TAG_SEGMENT, container, uid))
                if row is not None:
                    fields["of_segment"] = records.decode_segment(row).name
            except CorruptDataError:
                pass  # The damaged row is this very row, so the name is lost with it.
        why = "row of the metadata fails its checksum"
        return Damage(kind=DamageKind.ROW, place=key.hex()[:200], why=why, container=container, fields=fields)

    async def _check_log(self, at: _Cursor, tally: _Tally) -> _Cursor | None:
        if not isinstance(self._log, CheckedLog):
            return None
        found = await self._log.check_frames(at.first)
        tally.count("frames", found.frames, size_bytes=found.size_bytes)
        tally.damage += found.damage
        return None if found.upto is None else replace(at, first=found.upto)

    # --- the catalogue ------------------------------------------------------------------------------------

    async def _check_catalogue(self, at: _Cursor, tally: _Tally) -> _Cursor | None:
        if self._objects is None:
            return None
        if self._listed is None:
            self._listed = await list_catalogue(self._objects)
        listed = self._listed
        names = sorted(str(name) for names in listed.values() for name in names)
        name = next((item for item in names if item.encode() > at.key), None)
        if name is None:
            for index, rows in self._rows.items():
                tally.damage += await missing_objects(rows, index, self._objects)
            return None
        why = await _object_damage(self._objects, name, tally)
        if why is not None and name in await self._objects.list(name.rpartition("/")[0]):
            tally.damage.append(Damage(kind=DamageKind.CATALOGUE, place=name, why=why))
        return replace(at, key=name.encode())

    # --- segments and their chunks ------------------------------------------------------------------------

    async def _check_segments(self, at: _Cursor, tally: _Tally) -> _Cursor | None:
        rows = self._rows.get(at.container)
        if rows is None:
            later = [index for index in self._rows if index > at.container]
            return replace(at, container=min(later), first=0, second=0, third=0) if later else None
        index = at.container
        start = records.uid_key(records.TAG_SEGMENT, index, at.first)
        _, end = records.range_of(records.prefix(records.TAG_SEGMENT, index))
        try:
            page = await rows.scan((start, end), limit=1)
        except CorruptDataError as error:
            bad = await self._damaged_row(start, end, error, index, tally)
            behind = None if bad is None else records.parse_number(bad[-8:]) + 1
            return self._next_container(at) if behind is None else replace(at, first=behind, second=0, third=0)
        if not page:
            return self._next_container(at)
        uid = records.parse_number(page[0][0][-8:])
        if uid != at.first:
            at = replace(at, first=uid, second=0, third=0)
        try:
            return await self._check_segment(rows, at, records.decode_segment(page[0][1]), tally)
        except CorruptDataError as error:
            first = records.chunk_key(index, uid, at.second)
            _, end = records.range_of(records.uid_key(records.TAG_CHUNK, index, uid))
            bad = await self._damaged_row(first, end, error, index, tally)
            if bad is None:
                return replace(at, first=uid + 1, second=0, third=0)
            return replace(at, second=records.parse_number(bad[-8:]) + 1, third=0)

    def _next_container(self, at: _Cursor) -> _Cursor:
        return replace(at, container=at.container + 1, first=0, second=0, third=0)

    async def _damaged_row(
        self, start: bytes, end: bytes, error: CorruptDataError, container: int, tally: _Tally
    ) -> bytes | None:
        """The first row of the range that fails its checksum, which the row check has reported; None if no row does."""
        if not isinstance(self._keyvalue, CheckedRows):
            tally.damage.append(Damage(kind=DamageKind.ROW, place="metadata", why=str(error), container=container))
            return None
        tally.count("rows_again")
        try:
            found = await self._keyvalue.check_rows(start, limit=_ROWS)
        except CorruptDataError:
            return None
        return next((key for key in found.damaged if start <= key < end and len(key) == len(start)), None)

    async def _check_segment(
        self, rows: MetadataRows, at: _Cursor, segment: records.SegmentRecord, tally: _Tally
    ) -> _Cursor | None:
        index, uid = at.container, at.first
        if not at.second and not at.third:
            tally.count("segments")
            await self._check_name(rows, index, uid, segment, tally)
            await self._check_gaps(index, uid, segment, tally)
        first = records.chunk_key(index, uid, at.second)
        _, end = records.range_of(records.uid_key(records.TAG_CHUNK, index, uid))
        found = await rows.scan((first, end), limit=1)
        if not found:
            return replace(at, first=uid + 1, second=0, third=0)
        begin = records.parse_number(found[0][0][-8:])
        position = at.third if begin == at.second else 0
        check = _ChunkCheck(self, rows, index, uid, begin, records.decode_chunk(found[0][1]), segment)
        reached = await check.run(position, tally)
        if reached is None:
            return replace(at, second=begin + 1, third=0)
        return replace(at, second=begin, third=reached)

    async def _check_gaps(self, index: int, uid: int, segment: records.SegmentRecord, tally: _Tally) -> None:
        for start, end in await missing_ranges(self._rows[index], index, uid):
            tally.damage.append(missing_chunk(index, uid, segment.name, start, end))

    async def _check_name(
        self, rows: MetadataRows, index: int, uid: int, segment: records.SegmentRecord, tally: _Tally
    ) -> None:
        key = records.name_key(index, segment.name)
        try:
            row = await rows.get(key)
        except CorruptDataError:
            return  # The row check has reported it.
        if row is not None and records.parse_number(row) == uid:
            return
        if await rows.get(records.uid_key(records.TAG_SEGMENT, index, uid)) is not None:
            why = "the segment is not found by its name"
            place = key.hex()
            tally.damage.append(
                Damage(kind=DamageKind.ROW, place=place, why=why, container=index, segment=segment.name)
            )

    # --- used by the check of a chunk ------------------------------------------------------------------------

    @property
    def chunks(self) -> ChunkReads:
        return self._chunks

    @property
    def offload(self) -> Offload:
        return self._offload


class _ChunkCheck:
    """One chunk of one segment."""

    def __init__(
        self,
        scrubber: Scrubber,
        rows: MetadataRows,
        container: int,
        uid: int,
        start: int,
        chunk: records.ChunkRecord,
        segment: records.SegmentRecord,
    ) -> None:
        self._scrubber = scrubber
        self._rows = rows
        self._container = container
        self._uid = uid
        self._start = start
        self._chunk = chunk
        self._segment = segment

    async def run(self, position: int, tally: _Tally) -> int | None:
        """Verify from ``position`` on. Returns where to continue, None at the end of the chunk."""
        try:
            blocks = await blocks_of(self._rows, self._container, self._chunk)
        except CorruptDataError as error:
            await self._report(DamageKind.ROW, error.message, 0, self._chunk.length, tally)
            return None
        if position == 0:
            tally.count("chunks")
            await self._check_index(blocks, tally)
        progressed = False
        for begin, block in blocks:
            if begin < position or block.end <= self._dead(self._chunk, self._segment):
                continue
            if progressed and tally.left <= 0:
                return begin  # At least one block per page, however small the page is.
            progressed = True
            if not await self._check_block(begin, block, tally):
                return None
        return None

    async def _check_block(self, begin: int, block: records.BlockRecord, tally: _Tally) -> bool:
        """False if the rest of the chunk is not worth reading."""
        size = block.end - begin
        try:
            data = await self._scrubber.chunks.read(self._chunk.name, begin, size)
        except SegmentNotFoundError:
            await self._report(DamageKind.CHUNK, "the chunk is missing", begin, self._chunk.length, tally)
            return False
        except OSError as error:
            await self._report(DamageKind.BLOCK, f"cannot be read: {error}", begin, block.end, tally)
            return True
        tally.count("blocks", size_bytes=size)
        if len(data) != size:
            why = f"the chunk ends after {begin + len(data)} bytes of {self._chunk.length}"
            await self._report(DamageKind.BLOCK, why, begin, self._chunk.length, tally)
            return False
        if await checksum_of(self._scrubber.offload, [data]) != block.crc32c:
            await self._report(DamageKind.BLOCK, "block fails its checksum", begin, block.end, tally)
        return True

    async def _check_index(self, blocks: Sequence[tuple[int, records.BlockRecord]], tally: _Tally) -> None:
        name = index_name(self._chunk.name)
        why: str | None = None
        try:
            data = await self._scrubber.chunks.read(name, 0, len(blocks) * RECORD_BYTES)
            tally.count("indexes", size_bytes=len(data))
            why = _index_differs(list(islice(decode_records(data), len(blocks))), blocks)
        except SegmentNotFoundError:
            why = "the sidecar is missing"
        except CorruptDataError as error:
            why = error.message
        except OSError as error:
            why = f"cannot be read: {error}"
        if why is not None and await self._is_named():
            tally.damage.append(
                Damage(
                    kind=DamageKind.INDEX,
                    place=name,
                    why=why,
                    container=self._container,
                    fields={"of_segment": self._segment.name},
                )
            )

    async def _is_named(self) -> bool:
        """Whether the segment still has the chunk, as it was when the check began."""
        row = await self._rows.get(records.chunk_key(self._container, self._uid, self._start))
        return row is not None and records.decode_chunk(row).name == self._chunk.name

    def _dead(self, chunk: records.ChunkRecord, segment: records.SegmentRecord) -> int:
        """The offset in the chunk before which no reader reads. That part may already be a hole, because the row is
        written later."""
        return max(chunk.freed, segment.kept_offset - self._start)

    async def _report(self, kind: DamageKind, why: str, begin: int, end: int, tally: _Tally) -> None:
        row = await self._rows.get(records.chunk_key(self._container, self._uid, self._start))
        if row is None:
            return
        now = records.decode_chunk(row)
        state = await self._rows.get(records.uid_key(records.TAG_SEGMENT, self._container, self._uid))
        segment = self._segment if state is None else records.decode_segment(state)
        if now.name != self._chunk.name or end <= self._dead(now, segment):
            return
        head = segment.start_offset
        first, last = self._start + begin, self._start + end
        dead = last <= head
        tally.damage.append(
            Damage(
                kind=kind,
                place=self._chunk.name,
                why=f"{why}; readers have no access to it any more" if dead else why,
                container=self._container,
                segment=self._segment.name,
                start=first if dead else max(first, head),
                end=last,
                fields={"chunk_position": begin},
            )
        )


def _index_differs(found: Sequence[IndexRecord], blocks: Sequence[tuple[int, records.BlockRecord]]) -> str | None:
    if len(found) < len(blocks):
        return f"the sidecar ends after {len(found)} blocks of {len(blocks)}"
    for item, (begin, block) in zip(found, blocks, strict=False):
        if (item.start, item.end, item.event_count, item.crc32c) != (begin, block.end, block.event_count, block.crc32c):
            return f"the sidecar and the metadata differ in block {item.index}"
    return None


async def _object_damage(objects: Objects, name: str, tally: _Tally) -> str | None:
    try:
        found = await read_object(objects, name)
        tally.count("objects", size_bytes=len(found.payload) + catalogue_codec.OBJECT.size)
        if found.damage is not None:
            return found.damage
        if found.name.kind is catalogue_codec.Kind.JOURNAL:
            count = sum(1 for _ in catalogue_codec.decode_batches(found.payload))
        else:
            count = sum(1 for _ in catalogue_codec.decode_rows(found.payload))
    except CorruptDataError as error:
        return error.message
    except OSError as error:
        return f"cannot be read: {error}"
    return None if count == found.count else f"{count} entries of {found.count}"
