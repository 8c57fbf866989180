"""An S3 server behind a network that fails: nothing is lost, nothing wrong is read, and it is said what happened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from s3_faults import Fault, FaultProxy, answer, fault_proxy
from s3_world import SERVERS, S3Server, running

from penstock.model.errors import CorruptDataError, SegmentNotFoundError, StorageFullError, UnavailableError
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.objects.cloud_objects import BucketObjects, ObjectSettings

NAME, OTHER = "0/1-2-3", "0/1-2-3-1"
SLOW_DOWN = Fault("answer", answer("503 Slow Down", "SlowDown"))
# Short pauses between attempts, and long ones for an answer: on a busy machine Swift takes seconds for a request, and one
# that was given up and repeated is none of the faults that a test has made.
HASTY = ObjectSettings(
    retries=3,
    retry_max_s=0.2,
    request_s=60,
    idle_s=30,
    connect_s=10,
    retry_total_s=120,
    multipart_bytes=6 << 20,
    part_bytes=5 << 20,
)
IMPATIENT = replace(HASTY, idle_s=2)
"""Where it is the limit that ends an attempt."""
DATA = os.urandom(100_000)

Run = Callable[[FaultProxy, ObjectChunks], Awaitable[None]]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


def behind(server: S3Server, work: Run, settings: ObjectSettings = HASTY) -> None:
    async def run() -> None:
        url = server.new_bucket()
        async with fault_proxy(server.endpoint) as proxy:
            await work(proxy, ObjectChunks(BucketObjects(url, endpoint=proxy.endpoint, settings=settings)))

    asyncio.run(run())


def script(verb: str, faults: Sequence[Fault | None]) -> Callable[[str, str], Fault | None]:
    """Faults for the first requests of that verb, in order; what follows passes."""
    left = list(faults)
    return lambda got, path: left.pop(0) if got == verb and left else None


@pytest.mark.parametrize(
    "faults",
    [
        [SLOW_DOWN, SLOW_DOWN],
        [Fault("answer", answer("500 Internal Server Error", "InternalError"))],
        [Fault("drop")],
        [Fault("lose answer")],
        [Fault("lose answer"), SLOW_DOWN, Fault("lose answer")],
        [Fault("replace", answer("500 Internal Server Error", "InternalError"))],
    ],
    ids=["throttled", "error", "dropped", "applied", "applied twice", "applied and refused"],
)
def test_an_upload_is_repeated_until_it_is_there(server: S3Server, faults: Sequence[Fault]) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        proxy.decide = script("PUT", faults)
        await chunks.append(NAME, 0, [DATA])
        await chunks.sync(NAME)
        assert sum(verb == "PUT" for verb, _ in proxy.seen) == len(faults) + 1
        assert await chunks.read(NAME, 0, len(DATA) + 1) == DATA
        assert list(await chunks.list()) == [NAME]

    behind(server, work)


def test_an_upload_that_was_applied_counts_although_no_attempt_was_answered(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        proxy.decide = lambda verb, path: Fault("lose answer") if verb == "PUT" else None
        await chunks.append(NAME, 0, [DATA])
        await chunks.sync(NAME)
        assert await chunks.read(NAME, 0, len(DATA)) == DATA

    behind(server, work)


def test_an_object_of_the_same_length_is_not_taken_for_an_upload_that_arrived(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        await chunks.append(NAME, 0, [DATA[::-1]])
        await chunks.sync(NAME)
        proxy.decide = lambda verb, path: Fault("drop") if verb == "PUT" else None
        await chunks.append(NAME, 0, [DATA])
        with pytest.raises(UnavailableError):
            await chunks.sync(NAME)

    behind(server, work)


def test_the_end_of_a_multipart_upload_counts_although_its_answer_was_lost(server: S3Server) -> None:
    data = os.urandom(11 << 20)

    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        proxy.decide = lambda verb, path: Fault("lose answer") if verb == "POST" and "uploadId" in path else None
        await chunks.append(NAME, 0, [data])
        await chunks.sync(NAME)
        assert await chunks.read(NAME, 0, len(data)) == data

    behind(server, work)


def test_a_part_that_fails_is_sent_again(server: S3Server) -> None:
    data = os.urandom(11 << 20)

    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        proxy.decide = script("PUT", [SLOW_DOWN, Fault("lose answer"), Fault("drop")])
        await chunks.append(NAME, 0, [data])
        await chunks.sync(NAME)
        assert await chunks.read(NAME, 0, len(data)) == data

    behind(server, work)


def test_a_chunk_that_could_not_be_uploaded_takes_no_other_bytes(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        proxy.decide = lambda verb, path: SLOW_DOWN if verb in ("PUT", "HEAD") else None
        await chunks.append(NAME, 0, [DATA])
        with pytest.raises(UnavailableError, match="slow down"):
            await chunks.sync(NAME)
        proxy.decide = lambda verb, path: None
        for offset in (0, len(DATA)):
            with pytest.raises(OSError, match="not used again"):
                await chunks.append(NAME, offset, [b"other"])
        with pytest.raises(OSError, match="not used again"):
            await chunks.sync(NAME)
        with pytest.raises(SegmentNotFoundError):
            await chunks.read(NAME, 0, 1)
        await chunks.append(OTHER, 0, [DATA])
        await chunks.sync(OTHER)
        await chunks.delete(NAME)
        assert list(await chunks.list()) == [OTHER]

    behind(server, work)


def test_what_the_server_keeps_is_asked_back(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        # Another hand puts something else in the place between the upload and the look.
        proxy.decide = script("PUT", [Fault("replace", b'HTTP/1.1 200 OK\r\nETag: "00"\r\nContent-Length: 0\r\n\r\n')])
        await chunks.append(NAME, 0, [DATA])
        with pytest.raises(CorruptDataError):
            await chunks.sync(NAME)

    behind(server, work)


def test_an_upload_that_was_damaged_on_its_way_is_not_taken(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        proxy.decide = lambda verb, path: Fault("flip sent") if verb == "PUT" else None
        await chunks.append(NAME, 0, [DATA])
        with pytest.raises(UnavailableError):
            await chunks.sync(NAME)
        assert list(await chunks.list()) == []

    behind(server, work)


def test_a_full_store_is_named_as_such(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        full = Fault("answer", answer("507 Insufficient Storage", "XMinioStorageFull"))
        proxy.decide = lambda verb, path: full if verb == "PUT" else None
        await chunks.append(NAME, 0, [DATA])
        with pytest.raises(StorageFullError):
            await chunks.sync(NAME)

    behind(server, work)


def test_a_clock_that_is_off_is_named_as_such(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        skewed = Fault("answer", answer("403 Forbidden", "RequestTimeTooSkewed"))
        proxy.decide = lambda verb, path: skewed
        with pytest.raises(UnavailableError, match="clock of this machine is off"):
            await chunks.list()

    behind(server, work)


@pytest.mark.parametrize("kind", ["cut body", "stall", "drop", "lose answer", "throttled"])
def test_a_body_that_breaks_off_is_read_again(server: S3Server, kind: str) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        await chunks.append(NAME, 0, [DATA])
        await chunks.sync(NAME)
        fault = SLOW_DOWN if kind == "throttled" else Fault(kind)
        proxy.decide = script("GET", [fault, fault])
        assert await chunks.read(NAME, 10, 50_000) == DATA[10:50_010]
        times = sum(verb == "GET" for verb, _ in proxy.seen)
        # A slow server may meet the limit once more by itself.
        assert times == 3 or (kind == "stall" and times > 3)

    behind(server, work, IMPATIENT if kind == "stall" else HASTY)


def test_only_the_size_tells_where_an_object_ends(server: S3Server) -> None:
    short = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-19/{len(DATA)}\r\nContent-Length: 10\r\n"
    dated = "Last-Modified: Sat, 21 Nov 2026 21:51:48 GMT\r\n\r\n"
    less = Fault("replace", (short + dated).encode() + DATA[10:20])
    none = Fault("replace", answer("416 Range Not Satisfiable", "InvalidRange"))

    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        await chunks.append(NAME, 0, [DATA])
        await chunks.sync(NAME)
        for fault in (less, none):
            proxy.decide = script("GET", [fault])
            with pytest.raises(UnavailableError):
                await chunks.read(NAME, 10, 50_000)
            assert await chunks.read(NAME, 10, 50_000) == DATA[10:50_010]

    behind(server, work)


def test_a_body_that_always_breaks_off_is_never_taken_for_the_end(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        await chunks.append(NAME, 0, [DATA])
        await chunks.sync(NAME)
        proxy.decide = lambda verb, path: Fault("cut body") if verb == "GET" else None
        with pytest.raises(UnavailableError):
            await chunks.read(NAME, 0, len(DATA))

    behind(server, work)


def test_deleting_is_repeated_and_minds_no_missing_object(server: S3Server) -> None:
    async def work(proxy: FaultProxy, chunks: ObjectChunks) -> None:
        await chunks.append(NAME, 0, [DATA])
        await chunks.sync(NAME)
        proxy.decide = script("DELETE", [SLOW_DOWN, Fault("lose answer")])
        await chunks.delete(NAME)
        await chunks.delete(NAME)
        assert list(await chunks.list()) == []

    behind(server, work)


def test_deleting_holds_nobody_up_for_long(server: S3Server) -> None:
    settings = replace(HASTY, delete_s=0.3, idle_s=30, request_s=30)

    async def run() -> None:
        url = server.new_bucket()
        async with fault_proxy(server.endpoint) as proxy:
            proxy.decide = lambda verb, path: Fault("hold")
            chunks = ObjectChunks(BucketObjects(url, endpoint=proxy.endpoint, settings=settings))
            async with asyncio.timeout(10):
                with pytest.raises(UnavailableError, match="does not answer"):
                    await chunks.delete(NAME)

    asyncio.run(run())


def test_an_upload_that_arrives_late_meets_no_other_bytes_of_its_name() -> None:
    async def run() -> None:
        late: list[str] = []

        async def lost(verb: str, name: str) -> None:
            if verb == "put" and not late:
                late.append(name)
                raise UnavailableError("no answer", object=name)

        objects = MemoryObjects(before=lost)
        chunks = ObjectChunks(objects)
        await chunks.append(NAME, 0, [b"first"])
        with pytest.raises(UnavailableError):
            await chunks.sync(NAME)
        await chunks.append(OTHER, 0, [b"second"])
        await chunks.sync(OTHER)
        await chunks.delete(NAME)
        await objects.put(late[0], b"first")
        assert await chunks.read(OTHER, 0, 9) == b"second"
        # It is garbage now, found by its name as any other.
        assert list(await chunks.list()) == [NAME, OTHER]

    asyncio.run(run())


def test_a_chunk_whose_deletion_failed_stays_unusable() -> None:
    async def run() -> None:
        away = [True]

        async def down(verb: str, name: str) -> None:
            if away[0]:
                raise UnavailableError("away")

        chunks = ObjectChunks(MemoryObjects(before=down))
        await chunks.append(NAME, 0, [b"first"])
        with pytest.raises(UnavailableError):
            await chunks.sync(NAME)
        with pytest.raises(UnavailableError):
            await chunks.delete(NAME)
        away[0] = False
        with pytest.raises(OSError, match="not used again"):
            await chunks.append(NAME, 0, [b"second"])
        assert await chunks.allocated_bytes() == 0

    asyncio.run(run())
