"""Events as users give them, checked and framed into blocks for the lanes of a writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.client.options import as_bytes
from penstock.client.writing.lanes import LaneMap, check_key
from penstock.client.writing.segment_sender import Lane
from penstock.client.writing.write_blocks import Receipt, WriteBlock, close_blocks
from penstock.codec.events import EVENT_MAX_BYTES, event_header
from penstock.codec.records import encode_record
from penstock.model.errors import EventTooLargeError, InvalidArgumentError, QuotaExceededError
from penstock.model.records import Record
from penstock.ports.files import Buffer

LARGE_EVENT_MAX_BYTES = 64 << 20
"""Largest event at all. Up to 8 MiB an event shares blocks with others; above it costs a segment and a merge."""

Prepared = list[tuple[Lane, WriteBlock]]


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
    return [(lanes[key], WriteBlock(event_header(len(event)) + event, 1, keys, 0, large=True, receipts=receipts))]


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
    # One list for each lane, of event, key, event, key: with thousands of lanes, the garbage collector's work on objects
    # that live through this call would cost more than the call itself.
    parts: dict[Lane, list[Any]] = {}
    for event, key in zip(data, keys, strict=True):
        if key.__class__ is not str:
            check_key(key)
        lane = lanes[key]
        part = parts.get(lane)
        if part is None:
            part = parts[lane] = []
        part += (event, key)
    for lane in list(parts):
        part = parts.pop(lane)
        prepared += [(lane, block) for block in close_blocks(part[::2], part[1::2], 0, block_bytes)]
    return prepared


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
    prepared: Prepared = []
    start = 0
    for index, event in enumerate(events):
        if len(event) > EVENT_MAX_BYTES:
            own = None if keys is None else keys[start:index]
            prepared += prepare_events(lanes, events[start:index], own, block_bytes)
            prepared += prepare_large(lanes, event, None if keys is None else keys[index])
            start = index + 1
    return prepared + prepare_events(lanes, events[start:], None if keys is None else keys[start:], block_bytes)
