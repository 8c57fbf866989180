"""A real data directory with all kinds of things in it, and what of it must be there again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from penstock.app.embedded import Runtime, open_runtime
from penstock.app.restored import MARKER
from penstock.app.settings import EmbeddedSettings
from penstock.client.store import AsyncStore
from penstock.model.cuts import StreamCut
from penstock.model.errors import SegmentNotFoundError
from penstock.model.names import StreamName
from penstock.ports.data.segments import Append
from penstock.ports.data.tables import KEY_ABSENT, TableKind, TablePut

STREAM = StreamName("demo", "clicks")
SEGMENTS = ("demo/clicks/0.#epoch.0", "demo/clicks/1.#epoch.0", "demo/clicks/2.#epoch.0")
WRITER = UUID(int=7)
TABLE = "demo/_tables/own"


def settings_of(data: Path, **more) -> EmbeddedSettings:
    return EmbeddedSettings(data=data, log_bytes=128 << 20, chunk_bytes=64 << 10, retention_cycle_ms=3_600_000, **more)


@asynccontextmanager
async def running(data: Path, **more):
    async with open_runtime(settings_of(data, **more)) as runtime:
        yield runtime


@dataclass
class Contents:
    """What readers see: bytes of each segment from its start, numbers of writers, rows of the table, heads."""

    segments: dict[str, tuple[int, bytes, bool]] = field(default_factory=dict)
    numbers: dict[tuple[str, UUID], int] = field(default_factory=dict)
    table: dict[bytes, bytes] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)
    head: dict[int, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)


async def append(runtime: Runtime, segment: str, data: bytes, *, writer: UUID = WRITER, count: int = 1) -> int:
    last = await runtime.segments.setup_append(segment, writer)
    number = max(last, -1) + count
    await runtime.segments.append(
        Append(segment=segment, writer=writer, data=data, event_number=number, event_count=count, previous=last)
    )
    return number


def block(number: int, size: int = 3000) -> bytes:
    return (b"%08d|" % number) * (size // 9)


async def fill(runtime: Runtime) -> None:
    """Streams, a transaction, a truncation, a scale, a table; some bytes in every container."""
    controller = runtime.controller
    await controller.scopes.create("demo")
    store = AsyncStore(runtime.segments, controller, runtime.clock, runtime.rng)
    await store.create_stream("demo/clicks", segments=3)
    for other in range(6):
        await store.create_stream(f"demo/other-{other}", segments=1)
        await append(runtime, f"demo/other-{other}/0.#epoch.0", block(other))
    for number in range(40):
        for segment in SEGMENTS:
            await append(runtime, segment, block(number))
        if number % 10 == 9:
            await runtime.segments.flush()
    async with store.stream("demo/clicks").transaction() as txn:
        for number in range(50):
            await txn.write(b"in a transaction %d" % number, key=str(number))
    await runtime.segments.flush()
    await controller.streams.truncate(STREAM, StreamCut(STREAM, {0: 2997 * 30, 1: 2997 * 3, 2: 0}))
    await store.create_stream("demo/scaled", segments=1)
    await append(runtime, "demo/scaled/0.#epoch.0", block(1))
    await store.stream("demo/scaled").scale(2)
    await runtime.segments.create_table(TABLE, kind=TableKind.HASH)
    await runtime.segments.table_update(
        TABLE, [TablePut(key=b"k%d" % item, value=b"v%d" % item, version=KEY_ABSENT) for item in range(20)]
    )


async def contents(runtime: Runtime) -> Contents:
    found = Contents()
    store = AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)
    found.streams = [f"demo/{name}" for name in await store.streams("demo", internal=True)]
    found.head = dict((await runtime.controller.streams.describe(STREAM)).head.positions)
    for segment in _segment_names(found.streams):
        try:
            info = await runtime.segments.info(segment)
        except SegmentNotFoundError:
            continue
        found.segments[segment] = (
            info.start_offset,
            await content(runtime, segment, info.start_offset, info.length),
            info.sealed,
        )
        found.events[segment] = info.event_count
        found.numbers[segment, WRITER] = await runtime.segments.setup_append(segment, WRITER) if not info.sealed else -1
    for entry in await runtime.segments.table_scan(TABLE, after=None, limit=1000):
        found.table[entry.key] = entry.value
    return found


def _segment_names(streams: list[str]) -> list[str]:
    return [
        f"{name}/{number}.#epoch.{epoch}"
        for name in streams
        for number, epoch in ((0, 0), (1, 0), (2, 0), (1, 1), (2, 1))
    ]


async def content(runtime: Runtime, segment: str, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        read = await runtime.segments.read(segment, start, 1 << 20, wait=False)
        parts += [bytes(part) for part in read.parts]
        start += sum(map(len, read.parts))
    return b"".join(parts)


async def tier_all(runtime: Runtime) -> None:
    """Bring everything to tier 2, also entries of the audit log, which are written a moment after what they tell."""
    await runtime.controller.drain_audit()
    await runtime.segments.flush()


def built(
    data: Path, *, flush: bool = True, then: Callable[[Runtime], Awaitable[None]] | None = None, **more
) -> Contents:
    """Make the directory by a real store. With ``flush`` all is in tier 2; ``then`` happens behind it."""

    async def main() -> Contents:
        async with running(data, **more) as runtime:
            await fill(runtime)
            if flush:
                await tier_all(runtime)
            found = await contents(runtime)
            if flush:
                await tier_all(runtime)
            if then is not None:
                await then(runtime)
        return found

    return asyncio.run(main())


def seen(data: Path, **more) -> Contents:
    async def main() -> Contents:
        async with running(data, **more) as runtime:
            return await contents(runtime)

    return asyncio.run(main())


def lose_log_and_metadata(data: Path) -> None:
    shutil.rmtree(data / "wal")
    shutil.rmtree(data / "metadata")


def stay(data: Path) -> None:
    """Let a rebuilt store open without new segments for its streams, to compare what the rebuild itself gave back."""
    (data / MARKER).unlink()


def snapshot(data: Path) -> dict[str, bytes]:
    """All files, to show that nothing was changed."""
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}
