"""HDFS that hangs, stops, is full or refuses: nothing is lost, nothing half is read, and the error says what to do."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hdfs_native import Client, WriteOptions
from hdfs_world import HdfsServer, hdfs_running

from penstock.codec.events import frame_events
from penstock.codec.store.chunk_builder import ChunkBuilder
from penstock.model.errors import InvalidArgumentError, StorageFullError, UnavailableError
from penstock.ports.data.imports import ImportGrant
from penstock.storage.chunks.imports import open_place
from penstock.storage.objects.hdfs_objects import HdfsObjects, HdfsSettings, read_location

HASTY = HdfsSettings(call_s=2, transfer_s=4, delete_s=2)
DATA = bytes(range(256)) * 400

T = TypeVar("T")

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    with hdfs_running(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def test_a_namenode_that_hangs_is_given_up_and_used_again(server: HdfsServer) -> None:
    objects = HdfsObjects(server.new_bucket(), settings=HASTY)

    async def work() -> None:
        await objects.put("a/1", DATA)
        server.engine.servers[0].pause()
        begun = monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for call in (
                    objects.put("a/2", DATA),
                    objects.read("a/1", 0, 9),
                    objects.list("a"),
                    objects.delete("a/1"),
                ):
                    group.create_task(refused(call, "does not answer"))
        finally:
            server.engine.servers[0].resume()
        assert monotonic() - begun < 20
        await objects.put("a/3", DATA)
        assert await objects.read("a/3", 0, len(DATA)) == DATA
        found = await objects.list("a")
        # What was given up may have happened, but not by halves.
        assert set(found.values()) == {len(DATA)}
        await all_returned(objects)
        await objects.check_wipe("a/3")
        assert not await objects.list("unfinished")

    run(work)


async def until_taken(call: Callable[[], Awaitable[T]], match: str) -> T:
    """Repeat the call while it fails in this way. The namenode learns of a death after 14 seconds here."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except UnavailableError as error:
                if not re.search(match, str(error)):
                    raise
                await asyncio.sleep(0.2)


async def all_returned(objects: HdfsObjects) -> None:
    """Calls that were given up have ended too."""
    async with asyncio.timeout(30):
        while not all(call.done() for call in objects._waiting):
            await asyncio.sleep(0.05)


async def refused(call: Awaitable[object], match: str) -> None:
    with pytest.raises(UnavailableError, match=match):
        await call


def test_too_many_calls_that_hang_are_refused_at_once(server: HdfsServer) -> None:
    settings = HdfsSettings(call_s=1, calls=2, hanging_max=3)
    objects = HdfsObjects(server.new_bucket(), settings=settings)

    async def work() -> None:
        server.engine.servers[0].pause()
        try:
            for _ in range(3):
                await refused(objects.size("x"), "does not answer")
            await refused(objects.size("x"), "too many calls")
        finally:
            server.engine.servers[0].resume()
        await all_returned(objects)
        with pytest.raises(FileNotFoundError):
            await objects.size("x")

    run(work)


def test_a_namenode_that_died_is_named_and_used_again(server: HdfsServer) -> None:
    objects = HdfsObjects(server.new_bucket(), settings=HdfsSettings())

    async def work() -> None:
        await objects.put("a/1", DATA)
        server.engine.servers[0].kill()
        for call in (objects.put("a/2", DATA), objects.read("a/1", 0, 9), objects.list("a"), objects.delete("a/1")):
            await refused(call, "nothing listens at this address|the namenode stopped")
        server.engine.start()
        # Datanodes report their blocks a moment after they have registered.
        await until_taken(lambda: objects.read("a/1", 0, len(DATA)), "no live datanode has the bytes")
        await objects.put("a/2", DATA)
        assert list(await objects.list("a")) == ["a/1", "a/2"]

    run(work)


def test_an_object_survives_its_datanodes_and_their_absence_is_named(server: HdfsServer) -> None:
    objects = HdfsObjects(server.new_bucket())

    async def work() -> None:
        await objects.put("a/1", DATA)
        server.engine.servers[1].kill()
        assert await objects.read("a/1", 0, len(DATA)) == DATA
        await until_taken(lambda: objects.put("a/2", DATA), "datanodes cannot be reached.*recheck-interval")
        server.engine.servers[2].kill()
        await refused(objects.read("a/1", 0, 9), "datanode")
        await refused(objects.put("a/3", DATA), "datanode")
        assert "a/3" not in await objects.list("a")
        server.engine.start()
        for name in ("a/1", "a/2"):
            assert await until_taken(partial(objects.read, name, 0, len(DATA)), "no live datanode") == DATA
        await objects.put("a/3", DATA)

    run(work)


def test_safe_mode_stops_changes_only_and_is_named(server: HdfsServer) -> None:
    objects = HdfsObjects(server.new_bucket())

    async def work() -> None:
        await objects.put("a/1", DATA)
        server.engine.admin("-safemode", "enter")
        try:
            await refused(objects.put("a/2", DATA), "safe mode")
            await refused(objects.delete("a/1"), "safe mode")
            assert await objects.read("a/1", 0, len(DATA)) == DATA
        finally:
            server.engine.admin("-safemode", "leave")
        await objects.put("a/2", DATA)

    run(work)


def test_a_user_without_rights_is_told_which(server: HdfsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.new_bucket()
    run(lambda: HdfsObjects(url).put("a/1", DATA))
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody")
    objects = HdfsObjects(url)

    async def work() -> None:
        for call in (objects.put("a/1", b""), objects.read("a/1", 0, 1), objects.list("a"), objects.delete("a/1")):
            await refused(call, "user=nobody.*HADOOP_USER_NAME")

    run(work)


def test_a_quota_that_is_used_up_is_a_full_disk(server: HdfsServer) -> None:
    url = server.new_bucket()
    objects = HdfsObjects(url)
    directory = url.removeprefix(server.engine.url)

    async def work() -> None:
        await objects.put("a/1", DATA)
        server.engine.admin("-setSpaceQuota", "1m", directory)
        with pytest.raises(StorageFullError, match="quota"):
            await objects.put("a/2", DATA)
        assert await objects.read("a/1", 0, len(DATA)) == DATA
        assert list(await objects.list("a")) == ["a/1"]
        await objects.delete("a/1")
        server.engine.admin("-clrSpaceQuota", directory)
        await objects.put("a/2", DATA)
        assert not await objects.list("unfinished")

    run(work)


def test_datanodes_without_room_are_a_full_disk(tmp_path: Path) -> None:
    # No disk has as much as is reserved for others. The usual blocks are too small for this namenode.
    settings = {"dfs.datanode.du.reserved": 1 << 60, "dfs.namenode.fs-limits.min-block-size": 8 << 20}
    with hdfs_running(tmp_path, datanodes=1, settings=settings) as server:
        objects = HdfsObjects(server.new_bucket())

        async def work() -> None:
            with pytest.raises(StorageFullError, match="no datanode of HDFS takes a block"):
                await objects.put("a/1", DATA)
            assert not await objects.list("a")
            assert not await objects.list("unfinished")

        run(work)


def test_what_is_wrong_with_an_address_is_said(server: HdfsServer) -> None:
    for address, match in (
        (f"127.0.0.1:{server.engine.web}", "not that of its RPC"),
        ("127.0.0.1:1", "nothing listens at this address"),
        ("nowhere.invalid:8020", "cannot be resolved"),
    ):
        objects = HdfsObjects(f"hdfs://{address}/penstock")
        run(lambda objects=objects, match=match: refused(objects.list("a"), match))  # type: ignore[misc]


def test_a_name_service_goes_on_to_the_namenode_that_lives(
    server: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgumentError, match="name service"):
        HdfsObjects("hdfs://plant/penstock")
    values = {
        "dfs.ha.namenodes.plant": "one,two",
        "dfs.namenode.rpc-address.plant.one": "127.0.0.1:1",
        "dfs.namenode.rpc-address.plant.two": f"127.0.0.1:{server.engine.rpc}",
    }
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items()]
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    url = f"hdfs://plant/penstock-{uuid4().hex}"
    objects = HdfsObjects(url)

    async def work() -> None:
        await objects.put("a/1", DATA)
        assert await objects.read("a/1", 5, 10) == DATA[5:15]

    run(work)
    assert read_location(f"{url}/a/1", 7, 3) == DATA[7:10]


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://",
        "hdfs:///a",
        "hdfs://127.0.0.1:8020",
        "hdfs://127.0.0.1:8020/",
        "hdfs://127.0.0.1:99999/a",
        "hdfs://ann@127.0.0.1:8020/a",
        "hdfs://127.0.0.1:8020/a?b",
        "hdfs://127.0.0.1:8020/a/../b",
        "hdfs://127.0.0.1:8020/a//b",
        "hdfs://127.0.0.1:8020/.snapshot/a",
        "s3://bucket/a",
    ],
)
def test_urls_that_name_no_directory_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        HdfsObjects(url)


WRITER = """
import asyncio, sys, zlib
from penstock.storage.objects.hdfs_objects import HdfsObjects
async def main():
    objects = HdfsObjects(sys.argv[1])
    for number in range(1000):
        data = bytes([number % 251]) * 3_000_000
        print(number, zlib.crc32(data), "begun", flush=True)
        await objects.put(f"a/{number}", data)
        print(number, zlib.crc32(data), "done", flush=True)
asyncio.run(main())
"""


def test_a_writer_that_dies_leaves_whole_objects_and_nothing_listed(server: HdfsServer) -> None:
    url = server.new_bucket()
    objects = HdfsObjects(url)
    left = 0
    for wait_s in (0.0, 0.05, 0.1, 0.15):
        process = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        Event().wait(wait_s)
        process.kill()
        lines += process.stdout.read().splitlines()
        process.wait()
        process.stdout.close()
        sums = {f"a/{line.split()[0]}": int(line.split()[1]) for line in lines}
        done = {f"a/{line.split()[0]}" for line in lines if line.split()[2] == "done"}

        async def work(sums: dict[str, int] = sums, done: set[str] = done) -> None:
            found = await objects.list("a")
            assert done <= set(found) <= set(sums)
            for name, size in found.items():
                assert size == 3_000_000
                assert zlib.crc32(await objects.read(name, 0, size)) == sums[name]
            nonlocal left
            left += len(await objects.list("unfinished"))
            await objects.clear_unfinished()
            assert not await objects.list("unfinished")
            for name in found:
                await objects.delete(name)

        run(work)
    assert left, "no writer died in the middle; write larger objects"


def test_a_writer_whose_file_is_taken_away_fails(server: HdfsServer) -> None:
    url = server.new_bucket()
    objects = HdfsObjects(url)
    other = Client(server.engine.url)

    async def work() -> None:
        await objects.put("a/1", DATA)
        client = objects._client

        class Slow:
            """Another process takes over the prefix before the rename."""

            def __getattr__(self, name: str) -> Any:
                return getattr(client, name)

            def rename(self, *arguments: Any) -> None:
                asyncio.run(HdfsObjects(url).clear_unfinished())
                other.get_file_info(arguments[0])  # Our own files are left.
                other.delete(arguments[0])
                client.rename(*arguments)

        objects._client = Slow()  # type: ignore[assignment]
        await refused(objects.put("a/2", DATA), "another process that uses this tier 2")
        assert list(await HdfsObjects(url).list("a")) == ["a/1"]

    run(work)


@pytest.mark.parametrize("applied", [True, False])
def test_a_rename_without_an_answer_counts_if_it_was_applied(server: HdfsServer, applied: bool) -> None:
    objects = HdfsObjects(server.new_bucket())

    async def work() -> None:
        await objects.put("a/0", DATA)
        client = objects._client

        class Loses:
            def __getattr__(self, name: str) -> Any:
                return getattr(client, name)

            def rename(self, *arguments: Any) -> None:
                if applied:
                    client.rename(*arguments)
                raise OSError("RPC listener disconnected")

        objects._client = Loses()  # type: ignore[assignment]
        if applied:
            await objects.put("a/1", DATA)
            assert await objects.read("a/1", 0, len(DATA)) == DATA
        else:
            await refused(objects.put("a/1", DATA), "connection ended")
            assert "a/1" not in await objects.list("a")
        assert not await objects.list("unfinished")

    run(work)


def test_a_file_that_its_writer_left_open_is_no_object(server: HdfsServer) -> None:
    url = server.new_bucket()
    objects = HdfsObjects(url)

    async def work() -> None:
        await objects.put("a/1", DATA)
        # A process that died keeps the lease of its file for minutes.
        other = Client(server.engine.url)
        writer = other.create(f"{url.removeprefix(server.engine.url)}/unfinished/x", WriteOptions())
        writer.write(DATA)
        writer.hsync()
        assert list(await objects.list("a")) == ["a/1"]
        await objects.clear_unfinished()
        assert not await objects.list("unfinished")
        with suppress(OSError):
            writer.close()

    run(work)


def test_a_snapshot_that_keeps_an_object_stops_its_wiping(server: HdfsServer) -> None:
    url = server.new_bucket()
    objects = HdfsObjects(f"{url}/below")
    directory = url.removeprefix(server.engine.url)

    async def work() -> None:
        await objects.put("a/1", DATA)
        await objects.check_wipe("a/1")
        server.engine.admin("-allowSnapshot", directory)
        await objects.check_wipe("a/1")
        server.engine.shell("-createSnapshot", directory, "nightly")
        await refused(objects.check_wipe("a/1"), f"hdfs dfs -deleteSnapshot {directory} nightly")
        server.engine.shell("-deleteSnapshot", directory, "nightly")
        await objects.check_wipe("a/1")

    run(work)


def test_a_task_writes_chunks_beside_the_store_unless_it_may_only_read(
    server: HdfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_bucket()
    objects = HdfsObjects(url)
    builder = ChunkBuilder(block_bytes=1 << 10, chunk_bytes=1 << 40)
    builder.add(memoryview(frame_events([b"event"])), 1)
    made = builder.finish()
    assert made is not None
    grant = ImportGrant(
        segment="s",
        prefix="3/i7-1-2-",
        location=objects.location("chunks/3/i7-1-2"),
        marker="3/i7-1-2",
        appends=False,
        chunk_bytes=1 << 20,
        block_bytes=1 << 10,
    )

    async def work() -> None:
        await objects.put("chunks/3/i7-1-2", b"x")
        place = await open_place(grant)
        assert place is not None
        await place.write(0, made)
        assert sorted(await objects.list("chunks")) == ["chunks/3/i7-1-2", "chunks/3/i7-1-2-0", "chunks/3/i7-1-2-0.idx"]
        # What a task left that died.
        await HdfsObjects(f"{url}/chunks").put("unfinished/x", b"x")
        await objects.clear_unfinished()
        assert not await objects.list("chunks/unfinished")
        client = Client(server.engine.url)
        for name in ("", "/chunks", "/chunks/3"):
            client.set_permission(f"{url.removeprefix(server.engine.url)}{name}", 0o755)
        client.set_permission(f"{url.removeprefix(server.engine.url)}/chunks/3/i7-1-2", 0o644)
        monkeypatch.setenv("HADOOP_USER_NAME", "nobody")
        assert await HdfsObjects(url).size("chunks/3/i7-1-2") == 1
        assert await open_place(grant) is None

    run(work)
