"""The asynchronous API of one stream: its state, policy, readers, writers and transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar, Unpack, overload
from uuid import UUID

from penstock.client.erasure import AsyncErasures, Positions
from penstock.client.erasure_proof import Progress
from penstock.client.frames import ArrowTable, RowWriter
from penstock.client.moments import past_ms
from penstock.client.options import (
    Finish,
    Position,
    Start,
    check_printable,
    cut_of,
    position_of,
    settings_of,
    start_of,
    tags_of,
)
from penstock.client.reading.reader import AsyncReader, OnTruncated, ReaderOptions
from penstock.client.retention import AsyncRetention
from penstock.client.retry import Backoff
from penstock.client.serializing.events import form_of
from penstock.client.serializing.serializer import Serializer
from penstock.client.serializing.typed_reader import AsyncTypedReader
from penstock.client.serializing.typed_transactions import AsyncTypedTransaction
from penstock.client.serializing.typed_writer import AsyncTypedWriter
from penstock.client.tables.entries import whole
from penstock.client.transaction_report import describe_transaction, txn_of
from penstock.client.writing.layout import StreamLayout
from penstock.client.writing.settings import TransactionOptions, WriterOptions, WriterSettings
from penstock.client.writing.transaction import AsyncTransaction
from penstock.client.writing.writer import AsyncWriter
from penstock.model.answers.scaling import StreamScaling
from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.answers.transactions import TransactionDescription
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import SEGMENTS_MAX, RetentionPolicy, ScalingPolicy, StreamConfig
from penstock.model.segments import KeyRange, SegmentId, even_ranges
from penstock.ports.clock import Clock
from penstock.ports.control.layout import ScaleResult, ScaleStatus
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.streams import StreamDescription, change_config
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.control.transactions import OpenTransaction
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

T = TypeVar("T")


class Unchanged:
    """The value of an argument that was not given, where None means something."""


UNCHANGED: Final = Unchanged()


class AsyncStream:
    """One stream by name. Making one does no I/O; calls raise StreamNotFoundError where there is no such stream."""

    def __init__(
        self, name: StreamName, segments: SegmentService, controller: ControlPlane, clock: Clock, rng: Rng
    ) -> None:
        self.name = name
        self._clock = clock
        self._segments = segments
        self._controller = controller
        self.rng = rng

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    async def describe(self) -> StreamDescription:
        """The stream's current state: segments, sizes, policy, subscribers, and what holds the head."""
        return await self._controller.streams.describe(self.name)

    async def exists(self) -> bool:
        """Whether there is such a stream, sealed or not."""
        return await self._controller.streams.exists(self.name)

    async def config(self) -> StreamConfig:
        """The configuration that the user set: scaling, retention, tags."""
        return await self._controller.streams.config(self.name)

    async def head(self) -> StreamCut:
        """Where data begins: the first position that was not truncated."""
        return await self._controller.cuts.head(self.name)

    async def tail(self) -> StreamCut:
        """Where data ends now: after the last durable event."""
        return await self._controller.cuts.tail(self.name)

    async def truncate(self, cut: StreamCut | str) -> None:
        """Delete everything before ``cut``. The cut may be given as text (``StreamCut.to_text``).

        Raises InvalidArgumentError (not a cut), InvalidCutError (not one of this stream), StreamSealedError,
        RetentionHoldError.
        """
        await self._controller.streams.truncate(self.name, cut_of(cut))

    async def seal(self) -> None:
        """Seal the stream: it takes no more events; readers end after the last one. Idempotent."""
        await self._controller.streams.seal(self.name)

    async def delete(self, *, seal: bool = False) -> None:
        """Delete the sealed stream and its data; with ``seal``, also a stream that is not sealed. A refused call
        changes nothing.

        Raises StreamNotSealedError (not with ``seal``), RetentionHoldError.
        """
        await self._controller.streams.delete(self.name, seal=seal)

    async def update(
        self,
        *,
        retention: RetentionPolicy | Unchanged | None = UNCHANGED,
        scaling: ScalingPolicy | Unchanged = UNCHANGED,
        segments: int | Unchanged = UNCHANGED,
        tags: Sequence[str] | Unchanged = UNCHANGED,
    ) -> StreamConfig:
        """Change the given ones of ``retention``, ``scaling``, ``segments`` (the minimum number) and ``tags``, keep the
        others, and return the new configuration.

        Raises InvalidArgumentError, StreamSealedError.
        """

        def changed(config: StreamConfig) -> StreamConfig:
            if not isinstance(retention, Unchanged):
                config = replace(config, retention=retention)
            if not isinstance(scaling, Unchanged):
                config = replace(config, scaling=scaling)
            if not isinstance(segments, Unchanged):
                config = replace(config, scaling=replace(config.scaling, min_segments=segments))
            if not isinstance(tags, Unchanged):
                config = replace(config, tags=tags_of(tags))
            return config

        return await change_config(self._controller.streams, self.name, changed)

    async def scale(
        self,
        segments: int | None = None,
        *,
        sealed: Sequence[SegmentId] = (),
        new_ranges: Sequence[KeyRange] = (),
    ) -> ScaleResult:
        """Replace all active segments by ``segments`` equal ones, or the ``sealed`` ones by ``new_ranges``.

        Returns once the old segments are sealed. Raises ScaleConflictError, StreamSealedError and InvalidArgumentError:
        other than 1 to 10,000 segments, fewer than the stream's minimum, or ranges that do not match the sealed segments.
        """
        if (segments is None) == (not sealed):
            raise InvalidArgumentError("give either a number of segments, or the segments to seal and the new ranges")
        if segments is not None:
            # Checked here: the ranges are made in this process, and a number such as 10**9 takes all of its memory.
            if whole("segments", segments, least=1) > SEGMENTS_MAX:
                raise InvalidArgumentError(f"a stream must have 1 to {SEGMENTS_MAX} segments", segments=segments)
            current = await self._controller.layout.current(self.name)
            sealed = [item.segment for item in current]
            new_ranges = even_ranges(segments)
        for keys in new_ranges:
            if not isinstance(keys, KeyRange):
                raise InvalidArgumentError("new_ranges must be KeyRange objects", given=repr(keys)[:60])
        result = await self._controller.layout.scale(self.name, sealed=sealed, new_ranges=new_ranges)
        backoff = Backoff(self.rng)
        while await self._controller.layout.scale_status(self.name, result.epoch_before) is ScaleStatus.IN_PROGRESS:
            await backoff.sleep()
        return result

    async def explain_scaling(self) -> StreamScaling:
        """The rates of the active segments, what scaling by rate would do now and why, and its last changes."""
        return await self._controller.layout.scaling(self.name)

    @property
    def retention(self) -> AsyncRetention:
        """The stream's retention: its policy, ``plan``, ``explain``, ``reclaim``, ``forecast``, ``holds``."""
        return AsyncRetention(self.name, self._controller, self.rng)

    async def subscribers(self) -> Sequence[SubscriberInfo]:
        """Reader groups, as ``scope/group``, whose progress holds the stream's data: where they are, how far behind in
        bytes, events and time, and what each keeps."""
        return await self._controller.subscribers.describe(self.name)

    async def set_acknowledged(
        self,
        name: str,
        to: Position,
        *,
        dry_run: bool = False,
    ) -> SubscriberMove:
        """Set the acknowledged position of a subscriber, and so what retention may release. It moves no reader:
        ``Store.reset_reader_group`` moves both.

        ``dry_run`` changes nothing. Raises SubscriberNotFoundError, InvalidCutError, TruncatedError (before the head).
        """
        check_printable("name", name)
        position = position_of(to, name="to")
        if position == "head":
            cut = await self._controller.cuts.head(self.name)
        else:
            cut = StreamCut(self.name, {}) if position == "tail" else position
        return await self._controller.subscribers.move(self.name, name, cut, dry_run=dry_run)

    async def remove_subscriber(self, name: str) -> None:
        """Remove a subscription: it no longer holds data. Raises SubscriberNotFoundError."""
        check_printable("name", name)
        await self._controller.subscribers.remove(self.name, name)

    async def erase(
        self,
        positions: Positions,
        *,
        who: str,
        why: str,
        erasure: str | None = None,
        looked_for: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Mapping[str, Any]:
        """Blank events in place, for good, and return the receipt.

        The payload becomes zeros of the same length. Offsets, cuts and checkpoints stay valid. Penstock's readers skip the
        event, other clients get the zeros. No cache, chunk or log file holds the old bytes when this returns.

        Args:
            positions: The events as they were read, or (segment, offset) pairs, or offsets by segment. An empty list
                is refused, unless ``looked_for`` states the search that found none.
            who: For the receipt: who requests it, in free text.
            why: For the receipt: the reason, in free text.
            erasure: Its id. A repeat of the same request, or of some of its events, returns the receipt. None: a new id.
            looked_for: For the receipt: how the positions were found. A JSON object, without the values themselves.
            dry_run: Only count and change nothing; ``holds`` in the result names the holds that would defer the
                erasure.
            progress: Called with the state of the erasure.
        Raises:
            ErasureDeferredError: A hold covers some of the events. The erasure is recorded, and continues once no hold
                does.
            InvalidArgumentError: No event begins there, or there are no positions.
            AlreadyExistsError: The id belongs to another request.
            ErasureWaitsError: It is decided, but attempts fail for some seconds, for example for lack of space. The
                store continues to try; call again with the same id to wait longer.
            StorageFullError: There is no space to record it; nothing is decided.
            ErasureWithdrawnError: It was cancelled.
            TruncatedError: Some of the events were truncated.
            StreamNotFoundError: There is no such stream.

        Once decided it is performed, also after a crash or a cancellation; ``erasures.wait`` returns the receipt.
        """
        return await self.erasures.run(
            positions,
            who=who,
            why=why,
            erasure=erasure,
            looked_for=looked_for,
            dry_run=dry_run,
            progress=progress,
        )

    @property
    def erasures(self) -> AsyncErasures:
        """What was erased of the stream, with receipts."""
        return AsyncErasures(self.name, self._segments, self._controller, self.rng)

    @overload
    def writer(
        self, settings: WriterSettings | None = None, *, serializer: None = None, **options: Unpack[WriterOptions]
    ) -> AsyncWriter: ...

    @overload
    def writer(
        self,
        settings: WriterSettings | None = None,
        *,
        serializer: Serializer[T],
        records: bool = False,
        **options: Unpack[WriterOptions],
    ) -> AsyncTypedWriter[T]: ...

    def writer(
        self,
        settings: WriterSettings | None = None,
        *,
        serializer: Serializer[Any] | None = None,
        records: bool = False,
        **options: Unpack[WriterOptions],
    ) -> AsyncWriter | AsyncTypedWriter[Any]:
        """A writer: use it in a ``with`` or ``async with`` block; without one, the first write opens it, and you close it.

        Without ``settings``, ``options`` are its fields: ``block_bytes``, ``linger_s``, ``max_in_flight``,
        ``max_pending_bytes``, ``deadline_s``. With a ``serializer`` it writes values; with ``records`` too, each value
        is that of a record with a key, headers and a time. Raises InvalidArgumentError for others.
        """
        chosen = settings or settings_of(WriterSettings, "a writer", options)
        form = form_of(serializer, records=records)
        writer = AsyncWriter(self.layout(), self._segments, self.rng, chosen)
        return writer if form is None else AsyncTypedWriter(writer, form)

    async def write_table(self, table: ArrowTable, *, key: str | None = None, event: str | None = None) -> int:
        """Write each row of a table as an event, in order per key. Returns the number of rows, once all are durable.

        Args:
            table: A table, record batch or RecordBatchReader of pyarrow; a DataFrame of Polars or pandas; a relation of
                DuckDB; or any object with ``__arrow_c_stream__``. A reader is read batch by batch, in bounded memory.
            key: The column with the routing keys, of any type that can be text. A null is no key.
            event: The column with the events, binary or text. None: the column ``event`` if there is one, else each row
                becomes a JSON object of all its columns.
        Raises:
            InvalidArgumentError: Not a table, or no such column: nothing is written. A null event, or a value without a form
                in JSON: ``written_before`` counts the rows that are written.
            MissingExtraError: No pyarrow or numpy. Otherwise as ``write`` of a writer.

        Cancelled: some of the first rows are written. Use a transaction to write all rows or none.
        """
        rows = RowWriter(table, key=key, event=event)
        async with self.writer() as writer:
            for events, keys in rows.pieces():
                await (writer.write_arrow if rows.is_arrow else writer.write_many)(events, keys)
        return rows.done

    def layout(self) -> StreamLayout:
        """Where writers of this stream write to."""
        return StreamLayout(self.name, self._controller, self._name_of, self._clock)

    def _name_of(self, segment: SegmentId) -> str:
        return segment_name(self.name, segment)

    @overload
    def reader(self, *, serializer: None = None, **options: Unpack[ReaderOptions]) -> AsyncReader: ...

    @overload
    def reader(
        self, *, serializer: Serializer[T], records: bool = False, **options: Unpack[ReaderOptions]
    ) -> AsyncTypedReader[T]: ...

    def reader(
        self,
        *,
        serializer: Serializer[Any] | None = None,
        records: bool = False,
        start: Start = None,
        end: Finish = None,
        until_tail: bool = False,
        on_truncated: OnTruncated = "raise",
        append_times: bool = False,
    ) -> AsyncReader | AsyncTypedReader[Any]:
        """A reader, not opened: use it in a ``with`` or ``async with`` block; without one, the first read opens it.

        Args:
            serializer: None, or what decodes each event: the reader then returns events with a ``value``.
            records: With a serializer: the values are those of records.
            start: None or "earliest" (or "head"), "latest" (or "tail"), a cut of this stream, or its text; or a datetime
                with a zone. The reader then returns all events that were appended from that time on, and up to one
                block of earlier ones for each segment (docs/how-to/replay.md).
            end: None (never), "latest" (or "tail"; as it is on opening), a cut, or its text; or a datetime with a zone. The
                reader then returns all events that were appended before that time, and up to one block of later ones for
                each segment.
            until_tail: The same as ``end="latest"``.
            on_truncated: What to do where data was truncated before it was read: "raise" TruncatedError, or "skip" it.
            append_times: Ask the store when the events were appended: ``Event.appended_at``. One more request per block.
        Raises:
            InvalidArgumentError: Anything else; a time in the future.
        """
        form = form_of(serializer, records=records)
        begin = start_of(start)
        if isinstance(begin, datetime):
            past_ms(begin, now_ms=self._clock.now_ms())
        if isinstance(end, datetime):
            past_ms(end, now_ms=self._clock.now_ms(), name="end")
        reader = AsyncReader(
            self.name,
            self._segments,
            self._controller,
            self.rng,
            start=begin,
            end=end,
            until_tail=until_tail,
            on_truncated=on_truncated,
            append_times=append_times,
        )
        return reader if form is None else AsyncTypedReader(reader, form)

    @overload
    def transaction(self, *, serializer: None = None, **options: Unpack[TransactionOptions]) -> AsyncTransaction: ...

    @overload
    def transaction(
        self, *, serializer: Serializer[T], records: bool = False, **options: Unpack[TransactionOptions]
    ) -> AsyncTypedTransaction[T]: ...

    def transaction(
        self,
        *,
        serializer: Serializer[Any] | None = None,
        records: bool = False,
        lease_s: float = 30.0,
        writer: str | None = None,
        settings: WriterSettings | None = None,
        **options: Unpack[WriterOptions],
    ) -> AsyncTransaction | AsyncTypedTransaction[Any]:
        """A transaction, not begun: use it in a ``with`` or ``async with`` block, or call ``open``,
        then ``commit`` or ``abort``.

        Args:
            serializer: None, or what encodes each value that is written.
            records: With a serializer: each value becomes that of a record.
            lease_s: How long after this process died the store aborts it: 10 to 600.
            writer: Under which name ``commit(timestamp_ms=...)`` notes times: the same for all transactions of one writer,
                and of no other. A time of a name holds the watermark back until the name notes a later one, or nothing for
                ``timestamp_aggregation_ms`` of the stream.
            settings: Of the writer. Without them, ``options`` are its fields, as for ``writer``.
            options: See ``settings``.
        Raises:
            InvalidArgumentError: A lease, name or option out of range.
        """
        chosen = settings or settings_of(WriterSettings, "a transaction", options)
        form = form_of(serializer, records=records)
        transaction = AsyncTransaction(
            self.name, self._segments, self._controller, self.rng, chosen, lease_s=lease_s, writer=writer
        )
        return transaction if form is None else AsyncTypedTransaction(transaction, form)

    async def describe_transaction(self, transaction: UUID | str) -> TransactionDescription:
        """One transaction, open or ended within the last day: its state, lease, writer, and bytes by segment.

        Raises TransactionNotFoundError, InvalidArgumentError (not an id).
        """
        return await describe_transaction(self._segments, self._controller, self.name, txn_of(transaction))

    async def abort_transaction(self, transaction: UUID | str) -> None:
        """Abort the transaction of any writer: its events are dropped, and its commit fails. Repeating does nothing.

        Raises TransactionNotFoundError, TransactionStateError (committed), InvalidArgumentError (not an id).
        """
        await self._controller.transactions.abort(self.name, txn_of(transaction))

    async def open_transactions(self) -> Sequence[OpenTransaction]:
        """All transactions of the stream that have not ended: whether each is decided, and when it expires."""
        return await self._controller.transactions.list_open(self.name)
