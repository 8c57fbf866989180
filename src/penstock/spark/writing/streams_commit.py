"""How the driver commits a batch whose rows go to several streams.

Each stream has a transaction of its own, decided under its own (writer, batch). First all transactions are filled, and
only then the first one is decided. So bad rows, missing streams, quotas and full disks fail a batch as a whole. A crash
between two decisions is repaired by the repeat of the batch: it is a no-op in the streams that have the batch.
Source: docs/design/0016-sink.md, "Several streams".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.spark.connect import Services
from penstock.spark.options import WriteOptions
from penstock.spark.writing.batch_commit import BatchCommit, claim
from penstock.spark.writing.messages import RoutedWritten, TaskWritten

T = TypeVar("T")

_STREAMS_AT_ONCE = 16  # streams in one step of a commit


def parts_of(messages: Iterable[object], options: WriteOptions) -> dict[StreamName, list[TaskWritten]]:
    """What the tasks wrote, by stream in the order of names. Messages of failed tasks are None and left out."""
    found: dict[StreamName, list[TaskWritten]] = {}
    for message in messages:
        if isinstance(message, RoutedWritten):
            for stream, written in message.parts:
                found.setdefault(stream, []).append(written)
        elif isinstance(message, TaskWritten):
            found.setdefault(options.stream, []).append(message)
    return dict(sorted(found.items()))


class StreamsCommit:
    """The commits of one batch in all streams that have rows. ``run`` may be called again after a failure."""

    def __init__(
        self,
        options: WriteOptions,
        parts: dict[StreamName, list[TaskWritten]],
        *,
        ordered: bool,
        one_job: bool = False,
    ) -> None:
        if len(parts) > options.max_streams:
            raise InvalidArgumentError(
                "rows name more streams than option max_streams allows; check the column, or raise the option",
                max_streams=options.max_streams,
                streams=len(parts),
            )
        self._options = options
        self._parts = parts
        self._commits = {
            stream: BatchCommit(options.of(stream), written, ordered=ordered, one_job=one_job)
            for stream, written in parts.items()
        }

    async def run(self, services: Services) -> Sequence[StreamName]:
        """Commit the rows. Returns the streams that had the batch before.

        Raises as ``BatchCommit.prepare``: nothing is committed, unless an earlier run was interrupted. After an error of
        ``BatchCommit.decide`` the batch may be committed in some streams.
        """
        with_rows = [item for item in self._commits.values() if not item.is_empty]
        await _each(with_rows, lambda item: item.prepare(services))
        known: list[StreamName] = []

        async def decide(stream: StreamName) -> None:
            commit, first = self._commits[stream], self._parts[stream][0]
            if not commit.is_empty:
                is_new = await commit.decide(services)
            else:
                # Records which query writes here, even without rows.
                is_new = first.source is None or await claim(services, self._options.of(stream), first)
            if not is_new:
                known.append(stream)

        await _each(list(self._commits), decide)
        return sorted(known)

    async def abort(self, services: Services) -> None:
        """Abort the transactions that this object began, unless their outcome is already decided."""
        for commit in self._commits.values():
            await commit.abort(services)

    @property
    def unused(self) -> list[tuple[StreamName, UUID]]:
        """The shared transactions that tasks joined but that hold nothing of the batch."""
        return [
            (stream, transaction)
            for stream, written in self._parts.items()
            for transaction in sorted({item.shared.transaction for item in written if item.shared is not None})
            if transaction not in self._commits[stream].transactions
        ]


async def _each(items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Do the work for all items, some at the same time. After a failure the others are cancelled."""
    limit = asyncio.Semaphore(_STREAMS_AT_ONCE)

    async def one(item: T) -> None:
        async with limit:
            await work(item)

    async with asyncio.TaskGroup() as running:
        for item in items:
            running.create_task(one(item))
