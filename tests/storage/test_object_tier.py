"""A whole store with its chunks in S3 or HDFS: written, killed, recovered, read by executors, truncated, cut off and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest
from hdfs_world import ALL_SERVERS, HDFS, HdfsServer, TierServer, tier_running
from s3_faults import Fault, FaultProxy, answer, fault_proxy
from s3_world import SERVERS, S3Server

import penstock
from penstock.app.embedded import Runtime, embedded_settings, open_runtime
from penstock.client.store import AsyncStore
from penstock.codec.wire.commands import FlushToStorage, StorageFlushed
from penstock.core.segments.placement import container_of
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.spark.reading.plan import Cover, Pieces, Share
from penstock.spark.reading.scan import Shape, read_share
from penstock.storage.objects import cloud_objects, hdfs_objects
from penstock.testing.server import ServerProcess
from tests.abuse.peers import Peer

PATIENCE_S = 90
"""Only a failure takes so long; two S3 servers on a busy machine take many seconds."""
STREAM = StreamName("plant", "turbine")
SOON = {"tier2_wait_ms": 100, "tier2_unit_bytes": 1 << 20}
SLOW_DOWN = Fault("answer", answer("503 Slow Down", "SlowDown"))

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=ALL_SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierServer]:
    with tier_running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def chunks_below(server: TierServer, url: str) -> list[str]:
    """Chunks of the stream; the controller's own segments lie in other containers."""
    mine = f"chunks/{container_of(segment_name(STREAM, SegmentId(0)), 4):x}/"
    found = asyncio.run(server.objects(url).list("chunks"))
    return [name for name in found if name.startswith(mine)]


def until(condition: Callable[[], bool], what: str) -> None:
    """Nobody tells when an object is there or gone: look now and then."""
    deadline = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline, what
        Event().wait(0.05)


async def until_async(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.02)


def flush(process: ServerProcess) -> None:
    """What is named no more goes once the catalogue in tier 2 says so too, which by itself takes up to a minute."""
    with Peer(process.store_port, timeout_s=60) as peer:
        assert peer.ask(FlushToStorage(0, "", 1)) == StorageFlushed(1)


def written(store: Any, first: int, count: int) -> list[bytes]:
    events = [f"{number:08d}".encode() * 128 for number in range(first, first + count)]
    with store.stream("plant/turbine").writer() as writer:
        for event in events:
            writer.write(event, key="one")
    return events


def read(store: Any) -> list[bytes]:
    return [bytes(event.data) for event in store.stream("plant/turbine").reader(until_tail=True)]


def test_a_store_survives_kill_9_and_truncation_deletes_its_objects(server: TierServer, tmp_path: Path) -> None:
    url = f"{server.new_bucket()}/stores/one"
    options = (*server.options(url), "--tier2-unit", "1MiB", "--tier2-wait", "200ms")
    with ServerProcess(tmp_path / "data", *options) as process:
        with penstock.connect(process.address) as store:
            store.create_stream("plant/turbine", segments=1, create_scope=True)
            events = written(store, 0, 3000)
            until(lambda: len(chunks_below(server, url)) >= 2, "nothing reached tier 2")
            events += written(store, 3000, 1000)
            process.kill()
        process.start()
        with penstock.connect(process.address) as store:
            assert read(store) == events
            before = chunks_below(server, url)
            stream = store.stream("plant/turbine")
            cut = stream.tail()
            events = written(store, 4000, 100)
            stream.truncate(cut)
            flush(process)
            until(lambda: not set(before) & set(chunks_below(server, url)), "truncated chunks stayed in tier 2")
        process.kill()
        # Where the chunks are is remembered; only the credentials come from outside.
        process.options = ("--tier2-wait", "200ms", "--deletion-grace", "0s")
        process.start()
        with penstock.connect(process.address) as store:
            assert read(store) == events
            until(lambda: bool(chunks_below(server, url)), "nothing reached tier 2")
            store.stream("plant/turbine").seal()
            store.stream("plant/turbine").delete()
            flush(process)
            until(lambda: not chunks_below(server, url), "chunks of a deleted stream stayed in tier 2")
    assert not (tmp_path / "data" / "chunks").exists()


def in_store(data: Path, place: Mapping[str, Any], work: Callable[[Runtime, AsyncStore], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = embedded_settings(data, {**place, **SOON})
        async with open_runtime(settings) as runtime:
            await work(runtime, AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng))

    asyncio.run(run())


async def _stream_with(store: AsyncStore, events: list[bytes]) -> str:
    stream = await store.create_stream("plant/turbine", segments=1, create_scope=True, if_absent=True)
    async with stream.writer() as writer:
        for event in events:
            await writer.write(event, key="one")
    return segment_name(STREAM, SegmentId(0))


async def _tiered(runtime: Runtime, segment: str) -> bool:
    found = (await runtime.segments.spaces([segment]))[segment]
    return found.tiered_bytes == found.live_bytes


def test_executors_read_objects_by_themselves_and_ask_the_store_where_they_cannot(
    server: TierServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_bucket()
    events = [os.urandom(1000) for _ in range(3000)]
    asked: list[int] = []

    def scanned(share: Share) -> list[bytes]:
        def fetch(segment: SegmentId, offset: int, size: int) -> bytes:
            asked.append(offset)
            return framed[offset : offset + size]

        shape = Shape(pa.schema([("event", pa.binary())]), STREAM, 1000)
        return [event for batch in read_share(share, shape, fetch) for event in batch["event"].to_pylist()]

    framed = b"".join(b"\0\0\0\0" + len(event).to_bytes(4, "big") + event for event in events)

    async def work(runtime: Runtime, store: AsyncStore) -> None:
        name = await _stream_with(store, events)
        await until_async(lambda: _tiered(runtime, name), "not tiered")
        ranges = await runtime.segments.chunk_ranges(name, 0, len(framed))
        assert all((item.location or "").startswith(url) for item in ranges)
        cover = Cover(SegmentId(0), 0, len(framed))
        pieces = Pieces([*cover.add(ranges), *cover.finish(begins=True)])
        share = Share(stream=STREAM, pieces=pieces, lease=None, lease_until_ms=0)
        assert await asyncio.to_thread(scanned, share) == events
        assert asked == []
        # Somewhere else there are no credentials, or a bucket of the same name with other bytes.
        for name, value in server.stranger.items():
            monkeypatch.setenv(name, value)
        cloud_objects._reader.cache_clear()
        hdfs_objects._reader.cache_clear()
        assert await asyncio.to_thread(scanned, share) == events
        assert asked != []

    in_store(tmp_path / "data", server.place(url), work)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_an_object_store_that_is_away_stops_neither_appends_nor_reads_and_catches_up(
    server: S3Server, tmp_path: Path
) -> None:
    url = server.new_bucket()
    early = [b"early" * 200 for _ in range(2000)]
    late = [b"late" * 250 for _ in range(2000)]

    async def run(proxy: FaultProxy) -> None:
        settings = embedded_settings(tmp_path / "data", {"tier2": url, "tier2_endpoint": proxy.endpoint, **SOON})
        async with open_runtime(settings) as runtime:
            store = AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)
            name = await _stream_with(store, early)
            await until_async(lambda: _tiered(runtime, name), "not tiered")
            proxy.decide = lambda verb, path: SLOW_DOWN
            refused = len(proxy.seen)
            await _stream_with(store, late)
            await until_async(lambda: _true(len(proxy.seen) > refused + 3), "tier 2 was not tried")
            assert not await _tiered(runtime, name)
            proxy.decide = lambda verb, path: None
            await until_async(lambda: _tiered(runtime, name), "did not catch up")
            reader = store.stream("plant/turbine").reader(until_tail=True)
            assert [bytes(event.data) async for event in reader] == early + late

    async def main() -> None:
        async with fault_proxy(server.endpoint) as proxy:
            await run(proxy)

    asyncio.run(main())


@pytest.mark.parametrize("server", [HDFS], indirect=True)
def test_a_namenode_that_is_away_stops_neither_appends_nor_reads_and_the_store_catches_up(
    server: HdfsServer, tmp_path: Path
) -> None:
    early = [b"early" * 200 for _ in range(2000)]
    late = [b"late" * 250 for _ in range(2000)]

    async def work(runtime: Runtime, store: AsyncStore) -> None:
        name = await _stream_with(store, early)
        await until_async(lambda: _tiered(runtime, name), "not tiered")
        server.engine.servers[0].kill()
        try:
            await _stream_with(store, late)
            await asyncio.sleep(3)
            assert not await _tiered(runtime, name)
        finally:
            # In this thread: servers end with the one that started them.
            server.engine.servers[0].launch()
        await until_async(lambda: _tiered(runtime, name), "did not catch up")
        reader = store.stream("plant/turbine").reader(until_tail=True)
        assert [bytes(event.data) async for event in reader] == early + late

    in_store(tmp_path / "data", server.place(server.new_bucket()), work)


def test_a_bucket_of_another_store_is_refused_at_the_start(server: TierServer, tmp_path: Path) -> None:
    url = server.new_bucket()

    async def nothing(runtime: Runtime, store: AsyncStore) -> None:
        pass

    in_store(tmp_path / "one", server.place(url), nothing)
    with pytest.raises(InvalidArgumentError, match="belongs to another store"):
        in_store(tmp_path / "two", server.place(url), nothing)
    in_store(tmp_path / "one", server.place(url), nothing)


async def _true(value: bool) -> bool:
    return value
