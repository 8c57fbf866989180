"""What a task does: bytes of a stream to Arrow batches of events.

A task copies chunk files into its own memory and verifies each block there, just before it parses it. Files are not mapped,
because an erasure could blank bytes between the check and the parse. Objects are fetched with one request per piece. If a
chunk is missing or fails its checksum (its lease ran out, its disk is faulty, bytes in it were erased), the task reads the
same bytes from the store. Needs numpy and pyarrow. Finding events costs about 130 ns each, or a tenth of that if they have
equal lengths.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from struct import Struct
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from penstock.codec.events import HEADER_BYTES
from penstock.core.segments.erasure import covers
from penstock.model.errors import (
    CorruptDataError,
    PenstockError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
)
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.append_times import AppendClock
from penstock.spark.arrays import integers, moment, repeated
from penstock.spark.option_values import PlainEvents
from penstock.spark.reading.plan import Block, Piece, Share, Times
from penstock.spark.records import RecordShape
from penstock.spark.schema import EVENT_TIME_BOUND, RECORD_COLUMNS

log = logging.getLogger("penstock.spark")

Source: TypeAlias = bytes | bytearray

Fetch: TypeAlias = Callable[[SegmentId, int, int], bytes]
"""Read a segment from an offset on: at least one byte, at most the given number. Blocks until there is one."""

Lose: TypeAlias = Callable[[SegmentId, int, int], None]
"""Called with a range of a segment's bytes that were deleted, from one offset to another."""

Erased: TypeAlias = Callable[[SegmentId, int, int], Sequence[tuple[int, int]]]
"""Erased ranges of a segment between two offsets, in order. Called after the bytes were read."""

_WINDOW_BYTES = 4 << 20
"""Bytes that are verified, parsed and returned together. They fit the CPU caches and give Spark batches of a good size."""

_BATCH_BYTES = 64 << 20
_EVENT_MAX = 1 << 30  # bytes; no event is larger
_EQUAL_MIN = 16  # events of one length in a row that are worth a vectorized step
_FEW = 512  # events above which the last check is one vectorized pass
_PROBES = 4  # bytes of an event that are probed before all of its bytes are
_LOOP = 1024  # events parsed one by one in one call
_HEADER = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes of a segment that begin at an event.

    ``offset``: of the first byte. ``places``: where each event begins in the view, and as the last item, where the last
    whole event ends. ``keep``: for each event, False if it was erased. None: no event was erased.
    """

    segment: SegmentId
    offset: int
    view: memoryview
    places: np.ndarray[Any, Any]
    keep: np.ndarray[Any, Any] | None = None

    @property
    def end(self) -> int:
        """The offset at which the last whole event ends."""
        return self.offset + int(self.places[-1])


class Shape:
    """Builds batches of one Arrow schema, which holds any of our columns in any order."""

    def __init__(
        self,
        schema: pa.Schema,
        stream: StreamName,
        batch_rows: int,
        *,
        time_bound_us: int | None = None,
        plain_events: PlainEvents = "fail",
    ) -> None:
        self.schema = schema
        self.batch_rows = batch_rows
        self._records = RecordShape(schema, plain_events) if {*schema.names} & {*RECORD_COLUMNS} else None
        self._time_bound = moment(time_bound_us)
        texts = {"scope": stream.scope, "stream": stream.stream}
        # Made once for the largest batch; a batch takes a slice, which copies nothing.
        self._texts = {name: repeated(text, batch_rows) for name, text in texts.items() if name in schema.names}

    def batches(self, window: Window, times: Times = ()) -> Iterator[pa.RecordBatch]:
        """Batches of the window's whole events. ``times``: append times of all its bytes; empty if no column needs them."""
        times_ms = AppendClock(times) if "append_time" in self.schema.names else None
        bounds = window.places
        first, last = 0, len(bounds) - 1
        while first < last:
            # A batch has 32-bit offsets, and should not be much larger than what the JVM reads at once.
            by_size = int(np.searchsorted(bounds, bounds[first] + _BATCH_BYTES, side="right")) - 1
            end = min(last, first + self.batch_rows, max(first + 1, by_size))
            keep = None if window.keep is None else window.keep[first:end]
            batch = self._batch(window, bounds[first : end + 1], times_ms, keep)
            if keep is not None:
                batch = batch.filter(pa.array(keep))
            if batch.num_rows:
                yield batch
            first = end

    def _batch(
        self,
        window: Window,
        bounds: np.ndarray[Any, Any],
        clock: AppendClock | None,
        keep: np.ndarray[Any, Any] | None,
    ) -> pa.RecordBatch:
        rows = len(bounds) - 1
        made = {} if self._records is None else self._records.columns(window.view, window.offset, bounds, keep)
        if clock is not None:
            made["append_time"] = clock.column(bounds[:-1] + window.offset)
        columns = [
            made[name] if name in made else self._column(name, window, bounds, rows) for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, name: str, window: Window, bounds: np.ndarray[Any, Any], rows: int) -> pa.Array:
        if name == "event":
            low, high = int(bounds[0]), int(bounds[-1])
            places = pa.py_buffer((bounds - low).astype(np.int32))
            framed = pa.Array.from_buffers(pa.binary(), rows, [None, places, pa.py_buffer(window.view[low:high])])
            # The stop is explicit because pyarrow 26 fails without one on short values ("negative buffer resize").
            return pc.binary_slice(framed, HEADER_BYTES, _EVENT_MAX)
        if name == "offset":
            return integers(bounds[:-1] + window.offset)
        if name == "segment_id":
            return integers(np.full(rows, window.segment, dtype=np.int64))
        if name == EVENT_TIME_BOUND:
            return pa.repeat(self._time_bound, rows)
        return self._texts[name].slice(0, rows)


def event_places(source: Source, start: int = 0, end: int | None = None) -> np.ndarray[Any, Any]:
    """Where each event of ``source[start:end]`` begins, and as the last item, where the last whole event ends.

    The result is int64, relative to ``start``, where an event must begin. Takes the buffer itself, because reading headers
    through a view costs three times as much. Raises CorruptDataError if no event can begin at ``position``, which is also
    relative to ``start``.
    """
    end = len(source) if end is None else end
    parts: list[np.ndarray[Any, Any]] = []
    at = start
    while at + HEADER_BYTES <= end:
        run, after = _equal_run(source, at, end)
        if run is None:
            run, after = _run(source, at, end)
            if after == at:
                _check_header(source, at, at - start)
                break
        parts.append(run)
        at = after
    parts.append(np.array([at], dtype=np.int64))
    return np.concatenate(parts) - start


def _check_header(source: Source, at: int, position: int) -> None:
    if _HEADER.unpack_from(source, at)[0] > _EVENT_MAX:
        raise CorruptDataError("no event begins at the offset", position=position)


def _equal_run(source: Source, at: int, end: int) -> tuple[np.ndarray[Any, Any] | None, int]:
    """Events of equal length from ``at`` on, found by comparing their headers. None if there are only a few."""
    length = _HEADER.unpack_from(source, at)[0]
    stride = length + HEADER_BYTES
    most = (end - at) // stride
    found, probe = 0, _EQUAL_MIN
    while found < most:
        upto = min(most, probe)
        # Correct by induction: the length of event 0 gives the start of event 1, whose header is the same, and so on.
        headers = np.ndarray((upto - found,), ">u8", source, at + found * stride, (stride,))
        unequal = np.flatnonzero(headers != length)
        if len(unequal):
            found += int(unequal[0])
            break
        found, probe = upto, probe * 8
    if found < _EQUAL_MIN:
        return None, at
    return at + np.arange(found, dtype=np.int64) * stride, at + found * stride


def _run(source: Source, at: int, end: int) -> tuple[np.ndarray[Any, Any], int]:
    unpack = _HEADER.unpack_from
    places: list[int] = []
    keep = places.append
    last = end - HEADER_BYTES
    for _ in repeat(None, _LOOP):
        if at > last:
            break
        # Unsigned, so that an invalid header points beyond the end and never backwards.
        after = at + HEADER_BYTES + unpack(source, at)[0]
        if after > end:
            break
        keep(at)
        at = after
    return np.array(places, dtype=np.int64), at


def read_share(
    share: Share, shape: Shape, fetch: Fetch, erased: Erased | None = None, lose: Lose | None = None
) -> Iterator[pa.RecordBatch]:
    """All events of a share, in order, as Arrow batches of at most ``shape.batch_rows`` rows. Erased events are left out.

    ``lose``: called with each range of deleted data, which is then skipped. Without it, deleted data is an error.
    Raises CorruptDataError (bytes fail their checksum in both the file and the store, or end inside an event), and what
    ``fetch`` raises.
    """
    places = _Places(only=share.only_direct)
    for piece in share.pieces:
        found = (
            _windows(piece, fetch, places, erased)
            if lose is None
            else _windows_left(piece, fetch, places, erased, lose)
        )
        for window in found:
            yield from shape.batches(_without_erased(window, erased), piece.times)


class _Places:
    """Directories whose chunks could not be read (no credentials, no route, no such disk). The task does not try them
    again for later chunks of its share."""

    def __init__(self, *, only: bool) -> None:
        self._only = only
        self._refused: set[str] = set()

    def open(self, piece: Piece) -> _File | _Object | None:
        """The bytes of a piece, or None if they must be read from the store. Raises UnavailableError if that is not
        allowed."""
        if piece.location is None or _directory(piece.location) in self._refused:
            return None
        found = _open(piece)
        if found is None and self._only:
            raise UnavailableError(
                "chunk cannot be read from here, and direct=always allows no other source; mount its disk or give this "
                "process credentials, or use direct=true. The log says why",
                chunk=piece.location,
                host=platform.node(),
            )
        if found is None:
            self._refused.add(_directory(piece.location))
        return found


def _directory(location: str) -> str:
    return location.partition("?")[0].rpartition("/")[0]


def _windows(piece: Piece, fetch: Fetch, places: _Places, erased: Erased | None) -> Iterator[Window]:
    source = places.open(piece)
    return _fetched(piece, fetch) if source is None else _verified(piece, source, fetch, erased)


def _windows_left(piece: Piece, fetch: Fetch, places: _Places, erased: Erased | None, lose: Lose) -> Iterator[Window]:
    """Like ``_windows``, for the data that still exists. A lease does not cover untiered data, so that data can be deleted
    between plan and read."""
    at = piece.start
    while at < piece.end:
        try:
            # The next read begins at an event: at the planned start, or at the new head of the segment.
            left = piece if at == piece.start else replace(piece, start=at, location=None)
            for window in _windows(left, fetch, places, erased):
                yield window
                at = window.end
        except TruncatedError as error:
            if error.start_offset <= at:
                raise
            begin = min(piece.end, error.start_offset)
        except SegmentNotFoundError:
            begin = piece.end
        else:
            return
        lose(piece.segment, at, begin)
        at = begin


def _without_erased(window: Window, erased: Erased | None) -> Window:
    blank = blank_events(window) if erased is not None else ()
    if erased is None or not len(blank):
        return window
    ranges = erased(window.segment, window.offset, window.end)
    keep = np.ones(len(window.places) - 1, dtype=bool)
    for index in blank:
        start, end = (int(place) + window.offset for place in window.places[index : index + 2])
        keep[index] = not covers(ranges, start + HEADER_BYTES, end)
    return window if keep.all() else replace(window, keep=keep)


def blank_events(window: Window) -> np.ndarray[Any, Any]:
    """The numbers of the window's events that consist of one or more zero bytes only."""
    data = np.frombuffer(window.view, dtype=np.uint8)
    # The first byte nearly always decides. For an empty event it is a byte of the next event.
    found: np.ndarray[Any, Any] = np.flatnonzero(data.take(window.places[:-1] + HEADER_BYTES, mode="clip") == 0)
    if not len(found):
        return found
    starts, sizes = window.places[found] + HEADER_BYTES, window.places[found + 1] - window.places[found] - HEADER_BYTES
    for part in range(_PROBES, 0, -1):
        probed = (sizes > 0) & (data.take(starts + (sizes - 1) * part // _PROBES, mode="clip") == 0)
        found, starts, sizes = found[probed], starts[probed], sizes[probed]
        if not len(found):
            return found
    if len(found) > _FEW:
        # Without the last byte of each event, which was probed above.
        most = np.maximum.reduceat(data, np.stack([starts, starts + sizes - 1], axis=1).ravel())[::2]
        blank = most == 0
    else:
        ends = starts + sizes
        blank = np.array([not data[start:end].any() for start, end in zip(starts, ends, strict=True)], dtype=bool)
    few: np.ndarray[Any, Any] = found[blank]
    return few


def _window(segment: SegmentId, offset: int, source: Source, start: int = 0, end: int | None = None) -> Window:
    """The whole events at the beginning of ``source[start:end]``, without a partial event at its end."""
    try:
        places = event_places(source, start, end)
    except CorruptDataError as error:
        raise CorruptDataError(error.message, segment=segment, offset=offset + error.fields["position"]) from None
    return Window(segment, offset, memoryview(source)[start:end], places)


def _torn(piece: Piece, offset: int) -> CorruptDataError:
    return CorruptDataError("bytes end inside an event", segment=piece.segment, offset=offset, end=piece.end)


class _File:
    """A chunk's file, read window by window into reused memory: a window is invalid once the next one is requested."""

    def __init__(self, descriptor: int, start: int) -> None:
        self._descriptor = descriptor
        self._start = start
        self._room = bytearray()

    def read(self, low: int, high: int) -> tuple[Source, int, int]:
        """Bytes ``low <= offset < high`` of the segment: the buffer, and their start and end in it. Fewer if the file ends
        earlier."""
        size = high - low
        if len(self._room) < size:
            self._room = bytearray(size)
        view = memoryview(self._room)[:size]
        done = 0
        while done < size:
            count = os.preadv(self._descriptor, [view[done:]], low - self._start + done)
            if not count:
                break
            done += count
        return self._room, 0, done

    def close(self) -> None:
        os.close(self._descriptor)


class _Object:
    """A piece of an object, fetched whole; ``start`` is the segment's offset of its first byte."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._start = start

    def read(self, low: int, high: int) -> tuple[Source, int, int]:
        return self._data, low - self._start, min(high - self._start, len(self._data))

    def close(self) -> None:
        """Does nothing: an object is not kept open."""


def _open(piece: Piece) -> _File | _Object | None:
    """The bytes of a piece, or None if they must be read from the store."""
    if piece.location is None:
        return None
    if "://" in piece.location:
        return _download(piece, piece.location)
    return _open_file(piece, piece.location)


def _download(piece: Piece, location: str) -> _Object | None:
    """Fetch a piece of an object with one request. A piece is no larger than a task's share, and each request costs as
    much time as several megabytes."""
    try:
        from penstock.storage.objects.locations import read_location

        data = read_location(location, piece.start - piece.chunk_start, piece.size_bytes)
    except (PenstockError, OSError, ImportError) as error:
        # No credentials, no library or no route. This is no error as long as the store can read the bytes.
        log.warning(
            "object cannot be read here, the store is asked unless direct=always. chunk=%s error=%s", location, error
        )
        return None
    return _Object(data, piece.start)


def _open_file(piece: Piece, location: str) -> _File | None:
    """The file of a piece, or None if the bytes must be read from the store."""
    try:
        descriptor = os.open(location, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        # No shared disk, the lease ran out, or bytes were erased. This is no error as long as the store can read the bytes.
        log.warning("no chunk file here, the store is asked unless direct=always. chunk=%s error=%s", location, error)
        return None
    if os.fstat(descriptor).st_size < piece.end - piece.chunk_start:
        os.close(descriptor)
        log.warning("chunk file is too short, the store is asked unless direct=always. chunk=%s", location)
        return None
    return _File(descriptor, piece.chunk_start)


def _verified(piece: Piece, chunk: _File | _Object, fetch: Fetch, erased: Erased | None) -> Iterator[Window]:
    at = piece.start
    try:
        for blocks, end in _runs(piece):
            source, low, high = chunk.read(at, end)
            if high - low == end - at and _intact(memoryview(source)[low:high], at, blocks):
                window = _window(piece.segment, at, source, low, high)
            else:
                window = _asked(piece, at, end, blocks, fetch, erased)
            if window.end != end:
                raise _torn(piece, window.end)
            yield window
            at = end
    finally:
        chunk.close()


def _asked(piece: Piece, at: int, end: int, blocks: Sequence[Block], fetch: Fetch, erased: Erased | None) -> Window:
    """Read bytes from the store that failed their checksum in the chunk. They differ from the plan if some were erased
    since. The store verifies what it sends."""
    log.warning("chunk fails its checksum, asking the store", extra={"chunk": piece.location, "offset": at})
    data = b"".join(_parts(piece.segment, at, end, fetch))
    if not _intact(memoryview(data), at, blocks) and not (erased and erased(piece.segment, at, end)):
        raise CorruptDataError(
            "stored bytes fail their checksum", chunk=piece.location, segment=piece.segment, start=at, end=end
        )
    return _window(piece.segment, at, data)


def _runs(piece: Piece) -> Iterator[tuple[Sequence[Block], int]]:
    """Cut a piece where events begin at block bounds into windows: the blocks in each, and where it ends."""
    start, kept = piece.start, 0
    for index, block in enumerate(piece.blocks):
        if block.begins and block.start > start and block.end - start > _WINDOW_BYTES:
            yield piece.blocks[kept:index], block.start
            start, kept = block.start, index
    yield piece.blocks[kept:], piece.end


def _intact(view: memoryview, offset: int, blocks: Sequence[Block]) -> bool:
    return all(crc32c(view[block.start - offset : block.end - offset]) == block.crc32c for block in blocks)


def _parts(segment: SegmentId, start: int, end: int, fetch: Fetch) -> Iterator[bytes]:
    at = start
    while at < end:
        part = fetch(segment, at, end - at)
        yield part
        at += len(part)


def _fetched(piece: Piece, fetch: Fetch) -> Iterator[Window]:
    at, needed = piece.start, 0
    waiting: list[bytes | memoryview] = []
    for part in _parts(piece.segment, piece.start, piece.end, fetch):
        waiting.append(part)
        needed -= len(part)
        if needed > 0:
            continue  # the bytes end inside one large event: parse it once, when it is complete
        window = _window(piece.segment, at, b"".join(waiting))
        yield window
        rest = window.view[window.end - at :]
        waiting, at = [rest], window.end
        header = HEADER_BYTES - len(rest)
        needed = header if header > 0 else HEADER_BYTES + int(_HEADER.unpack_from(rest)[0]) - len(rest)
    if at != piece.end:
        raise _torn(piece, at)
