"""What the control plane offers, in process or over gRPC."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from penstock.model.answers.explanation import Explanation
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.model.queries import QuerySource
from penstock.model.retention import EffectivePolicy, HoldInfo, PolicyDocument, PolicyTarget
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.ports.files import Buffer

PAGE_MAX = 1000
LEASE_MIN_MS = 10_000
LEASE_MAX_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A segment that follows; it may be read once all ``predecessors`` are read to their end."""

    range: SegmentRange
    predecessors: Sequence[SegmentId]


class ScaleStatus(enum.Enum):
    IN_PROGRESS = "in progress"
    DONE = "done"
    UNKNOWN_EPOCH = "unknown epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """New segments, and the epoch that was active before."""

    segments: Sequence[SegmentRange]
    epoch_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInfo:
    """An epoch of a stream: its segments in key order, and when it was decided, in milliseconds."""

    epoch: int
    created_ms: int
    segments: Sequence[SegmentRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpan:
    """Bytes ``start <= offset < end`` of a segment, and how many events they are; None where nobody can tell any more."""

    segment: SegmentId
    start: int
    end: int
    events: int | None


class TransactionStatus(enum.Enum):
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class PingStatus(enum.Enum):
    OK = "ok"
    LEASE_TOO_LARGE = "lease too large"
    MAX_LIFETIME = "maximum lifetime exceeded"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """An open transaction and the segments from whose names its own are derived."""

    id: UUID
    segments: Sequence[SegmentRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBlock:
    """Events of a transaction for one of its segments, framed: all that ``writer`` ever appends there."""

    segment: SegmentId
    writer: UUID
    event_count: int
    data: Buffer

    def __post_init__(self) -> None:
        if self.event_count < 1 or not len(self.data):
            raise InvalidArgumentError(
                "a block holds events", segment=self.segment, event_count=self.event_count, size_bytes=len(self.data)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGroupConfig:
    """A reader group. An unbounded start cut is the head, an unbounded end cut none."""

    scope: str
    name: str
    id: UUID
    generation: int = 0
    retention: ReaderGroupRetention = ReaderGroupRetention.NONE
    start_cuts: Mapping[StreamName, StreamCut] = field(default_factory=dict)
    end_cuts: Mapping[StreamName, StreamCut] = field(default_factory=dict)
    refresh_ms: int = 3000
    checkpoint_interval_ms: int = 30_000
    max_outstanding_checkpoints: int = 3
    rollover_bytes: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.scope}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberInfo:
    """A subscriber of a stream, as ``scope/group``. ``cut=None``: it has published nothing, and holds nothing.

    ``updated_ms``: when it last made progress or confirmed that nothing is unread. Lags are from its cut to the tail:
    bytes and events are exact; ``lag_ms`` is the age of the oldest unread event, exact to one recording period, None if
    nothing is unread. ``held_bytes``: data that only it keeps. ``holes``: ranges acknowledged out of order; Pravega's
    protocol has none. Events, age and held bytes are -1 or None if they were not requested. ``query``: the query that
    owns it, empty if none is known. ``owner``: who reads as this subscriber, in words: a Spark query, a table, a reader
    group, or a group of the Java client; empty if it was not requested.
    """

    name: str
    generation: int
    cut: StreamCut | None
    updated_ms: int
    lag_bytes: int
    lag_events: int = -1
    lag_ms: int | None = None
    held_bytes: int = -1
    holes: int = 0
    query: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDescription:
    """A stream as it stands. Sizes are exact at the time of asking; ``held_by`` names who keeps the head where it is."""

    stream: StreamName
    config: StreamConfig
    epoch: int
    sealed: bool
    segments: Sequence[SegmentRange]
    head: StreamCut
    tail: StreamCut
    size_bytes: int
    written_bytes: int
    subscribers: Sequence[SubscriberInfo]
    held_by: str
    disk_bytes: int
    pending_free_bytes: int
    freed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedStream:
    """A deleted stream whose grace has not ended. Times are wall clock.

    ``incarnation``: the number of its first segment, which distinguishes deleted streams of one name; the greatest was
    created last. ``rule``: ``manual``, or the rule that deleted it. ``size_bytes``: from head to tail; None if a
    damaged record hides it. It stays on disk until ``restorable_until_ms``, or longer if a hold on the scope keeps it.
    ``caller``: who deleted it, as in the audit stream; empty if unknown.
    """

    stream: StreamName
    incarnation: int
    deleted_ms: int
    restorable_until_ms: int
    rule: str
    size_bytes: int | None
    caller: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredStream:
    """A restored stream. ``dropped_subscribers``: not restored, because their reader group was deleted, created again,
    or no longer subscribes to the stream. ``sealed``: whether the stream was sealed before its deletion."""

    stream: StreamName
    incarnation: int
    sealed: bool
    size_bytes: int | None
    dropped_subscribers: tuple[str, ...] = ()


class ControllerService(Protocol):
    """The control plane. Every change is durable when a call returns, and safe to repeat.

    Calls that name a stream may raise ScopeNotFoundError or StreamNotFoundError; all may raise UnavailableError.
    Source: Pravega's controller API, docs/design/0006-controller.md.
    """

    async def create_scope(self, scope: str) -> None:
        """Raises AlreadyExistsError, InvalidNameError."""
        ...

    async def delete_scope(self, scope: str) -> None:
        """Raises ScopeNotFoundError, NotEmptyError."""
        ...

    async def scope_exists(self, scope: str) -> bool: ...

    async def list_scopes(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        """Names behind ``after``, sorted. Empty: the end."""
        ...

    async def create_stream(self, stream: StreamName, config: StreamConfig) -> None:
        """Raises ScopeNotFoundError, AlreadyExistsError, InvalidNameError."""
        ...

    async def update_stream(self, stream: StreamName, config: StreamConfig) -> None:
        """Replace the configuration; another fixed number of segments scales. Raises StreamSealedError."""
        ...

    async def stream_exists(self, stream: StreamName) -> bool: ...

    async def get_config(self, stream: StreamName) -> StreamConfig: ...

    async def list_streams(
        self, scope: str, *, tag: str | None = None, after: str = "", limit: int = PAGE_MAX
    ) -> Sequence[str]:
        """Stream names of the scope behind ``after``, sorted, internal ones included. Empty: the end."""
        ...

    async def seal_stream(self, stream: StreamName) -> None:
        """Abort open transactions, seal all active segments. Idempotent."""
        ...

    async def delete_stream(self, stream: StreamName, *, seal: bool = False) -> None:
        """Delete a sealed stream with its data; with ``seal`` any stream, sealed in the step that decides the deletion.

        The name is free when this returns. A store with a deletion grace keeps the data of users' streams for that
        time: see ``restore_stream``. A refused call changes nothing: a stream that a hold keeps accepts events as
        before. Raises: StreamNotSealedError (not with ``seal``), RetentionHoldError.
        """
        ...

    async def list_deleted_streams(self, scope: str | None = None) -> Sequence[DeletedStream]:
        """Deleted streams that can be restored, of one scope or all, including deleted scopes; sorted by scope, stream,
        incarnation."""
        ...

    async def restore_stream(self, stream: StreamName, *, incarnation: int | None = None) -> RestoredStream:
        """Restore a deleted stream, with its events, configuration, policy and subscribers' positions.

        ``incarnation``: which one, if several streams of this name were deleted; None: the last. A stream that was not
        sealed accepts events again, in new segments. Transactions that were open stay aborted.
        Raises: StreamNotFoundError (no such deleted stream can be restored), ConflictError (its grace has just ended),
        AlreadyExistsError (another stream has its name), ScopeNotFoundError (its scope is deleted; create it first).
        """
        ...

    async def truncate_stream(self, stream: StreamName, cut: StreamCut) -> None:
        """Move the head to ``cut``. Equal to the head: nothing happens. Raises: InvalidCutError (not a cut of the stream, or
        behind the head, or beyond the tail), StreamSealedError, RetentionHoldError."""
        ...

    async def describe_stream(self, stream: StreamName) -> StreamDescription: ...

    async def current_segments(self, stream: StreamName) -> Sequence[SegmentRange]:
        """Active segments in key order; empty once the stream is sealed."""
        ...

    async def epoch_segments(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        """Raises InvalidArgumentError for an epoch that never was."""
        ...

    async def head(self, stream: StreamName) -> StreamCut: ...

    async def tail(self, stream: StreamName) -> StreamCut:
        """A cut at the current end. Also for sealed streams."""
        ...

    async def successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        """Empty: the stream ends at this segment, or the segment is still active (then it is not sealed)."""
        ...

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        """All segments from ``start`` to ``end``, both included, oldest first. Unbounded: head, tail. Raises InvalidCutError
        where ``end`` is before ``start``."""
        ...

    async def measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        """What lies from one cut to a later one, exactly: parts of segments that are not empty, oldest segment first, those
        that were truncated or deleted since included. An unbounded ``end`` is the tail.

        Raises InvalidCutError (not a cut of the stream, an unbounded ``start``, an ``end`` before it)."""
        ...

    async def segment_ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        """Key ranges of segments that exist or existed."""
        ...

    async def is_segment_active(self, stream: StreamName, segment: SegmentId) -> bool: ...

    async def is_cut_valid(self, stream: StreamName, cut: StreamCut) -> bool: ...

    async def scale(
        self, stream: StreamName, *, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        """Replace active segments by new ones over the same keys. Raises ScaleConflictError, InvalidArgumentError,
        StreamSealedError."""
        ...

    async def scale_status(self, stream: StreamName, epoch: int) -> ScaleStatus: ...

    async def endpoint(self, segment: str) -> Endpoint:
        """Who serves the segment. No check that it exists."""
        ...

    async def create_transaction(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        """Its segments exist when this returns. Raises InvalidArgumentError (lease), StreamSealedError."""
        ...

    async def join_transaction(self, stream: StreamName, key: UUID, *, lease_ms: int) -> Transaction:
        """The open transaction that is shared under ``key``, with its lease renewed; begun by whoever comes first. Its
        segments, those of the epoch in which it was begun, exist when this returns. Once it is decided, the key is free.

        Raises as ``create_transaction``, and TransactionStateError (it has just ended).
        """
        ...

    async def ping_transaction(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus: ...

    async def commit_transaction(
        self, stream: StreamName, txn: UUID, *, blocks: Sequence[EventBlock] = ()
    ) -> TransactionStatus:
        """Decide to commit; the merge follows, and survives any crash. Repeating is fine. Returns COMMITTED where the events
        are readable by now, else COMMITTING.

        ``blocks`` are appended first, each once however often the call is repeated, as event number ``event_count`` of its
        writer. Raises TransactionNotFoundError, TransactionStateError (aborted); with blocks also InvalidArgumentError (no
        segment of the transaction), UnsupportedError (an older server), and what an append raises: nothing is decided then.
        """
        ...

    async def abort_transaction(self, stream: StreamName, txn: UUID) -> None:
        """As commit, the other way."""
        ...

    async def transaction_status(self, stream: StreamName, txn: UUID) -> TransactionStatus: ...

    async def list_completed_transactions(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        """Newest first, at most 500."""
        ...

    async def commit_batch(
        self,
        stream: StreamName,
        *,
        writer: str,
        batch: int,
        transactions: Sequence[UUID],
        source: QuerySource | None = None,
        one_job: bool = False,
    ) -> bool:
        """Commit the transactions as batch number ``batch`` of the named writer, exactly once.

        One compare-and-set decides: where the writer has committed this batch or a later one, the offered transactions are
        aborted and the answer is False; else all of them commit, and the answer is True once they are readable. A repeat
        after a crash finishes what was decided. Raises TransactionNotFoundError (one has expired; nothing is committed).

        With a ``source`` the name belongs to its query, and to the latest run of it: WriterInUseError for any other, also
        for a caller without one, and ConflictError for a batch below the last one of an ordered source; nothing is
        committed. A source without transactions only records that it writes under the name, not the batch's number.

        ``one_job``: the caller generated the name for this one batch, so it may be forgotten without a trace, oldest first.
        Of any other name only a digest may remain after 100 days of silence. Then WriterForgottenError: nothing is
        committed, and it is unknown whether the batch was committed before.
        """
        ...

    async def last_batch(self, stream: StreamName, *, writer: str, source: QuerySource | None = None) -> int | None:
        """The last batch that the writer committed, or None. Also None for a source that takes the name over.

        Raises WriterInUseError if the name belongs to another source, or to any and none is given; WriterForgottenError (as
        ``commit_batch``).
        """
        ...

    async def create_reader_group(self, config: ReaderGroupConfig) -> ReaderGroupConfig:
        """Create, or return the stored one unchanged. Subscribers are registered with all streams of the start cuts. This
        also happens if the group is stored but a rule or a person has ended its subscription.

        A start cut given explicitly (or, from our own client, always) is published as the first acknowledged cut.
        """
        ...

    async def update_reader_group(self, config: ReaderGroupConfig) -> int:
        """Replace; returns the new generation. Raises ReaderGroupNotFoundError, GenerationMismatchError."""
        ...

    async def get_reader_group(self, scope: str, name: str) -> ReaderGroupConfig: ...

    async def delete_reader_group(self, scope: str, name: str, *, group_id: UUID | None = None) -> None: ...

    async def list_reader_groups(self, scope: str) -> Sequence[str]: ...

    async def list_subscribers(self, stream: StreamName) -> Sequence[str]: ...

    async def update_subscriber_cut(
        self,
        subscriber: str,
        *,
        group_id: UUID | None,
        generation: int | None,
        cut: StreamCut,
        source: QuerySource | None = None,
    ) -> None:
        """Publish what the subscriber has consumed. Raises, in this order: StreamNotFoundError, SubscriberNotFoundError,
        GenerationMismatchError, WriterInUseError (the subscriber belongs to another query than ``source``, or a later run),
        InvalidCutError (not a cut, or before the last one)."""
        ...

    # --- retention: docs/formats/planner.md has the form of every answer that is a mapping -------------------------

    async def get_policy(self, target: PolicyTarget) -> PolicyDocument:
        """The document of this very level. Raises ScopeNotFoundError, StreamNotFoundError."""
        ...

    async def set_policy(self, target: PolicyTarget, document: PolicyDocument) -> None:
        """Replace the document of a level; an empty one leaves all to the next level. In force when this returns; limits of
        writers follow within a second where the level is above the stream's own.

        A stream's Pravega policy is a view of its document. Raises InvalidArgumentError, with ``field``, ``value``, ``rule``
        and ``level``, where the document, or what it makes of some stream below, contradicts itself; the old one stays.
        """
        ...

    async def effective_policy(self, stream: StreamName) -> EffectivePolicy:
        """What applies to the stream, with the origin of each value."""
        ...

    async def run_retention(self, stream: StreamName) -> RetentionRun:
        """Decide and perform now until nothing is due, and return what was done."""
        ...

    async def plan_retention(
        self, stream: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        """What would be done at ``at_ms`` (now), until nothing is due, with ``change`` as the stream's document.

        Changes nothing.
        """
        ...

    async def explain_retention(self, stream: StreamName, *, position: StreamCut | None = None) -> Explanation:
        """Who holds each byte from head to tail, and what a cycle would decide now. Changes nothing.

        ``position``: only the range that begins there, and until when it stays; for one before the head, when and by which
        rule it went.
        """
        ...

    async def retention_facts(self, stream: StreamName, *, change: PolicyDocument | None = None) -> Mapping[str, Any]:
        """What the planner is told of the stream now, as a line of docs/formats/planner.md, with ``change`` as its document.

        The policy in it is what all levels come to. Raises as ``plan_retention``. Changes nothing.
        """
        ...

    async def reclaim_report(self, stream: StreamName) -> Mapping[str, Any]:
        """What was freed, what is pending, why and until when; sums to what the stream's files take."""
        ...

    async def forecast_retention(self, stream: StreamName) -> Mapping[str, Any]:
        """At the rates of late: when a limit, a quota or the disk is reached."""
        ...

    async def undo_truncation(self, stream: StreamName) -> StreamCut:
        """Take back the last truncation whose grace has not ended, and return the head after. Raises ConflictError where
        there is none."""
        ...

    async def undo_truncations(self, stream: StreamName, *, since_ms: int | None = None) -> Mapping[str, Any]:
        """Take back all truncations at or after ``since_ms`` (wall clock) whose grace has not ended; None: the last one.

        Returns ``head``, ``head_cut``, ``truncations`` and ``bytes`` taken back, ``protected_until_ms``; ``subscribers`` that
        rules had moved, each with ``restored`` or the ``reason`` why not; ``not_restored``: truncations since then whose
        bytes are lost. Raises ConflictError where there is none to take back.
        """
        ...

    async def list_evictions(self, stream: StreamName) -> Sequence[Mapping[str, Any]]:
        """The latest forced advances of the stream's subscribers, oldest first."""
        ...

    async def add_hold(
        self,
        target: StreamName | str,
        *,
        owner: str,
        reason: str,
        until_ms: int | None = None,
        cut: StreamCut | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        """Place a hold on a stream or a whole scope. In force when this returns. The same id and content again: nothing
        happens. Raises AlreadyExistsError, InvalidArgumentError, InvalidCutError."""
        ...

    async def list_holds(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        """Holds in force on a stream (its scope's included), in a scope, or all; sorted by scope, stream, id."""
        ...

    # --- erasures: docs/formats/erasure.md has the form of every answer ---------------------------------------------

    async def erase(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None = None,
        last: bool = True,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Blank the events that begin at the positions, in place and for good. Answers with the erasure's state.

        ``asked``: ``erasure`` (its id), ``who``, ``why``, ``looked_for`` (a JSON object, without the values). Positions may
        come in numbered pages of at most 50,000; then ``run`` has the token of the attempt and the digest of all positions
        (docs/formats/erasure.md). The last page decides, once all are there. From then on it is performed in any case;
        ``erasure`` reports its progress. If a hold covers some of it, the state is ``deferred``: nothing is changed
        until no hold covers any of it; then it is decided without another call. Repeating the id with the same request,
        or with some of its positions, changes nothing. ``dry_run``: only report what would be erased, and which holds
        would defer it.

        Raises AlreadyExistsError (the id has another request; ``undecided``: how many positions of the page it does not
        cover), ErasureWithdrawnError, InvalidArgumentError (no event begins there, or pages are missing), TruncatedError.
        """
        ...

    async def erasure(self, erasure: str) -> Mapping[str, Any]:
        """How an erasure stands; with its receipt once it is done. Raises NotFoundError."""
        ...

    async def erasure_part(self, erasure: str, part: int) -> Mapping[str, Any]:
        """A part of the lists that a receipt has the digests of, from 0; ``parts`` says how many there are."""
        ...

    async def erasures(self, stream: StreamName | None = None) -> Sequence[Mapping[str, Any]]:
        """All erasures, or those of a stream, in the order of their receipts."""
        ...

    async def withdraw_erasure(self, erasure: str, *, who: str, why: str) -> Mapping[str, Any]:
        """Withdraw an erasure that is not decided (``deferred``, ``gathering``), and return its state ``withdrawn``.

        It erased nothing, and its id cannot be used again. A repeated call changes nothing. Raises NotFoundError,
        ConflictError (it was decided: its events are erased), InvalidArgumentError.
        """
        ...

    async def release_hold(self, hold_id: str, *, owner: str) -> HoldInfo:
        """Lift a hold; it is recorded who did. Raises NotFoundError."""
        ...

    async def describe_subscribers(self, stream: StreamName) -> Sequence[SubscriberInfo]:
        """All subscribers, with exact events, ages and what each holds."""
        ...

    async def move_subscriber(
        self, stream: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Set the acknowledged cut, forwards or backwards: the one primitive behind skip, clear, expire and reset.

        It moves no reader. Returns ``from``, ``to``; ``bytes`` and ``events``, those skipped less those to be read
        again; as text ``from_cut`` and ``lower_cut``, the earlier of both cuts at each key; ``passed_bytes`` and
        ``passed_events``, those skipped unread, from ``lower_cut`` to ``to``. Events are None if a cut is not at an
        event boundary. Unbounded ``cut``: the tail. Raises SubscriberNotFoundError, InvalidCutError, TruncatedError
        (before the head).
        """
        ...

    async def remove_subscriber(self, stream: StreamName, subscriber: str) -> None:
        """Forget the subscription: it holds nothing from here on. Raises SubscriberNotFoundError."""
        ...


class EpochHistory(Protocol):
    """How streams came to have the segments that they have. Offered beside the control plane, by the process that runs it."""

    async def list_epochs(self, stream: StreamName) -> Sequence[EpochInfo]:
        """All epochs, oldest first. Raises ScopeNotFoundError, StreamNotFoundError."""
        ...
