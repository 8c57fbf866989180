"""Make the streams and segments of a rebuilt store consistent.

The catalogues of the containers end at different times, so the controller can have a segment that its container lacks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import open_tier
from penstock.codec.control.streams import HIDDEN, EpochEntry, HeadRecord, LengthsRecord, StreamRecord, StreamState
from penstock.codec.control.truncations import DeletedRecord, DeletedState
from penstock.controller import keys, retention_keys
from penstock.core.segments.placement import container_of
from penstock.core.streams.after_rebuild import head_after_rebuild, readable_segments, unreachable_bytes
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.errors import CorruptDataError, InvalidNameError, NotFoundError, VersionTooNewError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId, positions_text
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.tables import TableEntry, TablePut
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

Table: TypeAlias = Mapping[bytes, TableEntry]
"""The controller's table by key."""

_STREAM = b"stream/"
_UNREADABLE = (CorruptDataError, VersionTooNewError, InvalidNameError, ValueError, IndexError)
"""Why a record of the controller's table cannot be read."""
_PAGE = 1000  # rows of one scan, which bounds the memory of a page
_LOG_FILE_BYTES = 1 << 20
"""Only a few creations and seals are written; the store makes larger files when it opens."""


@dataclass(slots=True, kw_only=True)
class Reconciled:
    """``streams``: bytes and events of each stream, the bytes that its sealed segments lack, and up to when it is complete.
    ``made``: a sentence for each segment that was created or sealed.
    ``unreachable``: by stream, stored segments that the controller's table does not name.
    ``unreadable``: a sentence for each record of that table that cannot be read, and for each segment. What they describe
    stays as it is."""

    streams: list[dict[str, Any]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    unreachable: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


class StoredSegments(Protocol):
    """What a reconciliation needs of ``ports.data.service.LocalSegmentService``."""

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None: ...
    async def info(self, name: str) -> SegmentInfo: ...
    async def seal(self, name: str) -> int: ...
    async def count_events(self, name: str, start: int, end: int) -> int: ...
    async def table_scan(self, name: str, *, after: bytes | None, limit: int) -> Sequence[TableEntry]: ...
    async def table_update(self, name: str, puts: Sequence[TablePut]) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A rebuilt data directory, which the caller holds, and its containers among all ``containers`` of the store."""

    settings: EmbeddedSettings
    containers: int
    owned: Sequence[int]


class _Parts:
    """The segments of all parts. Implements ``StoredSegments``."""

    def __init__(self, stores: Mapping[int, SegmentStore], containers: int) -> None:
        self._stores = stores
        self._containers = containers

    def _of(self, name: str) -> SegmentStore:
        return self._stores[container_of(name, self._containers)]

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        await self._of(name).create_segment(name, rollover_bytes=rollover_bytes)

    async def info(self, name: str) -> SegmentInfo:
        return await self._of(name).info(name)

    async def seal(self, name: str) -> int:
        return await self._of(name).seal(name)

    async def count_events(self, name: str, start: int, end: int) -> int:
        return await self._of(name).count_events(name, start, end)

    async def table_scan(self, name: str, *, after: bytes | None, limit: int) -> Sequence[TableEntry]:
        return await self._of(name).table_scan(name, after=after, limit=limit)

    async def table_update(self, name: str, puts: Sequence[TablePut]) -> Sequence[int]:
        return await self._of(name).table_update(name, puts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What is known from the catalogues. ``held``: readable bytes of each segment of events. ``as_of_ms``: when the newest
    batch of each container was made, wall clock; None: not known."""

    held: Mapping[str, int]
    as_of_ms: Mapping[int, int | None]

    def oldest_ms(self, segments: Iterable[str]) -> int | None:
        """Up to when all these segments are complete, and the controller's table; None: not known."""
        total = len(self.as_of_ms)
        times = [self.as_of_ms.get(container_of(name, total)) for name in (keys.TABLE, *segments)]
        known = [at for at in times if at is not None]
        return min(known) if len(known) == len(times) else None


async def reconcile(parts: Sequence[Part], *, offload: ThreadOffload, clock: Clock, recovered: Recovered) -> Reconciled:
    """Open the segments of all parts without a controller, create the missing ones, and close normally, which empties the
    logs."""
    found = Reconciled()
    async with AsyncExitStack() as stack:
        stores: dict[int, SegmentStore] = {}
        for part in parts:
            store = await stack.enter_async_context(_open_part(part, offload=offload, clock=clock))
            stores |= dict.fromkeys(part.owned, store)
        if await reconcile_segments(_Parts(stores, parts[0].containers), found, recovered=recovered):
            for store in dict.fromkeys(stores.values()):
                await store.flush()
    return found


@asynccontextmanager
async def _open_part(part: Part, *, offload: ThreadOffload, clock: Clock) -> AsyncIterator[SegmentStore]:
    rng, files = RealRng(), RealFiles(part.settings.data, offload)
    async with AsyncExitStack() as stack:
        keyvalue = await SqliteKeyValue.open(part.settings.data / "metadata" / "store.db", offload)
        stack.push_async_callback(keyvalue.close)
        tier = await stack.enter_async_context(open_tier(part.settings, files, offload=offload, rng=rng))
        log = await stack.enter_async_context(
            open_local_log(
                files,
                directory="wal",
                segment_bytes=_LOG_FILE_BYTES,
                budget_bytes=16 * _LOG_FILE_BYTES,
                max_frame_bytes=_LOG_FILE_BYTES // 2,
                queue_bytes=_LOG_FILE_BYTES,
                rng=rng,
            )
        )
        yield await stack.enter_async_context(
            open_segment_store(
                log,
                StoreParts(
                    keyvalue=keyvalue,
                    chunks=tier.chunks,
                    clock=clock,
                    rng=rng,
                    offload=offload,
                    telemetry=Counters(),
                    settings=StoreSettings(containers=part.containers),
                    catalogue=tier.objects,
                ),
                owned=part.owned,
            )
        )


async def reconcile_segments(
    segments: StoredSegments, found: Reconciled, *, recovered: Recovered | None = None
) -> bool:
    """Create the segments that streams need and that are missing, and seal those that streams have left. Nobody else changes
    them. Adds to ``found``. ``recovered``: None: it is not known, and ``found.unreachable`` stays empty.
    False: the controller's metadata is not there. Raises what the segments raise."""
    table = await controller_table(segments)
    if recovered is not None:
        _find_unreachable(recovered.held, table or {}, found)
    if table is None:
        found.made.append("the controller's metadata is not there: segments are kept, but no stream is known")
        return False
    for key in table:
        if key.startswith((_STREAM, retention_keys.DELETED)):
            try:
                if not key.startswith(_STREAM):
                    await _reconcile_deleted(segments, key, table, found)
                    continue
                about = await _reconcile_stream(segments, key, table, found)
            except _UNREADABLE as error:
                # One record that cannot be read must not keep a store from starting. The controller skips it, too.
                found.unreadable.append(
                    f"{_text(key)} of the controller's metadata: its segments stay as they are: {error}"
                )
                continue
            if about is not None:
                name = StreamName.parse(about["stream"])
                names = [segment_name(name, segment) for segment in about.pop("named")]
                as_of_ms = None if recovered is None else recovered.oldest_ms(names)
                found.streams.append({**about, "as_of_ms": as_of_ms})
    return True


def _text(key: bytes) -> str:
    return key[:200].decode(errors="backslashreplace")


def _find_unreachable(held: Mapping[str, int], table: Table, found: Reconciled) -> None:
    epochs: dict[str, int] = {}
    deleted: dict[str, None] = {}
    transactions: dict[str, None] = {}
    for key, entry in table.items():
        kind, _, rest = _text(key).partition("/")
        match kind:
            case "stream":
                try:
                    record = StreamRecord.decode(entry.value)
                except _UNREADABLE:
                    continue  # It is reported when the stream is compared.
                # The next epoch of a workflow that has begun: it is finished at the first start.
                epochs[rest] = record.epoch + (record.state in HIDDEN or record.work is not None)
            case "deleted":
                deleted[rest.rpartition("/")[0]] = None
            case "txn" | "txn-kept":
                transactions[rest.rpartition("/")[2]] = None
            case _:
                pass
    unreachable = unreachable_bytes(held, epochs=epochs, deleted=deleted, transactions=transactions)
    for stream, by_segment in unreachable.items():
        found.unreachable.append({"stream": stream, "segments": sorted(by_segment), "bytes": sum(by_segment.values())})


async def controller_table(segments: StoredSegments) -> Table | None:
    """The controller's table; None: it is not there. The value of a damaged entry raises CorruptDataError."""
    table: dict[bytes, TableEntry] = {}
    after: bytes | None = None
    while True:
        try:
            page = await segments.table_scan(keys.TABLE, after=after, limit=_PAGE)
        except NotFoundError:
            return None
        table.update((entry.key, entry) for entry in page)
        if len(page) < _PAGE:
            return table
        after = page[-1].key


async def _reconcile_stream(
    segments: StoredSegments,
    key: bytes,
    table: Table,
    found: Reconciled,
) -> dict[str, Any] | None:
    """What the report has on the stream, and ``named``: its segments. Raises as ``_UNREADABLE``."""
    name, record = StreamName.parse(key[len(_STREAM) :].decode()), StreamRecord.decode(table[key].value)
    if record.state in HIDDEN:
        return None  # The controller continues with it when it starts.
    entries = [EpochEntry.decode(entry.value) for key, entry in table.items() if key.startswith(keys.epochs(name))]
    visible = [entry for entry in entries if entry.epoch <= record.epoch]
    if not visible:
        return None  # The controller reports a stream without its history.
    active = [item.segment for entry in visible if entry.epoch == record.epoch for item in entry.segments]
    head = _value(table, keys.head(name))
    cut = {} if head is None else HeadRecord.decode(head).visible
    needed = readable_segments([entry.segments for entry in visible], cut)
    sealed = _sealed_lengths(name, table)
    starts: dict[SegmentId, int] = {}
    ends: dict[SegmentId, int] = {}
    count = size = events = missing = 0
    named = sorted({item.segment: None for entry in visible for item in entry.segments})
    for segment in named:
        text = segment_name(name, segment)
        try:
            info = await segments.info(text)
        except NotFoundError:
            if segment in needed:
                missing += max(0, sealed.get(segment, 0) - cut.get(segment, 0))
                await _make_anew(segments, text, record, is_active=segment in active)
                found.made.append(f"segment {text} is not in the catalogue: made anew, empty")
                starts[segment], ends[segment] = 0, 0
            continue
        except CorruptDataError as error:
            found.unreadable.append(f"segment {text}: {error}")
            continue
        if not info.sealed and (segment not in active or record.state is StreamState.SEALED):
            await segments.seal(text)
            found.made.append(f"segment {text} was not sealed yet: sealed, as its stream says")
        # A sealed segment that is shorter leaves a gap before its successors.
        missing += max(0, sealed.get(segment, 0) - info.length)
        starts[segment], ends[segment] = info.start_offset, info.length
        count += 1
        size += info.length - info.start_offset
        if info.length > info.start_offset:
            events += await _count(segments, text, info.start_offset, info.length)
    await _shorten(segments, keys.lengths(name), table, ends)
    await _fit_head(segments, name, visible, head, starts, ends, found)
    return {
        "stream": str(name),
        "segments": count,
        "bytes": size,
        "events": events,
        "missing_bytes": missing,
        "named": named,
    }


async def _reconcile_deleted(segments: StoredSegments, key: bytes, table: Table, found: Reconciled) -> None:
    """Make a deleted stream restorable as long as its grace lasts. ``key``: of its ``DeletedRecord``. Raises as
    ``_UNREADABLE``."""
    name, incarnation = retention_keys.deleted_stream(key)
    place = partial(retention_keys.deleted_row, name, incarnation)
    own, head = _value(table, place(keys.stream(name))), _value(table, place(keys.head(name)))
    if own is None or DeletedRecord.decode(table[key].value).state is DeletedState.ENDING:
        return
    record, cut = StreamRecord.decode(own), {} if head is None else HeadRecord.decode(head).visible
    rows = place(keys.epochs(name))
    entries = [EpochEntry.decode(entry.value) for row, entry in table.items() if row.startswith(rows)]
    ends: dict[SegmentId, int] = {}
    for segment in sorted(readable_segments([entry.segments for entry in entries], cut)):
        text = segment_name(name, segment)
        try:
            ends[segment] = await segments.seal(text)
        except NotFoundError:
            await _make_anew(segments, text, record, is_active=False)
            found.made.append(f"segment {text} of a deleted stream is not in the catalogue: made anew, empty")
            ends[segment] = 0
        except CorruptDataError as error:
            found.unreadable.append(f"segment {text}: {error}")
    await _shorten(segments, place(keys.lengths(name)), table, ends)
    fitting = {segment: min(at, ends.get(segment, at)) for segment, at in cut.items()}
    if fitting != cut:
        await _move_head(segments, place(keys.head(name)), head, fitting)


async def _make_anew(segments: StoredSegments, name: str, record: StreamRecord, *, is_active: bool) -> None:
    await segments.create_segment(name, rollover_bytes=record.config.rollover_bytes)
    if not is_active:
        await segments.seal(name)


async def _fit_head(
    segments: StoredSegments,
    name: StreamName,
    visible: Sequence[EpochEntry],
    head: bytes | None,
    starts: Mapping[SegmentId, int],
    ends: Mapping[SegmentId, int],
    found: Reconciled,
) -> None:
    """Move the head to where reading can begin."""
    cut = {} if head is None else HeadRecord.decode(head).visible
    epochs = [EpochRecord(epoch=one.epoch, segments=one.segments) for one in visible]
    history = StreamHistory(epochs=sorted(epochs, key=lambda one: one.epoch))
    new_head = head_after_rebuild(history, cut, starts, ends)
    if new_head != cut:
        await _move_head(segments, keys.head(name), head, new_head)
        found.made.append(f"head of {name} was of another time than its segments: it is now {positions_text(new_head)}")


async def _move_head(
    segments: StoredSegments, key: bytes, head: bytes | None, positions: Mapping[SegmentId, int]
) -> None:
    record = HeadRecord() if head is None else HeadRecord.decode(head)
    if record.pending is None:
        record = replace(record, cut=positions)
    else:
        record = replace(record, pending=positions)
    await segments.table_update(keys.TABLE, [TablePut(key=key, value=record.encode())])


async def _shorten(segments: StoredSegments, prefix: bytes, table: Table, ends: Mapping[SegmentId, int]) -> None:
    """Correct the final lengths of segments that are shorter now: a reader would wait for their ends."""
    for key, entry in table.items():
        if not key.startswith(prefix):
            continue
        record = LengthsRecord.decode(entry.value)
        lengths = {segment: min(length, ends.get(segment, length)) for segment, length in record.lengths.items()}
        if lengths != record.lengths:
            # The events of the lost ranges are not known.
            shorter = LengthsRecord(lengths=lengths)
            await segments.table_update(keys.TABLE, [TablePut(key=key, value=shorter.encode())])


def _sealed_lengths(name: StreamName, table: Table) -> Mapping[SegmentId, int]:
    found: dict[SegmentId, int] = {}
    for key, entry in table.items():
        if key.startswith(keys.lengths(name)):
            found |= LengthsRecord.decode(entry.value).lengths
    return found


def _value(table: Table, key: bytes) -> bytes | None:
    entry = table.get(key)
    return None if entry is None else entry.value


async def _count(segments: StoredSegments, name: str, start: int, end: int) -> int:
    """Events of the range; 0 if damage makes them uncountable: the report lists the damage itself."""
    try:
        return await segments.count_events(name, start, end)
    except CorruptDataError:
        return 0
