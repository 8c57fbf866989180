"""Events as users give them, checked and framed into blocks for the lanes of a writer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from penstock.client.options import as_bytes
from penstock.client.writing.lanes import LaneMap, check_key
from penstock.client.writing.segment_sender import Lane
from penstock.client.writing.write_blocks import Receipt, WriteBlock, attach, close_blocks
from penstock.codec.events import EVENT_MAX_BYTES, event_header, split_events
from penstock.codec.records import encode_record
from penstock.model.errors import EventTooLargeError, InvalidArgumentError, QuotaExceededError
from penstock.model.records import Record
from penstock.ports.files import Buffer

LARGE_EVENT_MAX_BYTES = 64 << 20
"""Largest event at all. Up to 8 MiB an event shares blocks with others; above it costs a segment and a merge."""

T = TypeVar("T")


class Prepared:
    """Blocks, each with its lane. Two lists, because a pair for each of tens of thousands of blocks would cost the garbage
    collector more."""

    __slots__ = ("_blocks", "_lanes")

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._blocks: list[WriteBlock] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[tuple[Lane, WriteBlock]]:
        return zip(self._lanes, self._blocks, strict=True)

    def add(self, lane: Lane, block: WriteBlock) -> None:
        self._lanes.append(lane)
        self._blocks.append(block)

    def extend(self, others: Prepared) -> None:
        self._lanes += others._lanes
        self._blocks += others._blocks


class CallKeys:
    """The keys of the events of one call. They are sorted by lane only when a block must first be routed again."""

    __slots__ = ("_keys", "_lane_of", "_sorted")

    def __init__(self, lanes: LaneMap, keys: Sequence[str | None]) -> None:
        self._keys = list(keys)  # The caller may change its own list.
        self._lane_of: Callable[[str | None], Lane] = lanes.__getitem__
        if None in self._keys:
            keyless = lanes[None]  # always the same, so that sorting has one outcome
            self._lane_of = lambda key: keyless if key is None else lanes[key]
        self._sorted: Mapping[Lane, Sequence[str | None]] = {}

    def sort(self, items: Sequence[T]) -> dict[Lane, list[T]]:
        """Group the items, one for each key, by the lane of the key. Raises InvalidArgumentError: a key is not text."""
        parts: defaultdict[Lane, list[T]] = defaultdict(list)
        try:
            for lane, item in zip(map(self._lane_of, self._keys), items, strict=True):
                parts[lane].append(item)
        except TypeError:  # a key that cannot be looked up
            for key in self._keys:
                check_key(key)
            raise
        return parts

    def of(self, lane: Any, first: int, count: int) -> Sequence[str | None]:
        """See ``SharedKeys``."""
        self._sorted = self._sorted or self.sort(self._keys)
        return self._sorted[lane][first : first + count]


def event_of(given: Buffer | str | Record, key: str | None) -> tuple[bytes, str | None]:
    """The bytes of one event and its routing key, which for a record defaults to the record's own.

    Raises InvalidArgumentError.
    """
    if isinstance(given, Record):
        return encode_record(given), given.routing_key if key is None else key
    return as_bytes(given), key


def prepare_large(lanes: LaneMap, event: bytes, key: str | None, receipt: Receipt | None = None) -> Prepared:
    """A block of one event beyond 8 MiB. Raises EventTooLargeError beyond 64 MiB."""
    if len(event) > LARGE_EVENT_MAX_BYTES:
        raise EventTooLargeError("event is too large", size_bytes=len(event), limit_bytes=LARGE_EVENT_MAX_BYTES)
    check_key(key)
    keys = None if key is None else (key,)
    receipts = () if receipt is None else ((0, receipt),)
    prepared = Prepared()
    prepared.add(lanes[key], WriteBlock(event_header(len(event)) + event, 1, keys, 0, large=True, receipts=receipts))
    return prepared


def checked_events(
    events: Sequence[Buffer | str | Record], keys: Sequence[str | None] | None
) -> tuple[list[bytes], Sequence[str | None] | None]:
    """The events as bytes, and their routing keys: those of records where none is given.

    Raises InvalidArgumentError: not a sequence of events, another number of keys, an event of another type.
    """
    _check_sequence("events", events)
    _check_sequence("keys", keys)
    records: list[Record] = []

    def plain(event: Buffer | str | Record) -> bytes:
        if isinstance(event, Record):
            records.append(event)
            return encode_record(event)
        return as_bytes(event)

    data = [event if type(event) is bytes else plain(event) for event in events]
    if keys is not None and len(keys) != len(data):
        raise InvalidArgumentError("give a key for every event, or for none", events=len(data), keys=len(keys))
    if not any(record.key is not None for record in records):
        return data, keys
    return data, [
        event.routing_key if key is None and isinstance(event, Record) else key
        for event, key in zip(events, keys or [None] * len(data), strict=True)
    ]


def prepare_events(
    lanes: LaneMap, events: Sequence[Buffer | str | Record], keys: Sequence[str | None] | None, block_bytes: int
) -> Prepared:
    """Frame many events into blocks, in order per key. Without keys the lanes take turns, block by block.

    Raises InvalidArgumentError: not a sequence of events, another number of keys, an event or key of another type.
    """
    data, keys = checked_events(events, keys)
    prepared = Prepared()
    if not data:
        return prepared
    if max(map(len, data)) > EVENT_MAX_BYTES:
        return _prepare_mixed(lanes, data, keys, block_bytes)
    if keys is None:
        for block in close_blocks(data, None, 0, block_bytes):
            lane = lanes[None]
            prepared.add(lane, block)
            lanes.rotate(lane)
        return prepared
    shared = CallKeys(lanes, keys)
    parts = shared.sort(data)
    while parts:
        # Freed at once: with thousands of lists, the garbage collector's work would cost more than the call.
        lane, part = parts.popitem()
        first = 0
        for block in close_blocks(part, None, 0, block_bytes):
            block.keys, block.first = shared, first
            first += block.event_count
            prepared.add(lane, block)
    return prepared


def split_block(
    block: WriteBlock, keys: Sequence[str | None], lane_of: Callable[[str | None], Lane], block_bytes: int
) -> list[tuple[Lane, WriteBlock]]:
    """The events of the block in blocks for the lanes of their keys, with their receipts."""
    if block.large:
        return [(lane_of(keys[0]), block.again())]
    parts: defaultdict[Lane, tuple[list[bytes], list[str | None], list[tuple[int, Receipt]]]]
    parts = defaultdict(lambda: ([], [], []))
    tracked = dict(block.receipts)
    for number, (event, key) in enumerate(zip(split_events(bytes(block.data)), keys, strict=True)):
        events, own, receipts = parts[lane_of(key)]
        if number in tracked:
            receipts.append((len(events), tracked[number]))
        events.append(event)
        own.append(key)
    moved: list[tuple[Lane, WriteBlock]] = []
    for lane, (events, own, receipts) in parts.items():
        blocks = close_blocks(events, own, block.group, block_bytes)
        attach(blocks, receipts)
        moved += [(lane, small) for small in blocks]
    return moved


def count_unsent(error: QuotaExceededError, events: int, size_bytes: int) -> None:
    """If part of a call was refused, the rest of its events is not written either, and is counted as lost."""
    for name, value in (("unacked_events", events), ("unacked_bytes", size_bytes)):
        error.fields[name] = int(error.fields.get(name, 0)) + value


def _check_sequence(name: str, given: object) -> None:
    # Text and buffers are sequences too, of characters and numbers, which are not meant as events.
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise InvalidArgumentError(f"{name} must be a list; use write for a single one", type=type(given).__name__)


def _prepare_mixed(
    lanes: LaneMap, events: list[bytes], keys: Sequence[str | None] | None, block_bytes: int
) -> Prepared:
    """As ``prepare_events``, where some event is large: cut there, so that the order is kept."""
    prepared = Prepared()
    start = 0
    for index, event in enumerate(events):
        if len(event) > EVENT_MAX_BYTES:
            own = None if keys is None else keys[start:index]
            prepared.extend(prepare_events(lanes, events[start:index], own, block_bytes))
            prepared.extend(prepare_large(lanes, event, None if keys is None else keys[index]))
            start = index + 1
    prepared.extend(prepare_events(lanes, events[start:], None if keys is None else keys[start:], block_bytes))
    return prepared
