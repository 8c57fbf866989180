"""Recovery: the state in the key-value store, plus the later changes in the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError, DamagedRowError, InternalError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.durable_log import DurableLog
from penstock.ports.keyvalue import KeyValueStore
from penstock.segmentstore.container import Container
from penstock.segmentstore.repair.chunk_gaps import missing_ranges
from penstock.segmentstore.repair.set_aside import SetAside
from penstock.segmentstore.segment import AttributeState, Segment
from penstock.segmentstore.state import ContainerState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Appends that the rows already include, whose bytes may be only in the log. ``shift``: how far a merge has moved
    them; then their writers are not those of the segment."""

    run: frames.AppendRun
    address: int
    time_ms: int
    shift: int | None = None

    @property
    def start(self) -> int:
        return self.run.offset + (self.shift or 0)

    @property
    def end(self) -> int:
        return self.run.end + (self.shift or 0)


async def recover(containers: Sequence[Container], total: int, *, log: DurableLog, keyvalue: KeyValueStore) -> None:
    """Rebuild the containers of a store from its metadata and log frames. ``total``: the number of its containers.

    Raises: CorruptDataError, VersionTooNewError, InvalidArgumentError (another number of containers than the store was
    created with).
    """
    is_new = await _check_total(total, keyvalue)
    first = 0
    recoveries = {container.index: Recovery(container) for container in containers}
    for recovery in recoveries.values():
        await recovery.begin()
    async for address, frame in log.replay():
        header = frames.decode_frame_header(frame)
        if header.container not in recoveries:
            raise CorruptDataError("log frame of an unknown container", container=header.container)
        if is_new and first == 0 and address > 1:
            # Earlier frames were truncated once the metadata held them. Without the metadata no chunk has a name.
            raise CorruptDataError("metadata is gone, and the log does not hold all of it", first_address=address)
        first = address
        await recoveries[header.container].replay(address, header, frame)
    for container in containers:
        _check_log_reaches(container.state, log)
    for recovery in recoveries.values():
        await recovery.finish()
    if is_new or await _lacks_store_row(keyvalue):
        row = records.encode_store(total)
        await keyvalue.commit([(records.STORE_KEY, row), (records.STORE_COPY_KEY, row)])


async def _row_or_copy(keyvalue: KeyValueStore, key: bytes, copy: bytes | None = None) -> bytes | None:
    """A row, or its copy if the row is damaged or missing; None if neither exists. Raises DamagedRowError: the row is damaged
    and there is no copy, or the row is missing and its copy is damaged."""
    damage: DamagedRowError | None = None
    try:
        (row,) = await keyvalue.get_many([key])
    except DamagedRowError as error:
        row, damage = None, error
    if row is None and copy is not None:
        row = await _row_or_copy(keyvalue, copy)
        if row is not None:
            why = "missing" if damage is None else "damaged"
            _log.error(f"row of the metadata is {why}, its copy is used", extra={"key": key.hex()})
    if row is None and damage is not None:
        raise damage
    return row


async def _lacks_store_row(keyvalue: KeyValueStore) -> bool:
    """Whether the store's row or its copy is missing."""
    for key in (records.STORE_KEY, records.STORE_COPY_KEY):
        try:
            (row,) = await keyvalue.get_many([key])
        except DamagedRowError:
            continue
        if row is None:
            return True
    return False


async def _check_total(total: int, keyvalue: KeyValueStore) -> bool:
    """Whether the metadata is empty, as in a new store."""
    row = await _row_or_copy(keyvalue, records.STORE_KEY, records.STORE_COPY_KEY)
    if row is None:
        return True
    if records.decode_store(row) != total:
        raise InvalidArgumentError(
            "the number of containers is fixed when a store is created; use created_with",
            containers=total,
            created_with=records.decode_store(row),
        )
    return False


def _check_log_reaches(state: ContainerState, log: DurableLog) -> None:
    # Continuing would delete chunks that only the lost frames name, and reuse addresses.
    if state.applied_address > log.last:
        raise CorruptDataError(
            "the end of the log is missing: the metadata names later frames",
            container=state.index,
            known_address=state.applied_address,
            log_last=log.last,
        )


class Recovery:
    """Rebuilds one container. Writes nothing, so recovery can be repeated.

    Frames up to the checkpoint's address provide only the bytes that the rows say are not tiered; later frames are
    applied as they were originally.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state
        self._steps = container.steps
        self._parts = container.parts
        self._complete_upto = 0
        self._pieces: dict[int, list[_Piece]] = {}
        self._settled = False
        self._aside = SetAside(container.state, container.parts.telemetry)

    async def begin(self) -> None:
        """Load the checkpoint. Raises CorruptDataError if the log does not belong to the rows."""
        state = self._state
        key, copy = records.prefix(records.TAG_CONTAINER, state.index), records.container_copy_key(state.index)
        row = await _row_or_copy(self._parts.keyvalue, key, copy)
        record = None if row is None else records.decode_container(row)
        if record is not None:
            if record.epoch >= state.log.epoch:
                raise CorruptDataError(
                    "metadata is newer than the log: they are from different copies; put both back from one copy",
                    container=state.index,
                    epoch=record.epoch,
                    log_epoch=state.log.epoch,
                )
            self._complete_upto = record.complete_upto
        state.applied_address = self._complete_upto
        await self._container.load(record)
        await self._aside.recover(self._complete_upto)

    async def replay(self, address: int, header: frames.FrameHeader, frame: bytes) -> None:
        """Replay one frame of the container; frames come in order."""
        if address > self._complete_upto and not self._settled:
            self._settle()
        is_old = address <= self._complete_upto
        for change in frames.decode_runs(frame):
            if isinstance(change, frames.AppendRun):
                if is_old:
                    await self._keep(change.uid, _Piece(change, address, header.time_ms))
                else:
                    await self._append(change, address, header.time_ms)
            elif is_old:
                await self._collect(change, header.time_ms)
            else:
                await self._apply(change, header.time_ms)
        self._aside.hold(address, header.time_ms, frame)
        self._state.applied_address = max(self._state.applied_address, address)

    async def finish(self) -> None:
        """All frames were replayed: check that nothing is missing, and prepare to serve."""
        if not self._settled:
            self._settle()
        for segment in self._state.segments.loaded():
            segment.forget_pending()
            await self._check_complete(segment)
        self._container.recovered(self._complete_upto, self._aside.put_rows())

    async def _check_complete(self, segment: Segment) -> None:
        """A gap before later bytes, or in a fully tiered segment, is a lost chunk row: the store starts, and refuses
        reads of those bytes. Raises CorruptDataError if the log has lost the segment's end."""
        gap = _first_gap(segment)
        if gap is None:
            return
        where = {"segment": segment.name, "offset": gap, "length": segment.length}
        starts = [*(chunk.start for chunk in segment.chunks.items), *(entry.start for entry in segment.cache.untiered)]
        has_later = any(start > gap for start in starts)
        if not has_later and not await missing_ranges(self._state.rows, self._state.index, segment.uid):
            raise CorruptDataError("bytes are neither in the log nor in chunks", **where)
        _log.error("bytes are neither in the log nor in chunks; reads of them are refused", extra=where)

    # --- before the checkpoint's address ------------------------------------------------------------------

    async def _collect(self, change: codec.Change, time_ms: int) -> None:
        """Move or drop the bytes of segments that are merged or deleted. The rows include all other effects."""
        match change:
            case codec.MergeOperation():
                target = await self._find(change.uid)
                if target is None and change.uid in self._aside and await self._find(change.source) is not None:
                    return  # The target was already damaged at the merge, so the source still exists.
                for piece in self._pieces.pop(change.source, []):
                    shift = (piece.shift or 0) + change.offset
                    await self._keep(change.uid, _Piece(piece.run, piece.address, time_ms, shift))
            case codec.DeleteOperation():
                self._pieces.pop(change.uid, None)
            case _:
                pass

    async def _keep(self, uid: int, piece: _Piece) -> None:
        """Keep untiered bytes. If the rows do not know the segment, keep everything: it was merged or deleted."""
        segment = self._state.segments.by_uid.get(uid) or await self._find(uid)
        if segment is not None:
            await self._put(segment, piece)
        elif uid in self._aside:
            # Rows of a damaged segment may cover a part of the run.
            for one in piece.run.appends():
                at = one.offset + (piece.shift or 0)
                self._aside.hold_bytes(uid, at, one.parts[0], one.event_count, piece.address, piece.time_ms)
        else:
            self._pieces.setdefault(uid, []).append(piece)

    async def _put(self, segment: Segment, piece: _Piece) -> None:
        """Put the bytes that are not tiered into the tail cache."""
        run, start, end = piece.run, piece.start, piece.end
        if end <= segment.kept_offset or segment.chunks.covers(start, end):
            return
        chunks = segment.chunks.items
        if len(run.parts) > 1 and (start < segment.kept_offset or (chunks and start < chunks[-1].end)):
            # A chunk ends at an append, but maybe within this run.
            for single in run.appends():
                await self._put(segment, replace(piece, run=single))
            return
        self._steps.untiered(segment, start, run, piece.address, piece.time_ms)
        if piece.shift is None:
            for writer, number in run.last_numbers().items():
                segment.cache.wrote(writer, number, await self._number_before(segment, writer, run))

    def _settle(self) -> None:
        """The state now equals the checkpoint."""
        self._settled = True
        if self._pieces:
            uid = next(iter(self._pieces))
            raise CorruptDataError("log holds bytes of an unknown segment", container=self._state.index, uid=uid)

    async def _number_before(self, segment: Segment, writer: int, run: frames.AppendRun) -> int:
        """The writer's last number in the bytes that were tiered at the checkpoint; as the run counts back if its row is
        damaged."""
        known = segment.cache.behind.get(writer)
        if known is not None:
            return known
        try:
            row = await self._state.rows.get(records.flushed_key(self._state.index, segment.uid, writer))
        except DamagedRowError:
            return run.number_before(writer)
        return NO_EVENT if row is None else records.decode_int(row)

    async def _find(self, uid: int) -> Segment | None:
        """The segment; None if it does not exist or was set aside."""
        known = self._state.segments.by_uid.get(uid)
        if known is None and uid not in self._aside:
            try:
                known = await self._state.segments.load(uid)
            except CorruptDataError as error:
                self._aside.add(uid, error)
            if known is not None:
                self._state.segments.show(known)
        return known

    # --- behind it ----------------------------------------------------------------------------------------

    async def _require(self, uid: int) -> Segment | None:
        """The segment; None if it was set aside. Then the operation is held for it."""
        segment = await self._find(uid)
        if segment is None and uid not in self._aside:
            raise CorruptDataError("log changes an unknown segment", container=self._state.index, uid=uid)
        return segment

    async def _append(self, run: frames.AppendRun, address: int, time_ms: int) -> None:
        segments = self._state.segments
        segment = segments.by_uid.get(run.uid) or await self._require(run.uid)
        if segment is None:
            return
        last = run.last_numbers()
        for writer in last:
            if segment.attributes.get(writer) is None:
                await self._attribute(segment, writer, run)
        if segments.by_uid.get(run.uid) is not segment:
            raise InternalError("segment left memory while the log was replayed", segment=segment.name)
        _expect(segment, run.offset)
        self._steps.append_run(segment, run, last, address, time_ms)

    async def _attribute(self, segment: Segment, key: int, run: frames.AppendRun | None = None) -> AttributeState:
        """State of an attribute that the log is about to change; as the run counts back if its row is damaged."""
        try:
            return await self._state.segments.attribute(segment, key)
        except DamagedRowError:
            state = segment.attributes[key] = AttributeState(NO_EVENT if run is None else run.number_before(key))
            return state

    async def _apply(self, operation: codec.Change, time_ms: int) -> None:
        steps = self._steps
        if isinstance(operation, codec.CreateOperation):
            self._create(operation, time_ms)
            return
        if isinstance(operation, codec.LeaseOperation | codec.ReleaseLeaseOperation):
            self._container.leases.replay(operation)
            return
        segment = await self._require(operation.uid)
        if segment is None:
            if isinstance(operation, codec.DeleteOperation):
                await self._aside.free_name(operation.uid)
            return
        match operation:
            case codec.SealOperation():
                steps.seal(segment, time_ms)
            case codec.TruncateOperation():
                steps.truncate(segment, operation.offset)
            case codec.KeepOperation():
                steps.keep(segment, operation.offset)
            case codec.ReleaseOperation():
                steps.release(segment, operation.offset)
            case codec.RestoreOperation():
                steps.restore(segment, operation.offset)
            case codec.DeleteOperation():
                steps.delete(segment)
            case codec.AttributeOperation():
                state = await self._attribute(segment, operation.attribute)
                state.pending = operation.value
                steps.attribute(segment, state, operation.attribute, operation.value)
            case codec.MergeOperation():
                source = await self._require(operation.source)
                _expect(segment, operation.offset)
                if source is None:
                    name = await self._aside.free_name(operation.source)
                    steps.merge_damaged(segment, operation.source, name, operation.length, time_ms)
                    return
                _expect(source, operation.length)
                steps.merge(segment, source, operation.offset, time_ms)
            case codec.AdoptOperation():
                _expect(segment, operation.offset)
                steps.adopt(segment, operation, time_ms)
            case codec.TableOperation():
                _expect(segment, operation.position)
                steps.table_change(segment, operation, time_ms)
            case _:
                assert_never(operation)

    def _create(self, operation: codec.CreateOperation, time_ms: int) -> None:
        record = records.SegmentRecord(
            name=operation.name,
            kind=operation.kind,
            key_bytes=operation.key_bytes,
            rollover_bytes=operation.rollover_bytes,
            start_offset=0,
            length=0,
            sealed=False,
            modified_ms=time_ms,
            event_count=0,
            freed_bytes=0,
            entry_count=0,
            kept_offset=0,
        )
        self._steps.create(Segment(operation.uid, record, self._state.memory), time_ms)


def _expect(segment: Segment, offset: int) -> None:
    if segment.length != offset:
        raise CorruptDataError(
            "log does not continue the segment", segment=segment.name, length=segment.length, offset=offset
        )


def _first_gap(segment: Segment) -> int | None:
    """The first offset between the first kept byte and the tail that is in neither chunks nor log; None: all are
    there."""
    if segment.table is not None:
        return None
    position = segment.kept_offset
    for entry in segment.cache.untiered:
        if entry.start > position and not segment.chunks.covers(position, entry.start):
            return position
        position = max(position, entry.end)
    if position < segment.length and not segment.chunks.covers(position, segment.length):
        return position
    return None
