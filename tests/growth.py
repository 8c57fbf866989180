"""``python -m tests.growth``: simulate long use in virtual time, and measure the metadata that remains.

Each hour: a session of a writer of ours, one of another client that ends without closing, a plain job, a batch of a
lasting query, a new query, and a stream with a reader group, created, written and deleted. Each day the stream is truncated
and retention looks at the audit stream; each month the store is restarted. Data is not counted, rows are.
Source: docs/design/0038-what-grows.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from penstock.client.store import AsyncStore
from penstock.controller.controller import Controller
from penstock.model.cuts import StreamCut
from penstock.model.names import AUDIT_STREAM, StreamName, segment_name, transaction_segment_name
from penstock.model.policies import ReaderGroupRetention, ScalingPolicy, StreamConfig
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.data.segments import Append
from penstock.segmentstore.store import SegmentStore
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.machine.loop import SimLoop, make_loop
from penstock.testing.simulation.machine.world import SimClock
from penstock.testing.world import World

HOUR_S = 3600.0
STREAM = StreamName("s", "t")
_TABLE_TAG = b"t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """All rows of the metadata, after ``hours``. ``kinds``: count and bytes by tag; those of tables by kind of record."""

    hours: int
    rows: int
    size_bytes: int
    kinds: dict[str, tuple[int, int]]


class Growth:
    """One store in memory, used hour by hour."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._clock = SimClock(loop)
        self._rng = SeededRng(loop.fork("growth"))
        self._world = World(
            clock=self._clock,
            rng=self._rng,
            containers=1,
            checkpoint_interval_s=4 * HOUR_S,
            flush_interval_s=4 * HOUR_S,
        )
        self._hour = 0

    async def run(self, hours: int, show: Callable[[Size], object], *, measures: int = 10) -> list[Size]:
        """Use the store for more hours. Shows and returns its size at several moments, the last one at the end."""
        sizes: list[Size] = []
        every, end = max(1, hours // measures), self._hour + hours
        while self._hour < end:
            async with self._world.serving() as (segments, controller):
                store = AsyncStore(segments, controller, self._clock, self._rng)
                if self._hour == 0:
                    await controller.scopes.create(STREAM.scope)
                    await controller.streams.create(STREAM, StreamConfig(scaling=ScalingPolicy(min_segments=2)))
                while self._hour < end:
                    await self._use(store, segments, controller)
                    self._hour += 1
                    if self._hour % every == 0 or self._hour == end:
                        await segments.flush()
                        sizes.append(await self._size())
                        show(sizes[-1])
                    if self._hour % 720 == 0:
                        break
        return sizes

    async def _use(self, store: AsyncStore, segments: SegmentStore, controller: Controller) -> None:
        hour = self._hour
        async with store.stream(STREAM).writer() as writer:
            await writer.write(b"%d" % hour, "a")
            await writer.write(b"%d" % hour, "b")
        await self._foreign_session(segments, controller)
        await self._batch(segments, controller, f"job-{self._rng.uuid()}", 0, one_job=True)
        await self._batch(segments, controller, "lives", hour)
        await self._batch(segments, controller, f"{self._rng.uuid()}/s/t", 0)
        await self._made_and_deleted(store, controller, hour)
        if hour % 24 == 23:
            await store.stream(STREAM).truncate(await store.stream(STREAM).tail())
            await controller.retention.run(AUDIT_STREAM)
        await asyncio.sleep(HOUR_S)
        await controller.sweep()
        await controller.drain_audit()

    async def _foreign_session(self, segments: SegmentStore, controller: Controller) -> None:
        first, *_ = await controller.layout.current(STREAM)
        name, writer = segment_name(STREAM, first.segment), self._rng.uuid()
        last = await segments.setup_append(name, writer)
        await segments.append(Append(segment=name, writer=writer, data=bytes(8), event_number=1, previous=last))

    async def _batch(
        self, segments: SegmentStore, controller: Controller, writer: str, batch: int, *, one_job: bool = False
    ) -> None:
        begun = await controller.transactions.create(STREAM, lease_ms=60_000)
        for item in begun.segments:
            name, session = transaction_segment_name(segment_name(STREAM, item.segment), begun.id), self._rng.uuid()
            last = await segments.setup_append(name, session)
            await segments.append(Append(segment=name, writer=session, data=bytes(8), event_number=1, previous=last))
        await controller.batches.commit(STREAM, writer=writer, batch=batch, transactions=[begun.id], one_job=one_job)

    async def _made_and_deleted(self, store: AsyncStore, controller: Controller, hour: int) -> None:
        name = StreamName(STREAM.scope, f"made-{hour}")
        await controller.streams.create(name, StreamConfig(scaling=ScalingPolicy(min_segments=2)))
        group = ReaderGroupConfig(
            scope=name.scope,
            name=f"group-{hour}",
            id=UUID(int=hour + 1),
            retention=ReaderGroupRetention.MANUAL,
            start_cuts={name: StreamCut(name, {})},
        )
        await controller.groups.create(group)
        async with store.stream(name).writer() as writer:
            await writer.write(b"x")
        await controller.groups.delete(group.scope, group.name)
        await controller.streams.seal(name)
        await controller.streams.delete(name)

    async def _size(self) -> Size:
        kinds: dict[str, tuple[int, int]] = {}
        for key, value in await self._world.keyvalue.scan(b"", b"\xff", limit=1 << 40):
            kind = key[:1].decode()
            if key[:1] == _TABLE_TAG:
                kind = f"t {key[11:].split(b'/')[0].decode('utf-8', 'backslashreplace')}"
            count, size = kinds.get(kind, (0, 0))
            kinds[kind] = count + 1, size + len(key) + len(value)
        rows, size_bytes = (sum(item[at] for item in kinds.values()) for at in (0, 1))
        return Size(hours=self._hour, rows=rows, size_bytes=size_bytes, kinds=kinds)


def grow(hours: int, show: Callable[[Size], object] = lambda _: None, *, seed: int = 1) -> list[Size]:
    """Ten sizes during that time, the last at its end. ``show`` gets each as it is measured."""
    loop = make_loop(seed)
    return loop.run(Growth(loop).run(hours, show))


def _show(size: Size) -> None:
    sys.stdout.write(f"day {size.hours / 24:5.0f}: {size.rows:7,} rows, {size.size_bytes / 1000:9,.1f} kB\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """Print the sizes, and the parts of the last one."""
    parser = argparse.ArgumentParser(prog="python -m tests.growth", description=__doc__.partition("\n")[0])
    parser.add_argument("--days", type=int, default=365, help="virtual days of use")
    chosen = parser.parse_args(argv)
    began = time.perf_counter()
    sizes = grow(24 * chosen.days, _show)
    for kind, (count, size_bytes) in sorted(sizes[-1].kinds.items(), key=lambda item: -item[1][1]):
        sys.stdout.write(f"{kind:>20}: {count:7,} rows, {size_bytes / 1000:9,.1f} kB\n")
    sys.stdout.write(f"{time.perf_counter() - began:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
