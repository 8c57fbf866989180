"""Frames of BookKeeper's wire protocol 2 and the entries inside them, without I/O.

All integers are big-endian. A frame is a length and that many bytes; the first four of these have the protocol version,
the operation and the flags. Answers may arrive in any order: the key of an answer is operation, ledger and entry.
Source: docs/formats/bookkeeper.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from crc32c import crc32c

from penstock.model.errors import CorruptDataError, ProtocolError
from penstock.model.values.dataclass import dataclass

Bytes: TypeAlias = bytes | bytearray | memoryview

VERSION: Final = 2
FENCE: Final = 1
"""Flag of a read: from now on, the bookie refuses adds of the ledger that lack ``RECOVERY_ADD``."""
RECOVERY_ADD: Final = 2
"""Flag of an add: a fenced ledger accepts it."""
HIGH_PRIORITY: Final = 4  # flag of a request: before others that wait

LAST_ENTRY: Final = -1
"""In a read: the highest entry that the bookie has."""
KEY_BYTES: Final = 20
ENTRY_MAX_BYTES: Final = 4 << 20
"""Payload of the largest entry. A bookie closes the connection at a frame above ``nettyMaxFrameSizeBytes``, 5 MiB
unless configured."""
FRAME_MAX_BYTES: Final = 16 << 20
"""The largest frame that we accept: more than any bookie sends, less than a wrong length would reserve."""

LENGTH: Final = struct.Struct(">I")
HEADER: Final = struct.Struct(">I")
ENTRY: Final = struct.Struct(">qqqqI")
READ: Final = struct.Struct(">qq")
BATCH_READ: Final = struct.Struct(">qqqiq")
ANSWER: Final = struct.Struct(">Iiqq")
REQUEST_ID: Final = struct.Struct(">q")


class Operation(IntEnum):
    ADD = 1
    READ = 2
    AUTH = 3
    BATCH_READ = 7


class Code(IntEnum):
    """What a bookie answers."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_STATE = 107
    """This bookie has lost data: what it lacks may have been acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry as a bookie stores it.

    ``confirmed``: the last entry that the writer knew to be acknowledged when it sent this one; -1: none.
    ``length_bytes``: payload of the ledger up to and including this entry. ``payload`` may be a view of what was
    decoded.
    """

    ledger: int
    entry: int
    confirmed: int
    length_bytes: int
    payload: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A bookie's answer. ``code`` is a number, because later versions may have more codes. ``body``: what follows, a
    view of the frame."""

    operation: int
    code: int
    ledger: int
    entry: int
    body: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as a bookie receives it.

    ``key``: the master key of an add or a fencing read. ``entry_bytes``: the entry of an add, as it is to be stored.
    ``request_id``, ``entries_max`` and ``size_max_bytes`` belong to a batch read.
    """

    operation: Operation
    flags: int
    ledger: int
    entry: int
    key: bytes = b""
    entry_bytes: bytes = b""
    request_id: int = 0
    entries_max: int = 0
    size_max_bytes: int = 0


def master_key(password: bytes) -> bytes:
    """The master key: a bookie compares it between the first add of a ledger and later requests."""
    return hashlib.sha1(b"ledger" + password).digest()


def encode_entry(entry: Entry) -> list[Bytes]:
    """The header with its checksum, and the payload itself, to be written back to back."""
    head = ENTRY.pack(entry.ledger, entry.entry, entry.confirmed, entry.length_bytes, 0)[:-4]
    return [head + LENGTH.pack(crc32c(entry.payload, crc32c(head))), entry.payload]


def decode_entry(data: Bytes, *, ledger: int, entry: int = LAST_ENTRY) -> Entry:
    """The entry in ``data``; its payload is a view. Raises CorruptDataError unless the checksum is right and it is the
    given entry of the given ledger; ``LAST_ENTRY``: any entry."""
    if len(data) < ENTRY.size:
        raise CorruptDataError("entry of a ledger is too short", ledger=ledger, entry=entry, size_bytes=len(data))
    view = memoryview(data)
    found, number, confirmed, length, checksum = ENTRY.unpack_from(view)
    if crc32c(view[ENTRY.size :], crc32c(view[: ENTRY.size - 4])) != checksum:
        raise CorruptDataError("entry of a ledger fails its checksum", ledger=ledger, entry=entry)
    if found != ledger or number < 0 or entry not in (LAST_ENTRY, number):
        raise CorruptDataError("entry is not the one asked for", ledger=ledger, entry=entry, found=(found, number))
    return Entry(ledger=found, entry=number, confirmed=confirmed, length_bytes=length, payload=view[ENTRY.size :])


def encode_add(entry: Sequence[Bytes], *, key: bytes, flags: int = 0) -> list[Bytes]:
    """The frame that adds an encoded entry, for every bookie the same; the entry is not copied."""
    size = HEADER.size + len(key) + sum(map(len, entry))
    return [LENGTH.pack(size) + _header(Operation.ADD, flags) + key, *entry]


def encode_read(ledger: int, entry: int, *, fence_key: bytes | None = None, flags: int = 0) -> bytes:
    """The frame that reads one entry, or ``LAST_ENTRY``. With ``fence_key``, the ledger's master key, it fences."""
    if fence_key is not None:
        flags |= FENCE
    return _framed(_header(Operation.READ, flags) + READ.pack(ledger, entry) + (fence_key or b""))


def encode_batch_read(ledger: int, entry: int, *, request_id: int, entries_max: int, size_max_bytes: int) -> bytes:
    """The frame that reads consecutive entries from ``entry`` on, up to the first that the bookie lacks."""
    body = BATCH_READ.pack(ledger, entry, request_id, entries_max, size_max_bytes)
    return _framed(_header(Operation.BATCH_READ, 0) + body)


def encode_auth(plugin: str, payload: bytes) -> bytes:
    """One message of an authentication, the first frames of a connection; request and answer have the same form."""
    name = plugin.encode()
    body = b"\x0a" + encode_varint(len(name)) + name + b"\x12" + encode_varint(len(payload)) + payload
    return _framed(_header(Operation.AUTH, 0) + body)


def decode_auth(body: Bytes) -> tuple[str, bytes]:
    """Plugin and payload of a message after its header. Raises ProtocolError."""
    view, fields = memoryview(body), {1: b"", 2: b""}
    while view:
        tag, view = view[0], view[1:]
        size, view = take_varint(view)
        if tag & 7 != 2 or size > len(view):
            raise ProtocolError("message of an authentication is malformed", size_bytes=len(body))
        fields[tag >> 3], view = bytes(view[:size]), view[size:]
    try:
        return fields[1].decode(), fields[2]
    except UnicodeDecodeError as error:
        raise ProtocolError("message of an authentication is malformed", size_bytes=len(body)) from error


def take_frames(buffer: bytearray, *, frame_max_bytes: int = FRAME_MAX_BYTES) -> list[bytes]:
    """Remove the complete frames from the front of ``buffer``; return them without their lengths. Raises
    ProtocolError for a length over the limit."""
    frames: list[bytes] = []
    start = 0
    while len(buffer) - start >= LENGTH.size:
        (size,) = LENGTH.unpack_from(buffer, start)
        if size > frame_max_bytes:
            raise ProtocolError("frame is over the limit", size_bytes=size, limit_bytes=frame_max_bytes)
        if len(buffer) - start - LENGTH.size < size:
            break
        start += LENGTH.size
        frames.append(bytes(memoryview(buffer)[start : start + size]))
        start += size
    del buffer[:start]
    return frames


def decode_answer(frame: Bytes) -> Answer:
    """The answer in a frame without its length. Raises ProtocolError. Answers to AUTH have no code: 0, ledger and entry
    -1."""
    view = memoryview(frame)
    operation = _operation_of(view)[0]
    if operation == Operation.AUTH:
        return Answer(operation=operation, code=0, ledger=-1, entry=-1, body=view[HEADER.size :])
    if len(view) < ANSWER.size:
        raise ProtocolError("answer of a bookie is too short", size_bytes=len(view))
    _, code, ledger, entry = ANSWER.unpack_from(view)
    return Answer(operation=operation, code=code, ledger=ledger, entry=entry, body=view[ANSWER.size :])


def entries_of_batch(answer: Answer) -> tuple[int, list[memoryview]]:
    """Request id and encoded entries of an answer to a batch read. Raises ProtocolError."""
    body = answer.body
    if len(body) < REQUEST_ID.size:
        raise ProtocolError("answer to a batch read is too short", size_bytes=len(body))
    (request,) = REQUEST_ID.unpack_from(body)
    return request, list(_entries(body[REQUEST_ID.size :]))


def _entries(rest: memoryview) -> Iterator[memoryview]:
    while rest:
        size = LENGTH.unpack_from(rest)[0] if len(rest) >= LENGTH.size else len(rest)
        if len(rest) - LENGTH.size < size:
            raise ProtocolError("entry of a batch is cut off", size_bytes=size, left_bytes=len(rest))
        yield rest[LENGTH.size : LENGTH.size + size]
        rest = rest[LENGTH.size + size :]


def decode_request(frame: Bytes) -> Request:
    """The request in a frame without its length, as a bookie reads it. Raises ProtocolError."""
    view = memoryview(frame)
    number, flags = _operation_of(view)
    body = view[HEADER.size :]
    try:
        operation = Operation(number)
        if operation is Operation.ADD:
            ledger, entry = READ.unpack_from(body, KEY_BYTES)
            data = bytes(body[KEY_BYTES:])
            return Request(
                operation=operation,
                flags=flags,
                ledger=ledger,
                entry=entry,
                key=bytes(body[:KEY_BYTES]),
                entry_bytes=data,
            )
        if operation is Operation.BATCH_READ:
            ledger, entry, request, entries, size = BATCH_READ.unpack_from(body)
            return Request(
                operation=operation,
                flags=flags,
                ledger=ledger,
                entry=entry,
                request_id=request,
                entries_max=entries,
                size_max_bytes=size,
            )
        if operation is Operation.AUTH:
            return Request(operation=operation, flags=flags, ledger=-1, entry=-1, entry_bytes=bytes(body))
        ledger, entry = READ.unpack_from(body)
    except (ValueError, struct.error) as error:
        raise ProtocolError("request to a bookie is malformed", operation=number, size_bytes=len(view)) from error
    return Request(operation=operation, flags=flags, ledger=ledger, entry=entry, key=bytes(body[READ.size :]))


def encode_answer(request: Request, code: int, body: Sequence[Bytes] = ()) -> list[Bytes]:
    """The frame that answers ``request``, as a bookie sends it. ``body``: the entry that was read, or the entries of a
    batch."""
    parts: list[Bytes] = list(body)
    if request.operation is Operation.BATCH_READ and code == Code.OK:
        parts = [REQUEST_ID.pack(request.request_id)]
        for entry in body:
            parts += (LENGTH.pack(len(entry)), entry)
    head = _number(request.operation, 0)
    size = ANSWER.size + sum(map(len, parts))
    return [LENGTH.pack(size) + ANSWER.pack(head, code, request.ledger, request.entry), *parts]


def _number(operation: int, flags: int) -> int:
    return VERSION << 24 | operation << 16 | flags


def _header(operation: int, flags: int) -> bytes:
    return HEADER.pack(_number(operation, flags))


def _operation_of(view: memoryview) -> tuple[int, int]:
    if len(view) < HEADER.size:
        raise ProtocolError("frame of a bookie is too short", size_bytes=len(view))
    (number,) = HEADER.unpack_from(view)
    if number >> 24 != VERSION:
        raise ProtocolError("frame of a bookie has another protocol version", version=number >> 24, expected=VERSION)
    return number >> 16 & 0xFF, number & 0xFFFF


def _framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def encode_varint(number: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first, the high bit set in all but the last."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def take_varint(view: memoryview) -> tuple[int, memoryview]:
    """The number below 2^35 that ``view`` begins with, and the rest. Raises ProtocolError."""
    number = 0
    for index, byte in enumerate(view[:5]):  # a length below 2^32 takes at most five bytes
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, view[index + 1 :]
    raise ProtocolError("number in a message is malformed", size_bytes=len(view))
