"""Chunks as objects: the laws of the port, on memory, and on real S3 servers and HDFS that are started here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hdfs_world import ALL_SERVERS, TierServer, tier_running
from s3_world import CREDENTIALS, SERVERS

from penstock.model.errors import InvalidArgumentError, UnavailableError
from penstock.ports.chunks import ChunkStorage
from penstock.ports.objects import Objects
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.objects.cloud_objects import BucketObjects, ObjectSettings
from penstock.storage.objects.file_objects import FileObjects
from penstock.storage.objects.locations import read_location
from penstock.testing import InlineOffload
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.chunks import ChunkLaws
from penstock.testing.conformance.objects import ObjectLaws

NAME = "0/1-2-3"
# One more attempt, soon; but none is given up because a server on a busy machine takes seconds to answer.
HASTY = ObjectSettings(retries=1, retry_max_s=0.2, request_s=60, idle_s=30, connect_s=10, retry_total_s=120)


class ObjectChunkLaws(ChunkLaws):
    many = 10

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ChunkStorage]:
        chunks = ObjectChunks(self.objects)
        try:
            yield chunks
        finally:
            await chunks.close()


@pytest.fixture(scope="module", params=ALL_SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierServer]:
    with tier_running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def chunks_in(server: TierServer, url: str, settings: ObjectSettings = HASTY) -> ObjectChunks:
    return ObjectChunks(server.objects(url, settings))


@pytest.mark.parametrize("law", laws(ChunkLaws))
def test_objects_in_memory_keep_the_laws_of_chunks(law: str) -> None:
    run_conformance(lambda: ObjectChunkLaws(MemoryObjects()), law=law)


@pytest.mark.parametrize("law", laws(ChunkLaws))
def test_a_server_keeps_the_laws_of_chunks(server: TierServer, law: str) -> None:
    objects = server.objects(f"{server.new_bucket()}/below/here", HASTY)
    run_conformance(lambda: ObjectChunkLaws(objects), law=law)


class MemoryObjectLaws(ObjectLaws):
    def __init__(self) -> None:
        self.objects = MemoryObjects()

    def make(self) -> Objects:
        return self.objects


class FileObjectLaws(ObjectLaws):
    def __init__(self, files: RealFiles) -> None:
        self.files = files

    def make(self) -> Objects:
        return FileObjects(self.files)


class ServerObjectLaws(ObjectLaws):
    def __init__(self, server: TierServer) -> None:
        self.server, self.url = server, server.new_bucket()

    def make(self) -> Objects:
        return self.server.objects(f"{self.url}/below", HASTY)


@pytest.mark.parametrize("law", laws(ObjectLaws))
def test_memory_keeps_the_laws_of_objects(law: str) -> None:
    run_conformance(MemoryObjectLaws, law=law)


@pytest.mark.parametrize("law", laws(ObjectLaws))
def test_files_keep_the_laws_of_objects(law: str, tmp_path: Path) -> None:
    run_conformance(lambda: FileObjectLaws(RealFiles(tmp_path, InlineOffload())), law=law)


class VanishingFiles(RealFiles):
    """Between the listing of a directory and the first look at a file someone else deletes it."""

    doomed: str | None = None

    async def list(self, directory: str) -> Sequence[str]:
        names = await super().list(directory)
        if self.doomed is not None and self.doomed.rpartition("/")[0] == directory:
            await self.unlink(self.doomed)
        return names


def test_an_object_deleted_while_its_directory_is_listed_is_left_out(tmp_path: Path) -> None:
    async def run() -> None:
        offload = ThreadOffload()
        try:
            files = VanishingFiles(tmp_path, offload)
            objects = FileObjects(files)
            for name in ("dir/a", "dir/b/c", "dir/d"):
                await objects.put(name, b"1234")
            for doomed in ("dir/d", "dir/b/c"):
                files.doomed = doomed
                assert doomed not in await objects.list("dir")
            files.doomed = None
            assert await objects.list("dir") == {"dir/a": 4}
        finally:
            await offload.close()

    asyncio.run(run())


@pytest.mark.parametrize("law", laws(ObjectLaws))
def test_a_server_keeps_the_laws_of_objects(server: TierServer, law: str) -> None:
    run_conformance(lambda: ServerObjectLaws(server), law=law)


def test_a_large_chunk_goes_up_in_parts_and_is_read_in_ranges(server: TierServer) -> None:
    settings = ObjectSettings(multipart_bytes=6 << 20, part_bytes=5 << 20)
    data = os.urandom(12 << 20)

    async def run() -> None:
        chunks = chunks_in(server, server.new_bucket(), settings)
        await chunks.append(NAME, 0, [memoryview(data)[: 7 << 20]])
        await chunks.append(NAME, 7 << 20, [data[7 << 20 :]])
        await chunks.sync(NAME)
        assert await chunks.allocated_bytes() == len(data)
        for start, length in ((0, 1), (5 << 20, 4096), (len(data) - 5, 5), (3 << 20, 6 << 20)):
            assert await chunks.read(NAME, start, length) == data[start : start + length]
        assert await chunks.read(NAME, len(data) - 3, 100) == data[-3:]
        assert await chunks.read(NAME, len(data), 100) == b""

    asyncio.run(run())


def test_lists_are_read_to_their_last_page(server: TierServer) -> None:
    async def run() -> None:
        objects = server.objects(server.new_bucket(), HASTY)
        names = [f"chunks/0/{number:x}-1-0" for number in range(1050)]
        for first in range(0, len(names), 50):
            async with asyncio.TaskGroup() as group:
                for name in names[first : first + 50]:
                    group.create_task(objects.put(name, b"x"))
        assert list(await objects.list("chunks")) == sorted(names)

    if server.name == "swift":
        pytest.skip("Swift takes a minute for a thousand objects; the protocol is the same")
    asyncio.run(run())


def test_a_location_is_read_without_the_store(server: TierServer) -> None:
    url = server.new_bucket()

    async def run() -> str:
        chunks = chunks_in(server, f"{url}/some/prefix")
        await chunks.append(NAME, 0, [b"0123456789"])
        await chunks.sync(NAME)
        location = chunks.location(NAME)
        assert location is not None
        assert location.startswith(f"{url}/some/prefix/chunks/{NAME}")
        return location

    location = asyncio.run(run())
    assert read_location(location, 3, 4) == b"3456"
    with pytest.raises(UnavailableError):
        read_location(location, 8, 4)
    with pytest.raises(FileNotFoundError):
        read_location(location.replace(NAME, "0/1-2-4"), 0, 1)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "bad-secret"}, "credentials"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "credentials"),
        ({}, "bucket does not exist"),
    ],
)
def test_what_is_wrong_with_a_bucket_is_said(
    server: TierServer, changed: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_bucket() if changed else "s3://penstock-no-such-bucket"
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    objects = server.objects(url, HASTY)
    for call in (
        lambda: objects.list("chunks"),
        lambda: objects.put("chunks/0/x", b"x"),
        lambda: objects.read("chunks/0/x", 0, 1),
    ):
        with pytest.raises(UnavailableError, match=reason) as caught:
            asyncio.run(call())
        assert "bad-secret" not in str(caught.value)


def test_missing_credentials_are_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    objects = BucketObjects("s3://somewhere", endpoint="http://127.0.0.1:1", settings=HASTY)
    with pytest.raises(UnavailableError, match="no credentials"):
        asyncio.run(objects.list("chunks"))


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    objects = BucketObjects("s3://somewhere", endpoint="http://127.0.0.1:1", settings=HASTY)
    with pytest.raises(UnavailableError):
        asyncio.run(objects.list("chunks"))


@pytest.mark.parametrize(
    "url", ["s3://", "http://bucket/x", "s3://user@bucket/x", "s3://bucket/x?y=1", "bucket", "file:///x"]
)
def test_urls_that_name_no_bucket_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        BucketObjects(url)
