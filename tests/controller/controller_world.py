"""A controller over segments in memory, with a clock that tests move by hand."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from memory_segments import MemorySegments

from penstock.app.telemetry import Counters
from penstock.codec.audit import decode_entry
from penstock.codec.control.streams import EpochEntry
from penstock.controller import keys
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.model.cuts import StreamCut
from penstock.model.names import AUDIT_STREAM, StreamName, segment_name, transaction_segment_name
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, ScalingPolicy, StreamConfig
from penstock.model.retention import Backlog, OnExceed, PolicyDocument, Retain
from penstock.model.segments import SegmentId, even_ranges, make_segment_id
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import Endpoint
from penstock.ports.control.transactions import TransactionStatus
from penstock.testing.fakes import FakeClock, SeededRng

STREAM = StreamName("s", "t")
GROUP_ID = UUID(int=3)
START_MS = 1_700_000_000_000
QUIET = ControllerSettings(
    watermark_ms=None, sweep_ms=None, retention_cycle_ms=None, lease_min_ms=1000, clock_slack_ms=0, deletion_grace_ms=0
)


_LIVES = itertools.count(1)
"""No two controllers of a store have the same chance, least of all those of two lives."""


def config(segments: int = 1, retention: RetentionPolicy | None = None, tags: tuple[str, ...] = ()) -> StreamConfig:
    return StreamConfig(scaling=ScalingPolicy(min_segments=segments), retention=retention, tags=tags)


@asynccontextmanager
async def opened(
    segments: MemorySegments, clock: FakeClock | None = None, settings: ControllerSettings = QUIET
) -> AsyncIterator[Controller]:
    clock = clock or FakeClock()
    segments.now_ms = clock.now_ms
    async with open_controller(
        segments,
        clock,
        SeededRng(next(_LIVES)),
        lambda _: Endpoint(host="here", port=1),
        Counters(),
        settings,
        steady=clock.passed_s,
    ) as controller:
        yield controller


@asynccontextmanager
async def with_stream(
    segments: MemorySegments, count: int = 1, clock: FakeClock | None = None, **fields
) -> AsyncIterator[Controller]:
    async with opened(segments, clock, fields.pop("settings", QUIET)) as controller:
        await controller.scopes.create("s")
        await controller.streams.create(STREAM, config(count, **fields))
        yield controller


def seg(epoch: int, number: int) -> SegmentId:
    return make_segment_id(epoch, number)


def name_of(segment: SegmentId, stream: StreamName = STREAM) -> str:
    return segment_name(stream, segment)


def cut_at(positions: dict[SegmentId, int], stream: StreamName = STREAM) -> StreamCut:
    return StreamCut(stream, positions)


async def write_transaction(controller: Controller, segments: MemorySegments, data: bytes) -> UUID:
    """Begin a transaction and write ``data`` into each of its segments."""
    txn = await controller.transactions.create(STREAM, lease_ms=10_000)
    for item in txn.segments:
        segments.write(transaction_segment_name(name_of(item.segment), txn.id), data)
    return txn.id


async def finish_all(controller: Controller) -> None:
    """Wait until whatever was decided has been performed."""
    await controller.sweep()


async def scale_to(controller: Controller, count: int, stream: StreamName = STREAM):
    active = [item.segment for item in await controller.layout.current(stream)]
    return await controller.layout.scale(stream, sealed=active, new_ranges=even_ranges(count))


async def stream_bytes(
    controller: Controller, segments: MemorySegments, stream: StreamName = STREAM
) -> dict[SegmentId, bytes]:
    """All bytes of the stream by segment, deleted segments left out."""
    between = await controller.cuts.segments_between(stream, StreamCut(stream, {}), StreamCut(stream, {}))
    return {item: bytes(segments.segments[name_of(item, stream)].data) for item in between}


async def audit_entries(
    controller: Controller, segments: MemorySegments, *kinds: str, target: str | None = None
) -> list[dict[str, Any]]:
    """What the audit stream tells, oldest first; only those kinds, and that target, where given."""
    await controller.drain_audit()
    found = segments.segments.get(segment_name(AUDIT_STREAM, make_segment_id(0, 0)))
    data, entries = b"" if found is None else bytes(found.data), []
    while data:
        length = int.from_bytes(data[4:8], "big")
        entries.append(decode_entry(data[8 : 8 + length]))
        data = data[8 + length :]
    return [
        entry
        for entry in entries
        if (not kinds or entry["kind"] in kinds) and (target is None or entry["target"] == target)
    ]


def table_keys(segments: MemorySegments) -> list[str]:
    return [key.decode() for key in sorted(segments.tables[keys.TABLE].entries)]


async def check_invariants(controller: Controller, segments: MemorySegments, stream: StreamName = STREAM) -> None:
    """Laws that hold whenever nothing is under way."""
    left = [key for key in table_keys(segments) if key.startswith(("queue/", "group-work/", "scope-work/"))]
    assert left == []
    known: set[str] = set()
    for scope in await controller.scopes.list():
        for text in await controller.streams.list(scope):
            name = StreamName(scope, text)
            description = await controller.streams.describe(name)
            live = await controller.cuts.segments_between(name, description.head, StreamCut(name, {}))
            for item in live:
                assert name_of(item, name) in segments.segments, f"{name} lost a live segment"
                known.add(name_of(item, name))
            active = {item.segment for item in description.segments}
            for item in live:
                sealed = segments.segments[name_of(item, name)].sealed
                assert sealed == (item not in active)
                if sealed and not description.sealed:
                    assert await controller.layout.successors(name, item), (
                        "a sealed segment without successors ends the stream"
                    )
            for item, offset in description.head.positions.items():
                assert segments.segments[name_of(item, name)].start == max(offset, 0)
            for txn, status in await _open_transactions(controller, segments, name):
                assert status is TransactionStatus.OPEN
                for item in await controller.layout.of_epoch(name, txn.int >> 96):
                    known.add(transaction_segment_name(name_of(item.segment, name), txn))
    kept = {name for name, item in segments.segments.items() if item.kept is not None and item.start == len(item.data)}
    own = {name for name in segments.segments if name.startswith("_system/")}
    assert set(segments.segments) <= known | kept | own | _deleted_segments(segments), (
        "segments that nobody knows are left"
    )


def _deleted_segments(segments: MemorySegments) -> set[str]:
    """The segments of deleted streams, and of their mark streams, whose records are kept."""
    found: set[str] = set()
    for key, (value, _) in segments.tables[keys.TABLE].entries.items():
        parts = key.decode().split("/")
        if parts[0] == "deleted-row" and parts[4] == "epoch":
            name = StreamName(parts[1], parts[2])
            found.update(segment_name(name, item.segment) for item in EpochEntry.decode(value).segments)
    return found


async def _open_transactions(controller: Controller, segments: MemorySegments, name: StreamName):
    prefix = keys.transactions(name)
    found = [key for key in segments.tables[keys.TABLE].entries if key.startswith(prefix)]
    return [(keys.txn_of(key), await controller.transactions.status(name, keys.txn_of(key))) for key in found]


async def join(controller: Controller, group: str, positions: dict[SegmentId, int] | None = None) -> None:
    await controller.groups.create(
        ReaderGroupConfig(
            scope="s",
            name=group,
            id=GROUP_ID,
            retention=ReaderGroupRetention.MANUAL,
            start_cuts={STREAM: StreamCut(STREAM, positions or {})},
        )
    )


async def publish(controller: Controller, group: str, positions: dict[SegmentId, int]) -> None:
    await controller.subscribers.publish(f"s/{group}", group_id=GROUP_ID, generation=0, cut=cut_at(positions))


async def cuts(controller: Controller) -> dict[str, dict[SegmentId, int] | None]:
    found = await controller.subscribers.describe(STREAM)
    return {item.name: None if item.cut is None else dict(item.cut.positions) for item in found}


def quota(on_exceed: OnExceed, **limits: float) -> PolicyDocument:
    return PolicyDocument(retain=Retain(min_bytes=0), backlog=Backlog(on_exceed=on_exceed, **limits))
