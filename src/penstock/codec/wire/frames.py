"""Frames of Pravega's segment-store protocol: bytes to commands and back, without I/O and without copying payloads.

A frame is ``int32 type, int32 length`` and ``length`` bytes of payload. Source: docs/formats/wire.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import Layout, WireFailure
from penstock.model.errors import InvalidArgumentError, ProtocolError

VERSION_HIGH = 17
VERSION_LOW = 5
FRAME_MAX_BYTES = 0x00FFFFFF
HEADER = struct.Struct(">ii")
APPEND_MANY = 1001  # type of a command of our own; Pravega's types end below 1,000
MANY_APPENDED = 1002
"""Our own types: used only after client and server have announced support to each other."""
HEADS_MAX = 4096  # appends of one command; bounds what a peer can make the server allocate

EVENT = 0  # type numbers of Pravega's protocol, as are the two below
PADDING = -1  # as above
PARTIAL_EVENT = -2  # as above

Command: TypeAlias = tuple[Any, ...]
"""Any of the named tuples of ``wire_commands`` and ``wire_table_commands``."""


class Spec(NamedTuple):
    """How one command is encoded. ``is_request``: a client may send it to a server."""

    code: int
    kind: Callable[..., Command]
    layout: Layout
    is_request: bool


def _spec(code: int, kind: Callable[..., Command], layout: str, *, request: bool = False) -> Spec:
    return Spec(code, kind, Layout(layout), request)


SPECS: tuple[Spec, ...] = (
    _spec(-127, c.Hello, "ii", request=True),
    _spec(100, c.KeepAlive, "|R", request=True),
    _spec(1, c.SetupAppend, "qWuu", request=True),
    _spec(2, c.AppendSetup, "quWq|i"),
    _spec(3, c.AppendBlock, "WR", request=True),
    _spec(4, c.AppendBlockEnd, "WiBiq|q", request=True),
    _spec(5, c.ConditionalAppend, "WqqV|q", request=True),
    _spec(89, c.ConditionalBlockEnd, "WqqBq", request=True),
    _spec(7, c.DataAppended, "Wqqq|q"),
    _spec(APPEND_MANY, c.AppendMany, "qHR", request=True),
    _spec(MANY_APPENDED, c.ManyAppended, "qQF"),
    _spec(8, c.ConditionalCheckFailed, "Wq|q"),
    _spec(55, c.InvalidEventNumber, "Wq|uq"),
    _spec(9, c.ReadSegment, "uqiuq", request=True),
    _spec(10, c.SegmentRead, "uq??Bq"),
    _spec(11, c.GetStreamSegmentInfo, "quu", request=True),
    _spec(12, c.StreamSegmentInfo, "qu???qqq"),
    _spec(41, c.LocateOffset, "ququ", request=True),
    _spec(42, c.OffsetLocated, "quq"),
    _spec(20, c.CreateSegment, "quibu|q", request=True),
    _spec(21, c.SegmentCreated, "qu"),
    _spec(28, c.SealSegment, "quu", request=True),
    _spec(29, c.SegmentSealed, "qu"),
    _spec(30, c.DeleteSegment, "quu", request=True),
    _spec(31, c.SegmentDeleted, "qu"),
    _spec(32, c.UpdateSegmentPolicy, "quibu", request=True),
    _spec(33, c.SegmentPolicyUpdated, "qu"),
    _spec(34, c.GetSegmentAttribute, "quUu", request=True),
    _spec(35, c.SegmentAttribute, "qq"),
    _spec(36, c.UpdateSegmentAttribute, "quUqqu", request=True),
    _spec(37, c.SegmentAttributeUpdated, "q?"),
    _spec(38, c.TruncateSegment, "ququ", request=True),
    _spec(39, c.SegmentTruncated, "qu"),
    _spec(40, c.CreateTransientSegment, "qUuu", request=True),
    _spec(58, c.MergeSegments, "quuu|A", request=True),
    _spec(59, c.SegmentsMerged, "quuq"),
    _spec(90, c.MergeSegmentsBatch, "quSu", request=True),
    _spec(91, c.SegmentsBatchMerged, "quSQ"),
    _spec(-3, c.FlushToStorage, "iuq", request=True),
    _spec(-4, c.StorageFlushed, "q"),
    _spec(-5, c.ListStorageChunks, "uuq", request=True),
    _spec(-6, c.StorageChunksListed, "qC"),
    _spec(50, c.WrongHost, "quuu"),
    _spec(51, c.SegmentIsSealed, "quu|q"),
    _spec(52, c.SegmentAlreadyExists, "quu"),
    _spec(53, c.NoSuchSegment, "quu|q"),
    _spec(56, c.SegmentIsTruncated, "ququ|q"),
    _spec(57, c.OperationUnsupported, "quu"),
    _spec(60, c.AuthTokenCheckFailed, "qu|i"),
    _spec(61, c.ErrorMessage, "quui"),
    _spec(80, t.TableSegmentNotEmpty, "quu"),
    _spec(81, t.TableKeyDoesNotExist, "quu"),
    _spec(82, t.TableKeyBadVersion, "quu"),
    _spec(68, t.GetTableSegmentInfo, "quu", request=True),
    _spec(69, t.TableSegmentInfo, "quqqqi"),
    _spec(70, t.CreateTableSegment, "quu|?iq", request=True),
    _spec(71, t.DeleteTableSegment, "qu?u", request=True),
    _spec(74, t.UpdateTableEntries, "quuE|q", request=True),
    _spec(75, t.TableEntriesUpdated, "qQ"),
    _spec(76, t.RemoveTableKeys, "quuK|q", request=True),
    _spec(77, t.TableKeysRemoved, "qu"),
    _spec(78, t.ReadTable, "quuK", request=True),
    _spec(79, t.TableRead, "quE"),
    _spec(83, t.ReadTableKeys, "quuiB|iBB", request=True),
    _spec(84, t.TableKeysRead, "quKB"),
    _spec(85, t.ReadTableEntries, "quuiB|iBB", request=True),
    _spec(86, t.TableEntriesRead, "quEB"),
    _spec(88, t.ReadTableEntriesDelta, "quuqi", request=True),
    _spec(87, t.TableEntriesDeltaRead, "quE??q"),
    _spec(1003, c.CallController, "quB", request=True),
    _spec(1004, c.ControllerAnswered, "qBB"),
    _spec(1005, c.ControllerRefused, "qB"),
)

_BY_KIND: dict[Any, Spec] = {spec.kind: spec for spec in SPECS}
_BY_CODE: dict[int, Spec] = {spec.code: spec for spec in SPECS}
REQUEST_CODES = frozenset(spec.code for spec in SPECS if spec.is_request)
REPLY_CODES = frozenset(spec.code for spec in SPECS if not spec.is_request) | {-127, 100}

_BLOCK_END_HEAD = struct.Struct(">16sii")
_BLOCK_END_TAIL = struct.Struct(">iqq")
_BLOCK_END_FRAME = struct.Struct(">ii16sii")
_BLOCK_END_SHORT_TAIL = struct.Struct(">iq")
BLOCK_END_DATA_AT = _BLOCK_END_HEAD.size
"""The position in the payload at which the data of an AppendBlockEnd begins."""
_BLOCK_END_FIXED_BYTES = _BLOCK_END_HEAD.size + _BLOCK_END_TAIL.size
BLOCK_END_LEAST_BYTES = HEADER.size + _BLOCK_END_FIXED_BYTES
"""Size of the frame of an AppendBlockEnd without data."""
_SPLIT_AT = 8 << 20  # bytes sent ahead in a block if an append exceeds one frame
_DATA_APPENDED = struct.Struct(">ii16sqqqq")
_DATA_APPENDED_BODY = struct.Struct(">16sqqqq")
_MANY = struct.Struct(">qi")
_HEAD = struct.Struct(">iiqi")
_LENGTH = struct.Struct(">H")
_READ_MIDDLE = struct.Struct(">qiH")
_KNOWN_READS = 1024  # reads that are kept decoded
_KNOWN_READ_BYTES = 256  # longer ones, with a long token, are not kept
_INT32 = struct.Struct(">i")
_TWO_INT32 = struct.Struct(">ii")
RID = _INT64 = struct.Struct(">q")
_int64_at = _INT64.unpack_from
_new_tuple = tuple.__new__
_ReadSegment = c.ReadSegment  # looking up a global is faster than an attribute of a module


def encode(command: Command) -> bytes:
    """One whole frame. Payloads are copied; the functions below avoid that for large ones.

    Raises InvalidArgumentError if a field does not fit or the frame would exceed ``FRAME_MAX_BYTES``.
    """
    spec = _BY_KIND.get(type(command))
    if spec is None:
        raise InvalidArgumentError("not a wire command", kind=type(command).__name__)
    out = bytearray(HEADER.size)
    try:
        spec.layout.write(out, command)
    except struct.error as error:
        raise InvalidArgumentError("a field does not fit into its wire form", kind=type(command).__name__) from error
    size = len(out) - HEADER.size
    if size > FRAME_MAX_BYTES:
        raise InvalidArgumentError("frame is too large", size_bytes=size, limit_bytes=FRAME_MAX_BYTES)
    HEADER.pack_into(out, 0, spec.code, size)
    return bytes(out)


def decode(code: int, payload: memoryview) -> Command:
    """The command of a frame. Its payload fields are views of ``payload``. Raises ProtocolError."""
    fast = _FAST.get(code)
    try:
        if fast is not None:
            return fast(payload)
        spec = _BY_CODE.get(code)
        if spec is None:
            raise ProtocolError("command is not known", code=code)
        return spec.kind(*spec.layout.read(payload))
    except struct.error as error:
        raise ProtocolError("command is incomplete", code=code, size_bytes=len(payload)) from error


def check_header(code: int, length: int, allowed: frozenset[int]) -> None:
    """Raise ProtocolError unless a frame may begin with this header."""
    if not 0 <= length <= FRAME_MAX_BYTES:
        raise ProtocolError("length of a frame is out of range", code=code, length=length)
    if code not in allowed:
        raise ProtocolError("command is not expected here", code=code, length=length)


def decode_block_end(view: memoryview) -> c.AppendBlockEnd:
    """The AppendBlockEnd of a frame; a faster ``decode`` for the append path. Raises ProtocolError."""
    try:
        writer, whole, size = _BLOCK_END_HEAD.unpack_from(view)
        end = BLOCK_END_DATA_AT + size
        if size < 0 or end > len(view):
            raise ProtocolError("length of a field lies outside its frame", length=size, available=len(view))
        if len(view) - end < _BLOCK_END_TAIL.size:
            (count, number), rid = _BLOCK_END_SHORT_TAIL.unpack_from(view, end), -1
        else:
            count, number, rid = _BLOCK_END_TAIL.unpack_from(view, end)
    except struct.error as error:
        raise ProtocolError("command is incomplete", code=4, size_bytes=len(view)) from error
    return c.AppendBlockEnd(writer, whole, view[BLOCK_END_DATA_AT:end], count, number, rid)


class BlockRun(NamedTuple):
    """AppendBlockEnds of one writer that arrived one after the other; ``data``: views. Their numbers count their events:
    each is ``counts`` above the one before, and the last is ``last_number``."""

    data: list[memoryview]
    counts: list[int]
    rids: list[int]
    last_number: int


def decode_block_ends(
    view: memoryview, at: int, end: int, *, writer: bytes, last_number: int, most_bytes: int, extra_bytes: int
) -> tuple[BlockRun, int]:
    """The whole AppendBlockEnds of the writer from ``at`` on, up to ``end``, and the position behind them.

    Each has events and data, and continues the number of the one before, which is ``last_number`` at first. Their data,
    with ``extra_bytes`` for each, are at most ``most_bytes``. Any other frame, a faulty one too, is left to ``decode``.
    """
    data: list[memoryview] = []
    counts: list[int] = []
    rids: list[int] = []
    head_of, tail_of = _BLOCK_END_FRAME.unpack_from, _BLOCK_END_TAIL.unpack_from
    head_bytes, tail_bytes, fixed_bytes = _BLOCK_END_FRAME.size, _BLOCK_END_TAIL.size, _BLOCK_END_FIXED_BYTES
    while at + BLOCK_END_LEAST_BYTES <= end:
        code, length, who, _, size = head_of(view, at)
        if code != 4 or who != writer or length != size + fixed_bytes or size <= 0:
            break
        start = at + head_bytes
        behind = start + size
        after = behind + tail_bytes
        most_bytes -= size + extra_bytes
        if after > end or most_bytes < 0:
            break
        count, number, rid = tail_of(view, behind)
        if count <= 0 or number != last_number + count:
            break
        data.append(view[start:behind])
        counts.append(count)
        rids.append(rid)
        last_number = number
        at = after
    return BlockRun(data, counts, rids, last_number), at


def _decode_block(view: memoryview) -> c.AppendBlock:
    if len(view) < 16:
        raise ProtocolError("command is incomplete", code=3, size_bytes=len(view))
    return c.AppendBlock(bytes(view[:16]), view[16:])


def _decode_data_appended(view: memoryview) -> c.DataAppended:
    if len(view) < _DATA_APPENDED_BODY.size:
        return c.DataAppended(*struct.unpack_from(">16sqqq", view))
    return c.DataAppended(*_DATA_APPENDED_BODY.unpack_from(view))


def _decode_many_appended(view: memoryview) -> c.ManyAppended:
    rid, count = _MANY.unpack_from(view)
    at = _MANY.size + 8 * count
    if count < 0 or at + _INT32.size > len(view):
        raise ProtocolError("count of a list lies outside its frame", count=count, available=len(view))
    lengths = struct.unpack_from(f">{count}q", view, _MANY.size)
    (failed,) = _INT32.unpack_from(view, at)
    at += _INT32.size
    failures: list[WireFailure] = []
    for _ in range(failed):
        index, size = _TWO_INT32.unpack_from(view, at)
        at += _TWO_INT32.size + size
        if size < 0 or at > len(view):
            raise ProtocolError("length of a field lies outside its frame", length=size, available=len(view))
        failures.append(WireFailure(index, bytes(view[at - size : at])))
    return c.ManyAppended(rid, lengths, tuple(failures))


def _decode_read(view: memoryview) -> c.ReadSegment:
    head = view[:-8].tobytes()
    fields, at = _read_fields(head) if len(head) <= _KNOWN_READ_BYTES else _read_fields.__wrapped__(head)
    return _new_tuple(_ReadSegment, (*fields, _int64_at(view, at)[0]))


@lru_cache(_KNOWN_READS)
def _read_fields(head: bytes) -> tuple[tuple[str, int, int, str], int]:
    """Decode the fields of a ReadSegment before its number. Returns them and their size. All readers of a tail send
    the same."""
    at = _LENGTH.size + int(_LENGTH.unpack_from(head)[0])
    offset, suggested, token = _READ_MIDDLE.unpack_from(head, at)
    start = at + _READ_MIDDLE.size
    end = start + token
    return (_text(head[_LENGTH.size : at]), offset, suggested, _text(head[start:end])), end


def _text(data: bytes) -> str:
    return str(data, "utf-8", "surrogateescape")


_FAST: dict[int, Callable[[memoryview], Command]] = {
    3: _decode_block,
    4: decode_block_end,
    7: _decode_data_appended,
    9: _decode_read,
    MANY_APPENDED: _decode_many_appended,
}


def data_appended(writer: bytes, number: int, previous: int, rid: int, length: int) -> bytes:
    """The frame of a DataAppended."""
    return _DATA_APPENDED.pack(7, _DATA_APPENDED_BODY.size, writer, number, previous, rid, length)


def acknowledged_number(frame: bytes) -> int | None:
    """The last event that a DataAppended acknowledges. None: the bytes are not exactly one such frame."""
    if len(frame) != _DATA_APPENDED.size:
        return None
    code, size, _, number, *_ = _DATA_APPENDED.unpack(frame)
    return int(number) if (code, size) == (7, _DATA_APPENDED_BODY.size) else None


def append_block_end_parts(writer: bytes, data: c.Payload, count: int, number: int, rid: int) -> Sequence[c.Payload]:
    """The frame of an AppendBlockEnd that holds its whole block, with ``data`` itself as the middle part."""
    size = len(data)
    head = HEADER.pack(4, _frame_size(BLOCK_END_DATA_AT + size + _BLOCK_END_TAIL.size))
    return head + _BLOCK_END_HEAD.pack(writer, size, size), data, _BLOCK_END_TAIL.pack(count, number, rid)


def append_split_parts(writer: bytes, data: c.Payload, count: int, number: int, rid: int) -> Sequence[c.Payload]:
    """The frames of an AppendBlock and its end: an append too large for one frame. Views of ``data`` are parts."""
    view = memoryview(data)
    rest = len(view) - _SPLIT_AT
    return [
        HEADER.pack(3, len(writer) + _SPLIT_AT) + writer,
        view[:_SPLIT_AT],
        HEADER.pack(4, _frame_size(BLOCK_END_DATA_AT + rest + _BLOCK_END_TAIL.size))
        + _BLOCK_END_HEAD.pack(writer, _SPLIT_AT, rest),
        view[_SPLIT_AT:],
        _BLOCK_END_TAIL.pack(count, number, rid),
    ]


def append_many_parts(rid: int, heads: Sequence[bytes], data: Sequence[c.Payload]) -> list[c.Payload]:
    """The frame of an AppendMany, with ``data`` as its parts after the first, without a copy. ``heads``: from
    ``many_head``."""
    size = _MANY.size + len(heads) * _HEAD.size + sum(map(len, data))
    head = HEADER.pack(APPEND_MANY, _frame_size(size)) + _MANY.pack(rid, len(heads))
    return [b"".join((head, *heads)), *data]


many_head = _HEAD.pack
"""One head of an AppendMany: handle, event count, event number, size of the data."""


def decode_many(view: memoryview) -> tuple[int, list[tuple[int, int, int, int]], int]:
    """Request id, heads, and the position of the data in the payload of an AppendMany; as ``decode``, without an object
    for each append.

    Raises ProtocolError: incomplete, no appends or too many, or their sizes do not match the data.
    """
    if len(view) < _MANY.size:
        raise ProtocolError("command is incomplete", code=APPEND_MANY, size_bytes=len(view))
    rid, count = _MANY.unpack_from(view)
    at = _MANY.size + count * _HEAD.size
    if not 0 < count <= HEADS_MAX or at > len(view):
        raise ProtocolError("count of appends lies outside its frame", count=count, size_bytes=len(view))
    heads = list(_HEAD.iter_unpack(view[_MANY.size : at]))
    total = 0
    for head in heads:
        if head[3] < 0:
            raise ProtocolError("size of an append is negative", size_bytes=head[3])
        total += head[3]
    if at + total != len(view):
        raise ProtocolError("sizes of appends do not add up", size_bytes=total, available=len(view) - at)
    return rid, heads, at


def many_appended(rid: int, lengths: Sequence[int], failures: Sequence[tuple[int, bytes]]) -> bytes:
    """The frame of a ManyAppended."""
    count = len(lengths)
    failed = b"".join(_TWO_INT32.pack(index, len(reply)) + reply for index, reply in failures)
    size = _frame_size(_MANY.size + 8 * count + _INT32.size + len(failed))
    head = HEADER.pack(MANY_APPENDED, size) + _MANY.pack(rid, count)
    return b"".join((head, struct.pack(f">{count}q", *lengths), _INT32.pack(len(failures)), failed))


def conditional_block_end_parts(
    writer: bytes, data: c.Payload, number: int, expected_offset: int, rid: int
) -> Sequence[c.Payload]:
    """The frame of a ConditionalBlockEnd, with ``data`` itself as the middle part."""
    size = len(data)
    head = struct.pack(">ii16sqqi", 89, _frame_size(44 + size), writer, number, expected_offset, size)
    return head, data, _INT64.pack(rid)


def segment_read_parts(
    segment: str, offset: int, at_tail: bool, end_of_segment: bool, data: Sequence[c.Payload]
) -> list[c.Payload]:
    """The frame of a SegmentRead: its head and the parts of ``data`` themselves. Only its end is missing, the number of
    the request as ``RID``: everything else is the same for all readers of these bytes."""
    size = sum(map(len, data))
    name = segment.encode("utf-8", "surrogateescape")
    length = _frame_size(2 + len(name) + 14 + size + 8)
    head = struct.pack(">iiH", 10, length, len(name)) + name
    return [head + struct.pack(">q??i", offset, at_tail, end_of_segment, size), *data]


def _frame_size(size: int) -> int:
    if size > FRAME_MAX_BYTES:
        raise InvalidArgumentError("frame is too large", size_bytes=size, limit_bytes=FRAME_MAX_BYTES)
    return size


def block_trailer(block: memoryview, whole_bytes: int) -> memoryview:
    """The beginning of a partial event that an AppendBlock holds after ``whole_bytes`` of whole events; else empty.

    After the whole events come nothing, padding, or the partial event. Raises ProtocolError for anything else.
    """
    left = len(block) - whole_bytes
    if whole_bytes < 0 or left < 0:
        raise ProtocolError("block is shorter than its events", whole_bytes=whole_bytes, block_bytes=len(block))
    if left == 0:
        return block[whole_bytes:]
    if left < HEADER.size:
        raise ProtocolError("trailer of a block is incomplete", trailer_bytes=left)
    kind, size = HEADER.unpack_from(block, whole_bytes)
    start = whole_bytes + HEADER.size
    if kind not in (PADDING, PARTIAL_EVENT) or not 0 <= size <= left - HEADER.size:
        raise ProtocolError("trailer of a block is neither padding nor a partial event", kind=kind, size=size)
    return block[start : start + size] if kind == PARTIAL_EVENT else block[start:start]
