"""The rows of the controller's table, for the data dictionary. The fields of a record are annotated in its class."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from typing import Any, get_args, get_origin
from uuid import UUID

from penstock.codec.control.approvals import ApprovalRecord, ApprovalRuleRecord
from penstock.codec.control.audit_rows import AUDIT_LOG_ROWS
from penstock.codec.control.erasure_rows import ERASURE_ROWS
from penstock.codec.control.erasures import WITHOUT_ANNOTATIONS
from penstock.codec.control.policies import HoldPlaceRecord, HoldRecord, PolicyRecord
from penstock.codec.control.readers import (
    EvictionsRecord,
    GroupRecord,
    PastTruncationsRecord,
    PositionCommitRecord,
    RetentionSetRecord,
    SubscriberRecord,
    TailRecord,
)
from penstock.codec.control.record import JsonRecord, StoredField, record_form
from penstock.codec.control.streams import (
    BatchRecord,
    CompletedRecord,
    CounterRecord,
    DecisionRecord,
    EpochRecord,
    ForgottenRecord,
    HeadRecord,
    JoinRecord,
    LengthsRecord,
    MarkerRecord,
    ScopeRecord,
    StreamRecord,
    TransactionRecord,
)
from penstock.codec.control.truncations import (
    BucketRecord,
    ClockRecord,
    DeletedRecord,
    GapRecord,
    GraceRecord,
    HeartbeatRecord,
    MovedRecord,
    OutboxRecord,
    PointRecord,
)
from penstock.codec.control.watermarks import WatermarkRecord, WriterMarkRecord
from penstock.codec.dictionary import Entry, JsonValue


def record_value(kind: type[JsonRecord]) -> JsonValue:
    """The value of a record whose fields are annotated."""
    fields = [
        (item.key, _type_words(item.type) + (", or absent" if item.form.optional else ""), _meaning(item))
        for item in record_form(kind).fields
    ]
    return JsonValue(name=kind.__name__, fields=fields)


def _meaning(item: StoredField) -> str:
    since = f" (version {item.form.version})" if item.form.version > 1 else ""
    return item.form.text + since


def _type_words(kind: Any) -> str:
    if get_origin(kind) is types.UnionType:
        return " or ".join(_type_words(one) for one in get_args(kind))
    if (origin := get_origin(kind)) is not None:
        is_map = isinstance(origin, type) and issubclass(origin, Mapping)
        return "object" if is_map else "list"
    plain = {int: "int", str: "text", bool: "bool", float: "number", UUID: "text", type(None): "null", Any: "object"}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "text"
    return plain.get(kind, "object")


_TRANSACTIONS = (
    "controller.transactions.calls",
    "controller.transactions.decisions",
    "controller.transactions.commits",
)
_GROUPS = "controller.groups.reader_groups"
_SUBSCRIBERS = "controller.groups.subscribers"
_STEPS = "controller.retention.steps"
_DELETED = "controller.grace.deleted_records"
_LIFECYCLE = "controller.streams.lifecycle"
_EPOCHS = "controller.streams.epochs"
_WITH_STREAM = "the deletion of the stream"

TABLE = (
    Entry(
        key="scope/{scope}",
        value=ScopeRecord,
        one_for="each scope",
        writers=("controller.streams.scopes", "controller.retention.policies", "controller.retention.holds"),
        ends="the deletion of the scope",
    ),
    Entry(
        key="stream/{scope}/{stream}",
        value=StreamRecord,
        one_for="each stream; every change of the stream is a compare-and-set on it",
        writers=("controller.stream_view", _LIFECYCLE, _DELETED),
        ends=f"{_WITH_STREAM}, as its last step",
    ),
    Entry(
        key="epoch/{scope}/{stream}/{epoch}",
        value=EpochRecord,
        one_for="each epoch, including that of a scale that is decided and not yet visible",
        writers=(_LIFECYCLE, _EPOCHS, "controller.transactions.commits", _DELETED),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="length/{scope}/{stream}/{epoch}",
        value=LengthsRecord,
        one_for="each epoch after 0: the segments that it sealed; the last epoch + 1: those sealed with the stream",
        writers=(_EPOCHS,),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="head/{scope}/{stream}",
        value=HeadRecord,
        one_for="each stream that was ever truncated",
        writers=("controller.streams.truncation", "controller.grace.undo"),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="number/{scope}/{stream}",
        value=CounterRecord,
        one_for="each deleted name: the first segment number of the next stream of this name",
        writers=(_LIFECYCLE, _DELETED),
        ends="about 1,000 later deletions: the oldest become the floor `counter/number`",
    ),
    Entry(
        key="counter/number",
        value=CounterRecord,
        one_for="the store: no new stream has a segment number below it",
        writers=("controller.streams.numbers", "controller.streams.restored"),
        ends="nothing",
    ),
    Entry(
        key="counter/transaction",
        value=CounterRecord,
        one_for="the store: the first transaction number that no controller has reserved",
        writers=("controller.transactions.calls",),
        ends="nothing",
    ),
    Entry(
        key="policy/{scope}/{stream}",
        value=MarkerRecord,
        one_for="each stream with a retention policy of its own",
        writers=("controller.retention.policies", _LIFECYCLE),
        ends=f"the policy is removed, or {_WITH_STREAM}",
    ),
    Entry(
        key="scope-policy/{scope}",
        value=PolicyRecord,
        one_for="each scope with a policy document",
        writers=("controller.retention.policies",),
        ends="the policy is removed, or the deletion of the scope",
    ),
    Entry(
        key="server-policy",
        value=PolicyRecord,
        one_for="the store, if the server level has a policy document",
        writers=("controller.retention.policies",),
        ends="the policy is removed",
    ),
    Entry(
        key="quota/{scope}/{stream}",
        value=MarkerRecord,
        one_for="each stream whose appends are limited, so that a store knows the limit before it accepts appends",
        writers=("controller.retention.append_limits",),
        ends=f"no rule limits the appends any more, or {_WITH_STREAM}",
    ),
    Entry(
        key="approval/{request}",
        value=ApprovalRecord,
        one_for="each request for approval",
        writers=("controller.protection.approvals",),
        ends="30 days after its end",
    ),
    Entry(
        key="approval-rule/{target}",
        value=ApprovalRuleRecord,
        one_for="each level at which actions need approval",
        writers=("controller.protection.approvals",),
        ends="never; of a stream that was deleted it has no effect",
    ),
    Entry(
        key="hold/{scope}/{hold}",
        value=HoldRecord,
        one_for="each hold",
        writers=("controller.retention.holds",),
        ends="its release or its end, or the deletion of its stream or scope",
    ),
    Entry(
        key="hold-id/{hold}",
        value=HoldPlaceRecord,
        one_for="each hold; it keeps ids unique",
        writers=("controller.retention.holds",),
        ends="the same step as the hold",
    ),
    Entry(
        key="tail/{scope}/{stream}/{time}",
        value=TailRecord,
        one_for="each member of the stream's retention set",
        writers=("controller.retention.sets",),
        ends=f"no rule needs it any more, or {_WITH_STREAM}",
    ),
    Entry(
        key="tails/{scope}/{stream}",
        value=RetentionSetRecord,
        one_for="each stream with a retention set; changed in every step that changes the set",
        writers=(_STEPS,),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="gone/{scope}/{stream}",
        value=PastTruncationsRecord,
        one_for="each stream that was ever truncated: the latest 100 truncations",
        writers=("controller.retention.removals", "controller.grace.undo"),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="left/{scope}/{stream}",
        value=CounterRecord,
        one_for="each stream that a subscriber ever left: the last time, wall clock, ms",
        writers=(_SUBSCRIBERS, _STEPS, _DELETED),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="grace/{scope}/{stream}/{time}",
        value=GraceRecord,
        one_for="each truncation whose bytes are kept or were restored",
        writers=("controller.streams.truncation", "controller.grace.undo", "controller.grace.kept"),
        ends=f"the grace ends and its bytes are freed, or {_WITH_STREAM}",
    ),
    Entry(
        key="deleted/{scope}/{stream}/{incarnation}",
        value=DeletedRecord,
        one_for="each deleted stream that can be restored, or whose data is still being deleted",
        writers=(_DELETED, "controller.grace.deleted_streams"),
        ends="the stream is restored, or its grace has ended and its data is deleted",
    ),
    Entry(
        key="deleted-row/{scope}/{stream}/{incarnation}/{row}",
        value="the record that had the key, unchanged; a `stream` record has the state that a restored stream begins with",
        one_for="each record of such a stream and of its mark stream; the key has the incarnation of the stream",
        writers=(_DELETED,),
        ends="the same as `deleted/`",
    ),
    Entry(
        key="moved/{scope}/{stream}/{time}/{group}",
        value=MovedRecord,
        one_for="each subscriber that a rule moved or dropped after the truncation of that time (0: before any)",
        writers=("controller.groups.moved_subscribers",),
        ends=f"the bytes of the next truncation are freed or restored, or {_WITH_STREAM}",
    ),
    Entry(
        key="point/{scope}/{stream}/{time}",
        value=PointRecord,
        one_for="points of the stream's history, for plots and forecasts",
        writers=("controller.retention.points",),
        ends=f"older points are thinned out, or {_WITH_STREAM}",
    ),
    Entry(
        key="evicted/{scope}/{stream}",
        value=EvictionsRecord,
        one_for="each stream whose rules removed unread data: the latest 100 times",
        writers=(_STEPS,),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="txn/{scope}/{stream}/{txn}",
        value=TransactionRecord,
        one_for="each transaction that is not completed",
        writers=(*_TRANSACTIONS, "controller.streams.repair"),
        ends="its commit or abort, or the deletion of the stream",
    ),
    Entry(
        key="txn-kept/{scope}/{stream}/{txn}",
        value=MarkerRecord,
        one_for="each transaction whose record a repair removed, but not its segments",
        writers=("controller.streams.repair",),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="join/{scope}/{stream}/{share}",
        value=JoinRecord,
        one_for="each transaction that is shared under a key and not completed",
        writers=("controller.transactions.calls",),
        ends="the same as the transaction",
    ),
    Entry(
        key="queue/{scope}/{stream}/{place}",
        value=DecisionRecord,
        one_for="each decision that is not performed yet, in order",
        writers=("controller.transactions.decisions",),
        ends="it is performed",
    ),
    Entry(
        key="done/{scope}/{stream}/{txn}",
        value=CompletedRecord,
        one_for="each completed transaction",
        writers=("controller.transactions.commits",),
        ends=f"24 hours pass, or {_WITH_STREAM}",
    ),
    Entry(
        key="done-at/{scope}/{stream}/{newest}/{txn}",
        value=MarkerRecord,
        one_for="the same, newest first",
        writers=("controller.transactions.commits",),
        ends="the same step",
    ),
    Entry(
        key="batch/{scope}/{stream}/{writer}",
        value=BatchRecord,
        one_for="each writer that commits by batch number",
        writers=("controller.transactions.batches", "controller.transactions.decisions"),
        ends=f"the writer is silent for long: then `forgotten/` keeps its digest; or {_WITH_STREAM}",
    ),
    Entry(
        key="forgotten/{scope}/{stream}/{byte}",
        value=ForgottenRecord,
        one_for="each first byte of the digests of writers whose `batch/` records were deleted because of silence",
        writers=("controller.transactions.writer_names",),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="group/{group}",
        value=GroupRecord,
        one_for="each reader group",
        writers=(_GROUPS,),
        ends="the deletion of the group",
    ),
    Entry(
        key="position-commit/{group}/{reader}",
        value=PositionCommitRecord,
        one_for="each reader whose last commit was one of positions with transactions",
        writers=("controller.transactions.positions",),
        ends="the reader leaves the group, or the deletion of the group",
    ),
    Entry(
        key="subscriber/{scope}/{stream}/{group}",
        value=SubscriberRecord,
        one_for="each subscription of a reader group to a stream",
        writers=(_SUBSCRIBERS, _STEPS, "controller.groups.moved_subscribers", _DELETED),
        ends="the group leaves the stream or is deleted, a rule drops it, or the deletion of the stream",
    ),
    Entry(
        key="writer-mark/{scope}/{stream}/{writer}",
        value=WriterMarkRecord,
        one_for="each writer that has noted a time, until the watermark passes it by",
        writers=("controller.watermarks.notes", "controller.watermarks.watermarks"),
        ends=f"the writer leaves or is silent, and the watermark has reached its time, or {_WITH_STREAM}",
    ),
    Entry(
        key="watermark/{scope}/{stream}",
        value=WatermarkRecord,
        one_for="each stream with a watermark: the last one",
        writers=("controller.watermarks.advancing",),
        ends=_WITH_STREAM,
    ),
    Entry(
        key="work/{scope}/{stream}",
        value=MarkerRecord,
        one_for="each workflow of a stream that has begun and not ended; stale ones are harmless",
        writers=("controller.pending_work", _EPOCHS),
        ends="the end of the workflow, or the next sweep",
    ),
    Entry(
        key="group-work/{group}",
        value=MarkerRecord,
        one_for="each workflow of a reader group that has begun and not ended",
        writers=(_GROUPS,),
        ends="the end of the workflow, or the next sweep",
    ),
    Entry(
        key="scope-work/{scope}",
        value=MarkerRecord,
        one_for="each deletion of a scope that has begun and not ended",
        writers=("controller.streams.scopes",),
        ends="the end of the deletion, or the next sweep",
    ),
    Entry(
        key="clock/retention",
        value=ClockRecord,
        one_for="the store: the clock by which data ages",
        writers=("controller.retention.clock",),
        ends="nothing",
    ),
    Entry(
        key="buckets/count",
        value=CounterRecord,
        one_for="the store: the number of buckets that streams are spread over",
        writers=("controller.buckets",),
        ends="nothing",
    ),
    Entry(
        key="bucket/{bucket}",
        value=BucketRecord,
        one_for="each bucket: the controller that owns it",
        writers=("controller.buckets",),
        ends="nothing",
    ),
    Entry(
        key="controller/{controller}",
        value=HeartbeatRecord,
        one_for="each controller that shares the store with others",
        writers=("controller.buckets",),
        ends="the controller closes, or another one finds that it sends no heartbeats",
    ),
    Entry(
        key="audit/{life}/{number}",
        value=OutboxRecord,
        one_for="each audit entry that is decided and not yet appended to the audit stream",
        writers=("controller.retention.audit",),
        ends="its append",
    ),
    Entry(
        key="audit-gap/{life}",
        value=GapRecord,
        one_for="each life of a controller with entries that found no room",
        writers=("controller.retention.audit",),
        ends="the audit stream reports all of them, and the life has ended",
    ),
    Entry(
        key="audit-told/{life}",
        value=GapRecord,
        one_for="the same: the entries that the audit stream reports",
        writers=("controller.retention.audit",),
        ends="the same step",
    ),
    *AUDIT_LOG_ROWS,
    *ERASURE_ROWS,
)
"""All rows of the table, as the page lists them."""


def value_of(kind: type) -> JsonValue:
    """The fields of a record type."""
    return WITHOUT_ANNOTATIONS[kind] if kind in WITHOUT_ANNOTATIONS else record_value(kind)
