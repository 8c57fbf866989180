"""Arrow arrays to blocks of events and back. The only module of the client that loads pyarrow and numpy.

Importing it raises MissingExtraError where one of them is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
except ModuleNotFoundError as error:
    from penstock.model.errors import missing_extra

    if error.name not in ("numpy", "pyarrow"):
        raise
    raise missing_extra(error.name, "arrow") from error

from penstock.client.writing.lanes import LaneMap
from penstock.client.writing.prepare import Prepared, prepare_events
from penstock.client.writing.segment_sender import Lane
from penstock.client.writing.write_blocks import WriteBlock
from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES
from penstock.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from penstock.client.reading.blocks import Block

_PIECE_BYTES_MIN = 1 << 20
PIECE_BYTES_MAX = 16 << 20
"""Framed at once, far below the 2 GiB where 32-bit offsets end."""
_KEYLESS_BLOCKS = 4  # blocks framed at once where events have no keys
_CODED_ROWS = 1 << 17
_TABLE_COLUMNS = frozenset({"event", "routing_key", "segment_id", "offset"})
"""Columns that a table may have: those that are written, and those that ``read_arrow`` adds, which are not written."""

ArrowEvents: TypeAlias = "pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table"
ArrowKeys: TypeAlias = "pa.Array | pa.ChunkedArray"


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
        raise InvalidArgumentError("events contain nulls; filter or fill them first", nulls=array.null_count)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return array
    if pa.types.is_string(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return array.cast(pa.large_binary())
    try:
        return array.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgumentError("events must be binary or text", type=str(kind)) from error


def _offsets(array: pa.Array) -> np.ndarray[Any, Any]:
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    if not len(array):
        return np.zeros(1, dtype=width)
    return np.frombuffer(array.buffers()[1], dtype=width)[array.offset : array.offset + len(array) + 1]


def _key_list(keys: pa.Array) -> list[str | None]:
    found: list[str | None] = keys.to_pylist()
    return found


KeysOf = Callable[[int, int], list[str | None]]
"""The keys of rows ``start <= row < end``. Looked up only where a block has to be routed anew."""


class PieceMemory:
    """Memory that pieces are framed into. It is reused once no view of it exists.

    The first touch of fresh memory costs more than copying events. All views of a piece end at its one buffer. Python refuses
    to resize a buffer while a view of it exists, for example in a socket, a log or a cache. Reference counts are not used:
    they differ between versions of Python. At most ``limit_bytes`` are kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept_bytes = 0
        self._buffers: list[bytearray] = []

    def take(self, size_bytes: int) -> np.ndarray[Any, Any]:
        """So many bytes, holding anything."""
        # Always the first that is free: the fewer are in use, the more of them the processor's cache holds.
        for buffer in self._buffers:
            if len(buffer) >= size_bytes and _is_unused(buffer):
                return np.frombuffer(buffer, dtype=np.uint8, count=size_bytes)
        capacity = -(-size_bytes // _PIECE_BYTES_MIN) * _PIECE_BYTES_MIN
        if self._kept_bytes + capacity > self._limit_bytes:
            return np.empty(size_bytes, dtype=np.uint8)
        buffer = bytearray(capacity)
        self._kept_bytes += capacity
        self._buffers.append(buffer)
        return np.frombuffer(buffer, dtype=np.uint8, count=size_bytes)


def _is_unused(buffer: bytearray) -> bool:
    """Return whether no view of the buffer exists. Shrinks it by one byte for a moment, which moves nothing."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class ArrowBatch:
    """Events on their way to the segments: checked as a whole, then framed piece by piece, in order per key.

    A piece is sent while the next one is framed, and its memory is still in the processor's cache when it is sent. It holds
    about one block for each segment. Distinct keys are hashed once; without keys the segments take turns, block by block.

    Raises InvalidArgumentError for another type than binary or text, for nulls among the events, and where the number of
    keys is another one. Also for a table or batch without one column ``event``, or with columns other than ``routing_key``
    and those of ``read_arrow``. Null keys: no key.
    """

    def __init__(self, given: ArrowEvents, keys: ArrowKeys | None, block_bytes: int, memory: PieceMemory) -> None:
        self._memory = memory
        array, keys = _events_and_keys(given, keys)
        self._data = data = _as_binary(array)
        if keys is not None and len(keys) != len(data):
            raise InvalidArgumentError("give a key for every event, or for none", events=len(data), keys=len(keys))
        self._keys = None if keys is None else _as_text(keys)
        self._block_bytes = block_bytes
        self._next = 0
        offsets = _offsets(data)
        lengths = np.diff(offsets)
        self._is_large = bool(len(data)) and int(lengths.max()) > EVENT_MAX_BYTES
        length = int(lengths[0]) if len(data) else 0
        self._equal: np.ndarray[Any, Any] | None = None
        if length and not self._is_large and bool((lengths == length).all()):
            self._equal = np.frombuffer(data.buffers()[2], dtype=f"V{length}", count=len(data), offset=int(offsets[0]))
        # Where each event would begin, with its header, if all were framed in one piece.
        self._bounds = offsets + np.arange(len(offsets), dtype=np.int64) * HEADER_BYTES
        self._coded = _Coded(0, 0)

    @property
    def left(self) -> tuple[int, int]:
        """Number of events that are in no piece yet, and their bytes with headers."""
        return len(self._data) - self._next, int(self._bounds[-1] - self._bounds[self._next])

    def pieces(self, lanes: Callable[[], LaneMap]) -> Iterator[Prepared]:
        """Blocks with the lanes they belong to. ``lanes`` gives the map of the moment: it may change between pieces."""
        if self._is_large:
            self._next = len(self._data)
            yield _prepare_plain(lanes(), self._data, self._keys, self._block_bytes)
        while self._next < len(self._data):
            start = self._next
            found = lanes()
            end = _end_of_run(self._bounds, start, len(self._data), self._piece_bytes(found))
            if self._keys is None:
                self._next = end
                yield self._keyless(found, start, end)
            else:
                coded = self._coded_at(self._keys, start, found)
                self._next = end = min(end, coded.end)
                yield self._keyed(coded, self._keys.slice(start, end - start), found, start)

    def _piece_bytes(self, lanes: LaneMap) -> int:
        lanes_fed = _KEYLESS_BLOCKS if self._keys is None else lanes.width
        return min(max(_PIECE_BYTES_MIN, lanes_fed * self._block_bytes), PIECE_BYTES_MAX)

    def _keyless(self, lanes: LaneMap, start: int, end: int) -> Prepared:
        view, bounds = self._framed(start, end, None)
        prepared = Prepared()
        for first, last in _even_runs(bounds, 0, end - start, self._block_bytes):
            lane = lanes[None]
            prepared.add(lane, WriteBlock(view[int(bounds[first]) : int(bounds[last])], last - first, None, 0))
            lanes.rotate(lane)
        return prepared

    def _coded_at(self, keys: pa.Array, start: int, lanes: LaneMap) -> _Coded:
        coded = self._coded
        if not coded.start <= start < coded.end:
            coded = self._coded = _Coded(start, min(start + _CODED_ROWS, len(self._data)))
            found = keys.slice(start, coded.end - start).dictionary_encode(null_encoding="encode")
            coded.dictionary = found.dictionary.to_pylist()
            coded.codes = found.indices.to_numpy(zero_copy_only=False)
        if coded.lanes is not lanes:
            coded.route(lanes)
        return coded

    def _keyed(self, coded: _Coded, keys: pa.Array, lanes: LaneMap, start: int) -> Prepared:
        end = start + len(keys)
        distinct, lane_of = coded.distinct, coded.lane_of
        if coded.null_code is not None:
            # Events without a key take turns here too, piece by piece.
            lane = lanes[None]
            lanes.rotate(lane)
            distinct = [*distinct, lane]
            lane_of = lane_of.copy()
            lane_of[coded.null_code] = len(distinct) - 1
        place = lane_of[coded.codes[start - coded.start : end - coded.start]]
        counts = np.bincount(place, minlength=len(distinct))
        # Sorted by lane; stable, so that the order within a lane is kept. Sixteen bits are sorted in one pass.
        order = None if int(counts.max()) == end - start else np.argsort(place, kind="stable")
        view, bounds = self._framed(start, end, order)
        row_keys = _RowKeys(keys, order)
        prepared = Prepared()
        at = 0
        for number in np.flatnonzero(counts).tolist():
            upto = at + int(counts[number])
            for first, last in _even_runs(bounds, at, upto, self._block_bytes):
                data = view[int(bounds[first]) : int(bounds[last])]
                prepared.add(distinct[number], WriteBlock(data, last - first, row_keys, 0, first=first))
            at = upto
        return prepared

    def _framed(
        self, start: int, end: int, order: np.ndarray[Any, Any] | None
    ) -> tuple[memoryview, np.ndarray[Any, Any]]:
        """The rows with their headers, in this order, as one buffer, and where each begins, and the last ends."""
        if self._equal is None:
            data = self._data.slice(start, end - start)
            return frame_array(data if order is None else data.take(pa.array(order)))
        rows = self._equal[start:end]
        length = rows.itemsize
        memory = self._memory.take(len(rows) * (HEADER_BYTES + length))
        out = memory.view([("header", ">i8"), ("event", rows.dtype)])
        out["header"] = length
        if order is None:
            out["event"] = rows
        else:
            # Each event is copied once, from where it lies to its place in a block: half the cost of gathering first.
            places = np.empty(len(rows), dtype=np.intp)
            places[order] = np.arange(len(rows))
            out["event"][places] = rows
        bounds = np.arange(len(rows) + 1, dtype=np.int64) * (HEADER_BYTES + length)
        return memoryview(memory.data), bounds


class _Coded:
    """Rows ``start <= row < end`` of an array of keys as numbers, and where the keys lead in one layout."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.dictionary: list[str | None] = []
        self.codes: np.ndarray[Any, Any] = np.empty(0, dtype=np.int32)
        self.null_code: int | None = None
        self.lanes: LaneMap | None = None
        self.distinct: list[Lane] = []
        self.lane_of: np.ndarray[Any, Any] = np.empty(0, dtype=np.int32)

    def route(self, lanes: LaneMap) -> None:
        """Look up the lane of each key."""
        self.lanes = lanes
        self.null_code = None
        numbers: dict[int, int] = {}
        self.distinct = []
        lane_of = []
        for code, key in enumerate(self.dictionary):
            if key is None:
                self.null_code = code
                lane_of.append(0)
                continue
            lane = lanes[key]
            number = numbers.setdefault(id(lane), len(numbers))
            if number == len(self.distinct):
                self.distinct.append(lane)
            lane_of.append(number)
        self.lane_of = np.asarray(lane_of, dtype=np.uint16 if len(self.distinct) < 1 << 16 else np.int32)


def _events_and_keys(given: ArrowEvents, keys: ArrowKeys | None) -> tuple[pa.Array, pa.Array | None]:
    if isinstance(given, pa.Table | pa.RecordBatch):
        if given.schema.names.count("event") != 1 or given.schema.names.count("routing_key") > 1:
            raise InvalidArgumentError(
                "a table has one column event, and at most one routing_key", columns=", ".join(given.schema.names)
            )
        surplus = sorted({*given.schema.names} - _TABLE_COLUMNS)
        if surplus:
            raise InvalidArgumentError(
                "only the columns event and routing_key are written; select them", surplus=", ".join(surplus)
            )
        if "routing_key" in given.schema.names:
            if keys is not None:
                raise InvalidArgumentError("keys are given twice: as an argument and as the column routing_key")
            keys = given.column("routing_key")
        given = given.column("event")
    if not isinstance(given, pa.Array | pa.ChunkedArray):
        raise InvalidArgumentError("events must be an Arrow array, record batch or table", type=type(given).__name__)
    if keys is not None and not isinstance(keys, pa.Array | pa.ChunkedArray):
        raise InvalidArgumentError("keys must be an Arrow array", type=type(keys).__name__)
    return given, keys


def _as_text(keys: pa.Array) -> pa.Array:
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    try:
        return keys.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgumentError("keys must be text", type=str(keys.type)) from error


def _prepare_plain(lanes: LaneMap, data: pa.Array, keys: pa.Array | None, block_bytes: int) -> Prepared:
    return prepare_events(lanes, data.to_pylist(), None if keys is None else _key_list(keys), block_bytes)


class _RowKeys:
    """The routing keys of the ordered rows. They become text when they are first needed."""

    __slots__ = ("_keys", "_order")

    def __init__(self, keys: pa.Array, order: np.ndarray[Any, Any] | None) -> None:
        self._keys = keys
        self._order = order

    def of(self, lane: object, first: int, count: int) -> Sequence[str | None]:
        """See ``SharedKeys``; ``first`` counts the ordered rows of all lanes."""
        order = self._order
        if order is None:
            return _key_list(self._keys.slice(first, count))
        return _key_list(self._keys.take(pa.array(order[first : first + count])))


def _end_of_run(bounds: np.ndarray[Any, Any], start: int, stop: int, size: int) -> int:
    """Where the run of about ``size`` bytes ends that begins at row ``start``: at least one row, and none beyond ``stop``."""
    end = int(np.searchsorted(bounds, int(bounds[start]) + size, side="right")) - 1
    return min(max(end, start + 1), stop)


def _even_runs(bounds: np.ndarray[Any, Any], start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Cut the rows into runs of about equal bytes, near ``size``: a remainder of a few events would be a block too."""
    first, total = int(bounds[start]), int(bounds[stop] - bounds[start])
    count = max(1, round(total / size))
    cuts = [first + total * number // count for number in range(1, count)]
    ends = sorted({*(np.searchsorted(bounds[start:stop], cuts) + start).tolist(), stop} - {start})
    return list(zip([start, *ends], ends, strict=False))


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
