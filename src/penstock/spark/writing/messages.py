"""What tasks of the sink send to the driver."""

from __future__ import annotations

from uuid import UUID

from pyspark.sql.datasource import WriterCommitMessage

from penstock.model.names import StreamName
from penstock.model.queries import QuerySource
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.imports import ImportedChunk


@dataclass(frozen=True)
class SharedWritten:
    """What a task wrote to tier 2 itself: chunks in order, for segments of the transaction that all tasks share.

    No chunks: the task joined the transaction, but could not write to tier 2.
    """

    key: UUID
    transaction: UUID
    chunks: tuple[tuple[SegmentId, tuple[ImportedChunk, ...]], ...] = ()


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports. One of ``transaction``, ``inline`` and ``shared`` (with chunks) holds its rows.

    None of them: it had no rows, or the batch is already committed.

    ``source``: the query and run of the task, if there is one.

    ``transaction``: the task's own, which holds its rows. ``inline``: the rows themselves, as an Arrow stream, if there
    are few.
    """

    writer: str
    batch: int
    transaction: UUID | None
    rows: int
    size_bytes: int
    partition: int = 0
    inline: bytes | None = None
    shared: SharedWritten | None = None
    source: QuerySource | None = None


@dataclass(frozen=True)
class RoutedWritten(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports whose rows name their streams: a part for each stream, in the order of their first rows."""

    parts: tuple[tuple[StreamName, TaskWritten], ...]
