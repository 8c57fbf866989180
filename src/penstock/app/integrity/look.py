"""Show frames of the log and blocks of chunks one by one, as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

from crc32c import crc32c

from penstock.app.integrity.source import Source, open_source
from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import SUFFIX, IndexRecord, decode_records, index_name
from penstock.core.segments.garbage import parse_chunk_name
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    SegmentNotFoundError,
    VersionTooNewError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.offload import Offload
from penstock.segmentstore.repair.rebuild import list_catalogue, load_container
from penstock.storage.log.check import SeenFrame, frames_in, look_at_log
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue

_INDEX_MAX_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFacts:
    """A frame of the log. ``kind`` is ``frame``, ``mark``, or ``unreadable`` if the payload cannot be decoded."""

    file: str
    offset: int
    sequence: int
    epoch: int
    size_bytes: int
    durable_sequence: int
    crc32c: int
    sound: bool
    kind: str
    container: int | None = None
    time_ms: int | None = None
    operations: Sequence[dict[str, Any]] = field(default_factory=list)

    def as_json(self, *, operations: bool) -> dict[str, Any]:
        """Plain values, with the operations or only their number."""
        found = asdict(self)
        if not operations:
            found["operations"] = len(self.operations)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """A block of a chunk, by its sidecar. ``state``: ``ok``, or the problem. ``segment`` if the catalogue names it."""

    chunk: str
    index: int | None
    start: int | None
    end: int | None
    segment_start: int | None
    events: int | None
    crc32c: int | None
    state: str
    segment: str | None

    @property
    def sound(self) -> bool:
        return self.state in ("ok", "given back")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def log_frames(
    data: Path,
    *,
    offload: Offload,
    first: int,
    last: int | None,
    file: str | None,
    show: Callable[[FrameFacts], None],
) -> Sequence[str]:
    """Show each frame with a sequence in ``first <= sequence <= last``.

    Returns why recovery would refuse the log, if it would.

    Frames of files that are free are left out. Raises as ``open_source``, NotFoundError (no such file of the log).
    """
    async with open_source(str(data), offload=offload) as source:
        if source.files is None:
            raise InvalidArgumentError(
                "this is a directory of tier 2, which has no log; name the data directory", path=str(data)
            )
        report = await look_at_log(source.files, "wal")
        wanted = [item for item in report.files if file is None or item.path == f"wal/{file}"]
        if file is not None and not wanted:
            raise NotFoundError("no such file of the log", file=file)
        seed = 0 if report.epoch is None else report.epoch.seed
        for item in sorted(wanted, key=lambda item: 0 if item.header is None else item.header.first_sequence):
            if not item.in_use and file is None:
                continue
            async for frame in frames_in(source.files, item.path, seed=seed):
                if first <= frame.header.sequence and (last is None or frame.header.sequence <= last):
                    show(_frame(frame))
        return [f"{item.place}: {item.why} {dict(item.fields)}" for item in report.damage]


def _frame(frame: SeenFrame) -> FrameFacts:
    header = frame.header
    facts: dict[str, Any] = {"kind": "mark" if frame.is_mark else "frame"}
    if frame.payload is not None and not frame.is_mark:
        try:
            own = frames.decode_frame_header(frame.payload)
            facts |= {
                "container": own.container,
                "time_ms": own.time_ms,
                "operations": [_operation(item) for item in frames.decode_operations(frame.payload)],
            }
        except (CorruptDataError, VersionTooNewError):
            facts["kind"] = "unreadable"
    return FrameFacts(
        file=frame.path.rpartition("/")[2],
        offset=frame.offset,
        sequence=header.sequence,
        epoch=header.epoch,
        size_bytes=header.size_bytes,
        durable_sequence=header.durable_sequence,
        crc32c=header.payload_crc32c,
        sound=frame.payload is not None,
        **facts,
    )


def _operation(operation: codec.Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(operation).__name__.removesuffix("Operation").lower()}
    for item in fields(operation):
        value = getattr(operation, item.name)
        if item.name == "uid":
            found["uid"] = f"{value:x}"
        elif item.name in ("writer", "attribute", "lease"):
            found[item.name] = f"{value:032x}"
        elif item.name == "data":
            found["bytes"] = len(value)
        elif item.name == "items":
            found["keys"] = [entry.key[:64].decode("utf-8", "backslashreplace") for entry in value]
        else:
            found[item.name] = value
    return found


async def chunk_blocks(
    place: str,
    names: Sequence[str],
    *,
    segment: str | None,
    first: int,
    last: int | None,
    offload: Offload,
    endpoint: str | None,
    insecure: bool,
    show: Callable[[BlockFacts], None],
) -> None:
    """Show each block that has bytes in ``first <= position <= last`` of its chunk, its bytes verified.

    Raises as ``open_source``, NotFoundError (no such chunk).
    """
    async with open_source(place, offload=offload, endpoint=endpoint, insecure=insecure) as source:
        listed = [name for name in await source.chunks.list() if not name.endswith(SUFFIX)]
        owners = await _owners(source)
        for name in names:
            if name not in listed and name not in owners:
                raise NotFoundError("no such chunk", chunk=name)
        for name in names or sorted({*listed, *owners}):
            owner, freed = owners.get(name, (None, 0))
            if segment is None or owner == segment:
                await _show_chunk(source, name, owner, freed, first, last, show)


async def _owners(source: Source) -> dict[str, tuple[str, int]]:
    """Map each chunk that the catalogue names to its segment, and to the offset before which it is truncated or freed."""
    found: dict[str, tuple[str, int]] = {}
    for index, names in (await list_catalogue(source.objects)).items():
        keyvalue = MemoryKeyValue()
        await load_container(source.objects, index, names, keyvalue)
        segments: dict[int, records.SegmentRecord] = {}
        start, end = records.range_of(records.prefix(records.TAG_SEGMENT, index))
        for key, value in await keyvalue.scan(start, end, limit=1 << 40):
            segments[records.parse_number(key[-8:])] = records.decode_segment(value)
        start, end = records.range_of(records.prefix(records.TAG_CHUNK, index))
        for key, value in await keyvalue.scan(start, end, limit=1 << 40):
            chunk = records.decode_chunk(value)
            owner = segments.get(records.parse_number(key[3:11]))
            if owner is not None:
                # A truncated head may already be a hole that the rows do not record.
                dead = min(chunk.length, max(chunk.freed, owner.kept_offset - records.parse_number(key[-8:])))
                found[chunk.name] = (owner.name, dead)
    return found


async def _show_chunk(
    source: Source,
    name: str,
    owner: str | None,
    freed: int,
    first: int,
    last: int | None,
    show: Callable[[BlockFacts], None],
) -> None:
    blocks: list[IndexRecord] = []
    why: str | None = None
    try:
        data = await source.chunks.read(index_name(name), 0, _INDEX_MAX_BYTES)
        for item in decode_records(data):
            blocks.append(item)  # noqa: PERF402 - those before a damaged one are kept
    except SegmentNotFoundError:
        why = "the sidecar is missing"
    except CorruptDataError as error:
        why = error.message
    for item in blocks:
        if item.end > first and (last is None or item.start <= last):
            state = "given back" if item.end <= freed else await _block_state(source, name, item)
            show(
                BlockFacts(
                    chunk=name,
                    index=item.index,
                    start=item.start,
                    end=item.end,
                    segment_start=item.segment_start,
                    events=item.event_count,
                    crc32c=item.crc32c,
                    state=state,
                    segment=owner,
                )
            )
    if why is not None:
        parsed = parse_chunk_name(name)
        show(
            BlockFacts(
                chunk=name,
                index=None,
                start=None,
                end=None,
                segment_start=None if parsed is None else parsed.start,
                events=None,
                crc32c=None,
                state=why,
                segment=owner,
            )
        )


async def _block_state(source: Source, name: str, item: IndexRecord) -> str:
    size = item.end - item.start
    try:
        data = await source.chunks.read(name, item.start, size)
    except SegmentNotFoundError:
        return "the chunk is missing"
    except OSError as error:
        return f"cannot be read: {error}"
    if len(data) != size:
        return f"the chunk ends at {item.start + len(data)}"
    return "ok" if crc32c(data) == item.crc32c else "checksum FAILS"
