"""Everything that a store holds for its users, read in full through the doors that users have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from crc32c import crc32c

from penstock.app.embedded import Runtime
from penstock.client.store import AsyncStore
from penstock.codec.store.chunk_index import IndexRecord, decode_records, index_name
from penstock.model.errors import CorruptDataError, NotFoundError, SegmentNotFoundError
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.data.service import SegmentService
from tests.crash.model import State, Subject


def holding(root: Path, wanted: Sequence[bytes]) -> list[str]:
    """The files below ``root`` that hold any of these bytes."""
    found: list[str] = []
    for path in sorted(item for item in root.rglob("*") if item.is_file()):
        # Files come and go meanwhile.
        with suppress(FileNotFoundError):
            data = path.read_bytes()
            found += [f"{path.relative_to(root)} {item[:60]!r}" for item in wanted if item in data]
    return found


async def observe(store: Runtime, subjects: Mapping[str, Subject]) -> dict[str, State]:
    """The state of every subject, by all names that it ever began. Raises what reading raises."""
    return {
        actor: {name: found for name, kinds in subject.names.items() if (found := await _look(store, name, kinds))}
        for actor, subject in subjects.items()
    }


async def _look(store: Runtime, name: str, kinds: set[str]) -> tuple[Any, ...] | None:
    if "stream" in kinds:
        return await _stream(store, name)
    if "table" in kinds:
        return await _table(store.segments, name)
    return await _segment(store.segments, name, kinds)


async def _segment(segments: SegmentService, name: str, writers: set[str]) -> tuple[Any, ...] | None:
    try:
        info = await segments.info(name)
    except SegmentNotFoundError:
        return None
    data = bytearray()
    while info.start_offset + len(data) < info.length:
        found = await segments.read(name, info.start_offset + len(data), 1 << 20, wait=False)
        if not found.parts:
            break
        data += b"".join(found.parts)
    await _check_files(segments, name, info.start_offset, bytes(data))
    numbers = []
    for writer in sorted(writers):
        number = await segments.setup_append(name, UUID(writer))
        if number != NO_EVENT:
            numbers.append((writer, number))
    return ("segment", info.start_offset, info.length, info.sealed, bytes(data), tuple(numbers))


def _sound_records(index: bytes) -> Iterator[IndexRecord]:
    """The records up to the first that is torn: what lies behind the last synced one may be, and vouches for nothing."""
    try:
        yield from decode_records(index)
    except CorruptDataError:
        return


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


async def _check_files(segments: SegmentService, name: str, start: int, data: bytes) -> None:
    """Find every block by the sidecar of its chunk, as anyone with only the files can. Raises CorruptDataError."""
    for item in await segments.chunk_ranges(name, start, start + len(data)):
        if item.location is None:
            continue
        stored, index = _read(item.location), _read(index_name(item.location))
        covered = item.start_offset
        for record in _sound_records(index):
            begin, end = item.start_offset + record.start, item.start_offset + record.end
            block = stored[record.start : record.end]
            if end > item.end_offset:
                break  # Written, and not named by anything: it may be torn, and is written again.
            whole = begin >= start and end <= start + len(data)
            if whole and (crc32c(block) != record.crc32c or block != data[begin - start : end - start]):
                raise CorruptDataError("block of a chunk is not what was written", chunk=item.name, offset=begin)
            covered = end
        if covered < item.end_offset:
            raise CorruptDataError("sidecar does not vouch for all of its chunk", chunk=item.name, offset=covered)


async def _table(segments: SegmentService, name: str) -> tuple[Any, ...] | None:
    entries: list[tuple[str, str]] = []
    after: bytes | None = None
    try:
        while found := await segments.table_scan(name, after=after, limit=50):
            entries += [(item.key.decode(), item.value.decode()) for item in found]
            after = found[-1].key
    except SegmentNotFoundError:
        return None
    return ("table", tuple(sorted(entries)))


async def _stream(store: Runtime, name: str) -> tuple[Any, ...] | None:
    reachable = AsyncStore(store.segments, store.controller, store.clock, store.rng)
    events: dict[str, list[str]] = {}
    try:
        async with reachable.stream(name).reader(until_tail=True) as reader:
            while (block := await reader.next_block()) is not None:
                for event in block:
                    key, _, tag = event.data.decode().partition("|")
                    events.setdefault(key, []).append(tag)
    except NotFoundError:
        return None
    return ("stream", tuple(sorted((key, tuple(tags)) for key, tags in events.items())))


def plain(state: State) -> State:
    """As the model writes it."""
    return dict(state)
