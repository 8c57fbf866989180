"""What the controller stores about scopes, streams and transactions. Source: docs/formats/metadata.md."""

from __future__ import annotations

import base64
import enum
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any
from uuid import UUID

import msgspec

from penstock.codec.control.record import (
    Field,
    Fields,
    JsonRecord,
    Positions,
    checked,
    dump_positions,
)
from penstock.model.policies import (
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass

STREAM_VERSION = 2
"""Version of stream records with fields that version 1 lacks: an older program must not drop a policy that it does not
know."""
HEAD_VERSION = 2
"""Version of head records during a truncation that keeps its bytes, or during an undo: an older program would finish
the truncation by freeing the bytes."""


class StreamState(enum.Enum):
    """Life of a stream. Only workflows see the states in ``HIDDEN``; for users the stream does not exist."""

    CREATING = "creating"
    ACTIVE = "active"
    SEALING = "sealing"
    SEALED = "sealed"
    DELETING = "deleting"
    RESTORING = "restoring"


HIDDEN = frozenset({StreamState.CREATING, StreamState.DELETING, StreamState.RESTORING})


class WorkKind(enum.Enum):
    SCALE = "scale"
    ROLL = "roll"
    TRUNCATE = "truncate"
    UNDO = "undo"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The durable intent of a workflow that has begun.

    ``base_epoch``: the epoch that was active at the decision. ``transactions``: those of epoch ``txn_epoch`` that a
    roll merges.
    """

    kind: WorkKind
    base_epoch: int = msgspec.field(name="base")
    txn_epoch: int = 0
    transactions: tuple[UUID, ...] = msgspec.field(name="txns", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRecord(JsonRecord):
    """A scope."""

    KIND = "scope"
    deleting: Annotated[bool, Field("the scope is being deleted and accepts no new streams")] = False


def _config_fields(config: StreamConfig) -> Fields:
    scaling, retention = config.scaling, config.retention
    return {
        "scaling": [scaling.type.value, scaling.target_rate, scaling.factor, scaling.min_segments],
        "retention": None if retention is None else [retention.type.value, retention.minimum, retention.maximum],
        "tags": list(config.tags),
        "aggregation_ms": config.timestamp_aggregation_ms,
        "rollover_bytes": config.rollover_bytes,
    }


def _read_config(fields: Fields) -> StreamConfig:
    kind, rate, factor, least = fields["scaling"]
    retention = fields["retention"]
    return StreamConfig(
        scaling=ScalingPolicy(type=ScaleType(kind), target_rate=rate, factor=factor, min_segments=least),
        retention=None
        if retention is None
        else RetentionPolicy(type=RetentionType(retention[0]), minimum=retention[1], maximum=retention[2]),
        tags=tuple(fields["tags"]),
        timestamp_aggregation_ms=fields["aggregation_ms"],
        rollover_bytes=fields["rollover_bytes"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord(JsonRecord):
    """A stream's own record: every change of the stream is a compare-and-set on it.

    ``policy`` is kept as stored, so that an unreadable policy is not lost and does not hide the stream.
    """

    KIND = "stream"
    state: Annotated[StreamState, Field("`creating`, `active`, `sealing`, `sealed`, `deleting` or `restoring`")]
    config: Annotated[
        StreamConfig,
        Field(
            "`scaling` (type, target rate, factor, minimum of segments), `retention` (null, or type, minimum, maximum;"
            " bytes or ms), `tags`, `aggregation_ms`, `rollover_bytes`",
            dump=_config_fields,
            load=_read_config,
        ),
    ]
    incarnation: Annotated[int, Field("number of its first segment: unique among all streams that ever had the name")]
    epoch: Annotated[int, Field("the active epoch")]
    next_number: Annotated[int, Field("number of the next new segment", name="next")]
    created_ms: Annotated[int, Field("wall clock, ms")]
    work: Annotated[
        Work | None,
        Field(
            "the workflow in progress: `kind` (`scale`, `roll`, `truncate`, `undo`), `base` (the epoch then active),"
            " and for a roll `txn_epoch` and `txns`"
        ),
    ] = None
    policy: Annotated[
        Any,
        Field(
            'the stream\'s policy document, `{"v": 1, "document": …}` (policy.md); absent if the retention in `config`'
            " is the whole policy",
            optional=True,
            version=STREAM_VERSION,
        ),
    ] = None
    ending: Annotated[bool, Field("the stream is deleted once it is sealed", optional=True, version=STREAM_VERSION)] = (
        False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord(JsonRecord):
    """An ``EpochEntry`` as it is stored."""

    KIND = "epoch"
    epoch: Annotated[int, Field("number of the epoch")]
    created_ms: Annotated[int, Field("wall clock, ms")]
    ids: Annotated[Sequence[SegmentId], Field("the segments, in order of their key ranges")]
    bounds: Annotated[
        Sequence[float], Field("bounds of the key ranges, 0 to 1: one more than `ids`, because neighbours share theirs")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry:
    """The segments of one epoch, in key order, tiling [0, 1). Never changed once its epoch is active."""

    epoch: int
    segments: Sequence[SegmentRange]
    created_ms: int

    def encode(self) -> bytes:
        # Neighbours share their bound: stored once, it cannot differ, and ten thousand segments fit into one value.
        bounds = [item.keys.low for item in self.segments] + [self.segments[-1].keys.high]
        ids = [item.segment for item in self.segments]
        return EpochRecord(epoch=self.epoch, created_ms=self.created_ms, ids=ids, bounds=bounds).encode()

    @classmethod
    def decode(cls, data: bytes) -> EpochEntry:
        """Raises VersionTooNewError, CorruptDataError."""
        return checked(EpochRecord.KIND, data, cls._build)

    @classmethod
    def _build(cls, data: bytes) -> EpochEntry:
        row = EpochRecord.of(data)
        segments = tuple(
            SegmentRange(segment=segment, keys=KeyRange(low=low, high=high))
            for segment, low, high in zip(row.ids, row.bounds[:-1], row.bounds[1:], strict=True)
        )
        return cls(epoch=row.epoch, segments=segments, created_ms=row.created_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsRecord(JsonRecord):
    """Final lengths of the segments that one scale, or the end of the stream, has sealed."""

    KIND = "lengths"
    lengths: Annotated[Positions, Field("bytes of each segment", dump=dump_positions)]
    events: Annotated[
        Positions | None, Field("events of each segment; absent: not counted", optional=True, dump=dump_positions)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord(JsonRecord):
    """The head of the stream. ``cut`` without positions is the beginning of history."""

    KIND = "head"
    cut: Annotated[Positions, Field("the head; empty: the beginning of the stream", dump=dump_positions)] = field(
        default_factory=dict
    )
    pending: Annotated[
        Positions | None, Field("the cut of a truncation that is decided and in progress", dump=dump_positions)
    ] = None
    truncated_bytes: Annotated[int, Field("bytes before `cut`, since the stream was created")] = 0
    grace_ms: Annotated[
        int | None,
        Field(
            "the time in the key of the grace record that a truncation in progress creates, if its bytes are"
            " kept, or that an undo in progress removes",
            optional=True,
            version=HEAD_VERSION,
        ),
    ] = None

    @property
    def visible(self) -> Positions:
        """The head that users see: data before a decided cut is no longer guaranteed."""
        return self.cut if self.pending is None else self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRecord(JsonRecord):
    """A number that only increases."""

    KIND = "counter"
    value: Annotated[int, Field("the number")]


class TransactionState(enum.Enum):
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


class BatchPin(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A batch that wants to commit the transaction. The writer's batch record decides whether it does."""

    writer: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord(JsonRecord):
    """A transaction that is not completed."""

    KIND = "transaction"
    state: Annotated[TransactionState, Field("`open`, `committing`, `committed`, `aborting` or `aborted`")]
    epoch: Annotated[int, Field("the epoch in which it writes")]
    expires_ms: Annotated[int, Field("wall clock, ms: when it ends unless it is renewed")]
    deadline_ms: Annotated[int, Field("wall clock, ms: when it ends in any case")]
    pin: Annotated[BatchPin | None, Field("writer and batch that want to commit it")] = None
    key: Annotated[
        UUID | None, Field("the key under which several writers share it; absent: not shared", optional=True)
    ] = None
    incarnation: Annotated[
        int | None, Field("the stream in which it began; absent in records of the first release", optional=True)
    ] = None
    noted_by: Annotated[str, Field("the writer that notes a time with the commit; absent: none", optional=True)] = ""
    noted_ms: Annotated[int, Field("the noted time; ms by convention", optional=True)] = 0
    begun_ms: Annotated[
        int | None, Field("wall clock, ms: when it began; absent in records of earlier versions", optional=True)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRecord(JsonRecord):
    """The transaction shared by all writers that know its key."""

    KIND = "join"
    transaction: Annotated[UUID, Field("the transaction", name="txn")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRecord(JsonRecord):
    """How a transaction ended, and when."""

    KIND = "completed"
    state: Annotated[TransactionState, Field("`committed` or `aborted`")]
    completed_ms: Annotated[int, Field("wall clock, ms")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord(JsonRecord):
    """An entry of a stream's commit queue: transactions that were decided together, to be performed in this order."""

    KIND = "decision"
    commit: Annotated[bool, Field("commit; false: abort")]
    transactions: Annotated[tuple[UUID, ...], Field("in the order in which they are performed", name="txns")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord(JsonRecord):
    """The last batch that a named writer committed, and its transactions. A record with ``one_job`` may be forgotten."""

    KIND = "batch"
    batch: Annotated[int, Field("number of the last batch; -1: none yet")]
    transactions: Annotated[tuple[UUID, ...], Field("its transactions", name="txns")]
    query: Annotated[str, Field("the query that owns the name; absent: unknown", optional=True)] = ""
    run: Annotated[str, Field("latest run of the query", optional=True)] = ""
    past_runs: Annotated[tuple[str, ...], Field("earlier runs, newest first, at most 8", optional=True)] = ()
    one_job: Annotated[bool, Field("the name was generated for this one batch", optional=True)] = False
    at_ms: Annotated[
        int | None,
        Field("retention clock, ms, to a day: last use; absent in records of earlier versions", optional=True),
    ] = None


def _dump_digests(digests: Sequence[bytes]) -> str:
    return base64.b64encode(b"".join(digests)).decode()


def _load_digests(text: str) -> tuple[bytes, ...]:
    packed = base64.b64decode(text, validate=True)
    if len(packed) % 8:
        raise ValueError("length of the digests is not a multiple of their size")
    return tuple(packed[at : at + 8] for at in range(0, len(packed), 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenRecord(JsonRecord):
    """Digests of forgotten writer names of one stream that share their first byte."""

    KIND = "forgotten names"
    digests: Annotated[
        tuple[bytes, ...],
        Field(
            "base64 of the first 8 bytes of the SHA-256 of each name, in order",
            dump=_dump_digests,
            load=_load_digests,
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerRecord(JsonRecord):
    """A key that only marks something by its presence."""

    KIND = "marker"
