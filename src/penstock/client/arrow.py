"""Arrow arrays to blocks of events and back. The only module of the client that loads pyarrow and numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.lanes import Lane, LaneMap, WriteBlock
from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES
from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.client.blocks import Block

CHUNK_BYTES = 256 << 20
"""Framed at once: 32-bit offsets end at 2 GiB."""


def frame_array(array: pa.Array) -> tuple[memoryview, np.ndarray[Any, Any]]:
    """The framed events as one buffer, and where each begins (and the last ends). 16 to 18 ns per event of 100 bytes.

    Raises InvalidArgumentError for another type than binary or text, and for nulls.
    """
    data = _as_binary(array)
    offsets = _offsets(data)
    headers = np.diff(offsets).astype(">i8")
    wrapped = pa.Array.from_buffers(pa.binary(HEADER_BYTES), len(data), [None, pa.py_buffer(headers)])
    joined = pc.binary_join_element_wise(wrapped.cast(data.type), data, b"")
    bounds = _offsets(joined)
    buffer = joined.buffers()[2]
    view = memoryview(buffer).cast("B") if buffer is not None else memoryview(b"")
    return view, bounds


def _as_binary(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if array.null_count:
        raise InvalidArgumentError("an event is null", nulls=array.null_count)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return array
    if pa.types.is_string(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return array.cast(pa.large_binary())
    try:
        return array.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgumentError("events are binary or text", type=str(kind)) from error


def _offsets(array: pa.Array) -> np.ndarray[Any, Any]:
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    if not len(array):
        return np.zeros(1, dtype=width)
    return np.frombuffer(array.buffers()[1], dtype=width)[array.offset : array.offset + len(array) + 1]


def prepare_arrow(
    lanes: LaneMap, array: pa.Array, keys: pa.Array | None, block_bytes: int
) -> list[tuple[Lane, WriteBlock]]:
    """Frame an array into blocks, in order per key; distinct keys are hashed once. Without keys the lanes take turns."""
    data = _as_binary(array)
    if keys is not None and len(keys) != len(data):
        raise InvalidArgumentError("each event needs a key, or none has one", events=len(data), keys=len(keys))
    offsets = _offsets(data)
    if len(data) and int(np.diff(offsets).max()) > EVENT_MAX_BYTES:
        return _prepare_plain(lanes, data, keys, block_bytes)
    prepared: list[tuple[Lane, WriteBlock]] = []
    for start, end in _runs(offsets, CHUNK_BYTES):
        part = data.slice(start, end - start)
        if keys is None:
            for block in _blocks(part, None, block_bytes):
                lane = lanes[None]
                prepared.append((lane, block))
                lanes.rotate(lane)
        else:
            for lane, chosen, own in _by_lane(lanes, part, keys.slice(start, end - start)):
                prepared += [(lane, block) for block in _blocks(chosen, own, block_bytes)]
    return prepared


def _prepare_plain(
    lanes: LaneMap, data: pa.Array, keys: pa.Array | None, block_bytes: int
) -> list[tuple[Lane, WriteBlock]]:
    from penstock.client.writer import prepare_events

    return prepare_events(lanes, data.to_pylist(), None if keys is None else _key_list(keys), block_bytes)


def _key_list(keys: pa.Array) -> list[str | None]:
    found: list[str | None] = keys.cast(pa.string()).to_pylist()
    return found


KeysOf = Callable[[int, int], list[str | None]]
"""The keys of rows ``start <= row < end``. Looked up only where a block has to be routed anew."""


def _by_lane(lanes: LaneMap, data: pa.Array, keys: pa.Array) -> list[tuple[Lane, pa.Array, KeysOf]]:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    encoded = keys.cast(pa.string()).dictionary_encode(null_encoding="encode")
    distinct: list[Lane] = []
    index: dict[int, int] = {}
    lane_of = []
    for key in encoded.dictionary.to_pylist():
        lane = lanes[key]
        if id(lane) not in index:
            index[id(lane)] = len(distinct)
            distinct.append(lane)
        lane_of.append(index[id(lane)])
    if len(distinct) == 1:
        return [(distinct[0], data, lambda start, end: _key_list(keys.slice(start, end - start)))]
    place = np.asarray(lane_of, dtype=np.int32)[encoded.indices.to_numpy(zero_copy_only=False)]
    result: list[tuple[Lane, pa.Array, KeysOf]] = []
    for number, lane in enumerate(distinct):
        rows = pa.array(np.flatnonzero(place == number))  # rising, so the order within a lane is kept
        result.append((lane, data.take(rows), partial(_keys_of_rows, keys, rows)))
    return result


def _keys_of_rows(keys: pa.Array, rows: pa.Array, start: int, end: int) -> list[str | None]:
    return _key_list(keys.take(rows.slice(start, end - start)))


def _blocks(data: pa.Array, keys: KeysOf | None, block_bytes: int) -> list[WriteBlock]:
    view, bounds = frame_array(data)
    blocks = []
    for start, end in _runs(bounds, block_bytes):
        own = None if keys is None else partial(keys, start, end)
        blocks.append(WriteBlock(view[int(bounds[start]) : int(bounds[end])], end - start, own, 0))
    return blocks


def _runs(bounds: np.ndarray[Any, Any], size: int) -> list[tuple[int, int]]:
    """Cut rows into runs of about ``size`` bytes, at least one row each."""
    count = len(bounds) - 1
    runs = []
    start = 0
    while start < count:
        end = int(np.searchsorted(bounds, int(bounds[start]) + size, side="right")) - 1
        end = min(max(end, start + 1), count)
        runs.append((start, end))
        start = end
    return runs


def block_to_batch(block: Block) -> pa.RecordBatch:
    """Columns ``event`` (binary), ``segment_id`` and ``offset`` (int64: where the event's header begins)."""
    count = len(block)
    bounds = block.bounds
    if isinstance(bounds, range):
        events = _equal_array(block, bounds, count)
        # Not from the range itself: numpy would walk it number by number.
        offsets = np.arange(count, dtype=np.int64) * bounds.step + block.offset
    else:
        starts = np.asarray(bounds, dtype=np.int64)
        events = _any_array(block, starts)
        offsets = starts[:count] + block.offset
    segments = np.full(count, block.segment, dtype=np.int64)
    return pa.record_batch([events, pa.array(segments), pa.array(offsets)], names=["event", "segment_id", "offset"])


def _equal_array(block: Block, bounds: range, count: int) -> pa.Array:
    stride = bounds.step
    rows = np.frombuffer(block.framed, dtype=np.uint8).reshape(count, stride)
    body = np.ascontiguousarray(rows[:, HEADER_BYTES:])
    starts = np.arange(count + 1, dtype=np.int32) * (stride - HEADER_BYTES)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(body)])


def _any_array(block: Block, starts: np.ndarray[Any, Any]) -> pa.Array:
    """Events of any lengths: the block's own bytes seen as header and event in turn, of which Arrow takes every second."""
    count = len(starts) - 1
    marks = np.empty(2 * count + 1, dtype=np.int32)
    marks[0::2] = starts
    marks[1::2] = starts[:-1] + HEADER_BYTES
    both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(marks), pa.py_buffer(block.framed)])
    return both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))


def blocks_to_batch(blocks: Sequence[Block]) -> pa.RecordBatch:
    """The batches of several blocks as one."""
    batches = [block_to_batch(block) for block in blocks]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
