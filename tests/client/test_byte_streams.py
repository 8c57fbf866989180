"""Laws of streams of raw bytes: a file that grows at its end, whose bytes are stored once whatever is lost."""

from __future__ import annotations

import asyncio
import io
import random
import shutil
import zipfile
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from client_world import World, open_services, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.client import byte_stream
from penstock.client.byte_stream import BLOCK_BYTES, AsyncByteStream
from penstock.client.store import AsyncStore
from penstock.core.segments import writer_memory
from penstock.model.errors import (
    InvalidArgumentError,
    NotConnectedError,
    RetentionHoldError,
    StreamNotFoundError,
    StreamSealedError,
    TruncatedError,
)
from penstock.ports.data.segments import Append
from penstock.segmentstore import writer_memory as store_memory
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World as StoredWorld


async def made(store: AsyncStore, name: str = "a/b", **options: Any) -> AsyncByteStream:
    await store.create_stream(name, create_scope=True, **options)
    return store.byte_stream(name)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=40)),
        st.tuples(st.just("read"), st.integers(-1, 60)),
        st.tuples(st.just("read1"), st.integers(-1, 60)),
        st.tuples(st.just("peek"), st.just(0)),
        st.tuples(st.just("seek"), st.integers(0, 200)),
        st.tuples(st.just("back"), st.integers(0, 200)),
        st.tuples(st.just("truncate"), st.integers(0, 200)),
        st.tuples(st.just("flush"), st.just(0)),
    ),
    max_size=30,
)


@given(steps=actions, small=st.booleans())
@settings(max_examples=80)
def test_a_byte_stream_is_a_file_that_grows_at_its_end(steps: Any, small: bool) -> None:
    async def test(world: World) -> None:
        file = await made(world.store)
        data, head, at = b"", 0, 0
        for action, value in steps:
            value = value if isinstance(value, bytes) else min(value, len(data))
            if action == "write":
                assert await file.write(value) == len(value)
                data += value
            elif action in ("seek", "back"):
                at = value
                back = (value - len(data), io.SEEK_END) if action == "back" else (value, io.SEEK_SET)
                assert await file.seek(*back) == at
            elif action == "truncate":
                await file.truncate_head(value)
                head = max(head, value)
            elif action == "flush":
                await file.flush()
                assert file.pending_bytes == 0
            elif at < head:
                at = await file.seek(head)
            elif action == "peek":
                assert data[at:].startswith(await file.peek())
            else:
                found = await (file.read(value) if action == "read" else file.read1(value))
                end = at + len(found)
                assert found == data[at:end]
                if action == "read":
                    assert end == (len(data) if value < 0 else min(len(data), at + value))
                else:
                    assert found or value == 0 or at == len(data)
                at = end
            assert await file.tell() == at
        await file.close()
        assert await world.store.byte_stream("a/b").read() == data[head:]

    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(byte_stream, "BLOCK_BYTES", 16)
            patch.setattr(byte_stream, "READ_AHEAD_BYTES", 8)
        simulate(test)


@pytest.mark.parametrize("seed", range(5))
def test_each_byte_of_two_writers_is_stored_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream, "BLOCK_BYTES", 64)

    async def test(world: World) -> None:
        await made(world.safe)

        async def write(mark: bytes) -> None:
            async with world.store.byte_stream("a/b") as file:
                for number in range(60):
                    await file.write(mark * 8)
                    await file.write(b"%s%06d;" % (mark, number))
                    if number % 7 == 0:
                        await file.flush()

        async with asyncio.TaskGroup() as group:
            group.create_task(write(b"x"))
            group.create_task(write(b"Y"))
        data = await world.safe.byte_stream("a/b").read()
        # Blocks of 64 bytes: sixteen bytes make a record, and four records a block.
        for mark in (b"x", b"Y"):
            own = b"".join(data[at : at + 16] for at in range(0, len(data), 16) if data[at : at + 1] == mark)
            assert own == b"".join(mark * 8 + b"%s%06d;" % (mark, number) for number in range(60))
        assert world.segments.lost > 5

    simulate(test, seed=seed, loss=0.3)


@pytest.mark.parametrize("stored", [True, False])
def test_a_cancelled_flush_leaves_the_bytes_to_the_next_one(stored: bool) -> None:
    async def test(world: World) -> None:
        file = await made(world.store)
        append, gate = world.segments.append, asyncio.Event()

        async def slow(request: Append) -> Any:
            if stored:
                await append(request)
            await gate.wait()

        world.segments.append = slow
        await file.write(b"once")
        flush = asyncio.ensure_future(file.flush())
        await asyncio.sleep(1)
        flush.cancel()
        await asyncio.wait([flush])
        assert flush.cancelled()
        del world.segments.append
        await file.write(b" and more")
        assert await file.read() == b"once and more"

    simulate(test, loss=1e-9)


def test_a_writer_that_was_silent_for_long_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_memory, "BORN_KEPT_MS", 60_000)
    monkeypatch.setattr(store_memory, "LOOK_EVERY_S", 10)

    async def test(world: World, renewed: bool) -> None:
        monkeypatch.setattr(byte_stream, "RENEW_AFTER_S", 30.0 if renewed else float("inf"))
        file = await made(world.store)
        for number in range(3):
            await file.write(b"%d" % number)
            await file.flush()
            await world.real_segments.flush()
            await asyncio.sleep(200)
            assert any(container.writers.floor_ms > 0 for container in world.real_segments.containers)
        assert await file.read() == b"012"

    for renewed in (True, False):
        simulate(lambda world, renewed=renewed: test(world, renewed))


def test_following_reads_wait_for_bytes_and_end_with_the_seal() -> None:
    async def test(world: World) -> None:
        file = await made(world.store)
        follower = world.store.byte_stream("a/b", follow=True)
        reading = asyncio.ensure_future(follower.read(6))
        for part in (b"abc", b"defg"):
            await asyncio.sleep(1)
            assert not reading.done()
            await file.write(part)
            await file.flush()
        assert await reading == b"abcdef"
        cancelled = asyncio.ensure_future(follower.read(9))
        await asyncio.sleep(1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        rest = asyncio.ensure_future(follower.read())
        await file.write(b"hi")
        await file.seal()
        await file.seal()
        assert await rest == b"ghi"
        assert await follower.read1() == b""
        assert await file.read() == b"abcdefghi"
        await file.write(b"late")
        with pytest.raises(StreamSealedError):
            await file.flush()
        with pytest.raises(StreamSealedError):
            await file.close()
        assert file.closed

    simulate(test)


def test_what_was_flushed_survives_a_crash() -> None:
    async def work() -> None:
        world, kept = StoredWorld(), b""
        for life in range(4):
            async with world.serving(crash=life % 2 == 0) as (segments, controller):
                store = AsyncStore(segments, controller, world.clock, world.rng)
                file = store.byte_stream("a/b") if life else await made(store)
                assert await file.read() == kept
                block = random.Random(life).randbytes(BLOCK_BYTES + 5)
                await file.write(block)
                await file.flush()
                kept += block

    asyncio.run(work())


def test_a_hold_protects_bytes_from_truncation() -> None:
    async def test(world: World) -> None:
        file = await made(world.store)
        await file.write(b"0123456789")
        await file.flush()
        await world.store.holds("a/b").add(owner="me", reason="why")
        with pytest.raises(RetentionHoldError):
            await file.truncate_head(5)
        assert await file.head() == 0

    simulate(test)


# --- the blocking file ---


@pytest.fixture
def store() -> Iterator[penstock.Store]:
    with penstock.Store(lambda: open_services(RealClock(), RealRng())) as opened:
        opened.create_stream("a/b", create_scope=True)
        yield opened


def test_a_byte_stream_is_a_file_of_python(store: penstock.Store) -> None:
    with store.byte_stream("a/b") as file:
        assert isinstance(file, io.BufferedIOBase)
        assert (file.readable(), file.writable(), file.seekable()) == (True, True, True)
        with zipfile.ZipFile(kept := io.BytesIO(), "w") as archive:
            archive.writestr("name", b"content" * 1000)
        shutil.copyfileobj(io.BytesIO(kept.getvalue()), file)
        file.flush()
        with zipfile.ZipFile(file) as archive:
            assert archive.read("name") == b"content" * 1000
        start = file.seek(0, io.SEEK_END)
        file.writelines([b"one\n", b"two\n", "drei und vier: äß\n".encode(), b"end"])
        assert file.readline() == b"one\n"
        assert list(file) == [b"two\n", "drei und vier: äß\n".encode(), b"end"]
        file.seek(start)
        into = array("b", bytes(6))
        assert file.readinto(into) == 6
        assert into.tobytes() == b"one\ntw"
        assert file.write(into) == 6
        with pytest.raises(io.UnsupportedOperation):
            file.truncate(0)
        file.seek(start)
        text = io.TextIOWrapper(file, encoding="utf-8")
        assert text.read().splitlines()[2] == "drei und vier: äß"
        text.detach()
        file.truncate_head(start)
        file.seek(0)
        with pytest.raises(TruncatedError) as error:
            file.read(1)
        assert file.seek(error.value.start_offset) == file.head() == start
    assert file.closed
    for call in (file.read, file.flush, lambda: file.write(b"x"), file.tell, file.peek, file.head):
        with pytest.raises((InvalidArgumentError, ValueError)):
            call()
    file.close()


def test_closing_the_store_flushes_its_byte_streams() -> None:
    kept: list[bytes] = []
    world = StoredWorld(clock=RealClock(), rng=RealRng())
    with penstock.Store(world.serving) as store:
        store.create_stream("a/b", create_scope=True)
        store.byte_stream("a/b").write(b"not flushed")
    with penstock.Store(world.serving) as store:
        kept.append(store.byte_stream("a/b").read())
    assert kept == [b"not flushed"]


def test_wrong_streams_and_arguments_are_refused_and_nothing_is_written(store: penstock.Store) -> None:
    store.create_stream("a/two", segments=2)
    store.create_stream("a/scaled").scale(1)
    for name in ("a/two", "a/scaled"):
        file = store.byte_stream(name)
        assert file.write(b"data") == 4
        for call in (file.flush, file.read, file.tell, file.close):
            with pytest.raises(InvalidArgumentError):
                call()
    with pytest.raises(StreamNotFoundError):
        store.byte_stream("a/none").read()
    file = store.byte_stream("a/b")
    file.write(b"0123")
    for data in ("text", 7, None, [1, 2]):
        with pytest.raises(InvalidArgumentError):
            file.write(data)  # type: ignore[arg-type]
    for seek in ((5,), (-1,), (1, 2), (-5, 2), (0, 3), (1.0,), ("1",), (True,)):
        with pytest.raises(InvalidArgumentError):
            file.seek(*seek)  # type: ignore[arg-type]
    for offset in (5, "1", 1.0, True):
        with pytest.raises(InvalidArgumentError):
            file.truncate_head(offset)  # type: ignore[arg-type]
    assert file.read() == b"0123"
    assert file.tell() == 4


def test_a_failing_store_leaves_the_written_bytes_to_a_later_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        file = await made(world.store)

        async def lost(request: Append) -> Any:
            raise NotConnectedError("no way")

        await file.write(b"a")
        world.segments.append = lost
        with pytest.raises(NotConnectedError):
            await file.flush()
        del world.segments.append
        await file.write(b"b")
        await file.close()
        assert await world.safe.byte_stream("a/b").read() == b"ab"

    simulate(test, loss=1e-9)
