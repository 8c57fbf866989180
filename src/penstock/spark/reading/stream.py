# ruff: noqa: N802 - Spark names these methods.
"""A streaming query's source: which offsets a batch spans, what it reads, and what it publishes for retention.

Lives in one Python process on the driver for as long as the query runs, however many streams it reads; Spark kills it
without a word. What must survive is in Spark's checkpoint and in the subscriber's cut, nothing else. Order of calls:
docs/design/0009-spark.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, ScopeNotFoundError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.model.queries import QuerySource
from penstock.spark.choice import Named, chosen, chosen_at_start
from penstock.spark.connect import RETRY_S, Connector, Link, Services, link
from penstock.spark.lags import BatchLag
from penstock.spark.options import Moment, ReadOptions
from penstock.spark.reading.boundaries import Limit
from penstock.spark.reading.following import Bound, check_offset
from penstock.spark.reading.losses import say
from penstock.spark.reading.one_stream import GONE, OneStream, advance, exists
from penstock.spark.reading.partition import read_partition
from penstock.spark.reading.peers import Peers, Report, Seen, State, Watch, has_changed, with_news
from penstock.spark.reading.plan import Share, together
from penstock.spark.reading.planning import shares_for
from penstock.spark.reading.positions import Offset, Offsets, is_new, many_to_json, offsets_of, to_cut
from penstock.spark.reading.segment_reads import segment_infos
from penstock.spark.reading.subscription import subscribe, subscribe_all
from penstock.spark.reading.times import time_bound_us
from penstock.spark.reasons import readable, readable_items
from penstock.spark.schema import APPEND_TIME, EVENT_TIME_BOUND
from penstock.spark.worker.plan_access import access_by_stream
from penstock.spark.worker.spans import header_of, spark_span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LONG_POLL_S = 1.0
"""How long ``latestOffset`` waits after its last answer if nothing is new. Otherwise Spark asks every 10 ms."""

_APART_S = 0.04
"""The same in a query with a source of another store, whose events this source does not see."""

LISTING_S = 1.0
"""How often a query looks for new streams."""

_LISTING_SHARE = 20
"""A listing that takes long is repeated only after so many times as long."""

_PAUSES_S = (0.005, 0.01, 0.02, 0.04)
_PAUSE_PER_SEGMENT_S = 0.001
"""The length of every segment is requested; a stream with a thousand segments is checked once a second."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Micro-batches of streams, with admission control, ``AvailableNow`` and, if asked for, a subscriber."""

    def __init__(
        self, connector: Connector, options: ReadOptions, schema: StructType, peers: Peers | None = None
    ) -> None:
        if isinstance(options.end, Moment):
            raise InvalidArgumentError(
                "a streaming read can only end at a cut; read a range of times with spark.read", option="end_timestamp"
            )
        if options.end in ("earliest", "latest"):
            raise InvalidArgumentError(
                "a streaming read can only end at a cut; trigger(availableNow=True) stops at the latest",
                end_stream_cut=options.end,
            )
        self._connector = connector
        self._options = options
        self._schema = schema
        self._peers, self._watch = peers, Watch()
        self._answered_at: float | None = None
        self._woken: tuple[str, ...] = ()
        self._idle_at: dict[str, Any] | None = None
        self._initial: Offsets | None = None
        self._streams: dict[StreamName, OneStream] = {}
        self._fixed: tuple[StreamName, ...] | None = None
        self._list_at = 0.0
        self._lease: UUID | None = None
        self._turn = 0
        self._batch_lag = BatchLag()
        # Spark gives a source neither query nor checkpoint. An id in the checkpoint identifies the query.
        self._made_up, self._run = uuid4().hex, uuid4().hex

    def _server(self) -> Link:
        return link(self._connector, self._options.controller)

    def _stream(self, stream: StreamName) -> OneStream:
        found = self._streams.get(stream)
        if found is None:
            end = self._options.end
            bounds = [Bound(end)] if isinstance(end, StreamCut) else []
            found = OneStream(self._options.of(stream), is_one=self._options.is_of_one, bounds=bounds)
            self._streams[stream] = found
        return found

    @property
    def _is_bounded(self) -> bool:
        return self._fixed is not None or isinstance(self._options.end, StreamCut)

    def _json(self, offsets: Offsets) -> dict[str, Any]:
        """For Spark: in the form of one stream where the options name one."""
        if self._options.is_of_one:
            return offsets[self._options.stream].to_json(self._options.stream)
        return many_to_json(offsets)

    def _offsets(self, found: Mapping[str, Any]) -> Offsets:
        return offsets_of(found, self._options.choice, only=self._options.stream if self._options.is_of_one else None)

    # --- where to start -------------------------------------------------------------------------------------

    @readable
    def initialOffset(self) -> dict[str, Any]:
        """The start of a query without checkpoint. A subscriber is registered at it. The same on every call.

        Another process may answer differently, and Spark asks it when it repeats the first batch. So the start contains
        itself (``from``), the end of the first batch repeats that field, and ``partitions`` uses it. No query is
        refused here: the call may be for a repeat of the owner's first batch.
        """
        if self._initial is None:
            self._initial = self._server().ask(self._begin)
        return self._json(self._initial)

    async def _begin(self, services: Services) -> Offsets:
        streams = self._fixed or await chosen_at_start(services, self._options.choice)
        return await self._begun(services, [self._stream(stream) for stream in streams])

    async def _begun(self, services: Services, streams: Sequence[OneStream]) -> Offsets:
        """Starts of the streams, registered where the query is a subscriber."""
        async with asyncio.TaskGroup() as group:
            asked = {one.stream: group.create_task(one.start_cut(services)) for one in streams}
        cuts = {stream: task.result() for stream, task in asked.items()}
        name = self._options.subscriber
        if name is not None and self._options.is_of_one:
            for one in streams:
                one.subscription = await subscribe(services, one.stream, name, cuts[one.stream])
        elif name is not None:
            found = await subscribe_all(services, name, cuts)
            for one in streams:
                one.subscription = found[one.stream]
        async with asyncio.TaskGroup() as group:
            begun = {one.stream: group.create_task(one.begin(services, cuts[one.stream])) for one in streams}
        return {stream: Offset(task.result(), begun=task.result()) for stream, task in begun.items()}

    async def _joined(self, services: Services, begins: Offsets) -> Offsets:
        """Starts of streams that have joined since: at their heads, so that nothing of them is passed over."""
        starts: dict[StreamName, Offset] = {}
        for stream in await self._listed(services, begins):
            if stream in begins:
                continue
            one = self._stream(stream)
            one.options = replace(one.options, start="earliest")
            try:
                starts |= await self._begun(services, [one])
            except* GONE:
                pass  # deleted meanwhile; it would join again if it came again
        return starts

    async def _listed(self, services: Services, begins: Offsets) -> Sequence[StreamName]:
        """The streams of the choice that exist now; none where they were listed a moment ago."""
        options = self._options
        if options.is_of_one or self._fixed is not None or time.monotonic() < self._list_at:
            return self._fixed or ()
        began = time.monotonic()
        try:
            found = await chosen(services, options.choice)
        except ScopeNotFoundError:
            found = ()
        if isinstance(options.choice, Named):
            absent = [item for item in found if item not in begins and not await exists(services, item)]
            if absent and options.fail_on_data_loss:
                raise StreamNotFoundError("option stream names a stream that does not exist", stream=absent[0])
            found = tuple(item for item in found if item not in absent)
        now = time.monotonic()
        self._list_at = now + max(LISTING_S, _LISTING_SHARE * (now - began))
        return found

    # --- where a batch ends ---------------------------------------------------------------------------------

    @readable
    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit from the options. Spark has no combined limit, so a second limit is applied in addition."""
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        if self._options.events_per_trigger is not None:
            return ReadMaxRows(self._options.events_per_trigger)
        return ReadAllAvailable()

    @readable
    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the present end of the stream. Streams that come later are not read."""
        self._server().ask(self._stop_at_present)

    async def _stop_at_present(self, services: Services) -> None:
        streams = await chosen(services, self._options.choice)
        for stream in streams:
            await self._stream(stream).add_bound(services)
        self._fixed = streams

    @readable
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends. If nothing is new, returns ``start`` up to a second after the last answer.

        Spark asks the sources of a query in turn. So this returns at once if another source has events, or if the last
        answer is a second old because another source has waited.

        If a batch begins at ``start``, the batch before is in Spark's commit log. It is published here, because Spark
        calls ``commit`` one batch late, and not at all after the last batch of a run.
        """
        if self._answers_at_once(start):
            return start
        server = self._server()
        begins = self._logged(start)
        self._publish(begins)
        self._release(server)
        self._idle_at, self._woken = None, ()
        self._report(State.ASKED)
        all_begins, ends = server.ask(lambda services: self._next(services, begins, self._limit(limit)))
        self._answered_at = time.monotonic()
        nothing = State.WOKEN if self._woken else State.NOTHING
        self._report(State.NEWS if is_new(begins, ends) else nothing)
        if not is_new(begins, ends):
            if self._options.subscriber is not None:
                server.ask(self._renew, full_s=RETRY_S)
            self._idle_at = start
            return start
        return self._batch_lag.planned(self._json(self._recorded(all_begins, ends)))

    def _recorded(self, begins: Offsets, ends: Offsets) -> Offsets:
        """The ends of a batch as they go into Spark's log: with the query's id, what was lost, and where a first batch
        began."""
        # An id in the log stays there: the query may run once without the subscriber that the id owns.
        known = next((begin.query for begin in begins.values() if begin.query), "")
        query = known or (self._made_up if self._options.subscriber is not None else "")
        found: dict[StreamName, Offset] = {}
        for stream, end in ends.items():
            one = self._stream(stream)
            one.sound = end.positions
            say(stream, end.lost)
            begin = begins[stream]
            begun = begin.positions if begin.is_start and not end.is_over else None
            found[stream] = replace(end, lost=one.late + end.lost, query=query, begun=begun)
            one.late = ()
            if end.is_over:
                del self._streams[stream]
        return found

    async def _renew(self, services: Services) -> None:
        for one in list(self._streams.values()):
            await one.renew(services)

    def _logged(self, found: dict[str, Any]) -> Offsets:
        """Return offsets from Spark's log as valid cuts, without those of streams that the query has left behind."""
        live = {stream: offset for stream, offset in self._offsets(found).items() if not offset.is_over}
        return self._checked(live)

    def _checked(self, offsets: Offsets) -> Offsets:
        if all(self._stream(stream).sound == offset.positions for stream, offset in offsets.items()):
            return offsets

        async def check(services: Services) -> Offsets:
            return {stream: await self._stream(stream).logged(services, item) for stream, item in offsets.items()}

        return self._server().ask(check)

    def _limit(self, limit: ReadLimit) -> Limit:
        """Spark's limit, which with some triggers is everything, combined with the limit that Spark cannot express."""
        options = self._options
        if isinstance(limit, ReadMaxBytes):
            return Limit(bytes=limit.max_bytes, events=options.events_per_trigger)
        if isinstance(limit, ReadMaxRows):
            return Limit(events=limit.max_rows)
        return Limit()

    async def _next(self, services: Services, begins: Offsets, limit: Limit) -> tuple[Offsets, Offsets]:
        """Where the next batch begins, with the streams that have joined, and where it ends."""
        give_up_at = self._give_up_at()
        all_begins = {**begins, **await self._joined(services, begins)}
        for stream, begin in all_begins.items():
            await self._stream(stream).learn_bounds(services, begin.positions)
        while True:
            self._turn += 1
            ends = await advance(services, self._streams, all_begins, limit, turn=self._turn)
            if is_new(begins, ends):
                # Spark's log cannot be undone, so only a cut may be written to it.
                for stream, end in ends.items():
                    if not end.is_over and end.positions != all_begins[stream].positions:
                        await check_offset(services.controller, stream, end.positions)
                return all_begins, ends
            if not await self._has_changed(services, give_up_at):
                return all_begins, ends

    def _give_up_at(self) -> float:
        """Until when to wait. If the other sources took a second since the last answer, one of them has waited for
        all."""
        if self._is_bounded or self._answered_at is None:
            return time.monotonic()
        return self._answered_at + LONG_POLL_S

    def _known(self) -> dict[str, Seen]:
        """The segments of all streams, as they were seen last."""
        return {name: seen for one in self._streams.values() for name, seen in one.known.items()}

    async def _has_changed(self, services: Services, give_up_at: float) -> bool:
        """Wait until a segment of this source changes. False: it is time to answer, or another source has events."""
        tries, known = 0, self._known()
        while time.monotonic() < give_up_at:
            pending = self._pending()
            if news := with_news(pending):
                self._watch.answer(news)
                return False
            here = [peer for peer in pending if peer.address == self._options.controller]
            if len(here) < len(pending):
                give_up_at = min(give_up_at, time.monotonic() + _APART_S)
            names = [*known, *(name for peer in here for name in peer.seen)]
            found = await segment_infos(services.segments, names)
            if has_changed(known, found):
                return True
            if news := [peer for peer in here if has_changed(peer.seen, found)]:
                self._watch.answer(news)
                self._woken = tuple(peer.source for peer in news)
                return False
            segments = len(known) + sum(len(peer.seen) for peer in here)
            await asyncio.sleep(max(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)], segments * _PAUSE_PER_SEGMENT_S))
            tries += 1
        return False

    def _pending(self) -> Sequence[Report]:
        return () if self._peers is None else self._watch.pending(self._peers.others())

    def _answers_at_once(self, start: dict[str, Any]) -> bool:
        """Whether another source has just seen that this one has nothing new, but another one has."""
        if self._peers is None or start != self._idle_at:
            return False
        news = with_news(self._pending())
        if not news or not all(self._peers.clears(peer) for peer in news):
            return False
        self._watch.answer(news)
        return True

    def _report(self, state: State) -> None:
        """Write a report for the other sources. A bounded source never waits, so no other source must watch its
        streams."""
        if self._peers is not None:
            idle = state in (State.NOTHING, State.WOKEN) and not self._is_bounded
            self._peers.report(state, self._known() if idle else {}, self._woken)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the stream when the last batch was planned, for Spark's progress report.

        Also where the streams are, who reads, and what the batch leaves unread (``lag``, a list of one entry for each
        stream). Spark has no other place for figures of a Python source.
        """
        seen = {stream: one.seen for stream, one in self._streams.items() if one.seen is not None}
        if not seen:
            return None
        said = {
            "controller": self._options.controller,
            "subscriber": self._options.subscriber,
            "lag": self._batch_lag.measured(self._server()),
        }
        return self._json(seen) | {name: value for name, value in said.items() if value is not None}

    # --- what a batch reads ---------------------------------------------------------------------------------

    @readable
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Shares of the batch between two offsets. The same two offsets give the same events, after a restart too."""
        reached = {stream: offset for stream, offset in self._offsets(end).items() if not offset.is_over}
        started = self._offsets(start)
        begins: dict[StreamName, Offset] = {}
        for stream, offset in reached.items():
            # In a first batch of a stream, ``start`` is this process's answer, which may not be where the batch began.
            begin = started.get(stream) if offset.begun is None else Offset(offset.begun)
            if begin is None:
                raise InvalidCutError("offsets of a batch name different streams; use a new checkpoint", stream=stream)
            begins[stream] = begin
        # Spark restarts a batch without asking for its end: the subscriber is registered here as well.
        # Spark now has the end in its log, so the id in it is that of the checkpoint.
        self._publish(
            {
                stream: replace(begin, query=begin.query or reached[stream].query)
                for stream, begin in self._checked(begins).items()
            }
        )
        with spark_span("plan a micro-batch", {"messaging.system": "penstock"}) as span:
            shares = self._server().ask(lambda services: self._plan(services, begins, reached), full_s=RETRY_S)
            span.set("penstock.partitions", len(shares))
            return [InputPartition(replace(share, trace=header_of(span))) for share in shares]

    async def _plan(self, services: Services, begins: Offsets, ends: Offsets) -> Sequence[Share]:
        options = self._options
        ranges = {
            stream: await self._stream(stream).ranges(services, begins[stream], end) for stream, end in ends.items()
        }
        sizes = {stream: sum(high - low for _, low, high in found) for stream, found in ranges.items()}
        total = sum(sizes.values())
        first = self._lease is None
        self._lease = self._lease or uuid4()
        shares: list[Share] = []
        for stream, found in ranges.items():
            if found:
                shares += await self._stream(stream).shares(
                    services,
                    found,
                    lease=self._lease,
                    with_times=APPEND_TIME in self._schema.names,
                    min_shares=max(1, options.min_partitions * sizes[stream] // total),
                )
        read = [stream for stream, found in ranges.items() if found]
        access = await access_by_stream(self._connector, services, read, valid_s=options.token_s)
        shares = [replace(share, access=access[share.stream]) for share in shares]
        if first and all(share.lease is None for share in shares):
            self._lease = None  # nothing to give back
        if EVENT_TIME_BOUND in self._schema.names:
            starts = [to_cut(stream, begins[stream].positions) for stream in ends]
            bound_us = await time_bound_us(services, starts)
            shares = [replace(share, time_bound_us=bound_us) for share in shares]
        return together(shares, goal_bytes=max(1, -(-total // shares_for(options, total))))

    @readable_items
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._connector, self._options, self._schema, partition)

    # --- what is committed ----------------------------------------------------------------------------------

    @readable
    def commit(self, end: dict[str, Any]) -> None:
        """Publish ``end``, if the query is a subscriber."""
        self._publish(self._logged(end))

    def _publish(self, committed: Offsets) -> None:
        if self._options.subscriber is not None:
            self._server().ask(lambda services: self._published(services, committed), full_s=RETRY_S)

    async def _published(self, services: Services, committed: Offsets) -> None:
        for stream, offset in committed.items():
            await self._stream(stream).publish(services, offset, self._source(offset.query))

    def _source(self, query: str) -> QuerySource:
        """Identifies the publisher. If the checkpoint is still empty, the id is the one that the first offset will
        hold."""
        replaces = self._options.replaces_query or ""
        return QuerySource(query=query or self._made_up, run=self._run, replaces=replaces)

    def _release(self, server: Link) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            server.ask(lambda services: _released(services, lease), full_s=RETRY_S)


async def _released(services: Services, lease: UUID) -> None:
    await services.segments.release_lease(lease)
