"""Converts between the messages of ``net.proto`` and our own values; shared by server and client.

Functions named ``..._message`` make messages, the others read them. Reading validates: a value that is not allowed
raises ``InvalidArgumentError`` or a subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar
from uuid import UUID

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.model.names import StreamName
from penstock.model.policies import (
    LONG_MAX,
    ReaderGroupRetention,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import ScaleStatus, Successor
from penstock.ports.control.transactions import PingStatus, TransactionStatus

P = ParamSpec("P")
M = TypeVar("M")

_MASK = (1 << 64) - 1  # low half of a 128-bit id
_SIGN = 1 << 63  # sign bit of a 64-bit number

_SCALE_TYPES = {
    ScaleType.FIXED: pb.ScalingPolicy.FIXED_NUM_SEGMENTS,
    ScaleType.KILOBYTES_PER_S: pb.ScalingPolicy.BY_RATE_IN_KBYTES_PER_SEC,
    ScaleType.EVENTS_PER_S: pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC,
}
_SCALE_TYPES_BACK = {value: kind for kind, value in _SCALE_TYPES.items()}
_RETENTION_TYPES = {RetentionType.TIME: pb.RetentionPolicy.TIME, RetentionType.SIZE: pb.RetentionPolicy.SIZE}
_RETENTION_TYPES_BACK = {value: kind for kind, value in _RETENTION_TYPES.items()}

SCALE_STATUSES = {
    ScaleStatus.IN_PROGRESS: pb.ScaleStatusResponse.IN_PROGRESS,
    ScaleStatus.DONE: pb.ScaleStatusResponse.SUCCESS,
    ScaleStatus.UNKNOWN_EPOCH: pb.ScaleStatusResponse.INVALID_INPUT,
}
PING_STATUSES = {
    PingStatus.OK: pb.PingTxnStatus.OK,
    PingStatus.LEASE_TOO_LARGE: pb.PingTxnStatus.LEASE_TOO_LARGE,
    PingStatus.MAX_LIFETIME: pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED,
    PingStatus.COMMITTED: pb.PingTxnStatus.COMMITTED,
    PingStatus.ABORTED: pb.PingTxnStatus.ABORTED,
    PingStatus.UNKNOWN: pb.PingTxnStatus.UNKNOWN,
}
TRANSACTION_STATES = {
    TransactionStatus.OPEN: pb.TxnState.OPEN,
    TransactionStatus.COMMITTING: pb.TxnState.COMMITTING,
    TransactionStatus.COMMITTED: pb.TxnState.COMMITTED,
    TransactionStatus.ABORTING: pb.TxnState.ABORTING,
    TransactionStatus.ABORTED: pb.TxnState.ABORTED,
    TransactionStatus.UNKNOWN: pb.TxnState.UNKNOWN,
}


def make(kind: Callable[P, M], *args: P.args, **fields: P.kwargs) -> M:
    """A message made from a caller's values. Raises ``InvalidArgumentError`` for a number or text that it cannot
    hold."""
    try:
        return kind(*args, **fields)
    except ValueError as error:
        raise InvalidArgumentError("value does not fit into the request", reason=str(error)) from error


# --- names -------------------------------------------------------------------------------------------------


def stream_message(stream: StreamName) -> pb.StreamInfo:
    return make(pb.StreamInfo, scope=stream.scope, stream=stream.stream)


def stream_of(message: pb.StreamInfo) -> StreamName:
    """Raises ``InvalidNameError`` if a part is missing or contains a slash."""
    for part in (message.scope, message.stream):
        if not part or "/" in part:
            raise InvalidNameError("a stream needs a scope name and a stream name", name=repr(part[:80]))
    return StreamName(message.scope, message.stream)


def scope_of(scope: str) -> str:
    """Raises ``InvalidNameError`` if the name is missing or contains a slash."""
    if not scope or "/" in scope:
        raise InvalidNameError("the name of a scope is missing or contains a slash", name=repr(scope[:80]))
    return scope


# --- segments and cuts -------------------------------------------------------------------------------------


def segment_message(stream: StreamName, segment: SegmentId) -> pb.SegmentId:
    return make(pb.SegmentId, streamInfo=stream_message(stream), segmentId=segment)


def segment_of(value: int) -> SegmentId:
    """Raises ``InvalidArgumentError`` for a negative id."""
    if value < 0:
        raise InvalidArgumentError("segment id is negative", segment=value)
    return SegmentId(value)


def range_message(stream: StreamName, item: SegmentRange) -> pb.SegmentRange:
    return pb.SegmentRange(segmentId=segment_message(stream, item.segment), minKey=item.keys.low, maxKey=item.keys.high)


def range_of(message: pb.SegmentRange) -> SegmentRange:
    keys = KeyRange(low=message.minKey, high=message.maxKey)
    return SegmentRange(segment=segment_of(message.segmentId.segmentId), keys=keys)


def ranges_message(stream: StreamName, items: Iterable[SegmentRange]) -> pb.SegmentRanges:
    return pb.SegmentRanges(segmentRanges=[range_message(stream, item) for item in items])


def ranges_of(messages: Iterable[pb.SegmentRange]) -> tuple[SegmentRange, ...]:
    return tuple(range_of(message) for message in messages)


def cut_message(cut: StreamCut) -> pb.StreamCut:
    return make(pb.StreamCut, streamInfo=stream_message(cut.stream), cut={int(k): v for k, v in cut.positions.items()})


def cut_of(message: pb.StreamCut) -> StreamCut:
    return positions_of(stream_of(message.streamInfo), message.cut)


def positions_of(stream: StreamName, positions: Mapping[int, int]) -> StreamCut:
    """Raises ``InvalidCutError`` for a negative segment, or an offset below -1."""
    return StreamCut(stream, {SegmentId(segment): offset for segment, offset in sorted(positions.items())})


def successor_message(stream: StreamName, item: Successor) -> pb.SuccessorResponse.SegmentEntry:
    return pb.SuccessorResponse.SegmentEntry(segment=range_message(stream, item.range), value=item.predecessors)


# --- configurations ----------------------------------------------------------------------------------------


def config_message(stream: StreamName, config: StreamConfig) -> pb.StreamConfig:
    message = make(
        pb.StreamConfig,
        streamInfo=stream_message(stream),
        scalingPolicy=make(
            pb.ScalingPolicy,
            scaleType=_SCALE_TYPES[config.scaling.type],
            targetRate=config.scaling.target_rate,
            scaleFactor=config.scaling.factor,
            minNumSegments=config.scaling.min_segments,
        ),
        # Set even if it is empty: the Python client returns None for an absent message, and a list otherwise.
        tags=make(pb.Tags, tag=config.tags),
        timestampAggregationTimeout=config.timestamp_aggregation_ms,
        rolloverSizeBytes=config.rollover_bytes,
    )
    policy = config.retention
    if policy is not None:
        # Pravega's way to say "unlimited" is the largest number, not absence.
        maximum = LONG_MAX if policy.maximum is None else policy.maximum
        message.retentionPolicy.CopyFrom(
            make(
                pb.RetentionPolicy,
                retentionType=_RETENTION_TYPES[policy.type],
                retentionParam=policy.minimum,
                retentionMax=maximum,
            )
        )
    return message


def config_of(message: pb.StreamConfig) -> StreamConfig:
    """Raises ``InvalidArgumentError`` for zero segments, an unknown policy type, a minimum over the maximum."""
    scaling = message.scalingPolicy
    kind = _SCALE_TYPES_BACK.get(scaling.scaleType)
    if kind is None:
        raise InvalidArgumentError("scaling type is unknown", type=int(scaling.scaleType))
    return StreamConfig(
        scaling=ScalingPolicy(
            type=kind,
            target_rate=scaling.targetRate,
            factor=scaling.scaleFactor,
            min_segments=scaling.minNumSegments,
        ),
        retention=_retention_of(message.retentionPolicy),
        tags=tuple(message.tags.tag),
        timestamp_aggregation_ms=message.timestampAggregationTimeout,
        rollover_bytes=message.rolloverSizeBytes,
    )


def _retention_of(message: pb.RetentionPolicy) -> RetentionPolicy | None:
    if message.retentionType == pb.RetentionPolicy.UNKNOWN:
        return None
    kind = _RETENTION_TYPES_BACK.get(message.retentionType)
    if kind is None:
        raise InvalidArgumentError("retention type is unknown", type=int(message.retentionType))
    limited = message.HasField("retentionMax") and message.retentionMax != LONG_MAX
    return RetentionPolicy(type=kind, minimum=message.retentionParam, maximum=message.retentionMax if limited else None)


# --- ids ---------------------------------------------------------------------------------------------------


def transaction_message(txn: UUID) -> pb.TxnId:
    return pb.TxnId(highBits=_signed(txn.int >> 64), lowBits=_signed(txn.int & _MASK))


def transaction_of(message: pb.TxnId) -> UUID:
    return UUID(int=(message.highBits & _MASK) << 64 | message.lowBits & _MASK)


def _signed(value: int) -> int:
    return value - (_SIGN << 1) if value & _SIGN else value


def uuid_of(text: str, *, field: str) -> UUID:
    """Raises ``InvalidArgumentError``, naming the field, if the text is not a UUID."""
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidArgumentError("not a UUID", field=field, text=repr(text[:60])) from error


# --- reader groups -----------------------------------------------------------------------------------------


def group_message(config: ReaderGroupConfig) -> pb.ReaderGroupConfiguration:
    return make(
        pb.ReaderGroupConfiguration,
        scope=config.scope,
        readerGroupName=config.name,
        groupRefreshTimeMillis=config.refresh_ms,
        automaticCheckpointIntervalMillis=config.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=config.max_outstanding_checkpoints,
        retentionType=config.retention.value,
        generation=config.generation,
        readerGroupId=str(config.id),
        startingStreamCuts=_cut_messages(config.start_cuts),
        endingStreamCuts=_cut_messages(config.end_cuts),
        rolloverSizeBytes=config.rollover_bytes,
    )


def _cut_messages(cuts: Mapping[StreamName, StreamCut]) -> Sequence[pb.StreamCut]:
    return [cut_message(cuts[stream]) for stream in sorted(cuts)]


def group_of(message: pb.ReaderGroupConfiguration) -> ReaderGroupConfig:
    """Raises ``InvalidArgumentError`` and its subclasses for an unknown retention type, ids, names or cuts."""
    try:
        retention = ReaderGroupRetention(message.retentionType)
    except ValueError as error:
        raise InvalidArgumentError("reader group retention is unknown", type=message.retentionType) from error
    starts = [cut_of(item) for item in message.startingStreamCuts]
    ends = [cut_of(item) for item in message.endingStreamCuts]
    return ReaderGroupConfig(
        scope=scope_of(message.scope),
        name=message.readerGroupName,
        id=uuid_of(message.readerGroupId, field="readerGroupId"),
        generation=message.generation,
        retention=retention,
        start_cuts={cut.stream: cut for cut in starts},
        end_cuts={cut.stream: cut for cut in ends},
        refresh_ms=message.groupRefreshTimeMillis,
        checkpoint_interval_ms=message.automaticCheckpointIntervalMillis,
        max_outstanding_checkpoints=message.maxOutstandingCheckpointRequest,
        rollover_bytes=message.rolloverSizeBytes,
    )
