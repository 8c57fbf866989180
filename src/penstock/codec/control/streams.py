"""What the controller stores in its table: one small JSON object for each key, with a version in each.

Readable on purpose: an engineer at night can look at a key with any table tool. ``decode`` of what ``encode`` gave is the
same record. Decoding raises ``VersionTooNewError`` for a later version and ``CorruptDataError`` for anything unreadable;
unknown fields of this version are ignored. Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar
from uuid import UUID

from penstock.model.errors import CorruptDataError, PenstockError, VersionTooNewError
from penstock.model.policies import (
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from penstock.model.segments import KeyRange, SegmentId, SegmentRange

VERSION = 1
STREAM_VERSION = 2
"""Of stream records that say more than version 1 can: an older program must not drop a policy that it does not know."""
HEAD_VERSION = 2
"""Of head records of a stream with a truncation that keeps its bytes, or takes them back, under way."""

Positions = Mapping[SegmentId, int]
Fields = dict[str, Any]
R = TypeVar("R")

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Record(Protocol):
    """A value of the controller's table."""

    def encode(self) -> bytes: ...

    @classmethod
    def decode(cls, data: bytes) -> Self: ...


def dump_record(fields: Fields, *, version: int = VERSION) -> bytes:
    """The bytes of a record with these fields."""
    return _encode({"v": version, **fields}).encode()


def load_record(kind: str, data: bytes, build: Callable[[Fields], R], *, newest: int = VERSION) -> R:
    """The record that ``build`` makes of the fields. Raises VersionTooNewError, CorruptDataError."""
    try:
        fields = json.loads(data)
        version = fields["v"]
        if version > newest:
            raise VersionTooNewError("metadata was written by a newer version", record=kind, version=version)
        return build(fields)
    except VersionTooNewError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, PenstockError) as error:
        raise CorruptDataError("metadata record cannot be read", record=kind, data=bytes(data[:80])) from error


def dump_positions(cut: Positions) -> dict[str, int]:
    """A cut, or lengths of segments, in order of segments."""
    return {str(segment): cut[segment] for segment in sorted(cut)}


def load_positions(fields: Mapping[str, int]) -> Positions:
    return {SegmentId(int(segment)): int(offset) for segment, offset in fields.items()}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The durable intent of a workflow that has begun.

    ``base_epoch`` was active at the decision. ``transactions`` of epoch ``txn_epoch`` are those that a roll merges.
    """

    kind: WorkKind
    base_epoch: int
    txn_epoch: int = 0
    transactions: tuple[UUID, ...] = ()

    def to_fields(self) -> Fields:
        return {
            "kind": self.kind.value,
            "base": self.base_epoch,
            "txn_epoch": self.txn_epoch,
            "txns": [txn.hex for txn in self.transactions],
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Work:
        return cls(
            kind=WorkKind(fields["kind"]),
            base_epoch=fields["base"],
            txn_epoch=fields["txn_epoch"],
            transactions=tuple(UUID(hex=txn) for txn in fields["txns"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeRecord:
    """A scope. ``deleting``: on its way out, takes no new streams."""

    deleting: bool = False

    def encode(self) -> bytes:
        return dump_record({"deleting": self.deleting})

    @classmethod
    def decode(cls, data: bytes) -> ScopeRecord:
        return load_record("scope", data, lambda f: cls(deleting=f["deleting"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """A stream's own record: the one on which every change of the stream is decided.

    ``incarnation`` is the number of its first segment: no two streams that bear the same name share it.
    ``next_number`` is the number of the next new segment. ``policy``: the stream's policy document as it is stored
    (``codec.control.policies``), of which ``config.retention`` is a view; None: there is no more to it than the view. It is
    kept as it is found, so that one that cannot be read is neither lost nor a reason to lose sight of the stream.
    ``ending``: delete the stream once it is sealed.
    """

    state: StreamState
    config: StreamConfig
    incarnation: int
    epoch: int
    next_number: int
    created_ms: int
    work: Work | None = None
    policy: Any = None
    ending: bool = False

    def encode(self) -> bytes:
        fields: Fields = {
            "state": self.state.value,
            "config": _config_fields(self.config),
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "next": self.next_number,
            "created_ms": self.created_ms,
            "work": None if self.work is None else self.work.to_fields(),
        }
        if self.policy is None and not self.ending:
            return dump_record(fields)
        return dump_record({**fields, "policy": self.policy, "ending": self.ending}, version=STREAM_VERSION)

    @classmethod
    def decode(cls, data: bytes) -> StreamRecord:
        return load_record("stream", data, cls._build, newest=STREAM_VERSION)

    @classmethod
    def _build(cls, fields: Fields) -> StreamRecord:
        return cls(
            state=StreamState(fields["state"]),
            config=_read_config(fields["config"]),
            incarnation=fields["incarnation"],
            epoch=fields["epoch"],
            next_number=fields["next"],
            created_ms=fields["created_ms"],
            work=None if fields["work"] is None else Work.from_fields(fields["work"]),
            policy=fields.get("policy"),
            ending=fields.get("ending", False),
        )


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
class EpochEntry:
    """The segments of one epoch, in key order, tiling [0, 1). Never changed once its epoch is active."""

    epoch: int
    segments: Sequence[SegmentRange]
    created_ms: int

    def encode(self) -> bytes:
        # Neighbours share their bound: stored once, it cannot differ, and ten thousand segments fit into one value.
        bounds = [item.keys.low for item in self.segments] + [self.segments[-1].keys.high]
        ids = [item.segment for item in self.segments]
        return dump_record({"epoch": self.epoch, "created_ms": self.created_ms, "ids": ids, "bounds": bounds})

    @classmethod
    def decode(cls, data: bytes) -> EpochEntry:
        return load_record("epoch", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> EpochEntry:
        bounds = fields["bounds"]
        segments = tuple(
            SegmentRange(segment=SegmentId(segment), keys=KeyRange(low=low, high=high))
            for segment, low, high in zip(fields["ids"], bounds[:-1], bounds[1:], strict=True)
        )
        return cls(epoch=fields["epoch"], segments=segments, created_ms=fields["created_ms"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsRecord:
    """Final lengths of the segments that one scale, or the end of the stream, has sealed, and how many events they hold.
    Kept for ever. ``events=None``: nobody counted, which is so in records of the first release."""

    lengths: Positions
    events: Positions | None = None

    def encode(self) -> bytes:
        fields: Fields = {"lengths": dump_positions(self.lengths)}
        if self.events is not None:
            fields["events"] = dump_positions(self.events)
        return dump_record(fields)

    @classmethod
    def decode(cls, data: bytes) -> LengthsRecord:
        return load_record("lengths", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> LengthsRecord:
        events = fields.get("events")
        return cls(lengths=load_positions(fields["lengths"]), events=None if events is None else load_positions(events))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRecord:
    """Where the stream begins. ``pending``: the cut of a truncation that has been decided and is being performed.

    ``cut`` without positions is the beginning of history. ``truncated_bytes`` lie before ``cut``. ``grace_ms`` names the
    grace record that the work under way makes (a truncation whose bytes are kept for a while) or takes back (an undo).
    """

    cut: Positions = field(default_factory=dict)
    pending: Positions | None = None
    truncated_bytes: int = 0
    grace_ms: int | None = None

    @property
    def visible(self) -> Positions:
        """The head that is told to users: what lies before a decided cut is not promised to anybody any more."""
        return self.cut if self.pending is None else self.pending

    def encode(self) -> bytes:
        pending = None if self.pending is None else dump_positions(self.pending)
        fields: Fields = {
            "cut": dump_positions(self.cut),
            "pending": pending,
            "truncated_bytes": self.truncated_bytes,
        }
        if self.grace_ms is None:
            return dump_record(fields)
        # An older program would finish the truncation by giving the bytes back.
        return dump_record({**fields, "grace_ms": self.grace_ms}, version=HEAD_VERSION)

    @classmethod
    def decode(cls, data: bytes) -> HeadRecord:
        return load_record("head", data, cls._build, newest=HEAD_VERSION)

    @classmethod
    def _build(cls, fields: Fields) -> HeadRecord:
        pending = fields["pending"]
        return cls(
            cut=load_positions(fields["cut"]),
            pending=None if pending is None else load_positions(pending),
            truncated_bytes=fields["truncated_bytes"],
            grace_ms=fields.get("grace_ms"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRecord:
    """A number that only grows: the next transaction number, or the next segment number of a deleted stream."""

    value: int

    def encode(self) -> bytes:
        return dump_record({"value": self.value})

    @classmethod
    def decode(cls, data: bytes) -> CounterRecord:
        return load_record("counter", data, lambda f: cls(value=f["value"]))


class TransactionState(enum.Enum):
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPin:
    """A batch that wants to commit the transaction. Whether it does, the writer's batch record says."""

    writer: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A transaction that is not completed. It ends at ``expires_ms`` unless renewed, at ``deadline_ms`` in any case.

    ``key``: the key under which several writers share it, or None. ``incarnation``: the stream in which it was begun; None
    in records of the first release.
    """

    state: TransactionState
    epoch: int
    expires_ms: int
    deadline_ms: int
    pin: BatchPin | None = None
    key: UUID | None = None
    incarnation: int | None = None

    def encode(self) -> bytes:
        fields: dict[str, object] = {
            "state": self.state.value,
            "epoch": self.epoch,
            "expires_ms": self.expires_ms,
            "deadline_ms": self.deadline_ms,
            "pin": None if self.pin is None else [self.pin.writer, self.pin.batch],
        }
        if self.key is not None:
            fields["key"] = self.key.hex
        if self.incarnation is not None:
            fields["incarnation"] = self.incarnation
        return dump_record(fields)

    @classmethod
    def decode(cls, data: bytes) -> TransactionRecord:
        return load_record("transaction", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> TransactionRecord:
        pin = fields["pin"]
        return cls(
            state=TransactionState(fields["state"]),
            epoch=fields["epoch"],
            expires_ms=fields["expires_ms"],
            deadline_ms=fields["deadline_ms"],
            pin=None if pin is None else BatchPin(writer=pin[0], batch=pin[1]),
            key=UUID(hex=fields["key"]) if "key" in fields else None,
            incarnation=fields.get("incarnation"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRecord:
    """Which transaction the writers share that know its key."""

    transaction: UUID

    def encode(self) -> bytes:
        return dump_record({"txn": self.transaction.hex})

    @classmethod
    def decode(cls, data: bytes) -> JoinRecord:
        return load_record("join", data, lambda f: cls(transaction=UUID(hex=f["txn"])))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRecord:
    """How a transaction ended, and when."""

    state: TransactionState
    completed_ms: int

    def encode(self) -> bytes:
        return dump_record({"state": self.state.value, "completed_ms": self.completed_ms})

    @classmethod
    def decode(cls, data: bytes) -> CompletedRecord:
        return load_record(
            "completed", data, lambda f: cls(state=TransactionState(f["state"]), completed_ms=f["completed_ms"])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """An entry of a stream's commit queue: transactions that were decided together, to be performed in this order."""

    commit: bool
    transactions: tuple[UUID, ...]

    def encode(self) -> bytes:
        return dump_record({"commit": self.commit, "txns": [txn.hex for txn in self.transactions]})

    @classmethod
    def decode(cls, data: bytes) -> DecisionRecord:
        return load_record(
            "decision",
            data,
            lambda f: cls(commit=f["commit"], transactions=tuple(UUID(hex=txn) for txn in f["txns"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """The last batch that a named writer committed, and its transactions.

    ``query``: the query that owns the name, empty if no query is known; ``run``: its latest run; ``past_runs``: earlier
    ones, newest first. ``one_job``: the name was generated for this one batch, so the record may be forgotten. ``at_ms``:
    when the name was used last, to a day, by the retention clock; None: an earlier version wrote the record.
    """

    batch: int
    transactions: tuple[UUID, ...]
    query: str = ""
    run: str = ""
    past_runs: tuple[str, ...] = ()
    one_job: bool = False
    at_ms: int | None = None

    def encode(self) -> bytes:
        fields: Fields = {"batch": self.batch, "txns": [txn.hex for txn in self.transactions]}
        if self.query:
            fields |= {"query": self.query, "run": self.run, "past_runs": list(self.past_runs)}
        if self.one_job:
            fields["one_job"] = True
        if self.at_ms is not None:
            fields["at_ms"] = self.at_ms
        return dump_record(fields)

    @classmethod
    def decode(cls, data: bytes) -> BatchRecord:
        return load_record(
            "batch",
            data,
            lambda f: cls(
                batch=f["batch"],
                transactions=tuple(UUID(hex=txn) for txn in f["txns"]),
                query=f.get("query", ""),
                run=f.get("run", ""),
                past_runs=tuple(f.get("past_runs", ())),
                one_job=f.get("one_job", False),
                at_ms=f.get("at_ms"),
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenRecord:
    """Digests of writers' names that were forgotten, in order: those of one stream that have the first byte in common."""

    digests: tuple[bytes, ...]

    def encode(self) -> bytes:
        return dump_record({"digests": base64.b64encode(b"".join(self.digests)).decode()})

    @classmethod
    def decode(cls, data: bytes) -> ForgottenRecord:
        return load_record("forgotten names", data, lambda f: cls(digests=_digests(f["digests"])))


def _digests(text: str) -> tuple[bytes, ...]:
    packed = base64.b64decode(text, validate=True)
    if len(packed) % 8:
        raise ValueError("digests have no whole number of bytes")
    return tuple(packed[at : at + 8] for at in range(0, len(packed), 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerRecord:
    """A key that says something by being there."""

    def encode(self) -> bytes:
        return dump_record({})

    @classmethod
    def decode(cls, data: bytes) -> MarkerRecord:
        return load_record("marker", data, lambda _: cls())
