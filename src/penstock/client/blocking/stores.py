"""The blocking face of the client: the same names, no ``await``. Works in scripts, threads, notebooks and running loops.

A ``Store`` runs one event loop in one background thread. Single events never cross between threads: writers hand over
closed blocks, readers take whole blocks. Interrupting a wait (Ctrl-C) leaves every object usable.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, Unpack
from uuid import UUID

from penstock.client.blocking.erasures import Erasures
from penstock.client.blocking.groups import ReaderGroup
from penstock.client.blocking.levels import Holds, LevelPolicy, Retention
from penstock.client.blocking.loop_thread import LoopThread, Opener
from penstock.client.blocking.readers import GroupReader, Reader
from penstock.client.blocking.writers import Transaction, Writer
from penstock.client.erasure import Positions
from penstock.client.erasure_proof import Progress
from penstock.client.options import Bound, Position, settings_of
from penstock.client.reading.group_reset import ResetTo
from penstock.client.reading.reader import OnTruncated
from penstock.client.reading.reader_group import GroupRetention
from penstock.client.store import UNCHANGED, AsyncStore, AsyncStream, GroupStart, Unchanged
from penstock.client.writing.settings import WriterOptions, WriterSettings
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, ScalingPolicy, StreamConfig
from penstock.model.segments import KeyRange, SegmentId
from penstock.ports.clock import Clock
from penstock.ports.controller_service import (
    DeletedStream,
    RestoredStream,
    ScaleResult,
    StreamDescription,
    SubscriberInfo,
)
from penstock.ports.rng import Rng

__all__ = [
    "GroupReader",
    "Holds",
    "LevelPolicy",
    "Reader",
    "ReaderGroup",
    "Retention",
    "Store",
    "Stream",
    "Transaction",
    "Writer",
]

T = TypeVar("T")


class _SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class _SystemRng:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> UUID:
        return uuid.uuid4()


class Stream:
    """One stream by name. Having one does no I/O; calls raise StreamNotFoundError where there is no such stream, and
    UnavailableError where the store cannot be reached."""

    def __init__(self, thread: LoopThread, inner: AsyncStream, rng: Rng) -> None:
        self._thread = thread
        self._inner = inner
        self._rng = rng

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> StreamName:
        """Scope and name; its text is ``scope/stream``."""
        return self._inner.name

    def describe(self) -> StreamDescription:
        """The stream as it stands: segments, sizes, policy, subscribers, and who holds the head."""
        return self._thread.call(self._inner.describe())

    def exists(self) -> bool:
        """Whether there is such a stream, sealed or not."""
        return self._thread.call(self._inner.exists())

    def config(self) -> StreamConfig:
        """What its user set: scaling, retention, tags."""
        return self._thread.call(self._inner.config())

    def head(self) -> StreamCut:
        """Where data begins: the first position that was not truncated."""
        return self._thread.call(self._inner.head())

    def tail(self) -> StreamCut:
        """Where data ends now, behind the last durable event."""
        return self._thread.call(self._inner.tail())

    def truncate(self, cut: StreamCut | str) -> None:
        """Drop what lies before ``cut``, or the cut of which it is the text (``StreamCut.to_text``), for ever.

        Raises InvalidArgumentError (not a cut), InvalidCutError (not one of this stream), StreamSealedError,
        RetentionHoldError.
        """
        self._thread.call(self._inner.truncate(cut))

    def seal(self) -> None:
        """End the stream: it takes no more events; readers end behind the last one. Idempotent."""
        self._thread.call(self._inner.seal())

    def delete(self, *, seal: bool = False) -> None:
        """Delete the sealed stream and its data; with ``seal`` a stream that is in use too. A refused call changes nothing.

        Raises StreamNotSealedError (not with ``seal``), RetentionHoldError.
        """
        self._thread.call(self._inner.delete(seal=seal))

    def update(
        self,
        *,
        retention: RetentionPolicy | Unchanged | None = UNCHANGED,
        scaling: ScalingPolicy | Unchanged = UNCHANGED,
        segments: int | Unchanged = UNCHANGED,
        tags: Sequence[str] | Unchanged = UNCHANGED,
    ) -> StreamConfig:
        """Change what is given, keep the rest; returns the new configuration. ``segments`` is the least number of them.

        Raises InvalidArgumentError, StreamSealedError.
        """
        work = self._inner.update(retention=retention, scaling=scaling, segments=segments, tags=tags)
        return self._thread.call(work)

    def scale(
        self,
        segments: int | None = None,
        *,
        sealed: Sequence[SegmentId] = (),
        new_ranges: Sequence[KeyRange] = (),
    ) -> ScaleResult:
        """Replace all active segments by ``segments`` equal ones, or the ``sealed`` ones by ``new_ranges``.

        Returns once the old segments are sealed. Raises ScaleConflictError, InvalidArgumentError, StreamSealedError.
        """
        return self._thread.call(self._inner.scale(segments, sealed=sealed, new_ranges=new_ranges))

    @property
    def retention(self) -> Retention:
        """The stream's retention: its policy, ``plan``, ``explain``, ``reclaim``, ``forecast``, ``holds``."""
        return Retention(self._thread, self._inner.retention)

    def subscribers(self) -> Sequence[SubscriberInfo]:
        """Reader groups, as ``scope/group``, whose progress holds the stream's data: where they are, how far behind in
        bytes, events and time, and what each keeps."""
        return self._thread.call(self._inner.subscribers())

    def set_acknowledged(
        self,
        name: str,
        to: Position,
        *,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Set the acknowledged position of a subscriber, and so what retention may release. It moves no reader:
        ``Store.reset_reader_group`` moves both.

        Returns the ``bytes`` and ``events`` between the old and the new position (negative: backwards). ``dry_run``
        changes nothing. Raises SubscriberNotFoundError, InvalidCutError, TruncatedError (before the head).
        """
        call = self._inner.set_acknowledged(name, to, dry_run=dry_run)
        return self._thread.call(call)

    def remove_subscriber(self, name: str) -> None:
        """Forget a subscription: it holds nothing from here on. Raises SubscriberNotFoundError."""
        self._thread.call(self._inner.remove_subscriber(name))

    def erase(
        self,
        positions: Positions,
        *,
        who: str,
        why: str,
        erasure: str | None = None,
        looked_for: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Mapping[str, Any]:
        """Blank events in place, for good, and return the receipt.

        The payload becomes zeros of the same length. Offsets, cuts and checkpoints stay valid. Penstock's readers skip the
        event, other clients get the zeros. No cache, chunk or log file holds the old bytes when this returns.

        Args:
            positions: The events as they were read, or (segment, offset) pairs, or offsets by segment.
            who: For the receipt: who requests it, in free text.
            why: For the receipt: the reason, in free text.
            erasure: Its id. A repeat of the same request, or of some of its events, returns the receipt. None: a new id.
            looked_for: For the receipt: what the positions were found by. A JSON object, without the values themselves.
            dry_run: Only count and change nothing; ``holds`` in the result names the holds that would defer the
                erasure.
            progress: Called with how far it is.
        Raises:
            ErasureDeferredError: A hold covers some of the events. The erasure is recorded, and continues once no hold
                does.
            InvalidArgumentError: No event begins there.
            AlreadyExistsError: The id belongs to another request.
            ErasureWaitsError: It is decided, but attempts fail for some seconds, for example for lack of space. The
                store continues to try; call again with the same id to wait longer.
            StorageFullError: There is no space to record it; nothing is decided.
            ErasureWithdrawnError: It was cancelled.
            TruncatedError: Some of the events were truncated.
            StreamNotFoundError: There is no such stream.

        Once decided it is performed, also after a crash or a cancellation; ``erasures.wait`` returns the receipt.
        """
        work = self._inner.erase(
            positions,
            who=who,
            why=why,
            erasure=erasure,
            looked_for=looked_for,
            dry_run=dry_run,
            progress=progress,
        )
        return self._thread.call(work)

    @property
    def erasures(self) -> Erasures:
        """What was erased of the stream, with receipts."""
        return Erasures(self._thread, self._inner.erasures)

    def writer(self, settings: WriterSettings | None = None, **options: Unpack[WriterOptions]) -> Writer:
        """A writer: use it in a ``with`` block; without one, the first write opens it, and you close it.

        ``options`` are fields of ``WriterSettings``: ``block_bytes``, ``linger_s``, ``max_in_flight``, ``max_pending_bytes``,
        ``deadline_s``. Raises InvalidArgumentError for others.
        """
        chosen = settings or settings_of(WriterSettings, "a writer", options)
        return Writer(self._thread, self._inner.layout(), self._rng, chosen)

    def reader(
        self,
        *,
        start: Bound = None,
        end: Bound = None,
        until_tail: bool = False,
        on_truncated: OnTruncated = "raise",
    ) -> Reader:
        """A reader: use it in a ``with`` block; without one, the first read opens it.

        Args:
            start: None or "earliest" (or "head"), "latest" (or "tail"), a cut of this stream, or its text.
            end: None (never), "latest" (or "tail"; as it is on opening), a cut, or its text.
            until_tail: The same as ``end="latest"``.
            on_truncated: What to do where data was truncated before it was read: "raise" TruncatedError, or "skip" it.
        Raises:
            InvalidArgumentError: Anything else.
        """
        inner = self._inner.reader(start=start, end=end, until_tail=until_tail, on_truncated=on_truncated)
        return Reader(self._thread, inner)

    def transaction(self, *, lease_s: float = 30.0, **options: Unpack[WriterOptions]) -> Transaction:
        """A transaction, not begun: use it in a ``with`` block, or call ``open`` and then ``commit`` or ``abort``.

        ``lease_s``, 10 to 600: how long after this process died the store aborts it. ``options`` are fields of
        ``WriterSettings``. Raises InvalidArgumentError.
        """
        settings = settings_of(WriterSettings, "a transaction", options)
        inner = self._inner.transaction(lease_s=lease_s, settings=settings)
        return Transaction(self._thread, inner, settings.block_bytes)


class Store:
    """A store, opened on construction by entering ``opener()`` in a thread of its own, closed by ``close`` or ``with``.

    Raises what the opener raises. Safe to use from several threads; writers and readers belong to one at a time. A store
    that is still open when the process ends is closed then. ``place`` is where it is, for its ``repr``. ``local``: the opener
    returns a store in this process, which runs in the loop that this call starts.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        place: str = "store",
        local: bool = False,
    ) -> None:
        self._place = place
        self._thread = LoopThread(opener, local=local)
        self._rng = rng or _SystemRng()
        segments, controller = self._thread.services
        self._inner = AsyncStore(segments, controller, clock or _SystemClock(), self._rng)

    def __repr__(self) -> str:
        return f"<Store {self._place}, {'closed' if self._thread.closed else 'open'}>"

    def call(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine ``work(async_store)`` in the store's own loop, and return its answer or raise its error."""
        return self._thread.call(work(self._inner))

    def create_scope(self, scope: str, *, if_absent: bool = False) -> None:
        """Create an empty scope. Raises AlreadyExistsError unless ``if_absent``, InvalidNameError."""
        self._thread.call(self._inner.create_scope(scope, if_absent=if_absent))

    def delete_scope(self, scope: str) -> None:
        """Remove an empty scope. Raises ScopeNotFoundError, NotEmptyError."""
        self._thread.call(self._inner.delete_scope(scope))

    def scopes(self) -> list[str]:
        """Names of all scopes, sorted."""
        return self._thread.call(self._inner.scopes())

    def streams(self, scope: str, *, tag: str | None = None, internal: bool = False) -> list[str]:
        """Names of the scope's streams, sorted: those with the ``tag``, if one is given; those of the system itself only
        with ``internal``. Raises ScopeNotFoundError."""
        return self._thread.call(self._inner.streams(scope, tag=tag, internal=internal))

    def deleted_streams(self, scope: str | None = None) -> Sequence[DeletedStream]:
        """The deleted streams that can be restored, of one scope or all, including those of deleted scopes."""
        return self._thread.call(self._inner.deleted_streams(scope))

    def restore_stream(self, name: str | StreamName, *, incarnation: int | None = None) -> RestoredStream:
        """Restore a deleted stream before its grace ends, with its events, policy and subscribers' positions.

        ``incarnation``: which one, if several streams of this name were deleted; None: the last. A stream that was not
        sealed accepts events again. Raises StreamNotFoundError, ConflictError (its grace has just ended),
        AlreadyExistsError (another stream has the name), ScopeNotFoundError (create the scope first).
        """
        return self._thread.call(self._inner.restore_stream(name, incarnation=incarnation))

    def create_stream(
        self,
        name: str | StreamName,
        *,
        segments: int = 1,
        retention: RetentionPolicy | None = None,
        scaling: ScalingPolicy | None = None,
        tags: Sequence[str] = (),
        if_absent: bool = False,
        create_scope: bool = False,
    ) -> Stream:
        """Create ``scope/stream``. ``scaling`` replaces ``segments``. Without ``retention`` the scope's policy applies, else
        the server's; where neither says anything all data is kept.

        Raises AlreadyExistsError unless ``if_absent`` (its configuration is then left as it is), ScopeNotFoundError unless
        ``create_scope``, InvalidNameError, InvalidArgumentError.
        """
        work = self._inner.create_stream(
            name,
            segments=segments,
            retention=retention,
            scaling=scaling,
            tags=tags,
            if_absent=if_absent,
            create_scope=create_scope,
        )
        return Stream(self._thread, self._thread.call(work), self._rng)

    def stream(self, name: str | StreamName) -> Stream:
        """The stream ``scope/stream``, whether it exists or not. Raises InvalidNameError."""
        return Stream(self._thread, self._inner.stream(name), self._rng)

    def reader_group(
        self,
        name: str,
        streams: Sequence[str | StreamName],
        *,
        start: GroupStart = "head",
        retention: GroupRetention = "none",
        checkpoint_interval_s: float = 30.0,
        lease_s: float = 10.0,
        refresh_s: float = 1.0,
    ) -> ReaderGroup:
        """Create the group ``name`` or ``scope/name`` (else of the first stream's scope), or open it where it exists.

        Args:
            streams: The streams to read, as a list.
            start: "earliest" (or "head"), "latest" (or "tail"), a cut (or its text) of one of the streams, or a mapping from
                stream to any of these. Streams without one are read from their head. An existing group continues where
                it is.
            retention: When its progress releases data of its streams: "none" (never), "manual" (on ``publish``) or
                "automatic" (at each checkpoint). With the last two the streams keep what the group has not done with, within
                their own limits.
            checkpoint_interval_s: How often readers begin a checkpoint while they read.
            lease_s: After this long without a word a reader counts as dead, and others take over its segments.
            refresh_s: How often readers report, and look for work; less than ``lease_s``.
        Raises:
            InvalidArgumentError, StreamNotFoundError; InvalidCutError: a start is no position of its stream;
            AlreadyExistsError: the group exists with other streams or another retention;
            GenerationMismatchError: it exists, and a stream was deleted and made anew since.
        """
        work = self._inner.reader_group(
            name,
            streams,
            start=start,
            retention=retention,
            checkpoint_interval_s=checkpoint_interval_s,
            lease_s=lease_s,
            refresh_s=refresh_s,
        )
        return ReaderGroup(self._thread, self._thread.call(work))

    def open_reader_group(self, name: str, *, lease_s: float = 10.0, refresh_s: float = 1.0) -> ReaderGroup:
        """The group ``scope/name``; times as for ``reader_group``.

        Raises ReaderGroupNotFoundError, GenerationMismatchError (a stream of it was deleted and made anew since).
        """
        work = self._inner.open_reader_group(name, lease_s=lease_s, refresh_s=refresh_s)
        return ReaderGroup(self._thread, self._thread.call(work))

    def reset_reader_group(
        self,
        name: str,
        to: ResetTo,
        *,
        streams: Sequence[str | StreamName] = (),
        lease_s: float = 10.0,
        dry_run: bool = False,
    ) -> Sequence[Mapping[str, Any]]:
        """Move the readers and the acknowledged position of group ``scope/name`` to one place, while no reader is
        online.

        Args:
            to: "earliest" (or "head"), "latest" (or "tail"), a time with a zone (the group reads what was appended from
                then on), or a cut or its text, which moves only its own stream.
            streams: Only these streams; empty: all that the group reads.
            lease_s: A reader counts as offline after this time without a heartbeat. If the group lists readers, the call
                waits this long to see whether they are online.
            dry_run: Check everything and change nothing.
        Returns:
            A mapping for each stream: ``stream``, ``from`` and ``to`` (offsets by segment), and the ``bytes`` and ``events``
            that the readers skip (negative: they read them again; None: unknown). For a subscriber also
            ``acknowledged_bytes`` and ``acknowledged_events``.
        Raises:
            ConflictError: A reader is online (``readers`` names them), or another program keeps the positions: a Spark query
                in its checkpoint, or Pravega's Java client. Nothing was changed.
            ReaderGroupNotFoundError, SubscriberNotFoundError, InvalidArgumentError, InvalidCutError; TruncatedError (before
            the head). Nothing was changed.
        """
        work = self._inner.reset_reader_group(name, to, streams=streams, lease_s=lease_s, dry_run=dry_run)
        return self._thread.call(work)

    def policy(self, scope: str | None = None) -> LevelPolicy:
        """The policy that streams inherit: from their scope, or (None) from the server."""
        return LevelPolicy(self._thread, self._inner.policy(scope))

    def holds(self, target: StreamName | str | None = None) -> Holds:
        """Holds on a stream (``scope/stream``), in a scope, or (None) all of the store."""
        return Holds(self._thread, self._inner.holds(target))

    def erasures(self, stream: StreamName | str | None = None) -> Erasures:
        """Erasures of a stream (``scope/stream``), or (None) all of the store, with their receipts."""
        return Erasures(self._thread, self._inner.erasures(stream))

    def reader_groups(self, scope: str) -> Sequence[str]:
        """Names of the scope's reader groups, sorted. Raises ScopeNotFoundError."""
        return self._thread.call(self._inner.reader_groups(scope))

    def close(self) -> None:
        """End the background thread and close the store. Idempotent.

        Close writers first, and learn of their errors: what open ones hold is flushed for up to 10 seconds, then dropped.
        Open transactions are left to be aborted by the store when their lease runs out.
        """
        self._thread.close()

    async def __aenter__(self) -> NoReturn:
        raise TypeError("this store is for `with`; for `async with` use penstock.open_async or penstock.connect_async")

    async def __aexit__(self, *error: object) -> None:
        """Never reached: a blocking store is not entered with ``async with``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
