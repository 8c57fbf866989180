"""What is fuzzed: each decoder, real inputs for it, and the errors that it documents."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from uuid import UUID

from crc32c import crc32c

from penstock.app.telemetry import Counters
from penstock.codec import audit, events
from penstock.codec.control import policies as policy_metadata
from penstock.codec.control import readers as reader_metadata
from penstock.codec.control import streams as metadata
from penstock.codec.control import truncations as retention
from penstock.codec.control.policy_document import (
    decode_document,
    pack_document,
    pack_hold,
    unpack_document,
    unpack_hold,
)
from penstock.codec.store import chunk_index, operation_frames, operations, wal
from penstock.codec.store import rows as records
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import AttributeUpdate, WireEntry, WireFailure, WireHead, WireKey
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    ProtocolError,
    VersionTooNewError,
)
from penstock.model.names import StreamName
from penstock.model.retention import HoldInfo, PolicyDocument
from penstock.net.http.http_errors import Refusal
from penstock.net.http.pravega_documents import config_of
from penstock.net.http.pulsar.bodies import (
    AdminError,
    NoBody,
    parse_json,
    parse_object,
    read_inactive,
    read_quotas,
    read_retention,
    whole_body,
)
from penstock.net.http.reading_requests import Fields, parse_body
from penstock.net.wire.arena import ArenaPool
from penstock.net.wire.frames import FrameReceiver
from tests.fuzz import calls

_SEED = 0x5EED
_STORED = (CorruptDataError, VersionTooNewError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``run`` decodes one input; anything but ``errors`` out of it is a find. ``text``: inputs are JSON."""

    name: str
    run: Callable[[bytes], object]
    corpus: Sequence[bytes]
    errors: tuple[type[Exception], ...]
    text: bool = False


# --- the wire ---------------------------------------------------------------------------------------------

_WRITER = UUID(int=7).bytes
_COMMANDS: Sequence[wire.Command] = (
    c.Hello(17, 5),
    c.KeepAlive(),
    c.SetupAppend(1, _WRITER, "s/t/0.#epoch.0", ""),
    c.AppendSetup(1, "s/t/0.#epoch.0", _WRITER, 5),
    c.AppendBlock(_WRITER, b"\0\0\0\0\0\0\0\x03abc"),
    c.AppendBlockEnd(_WRITER, 11, b"\0\0\0\0\0\0\0\x03abc", 1, 6, 2),
    c.ConditionalBlockEnd(_WRITER, 7, 11, b"data", 2),
    c.DataAppended(_WRITER, 7, 6, 2, 22),
    c.AppendSetup(1, "s/t/0.#epoch.0", _WRITER, 5, 1),
    c.AppendMany(2, (WireHead(1, 1, 6, 4), WireHead(2, 1, 7, 3)), b"dataabc"),
    c.ManyAppended(2, (22, -1), (WireFailure(1, b"why"),)),
    c.ReadSegment("s/t/0.#epoch.0", 0, 4096, "", 3),
    c.SegmentRead("s/t/0.#epoch.0", 0, True, False, b"data", 3),
    c.GetStreamSegmentInfo(4, "s/t/0.#epoch.0", ""),
    c.CreateSegment(5, "s/t/1.#epoch.0", 0, 0, "", 0),
    c.UpdateSegmentAttribute(6, "s/t/0.#epoch.0", UUID(int=1), 5, 4, ""),
    c.TruncateSegment(7, "s/t/0.#epoch.0", 11, ""),
    c.MergeSegments(8, "s/t/0.#epoch.0", "s/t/1.#epoch.0", "", [AttributeUpdate(UUID(int=1), 0, 1, 2)]),
    c.MergeSegmentsBatch(9, "s/t/0.#epoch.0", ["s/t/1.#epoch.0", "s/t/2.#epoch.0"], ""),
    t.CreateTableSegment(10, "s/_tables/t", "", False, 0, 0),
    t.UpdateTableEntries(11, "s/_tables/t", "", [WireEntry(b"key", -1, b"value"), WireEntry(b"k2", 5, b"")], -1),
    t.RemoveTableKeys(12, "s/_tables/t", "", [WireKey(b"key", -1)], -1),
    t.ReadTable(13, "s/_tables/t", "", [WireKey(b"key", -1)]),
    t.ReadTableKeys(14, "s/_tables/t", "", 10, b"\0key", 0, b"", b""),
    t.ReadTableEntriesDelta(15, "s/_tables/t", "", 0, 10),
    t.TableEntriesUpdated(11, [5, 6]),
    c.CallController(16, "createTransaction", b"\x0a\x06\x0a\x01s\x12\x01t"),
    c.ErrorMessage(1, "s/t/0.#epoch.0", "no", 0),
)


def _wire_frame(data: bytes) -> object:
    """One frame, as a server and as a client take it."""
    if len(data) < wire.HEADER.size:
        return None
    code, length = wire.HEADER.unpack_from(data)
    wire.check_header(code, length, wire.REQUEST_CODES | wire.REPLY_CODES)
    return wire.decode(code, memoryview(data)[wire.HEADER.size :])


_POOL = ArenaPool(telemetry=Counters(), limit_bytes=1 << 22)


def _wire_stream(data: bytes) -> object:
    """A stream of frames, received in pieces whose sizes the first byte tells."""
    receiver = FrameReceiver(_POOL, wire.REQUEST_CODES)
    step = 1 + data[0] * 3 if data else 1
    taken = 0
    try:
        for at in range(1, len(data), step):
            piece = data[at : at + step]
            while piece:
                buffer = receiver.buffer()
                size = min(len(buffer), len(piece))
                buffer[:size] = piece[:size]
                receiver.received(size)
                piece = piece[size:]
                while receiver.advance():
                    wire.decode(receiver.code, receiver.payload)
                    taken += 1
    finally:
        receiver.close()
    return taken


# --- what is stored ---------------------------------------------------------------------------------------


def _log_parts(data: bytes) -> object:
    """Every structure of a log file, at the start of the input: as it is, and with checksums that fit what it says."""
    for layout, seed in ((wal.FRAME_HEADER, _SEED), (wal.FILE_HEADER, 0), (wal.FREE_MARK, 0), (wal.EPOCH_RECORD, 0)):
        checked = layout.size - 4
        _log_part(data[:checked] + crc32c(data[:checked], seed).to_bytes(4, "big") + data[layout.size :])
    return _log_part(data)


def _log_part(data: bytes) -> object:
    header = wal.decode_frame_header(data, seed=_SEED)
    if header is not None:
        wal.frame_payload(header, data)
    wal.decode_file_header(data)
    wal.decode_free_mark(data)
    return wal.decode_epoch(data)


def _log_corpus() -> Sequence[bytes]:
    parts = wal.encode_frame(
        [b"payload of a frame"],
        payload_bytes=18,
        incarnation=wal.make_incarnation(3, 1),
        sequence=7,
        durable_sequence=6,
        seed=_SEED,
    )
    header = wal.FileHeader(
        epoch=3, incarnation=wal.make_incarnation(3, 1), first_sequence=1, durable_sequence=0, file_bytes=1 << 20
    )
    return (
        b"".join(bytes(part) for part in parts),
        wal.encode_file_header(header),
        wal.encode_free_mark(wal.make_incarnation(3, 1)),
        wal.encode_epoch(wal.EpochRecord(epoch=3, seed=_SEED)),
    )


def _index(data: bytes) -> object:
    """A sidecar: as it is, and with checksums that fit what it says."""
    size, checked = chunk_index.RECORD_BYTES, chunk_index.RECORD_BYTES - 4
    sealed = [data[at : at + checked] for at in range(0, len(data) - size + 1, size)]
    list(chunk_index.decode_records(b"".join(part + crc32c(part).to_bytes(4, "big") for part in sealed)))
    return list(chunk_index.decode_records(data))


def _index_corpus() -> Sequence[bytes]:
    records = [
        chunk_index.encode_record(
            chunk_index.IndexRecord(
                index=at, start=at * 10, end=at * 10 + 10, segment_start=at * 10, event_count=1, crc32c=at
            )
        )
        for at in range(3)
    ]
    return [b"".join(records), records[0]]


def _operations(data: bytes) -> object:
    operation_frames.decode_frame_header(data)
    found = list(operation_frames.decode_operations(data))
    list(operation_frames.decode_runs(data))
    return found


_OPERATIONS = (
    operations.CreateOperation(uid=1, kind=0, key_bytes=0, rollover_bytes=0, name="s/t/0.#epoch.0"),
    operations.AppendOperation(uid=1, offset=0, writer=7, event_number=0, event_count=1, data=memoryview(b"data")),
    operations.SealOperation(uid=1),
    operations.TruncateOperation(uid=1, offset=4),
    operations.AttributeOperation(uid=1, attribute=9, value=5),
    operations.TableOperation(
        uid=3,
        position=0,
        items=(
            operations.TableItem(key=b"key", value=b"value", previous=-1),
            operations.TableItem(key=b"gone", value=None, previous=5),
        ),
    ),
    operations.MergeOperation(uid=1, source=2, offset=4, length=10),
)


def _rows(data: bytes) -> object:
    """Every row; the first byte tells which."""
    decoders = (
        records.decode_int,
        records.decode_store,
        records.decode_container,
        records.decode_segment,
        records.decode_chunk,
        records.decode_block,
        records.decode_free,
        records.decode_entry,
        records.decode_writer,
        records.decode_writers,
    )
    return decoders[data[0] % len(decoders)](data[1:]) if data else None


def _row_corpus() -> Sequence[bytes]:
    segment = records.SegmentRecord(
        name="s/t/0.#epoch.0",
        kind=0,
        key_bytes=0,
        rollover_bytes=0,
        start_offset=0,
        length=100,
        sealed=False,
        modified_ms=1,
        event_count=2,
        freed_bytes=0,
        entry_count=0,
        kept_offset=0,
    )
    chunk = records.ChunkRecord(name="chunk", length=5, freed=0, block_count=1, event_count=1)
    return (
        b"\0" + records.encode_int(5),
        b"\1" + records.encode_store(4),
        b"\2" + records.encode_container(records.ContainerRecord(epoch=3, complete_upto=9)),
        b"\3" + records.encode_segment(segment),
        b"\4" + records.encode_chunk(chunk),
        b"\5" + records.encode_block(records.BlockRecord(end=5, event_count=1, crc32c=7)),
        b"\6" + records.encode_free(records.FreeRecord(uid=1, size_bytes=5, segment="s/t/0.#epoch.0")),
        b"\7" + records.encode_entry(5, b"value"),
    )


def _decoders() -> Sequence[Callable[[bytes], object]]:
    """``decode`` of every record of the controller, in a fixed order."""
    found = [
        kind.decode
        for module in (metadata, reader_metadata, retention, policy_metadata)
        for _, kind in sorted(vars(module).items())
        if inspect.isclass(kind)
        and kind.__module__ == module.__name__
        and dataclasses.is_dataclass(kind)
        and hasattr(kind, "decode")
    ]
    return [*found, audit.decode_entry]


_RECORDS = _decoders()


def _metadata(data: bytes) -> object:
    """Every record of the controller; the first byte tells which."""
    return _RECORDS[data[0] % len(_RECORDS)](data[1:]) if data else None


def _metadata_corpus() -> Sequence[bytes]:
    """Records that a store wrote, each offered to the decoders that take it, and all to some that do not."""
    lines = resources.files("tests.fuzz").joinpath("metadata.jsonl").read_bytes().splitlines()
    corpus: list[bytes] = []
    for number, line in enumerate(lines):
        for index, decode in enumerate(_RECORDS):
            try:
                decode(line)
            except _STORED:
                if (index + number) % 16:
                    continue
            corpus.append(bytes([index]) + line)
    return corpus


_HOLD = HoldInfo(
    id="h", scope="s", stream=StreamName("s", "t"), owner="o", reason="r", created_ms=1, until_ms=None, cut=None
)


def _policy(data: bytes) -> object:
    if data[:1] == b"h":
        return unpack_hold(data[1:])
    return unpack_document(data[1:])


def _event_block(data: bytes) -> object:
    events.split_events(data)
    return events.missing_bytes(data, 0)


# --- bodies of HTTP requests ------------------------------------------------------------------------------


def _rest_body(data: bytes) -> object:
    kind, body = data[:1], data[1:]
    fields = parse_body(body)
    if kind == b"p":
        return decode_document(fields)
    return config_of(Fields(fields), StreamName("s", "t"))


_STREAM = {
    "scopeName": "s",
    "streamName": "t",
    "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 1},
    "retentionPolicy": {
        "type": "LIMITED_DAYS",
        "value": 1,
        "timeBasedRetention": {"days": 1, "hours": 0, "minutes": 0},
    },
    "streamTags": ["a"],
}
_POLICY = {"retain": {"max_age_s": 604800, "min_bytes": 1024}}


def _pulsar_body(data: bytes) -> object:
    kind, body = data[:1], data[1:]
    if kind == b"w":
        return whole_body(body, "number")
    value = parse_object(body)
    if value is None:
        return None
    if kind == b"q":
        return read_quotas(value)
    if kind == b"i":
        return read_inactive(value)
    return read_retention(value) if kind == b"r" else parse_json(body)


_PULSAR = (
    b'r{"retentionTimeInMinutes":10,"retentionSizeInMB":100}',
    b'q{"destination_storage":{"limitSize":1000,"limitTime":-1,"policy":"producer_request_hold"}}',
    b'i{"inactiveTopicDeleteMode":"delete_when_no_subscriptions","maxInactiveDurationSeconds":5,"deleteWhileInactive":true}',
    b"w3600",
)


def targets() -> Sequence[Target]:
    """All of them, by name in a fixed order."""
    frames = [wire.encode(command) for command in _COMMANDS]
    requests = [frame for frame in frames if wire.HEADER.unpack_from(frame)[0] in wire.REQUEST_CODES]
    block = events.frame_events([b"one", b"", b"three" * 20])
    return (
        Target(name="wire", run=_wire_frame, corpus=frames, errors=(ProtocolError,)),
        Target(
            name="wire-stream",
            run=_wire_stream,
            corpus=[b"\x05" + b"".join(requests), b"\xff" + b"".join(requests[2:9]), b"\x01" + requests[4]],
            errors=(ProtocolError,),
        ),
        Target(name="log", run=_log_parts, corpus=_log_corpus(), errors=(VersionTooNewError,)),
        Target(
            name="operations",
            run=_operations,
            corpus=[
                operation_frames.encode_frame(0, 5, _OPERATIONS),
                *(operation_frames.encode_frame(1, 5, [operation]) for operation in _OPERATIONS),
            ],
            errors=_STORED,
        ),
        Target(
            name="chunk-index",
            run=_index,
            corpus=_index_corpus(),
            errors=_STORED,
        ),
        Target(name="rows", run=_rows, corpus=_row_corpus(), errors=_STORED),
        Target(name="metadata", run=_metadata, corpus=_metadata_corpus(), errors=_STORED, text=True),
        Target(
            name="policy",
            run=_policy,
            corpus=[b"p" + pack_document(PolicyDocument()), b"p" + _stored_policy(), b"h" + pack_hold(_HOLD)],
            errors=_STORED,
            text=True,
        ),
        Target(name="events", run=_event_block, corpus=[block, block * 3], errors=(CorruptDataError,)),
        Target(
            name="rest",
            run=_rest_body,
            corpus=[b"s" + json.dumps(_STREAM).encode(), b"p" + json.dumps(_POLICY).encode()],
            errors=(InvalidArgumentError, Refusal),
            text=True,
        ),
        Target(
            name="pulsar",
            run=_pulsar_body,
            corpus=_PULSAR,
            errors=(AdminError, NoBody, InvalidArgumentError),
            text=True,
        ),
        Target(name="requests", run=calls.decode_request, corpus=calls.requests(), errors=(PenstockError,)),
        Target(name="replies", run=calls.decode_reply, corpus=calls.replies(), errors=(ProtocolError,)),
    )


def _stored_policy() -> bytes:
    return json.dumps({"version": 1, **_POLICY}).encode()
