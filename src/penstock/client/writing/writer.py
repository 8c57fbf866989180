"""Writes events to a stream, in order per routing key, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.client.options import check_printable
from penstock.client.writing.lanes import Lane, LaneMap, WriteBlock, WriterNotOpenError, check_key, close_blocks
from penstock.client.writing.layout import Layout
from penstock.client.writing.writer_core import WriterCore, WriterSettings
from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES, event_header
from penstock.model.errors import EventTooLargeError, InvalidArgumentError, QuotaExceededError
from penstock.ports import forks
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng
from penstock.ports.segment_service import SegmentService

if TYPE_CHECKING:
    from penstock.client.writing.arrow import ArrowEvents, ArrowKeys, PieceMemory


LARGE_EVENT_MAX_BYTES = 64 << 20
"""Largest event at all. Up to 8 MiB an event shares blocks with others; above it costs a segment and a merge."""

Prepared = list[tuple[Lane, WriteBlock]]


def as_bytes(event: Buffer | str) -> bytes:
    """The event's bytes: text as UTF-8, other buffers copied. Raises InvalidArgumentError for any other type."""
    if isinstance(event, str):
        try:
            return event.encode()
        except UnicodeEncodeError:
            check_printable("event", event)
            raise
    if isinstance(event, bytes):
        return event
    if isinstance(event, bytearray | memoryview):
        return bytes(event)
    raise InvalidArgumentError("an event is bytes or text", type=type(event).__name__)


def prepare_large(lanes: LaneMap, event: bytes, key: str | None) -> Prepared:
    """A block of one event beyond 8 MiB. Raises EventTooLargeError beyond 64 MiB."""
    if len(event) > LARGE_EVENT_MAX_BYTES:
        raise EventTooLargeError("event is too large", size_bytes=len(event), limit_bytes=LARGE_EVENT_MAX_BYTES)
    check_key(key)
    keys = None if key is None else lambda: [key]
    return [(lanes[key], WriteBlock(event_header(len(event)) + event, 1, keys, 0, large=True))]


def checked_events(events: Sequence[Buffer | str], keys: Sequence[str | None] | None) -> list[bytes]:
    """The events as bytes. Raises InvalidArgumentError: not a sequence of events, another number of keys, an event of another
    type."""
    _check_sequence("events", events)
    _check_sequence("keys", keys)
    data = [event if type(event) is bytes else as_bytes(event) for event in events]
    if keys is not None and len(keys) != len(data):
        raise InvalidArgumentError("each event needs a key, or none has one", events=len(data), keys=len(keys))
    return data


def prepare_events(
    lanes: LaneMap, events: Sequence[Buffer | str], keys: Sequence[str | None] | None, block_bytes: int
) -> Prepared:
    """Frame many events into blocks, in order per key. Without keys the lanes take turns, block by block.

    Raises InvalidArgumentError: not a sequence of events, another number of keys, an event or key of another type.
    """
    data = checked_events(events, keys)
    if not data:
        return []
    if max(map(len, data)) > EVENT_MAX_BYTES:
        return _prepare_mixed(lanes, data, keys, block_bytes)
    prepared: Prepared = []
    if keys is None:
        for block in close_blocks(data, None, 0, block_bytes):
            lane = lanes[None]
            prepared.append((lane, block))
            lanes.rotate(lane)
        return prepared
    parts: dict[int, tuple[Lane, list[bytes], list[str | None]]] = {}
    for event, key in zip(data, keys, strict=True):
        if key.__class__ is not str:
            check_key(key)
        lane = lanes[key]
        part = parts.get(id(lane))
        if part is None:
            part = parts[id(lane)] = (lane, [], [])
        part[1].append(event)
        part[2].append(key)
    for lane, own, own_keys in parts.values():
        prepared += [(lane, block) for block in close_blocks(own, own_keys, 0, block_bytes)]
    return prepared


def count_unsent(error: QuotaExceededError, events: int, size_bytes: int) -> None:
    """What was refused was part of one call: the rest of that call's events is not written either, and counts."""
    for name, value in (("unacked_events", events), ("unacked_bytes", size_bytes)):
        error.fields[name] = int(error.fields.get(name, 0)) + value


def _check_sequence(name: str, given: object) -> None:
    # Text and buffers are sequences too: of characters and numbers, which nobody wants as events.
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise InvalidArgumentError(f"{name} are given as a list; one alone is for write", type=type(given).__name__)


def _prepare_mixed(
    lanes: LaneMap, events: list[bytes], keys: Sequence[str | None] | None, block_bytes: int
) -> Prepared:
    """As ``prepare_events``, where some event is large: cut there, so that the order is kept."""
    prepared: Prepared = []
    start = 0
    for index, event in enumerate(events):
        if len(event) > EVENT_MAX_BYTES:
            own = None if keys is None else keys[start:index]
            prepared += prepare_events(lanes, events[start:index], own, block_bytes)
            prepared += prepare_large(lanes, event, None if keys is None else keys[index])
            start = index + 1
    return prepared + prepare_events(lanes, events[start:], None if keys is None else keys[start:], block_bytes)


class AsyncWriter:
    """Writes to one stream. Open with ``async with``: leaving it flushes. Used without, the first write opens it, and
    ``close`` must be called.

    Events of one routing key are read in the order in which they were written, across scaling too. Events without a key
    are spread over the segments block by block; their order is kept within a segment only.

    A write returns when the event is buffered; ``flush`` returns when all earlier ones are durable. Whatever connection
    fails, each event is stored exactly once. Without any acknowledgement for ``deadline_s`` the writer fails with
    DeadlineExceededError, or with StorageFullError where a full disk is what it waits for; the fields name what is not
    acknowledged, and it cannot be used afterwards. Until then it goes on by itself as soon as there is space again. The same
    goes for QuotaHeldError, where a backlog quota lets writers wait.

    Where a backlog quota refuses writers, the next call raises QuotaExceededError, once, and to every flush that waits. What
    was written and not acknowledged by then is dropped, all of it, so that nothing overtakes it when it is written again;
    fields ``unacked_events`` and ``unacked_bytes`` tell how much. The writer can be used on.
    """

    def __init__(self, layout: Layout, segments: SegmentService, rng: Rng, settings: WriterSettings) -> None:
        self.settings = settings
        self._closed = False
        self._opened = False
        self._opening = asyncio.Lock()
        self._memory: PieceMemory | None = None
        self._core = WriterCore(layout, segments, rng, settings, on_change=_nothing)

    async def open(self) -> None:
        """Find the stream's segments; the first write does it too. Repeating does nothing.

        Raises StreamNotFoundError, StreamSealedError, UnavailableError, InvalidArgumentError (closed).
        """
        async with self._opening:
            if self._closed:
                raise InvalidArgumentError("writer is closed", stream=str(self._core.layout.stream))
            if self._core.is_inherited:
                raise forks.refusal()
            if not self._opened:
                self._loop = asyncio.get_running_loop()
                await self._core.open()
                self._opened = True

    async def _open_lane(self, key: str | None) -> Lane:
        check_key(key)
        await self.open()
        return self._core.lanes[key]

    async def write(self, event: Buffer | str, key: str | None = None) -> None:
        """Buffer one event. Waits only while more than ``max_pending_bytes`` are unacknowledged.

        Raises: EventTooLargeError (over 64 MiB), StreamSealedError, StreamNotFoundError, DeadlineExceededError,
        StorageFullError, QuotaHeldError, QuotaExceededError, InvalidArgumentError (an event or key of another type; a closed
        writer).
        Cancelled: the event is buffered, and will be written.
        """
        if type(event) is not bytes:
            event = as_bytes(event)
        core = self._core
        length = len(event)
        if length > EVENT_MAX_BYTES:
            await self.open()
            await self._send(prepare_large(core.lanes, event, key))
            return
        try:
            lane = core.lanes[key]
        except (WriterNotOpenError, TypeError):  # TypeError: a key that cannot be looked up, which is then refused
            lane = await self._open_lane(key)
        lane.written.extend((key, event))
        lane.size = size = lane.size + length + HEADER_BYTES
        if size >= lane.limit:
            await self._full(lane)

    async def _full(self, lane: Lane) -> None:
        core = self._core
        core.check()
        if lane.limit <= 0:
            lane.limit = core.lane_bytes
            self._loop.call_soon(core.wake, lane)
            if lane.size < lane.limit:
                return
        core.drain(lane)
        if core.pending_bytes > self.settings.max_pending_bytes:
            await core.room()
        else:
            await asyncio.sleep(0)  # a loop of writes must let the acknowledgements in

    async def write_many(self, events: Sequence[Buffer | str], keys: Sequence[str | None] | None = None) -> None:
        """Buffer many events at less cost than one by one, in order. Raises as ``write``."""
        await self.open()
        await self._send(prepare_events(self._core.lanes, events, keys, self.settings.block_bytes))

    async def write_arrow(self, array: ArrowEvents, keys: ArrowKeys | None = None) -> None:
        """Buffer Arrow events of binary or text, framed without touching single events: an array, or a record batch or table
        with the column ``event`` and, unless ``keys`` are given, perhaps ``routing_key``. The columns ``segment_id`` and
        ``offset`` of ``read_arrow`` are not written. Null keys: no key.

        Raises as ``write``, InvalidArgumentError (another type, other columns, or nulls among the events),
        MissingExtraError (no pyarrow or numpy)."""
        from penstock.client.writing.arrow import PIECE_BYTES_MAX, ArrowBatch, PieceMemory

        await self.open()
        if self._memory is None:
            self._memory = PieceMemory(self.settings.max_pending_bytes + PIECE_BYTES_MAX)
        batch = ArrowBatch(array, keys, self.settings.block_bytes, self._memory)
        begun = False
        try:
            for prepared in batch.pieces(lambda: self._core.lanes):
                await self._send(prepared, goes_on=begun)
                begun = True
        except QuotaExceededError as error:
            if begun:
                count_unsent(error, *batch.left)
            raise

    def prepare(self, events: Sequence[bytes], keys: Sequence[str | None] | None) -> Prepared:
        """Events framed for their segments, and not taken yet; the writer is open. Raises as ``write_many``."""
        return prepare_events(self._core.lanes, events, keys, self.settings.block_bytes)

    def take(self, prepared: Prepared) -> None:
        """Take what ``prepare`` gave, at once: what is written next waits for room. Raises as ``write``."""
        self._core.enqueue(prepared)

    async def adopt(self, prepared: Prepared) -> None:
        """Take what ``prepare`` gave, the first block of each segment, which may be stored already under its sender's id and
        number. Raises as ``write``."""
        for lane, block in prepared:
            lane.sender.number(block)
            self._core.adopt(lane.sender, block)
        await self._core.room()

    async def _send(self, prepared: Prepared, *, goes_on: bool = False) -> None:
        self._core.enqueue(prepared, goes_on=goes_on)
        await self._core.room()

    async def flush(self) -> None:
        """Return once every event written so far is durable. Raises what the writer failed with."""
        await self._core.flush()

    async def close(self) -> None:
        """Flush and end. Raises as ``flush``; the writer is closed all the same."""
        if self._closed or self._core.is_inherited:
            return
        self._closed = True
        try:
            await self._core.flush()
        finally:
            await self._core.close()

    async def abort(self) -> None:
        """End without sending what is still here."""
        self._closed = True
        await self._core.close()

    async def __aenter__(self) -> AsyncWriter:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:
            await self.abort()


def _nothing() -> None:
    """Nobody in another thread waits for an AsyncWriter."""
