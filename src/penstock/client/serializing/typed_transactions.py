"""The asynchronous transactions of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Generic, TypeVar
from uuid import UUID

from penstock.client.processing.group_transaction import AsyncGroupTransaction
from penstock.client.retry import DEADLINE_S
from penstock.client.serializing.events import TypedForm
from penstock.client.serializing.typed_writer import AsyncValueWriter
from penstock.client.writing.transaction import AsyncTransaction
from penstock.model.names import StreamName
from penstock.model.records import Given

T = TypeVar("T")


class AsyncTypedTransaction(AsyncValueWriter[T]):
    """Values of one type that become readable together, or not at all: ``stream.transaction(serializer=...)``.

    A value is encoded before anything of it is written, so a value that is refused leaves the transaction as it was.
    Everything else is as for ``AsyncTransaction``, which is ``transaction``.
    """

    def __init__(self, transaction: AsyncTransaction, form: TypedForm[T]) -> None:
        super().__init__(transaction, form)
        self.transaction = transaction

    @property
    def id(self) -> UUID:
        """The transaction's id. Raises InvalidArgumentError before it is open."""
        return self.transaction.id

    async def open(self) -> None:
        """As ``AsyncTransaction.open``."""
        await self.transaction.open()

    async def flush(self) -> None:
        """As ``AsyncTransaction.flush``."""
        await self.transaction.flush()

    async def commit(
        self, *, wait: bool = True, deadline_s: float = DEADLINE_S, timestamp_ms: int | None = None
    ) -> None:
        """As ``AsyncTransaction.commit``."""
        await self.transaction.commit(wait=wait, deadline_s=deadline_s, timestamp_ms=timestamp_ms)

    async def abort(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """As ``AsyncTransaction.abort``."""
        await self.transaction.abort(wait=wait, deadline_s=deadline_s)

    async def __aenter__(self) -> AsyncTypedTransaction[T]:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.transaction.__aexit__(kind, error, trace)


class AsyncTypedGroupTransaction(Generic[T]):
    """Positions of a group's reader, and values of one type that are committed together with them:
    ``reader.transaction(..., serializer=...)``.

    A value is encoded before anything of it is written, so a value that is refused leaves the transaction as it was.
    Everything else is as for ``AsyncGroupTransaction``, which is ``transaction``.
    """

    def __init__(self, transaction: AsyncGroupTransaction, form: TypedForm[T]) -> None:
        self.transaction = transaction
        self._form = form

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that it may write to, in the order in which they were given."""
        return self.transaction.streams

    async def open(self) -> None:
        """As ``AsyncGroupTransaction.open``."""
        await self.transaction.open()

    async def write(
        self,
        value: T,
        key: Given = None,
        *,
        headers: Mapping[str, Given] | Iterable[tuple[str, Given]] = (),
        timestamp_ms: int | None = None,
        to: str | StreamName | None = None,
    ) -> None:
        """Encode one value and write its event, as ``AsyncTypedWriter.write``. ``to``: its stream, if there are several.
        Raises as it, and as ``AsyncGroupTransaction.write``."""
        await self._form.look_up([value])
        await self.transaction.write(*self._form.written(value, key, headers, timestamp_ms), to=to)

    async def write_many(
        self, values: Sequence[T], keys: Sequence[Given] | None = None, *, to: str | StreamName | None = None
    ) -> None:
        """Encode a list of values, and write their events in order: all of them, or none if one does not fit. ``keys``, if
        any, has one for each value. Raises as ``write``."""
        await self._form.look_up(values)
        await self.transaction.write_many(*self._form.written_many(values, keys), to=to)

    async def write_tombstone(self, key: Given, *, to: str | StreamName | None = None) -> None:
        """Write a record without a value, which stands for the deletion of its key. Needs ``records=True``.
        ``to``: its stream, if there are several."""
        await self.transaction.write(self._form.tombstone(key), to=to)

    async def flush(self) -> None:
        """As ``AsyncGroupTransaction.flush``."""
        await self.transaction.flush()

    async def commit(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """As ``AsyncGroupTransaction.commit``."""
        await self.transaction.commit(wait=wait, deadline_s=deadline_s)

    async def abort(self) -> None:
        """As ``AsyncGroupTransaction.abort``."""
        await self.transaction.abort()

    async def __aenter__(self) -> AsyncTypedGroupTransaction[T]:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.transaction.__aexit__(kind, error, trace)
