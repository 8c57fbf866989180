"""The blocking face of the client: the same names, no ``await``. Works in scripts, threads, notebooks and running loops.

A ``Store`` runs one event loop in one background thread. Single events never cross between threads: writers hand over
closed blocks, readers take whole blocks. Interrupting a wait (Ctrl-C) leaves every object usable.
"""

from __future__ import annotations

import atexit
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from uuid import UUID

from penstock.client.blocking_io import GroupReader, Reader, Transaction, Writer
from penstock.client.loop_thread import LoopThread, Opener
from penstock.client.reader import Bound, OnTruncated
from penstock.client.reader_group import AsyncReaderGroup
from penstock.client.retry import DEADLINE_S
from penstock.client.store import UNCHANGED, AsyncRetention, AsyncStore, AsyncStream, Unchanged
from penstock.client.writer_core import WriterSettings
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, ScalingPolicy, StreamConfig
from penstock.model.segments import KeyRange, SegmentId
from penstock.ports.clock import Clock
from penstock.ports.controller_service import ScaleResult, StreamDescription
from penstock.ports.rng import Rng

__all__ = ["GroupReader", "Reader", "ReaderGroup", "Retention", "Store", "Stream", "Transaction", "Writer"]

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


class ReaderGroup:
    """As ``AsyncReaderGroup``."""

    def __init__(self, thread: LoopThread, inner: AsyncReaderGroup) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def streams(self) -> Sequence[StreamName]:
        return self._inner.streams

    def reader(self, name: str, *, on_truncated: OnTruncated = "raise") -> GroupReader:
        """A reader, not joined yet: use it in a ``with`` block."""
        return GroupReader(self._thread, self._inner.reader(name, on_truncated=on_truncated))

    def readers(self) -> list[str]:
        """Names of the readers that are in the group."""
        return self._thread.call(self._inner.readers())

    def remove_reader(self, name: str) -> None:
        """Take what a dead reader held from it now."""
        self._thread.call(self._inner.remove_reader(name))

    def positions(self) -> Mapping[StreamName, StreamCut]:
        """How far the group is, as its readers reported last."""
        return self._thread.call(self._inner.positions())

    def checkpoint(self, *, deadline_s: float = DEADLINE_S) -> Mapping[StreamName, StreamCut]:
        """Collect the positions of all readers, one consistent cut per stream. They must be open meanwhile."""
        return self._thread.call(self._inner.checkpoint(deadline_s=deadline_s))

    def publish(self, cuts: StreamCut | Mapping[StreamName, StreamCut]) -> None:
        """Tell the streams that everything before the cuts is done with."""
        self._thread.call(self._inner.publish(cuts))

    def delete(self) -> None:
        """Remove the group, its state and its subscriptions."""
        self._thread.call(self._inner.delete())

    def close(self) -> None:
        self._thread.call(self._inner.close())


class Retention:
    """As ``AsyncRetention``."""

    def __init__(self, thread: LoopThread, inner: AsyncRetention) -> None:
        self._thread = thread
        self._inner = inner

    def get(self) -> RetentionPolicy | None:
        """The stream's own policy, or None: all data is kept."""
        return self._thread.call(self._inner.get())

    def set(self, policy: RetentionPolicy | None) -> None:
        """Replace the policy."""
        self._thread.call(self._inner.set(policy))

    def run(self) -> Mapping[str, Any]:
        """Run one cycle now, and return what was decided."""
        return self._thread.call(self._inner.run())

    def explain(self) -> Mapping[str, Any]:
        """What a cycle would do now, and why, without doing it."""
        return self._thread.call(self._inner.explain())


class Stream:
    """As ``AsyncStream``."""

    def __init__(self, thread: LoopThread, inner: AsyncStream, rng: Rng) -> None:
        self._thread = thread
        self._inner = inner
        self._rng = rng

    @property
    def name(self) -> StreamName:
        return self._inner.name

    def describe(self) -> StreamDescription:
        """The stream as it stands: segments, sizes, policy, subscribers, and who holds the head."""
        return self._thread.call(self._inner.describe())

    def exists(self) -> bool:
        return self._thread.call(self._inner.exists())

    def config(self) -> StreamConfig:
        return self._thread.call(self._inner.config())

    def head(self) -> StreamCut:
        """Where data begins."""
        return self._thread.call(self._inner.head())

    def tail(self) -> StreamCut:
        """Where data ends now."""
        return self._thread.call(self._inner.tail())

    def truncate(self, cut: StreamCut) -> None:
        """Drop what lies before ``cut``. Raises InvalidCutError, StreamSealedError, RetentionHoldError."""
        self._thread.call(self._inner.truncate(cut))

    def seal(self) -> None:
        """End the stream. Idempotent."""
        self._thread.call(self._inner.seal())

    def delete(self) -> None:
        """Remove the stream and its data. Raises StreamNotSealedError."""
        self._thread.call(self._inner.delete())

    def update(
        self,
        *,
        retention: RetentionPolicy | Unchanged | None = UNCHANGED,
        scaling: ScalingPolicy | Unchanged = UNCHANGED,
        segments: int | Unchanged = UNCHANGED,
        tags: Sequence[str] | Unchanged = UNCHANGED,
    ) -> StreamConfig:
        """Change what is given, keep the rest; returns the new configuration."""
        work = self._inner.update(retention=retention, scaling=scaling, segments=segments, tags=tags)
        return self._thread.call(work)

    def scale(
        self,
        segments: int | None = None,
        *,
        sealed: Sequence[SegmentId] = (),
        new_ranges: Sequence[KeyRange] = (),
    ) -> ScaleResult:
        """Replace all active segments by ``segments`` equal ones, or the ``sealed`` ones by ``new_ranges``."""
        return self._thread.call(self._inner.scale(segments, sealed=sealed, new_ranges=new_ranges))

    @property
    def retention(self) -> Retention:
        return Retention(self._thread, self._inner.retention)

    def subscribers(self) -> Sequence[str]:
        """Reader groups, as ``scope/group``, whose progress holds the stream's data."""
        return self._thread.call(self._inner.subscribers())

    def writer(self, settings: WriterSettings | None = None, **options: Any) -> Writer:
        """A writer, not opened: use it in a ``with`` block. ``options`` are fields of ``WriterSettings``."""
        return Writer(self._thread, self._inner.layout(), self._rng, settings or WriterSettings(**options))

    def reader(
        self,
        *,
        start: Bound = None,
        end: StreamCut | Literal["tail"] | None = None,
        until_tail: bool = False,
        on_truncated: OnTruncated = "raise",
    ) -> Reader:
        """A reader, not opened: use it in a ``with`` block. ``start=None`` is the head; ``end="tail"`` and
        ``until_tail`` stop at the tail as it is on opening."""
        inner = self._inner.reader(start=start, end=end, until_tail=until_tail, on_truncated=on_truncated)
        return Reader(self._thread, inner)

    def transaction(self, *, lease_s: float = 30.0, **options: Any) -> Transaction:
        """A transaction, not begun: use it in a ``with`` block. ``lease_s``: 10 to 600."""
        settings = WriterSettings(**options)
        inner = self._inner.transaction(lease_s=lease_s, settings=settings)
        return Transaction(self._thread, inner, settings.block_bytes)


class Store:
    """A store, opened on construction by entering ``opener()`` in a thread of its own, closed by ``close`` or ``with``.

    Raises what the opener raises. Safe to use from several threads; writers and readers belong to one at a time.
    """

    def __init__(self, opener: Opener, *, clock: Clock | None = None, rng: Rng | None = None) -> None:
        self._thread = LoopThread(opener)
        self._rng = rng or _SystemRng()
        segments, controller = self._thread.services
        self._inner = AsyncStore(segments, controller, clock or _SystemClock(), self._rng)
        atexit.register(self.close)

    def call(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine over the asynchronous store in the store's own loop, and return its answer."""
        return self._thread.call(work(self._inner))

    def create_scope(self, scope: str, *, if_absent: bool = False) -> None:
        """Raises AlreadyExistsError unless ``if_absent``, InvalidNameError."""
        self._thread.call(self._inner.create_scope(scope, if_absent=if_absent))

    def delete_scope(self, scope: str) -> None:
        """Raises ScopeNotFoundError, NotEmptyError."""
        self._thread.call(self._inner.delete_scope(scope))

    def scopes(self) -> list[str]:
        """All scopes, sorted."""
        return self._thread.call(self._inner.scopes())

    def streams(self, scope: str, *, tag: str | None = None, internal: bool = False) -> list[str]:
        """Names of the scope's streams, sorted."""
        return self._thread.call(self._inner.streams(scope, tag=tag, internal=internal))

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
        """Create ``scope/stream``. Raises AlreadyExistsError unless ``if_absent``, ScopeNotFoundError unless
        ``create_scope``, InvalidNameError."""
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
        """The stream ``scope/stream``, whether it exists or not."""
        return Stream(self._thread, self._inner.stream(name), self._rng)

    def reader_group(
        self,
        name: str,
        streams: Sequence[str | StreamName],
        *,
        start: Literal["head", "tail"] | Mapping[str | StreamName, StreamCut] = "head",
        retention: str = "none",
        checkpoint_interval_s: float = 30.0,
        lease_s: float = 10.0,
        refresh_s: float = 1.0,
    ) -> ReaderGroup:
        """Create or open a reader group; see ``AsyncStore.reader_group``."""
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
        """The group ``scope/name``. Raises ReaderGroupNotFoundError."""
        work = self._inner.open_reader_group(name, lease_s=lease_s, refresh_s=refresh_s)
        return ReaderGroup(self._thread, self._thread.call(work))

    def reader_groups(self, scope: str) -> Sequence[str]:
        """Names of the scope's reader groups."""
        return self._thread.call(self._inner.reader_groups(scope))

    def close(self) -> None:
        """End the background thread and close the store. Close writers first: what they hold is dropped. Idempotent."""
        atexit.unregister(self.close)
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
