"""How the driver commits a batch: the messages of its tasks become one transaction, filled in partition order,
committed once.

Source: docs/design/0016-sink.md, "Commit".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from penstock.model.errors import (
    ConditionFailedError,
    ConflictError,
    InternalError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    TransactionStateError,
    UnsupportedError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.queries import QuerySource
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.transactions import Transaction
from penstock.ports.data.imports import ADOPT_MAX_CHUNKS, ChunkImports, ImportedChunk
from penstock.ports.data.segments import Append
from penstock.spark.connect import Services
from penstock.spark.options import WriteOptions
from penstock.spark.writing.messages import TaskWritten
from penstock.spark.writing.transactions import abort_if_open, opened

if TYPE_CHECKING:
    from penstock.spark.writing.frames import Framed

log = logging.getLogger("penstock.spark")

_SEGMENTS_AT_ONCE = 16
_TRIES = 4  # attempts; a repeated commit changes nothing


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks whose rows go into one transaction, in this order.

    ``transaction`` without ``key``: the task's own, which already holds the rows. With ``key``: the shared one. None:
    the driver begins one.
    """

    tasks: tuple[TaskWritten, ...]
    transaction: UUID | None = None
    key: UUID | None = None


def groups_of(messages: Sequence[TaskWritten]) -> tuple[Group, ...]:
    """The transactions of a batch, in the order in which their rows become readable.

    Rows are ordered by partition. Only if some tasks wrote tier 2 and others could not, those that did come first:
    their chunks belong to one transaction. Raises TransactionStateError: tasks wrote to different shared transactions,
    because one had ended.
    """
    tasks = sorted((item for item in messages if _has_rows(item)), key=lambda item: item.partition)
    direct = [item.shared for item in tasks if item.shared is not None and item.shared.chunks]
    if len({item.transaction for item in direct}) > 1:
        raise TransactionStateError(
            "transaction of the batch ended while tasks wrote to it", txn=direct[0].transaction, state="aborted"
        )
    if direct:
        together = tuple(item for item in tasks if item.transaction is None)
        others = tuple(Group((item,), item.transaction) for item in tasks if item.transaction is not None)
        return (Group(together, direct[0].transaction, direct[0].key), *others)
    found: list[Group] = []
    for item in tasks:
        if item.transaction is not None:
            found.append(Group((item,), item.transaction))
        elif found and found[-1].transaction is None:
            found[-1] = Group((*found[-1].tasks, item))
        else:
            found.append(Group((item,)))
    return tuple(found)


def _has_rows(item: TaskWritten) -> bool:
    return item.transaction is not None or item.inline is not None or bool(item.shared and item.shared.chunks)


def is_repeat(last: int | None, batch: int, *, writer: str, ordered: bool) -> bool:
    """Whether the writer has already committed the batch.

    Args:
        last: The last batch that the writer committed.
        ordered: Whether batches come from one checkpoint, which repeats only its last batch.
    Raises:
        ConflictError: An older batch from a checkpoint: it is a new checkpoint that reuses an old name. To treat the
        batch as a repeat would silently lose its data.
    """
    if last is None or batch > last:
        return False
    if ordered and batch < last:
        raise ConflictError(
            "writer has committed later batches: a new checkpoint needs another writer_id, or reset_writer=true",
            writer=writer,
            batch=batch,
            last=last,
        )
    return True


async def last_batch(services: Services, options: WriteOptions, writer: str, source: QuerySource | None) -> int | None:
    """The last batch of the writer. Also None if the stream does not exist yet. Raises as the controller does."""
    try:
        return await services.controller.batches.last(options.stream, writer=writer, source=source)
    except (StreamNotFoundError, ScopeNotFoundError):
        return None


async def claim(services: Services, options: WriteOptions, written: TaskWritten) -> bool:
    """Record that the query writes under this name, with an empty batch. False if the batch was already committed.

    Raises: WriterInUseError, ConflictError: the name belongs to another query. Its later batches would be refused too.
    """
    try:
        return await services.controller.batches.commit(
            options.stream, writer=written.writer, batch=written.batch, transactions=(), source=written.source
        )
    except (StreamNotFoundError, ScopeNotFoundError):
        return True


@dataclass(slots=True)
class _Step:
    """The next write to a segment: chunks, or framed events. ``end``: the segment's length after it."""

    end: int
    chunks: list[ImportedChunk] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    count: int = 0


class BatchCommit:
    """The commit of one batch. ``run`` may be called again after a failure: it continues from there."""

    def __init__(
        self, options: WriteOptions, messages: Sequence[TaskWritten], *, ordered: bool, one_job: bool = False
    ) -> None:
        self._options = options
        self._groups = groups_of(messages)
        self._ordered = ordered
        self._one_job = one_job
        self._writer, self._batch, self._source = messages[0].writer, messages[0].batch, messages[0].source
        self._begun: dict[int, Transaction] = {}
        self._fresh: set[int] = set()
        self._filled: set[int] = set()
        self._is_repeat = False

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows to commit."""
        return not self._groups

    async def run(self, services: Services) -> bool:
        """``prepare``, then ``decide``."""
        await self.prepare(services)
        return await self.decide(services)

    async def prepare(self, services: Services) -> None:
        """Write the rows to transactions that nobody can read yet.

        Raises ConflictError (see ``is_repeat``), TransactionNotFoundError and TransactionStateError (nothing is
        committed), and what the store raises.
        """
        options = self._options
        async with asyncio.TaskGroup() as asked:
            last = asked.create_task(last_batch(services, options, self._writer, self._source))
            for number, group in enumerate(self._groups):
                # Repeats are rare, so the batch is filled without asking first. For a repeat, the commit aborts it as
                # superseded.
                if group.transaction is None and number not in self._begun:
                    asked.create_task(self._begin(services, number))
        self._is_repeat = is_repeat(last.result(), self._batch, writer=self._writer, ordered=self._ordered)
        if not self._is_repeat:
            for number, group in enumerate(self._groups):
                if number not in self._filled:
                    await self._fill(services, number, group)
                    self._filled.add(number)

    async def decide(self, services: Services) -> bool:
        """True once this or an earlier call has made the prepared batch readable. False if the writer's batch was
        already committed otherwise.

        Raises TransactionNotFoundError (nothing is committed), and what the store raises.
        """
        offered = self.transactions
        if not offered:
            return not self._is_repeat
        return await services.controller.batches.commit(
            self._options.stream,
            writer=self._writer,
            batch=self._batch,
            transactions=offered,
            source=self._source,
            one_job=self._one_job,
        )

    @property
    def transactions(self) -> list[UUID]:
        """The known transactions of the batch, in order."""
        found = [
            self._begun[number].id if number in self._begun else group.transaction
            for number, group in enumerate(self._groups)
        ]
        return [item for item in found if item is not None]

    async def abort(self, services: Services) -> None:
        """Abort the transactions that this object began, unless their outcome is already decided."""
        for transaction in self._begun.values():
            await abort_if_open(services, self._options, transaction.id)

    # --- filling ------------------------------------------------------------------------------------------

    async def _fill(self, services: Services, number: int, group: Group) -> None:
        """Write the rows of a group to its transaction."""
        if group.transaction is not None and group.key is None:
            return
        if group.key is not None and number not in self._begun:
            self._begun[number] = await self._joined(services, group, group.key)
        transaction = self._begun[number]
        # Nothing was sent yet to a transaction that this call began.
        fresh = number in self._fresh
        self._fresh.discard(number)
        steps = self._steps(transaction, group)
        limit = asyncio.Semaphore(_SEGMENTS_AT_ONCE)
        async with asyncio.TaskGroup() as running:
            for index, item in sorted(steps.items()):
                running.create_task(self._fill_segment(services, transaction, index, item, limit, fresh))

    async def _begin(self, services: Services, number: int) -> None:
        options = self._options
        create = partial(services.controller.transactions.create, options.stream, lease_ms=options.lease_ms)
        self._begun[number] = await opened(services, options, create)
        self._fresh.add(number)

    async def _joined(self, services: Services, group: Group, key: UUID) -> Transaction:
        options = self._options
        found = await services.controller.transactions.join(options.stream, key, lease_ms=options.lease_ms)
        if found.id != group.transaction:
            # The transaction that the tasks wrote to has ended, so its key was free again.
            await abort_if_open(services, options, found.id)
            raise TransactionStateError(
                "transaction of the batch ended before it was committed", txn=group.transaction, state="aborted"
            )
        return found

    def _steps(self, transaction: Transaction, group: Group) -> dict[int, list[_Step]]:
        """The writes for each segment, by its index in the transaction."""
        from penstock.spark.writing.frames import APPEND_BYTES, Sorter, rows_inline

        places = {item.segment: index for index, item in enumerate(transaction.segments)}
        steps: dict[int, list[_Step]] = {}
        for task in group.tasks:
            if task.shared is not None:
                for segment, chunks in task.shared.chunks:
                    _add_chunks(steps.setdefault(places[segment], []), chunks)
            if task.inline is not None:
                ranges = [item.keys for item in transaction.segments]
                sorter = Sorter(ranges, turn=task.partition, part_bytes=APPEND_BYTES)
                for events, keys in rows_inline(task.inline):
                    for part in sorter.sort(events, keys):
                        _add_part(steps.setdefault(part.index, []), part)
        return steps

    async def _fill_segment(
        self,
        services: Services,
        transaction: Transaction,
        index: int,
        steps: list[_Step],
        limit: asyncio.Semaphore,
        fresh: bool,
    ) -> None:
        name = transaction_segment_name(
            segment_name(self._options.stream, transaction.segments[index].segment), transaction.id
        )
        async with limit:
            try:
                for left in reversed(range(_TRIES)):
                    try:
                        await _perform(services, name, steps, fresh=fresh)
                        break
                    except ConditionFailedError:
                        # A call of an earlier try arrived late, and took the place of its repeat.
                        fresh = False
                        if not left:
                            raise
            except SegmentNotFoundError as error:
                raise TransactionStateError(
                    "transaction of the batch ended before it was committed", txn=transaction.id, state="aborted"
                ) from error


async def _perform(services: Services, name: str, steps: Sequence[_Step], *, fresh: bool) -> None:
    """Write the steps that the segment still lacks. ``fresh``: it is empty."""
    # A new writer id for each try: data that an earlier try sent may still arrive, and must not count as this try's.
    writer = uuid4()
    length = 0 if fresh else (await services.segments.info(name)).length
    number = 0
    last: int | None = None
    for step in steps:
        if step.end <= length:
            continue
        if step.chunks:
            imports = services.segments
            if not isinstance(imports, ChunkImports):
                raise UnsupportedError("this store does not adopt chunks", segment=name)
            length = await imports.adopt_chunks(name, length, step.chunks)
        else:
            if last is None:
                last = await services.segments.setup_append(name, writer)
            number += step.count
            request = Append(
                segment=name,
                writer=writer,
                data=step.data,
                event_number=number,
                event_count=step.count,
                previous=last,
                expected_offset=length,
            )
            length, last = (await services.segments.append(request)).end_offset, number
        if length != step.end:
            raise InternalError(
                "segment of a batch does not have the expected length", segment=name, length=length, expected=step.end
            )


def _add_chunks(steps: list[_Step], chunks: Sequence[ImportedChunk]) -> None:
    for chunk in chunks:
        if not steps or not steps[-1].chunks or len(steps[-1].chunks) >= ADOPT_MAX_CHUNKS:
            steps.append(_Step(steps[-1].end if steps else 0))
        steps[-1].chunks.append(chunk)
        steps[-1].end += chunk.size_bytes


def _add_part(steps: list[_Step], part: Framed) -> None:
    from penstock.spark.writing.frames import APPEND_BYTES

    if not steps or steps[-1].chunks or len(steps[-1].data) + len(part.data) > APPEND_BYTES:
        steps.append(_Step(steps[-1].end if steps else 0))
    step = steps[-1]
    step.data += part.data
    step.count += part.count
    step.end += len(part.data)
