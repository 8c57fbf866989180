"""The commands of Pravega's segment-store protocol, and some of our own, as values; those of table segments are in
``wire_table_commands``.

``rid`` is the request id, echoed in the reply. Names of segments are kept as they came, so that a reply can repeat them
verbatim. Payloads are views of the frame they were decoded from. Writer ids are the 16 raw bytes of the UUID.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.codec.wire.layout import AttributeUpdate, WireChunk, WireFailure, WireHead

NO_OFFSET = -1  # the protocol's number for an offset that is not set
Payload = bytes | bytearray | memoryview


class Hello(NamedTuple):
    high: int
    low: int


class KeepAlive(NamedTuple):
    """``trace``: our own clients name the span of their next request in it (``model.traces.spans.SpanContext.to_bytes``)."""

    trace: Payload | None = None


# --- appends ----------------------------------------------------------------------------------------------


class SetupAppend(NamedTuple):
    rid: int
    writer: bytes
    segment: str
    token: str = ""


class AppendSetup(NamedTuple):
    """``handle``: the writer's number in an AppendMany. None: the server does not support that frame."""

    rid: int
    segment: str
    writer: bytes
    last_number: int
    handle: int | None = None


class AppendBlock(NamedTuple):
    """The beginning of a block; the AppendBlockEnd of the same writer follows at once."""

    writer: bytes
    data: Payload


class AppendBlockEnd(NamedTuple):
    """``whole_bytes`` of the block before it are complete events; ``data`` follows them."""

    writer: bytes
    whole_bytes: int
    data: Payload
    event_count: int
    event_number: int
    rid: int = -1


class ConditionalAppend(NamedTuple):
    """``event`` is one event record, its 8-byte header included."""

    writer: bytes
    event_number: int
    expected_offset: int
    event: Payload
    rid: int = -1


class ConditionalBlockEnd(NamedTuple):
    writer: bytes
    event_number: int
    expected_offset: int
    data: Payload
    rid: int


class DataAppended(NamedTuple):
    writer: bytes
    event_number: int
    previous_number: int
    rid: int
    segment_length: int = NO_OFFSET


class AppendMany(NamedTuple):
    """Appends of many writers in one frame, our own. ``data``: the data of all, back to back, in the order of
    ``heads``."""

    rid: int
    heads: Sequence[WireHead]
    data: Payload


class ManyAppended(NamedTuple):
    """The outcome of each append of an AppendMany: the length of its segment right after it, or -1 if it is not stored.
    ``failures`` gives the reason, unless it is an earlier failed append of the same writer.
    """

    rid: int
    lengths: Sequence[int]
    failures: Sequence[WireFailure]


class ConditionalCheckFailed(NamedTuple):
    writer: bytes
    event_number: int
    rid: int = -1


class InvalidEventNumber(NamedTuple):
    writer: bytes
    rid: int
    stack: str = ""
    event_number: int = -1


# --- reads ------------------------------------------------------------------------------------------------


class ReadSegment(NamedTuple):
    segment: str
    offset: int
    suggested_bytes: int
    token: str
    rid: int


class SegmentRead(NamedTuple):
    segment: str
    offset: int
    at_tail: bool
    end_of_segment: bool
    data: Payload
    rid: int


class GetStreamSegmentInfo(NamedTuple):
    rid: int
    segment: str
    token: str = ""


class StreamSegmentInfo(NamedTuple):
    rid: int
    segment: str
    exists: bool
    sealed: bool
    deleted: bool
    last_modified_ms: int
    length: int
    start_offset: int


class LocateOffset(NamedTuple):
    rid: int
    segment: str
    offset: int
    token: str = ""


class OffsetLocated(NamedTuple):
    rid: int
    segment: str
    offset: int


# --- segments ---------------------------------------------------------------------------------------------


class CreateSegment(NamedTuple):
    rid: int
    segment: str
    target_rate: int
    scale_type: int
    token: str = ""
    rollover_bytes: int = 0


class SegmentCreated(NamedTuple):
    rid: int
    segment: str


class SealSegment(NamedTuple):
    rid: int
    segment: str
    token: str = ""


class SegmentSealed(NamedTuple):
    rid: int
    segment: str


class DeleteSegment(NamedTuple):
    rid: int
    segment: str
    token: str = ""


class SegmentDeleted(NamedTuple):
    rid: int
    segment: str


class UpdateSegmentPolicy(NamedTuple):
    rid: int
    segment: str
    target_rate: int
    scale_type: int
    token: str = ""


class SegmentPolicyUpdated(NamedTuple):
    rid: int
    segment: str


class GetSegmentAttribute(NamedTuple):
    rid: int
    segment: str
    attribute: UUID
    token: str = ""


class SegmentAttribute(NamedTuple):
    rid: int
    value: int


class UpdateSegmentAttribute(NamedTuple):
    rid: int
    segment: str
    attribute: UUID
    value: int
    expected: int
    token: str = ""


class SegmentAttributeUpdated(NamedTuple):
    rid: int
    success: bool


class TruncateSegment(NamedTuple):
    rid: int
    segment: str
    offset: int
    token: str = ""


class SegmentTruncated(NamedTuple):
    rid: int
    segment: str


class CreateTransientSegment(NamedTuple):
    rid: int
    writer: UUID
    parent: str
    token: str = ""


class MergeSegments(NamedTuple):
    rid: int
    target: str
    source: str
    token: str = ""
    updates: Sequence[AttributeUpdate] = ()


class SegmentsMerged(NamedTuple):
    rid: int
    target: str
    source: str
    target_length: int


class MergeSegmentsBatch(NamedTuple):
    rid: int
    target: str
    sources: Sequence[str]
    token: str = ""


class SegmentsBatchMerged(NamedTuple):
    rid: int
    target: str
    sources: Sequence[str]
    target_lengths: Sequence[int]


class FlushToStorage(NamedTuple):
    container: int
    token: str
    rid: int


class StorageFlushed(NamedTuple):
    rid: int


class ListStorageChunks(NamedTuple):
    segment: str
    token: str
    rid: int


class StorageChunksListed(NamedTuple):
    rid: int
    chunks: Sequence[WireChunk]


# --- errors -----------------------------------------------------------------------------------------------


class WrongHost(NamedTuple):
    rid: int
    segment: str
    correct_host: str
    trace: str = ""


class SegmentIsSealed(NamedTuple):
    rid: int
    segment: str
    trace: str = ""
    offset: int = NO_OFFSET


class SegmentAlreadyExists(NamedTuple):
    rid: int
    segment: str
    trace: str = ""


class NoSuchSegment(NamedTuple):
    rid: int
    segment: str
    trace: str = ""
    offset: int = NO_OFFSET


class SegmentIsTruncated(NamedTuple):
    rid: int
    segment: str
    start_offset: int
    trace: str = ""
    offset: int = NO_OFFSET


class OperationUnsupported(NamedTuple):
    rid: int
    operation: str
    trace: str = ""


class AuthTokenCheckFailed(NamedTuple):
    rid: int
    trace: str = ""
    code: int = -1


class ErrorMessage(NamedTuple):
    """``code`` 0: illegal argument; -1: anything else."""

    rid: int
    segment: str
    message: str
    code: int


# --- our own ----------------------------------------------------------------------------------------------


class CallController(NamedTuple):
    """A call of the controller, with the same name and request message as over gRPC."""

    rid: int
    call: str
    request: Payload


class ControllerAnswered(NamedTuple):
    """``message`` is the response message; ``note``: an addition that only our own clients read; may be empty."""

    rid: int
    message: Payload
    note: Payload = b""


class ControllerRefused(NamedTuple):
    """``error`` is the error itself, as over gRPC."""

    rid: int
    error: Payload
