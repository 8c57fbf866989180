"""Positions: ``ledgerId:entryId`` is a segment and the number of an event in it, counted from the segment's first.

A *ledger* is a segment; the ledgers of partition ``i`` are the ``i``-th segments, in key order, of all epochs. Numbers
are exact: the store counts events, and the start of an event is found by walking from the nearest block. Source:
docs/reference/pulsar-admin.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.codec.events import HEADER_BYTES, event_bounds
from penstock.model.cuts import StreamCut
from penstock.model.errors import CorruptDataError, SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId, epoch_of
from penstock.model.values.dataclass import dataclass
from penstock.net.http.pulsar.bodies import INT_MAX, LONG_MAX, AdminError, whole
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.service import SegmentService

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Position:
    """A position as clients send it. ``ledger=-1``: the earliest; one above any segment's: the latest."""

    ledger: int
    entry: int
    partition: int = -1
    excluded: bool = False

    @property
    def is_earliest(self) -> bool:
        return self.ledger < 0

    @property
    def is_latest(self) -> bool:
        return self.ledger == LONG_MAX

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


EARLIEST_POSITION = Position(-1, -1)
LATEST_POSITION = Position(LONG_MAX, LONG_MAX)


def read_position(value: Any) -> Position:
    """Parses a message id, a position to reset to, ``"earliest"`` or ``"latest"``. Raises AdminError 400."""
    if value is None or value == "latest":
        return LATEST_POSITION
    if value == "earliest":
        return EARLIEST_POSITION
    if not isinstance(value, dict):
        raise AdminError(400, "The request body is not a message id")
    return Position(
        whole(value.get("ledgerId"), "ledgerId", limit=LONG_MAX),
        whole(value.get("entryId"), "entryId", limit=LONG_MAX),
        whole(value.get("partitionIndex", -1), "partitionIndex", limit=INT_MAX),
        value.get("isExcluded", value.get("excluded")) is True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The present state of a segment of a partition. ``first_entry``: number of the first event that can be read."""

    segment: SegmentId
    info: SegmentInfo
    first_entry: int

    @property
    def bytes(self) -> int:
        return self.info.length - self.info.start_offset

    @property
    def entries(self) -> int:
        return self.info.event_count - self.first_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A stream and its ledgers, by partition, oldest first. ``current``: the active segments in key order."""

    stream: StreamName
    current: Sequence[SegmentId]
    partitions: Sequence[Sequence[Ledger]]

    def of(self, segment: int) -> tuple[int, Ledger] | None:
        """The partition that a ledger belongs to, and the ledger."""
        for index, ledgers in enumerate(self.partitions):
            for ledger in ledgers:
                if ledger.segment == segment:
                    return index, ledger
        return None


class Positions:
    """Converts positions to offsets and back, and counts the events in between."""

    def __init__(self, controller: ControlPlane, segments: SegmentService) -> None:
        self._controller = controller
        self._segments = segments

    async def layout(self, stream: StreamName) -> Layout:
        """Raises ScopeNotFoundError, StreamNotFoundError."""
        controller = self._controller
        current = [item.segment for item in await controller.layout.current(stream)]
        tail = await controller.cuts.tail(stream)
        live = await controller.cuts.segments_between(stream, await controller.cuts.head(stream), tail)
        if not current:  # sealed
            current = list(tail.positions)
        ranks: dict[int, dict[SegmentId, int]] = {}
        partitions: list[list[Ledger]] = [[] for _ in current]
        for segment in sorted(live):
            epoch = epoch_of(segment)
            if epoch not in ranks:
                ranges = await controller.layout.of_epoch(stream, epoch)
                ranks[epoch] = {item.segment: rank for rank, item in enumerate(ranges)}
            ledger = await self._ledger(stream, segment)
            if ledger is not None:
                rank = current.index(segment) if segment in current else ranks[epoch].get(segment, 0)
                partitions[min(rank, len(partitions) - 1)].append(ledger)
        return Layout(stream=stream, current=current, partitions=partitions)

    async def _ledger(self, stream: StreamName, segment: SegmentId) -> Ledger | None:
        """None if a truncation has deleted the segment meanwhile."""
        name = segment_name(stream, segment)
        while True:
            try:
                info = await self._segments.info(name)
                held = await self._segments.count_events(name, info.start_offset, info.length)
            except SegmentNotFoundError:
                return None
            except TruncatedError:
                continue  # the head moved between the two calls
            return Ledger(segment=segment, info=info, first_entry=info.event_count - held)

    async def entry_at(self, stream: StreamName, ledger: Ledger, offset: int) -> int:
        """The number of the event that begins at ``offset``; at the end, of the next event. Before the head: that of
        the head."""
        info = ledger.info
        if offset <= info.start_offset:
            return ledger.first_entry
        if offset >= info.length:
            return info.event_count
        name = segment_name(stream, ledger.segment)
        return info.event_count - await self._segments.count_events(name, offset, info.length)

    async def offset_of(self, stream: StreamName, ledger: Ledger, entry: int) -> int:
        """The offset of the event with that number, but not before the head and not after the end."""
        if entry <= ledger.first_entry:
            return ledger.info.start_offset
        if entry >= ledger.info.event_count:
            return ledger.info.length
        return await self.walk(stream, ledger, ledger.info.start_offset, entry - ledger.first_entry)

    async def walk(self, stream: StreamName, ledger: Ledger, offset: int, events: int) -> int:
        """The offset ``events`` events after ``offset``, but not after the end."""
        name, end = segment_name(stream, ledger.segment), ledger.info.length
        offset = max(offset, ledger.info.start_offset)
        for chunk in await self._segments.chunk_ranges(name, offset, end):
            for block in chunk.blocks:
                if block.start_offset == offset and block.event_count <= events and block.end_offset <= end:
                    offset, events = block.end_offset, events - block.event_count
                elif block.start_offset <= offset < block.end_offset and events > 0:
                    offset, events = await self._scan(name, offset, min(block.end_offset, end), events)
        offset, _ = await self._scan(name, offset, end, events)
        return offset

    async def _scan(self, name: str, offset: int, end: int, events: int) -> tuple[int, int]:
        """Walk event by event; returns the offset reached, and how many events are left to walk."""
        while events > 0 and offset < end:
            data = await self._read(name, offset, min(_READ_BYTES, end - offset))
            bounds = event_bounds(data, segment=name, offset=offset)
            if len(bounds) == 1:  # less than one event: only its header shows where the next one begins
                header = await self._exactly(name, offset, HEADER_BYTES)
                offset, events = offset + HEADER_BYTES + int.from_bytes(header, "big"), events - 1
                continue
            steps = min(events, len(bounds) - 1)
            offset, events = offset + bounds[steps], events - steps
        return min(offset, end), events

    async def _exactly(self, name: str, offset: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self._read(name, offset + len(data), size - len(data))
        return data

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        found = await self._segments.read(name, offset, size, wait=False)
        data = b"".join(bytes(part) for part in found.parts)
        if not data:
            raise CorruptDataError("segment is shorter than its length", segment=name, offset=offset)
        return data

    async def backlog(self, layout: Layout, cut: StreamCut, partition: int | None = None) -> tuple[int, int]:
        """Events and bytes from ``cut`` to the end, of one partition or of all."""
        events = size = 0
        for ledger, start in await self._unread(layout, cut, partition):
            events += ledger.info.event_count - await self.entry_at(layout.stream, ledger, start)
            size += ledger.info.length - start
        return events, size

    async def _unread(self, layout: Layout, cut: StreamCut, partition: int | None) -> list[tuple[Ledger, int]]:
        tail = StreamCut(layout.stream, {})
        behind = set(await self._controller.cuts.segments_between(layout.stream, cut, tail))
        chosen = layout.partitions if partition is None else [layout.partitions[partition]]
        found: list[tuple[Ledger, int]] = []
        for ledgers in chosen:
            for ledger in ledgers:
                if ledger.segment in behind or ledger.segment in cut.positions:
                    start = max(cut.positions.get(ledger.segment, 0), ledger.info.start_offset)
                    found.append((ledger, min(start, ledger.info.length)))
        return found

    async def next_entry(self, layout: Layout, cut: StreamCut, partition: int) -> tuple[Ledger, int]:
        """The ledger and number of the next event after ``cut`` in the partition, even if it is not written yet."""
        unread = await self._unread(layout, cut, partition)
        for ledger, start in unread:
            if start < ledger.info.length or ledger is unread[-1][0]:
                return ledger, await self.entry_at(layout.stream, ledger, start)
        last = layout.partitions[partition][-1]
        return last, last.info.event_count


def with_offset(cut: StreamCut, current: Sequence[SegmentId], segment: SegmentId, offset: int) -> StreamCut:
    """``cut`` with one partition moved. Raises AdminError 412 if it is not entirely in the current segments: a position
    from before the number of partitions changed belongs to all partitions together."""
    positions: Mapping[SegmentId, int] = cut.positions
    if set(positions) != set(current):
        raise AdminError(
            412,
            "The subscription is at data from before the number of partitions was changed; move it on the whole topic",
        )
    return StreamCut(cut.stream, {**positions, segment: offset})
