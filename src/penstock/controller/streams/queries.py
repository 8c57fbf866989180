"""Queries about streams, their segments and positions. Only a scale changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.codec.control.streams import HIDDEN, HeadRecord, StreamRecord, StreamState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.retention.facts import look
from penstock.controller.scaling.scaler import Scaler
from penstock.controller.streams.boundary_finder import BoundaryFinder
from penstock.controller.streams.cuts import asked_again, check_bound, check_given, retry_if_moved
from penstock.controller.streams.event_counts import pieces
from penstock.controller.streams.tails import head_positions, load_tail
from penstock.controller.streams.updates import StreamChanges
from penstock.core.cuts.order import at_or_after, segments_between, segments_to_delete, size_till, successors
from penstock.core.retention.facts import StreamCutRecord
from penstock.core.retention.planner import HolderKind, explain
from penstock.core.streams.history import StreamHistory
from penstock.model.answers.scaling import StreamScaling
from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, NotFoundError, SegmentNotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import StreamConfig
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.ports.control.cuts import SegmentSpan
from penstock.ports.control.layout import Endpoint, EpochInfo, ScaleResult, ScaleStatus, Successor
from penstock.ports.control.scopes import PAGE_MAX
from penstock.ports.control.streams import StreamDescription
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.data.space import SegmentSpace


class StreamQueries:
    """Calls of ``ports.control.streams.Streams`` that only read."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def exists(self, stream: StreamName) -> bool:
        try:
            await self._ctx.streams.get(stream)
        except NotFoundError:
            return False
        return True

    async def config(self, stream: StreamName) -> StreamConfig:
        return (await self._ctx.streams.get(stream)).record.config

    async def list(
        self, scope: str, *, tag: str | None = None, after: str = "", limit: int = PAGE_MAX
    ) -> Sequence[str]:
        """Stream names after ``after``, sorted. Raises ScopeNotFoundError."""
        await self._ctx.streams.check_scope(scope)
        prefix = keys.encoded(f"stream/{scope}/")
        position = prefix + keys.encoded(after) if after else None
        page: list[str] = []
        limit = min(limit, PAGE_MAX)
        while len(page) < limit:
            entries = await self._ctx.metadata.scan(prefix, after=position, limit=limit - len(page))
            if not entries:
                break
            position = entries[-1].key
            for entry in entries:
                text = self._ctx.set_aside.text(entry, prefix)
                if text is None:
                    continue
                record = self._ctx.set_aside.read(entry, StreamRecord)
                # An unreadable record counts as present: a call for it reports the damage.
                shown = record is None or record.state not in HIDDEN
                if shown and (tag is None or (record is not None and tag in record.config.tags)):
                    page.append(text)
        return page

    @asked_again
    async def describe(self, stream: StreamName) -> StreamDescription:
        """The current state of the stream, with exact sizes."""
        ctx = self._ctx
        found = await look(ctx, stream)
        view, history, tail, head = found.view, found.history, found.tail.positions, found.first
        head_bytes, tail_bytes = size_till(history, head), size_till(history, tail)
        ranges = explain(found.facts, now_ms=ctx.retention_clock.now_ms())
        # Deleted ones too: their files may wait for a lease, or for the next checkpoint.
        spaces = await ctx.segments.spaces([segment_name(stream, segment) for segment in history.index.ids])
        passed = segments_to_delete(history, None, head)
        on_disk = {segment: spaces.get(segment_name(stream, segment)) for segment in passed}
        freed = sum(
            max(0, history.sealed_lengths.get(segment, 0) - (0 if space is None else _on_disk(space)))
            for segment, space in on_disk.items()
        )
        behind = {segment_name(stream, segment) for segment in passed}
        freed += sum(space.freed_bytes for text, space in spaces.items() if text not in behind)
        return StreamDescription(
            stream=stream,
            config=view.record.config,
            epoch=view.record.epoch,
            sealed=view.record.state is StreamState.SEALED,
            segments=() if view.record.state is StreamState.SEALED else tuple(history.active.segments),
            head=StreamCut(stream, dict(head)),
            tail=StreamCut(stream, dict(tail)),
            size_bytes=tail_bytes - head_bytes,
            written_bytes=tail_bytes,
            subscribers=tuple(
                SubscriberInfo(
                    name=group,
                    generation=item.generation,
                    cut=None if item.cut is None else StreamCut(stream, item.cut),
                    updated_ms=item.updated_ms,
                    lag_bytes=max(0, tail_bytes - size_till(history, found.facts.subscribers[group] or head)),
                    query=item.query,
                )
                for group, item in ((group, found.record_of(group)) for group in found.subscribers)
            ),
            held_by="" if not ranges else _holder(ranges[0].kind, ranges[0].name),
            disk_bytes=sum(_on_disk(space) for space in spaces.values()),
            pending_free_bytes=sum(space.pending_free_bytes for space in spaces.values()),
            freed_bytes=freed,
        )


class Layout:
    """``ports.control.layout.Layout``, whose rules these calls keep."""

    def __init__(
        self, ctx: Context, streams: StreamChanges, endpoint_of: Callable[[str], Endpoint], scaler: Scaler
    ) -> None:
        self._ctx = ctx
        self._streams = streams
        self._endpoint_of = endpoint_of
        self._scaler = scaler

    async def _history(self, name: StreamName) -> tuple[bool, StreamHistory]:
        view = await self._ctx.streams.get(name)
        return view.record.state is StreamState.SEALED, await self._ctx.histories.of(view)

    async def current(self, stream: StreamName) -> Sequence[SegmentRange]:
        """In key order; empty once the stream is sealed."""
        view = await self._ctx.streams.get(stream)
        # Writers need only the active epoch: they continue even if the record of an earlier one is lost.
        history = await self._ctx.histories.remaining(view)
        return () if view.record.state is StreamState.SEALED else tuple(history.active.segments)

    async def of_epoch(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        """Raises InvalidArgumentError for an epoch that never existed."""
        _, history = await self._history(stream)
        for record in history.epochs:
            if record.epoch == epoch:
                return tuple(record.segments)
        raise InvalidArgumentError("the stream never had this epoch", epoch=epoch, active_epoch=history.active.epoch)

    async def epochs(self, stream: StreamName) -> Sequence[EpochInfo]:
        """All epochs, oldest first."""
        _, history = await self._history(stream)
        return tuple(
            EpochInfo(epoch=item.epoch, created_ms=item.created_ms, segments=tuple(item.segments))
            for item in history.epochs
        )

    async def successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        """Raises SegmentNotFoundError for a segment that never was."""
        _, history = await self._history(stream)
        return tuple(Successor(range=item, predecessors=tuple(old)) for item, old in successors(history, segment))

    async def ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        """Raises SegmentNotFoundError for a segment that never was."""
        _, history = await self._history(stream)
        ranges = history.ranges()
        for segment in segments:
            if segment not in ranges:
                raise SegmentNotFoundError("the stream never had this segment", stream=str(stream), segment=segment)
        return {segment: ranges[segment] for segment in segments}

    async def is_active(self, stream: StreamName, segment: SegmentId) -> bool:
        return any(item.segment == segment for item in await self.current(stream))

    async def scale(
        self, stream: StreamName, *, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        return await self._streams.scale(stream, sealed=sealed, new_ranges=new_ranges)

    async def scale_status(self, stream: StreamName, epoch: int) -> ScaleStatus:
        return await self._streams.scale_status(stream, epoch)

    async def scaling(self, stream: StreamName) -> StreamScaling:
        return await self._scaler.explain(stream)

    async def endpoint(self, segment: str) -> Endpoint:
        return self._endpoint_of(segment)


class Cuts:
    """``ports.control.cuts.Cuts``, whose rules these calls keep."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def head(self, stream: StreamName) -> StreamCut:
        view, head = await self._ctx.streams.get_with_head(stream)
        return StreamCut(stream, dict(head_positions(await self._ctx.histories.of(view), head.value)))

    async def tail(self, stream: StreamName) -> StreamCut:
        _, _, _, positions = await load_tail(self._ctx, stream)
        return StreamCut(stream, dict(positions))

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        """Raises InvalidCutError."""
        history, head = await retry_if_moved(stream, lambda: self._given(stream, start, end))
        first = head_positions(history, head) if start.is_unbounded else start.positions
        return segments_between(history, first, None if end.is_unbounded else end.positions)

    async def _given(self, name: StreamName, *cuts: StreamCut) -> tuple[StreamHistory, HeadRecord | None]:
        """History and head of the stream. All cuts must be positions of the stream. Raises InvalidCutError."""
        view, head = await self._ctx.streams.get_with_head(name)
        history = await self._ctx.histories.of(view)
        for cut in cuts:
            await check_bound(self._ctx.segments, view, history, cut)
        return history, head.value

    async def measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        """Raises InvalidCutError."""
        history, _ = await retry_if_moved(stream, lambda: self._given(stream, start, end))
        if start.is_unbounded:
            raise InvalidCutError("measuring needs a cut to begin at", stream=str(stream))
        last: Mapping[SegmentId, int] = end.positions
        if end.is_unbounded:
            _, _, history, last = await load_tail(self._ctx, stream)
        # Refuse cuts that are not in order: ``pieces`` would find nothing.
        segments_between(history, start.positions, last)
        spans = []
        for segment, low, high in pieces(history, start.positions, last):
            text = segment_name(stream, segment)
            before, upto = await self._ctx.events.before(text, low), await self._ctx.events.before(text, high)
            events = None if before is None or upto is None else upto - before
            spans.append(SegmentSpan(segment=segment, start=low, end=high, events=events))
        return tuple(spans)

    async def before(self, stream: StreamName, cut: StreamCut, events: int) -> StreamCut:
        """Raises InvalidArgumentError, InvalidCutError."""
        if events < 0:
            raise InvalidArgumentError("the number of events is below 0", events=events)
        return await retry_if_moved(stream, lambda: self._before(stream, cut, events))

    async def _before(self, name: StreamName, cut: StreamCut, events: int) -> StreamCut:
        history, head = await self._given(name, cut)
        here: Mapping[SegmentId, int] = cut.positions
        if cut.is_unbounded:
            _, _, history, here = await load_tail(self._ctx, name)
        first = head_positions(history, head)
        if not at_or_after(history, here, first):
            return StreamCut(name, dict(first))
        if NOT_STARTED in here.values():
            raise InvalidCutError(
                "events cannot be counted back from a cut in which a segment waits for an older one; give a time",
                stream=str(name),
                cut=repr(cut),
            )
        # Only the difference of counts matters, so the count at the cut is any number.
        end = StreamCutRecord(time_ms=0, size_bytes=size_till(history, here), positions=here, event_count=0)
        found = await BoundaryFinder(self._ctx, name, history, (), first, end).leaving_events(events)
        if found is None and size_till(history, first) < end.size_bytes:
            raise InvalidArgumentError("events before the cut were never counted", stream=str(name), cut=repr(cut))
        return StreamCut(name, dict(here if found is None else found.positions))

    async def is_valid(self, stream: StreamName, cut: StreamCut) -> bool:
        async def check() -> None:
            view = await self._ctx.streams.get(stream)
            await check_given(self._ctx.segments, view, await self._ctx.histories.of(view), cut)

        try:
            await retry_if_moved(stream, check)
        except InvalidCutError:
            return False
        return True


def _on_disk(space: SegmentSpace) -> int:
    return space.tiered_bytes + space.pending_free_bytes


def _holder(kind: HolderKind, name: str) -> str:
    return f"{kind.value} {name}".strip()
