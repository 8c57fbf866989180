# ruff: noqa: N803 - Spark names these arguments.
"""Writing from Spark, exactly once: tasks write, and the driver commits the batch.

What a task writes is not readable until the driver commits it in one transaction. The controller decides each (writer,
batch) once, so a repeated batch is a no-op. A writer name belongs to one query, and to its latest run. Any other query
or run is refused, because its rows would count as a repeat. Transactions of speculative and crashed attempts end with
their leases. Source: docs/design/0009-spark.md, docs/design/0016-sink.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID, uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.retry import RETRYABLE
from penstock.model.errors import InternalError, InvalidArgumentError, PenstockError
from penstock.model.names import StreamName
from penstock.model.queries import QuerySource
from penstock.spark.connect import RETRY_S, Connector, Link, Services, link
from penstock.spark.options import NO_QUERY, WriteOptions
from penstock.spark.reasons import advised
from penstock.spark.worker.collector import spare
from penstock.spark.writing.batch_commit import groups_of
from penstock.spark.writing.messages import RoutedWritten, TaskWritten
from penstock.spark.writing.streams_commit import StreamsCommit, parts_of
from penstock.spark.writing.transactions import ABORT_S, abort_if_open, writing_access

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("penstock.spark")

# The properties of a query that Spark sets in its tasks, in every kind of session. They are not public, so they are checked.
_QUERY = "sql.streaming.queryId"
_RUN = "spark.jobGroup.id"
_BATCH = "streaming.sql.batchId"
# Set only in jobs of Spark Connect. There Spark does not set the properties above in jobs of a ``foreachBatch``.
_TAGS = "spark.job.tags"
_CONNECT = "SparkConnect_OperationTag"


class _Writer:
    """What batch and streaming writers share. It is pickled to tasks, so it holds plain values only."""

    def __init__(
        self, connector: Connector, options: WriteOptions, keyed: bool, target_columns: tuple[str, ...] = ()
    ) -> None:
        self._connector = connector
        self._options = options
        self._keyed = keyed
        self._target_columns = target_columns
        # Spark pickles this object to all tasks of a run. So they share the random values made here, and no other run
        # does.
        self._run = uuid4()
        self._one_job = False
        self._tasks = connector

    def planned(self) -> Self:
        """Get the token of the plan for the tasks. On the driver, before Spark pickles this object to them.

        Tasks may only write. So a missing stream is created here, if callers need identities and the options allow it.
        Raises PermissionDeniedError, and what a call to the controller raises.
        """
        self._tasks = self._server().ask(partial(writing_access, self._connector, self._options))
        return self

    def _server(self) -> Link:
        """The driver's connection."""
        return link(self._connector, self._options.controller)

    def _write(
        self, iterator: Iterator[pa.RecordBatch], writer: str, batch: int, source: QuerySource | None, *, ordered: bool
    ) -> TaskWritten | RoutedWritten:
        """Write the rows of a task. ``writer``: the writer's name, without the stream."""
        from penstock.spark.writing.attempt import Attempt  # needs Arrow

        # Also pandas, if this process was forked before the daemon had loaded it: Spark loads it after a write.
        spare("task")
        attempt = Attempt(
            self._tasks,
            self._options,
            keyed=self._keyed,
            target_columns=self._target_columns,
            key=self._run,
            writer=writer,
            batch=batch,
            source=source,
            ordered=ordered,
        )
        if attempt.hold(iterator):
            return attempt.message()
        server = link(self._tasks, self._options.controller)
        written = server.run(lambda services: attempt.write(services, iterator))
        for _ in iterator:
            pass  # Spark requires that its rows are consumed
        return written

    def _commit(self, messages: Sequence[WriterCommitMessage | None], *, ordered: bool) -> None:
        """Commit the rows of all tasks as one batch."""
        parts = parts_of(messages, self._options)
        for written in parts.values():
            if len({(message.writer, message.batch, message.source) for message in written}) > 1:
                raise InternalError("tasks of one batch disagree about it", batches=sorted({m.batch for m in written}))
        if not any(_has_anything(written) for written in parts.values()):
            return
        commit = StreamsCommit(self._options, parts, ordered=ordered, one_job=self._one_job)
        try:
            repeated = self._server().ask(commit.run, full_s=RETRY_S)
        except PenstockError:
            self._give_up(commit.abort)
            raise
        for stream in repeated:
            written = parts[stream]
            log.info("batch was already committed", extra={"writer": written[0].writer, "batch": written[0].batch})
        self._abort_all(commit.unused)
        spare("commit")

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the open transactions. Spark also calls this if a commit failed after it was decided: it stays
        decided."""
        open_ones: list[tuple[StreamName, UUID]] = []
        for stream, written in parts_of(messages, self._options).items():
            own = [message.transaction for message in written if message.transaction is not None]
            shared = {message.shared.transaction for message in written if message.shared is not None}
            open_ones += [(stream, transaction) for transaction in [*own, *sorted(shared)]]
        self._abort_all(open_ones)

    def _abort_all(self, transactions: Sequence[tuple[StreamName, UUID]]) -> None:
        if transactions:
            self._give_up(partial(_abort_all, options=self._options, transactions=transactions))

    def _give_up(self, abort: Callable[[Services], Coroutine[Any, Any, None]]) -> None:
        async def soon(services: Services) -> None:
            async with asyncio.timeout(ABORT_S):
                await abort(services)

        try:
            self._server().run(soon)
        except (*RETRYABLE, TimeoutError) as error:
            # An error raised here would replace the original failure in Spark's report.
            log.warning("transactions are left to their leases", extra={"error": str(error)})


def _has_anything(written: Sequence[TaskWritten]) -> bool:
    """Whether the stream has rows, or a query that must be recorded."""
    return written[0].source is not None or bool(groups_of(written))


async def _abort_all(
    services: Services, options: WriteOptions, transactions: Sequence[tuple[StreamName, UUID]]
) -> None:
    for stream, transaction in transactions:
        await abort_if_open(services, options.of(stream), transaction)


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write``: one batch. Its identity is (txnAppId, txnVersion), or made up here and shared by all tasks."""

    def __init__(
        self, connector: Connector, options: WriteOptions, keyed: bool, target_columns: tuple[str, ...] = ()
    ) -> None:
        super().__init__(connector, options, keyed, target_columns)
        # Spark pickles this one object to the commit too.
        app, self._batch = options.job or (options.writer_id or "", 0)
        self._one_job = options.job is None
        unique = f"job-{uuid4()}"
        self._name = app if options.job else f"{app or 'spark'}-{unique}"

    @advised
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._name, self._batch, self._source(), ordered=False)

    def _source(self) -> QuerySource | None:
        """The query whose ``foreachBatch`` this is, if any: each query has its own versions."""
        query = self._job_query() if self._options.job else None
        if query is None:
            return None
        # A version that equals the batch number can only decrease if an older copy of the checkpoint is used. Other
        # versions belong to the program: one batch may write several, and a repeat offers them all. They are all
        # recorded as 0.
        ordered = self._batch > 0 and _property(_BATCH) == str(self._batch)
        # The run is not sent: a batch function may write one version again, for example after an error that it caught.
        return QuerySource(query=query, replaces=self._options.replaces_query or "", ordered=ordered)

    def _job_query(self) -> str | None:
        """The query that the option names, or else Spark; None for a job outside of a query.

        Raises InvalidArgumentError if this cannot be determined.
        """
        given = self._options.job_query
        if given is not None:
            return None if given == NO_QUERY else given
        found = _property(_QUERY)
        if found is None and _CONNECT in (_property(_TAGS) or ""):
            raise InvalidArgumentError(
                "Spark Connect does not say whose foreachBatch this is, so a new query's rows could count as a repeat; "
                "set txnQuery to a name of the checkpoint, such as its path, or to none outside a query; nothing is written",
                txnAppId=self._options.job and self._options.job[0],
            )
        return found

    @advised
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, ordered=False)

    @advised
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``df.writeStream``: batches of a checkpoint, by their number."""

    @advised
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = _identity()
        named = self._options.writer_id
        name = query if named is None else f"{named}#{query}" if self._options.reset_writer else named
        # If the name contains the query's id, all batches from before queries were recorded belong to that query.
        replaces = self._options.replaces_query or ("" if name == named else query)
        source = QuerySource(query=query, run=_property(_RUN) or "", replaces=replaces)
        return self._write(iterator, name, batch, source, ordered=True)

    @advised
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for written in parts_of(messages, self._options).values():
            for message in written:
                if message.batch != batchId:
                    raise InternalError(
                        "Spark commits a different batch than its tasks wrote", batch=batchId, task=message.batch
                    )
        self._commit(messages, ordered=True)

    @advised
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def _property(name: str) -> str | None:
    context = TaskContext.get()
    value = context.getLocalProperty(name) if context else None
    return None if value is None else str(value)


def _identity() -> tuple[str, int]:
    """Query and batch of this task: the same after every restart from the checkpoint."""
    query, batch = _property(_QUERY), _property(_BATCH)
    if query is None or batch is None:
        raise InternalError("Spark does not pass the query and batch to its tasks", query=query, batch=batch)
    return query, int(batch)
