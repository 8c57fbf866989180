"""Frames of the log: a header, followed by the operations of one container that became durable together.

The log covers a frame with its own checksum, so there is none here. Source: docs/formats/operations.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from penstock.codec.store.operations import APPEND, KIND_APPEND, Change, Operation, decode, decode_change, encode
from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION = 4
"""2: the kinds from ``KIND_KEEP`` on. 3: those from ``KIND_ADOPT`` on. 4: those from ``KIND_LEASE`` on. Frames of earlier
versions are read as well."""
FRAME = struct.Struct(">BBHIq")
RUN_BYTES = 16 << 10
"""A larger append is a run of its own: its bytes are used where they lie, those of smaller ones are copied together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """Which container wrote the frame, when (milliseconds since the Unix epoch), and how many operations follow."""

    container: int
    count: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class AppendRun:
    """Appends of one frame to one segment, back to back from ``offset`` to ``end``.

    ``heads``: the fields of ``APPEND`` of each, in order. ``parts``: their data, as views of the frame. A log holds
    millions of appends, so decoding only collects these; the rest is computed for the whole run.
    """

    heads: list[tuple[int, int, int, bytes, int, int, int]]
    parts: list[memoryview]

    @property
    def uid(self) -> int:
        return self.heads[0][1]

    @property
    def offset(self) -> int:
        return self.heads[0][2]

    @property
    def end(self) -> int:
        return self.heads[-1][2] + self.heads[-1][6]

    @property
    def data(self) -> bytes | memoryview:
        """All bytes of the run; those of a single append are a view of the frame."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def event_count(self) -> int:
        return sum([head[5] for head in self.heads])

    def last_numbers(self) -> dict[int, int]:
        """The last event number of each writer."""
        last = {head[3]: head[4] for head in self.heads}
        return {int.from_bytes(writer, "big"): number for writer, number in last.items()}

    def number_before(self, writer: int) -> int:
        """The writer's number before the run, as its first append counts back."""
        raw = writer.to_bytes(16, "big")
        return next(number - count for _, _, _, who, number, count, _ in self.heads if who == raw)

    def appends(self) -> Iterator[AppendRun]:
        """A run for each append."""
        for head, part in zip(self.heads, self.parts, strict=True):
            yield AppendRun([head], [part])


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
    segment does not change. A run of more than one append has at most ``RUN_BYTES``.
    """
    header = decode_frame_header(frame)
    view = memoryview(frame)
    position, size_bytes = FRAME.size, len(view)
    unpack, head_bytes = APPEND.unpack_from, APPEND.size
    runs: dict[int, AppendRun] = {}
    current = expected = limit = -1  # segment of the last append, its end, and the furthest end of its run
    try:
        for _ in range(header.count):
            if view[position] != KIND_APPEND:
                yield from runs.values()
                runs.clear()
                current = -1
                change, position = decode_change(view, position)
                yield change
                continue
            head = unpack(view, position)
            _, uid, offset, _, _, _, length = head
            end = offset + length
            if uid != current or offset != expected or end > limit:
                run = runs.get(uid)
                if run is None or run.end != offset or end - run.offset > RUN_BYTES:
                    if run is not None:
                        # The run is full. Or damage, or two incarnations of the segment: the code that applies the run
                        # detects the gap.
                        yield from runs.values()
                        runs.clear()
                    run = runs[uid] = AppendRun([head], [])
                else:
                    run.heads.append(head)
                current, limit = uid, run.offset + RUN_BYTES
                add_head, add_part = run.heads.append, run.parts.append
            else:
                add_head(head)
            start = position + head_bytes
            position = start + length
            add_part(view[start:position])
            expected = end
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CorruptDataError("log frame ends within an operation", position=position) from error
    if position != size_bytes:
        why = "has surplus bytes" if position < size_bytes else "ends within an operation"
        raise CorruptDataError(f"log frame {why}", position=position, size_bytes=size_bytes)
    # An append that is cut short is the last one, so its run was not returned.
    yield from runs.values()
