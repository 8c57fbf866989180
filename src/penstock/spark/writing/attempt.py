"""How one task attempt writes its rows.

A few rows go to the driver in the task's message. More rows of one stream are sent to the store (``sending``). Where
rows name their streams, the streams with most rows are sent, and the rest stays in the message. Source:
docs/design/0016-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext

from penstock.codec.events import EVENT_MAX_BYTES
from penstock.model.errors import EventTooLargeError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.queries import QuerySource
from penstock.model.values.dataclass import dataclass
from penstock.spark.arrays import integers
from penstock.spark.connect import RETRY_S, Connector, Services, patiently
from penstock.spark.options import WriteOptions
from penstock.spark.records import record_events
from penstock.spark.writing.batch_commit import is_repeat, last_batch
from penstock.spark.writing.direct_attempt import HELD_BYTES
from penstock.spark.writing.frames import EVENT, KEY, event_bytes, inline_rows, largest_event
from penstock.spark.writing.keep_alive import KeepAlive
from penstock.spark.writing.messages import RoutedWritten, TaskWritten
from penstock.spark.writing.sending import Sending
from penstock.spark.writing.targets import RowTargets

INLINE_BYTES = 128 << 10
"""The most that goes to the driver in a task's message: 8,000 tasks stay within the default limit of Spark's driver."""

_STREAM_BYTES = 1024
"""What each stream but the first adds to a message."""


@dataclass(slots=True)
class _Lane:
    """The rows of one stream. They are held until there are too many for a message, and then sent."""

    written: TaskWritten
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
    sending: Sending | None = None
    is_repeat: bool = False


class Attempt:
    """One attempt of a task.

    ``key`` belongs to the transactions that all attempts of this run of the batch share, one in each stream. ``writer``:
    the writer's name, without the stream. ``ordered``: as ``is_repeat``.
    """

    def __init__(
        self,
        connector: Connector,
        options: WriteOptions,
        *,
        keyed: bool,
        target_columns: Sequence[str] = (),
        key: UUID,
        writer: str,
        batch: int,
        source: QuerySource | None,
        ordered: bool,
    ) -> None:
        self._connector = connector
        self._options = options
        self._keyed = keyed
        self._targets = RowTargets(options, target_columns)
        self._key = key
        self._writer = writer
        self._batch = batch
        self._source = source
        self._ordered = ordered
        context = TaskContext.get()
        self._partition = context.partitionId() if context else 0
        self._lanes: dict[StreamName, _Lane] = {}
        if options.target is not None:
            self._lane(options.target)

    def hold(self, iterator: Iterator[pa.RecordBatch]) -> bool:
        """Hold rows while they fit into a message. Returns whether these are all rows.

        Raises as ``RowTargets.split``; InvalidArgumentError if an event is null, or if there are too many streams.
        """
        for rows in iterator:
            if rows.num_rows:
                self._add(rows)
                if self._is_too_much():
                    return False
        return True

    def message(self) -> TaskWritten | RoutedWritten:
        """The message of a task whose rows are held or durable. Raises EventTooLargeError."""
        parts: list[tuple[StreamName, TaskWritten]] = []
        for stream, lane in self._lanes.items():
            largest = max((largest_event(rows) for rows in lane.held), default=0)
            if largest > EVENT_MAX_BYTES:
                raise EventTooLargeError("event is too large", length_bytes=largest, limit_bytes=EVENT_MAX_BYTES)
            held = inline_rows(lane.held) if lane.held else None
            parts.append((stream, replace(lane.written, inline=held)))
        return RoutedWritten(tuple(parts)) if self._options.target is None else parts[0][1]

    async def write(self, services: Services, iterator: Iterator[pa.RecordBatch]) -> TaskWritten | RoutedWritten:
        """Write the rows durably that do not fit into the message. If it fails, the transactions are abandoned."""
        lease = KeepAlive(self._connector, self._options.controller, self._options.lease_ms)
        try:
            try:
                await self._send_largest(services, lease)
                for rows in iterator:
                    if rows.num_rows:
                        self._add(rows)
                        await self._send_largest(services, lease)
                        lease.check()
                for lane in self._lanes.values():
                    if lane.sending is not None:
                        transaction, shared = await lane.sending.finish()
                        lane.written = replace(lane.written, transaction=transaction, shared=shared)
            except BaseException:
                for sending in self._sendings():
                    await sending.cancel()
                raise
            return self.message()
        finally:
            lease.stop()

    def _lane(self, stream: StreamName) -> _Lane:
        found = self._lanes.get(stream)
        if found is None:
            if len(self._lanes) >= self._options.max_streams:
                raise InvalidArgumentError(
                    "rows name more streams than option max_streams allows; check the column, or raise the option",
                    max_streams=self._options.max_streams,
                    next=stream,
                )
            empty = TaskWritten(
                f"{self._writer}/{stream}", self._batch, None, 0, 0, self._partition, source=self._source
            )
            found = self._lanes[stream] = _Lane(empty)
        return found

    def _add(self, rows: pa.RecordBatch) -> None:
        """Hold rows, as columns of plain events and keys."""
        plain = self._plain(rows)
        for stream, places in self._targets.split(rows):
            lane = self._lane(stream)
            if lane.is_repeat:
                continue
            mine = plain if places is None else plain.take(integers(places))
            lane.held.append(mine)
            lane.held_bytes += mine.nbytes
            lane.written = replace(
                lane.written, rows=lane.written.rows + mine.num_rows, size_bytes=lane.written.size_bytes + mine.nbytes
            )

    def _plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._options.records:
            events, keys = record_events(rows, self._options.routing_key_column)
            return pa.record_batch({EVENT: events, KEY: keys} if self._keyed else {EVENT: events})
        columns = {EVENT: event_bytes(rows.column(self._options.event_column))}
        if self._keyed:
            columns[KEY] = rows.column(self._options.routing_key_column)
        return pa.record_batch(columns)

    def _is_too_much(self) -> bool:
        held = [lane.held_bytes for lane in self._lanes.values() if lane.held]
        return bool(held) and sum(held) + (len(held) - 1) * _STREAM_BYTES > INLINE_BYTES

    async def _send_largest(self, services: Services, lease: KeepAlive) -> None:
        """Send rows until the held ones fit into a message: of the streams that are open, then of the largest."""
        for stream, lane in self._lanes.items():
            if lane.sending is not None and lane.held:
                await self._send(services, stream, lane, lease)
        while self._is_too_much():
            stream, lane = max(self._lanes.items(), key=lambda item: item[1].held_bytes)
            await self._send(services, stream, lane, lease)

    async def _send(self, services: Services, stream: StreamName, lane: _Lane, lease: KeepAlive) -> None:
        held, lane.held, lane.held_bytes = lane.held, [], 0
        if lane.sending is None:
            options, written = self._options.of(stream), lane.written
            last = await patiently(
                lambda: last_batch(services, options, written.writer, written.source), full_s=RETRY_S
            )
            if is_repeat(last, self._batch, writer=written.writer, ordered=self._ordered):
                lane.is_repeat = True
                lane.written = replace(written, rows=0, size_bytes=0)
                return
            lane.sending = Sending(
                services, options, key=self._key, partition=self._partition, keyed=self._keyed, lease=lease
            )
            await lane.sending.open(held[0])
        for rows in held:
            await lane.sending.take(rows)
            # One stream bounds itself. Together they would hold as much for each stream.
            while len(self._lanes) > 1 and sum(item.held_bytes for item in self._sendings()) > HELD_BYTES:
                await max(self._sendings(), key=lambda item: item.held_bytes).relieve()

    def _sendings(self) -> list[Sending]:
        return [lane.sending for lane in self._lanes.values() if lane.sending is not None]
