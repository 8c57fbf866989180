"""Transactions: events that become readable together or not at all."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Buffer

__all__ = ["OpenTransaction", "TransactionStatus"]

LEASE_MIN_MS = 10_000

LEASE_MAX_MS = 600_000

WRITER_NAME_MAX = 255  # characters

READER_NAME_MAX = 255  # characters of a reader that commits its positions with transactions

TOGETHER_MAX = 100
"""Transactions that are decided together: their records and queue entries fit into one batch of the table."""


class TransactionStatus(enum.Enum):
    """The state of a transaction. ``COMMITTING`` and ``ABORTING`` are decided; ``UNKNOWN``: it never existed or is
    forgotten."""

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
    """An open transaction, and the segments from whose names its own segment names are derived."""

    id: UUID
    segments: Sequence[SegmentRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that has not ended. Times are wall clock, milliseconds since the Unix epoch.

    ``state``: OPEN, COMMITTING or ABORTING. ``epoch``: the stream's when it was begun. An open one is aborted at
    ``expires_ms`` unless its lease is renewed, and at ``deadline_ms`` in any case. ``begun_ms`` is None if an earlier
    version began it. ``writer``: who commits it, if that is known: the writer of a ``batch``, or the one that notes a time
    with the commit. ``shared``: several writers fill it.
    """

    id: UUID
    state: TransactionStatus
    epoch: int
    expires_ms: int
    deadline_ms: int
    begun_ms: int | None = None
    writer: str = ""
    batch: int | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedTime:
    """A time that a writer notes with a commit, as ``Watermarks.note_time``; the position is the tail after the merge."""

    writer: str
    time_ms: int

    def __post_init__(self) -> None:
        if not 0 < len(self.writer) <= WRITER_NAME_MAX:
            raise InvalidArgumentError("a writer needs a name of 1 to 255 characters", characters=len(self.writer))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBlock:
    """Framed events of a transaction for one of its segments: everything that ``writer`` ever appends there."""

    segment: SegmentId
    writer: UUID
    event_count: int
    data: Buffer

    def __post_init__(self) -> None:
        if self.event_count < 1 or not len(self.data):
            raise InvalidArgumentError(
                "a block must hold events",
                segment=self.segment,
                event_count=self.event_count,
                size_bytes=len(self.data),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTransaction:
    """A transaction, with its stream."""

    stream: StreamName
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCommit:
    """Positions that a reader of a group commits with transactions. The group's state has the positions; this names
    them."""

    scope: str
    group: str
    group_id: UUID
    reader: str
    id: UUID

    def __post_init__(self) -> None:
        if not 0 < len(self.reader) <= READER_NAME_MAX:
            raise InvalidArgumentError(
                f"a reader that commits with a transaction needs a name of 1 to {READER_NAME_MAX} characters",
                characters=len(self.reader),
            )

    @property
    def full_name(self) -> str:
        return f"{self.scope}/{self.group}"


class Transactions(Protocol):
    """Transactions of a stream. All calls may raise ScopeNotFoundError and StreamNotFoundError."""

    async def create(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        """Its segments exist when this returns. Raises InvalidArgumentError (lease), StreamSealedError."""
        ...

    async def join(self, stream: StreamName, key: UUID, *, lease_ms: int) -> Transaction:
        """Join the open transaction with this ``key``, and renew its lease; the first caller begins it. Its segments,
        of the epoch in which it began, exist when this returns. Once it is decided, the key is free.

        Raises as ``create``, and TransactionStateError (it has just ended).
        """
        ...

    async def ping(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus: ...

    async def commit(
        self, stream: StreamName, txn: UUID, *, blocks: Sequence[EventBlock] = (), noted: NotedTime | None = None
    ) -> TransactionStatus:
        """Decide to commit; the merge follows, and survives any crash. Can be repeated. Returns COMMITTED if the events
        are already readable, else COMMITTING.

        ``blocks`` are appended first, each exactly once even if the call is repeated, as event number ``event_count``
        of its writer. Raises TransactionNotFoundError, TransactionStateError (aborted); with blocks also
        InvalidArgumentError (no segment of the transaction), UnsupportedError (an older server), and what an append
        raises: then nothing is decided. ``noted`` counts once the events are readable; a time before the one that the
        writer noted last is not noted, and the commit stands. Of repeated calls the one that decides counts.
        """
        ...

    async def commit_with_positions(
        self, transactions: Sequence[StreamTransaction], positions: PositionCommit
    ) -> TransactionStatus:
        """Decide to commit the transactions and the positions, in one step; the merges follow as for ``commit``.

        Returns COMMITTED if all events are readable, else COMMITTING. Can be repeated.
        Raises InvalidArgumentError (none, more than ``TOGETHER_MAX``, or two of one stream), TransactionNotFoundError,
        TransactionStateError (one was aborted), ReaderGroupNotFoundError: nothing is decided.
        """
        ...

    async def settle_positions(self, transactions: Sequence[StreamTransaction], positions: PositionCommit) -> bool:
        """Whether the positions are committed. If not, their transactions are aborted, so that they never will be.

        Only until ``release_positions``, or the next commit of that reader: afterwards the answer is False.
        """
        ...

    async def release_positions(self, positions: PositionCommit) -> None:
        """Forget the decision: the group's state has the positions. Does nothing for any other commit than the
        reader's last one."""
        ...

    async def abort(self, stream: StreamName, txn: UUID) -> None:
        """Decide to abort; otherwise as ``commit``."""
        ...

    async def status(self, stream: StreamName, txn: UUID) -> TransactionStatus: ...

    async def list_open(self, stream: StreamName) -> Sequence[OpenTransaction]:
        """Those that have not ended: all open ones, and decided ones until their events are merged or removed.

        Sorted by epoch, then in the order of their ids. Not one moment: one that begins or ends meanwhile may be missing.
        """
        ...

    async def list_completed(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        """Newest first, at most 500."""
        ...
