"""Events inside a segment: ``int32 0, int32 length, data``, big-endian, back to back.

Type 0 and a length below 2 GiB make the header one non-negative big-endian int64: the length itself. All code here
reads and writes it that way.

Source: Pravega's wire protocol, type ``Event``; docs/design/0008-client.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct, iter_unpack

from penstock.model.errors import CorruptDataError

HEADER_BYTES = 8
EVENT_MAX_BYTES = 8 << 20
"""Largest event that is appended as part of a block. Larger ones need a transient segment and a merge."""

_LENGTH_MAX = (1 << 31) - 1  # bytes; the header has a signed 32-bit length
_HEADER = Struct(">q")
_CACHE_MAX = 1 << 16  # headers that are remembered, one for each length


class Headers(dict[int, bytes]):
    """Header bytes by event length, made on first use; at most 65536 are remembered."""

    def __missing__(self, length: int) -> bytes:
        header = _HEADER.pack(length)
        if len(self) < _CACHE_MAX:
            self[length] = header
        return header


_HEADERS = Headers()


def event_header(length: int) -> bytes:
    """The header of an event of ``length`` bytes: eight bytes."""
    return _HEADERS[length]


def frame_events(events: Sequence[bytes]) -> bytes:
    """The events with their headers, back to back: the data of an append. All in C: about 85 ns per event, or half of
    that if all have the same length."""
    # If three lengths agree, compare all of them: that costs a fifth of a join with different headers.
    likely = len(events) > 1 and len(events[0]) == len(events[-1]) == len(events[len(events) // 2])
    if likely and len(set(map(len, events))) == 1:
        return _HEADERS[len(events[0])].join((b"", *events))
    headers = map(_HEADERS.__getitem__, map(len, events))
    return b"".join(chain.from_iterable(zip(headers, events, strict=True)))


def event_bounds(block: bytes | bytearray, *, segment: str = "", offset: int = 0) -> Sequence[int]:
    """The offsets at which the events of ``block`` begin, and finally the end of the last whole event. Never empty.

    ``block`` begins at an event; a cut-off event at its end is left out. Event ``i`` with its header is
    ``block[bounds[i]:bounds[i + 1]]``. Equal lengths give a ``range``, found without a loop over the events.

    Raises:
        CorruptDataError: There is no event header where an event must begin. ``segment`` and ``offset`` (of the block)
            go into the message.
    """
    end = len(block)
    if end < HEADER_BYTES:
        return range(1)
    equal = _equal_bounds(block)
    if equal is not None:
        return equal
    bounds = [0]
    keep = bounds.append
    unpack = _HEADER.unpack_from
    position = 0
    last_header = end - HEADER_BYTES
    while position <= last_header:
        length = unpack(block, position)[0]
        if not 0 <= length <= _LENGTH_MAX:
            raise CorruptDataError("no event begins at the offset", segment=segment, offset=offset + position)
        position += HEADER_BYTES + length
        if position > end:
            break
        keep(position)
    return bounds


def event_size(block: bytes, *, segment: str = "", offset: int = 0) -> int:
    """Size of the first event with its header, bytes; the event may end after the block. Raises CorruptDataError if no
    event begins there. ``segment`` and ``offset`` (of the block) go into the message."""
    if len(block) >= HEADER_BYTES:
        length: int = _HEADER.unpack_from(block, 0)[0]
        if 0 <= length <= _LENGTH_MAX:
            return HEADER_BYTES + length
    raise CorruptDataError("no event begins at the offset", segment=segment, offset=offset)


def _equal_bounds(block: bytes | bytearray) -> range | None:
    """Bounds of a block whose events all have one length, or None. Compares the eight header columns as strided slices."""
    length = _HEADER.unpack_from(block, 0)[0]
    stride = HEADER_BYTES + length
    count = len(block) // stride if length >= 0 else 0
    if count < 2 or length > _LENGTH_MAX or block[stride : stride + HEADER_BYTES] != block[:HEADER_BYTES]:
        return None
    end = count * stride
    for column in range(HEADER_BYTES):
        # Correct by induction: event 0 determines the start of event 1, whose header is the same, and so on.
        if block[column:end:stride] != block[column : column + 1] * count:
            return None
    if len(block) - end >= HEADER_BYTES and block[end : end + HEADER_BYTES] != block[:HEADER_BYTES]:
        return None  # the rest contains another event, which may be whole
    return range(0, end + 1, stride)


def missing_bytes(block: bytes | bytearray, position: int) -> int:
    """How many more bytes the event at ``position`` needs, according to the known part of its header; at least 1."""
    have = len(block) - position
    if have < HEADER_BYTES:
        return HEADER_BYTES - have
    return max(1, HEADER_BYTES + int(_HEADER.unpack_from(block, position)[0]) - have)


def cut_events(block: bytes | bytearray, bounds: Sequence[int]) -> list[bytes]:
    """The data of each event between ``bounds`` (from ``event_bounds``), in order."""
    if len(bounds) < 2:
        return []
    if isinstance(bounds, range):
        body = memoryview(block)[: bounds[-1]]
        return list(chain.from_iterable(iter_unpack(f"{HEADER_BYTES}x{bounds.step - HEADER_BYTES}s", body)))
    starts = [bound + HEADER_BYTES for bound in bounds]
    block = bytes(block)  # a copy only of a bytearray, whose slices are no bytes
    return [block[start:end] for start, end in zip(starts, bounds[1:], strict=False)]


def split_events(block: bytes) -> list[bytes]:
    """The events of a block of whole events. Raises CorruptDataError if the block holds anything else."""
    bounds = event_bounds(block)
    if bounds[-1] != len(block):
        raise CorruptDataError("block does not end at an event", end=bounds[-1], length=len(block))
    return cut_events(block, bounds)
