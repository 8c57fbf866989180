"""The part of a group's reader that commits its positions together with transactions."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar, Unpack, overload
from uuid import UUID

from penstock.client.options import settings_of
from penstock.client.processing.group_transaction import AsyncGroupTransaction
from penstock.client.reading.async_reading import AsyncBlockReader
from penstock.client.reading.commits import Progress
from penstock.client.reading.group_state import GroupState, Prepared
from penstock.client.reading.group_table import GroupTable
from penstock.client.retry import DEADLINE_S
from penstock.client.serializing.events import form_of
from penstock.client.serializing.serializer import Serializer
from penstock.client.serializing.typed_transactions import AsyncTypedGroupTransaction
from penstock.client.writing.settings import GroupTransactionOptions, WriterOptions, WriterSettings
from penstock.client.writing.transaction import AsyncTransaction
from penstock.model.errors import (
    InvalidArgumentError,
    NotCommittedError,
    PenstockError,
    ReaderFencedError,
    ScopeNotFoundError,
    StreamNotFoundError,
    TransactionNotFoundError,
    TransactionStateError,
)
from penstock.model.names import StreamName
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.transactions import READER_NAME_MAX, StreamTransaction, TransactionStatus
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)

T = TypeVar("T")


class PositionCommitter(AsyncBlockReader):
    """The base of a group's reader. The reader has the attributes that are declared here."""

    name: str
    _table: GroupTable
    _segments: SegmentService
    _controller: ControlPlane
    _rng: Rng
    _progress: Progress
    _syncing: asyncio.Lock
    _incarnation: str
    _next_incarnation: str
    _has_lost: bool
    _finished: bool
    _crash: BaseException | None

    _transaction: AsyncGroupTransaction | None = None
    """The transaction that is open."""
    _prepared: Prepared | None = None
    """Positions for which a commit was requested, with an unknown outcome."""
    _is_prepared = False
    """Whether the group's state surely had them before the decision was requested."""
    _has_yielded = False
    """Whether a segment was given up, as the program agreed, with returned events that no commit covers. What was written
    for them must not be committed: another reader returns them again."""

    @abstractmethod
    async def sync(self) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    def _drop_all(self) -> None: ...

    @abstractmethod
    def _give_up(self, error: BaseException) -> None: ...

    @abstractmethod
    def _check_usable(self) -> None: ...

    @abstractmethod
    def _not_committed(self) -> NotCommittedError: ...

    @overload
    def transaction(
        self, *streams: str | StreamName, serializer: None = None, **options: Unpack[GroupTransactionOptions]
    ) -> AsyncGroupTransaction: ...

    @overload
    def transaction(
        self,
        *streams: str | StreamName,
        serializer: Serializer[T],
        records: bool = False,
        **options: Unpack[GroupTransactionOptions],
    ) -> AsyncTypedGroupTransaction[T]: ...

    def transaction(
        self,
        *streams: str | StreamName,
        serializer: Serializer[Any] | None = None,
        records: bool = False,
        lease_s: float = 30.0,
        settings: WriterSettings | None = None,
        **options: Unpack[WriterOptions],
    ) -> AsyncGroupTransaction | AsyncTypedGroupTransaction[Any]:
        """A transaction that commits the positions of this reader and the events written to ``streams`` together: read,
        process, write, exactly once. Use it in a ``with`` or ``async with`` block.

        The reader must have ``auto_commit=False``. It has one transaction at a time.

        Args:
            streams: The streams that the program may write to, in any scope of this store.
            serializer: None, or what encodes each value that is written.
            records: With a serializer: each value becomes that of a record.
            lease_s: How long after this process died the store aborts it: 10 to 600.
            settings: Of the writers. Without them, ``options`` are its fields, as for ``Stream.writer``.
            options: See ``settings``.
        Raises:
            InvalidArgumentError: No stream, or one twice; an option out of range; a reader with automatic commits, or with a
                name of more than 255 characters.
        """
        names = [item if isinstance(item, StreamName) else StreamName.parse(item) for item in streams]
        if not names or len(set(names)) < len(names):
            raise InvalidArgumentError(
                "name the streams that the transaction writes to, each once", streams=[str(name) for name in names]
            )
        if not self._progress.commits.is_explicit:
            raise InvalidArgumentError(
                "a transaction commits the positions of its reader: make it with auto_commit=False", reader=self.name
            )
        if len(self.name) > READER_NAME_MAX:
            raise InvalidArgumentError(
                f"a reader with transactions needs a name of at most {READER_NAME_MAX} characters",
                characters=len(self.name),
            )
        chosen = settings or settings_of(WriterSettings, "a transaction", options)

        def begin(stream: StreamName) -> AsyncTransaction:
            return AsyncTransaction(stream, self._segments, self._controller, self._rng, chosen, lease_s=lease_s)

        form = form_of(serializer, records=records)
        transaction = AsyncGroupTransaction(self, {name: begin(name) for name in names}, self._rng)
        return transaction if form is None else AsyncTypedGroupTransaction(transaction, form)

    # --- for the transaction -------------------------------------------------------------------------------

    def _check_no_transaction(self) -> None:
        if self._transaction is not None:
            raise InvalidArgumentError("the reader has an open transaction: commit or abort that one", reader=self.name)

    def begin_transaction(self, transaction: AsyncGroupTransaction) -> None:
        """Make it the reader's transaction. Raises InvalidArgumentError (not open, or another one is)."""
        self._check_usable()
        self._check_no_transaction()
        if not self._incarnation:
            raise InvalidArgumentError("the reader is not open", reader=self.name)
        self._transaction = transaction

    def end_transaction(self) -> None:
        """The transaction has ended."""
        self._transaction = self._prepared = None
        self._is_prepared = False

    async def commit_with(
        self, commit: UUID, transactions: Sequence[StreamTransaction], *, deadline_s: float
    ) -> TransactionStatus:
        """Decide to commit the transactions and all events that were returned, in one step.

        Raises NotCommittedError, ReaderFencedError, ReaderGroupNotFoundError: nothing is committed. UnavailableError, or
        cancelled: unknown; it may be repeated with the same arguments.
        """
        self._check_usable()
        async with self._syncing:
            if not self._is_prepared:
                # Afterwards only the store knows whether it is decided. A report that had the lock may have lost segments.
                if self._crash is not None:
                    raise self._crash
                if self._has_lost or self._has_yielded:
                    raise self._not_committed()
            prepared = self._prepared
            if prepared is None:
                if self._progress.current is not None:
                    self._progress.current.finish_returned()
                # All that has ended is read in full, hence committed.
                positions, ended = self._progress.positions(), dict(self._progress.ended)
                prepared = Prepared(id=commit, transactions=transactions, positions=positions, ended=ended)
                self._prepared = prepared
            if not self._is_prepared:
                await self._prepare(prepared)
                self._is_prepared = True
            try:
                status = await self._table.decide(self.name, prepared, deadline_s=deadline_s)
            except (TransactionStateError, TransactionNotFoundError) as error:
                raise NotCommittedError(
                    "nothing was committed: its lease ran out, or another reader has taken over; the events since the last "
                    "commit are returned again",
                    reader=self.name,
                    reason=str(error),
                ) from error
            except (StreamNotFoundError, ScopeNotFoundError) as error:
                # An earlier call, whose answer was lost, may have decided before the stream was deleted.
                if not await self._table.settle(self.name, prepared):
                    raise NotCommittedError(
                        "nothing was committed: a stream that it writes to was deleted; the events since the last commit are "
                        "returned again",
                        reader=self.name,
                        reason=str(error),
                    ) from error
                status = TransactionStatus.COMMITTED
            self._progress.commits.commit(prepared.positions)
            self._has_lost = False
        return status

    async def _prepare(self, prepared: Prepared) -> None:
        since = self._progress.commits.positions

        def prepare(state: GroupState) -> None:
            if not state.has(self.name, self._incarnation):
                if state.fences(self.name, self._next_incarnation):
                    raise ReaderFencedError(
                        "nothing was committed: another reader of this name has joined the group", reader=self.name
                    )
                raise self._not_committed()
            if not state.may_prepare(self.name, prepared, since):
                raise self._not_committed()
            state.prepare(self.name, prepared)

        try:
            await self._table.update(prepare, full_s=DEADLINE_S)
        except ReaderFencedError as error:
            self._give_up(error)
            raise

    async def report_commit(self) -> None:
        """Move the positions in the group's state. A failure changes nothing: the next report does it."""
        try:
            await self.sync()
        except PenstockError as error:
            log.info("committed positions are reported later", extra={"reader": self.name, "error": str(error)})

    def rewind(self) -> None:
        """Return no more events until the next report, and then those after the last commit again."""
        self._drop_all()
        self._has_lost = self._has_yielded = False
        self._finished = False  # What ended at the tail begins again.
