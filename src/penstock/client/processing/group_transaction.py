"""A transaction of a group's reader: the events that it writes and the positions that it has read to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from penstock.client.options import number
from penstock.client.retry import DEADLINE_S
from penstock.client.writing.transaction import AsyncTransaction, wait_for
from penstock.model.errors import (
    InvalidArgumentError,
    NotCommittedError,
    PenstockError,
    ReaderFencedError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    StreamNotFoundError,
    TransactionNotFoundError,
    TransactionStateError,
)
from penstock.model.names import StreamName
from penstock.model.records import Record
from penstock.ports.control.transactions import StreamTransaction, TransactionStatus
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng

if TYPE_CHECKING:
    from penstock.client.writing.arrow import ArrowEvents, ArrowKeys

log = logging.getLogger(__name__)

_ABORT_S = 10.0
"""How long the abort may take when a block ends with an exception: the caller's exception waits for it."""

_REFUSED = (NotCommittedError, ReaderFencedError, ReaderGroupNotFoundError)
"""After these nothing is committed, and never will be."""


class PositionReader(Protocol):
    """What a transaction needs of its reader."""

    def begin_transaction(self, transaction: AsyncGroupTransaction) -> None: ...
    def end_transaction(self) -> None: ...
    async def commit(self) -> None: ...
    async def commit_with(
        self, commit: UUID, transactions: Sequence[StreamTransaction], *, deadline_s: float
    ) -> TransactionStatus: ...
    async def report_commit(self) -> None: ...
    def rewind(self) -> None: ...


class AsyncGroupTransaction:
    """Positions of a reader and events for one or more streams, which are committed together or not at all.

    ``async with`` commits on success. On an exception it aborts, and the reader returns the events since its last commit
    again. A commit covers all events that the reader has returned, the last one included, and also those that it
    returned before the transaction was opened. A stream to which nothing is written gets no transaction.

    If the process dies, the positions and the events are committed together, or another reader begins at the last commit
    and the events are dropped. A reader whose segments were given to another one cannot commit.
    """

    def __init__(self, reader: PositionReader, outputs: Mapping[StreamName, AsyncTransaction], rng: Rng) -> None:
        self._reader = reader
        self._outputs = outputs
        self._id = rng.uuid()
        self._begun: dict[StreamName, AsyncTransaction] = {}
        self._opened = False
        self._ended = False
        self._asked = False
        """Whether a commit was requested whose outcome is not known."""

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that it may write to, in the order in which they were given."""
        return list(self._outputs)

    @property
    def block_bytes(self) -> int:
        """Bytes of events that are sent together."""
        return next(iter(self._outputs.values())).settings.block_bytes

    async def open(self) -> None:
        """Begin. Entering ``async with`` does it. Raises InvalidArgumentError (the reader is not open, or it has an open
        transaction), TransactionStateError (this one has ended)."""
        if self._ended:
            raise TransactionStateError("transaction has ended; begin another one")
        if not self._opened:
            self._reader.begin_transaction(self)
            self._opened = True

    def check(self, to: str | StreamName | None = None) -> StreamName:
        """The stream that is written to. Raises InvalidArgumentError (not open, or no such stream),
        TransactionStateError (ended, or a commit was requested)."""
        if self._ended or self._asked:
            raise TransactionStateError("transaction takes no more events: it has ended, or a commit was requested")
        if not self._opened:
            raise InvalidArgumentError("transaction is not open", streams=[str(name) for name in self._outputs])
        if to is None and len(self._outputs) == 1:
            return next(iter(self._outputs))
        name = to if isinstance(to, StreamName) else None if to is None else StreamName.parse(to)
        if name is None or name not in self._outputs:
            raise InvalidArgumentError(
                "say with `to` which of the transaction's streams the event is for",
                to=str(to),
                streams=[str(item) for item in self._outputs],
            )
        return name

    async def _output(self, to: str | StreamName | None) -> AsyncTransaction:
        name = self.check(to)
        output = self._outputs[name]
        if name not in self._begun:
            await output.open()
            self._begun[name] = output
        return output

    async def write(
        self, event: Buffer | str | Record, key: str | None = None, *, to: str | StreamName | None = None
    ) -> None:
        """Write one event, as ``AsyncTransaction.write``. ``to``: its stream, if there are several.

        Raises InvalidArgumentError, TransactionStateError, TransactionNotFoundError, StreamNotFoundError,
        StreamSealedError, EventTooLargeError.
        """
        await (await self._output(to)).write(event, key)

    async def write_many(
        self,
        events: Sequence[Buffer | str | Record],
        keys: Sequence[str | None] | None = None,
        *,
        to: str | StreamName | None = None,
    ) -> None:
        """Write a list of events, in order; ``keys``, if any, has one for each event. Raises as ``write``."""
        await (await self._output(to)).write_many(events, keys)

    async def write_arrow(
        self, array: ArrowEvents, keys: ArrowKeys | None = None, *, to: str | StreamName | None = None
    ) -> None:
        """Write Arrow events, as ``AsyncWriter.write_arrow`` takes them. Raises as it, and as ``write``."""
        await (await self._output(to)).write_arrow(array, keys)

    async def flush(self) -> None:
        """Return once every event written so far is durable, though not readable. Raises as ``write``."""
        for output in self._begun.values():
            await output.flush()

    async def commit(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """Commit the positions and the events, in one step. ``wait``: return when the events are readable; else when it is
        decided.

        Raises:
            NotCommittedError: Nothing is committed: another reader has taken over, the lease ran out, or a stream was
                deleted. The events since the last commit are returned again, by this reader or another.
            ReaderFencedError, ReaderGroupNotFoundError: As of the reader; nothing is committed.
            DeadlineExceededError: After ``deadline_s``: committed, and readable later.
            UnavailableError, StorageFullError: Perhaps committed. Call it again, or ``abort``, which reports it.
            TransactionStateError: It has ended.

        Cancelled: as UnavailableError. If the block ends in this way, the reader continues after whatever was committed.
        """
        number("deadline_s", deadline_s, least=0)
        if self._ended or not self._opened:
            self.check(next(iter(self._outputs)))
        if not self._begun:
            self._finish()
            await self._reader.commit()
            return
        if not self._asked:
            await self._flush_all()
        began = asyncio.get_running_loop().time()
        self._asked = True
        try:
            status = await self._reader.commit_with(self._id, self._parts(), deadline_s=deadline_s)
        except _REFUSED:
            self._asked = False
            await self._drop()
            raise
        await self._close(rewinds=False)
        if wait and status is not TransactionStatus.COMMITTED:
            left_s = began + deadline_s - asyncio.get_running_loop().time()
            for output in self._begun.values():
                # A stream that was deleted after the decision shows nothing any more.
                with suppress(StreamNotFoundError, ScopeNotFoundError):
                    await wait_for(output, TransactionStatus.COMMITTED, max(0.0, left_s))

    async def _flush_all(self) -> None:
        try:
            await self.flush()
        except (TransactionStateError, TransactionNotFoundError, StreamNotFoundError, ScopeNotFoundError) as error:
            await self._drop()
            raise NotCommittedError(
                "nothing was committed: the transaction was aborted, or its stream deleted; the events since the last commit "
                "are returned again",
                reason=str(error),
            ) from error

    def _parts(self) -> list[StreamTransaction]:
        return [StreamTransaction(stream=name, id=output.id) for name, output in self._begun.items()]

    def _finish(self) -> None:
        self._ended = True
        self._reader.end_transaction()

    async def _close(self, *, rewinds: bool) -> None:
        """The transactions are decided: end this side, and report."""
        self._finish()
        if rewinds:
            self._reader.rewind()
        for output in self._begun.values():
            await output.abandon()
        await self._reader.report_commit()

    async def _drop(self) -> bool:
        """Nothing is committed, or what is committed is unknown: the reader returns the events after its last commit. The
        store aborts what cannot be aborted now when its lease ends. Returns whether all is settled."""
        self._finish()
        self._reader.rewind()
        settled = not self._asked
        for output in self._begun.values():
            try:
                # After a commit with an unknown outcome, the reader's next report settles it.
                if not self._asked:
                    await output.abort(wait=False, deadline_s=_ABORT_S)
            except PenstockError as error:
                log.warning("transaction is aborted later", extra={"txn": str(output.id), "error": str(error)})
                settled = False
            finally:
                await output.abandon()
        return settled

    async def abort(self) -> None:
        """Drop the events. The reader returns the events since its last commit again.

        Raises TransactionStateError (it is committed), TransactionNotFoundError (it has ended long ago): the reader continues
        after what was committed. InvalidArgumentError (not open). A stream that was deleted is no error.
        """
        if self._ended or not self._opened:
            self.check(next(iter(self._outputs)))
        try:
            for output in self._begun.values():
                # A deleted stream has taken its transaction with it.
                with suppress(StreamNotFoundError, ScopeNotFoundError):
                    await output.abort(wait=False)
        except (TransactionStateError, TransactionNotFoundError):
            # Decided by a commit whose answer was lost, or too long ago. The reader continues after what was committed.
            await self._close(rewinds=True)
            raise
        await self._close(rewinds=True)

    async def __aenter__(self) -> AsyncGroupTransaction:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        try:
            if kind is None:
                await self.commit()
        finally:
            if not self._ended and await self._drop() and (kind is None or issubclass(kind, Exception)):
                await self._reader.report_commit()
