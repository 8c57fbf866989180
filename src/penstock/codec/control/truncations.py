"""What the controller stores about truncations that can be undone, its clock, its buckets and its audit outbox.

The form is that of ``penstock.codec.control.streams``. Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.codec.control.readers import SubscriberRecord
from penstock.codec.control.streams import Fields, Positions, dump_positions, dump_record, load_positions, load_record


class GraceState(enum.Enum):
    """``KEPT``: bytes are on disk and can be had back. ``RELEASING``: they are being given back, for good. ``UNDONE``: they
    were had back, and rules leave them until the time at which they would have gone."""

    KEPT = "kept"
    RELEASING = "releasing"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceRecord:
    """A truncation from ``before`` to ``after`` whose bytes are kept until ``due_ms`` (retention clock).

    ``before`` without positions is the beginning of history. ``size_bytes`` lie between the two. ``wall_ms``: the wall clock
    at ``at_ms``; None: written by an earlier version.
    """

    before: Positions
    after: Positions
    at_ms: int
    due_ms: int
    size_bytes: int
    state: GraceState = GraceState.KEPT
    wall_ms: int | None = None

    def encode(self) -> bytes:
        fields: Fields = {
            "before": dump_positions(self.before),
            "after": dump_positions(self.after),
            "at_ms": self.at_ms,
            "due_ms": self.due_ms,
            "size_bytes": self.size_bytes,
            "state": self.state.value,
        }
        return dump_record(fields if self.wall_ms is None else {**fields, "wall_ms": self.wall_ms})

    @classmethod
    def decode(cls, data: bytes) -> GraceRecord:
        return load_record("grace", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> GraceRecord:
        return cls(
            before=load_positions(fields["before"]),
            after=load_positions(fields["after"]),
            at_ms=fields["at_ms"],
            due_ms=fields["due_ms"],
            size_bytes=fields["size_bytes"],
            state=GraceState(fields["state"]),
            wall_ms=fields.get("wall_ms"),
        )


class DeletedState(enum.Enum):
    """``KEPT``: the stream can be restored. ``RESTORING``: it is being restored. ``ENDING``: its data is being freed, for
    good."""

    KEPT = "kept"
    RESTORING = "restoring"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecord:
    """A deleted stream whose data is kept until ``due_ms`` (retention clock).

    ``deleted_ms``: wall clock. ``rule``: the rule that deleted it, or ``manual``. ``size_bytes``: from head to tail; None:
    unknown, because the record of an epoch is lost. ``sealed``: the stream was sealed before it was deleted. ``caller``: who
    deleted it, as in the audit entry.
    """

    deleted_ms: int
    due_ms: int
    rule: str
    size_bytes: int | None
    sealed: bool
    state: DeletedState = DeletedState.KEPT
    caller: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        return dump_record(
            {
                "deleted_ms": self.deleted_ms,
                "due_ms": self.due_ms,
                "rule": self.rule,
                "size_bytes": self.size_bytes,
                "sealed": self.sealed,
                "state": self.state.value,
                "caller": dict(self.caller),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> DeletedRecord:
        return load_record("deleted stream", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> DeletedRecord:
        return cls(
            deleted_ms=fields["deleted_ms"],
            due_ms=fields["due_ms"],
            rule=fields["rule"],
            size_bytes=fields["size_bytes"],
            sealed=fields["sealed"],
            state=DeletedState(fields["state"]),
            caller=fields["caller"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRecord:
    """A subscriber as it was before a rule moved it; ``dropped``: a rule has ended its subscription since."""

    before: SubscriberRecord
    dropped: bool = False

    def encode(self) -> bytes:
        return dump_record({"before": self.before.encode().decode(), "dropped": self.dropped})

    @classmethod
    def decode(cls, data: bytes) -> MovedRecord:
        return load_record(
            "moved",
            data,
            lambda f: cls(before=SubscriberRecord.decode(f["before"].encode()), dropped=f["dropped"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRecord:
    """Where the retention clock stood, and what the wall clock said at that moment. Milliseconds. ``behind_ms``: how far
    the wall clock was ever seen to lag."""

    retention_ms: int
    wall_ms: int
    behind_ms: int = 0

    def encode(self) -> bytes:
        return dump_record({"retention_ms": self.retention_ms, "wall_ms": self.wall_ms, "behind_ms": self.behind_ms})

    @classmethod
    def decode(cls, data: bytes) -> ClockRecord:
        return load_record(
            "clock",
            data,
            lambda f: cls(retention_ms=f["retention_ms"], wall_ms=f["wall_ms"], behind_ms=f.get("behind_ms", 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRecord:
    """A controller that is alive while ``beat`` goes on changing."""

    beat: int

    def encode(self) -> bytes:
        return dump_record({"beat": self.beat})

    @classmethod
    def decode(cls, data: bytes) -> HeartbeatRecord:
        return load_record("heartbeat", data, lambda f: cls(beat=f["beat"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRecord:
    """Who looks after a bucket; ``epoch`` grows with each change of hands. An empty ``owner`` has let it go."""

    owner: str
    epoch: int

    def encode(self) -> bytes:
        return dump_record({"owner": self.owner, "epoch": self.epoch})

    @classmethod
    def decode(cls, data: bytes) -> BucketRecord:
        return load_record("bucket", data, lambda f: cls(owner=f["owner"], epoch=f["epoch"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord:
    """A stream at a time (retention clock): bytes written and bytes released since the beginning of its history."""

    time_ms: int
    size_bytes: int
    head_bytes: int

    def encode(self) -> bytes:
        return dump_record({"t": self.time_ms, "size": self.size_bytes, "head": self.head_bytes})

    @classmethod
    def decode(cls, data: bytes) -> PointRecord:
        return load_record("point", data, lambda f: cls(time_ms=f["t"], size_bytes=f["size"], head_bytes=f["head"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRecord:
    """An audit entry that is not in its stream yet: the event as text."""

    event: str

    def encode(self) -> bytes:
        return dump_record({"event": self.event})

    @classmethod
    def decode(cls, data: bytes) -> OutboxRecord:
        return load_record("outbox", data, lambda f: cls(event=f["event"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRecord:
    """Audit entries that found no room in the outbox: their number, and the wall-clock times of the first and the last.

    ``added``: how many entries the decision that wrote this record added.
    """

    count: int
    first_ms: int
    last_ms: int
    added: int = 0

    def encode(self) -> bytes:
        fields = {"count": self.count, "first_ms": self.first_ms, "last_ms": self.last_ms}
        return dump_record({**fields, "added": self.added} if self.added else fields)

    @classmethod
    def decode(cls, data: bytes) -> GapRecord:
        return load_record("gap", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> GapRecord:
        return cls(
            count=fields["count"], first_ms=fields["first_ms"], last_ms=fields["last_ms"], added=fields.get("added", 0)
        )
