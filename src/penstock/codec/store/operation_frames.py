"""Frames of the log: a header, followed by the operations of one container that became durable together.

The log covers a frame with its own checksum, so there is none here. Source: docs/formats/operations.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.codec.store.operations import APPEND, KIND_APPEND, Change, Operation, decode, decode_change, encode
from penstock.model.errors import CorruptDataError, VersionTooNewError

VERSION = 4
"""2: the kinds from ``KIND_KEEP`` on. 3: those from ``KIND_ADOPT`` on. 4: those from ``KIND_LEASE`` on. Frames of earlier
versions are read as well."""
FRAME = struct.Struct(">BBHIq")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """Which container wrote the frame, when (milliseconds since the Unix epoch), and how many operations follow."""

    container: int
    count: int
    time_ms: int


@dataclass(slots=True, kw_only=True)
class AppendRun:
    """Appends of one frame to one segment, back to back from ``offset`` to ``end``.

    ``items``: data (a view of the frame), event count, writer and event number of each, in order. ``last``: the last
    event number of each writer among them.
    """

    uid: int
    offset: int
    end: int
    event_count: int
    items: list[tuple[memoryview, int, int, int]]
    last: dict[int, int]


def encode_frame_header(header: FrameHeader) -> bytes:
    return frame_header(header.container, header.count, header.time_ms)


def frame_header(container: int, count: int, time_ms: int) -> bytes:
    """The same with positional arguments, because it runs once per commit."""
    return FRAME.pack(VERSION, 0, container, count, time_ms)


def encode_frame(container: int, time_ms: int, operations: Iterable[Operation]) -> bytes:
    """A whole frame. The append path builds the same bytes in parts, without copying large data."""
    bodies = [encode(operation) for operation in operations]
    header = FrameHeader(container=container, count=len(bodies), time_ms=time_ms)
    return encode_frame_header(header) + b"".join(bodies)


def decode_frame_header(frame: bytes | memoryview) -> FrameHeader:
    """Raises CorruptDataError (too short), VersionTooNewError."""
    if len(frame) < FRAME.size:
        raise CorruptDataError("log frame is shorter than its header", size_bytes=len(frame))
    version, _, container, count, time_ms = FRAME.unpack_from(frame)
    if version > VERSION:
        raise VersionTooNewError("log frame was written by a newer version", version=version, known=VERSION)
    if version < 1:
        raise CorruptDataError("log frame has an invalid version", version=version)
    return FrameHeader(container=container, count=count, time_ms=time_ms)


def decode_operations(frame: bytes | memoryview) -> Iterator[Operation]:
    """The operations of a frame, in order; their data is a view of it. Raises CorruptDataError if it is not a frame."""
    header = decode_frame_header(frame)
    view = memoryview(frame)
    position = FRAME.size
    try:
        for _ in range(header.count):
            operation, position = decode(view, position)
            yield operation
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptDataError("log frame ends within an operation", position=position) from error
    if position != len(view):
        raise CorruptDataError("log frame has surplus bytes", position=position, size_bytes=len(view))


def decode_runs(frame: bytes | memoryview) -> Iterator[AppendRun | Change]:
    """As ``decode_operations``, with the appends gathered by segment: a log holds millions of them.

    Between two other operations, runs of different segments are ordered by their first append; the order within a
    segment does not change.
    """
    header = decode_frame_header(frame)
    view = memoryview(frame)
    position, size_bytes = FRAME.size, len(view)
    unpack, head_bytes = APPEND.unpack_from, APPEND.size
    runs: dict[int, AppendRun] = {}
    try:
        for _ in range(header.count):
            if view[position] != KIND_APPEND:
                yield from runs.values()
                runs.clear()
                change, position = decode_change(view, position)
                yield change
                continue
            _, uid, offset, writer, number, count, length = unpack(view, position)
            start = position + head_bytes
            position = start + length
            if position > size_bytes:
                raise CorruptDataError("log frame ends within an operation", position=start, size_bytes=size_bytes)
            run = runs.get(uid)
            if run is None or run.end != offset:
                if run is not None:
                    # Damage, or two incarnations of the segment: the code that applies the run detects the gap.
                    yield from runs.values()
                    runs.clear()
                run = runs[uid] = AppendRun(uid=uid, offset=offset, end=offset, event_count=0, items=[], last={})
            writer_id = int.from_bytes(writer, "big")
            run.items.append((view[start:position], count, writer_id, number))
            run.last[writer_id] = number
            run.event_count += count
            run.end += length
        yield from runs.values()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptDataError("log frame ends within an operation", position=position) from error
    if position != size_bytes:
        raise CorruptDataError("log frame has surplus bytes", position=position, size_bytes=size_bytes)
