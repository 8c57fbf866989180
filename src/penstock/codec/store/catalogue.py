"""The catalogue of tier 2: a container's metadata rows as objects, so that names, types and lengths can be restored
from tier 2 alone.

A *batch* has the changes of one checkpoint; a *journal* object holds consecutive batches; the objects of a *snapshot*
hold all rows. Source: docs/formats/catalogue.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION: Final = 1
MAGIC: Final = b"PsTC"
DIRECTORY: Final = "catalogue"
FLAG_END: Final = 1
"""The last object of a snapshot."""

OBJECT = struct.Struct(">4sBBHHHIQQQQQII")
BATCH = struct.Struct(">QQqIIIIII")
RANGE = struct.Struct(">HH")
DELETE = struct.Struct(">H")
PUT = struct.Struct(">HI")

Row = tuple[bytes, bytes]


class Kind(IntEnum):
    JOURNAL = 1
    SNAPSHOT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectName:
    """The parts of an object's name, which its header repeats.

    A journal holds the batches ``first`` to ``last``. A snapshot needs the batches after ``first``; it is complete once
    those up to ``last`` are applied. Only its last object has ``last``; it is 0 in the others. ``run`` is ``epoch << 32
    | count``: it is unique to each written object, except that the objects of one snapshot share it.
    """

    kind: Kind
    container: int
    run: int
    first: int
    last: int
    part: int = 0
    end: bool = False

    @property
    def epoch(self) -> int:
        return self.run >> 32

    def __str__(self) -> str:
        head = f"{DIRECTORY}/{self.container:x}"
        if self.kind is Kind.JOURNAL:
            return f"{head}/j-{self.first:016x}-{self.last:016x}-{self.run:016x}"
        mark = "end" if self.end else "part"
        return f"{head}/s-{self.first:016x}-{self.last:016x}-{self.run:016x}-{self.part:06x}-{mark}"


def parse_object_name(text: str) -> ObjectName | None:
    """The parts, or None if the name does not have our form."""
    pieces = text.split("/")
    if len(pieces) != 3 or pieces[0] != DIRECTORY:
        return None
    letter, *parts = pieces[2].split("-")
    try:
        container = int(pieces[1], 16)
        first, last, run = (int(part, 16) for part in parts[:3])
        if letter == "j":
            name = ObjectName(kind=Kind.JOURNAL, container=container, run=run, first=first, last=last)
        else:
            name = ObjectName(
                kind=Kind.SNAPSHOT,
                container=container,
                run=run,
                first=first,
                last=last,
                part=int(parts[3], 16),
                end=parts[4] == "end",
            )
    except (ValueError, IndexError):
        return None
    return name if str(name) == text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The changes of one checkpoint: ``ranges`` are deleted first, then ``deletes``, then ``puts`` are written.

    ``complete_upto``: the log address up to which the rows were complete; ``time_ms``: the wall clock at that time.
    """

    sequence: int
    complete_upto: int
    time_ms: int
    ranges: Sequence[Row]
    deletes: Sequence[bytes]
    puts: Sequence[Row]


def encode_batch(batch: Batch) -> bytes:
    parts: list[bytes] = []
    for start, end in batch.ranges:
        parts += (RANGE.pack(len(start), len(end)), start, end)
    for key in batch.deletes:
        parts += (DELETE.pack(len(key)), key)
    body = b"".join(parts) + encode_rows(batch.puts)
    head = BATCH.pack(
        batch.sequence,
        batch.complete_upto,
        batch.time_ms,
        len(batch.ranges),
        len(batch.deletes),
        len(batch.puts),
        len(body),
        crc32c(body),
        0,
    )[:-4]
    return head + int(crc32c(head)).to_bytes(4, "big") + body


def complete_upto(batch: bytes) -> int:
    """The field ``complete_upto`` of an encoded batch."""
    return int(BATCH.unpack_from(batch)[1])


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Rows back to back: the content of a snapshot."""
    parts: list[bytes] = []
    for key, value in rows:
        parts += (PUT.pack(len(key), len(value)), key, value)
    return b"".join(parts)


def decode_batches(data: bytes) -> Iterator[Batch]:
    """The batches of a journal, in order. Raises CorruptDataError at the first damaged batch: those before it are
    intact."""
    position = 0
    while position < len(data):
        head = data[position : position + BATCH.size]
        if len(head) < BATCH.size or crc32c(head[:-4]) != int.from_bytes(head[-4:], "big"):
            raise CorruptDataError("batch of the catalogue is damaged", position=position)
        sequence, upto, time_ms, ranges, deletes, puts, size, checksum, _ = BATCH.unpack(head)
        body = data[position + BATCH.size : position + BATCH.size + size]
        if len(body) != size or crc32c(body) != checksum:
            raise CorruptDataError("batch of the catalogue fails its checksum", position=position, sequence=sequence)
        position += BATCH.size + size
        yield _decode_body(body, sequence, upto, time_ms, (ranges, deletes, puts))


def _decode_body(body: bytes, sequence: int, upto: int, time_ms: int, counts: tuple[int, int, int]) -> Batch:
    at = 0
    ranges: list[Row] = []
    deletes: list[bytes] = []
    try:
        for _ in range(counts[0]):
            low, high = RANGE.unpack_from(body, at)
            at += RANGE.size
            ranges.append((body[at : at + low], body[at + low : at + low + high]))
            at += low + high
        for _ in range(counts[1]):
            (size,) = DELETE.unpack_from(body, at)
            at += DELETE.size
            deletes.append(body[at : at + size])
            at += size
    except struct.error as error:
        raise CorruptDataError("batch of the catalogue ends within an item", sequence=sequence) from error
    puts = list(decode_rows(body[at:]))
    if len(puts) != counts[2]:
        raise CorruptDataError(
            "batch of the catalogue lacks rows", sequence=sequence, rows=len(puts), expected=counts[2]
        )
    return Batch(sequence=sequence, complete_upto=upto, time_ms=time_ms, ranges=ranges, deletes=deletes, puts=puts)


def decode_rows(data: bytes) -> Iterator[Row]:
    """Raises CorruptDataError if the data ends within a row."""
    position = 0
    while position < len(data):
        if position + PUT.size > len(data):
            raise CorruptDataError("catalogue ends within a row", position=position)
        key_bytes, value_bytes = PUT.unpack_from(data, position)
        at = position + PUT.size
        position = at + key_bytes + value_bytes
        if position > len(data):
            raise CorruptDataError("catalogue ends within a row", position=at)
        yield data[at : at + key_bytes], data[at + key_bytes : position]


def encode_object(name: ObjectName, payload: bytes, *, containers: int, count: int) -> bytes:
    """An object of ``count`` batches, or rows. ``containers``: their number in the store."""
    head = OBJECT.pack(
        MAGIC,
        VERSION,
        int(name.kind),
        name.container,
        containers,
        FLAG_END if name.end else 0,
        name.part,
        name.run,
        name.first,
        name.last,
        count,
        len(payload),
        crc32c(payload),
        0,
    )[:-4]
    return head + int(crc32c(head)).to_bytes(4, "big") + payload


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueObject:
    """A decoded object. ``damage``: why its payload fails its checksum; None if it is intact."""

    name: ObjectName
    containers: int
    count: int
    payload: bytes
    damage: str | None


def decode_object(text: str, data: bytes) -> CatalogueObject:
    """The object called ``text``. The first batches of a damaged journal may still be readable.

    Raises: CorruptDataError (its header is damaged, or belongs to another object), VersionTooNewError.
    """
    if len(data) < OBJECT.size or data[:4] != MAGIC:
        raise CorruptDataError("not an object of the catalogue", object=text, size_bytes=len(data))
    fields = OBJECT.unpack_from(data)
    if crc32c(data[: OBJECT.size - 4]) != fields[-1]:
        raise CorruptDataError("header of a catalogue object fails its checksum", object=text)
    _, version, kind, container, containers, flags, part, run, first, last, count, size, checksum, _ = fields
    if version > VERSION:
        raise VersionTooNewError(
            "catalogue was written by a newer version", object=text, version=version, known=VERSION
        )
    try:
        name = ObjectName(
            kind=Kind(kind), container=container, run=run, first=first, last=last, part=part, end=bool(flags & FLAG_END)
        )
    except ValueError as error:
        raise CorruptDataError("catalogue object has an unknown kind", object=text, kind=kind) from error
    if str(name) != text:
        raise CorruptDataError("catalogue object is stored under the name of another one", object=text, own=str(name))
    payload = data[OBJECT.size :]
    damage = None
    if len(payload) != size:
        damage = f"{len(payload)} bytes where {size} were written"
    elif crc32c(payload) != checksum:
        damage = "checksum"
    return CatalogueObject(name=name, containers=containers, count=count, payload=payload, damage=damage)


def covers(names: Iterable[ObjectName], last: int) -> bool:
    """Whether the names include a whole snapshot and all batches after it up to ``last``."""
    listed = list(names)
    return any(
        item.end
        and item.last <= last
        and _missing_part(listed, item) is None
        and journal_reach(listed, item.first) >= last
        for item in listed
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What is missing from a catalogue: an object of its newest ``snapshot``; or ``batches``, the first and the last,
    after a complete snapshot; or, if both are None, every snapshot."""

    snapshot: ObjectName | None = None
    batches: tuple[int, int] | None = None


def find_gap(names: Iterable[ObjectName], last: int) -> Gap | None:
    """What is missing to restore the rows as of batch ``last``, judged by the names of the objects; None: nothing.

    A snapshot may need batches after ``last``: those are not in tier 2 yet, and nothing is lost.
    """
    listed = list(names)
    ends = sorted((item for item in listed if item.end), key=lambda item: (item.first, item.run), reverse=True)
    whole = [item for item in ends if _missing_part(listed, item) is None]
    if whole:
        reach = max(journal_reach(listed, item.first) for item in whole)
        return None if reach >= last else Gap(batches=(reach + 1, last))
    return Gap(snapshot=_missing_part(listed, ends[0])) if ends else Gap()


def _missing_part(listed: Sequence[ObjectName], end: ObjectName) -> ObjectName | None:
    """The first object that the snapshot of ``end`` lacks."""
    parts = {item.part for item in listed if item.kind is Kind.SNAPSHOT and item.run == end.run}
    missing = next((part for part in range(end.part) if part not in parts), None)
    return None if missing is None else replace(end, part=missing, end=False, last=0)


def journal_reach(names: Iterable[ObjectName], after: int) -> int:
    """The last batch that the journals reach from ``after`` on without a gap."""
    reach = after
    for item in sorted((name for name in names if name.kind is Kind.JOURNAL), key=lambda name: (name.first, name.last)):
        if item.first <= reach + 1:
            reach = max(reach, item.last)
    return reach
