# ruff: noqa: N802 - Spark names these methods.
"""A streaming query's source: which offsets a batch spans, what it reads, and what it publishes for retention.

Lives in one Python process on the driver for as long as the query runs; Spark kills it without a word. What must survive
is in Spark's checkpoint and in the subscriber's cut, nothing else. Order of calls: docs/design/0009-spark.md.
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

from penstock.client.moments import entered
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, SegmentNotFoundError
from penstock.model.names import segment_name
from penstock.model.queries import QuerySource
from penstock.model.segments import SegmentId
from penstock.ports.control.layout import Successor
from penstock.ports.data.segments import SegmentInfo
from penstock.spark.connect import RETRY_S, Connector, Link, Services, link
from penstock.spark.options import Moment, ReadOptions
from penstock.spark.reading.bound import Bound
from penstock.spark.reading.boundaries import Boundaries, Limit
from penstock.spark.reading.following import check_offset, later, repaired
from penstock.spark.reading.losses import DELETED, between, say
from penstock.spark.reading.partition import read_partition
from penstock.spark.reading.peers import Peers, Report, Seen, State, Watch, has_changed, seen_of, with_news
from penstock.spark.reading.plan import Share
from penstock.spark.reading.planning import (
    check_loss,
    check_reached,
    holder_of,
    infos,
    left_of,
    plan_shares,
    positions_of,
    resolve,
)
from penstock.spark.reading.positions import Loss, Offset, Positions, in_turn, ranges_of, to_cut
from penstock.spark.reading.subscription import Subscription, of_another, subscribe
from penstock.spark.reasons import readable, readable_items
from penstock.spark.schema import APPEND_TIME

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

LONG_POLL_S = 1.0
"""How long ``latestOffset`` waits after its last answer if nothing is new. Otherwise Spark asks every 10 ms."""

_APART_S = 0.04
"""The same in a query with a source of another store, whose events this source does not see."""

_PAUSES_S = (0.005, 0.01, 0.02, 0.04)
_PAUSE_PER_SEGMENT_S = 0.001
"""Every segment is asked for its length; a stream of a thousand is looked at once a second."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Micro-batches of a stream, with admission control, ``AvailableNow`` and, if asked for, a subscriber."""

    def __init__(
        self, connector: Connector, options: ReadOptions, schema: StructType, peers: Peers | None = None
    ) -> None:
        if isinstance(options.end, Moment):
            raise InvalidArgumentError(
                "a streaming read ends at a cut or never; read a range of times with spark.read", option="end_timestamp"
            )
        if options.end in ("earliest", "latest"):
            raise InvalidArgumentError(
                "a streaming read ends at a cut or never; trigger(availableNow=True) stops at the latest",
                end_stream_cut=options.end,
            )
        self._connector = connector
        self._options = options
        self._schema = schema
        self._peers, self._watch = peers, Watch()
        self._answered_at: float | None = None
        self._known: dict[str, Seen] = {}
        self._woken: tuple[str, ...] = ()
        self._idle_at: dict[str, Any] | None = None
        self._initial: Positions | None = None
        self._subscription: Subscription | None = None
        self._bounds = [Bound(options.end)] if isinstance(options.end, StreamCut) else []
        self._lease: UUID | None = None
        self._turn = 0
        self._late: tuple[Loss, ...] = ()
        self._seen: dict[str, Any] | None = None
        self._sound: Positions | None = None
        # Spark gives a source neither query nor checkpoint. An id in the checkpoint identifies the query.
        self._made_up, self._run = uuid4().hex, uuid4().hex

    def _server(self) -> Link:
        return link(self._connector, self._options.controller)

    # --- where to start -------------------------------------------------------------------------------------

    @readable
    def initialOffset(self) -> dict[str, Any]:
        """The start of a query without checkpoint; as subscriber, registered at it. The same on every call.

        Another process may answer otherwise, and Spark asks it when it repeats the first batch. So the start contains itself
        (``from``), the end of the first batch repeats that field, and ``partitions`` uses it. No query is refused here: the
        call may be for a repeat of the owner's first batch.
        """
        if self._initial is None:
            self._initial = self._server().ask(self._begin)
        return Offset(self._initial, begun=self._initial).to_json(self._options.stream)

    async def _begin(self, services: Services) -> Positions:
        options = self._options
        named = options.start if isinstance(options.start, StreamCut) else None
        if named is not None and not await services.controller.cuts.is_valid(options.stream, named):
            check_reached(options.stream, named.positions, await infos(services, options.stream, list(named.positions)))
            # Read as it stands, keys that no segment of it holds would be passed over in silence.
            raise InvalidCutError(
                "option start_stream_cut is no position of this stream: it lacks segments, or has those of another one",
                stream=options.stream,
                segments=", ".join(str(segment) for segment in sorted(named.positions)),
            )
        if options.subscriber is None:
            return await positions_of(services, await resolve(services, options.stream, options.start, "latest"))
        # A subscriber that is known already goes on where it was, unless the user names a start.
        cut = None if options.start is None else await resolve(services, options.stream, options.start, "latest")
        if cut is not None:
            check_reached(options.stream, cut.positions, await infos(services, options.stream, list(cut.positions)))
        self._subscription = await subscribe(services, options.stream, options.subscriber, cut)
        start = await positions_of(services, cut or self._subscription.cut)
        if options.start in ("earliest", "unbounded"):
            # The head may have moved between asking for it and holding it.
            start, _ = await self._above_head(services, start)
        return start

    # --- where a batch ends ---------------------------------------------------------------------------------

    @readable
    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say. Spark knows no joint limit, so a second one is applied beside it."""
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        if self._options.events_per_trigger is not None:
            return ReadMaxRows(self._options.events_per_trigger)
        return ReadAllAvailable()

    @readable
    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at what is there now."""
        self._bounds.append(Bound(self._server().ask(self._tail)))

    async def _tail(self, services: Services) -> StreamCut:
        return await services.controller.cuts.tail(self._options.stream)

    @readable
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends. If nothing is new, returns ``start`` up to a second after the last answer.

        Spark asks the sources of a query in turn. So this returns at once if another source has events, or if the last
        answer is a second old because another source has waited.

        That a batch begins at ``start`` means that the one before is in Spark's commit log: it is published here, because
        Spark's own ``commit`` comes one batch late, and after the last batch of a run not at all.
        """
        if self._answers_at_once(start):
            return start
        begin = self._logged(start)
        server = self._server()
        self._publish(begin)
        self._release(server)
        self._idle_at, self._woken = None, ()
        self._report(State.ASKED)
        end = server.ask(lambda services: self._next(services, begin, self._limit(limit)))
        self._answered_at = time.monotonic()
        nothing = State.WOKEN if self._woken else State.NOTHING
        self._report(nothing if end.positions == begin.positions else State.NEWS)
        if end.positions == begin.positions:
            if self._subscription is not None:
                server.ask(self._subscription.renew, full_s=RETRY_S)
            self._idle_at = start
            return start
        self._sound = end.positions
        say(self._options.stream, end.lost)
        # An id that is in the log stays there: the subscriber that it owns may be left out for a run.
        query = begin.query or (self._made_up if self._options.subscriber is not None else "")
        begun = begin.positions if begin.is_start else None
        end, self._late = replace(end, lost=self._late + end.lost, query=query, begun=begun), ()
        return end.to_json(self._options.stream)

    def _logged(self, found: dict[str, Any]) -> Offset:
        """Return an offset from Spark's log as a valid cut. This reader writes only cuts; an earlier version may not have."""
        offset = Offset.from_json(self._options.stream, found)
        if offset.positions == self._sound:
            return offset
        right = self._server().ask(lambda services: repaired(services.controller, self._options.stream, offset))
        if right is offset:
            self._sound = offset.positions
        return right

    def _limit(self, limit: ReadLimit) -> Limit:
        """What Spark asks for, which with some triggers is everything, beside the limit that Spark cannot express."""
        options = self._options
        if isinstance(limit, ReadMaxBytes):
            return Limit(bytes=limit.max_bytes, events=options.events_per_trigger)
        if isinstance(limit, ReadMaxRows):
            return Limit(events=limit.max_rows)
        return Limit()

    async def _next(self, services: Services, begin: Offset, limit: Limit) -> Offset:
        start = begin.positions
        give_up_at = self._give_up_at()
        if not all(bound.is_learned for bound in self._bounds):
            # Of a stream that was made again, which never had these segments, the bound is that of the new one.
            there, _, _ = await self._existing(services, start)
            for bound in self._bounds:
                await bound.learn(services, to_cut(self._options.stream, there))
        while True:
            end = await self._advanced(services, begin, limit)
            if end.positions != start:
                # What is in Spark's log cannot be taken back, so only a cut may go there.
                await check_offset(services.controller, self._options.stream, end.positions)
                return end
            if not await self._has_changed(services, give_up_at):
                return end

    def _give_up_at(self) -> float:
        """Until when to wait. If the other sources took a second since the last answer, one of them has waited for
        all."""
        if self._bounds or self._answered_at is None:
            return time.monotonic()
        return self._answered_at + LONG_POLL_S

    async def _has_changed(self, services: Services, give_up_at: float) -> bool:
        """Wait until a segment of this source changes. False: it is time to answer, or another source has events."""
        tries = 0
        while time.monotonic() < give_up_at:
            pending = self._pending()
            if news := with_news(pending):
                self._watch.answer(news)
                return False
            here = [peer for peer in pending if peer.address == self._options.controller]
            if len(here) < len(pending):
                give_up_at = min(give_up_at, time.monotonic() + _APART_S)
            found = await services.segments.infos([*self._known, *(name for peer in here for name in peer.seen)])
            if has_changed(self._known, found):
                return True
            if news := [peer for peer in here if has_changed(peer.seen, found)]:
                self._watch.answer(news)
                self._woken = tuple(peer.source for peer in news)
                return False
            segments = len(self._known) + sum(len(peer.seen) for peer in here)
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
        stream."""
        if self._peers is not None:
            idle = state in (State.NOTHING, State.WOKEN) and not self._bounds
            self._peers.report(state, self._known if idle else {}, self._woken)

    async def _advanced(self, services: Services, begin: Offset, limit: Limit) -> Offset:
        stream, controller = self._options.stream, services.controller
        start, known, lost = await self._existing(services, begin.positions)
        start, ahead = in_turn(start, begin.ahead)
        at = await entered(controller, stream, start, await self._successors(services, start, known), ahead)
        known |= await infos(services, stream, [segment for segment in at if segment not in known])
        # A successor can itself be truncated already.
        if at != start:
            at, known, more = await self._existing(services, at)
            lost += more
        ends = self._ends(at, known)
        self._seen = Offset(at | ends).to_json(stream)
        self._known = {segment_name(stream, segment): seen_of(known.get(segment)) for segment in at}
        self._turn += 1
        boundaries = Boundaries(services.segments, stream)
        reached = await boundaries.advance(at, ends, limit, turn=self._turn)
        # What this batch finishes gives way to its successors at once, so that it may be truncated once committed.
        followed = await self._successors(services, reached, known)
        behind = await entered(controller, stream, reached, followed, ahead)
        _, ahead = in_turn(behind, ahead)
        return Offset(behind, {item: reached[item] for item in reached if item not in behind}, lost, ahead)

    async def _existing(
        self, services: Services, start: Positions
    ) -> tuple[Positions, dict[SegmentId, SegmentInfo | None], tuple[Loss, ...]]:
        """Positions as far as the stream still has them, the state of their segments, and what was passed over."""
        options = self._options
        known = await infos(services, options.stream, list(start))
        check_reached(options.stream, start, known)
        if all(info is not None and info.start_offset <= max(0, start[item]) for item, info in known.items()):
            # A deleted stream that can be restored keeps its segments, sealed and empty. Another stream may have its
            # name.
            empty = [item for item, info in known.items() if info and info.sealed and info.start_offset == info.length]
            try:
                if empty:
                    await services.controller.layout.ranges(options.stream, empty)
            except SegmentNotFoundError:
                return await self._made_again(services, start)
            return start, known, ()
        try:
            positions, passed = await self._above_head(services, start)
        except SegmentNotFoundError:
            return await self._made_again(services, start)
        for segment, info in known.items():
            # A waiting segment is checked when it is started. Before that, an offset in it would not be a cut.
            if info is not None and 0 <= positions.get(segment, -1) < info.start_offset:
                positions[segment] = info.start_offset
                passed.append(segment)
        for segment in sorted(set(passed)):
            begin = positions.get(segment)
            check_loss(
                options.stream,
                segment,
                max(0, start[segment]),
                min(positions.values()) if begin is None else begin,
                fail=options.fail_on_data_loss,
            )
        lost = await between(services, options.stream, start, positions)
        return positions, await infos(services, options.stream, list(positions)), lost

    async def _made_again(
        self, services: Services, start: Positions
    ) -> tuple[Positions, dict[SegmentId, SegmentInfo | None], tuple[Loss, ...]]:
        """As ``_existing``, of a stream that has none of the segments: it was deleted, and another one has its name."""
        options = self._options
        if options.subscriber is not None:
            raise of_another(f"{options.stream.scope}/{options.subscriber}", options.stream)
        if options.fail_on_data_loss:
            raise InvalidCutError(
                "the stream was deleted and made again; use a new checkpoint location, or fail_on_data_loss=false to go on "
                "at the head of the new one",
                stream=options.stream,
                segments=", ".join(str(segment) for segment in sorted(start)),
            )
        positions = await positions_of(services, await services.controller.cuts.head(options.stream))
        lost = [Loss(segment=item, start=max(0, start[item]), end=None, rule=DELETED) for item in sorted(start)]
        lost += [Loss(segment=item, start=0, end=offset) for item, offset in positions.items() if offset > 0]
        return positions, await infos(services, options.stream, list(positions)), tuple(lost)

    async def _above_head(self, services: Services, start: Positions) -> tuple[Positions, list[SegmentId]]:
        """The later of ``start`` and the head, and which segments of ``start`` lie before the head."""
        stream = self._options.stream
        head = await positions_of(services, await services.controller.cuts.head(stream))
        return await later(services.controller, stream, start, head)

    async def _successors(
        self, services: Services, positions: Positions, known: Mapping[SegmentId, SegmentInfo | None]
    ) -> dict[SegmentId, Sequence[Successor]]:
        """What follows each segment that is read to its end and sealed, as far as the query's bounds reach."""
        found: dict[SegmentId, Sequence[Successor]] = {}
        for segment, offset in positions.items():
            info = known.get(segment)
            ended = info is not None and info.sealed and offset >= info.length
            if ended and all(bound.goes_on_behind(segment) for bound in self._bounds):
                found[segment] = await services.controller.layout.successors(self._options.stream, segment)
        return found

    def _ends(self, positions: Positions, known: Mapping[SegmentId, SegmentInfo | None]) -> dict[SegmentId, int]:
        """How far each started segment can be read now."""
        ends: dict[SegmentId, int] = {}
        for segment, offset in positions.items():
            info = known[segment]
            if offset >= 0 and info is not None:
                end = min([info.length, *(bound.end_of(segment, info.length) for bound in self._bounds)])
                ends[segment] = max(offset, end)
        return ends

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What was there when the last batch was made, for Spark's progress report."""
        return self._seen

    # --- what a batch reads ---------------------------------------------------------------------------------

    @readable
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Shares of the batch between two offsets. The same two offsets give the same events, after a restart too."""
        stream = self._options.stream
        reached = Offset.from_json(stream, end)
        if reached.begun is not None:
            # In a first batch, ``start`` is this process's answer, which may not be where the batch began.
            start = Offset(reached.begun).to_json(stream)
        ranges = ranges_of(Offset.from_json(stream, start), reached)
        # Spark restarts a batch without asking for its end: the subscriber is registered here as well.
        begin = self._logged(start)
        # Spark now has the end in its log, so the id in it is that of the checkpoint.
        self._publish(replace(begin, query=begin.query or reached.query))
        shares = self._server().ask(lambda services: self._plan(services, ranges), full_s=RETRY_S)
        return [InputPartition(share) for share in shares]

    async def _plan(self, services: Services, ranges: Sequence[tuple[SegmentId, int, int]]) -> Sequence[Share]:
        options = self._options
        kept, lost = await left_of(services, options.stream, ranges, fail=options.fail_on_data_loss)
        say(options.stream, lost)
        # Deleted after the batch was planned. Its offset is in the log already, so the next batch reports the loss.
        self._late += lost
        first = self._lease is None
        self._lease = self._lease or uuid4()
        shares = await plan_shares(
            services,
            options,
            kept,
            lease=self._lease,
            holder=holder_of(options, "query"),
            with_times=APPEND_TIME in self._schema.names,
            fresh=True,
        )
        if first and all(share.lease is None for share in shares):
            self._lease = None  # nothing to give back
        return shares

    @readable_items
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._connector, self._options, self._schema, partition)

    # --- what is committed ----------------------------------------------------------------------------------

    @readable
    def commit(self, end: dict[str, Any]) -> None:
        """Publish ``end``, if the query is a subscriber."""
        self._publish(self._logged(end))

    def _publish(self, committed: Offset) -> None:
        if self._options.subscriber is not None:
            self._server().ask(lambda services: self._subscribed(services, committed), full_s=RETRY_S)

    def _source(self, query: str) -> QuerySource:
        """Identifies who publishes. If the checkpoint is still empty, the id is the one that the first offset will hold."""
        replaces = self._options.replaces_query or ""
        return QuerySource(query=query or self._made_up, run=self._run, replaces=replaces)

    async def _subscribed(self, services: Services, offset: Offset) -> None:
        options, committed, source = self._options, offset.positions, self._source(offset.query)
        if self._subscription is None and options.subscriber is not None:
            check_reached(options.stream, committed, await infos(services, options.stream, list(committed)))
            cut = to_cut(options.stream, committed)
            self._subscription = await subscribe(services, options.stream, options.subscriber, cut, source)
        if self._subscription is None:
            return
        if offset.query:
            await self._subscription.publish(services, committed, source)
        else:
            # An id that is in no checkpoint yet may be lost with this process. It must not become the owner, nor move a
            # subscriber that another query may own later. Its first batch publishes.
            await self._subscription.check(services, source)

    def _release(self, server: Link) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            server.ask(lambda services: _released(services, lease), full_s=RETRY_S)


async def _released(services: Services, lease: UUID) -> None:
    await services.segments.release_lease(lease)
