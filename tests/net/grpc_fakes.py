"""Services in memory for the tests of the gRPC port: small, but they keep the promises of the ports that are tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from uuid import UUID

from grpc_fake_retention import MemoryRetention

from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    ConditionFailedError,
    GenerationMismatchError,
    InvalidArgumentError,
    InvalidCutError,
    NotEmptyError,
    PenstockError,
    ReaderGroupNotFoundError,
    ScaleConflictError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    SubscriberNotFoundError,
    TimeGoesBackError,
    TransactionNotFoundError,
    TransactionStateError,
)
from penstock.model.names import StreamName, check_name
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.model.queries import QuerySource
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, even_ranges, make_segment_id, number_of
from penstock.ports.control.cuts import SegmentSpan
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import Endpoint, EpochInfo, ScaleResult, ScaleStatus, Successor
from penstock.ports.control.scopes import PAGE_MAX
from penstock.ports.control.streams import StreamDescription
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.control.transactions import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    EventBlock,
    NotedTime,
    PingStatus,
    Transaction,
    TransactionStatus,
)
from penstock.ports.control.watermarks import TimeWindow
from penstock.ports.data.chunks import ChunkBlock, ChunkRange, Lease, Leased
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT, TableEntry, TableKind, TablePut, TableRemoval
from tests.flat_control import SUBJECTS

STORE = Endpoint(host="127.0.0.1", port=12345)


@dataclass
class Stream:
    config: StreamConfig
    epochs: list[list[SegmentRange]]
    head: dict[SegmentId, int]
    sealed: bool = False
    transactions: dict[UUID, TransactionStatus] = field(default_factory=dict)
    filled: dict[UUID, Sequence[EventBlock]] = field(default_factory=dict)
    joined: dict[UUID, UUID] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    cuts: dict[str, StreamCut | None] = field(default_factory=dict)

    @property
    def active(self) -> list[SegmentRange]:
        return self.epochs[-1]

    def ranges(self) -> dict[SegmentId, KeyRange]:
        return {item.segment: item.keys for epoch in self.epochs for item in epoch}


class MemoryController(MemoryRetention):
    """Streams without data. Every segment ends at offset 100."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, dict[str, Stream]] = {}
        self.noted: dict[str, int] = {}
        self.made_groups: dict[tuple[str, str], ReaderGroupConfig] = {}

    def _scope(self, scope: str) -> dict[str, Stream]:
        if scope not in self.made:
            raise ScopeNotFoundError("no such scope", scope=scope)
        return self.made[scope]

    def _stream(self, stream: StreamName) -> Stream:
        found = self._scope(stream.scope).get(stream.stream)
        if found is None:
            raise StreamNotFoundError("no such stream", stream=str(stream))
        return found

    def _open(self, stream: StreamName) -> Stream:
        found = self._stream(stream)
        if found.sealed:
            raise StreamSealedError("stream is sealed", stream=str(stream))
        return found

    async def scopes_create(self, scope: str) -> None:
        check_name("scope", scope)
        if scope in self.made:
            raise AlreadyExistsError("scope exists", scope=scope)
        self.made[scope] = {}

    async def scopes_delete(self, scope: str) -> None:
        if self._scope(scope):
            raise NotEmptyError("scope is not empty", scope=scope)
        del self.made[scope]

    async def scopes_exists(self, scope: str) -> bool:
        return scope in self.made

    async def scopes_list(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        return tuple(name for name in sorted(self.made) if name > after)[:limit]

    async def streams_create(self, stream: StreamName, config: StreamConfig) -> None:
        stream.checked()
        if stream.stream in self._scope(stream.scope):
            raise AlreadyExistsError("stream exists", stream=str(stream))
        ranges = [
            SegmentRange(segment=make_segment_id(0, number), keys=keys)
            for number, keys in enumerate(even_ranges(config.scaling.min_segments))
        ]
        head = {item.segment: 0 for item in ranges}
        self.made[stream.scope][stream.stream] = Stream(config=config, epochs=[ranges], head=head)

    async def cuts_note_time(
        self, stream: StreamName, writer: str, time_ms: int, *, position: StreamCut | None = None
    ) -> None:
        if not writer:
            raise InvalidArgumentError("a writer needs a name", stream=str(stream))
        self._stream(stream)
        if time_ms < self.noted.get(writer, time_ms):
            raise TimeGoesBackError("writer has noted a later time", time_ms=time_ms)
        self.noted[writer] = time_ms

    async def cuts_remove_writer(self, stream: StreamName, writer: str) -> None:
        self._stream(stream)
        self.noted.pop(writer, None)

    async def cuts_time_window(self, position: StreamCut, *, place: int = 0) -> TimeWindow:
        self._stream(position.stream)
        times = sorted(self.noted.values())
        return TimeWindow(lower_ms=times[0] if times else None, upper_ms=None, place=place + 1)

    async def streams_update(
        self, stream: StreamName, config: StreamConfig, *, before: StreamConfig | None = None
    ) -> None:
        self._open(stream).config = config

    async def streams_exists(self, stream: StreamName) -> bool:
        return stream.stream in self.made.get(stream.scope, {})

    async def streams_config(self, stream: StreamName) -> StreamConfig:
        return self._stream(stream).config

    async def streams_list(
        self, scope: str, *, tag: str | None = None, after: str = "", limit: int = PAGE_MAX
    ) -> Sequence[str]:
        streams = self._scope(scope)
        names = [name for name in sorted(streams) if tag is None or tag in streams[name].config.tags]
        return tuple(name for name in names if name > after)[:limit]

    async def streams_seal(self, stream: StreamName) -> None:
        self._stream(stream).sealed = True

    async def streams_delete(self, stream: StreamName, *, seal: bool = False) -> None:
        if not self._stream(stream).sealed and not seal:
            raise StreamNotSealedError("stream is not sealed", stream=str(stream))
        del self.made[stream.scope][stream.stream]

    async def streams_truncate(self, stream: StreamName, cut: StreamCut) -> None:
        found = self._open(stream)
        if set(cut.positions) - set(found.ranges()):
            raise InvalidCutError("cut names segments that the stream lacks", cut=str(dict(cut.positions)))
        found.head = dict(cut.positions)

    async def streams_describe(self, stream: StreamName) -> StreamDescription:
        found = self._stream(stream)
        return StreamDescription(
            stream=stream,
            config=found.config,
            epoch=len(found.epochs) - 1,
            sealed=found.sealed,
            segments=tuple(found.active),
            head=StreamCut(stream, found.head),
            tail=await self.cuts_tail(stream),
            size_bytes=100,
            written_bytes=200,
            subscribers=tuple(
                SubscriberInfo(name=name, generation=1, cut=cut, updated_ms=5, lag_bytes=6)
                for name, cut in sorted(found.cuts.items())
            ),
            held_by="subscriber s/g",
            disk_bytes=1,
            pending_free_bytes=2,
            freed_bytes=3,
        )

    async def layout_current(self, stream: StreamName) -> Sequence[SegmentRange]:
        found = self._stream(stream)
        return () if found.sealed else tuple(found.active)

    async def layout_of_epoch(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        epochs = self._stream(stream).epochs
        if not 0 <= epoch < len(epochs):
            raise InvalidArgumentError("no such epoch", epoch=epoch)
        return tuple(epochs[epoch])

    async def cuts_head(self, stream: StreamName) -> StreamCut:
        return StreamCut(stream, self._stream(stream).head)

    async def cuts_tail(self, stream: StreamName) -> StreamCut:
        return StreamCut(stream, {item.segment: 100 for item in self._stream(stream).active})

    async def layout_epochs(self, stream: StreamName) -> Sequence[EpochInfo]:
        return tuple(
            EpochInfo(epoch=number, created_ms=number, segments=tuple(segments))
            for number, segments in enumerate(self._stream(stream).epochs)
        )

    async def layout_successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        epochs = self._stream(stream).epochs
        for before, after in zip(epochs, epochs[1:], strict=False):
            old = {item.segment: item.keys for item in before}
            if segment in old and segment not in {item.segment for item in after}:
                return tuple(
                    Successor(
                        range=item,
                        predecessors=tuple(name for name, keys in old.items() if keys.overlaps(item.keys)),
                    )
                    for item in after
                    if item.keys.overlaps(old[segment])
                )
        return ()

    async def cuts_before(self, stream: StreamName, cut: StreamCut, events: int) -> StreamCut:
        self._stream(stream)
        if events < 0:
            raise InvalidArgumentError("the number of events is below 0", events=events)
        return StreamCut(stream, {segment: max(0, offset - events) for segment, offset in cut.positions.items()})

    async def cuts_measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        self._stream(stream)
        if start.is_unbounded:
            raise InvalidCutError("measuring needs a cut to begin at", stream=str(stream))
        return (
            SegmentSpan(segment=make_segment_id(0, 0), start=max(start.positions.values()), end=1 << 40, events=0),
            SegmentSpan(segment=make_segment_id(1, 3), start=0, end=len(end.positions), events=None),
        )

    async def cuts_segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        if not start.is_unbounded and not end.is_unbounded and max(start.positions) > max(end.positions):
            raise InvalidCutError("cuts are the wrong way round")
        return tuple(sorted(self._stream(stream).ranges()))

    async def layout_ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        ranges = self._stream(stream).ranges()
        for item in segments:
            if item not in ranges:
                raise SegmentNotFoundError("the stream never had this segment", segment=item)
        return {item: ranges[item] for item in segments}

    async def layout_is_active(self, stream: StreamName, segment: SegmentId) -> bool:
        return segment in {item.segment for item in self._stream(stream).active}

    async def cuts_is_valid(self, stream: StreamName, cut: StreamCut) -> bool:
        unknown = set(cut.positions) - set(self._stream(stream).ranges())
        if unknown:
            raise SegmentNotFoundError("no such segment", segment=min(unknown))
        return True

    async def layout_scale(
        self, stream: StreamName, *, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        found = self._open(stream)
        if set(sealed) - {item.segment for item in found.active}:
            raise ScaleConflictError("segments are not active", segments=list(sealed))
        epoch = len(found.epochs)
        first = max(number_of(item) for item in found.ranges()) + 1
        added = [
            SegmentRange(segment=make_segment_id(epoch, first + index), keys=keys)
            for index, keys in enumerate(new_ranges)
        ]
        kept = [item for item in found.active if item.segment not in sealed]
        found.epochs.append(sorted(kept + added, key=lambda item: item.keys.low))
        return ScaleResult(segments=tuple(added), epoch_before=epoch - 1)

    async def layout_scale_status(self, stream: StreamName, epoch: int) -> ScaleStatus:
        active = len(self._stream(stream).epochs) - 1
        if epoch > active:
            return ScaleStatus.UNKNOWN_EPOCH
        return ScaleStatus.IN_PROGRESS if epoch == active else ScaleStatus.DONE

    async def layout_endpoint(self, segment: str) -> Endpoint:
        return STORE

    async def transactions_create(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        found = self._open(stream)
        if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
            raise InvalidArgumentError("lease is out of bounds", lease_ms=lease_ms)
        txn = UUID(int=(0x8000_0000_0000_0001 << 64) + len(found.transactions) + 1)
        found.transactions[txn] = TransactionStatus.OPEN
        return Transaction(id=txn, segments=tuple(found.active))

    async def transactions_join(self, stream: StreamName, key: UUID, *, lease_ms: int) -> Transaction:
        found = self._open(stream)
        joined = found.joined.get(key)
        if joined is not None and found.transactions[joined] is not TransactionStatus.OPEN:
            raise TransactionStateError("shared transaction has ended", txn=joined)
        if joined is None:
            joined = found.joined[key] = (await self.transactions_create(stream, lease_ms=lease_ms)).id
        return Transaction(id=joined, segments=tuple(found.active))

    async def transactions_ping(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus:
        status = self._stream(stream).transactions.get(txn, TransactionStatus.UNKNOWN)
        if lease_ms > LEASE_MAX_MS:
            return PingStatus.LEASE_TOO_LARGE
        return {
            TransactionStatus.OPEN: PingStatus.OK,
            TransactionStatus.COMMITTED: PingStatus.COMMITTED,
            TransactionStatus.ABORTED: PingStatus.ABORTED,
        }.get(status, PingStatus.UNKNOWN)

    def _finish(self, stream: StreamName, txn: UUID, wanted: TransactionStatus) -> None:
        transactions = self._stream(stream).transactions
        if txn not in transactions:
            raise TransactionNotFoundError("no such transaction", txn=txn)
        if transactions[txn] not in (TransactionStatus.OPEN, wanted):
            raise TransactionStateError("transaction is decided", txn=txn, state=transactions[txn].value)
        transactions[txn] = wanted

    async def transactions_commit(
        self, stream: StreamName, txn: UUID, *, blocks: Sequence[EventBlock] = (), noted: NotedTime | None = None
    ) -> TransactionStatus:
        if noted is not None:
            await self.cuts_note_time(stream, noted.writer, noted.time_ms)
        if blocks:
            self._stream(stream).filled[txn] = tuple(blocks)
        again = self._stream(stream).transactions.get(txn) is TransactionStatus.COMMITTED
        self._finish(stream, txn, TransactionStatus.COMMITTED)
        # The first answer comes before the merge, a repeated one behind it.
        return TransactionStatus.COMMITTED if again else TransactionStatus.COMMITTING

    async def transactions_abort(self, stream: StreamName, txn: UUID) -> None:
        self._finish(stream, txn, TransactionStatus.ABORTED)

    async def transactions_status(self, stream: StreamName, txn: UUID) -> TransactionStatus:
        return self._stream(stream).transactions.get(txn, TransactionStatus.UNKNOWN)

    async def transactions_list_completed(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        items = self._stream(stream).transactions.items()
        return tuple((txn, status) for txn, status in items if status is not TransactionStatus.OPEN)

    async def batches_commit(
        self,
        stream: StreamName,
        *,
        writer: str,
        batch: int,
        transactions: Sequence[UUID],
        source: QuerySource | None = None,
        one_job: bool = False,
    ) -> bool:
        found = self._stream(stream)
        fresh = batch > found.batches.get(writer, -1)
        for txn in transactions:
            self._finish(stream, txn, TransactionStatus.COMMITTED if fresh else TransactionStatus.ABORTED)
        if fresh:
            found.batches[writer] = batch
        return fresh

    async def batches_last(self, stream: StreamName, *, writer: str, source: QuerySource | None = None) -> int | None:
        return self._stream(stream).batches.get(writer)

    async def groups_create(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        self._scope(config.scope)
        check_name("stream", config.name)
        stored = self.made_groups.setdefault((config.scope, config.name), config)
        if stored.retention is not ReaderGroupRetention.NONE:
            for stream in stored.start_cuts:
                self._stream(stream).cuts.setdefault(stored.full_name, None)
        return stored

    async def groups_update(self, config: ReaderGroupConfig) -> int:
        stored = await self.groups_get(config.scope, config.name)
        if (stored.id, stored.generation) != (config.id, config.generation):
            raise GenerationMismatchError("reader group has changed", generation=stored.generation)
        changed = replace(config, generation=config.generation + 1)
        self.made_groups[config.scope, config.name] = changed
        return changed.generation

    async def groups_get(self, scope: str, name: str) -> ReaderGroupConfig:
        if (scope, name) not in self.made_groups:
            raise ReaderGroupNotFoundError("no such reader group", group=f"{scope}/{name}")
        return self.made_groups[scope, name]

    async def groups_delete(self, scope: str, name: str, *, group_id: UUID | None = None) -> None:
        stored = await self.groups_get(scope, name)
        if group_id not in (None, stored.id):
            raise ReaderGroupNotFoundError("the reader group was created anew", group=f"{scope}/{name}")
        del self.made_groups[scope, name]

    async def groups_list(self, scope: str) -> Sequence[str]:
        self._scope(scope)
        return tuple(sorted(name for owner, name in self.made_groups if owner == scope))

    async def subscribers_list(self, stream: StreamName) -> Sequence[str]:
        return tuple(sorted(self._stream(stream).cuts))

    async def subscribers_publish(
        self,
        subscriber: str,
        *,
        group_id: UUID | None,
        generation: int | None,
        cut: StreamCut,
        source: QuerySource | None = None,
    ) -> None:
        cuts = self._stream(cut.stream).cuts
        if subscriber not in cuts:
            raise SubscriberNotFoundError("not a subscriber", subscriber=subscriber)
        group = self.made_groups[(subscriber.partition("/")[0], subscriber.partition("/")[2])]
        if group_id not in (None, group.id):
            raise SubscriberNotFoundError("not a subscriber", subscriber=subscriber)
        if generation not in (None, group.generation):
            raise GenerationMismatchError("reader group has changed", generation=group.generation)
        if set(cut.positions) - set(self._stream(cut.stream).ranges()):
            raise InvalidCutError("not a cut of the stream")
        cuts[subscriber] = cut


class Refusing:
    """Stands for any service: every call raises ``error``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return self

        async def refuse(*_args: object, **_kwargs: object) -> NoReturn:
            self.asked += 1
            raise self.error

        return refuse


class MemorySegments:
    """Tables, leases and one chunk."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, TableEntry]] = {}
        self.kinds: dict[str, tuple[TableKind, int]] = {}
        self.leases: dict[UUID, tuple[str, int, str]] = {}
        self.adopted: list[tuple[str, int, tuple[ImportedChunk, ...]]] = []
        self.version = 0

    def _table(self, name: str) -> dict[bytes, TableEntry]:
        if name not in self.tables:
            raise SegmentNotFoundError("no such segment", segment=name)
        return self.tables[name]

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        if name in self.tables:
            raise AlreadyExistsError("segment exists", segment=name)
        self.tables[name] = {}
        self.kinds[name] = (kind, key_bytes)

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        return (
            SegmentInfo(name=name, start_offset=0, length=0, sealed=False, last_modified_ms=0),
            len(self._table(name)),
            0,
        )

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        self._table(name)
        del self.tables[name]

    async def table_update(self, name: str, puts: Sequence[TablePut]) -> Sequence[int]:
        table = self._table(name)
        for put in puts:
            actual = table[put.key].version if put.key in table else KEY_ABSENT
            if put.version not in (ANY_VERSION, actual):
                raise BadKeyVersionError("another version", actual=actual)
        for put in puts:
            self.version += 1
            table[put.key] = TableEntry(key=put.key, value=put.value, version=self.version)
        return [table[put.key].version for put in puts]

    async def table_remove(self, name: str, removals: Sequence[TableRemoval]) -> None:
        table = self._table(name)
        for removal in removals:
            table.pop(removal.key, None)

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        table = self._table(name)
        return [table.get(key) or TableEntry(key=key, value=b"", version=KEY_ABSENT) for key in keys]

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        found = []
        for key, entry in sorted(self._table(name).items()):
            if (after is None or key > after) and (first is None or key >= first) and (last is None or key <= last):
                found.append(entry)
        return found[:limit]

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        if name == "none":
            raise SegmentNotFoundError("no such segment", segment=name)
        blocks = (
            ChunkBlock(start_offset=100, end_offset=150, crc32c=0xFFFFFFFF, event_count=3),
            ChunkBlock(
                start_offset=150, end_offset=1 << 40, crc32c=7, event_count=1, first_ms=1 << 41, last_ms=1 << 42
            ),
            ChunkBlock(
                start_offset=(1 << 40) + 5, end_offset=(1 << 40) + 6, crc32c=0, event_count=0, first_ms=5, last_ms=5
            ),
        )
        return (
            ChunkRange(name="0/a-1-0", location="/data/a", start_offset=90, end_offset=(1 << 40) + 6, blocks=blocks),
            ChunkRange(name="0/b-1-0", location=None, start_offset=(1 << 40) + 6, end_offset=1 << 41, blocks=()),
        )

    async def lease_chunks(self, names: Sequence[str], lease: UUID, *, until_ms: int, holder: str = "") -> Leased:
        self.leases[lease] = (tuple(names), until_ms, holder)
        return Leased(granted=names[:1], refused=names[1:])

    async def release_lease(self, lease: UUID) -> None:
        self.leases.pop(lease, None)

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        if part == parts - 1:
            self.leases.pop(lease, None)

    async def grant_import(self, name: str) -> ImportGrant:
        return ImportGrant(
            segment=name,
            prefix="0/i1-2-3-",
            location=None if name == "unseen" else "/data/chunks/0/i0-2-ff-0",
            marker="0/i0-2-ff-0",
            appends=name != "object",
            chunk_bytes=1 << 24,
            block_bytes=1 << 40,
        )

    async def adopt_chunks(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        if name == "none":
            raise SegmentNotFoundError("no such segment", segment=name)
        if offset == 7:
            raise ConditionFailedError("segment has another length", expected=7, actual=8)
        self.adopted.append((name, offset, tuple(chunks)))
        return offset + sum(chunk.size_bytes for chunk in chunks)

    async def count_events(self, name: str, start: int, end: int) -> int:
        if name == "none":
            raise SegmentNotFoundError("no such segment", segment=name)
        if start > end:
            raise InvalidArgumentError("range is not ordered", start=start, end=end)
        return (end - start) // 10

    async def disk(self) -> DiskSpace:
        return DiskSpace(total_bytes=1 << 40, free_bytes=1 << 39, used_bytes=7)

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        known = {
            "a": SegmentInfo(name="a", start_offset=1, length=1 << 40, sealed=True, last_modified_ms=7, event_count=3),
            "b": SegmentInfo(name="b", start_offset=5, length=5, sealed=False, last_modified_ms=0, kept_offset=0),
        }
        return {name: known[name] for name in names if name in known}

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        return {
            name: SegmentSpace(
                name=name,
                live_bytes=1,
                tiered_bytes=2,
                pending_free_bytes=3,
                freed_bytes=4,
                leased_bytes=2,
                leased_until_ms=9,
                leases=(Lease(id=UUID(int=7), until_ms=9, holder="job"), Lease(id=UUID(int=8), until_ms=8)),
            )
            for name in names
            if name != "none"
        }


def raised(error: BaseException) -> tuple[type[BaseException], str, dict[str, Any]]:
    """What makes two typed errors the same."""
    if not isinstance(error, PenstockError):
        return type(error), str(error), {}
    return type(error), error.message, error.fields
