"""What the controller stores about truncations that can be undone, its clock, its buckets and its audit outbox.

Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from penstock.codec.control.readers import SubscriberRecord
from penstock.codec.control.record import Field, JsonRecord, Positions, dump_positions
from penstock.model.values.dataclass import dataclass


class GraceState(enum.Enum):
    """``KEPT``: the bytes are on disk, and an undo restores them. ``RELEASING``: they are being freed permanently.
    ``UNDONE``: they were restored, and rules keep them until the time at which they would have been freed."""

    KEPT = "kept"
    RELEASING = "releasing"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceRecord(JsonRecord):
    """A truncation from ``before`` to ``after`` whose bytes are kept until ``due_ms``."""

    KIND = "grace"
    before: Annotated[Positions, Field("the head before it; empty: the beginning of the stream", dump=dump_positions)]
    after: Annotated[Positions, Field("the head after it", dump=dump_positions)]
    at_ms: Annotated[int, Field("retention clock, ms, as in the key")]
    due_ms: Annotated[int, Field("retention clock, ms: when the bytes are freed")]
    size_bytes: Annotated[int, Field("bytes between the two cuts")]
    state: Annotated[GraceState, Field("`kept`, `releasing` or `undone`")] = GraceState.KEPT
    wall_ms: Annotated[
        int | None, Field("wall clock, ms, at `at_ms`; absent in records of earlier versions", optional=True)
    ] = None


class DeletedState(enum.Enum):
    """``KEPT``: the stream can be restored. ``RESTORING``: it is being restored. ``ENDING``: its data is being freed
    permanently."""

    KEPT = "kept"
    RESTORING = "restoring"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRecord(JsonRecord):
    """A deleted stream whose data is kept until ``due_ms``."""

    KIND = "deleted stream"
    deleted_ms: Annotated[int, Field("wall clock, ms")]
    due_ms: Annotated[int, Field("retention clock, ms: when the data is freed")]
    rule: Annotated[str, Field("the rule that deleted it, or `manual`")]
    size_bytes: Annotated[int | None, Field("from head to tail; null: the record of an epoch is lost")]
    sealed: Annotated[bool, Field("it was sealed before the deletion")]
    state: Annotated[DeletedState, Field("`kept`, `restoring` or `ending`")] = DeletedState.KEPT
    caller: Annotated[Mapping[str, str], Field("who deleted it, as in the audit entry (audit.md)")] = field(
        default_factory=dict
    )


def _dump_subscriber(record: SubscriberRecord) -> str:
    return record.encode().decode()


def _load_subscriber(text: str) -> SubscriberRecord:
    return SubscriberRecord.decode(text.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedRecord(JsonRecord):
    """The state of a subscriber before a rule moved it."""

    KIND = "moved"
    before: Annotated[
        SubscriberRecord,
        Field(
            "the subscriber's record before, as text",
            dump=_dump_subscriber,
            load=_load_subscriber,
        ),
    ]
    dropped: Annotated[bool, Field("a rule has ended the subscription since")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRecord(JsonRecord):
    """The retention clock, and the wall clock at the same moment."""

    KIND = "clock"
    retention_ms: Annotated[int, Field("retention clock, ms")]
    wall_ms: Annotated[int, Field("wall clock, ms")]
    behind_ms: Annotated[int, Field("the largest lag of the wall clock ever seen, ms", added=True)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRecord(JsonRecord):
    """A heartbeat: the controller is alive while ``beat`` changes."""

    KIND = "heartbeat"
    beat: Annotated[int, Field("grows with each heartbeat")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRecord(JsonRecord):
    """The controller that owns a bucket of streams."""

    KIND = "bucket"
    owner: Annotated[str, Field("id of the controller; empty: it has released the bucket")]
    epoch: Annotated[int, Field("grows with each change of owner")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRecord(JsonRecord):
    """A point in a stream's history."""

    KIND = "point"
    time_ms: Annotated[int, Field("retention clock, ms", name="t")]
    size_bytes: Annotated[int, Field("bytes written since the beginning of its history", name="size")]
    head_bytes: Annotated[int, Field("bytes released since the beginning of its history", name="head")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRecord(JsonRecord):
    """An audit entry that is not in its stream yet."""

    KIND = "outbox"
    event: Annotated[str, Field("the entry as text (audit.md)")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRecord(JsonRecord):
    """Audit entries for which the outbox had no room."""

    KIND = "gap"
    count: Annotated[int, Field("how many")]
    first_ms: Annotated[int, Field("wall clock, ms: the first")]
    last_ms: Annotated[int, Field("wall clock, ms: the last")]
    added: Annotated[
        int, Field("how many of them the decision added that wrote this record; absent: 0", optional=True)
    ] = 0
