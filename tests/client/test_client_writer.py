"""Laws of the writer: every event once, in order per key, whatever is lost and however the stream scales."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import chain

import pytest
from client_world import read_all, simulate

from penstock.client.store import AsyncStore
from penstock.client.writing.prepare import prepare_events
from penstock.model.errors import (
    DeadlineExceededError,
    EventTooLargeError,
    InvalidArgumentError,
    StorageFullError,
    StreamNotFoundError,
    StreamSealedError,
)
from penstock.testing.fakes import SeededRng


class FullDisk:
    """A store that refuses appends while ``full``; with ``remote`` the writer must await each."""

    def __init__(self, inner, *, remote):
        self._inner = inner
        self.full = False
        self.refused = 0
        if remote:
            self.submit_append = None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def heal(self):
        self.full = False

    def _refusal(self):
        self.refused += 1
        return StorageFullError("disk is full", path="chunks/1")

    async def append(self, request):
        if self.full:
            raise self._refusal()
        return await self._inner.append(request)

    def submit_append(self, request, done):
        if self.full:
            asyncio.get_running_loop().call_soon(done, self._refusal())
        else:
            self._inner.submit_append(request, done)


def by_key(events):
    """Events "key:number" as key -> numbers in order of arrival."""
    found = defaultdict(list)
    for event in events:
        key, _, number = event.decode().rpartition(":")
        found[key].append(int(number))
    return found


def test_what_was_flushed_is_read_in_order():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        events = [b"%d" % number * (number % 50) for number in range(3000)]
        async with stream.writer() as writer:
            for event in events:
                await writer.write(event)
            await writer.flush()
            assert await read_all(stream) == events

    simulate(test)


@pytest.mark.parametrize("seed", range(12))
def test_each_event_once_and_in_order_per_key_under_loss_and_scaling(seed):
    async def test(world):
        stream = await world.safe.create_stream("a/s", segments=1, create_scope=True)
        keys = [f"key-{number}" for number in range(40)]
        lossy = world.store.stream("a/s")

        async def write():
            async with lossy.writer(block_bytes=1024, linger_s=0.001) as writer:
                for number in range(100):
                    for key in keys:
                        await writer.write(f"{key}:{number}", key)
                    if number % 10 == 3:
                        await asyncio.sleep(0.05)
                    if number % 25 == 24:
                        await writer.flush()

        async def scale():
            for count in (3, 1, 4, 2):
                await asyncio.sleep(0.2)
                await stream.scale(count)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(scale())
        found = by_key(await read_all(stream))
        assert found == {key: list(range(100)) for key in keys}
        assert world.segments.lost > 5
        assert (await stream.describe()).epoch >= 4

    simulate(test, seed=seed, loss=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_keyless_events_and_batches_survive_loss_and_scaling(seed):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        await stream.scale(3)
        lossy = world.store.stream("a/s")
        keys = [f"k{number % 17}" for number in range(2000)]

        async def write():
            async with lossy.writer(block_bytes=2048) as writer:
                await writer.write_many([f"-:{number}" for number in range(2000)])
                await writer.write_many([f"{key}:{number}" for number, key in enumerate(keys)], keys)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            await asyncio.sleep(0.05)
            await stream.scale(2)
        found = by_key(await read_all(stream))
        assert sorted(found.pop("-")) == list(range(2000))
        assert found == {f"k{rest}": list(range(rest, 2000, 17)) for rest in range(17)}

    simulate(test, seed=seed, loss=0.1)


def test_arrow_and_list_batches_write_what_single_writes_do():
    pa = pytest.importorskip("pyarrow")

    async def test(world):
        events = [b"%d:" % number + bytes(number % 300) for number in range(5000)]
        keys = [f"k{number % 31}" if number % 7 else None for number in range(5000)]
        results = []
        for name in ("single", "list", "arrow"):
            stream = await world.store.create_stream(f"a/{name}", segments=4, create_scope=True)
            async with stream.writer(block_bytes=4096) as writer:
                if name == "single":
                    for event, key in zip(events, keys, strict=True):
                        await writer.write(event, key)
                elif name == "list":
                    await writer.write_many(events, keys)
                else:
                    await writer.write_arrow(pa.array(events).slice(0), pa.array(keys))
            async with stream.reader(until_tail=True) as reader:
                per_segment = defaultdict(list)
                async for batch in reader.read_arrow():
                    for event, segment in zip(batch["event"].to_pylist(), batch["segment_id"].to_pylist(), strict=True):
                        per_segment[segment].append(event)
            results.append(per_segment)
        assert sum(map(len, results[0].values())) == 5000
        keyed = {event for event, key in zip(events, keys, strict=True) if key}
        for other in results[1:]:
            for segment in other:
                assert [e for e in other[segment] if e in keyed] == [e for e in results[0][segment] if e in keyed]
            assert sorted(chain.from_iterable(other.values())) == sorted(events)

    simulate(test)


def test_arrow_slices_text_and_bad_arrays():
    pa = pytest.importorskip("pyarrow")

    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer:
            await writer.write(b"first")
            await writer.write_arrow(pa.array(["x", "yy", "", "zzz"]).slice(1, 2))
            await writer.write_arrow(pa.chunked_array([[b"p"], [b"q"]]))
            await writer.write_arrow(pa.array([], pa.binary()))
            with pytest.raises(InvalidArgumentError, match="null"):
                await writer.write_arrow(pa.array([b"a", None]))
            with pytest.raises(InvalidArgumentError, match="binary or text"):
                await writer.write_arrow(pa.array([1, 2]))
            with pytest.raises(InvalidArgumentError, match="key"):
                await writer.write_arrow(pa.array([b"a"]), pa.array(["k", "l"]))
        assert await read_all(stream) == [b"first", b"yy", b"", b"p", b"q"]

    simulate(test)


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_large_events_keep_their_place(loss):
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        big = bytes(range(256)) * (17 << 12)
        async with world.store.stream("a/s").writer() as writer:
            await writer.write(b"before", "k")
            await writer.write(big, "k")
            await writer.write(b"after", "k")
            await writer.write_many([b"x", big[: 9 << 20], b"y"], ["k"] * 3)
        assert await read_all(world.safe.stream("a/s")) == [b"before", big, b"after", b"x", big[: 9 << 20], b"y"]

    simulate(test, loss=loss, seed=3)


def test_what_cannot_be_an_event_is_refused():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer:
            with pytest.raises(EventTooLargeError):
                await writer.write(bytes((64 << 20) + 1))
            with pytest.raises(InvalidArgumentError):
                await writer.write(5)
            with pytest.raises(InvalidArgumentError):
                await writer.write_many([b"a"], ["k", "l"])
            await writer.write(bytearray(b"fine"))
        assert await read_all(stream) == [b"fine"]
        with pytest.raises(StreamNotFoundError):
            async with world.store.stream("a/none").writer():
                pass

    simulate(test)


def test_a_dead_store_fails_the_writer_at_its_deadline_and_names_what_is_left():
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        writer = world.store.stream("a/s").writer(deadline_s=20)
        await writer.open()
        await writer.write(b"12345", "k")
        await writer.flush()
        world.segments.rate = 2.0  # nothing gets through
        began = world.loop.time()
        await writer.write(b"67", "k")
        await writer.write(b"89", "k")
        with pytest.raises(DeadlineExceededError) as caught:
            await writer.flush()
        assert 20 <= world.loop.time() - began < 25
        assert caught.value.fields["unacked_events"] == 2
        assert caught.value.fields["unacked_bytes"] == 20
        assert caught.value.fields["segments"] == ["a/s/0.#epoch.0"]
        assert "lost" in caught.value.fields["last_error"]
        with pytest.raises(DeadlineExceededError):
            await writer.close()

    simulate(test, loss=0.01)


@pytest.mark.parametrize("remote", [False, True])
def test_a_full_disk_fails_the_writer_with_its_own_error_and_before_that_it_goes_on_by_itself(remote):
    async def test(world):
        disk = FullDisk(world.real_segments, remote=remote)
        stream = await world.safe.create_stream("a/s", create_scope=True)
        store = AsyncStore(disk, world.controller, world.clock, SeededRng(world.loop.fork("full")))
        writer = store.stream("a/s").writer(deadline_s=20)
        for number in range(30):
            await writer.write(b"%d" % number, "k")
            if number % 10 == 4:
                disk.full = True
                world.loop.call_later(15, disk.heal)
            if number % 10 == 9:
                await writer.flush()
        assert disk.refused
        disk.full = True
        began = world.loop.time()
        await writer.write(b"lost", "k")
        with pytest.raises(StorageFullError) as caught:
            await writer.flush()
        assert 19.99 < world.loop.time() - began < 25
        assert caught.value.fields["unacked_events"] == 1
        assert caught.value.fields["deadline_s"] == 20
        assert isinstance(caught.value.__cause__, StorageFullError)
        assert "chunks/1" in str(caught.value)
        with pytest.raises(StorageFullError):
            await writer.close()
        disk.heal()
        assert await read_all(stream) == [b"%d" % number for number in range(30)]

    simulate(test)


def test_writing_to_a_sealed_stream_says_so():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as early:
            await early.write(b"x")
            await early.flush()
            await stream.seal()
            await early.write(b"y")
            with pytest.raises(StreamSealedError) as caught:
                await early.flush()
            assert caught.value.fields["unacked_events"] == 1
            with pytest.raises(StreamSealedError):
                await early.close()
        with pytest.raises(StreamSealedError):
            async with stream.writer():
                pass
        assert await read_all(stream) == [b"x"]

    simulate(test)


def test_a_writer_outlives_the_truncation_of_its_segment():
    async def test(world):
        stream = await world.store.create_stream("a/s", segments=1, create_scope=True)
        async with stream.writer() as writer:
            await writer.write(b"old", "k")
            await writer.flush()
            await stream.scale(1)
            await stream.truncate(await stream.tail())
            await writer.write(b"new", "k")
        assert await read_all(stream) == [b"new"]

    simulate(test)


def test_memory_is_bounded_while_the_store_does_not_answer():
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        async with world.store.stream("a/s").writer(block_bytes=1024, max_pending_bytes=8192) as writer:
            world.segments.rate = 2.0
            written = 0

            async def fill():
                nonlocal written
                while written < 1000:
                    await writer.write(bytes(100), "k")
                    written += 1

            async with asyncio.TaskGroup() as group:
                group.create_task(fill())
                await asyncio.sleep(5)
                assert 70 < written < 120
                world.segments.rate = 0.0
        assert len(await read_all(world.safe.stream("a/s"))) == 1000

    simulate(test, loss=0.01)


def test_a_writer_that_is_not_open_opens_itself_and_a_closed_one_says_so():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        first, second = stream.writer(), stream.writer()
        await first.write(b"x")
        await first.close()
        await second.write_many([b"y"], ["k"])
        await second.close()
        for late in (first.write(b"z"), first.write_many([b"z"]), first.open(), first.flush()):
            with pytest.raises(InvalidArgumentError, match="closed"):
                await late
        assert await read_all(stream) == [b"x", b"y"]

    simulate(test)


def test_an_idle_writer_sends_a_single_event_without_a_flush():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer(linger_s=5.0) as writer, stream.reader() as reader:
            began = world.loop.time()
            await writer.write(b"now", "k")
            block = await reader.next_block()
            assert block.events() == [b"now"]
            assert world.loop.time() - began < 1

    simulate(test)


def test_a_flush_of_very_many_segments_sends_them_in_slices_and_waits_for_all():
    async def test(world):
        stream = await world.store.create_stream("a/s", segments=700, create_scope=True)
        keys = [f"key-{number}" for number in range(3000)]
        async with stream.writer() as writer:
            for key in keys:
                await writer.write(f"{key}:0", key)
            await writer.flush()
            passes = 0

            async def look():
                nonlocal passes
                while not flushed:
                    passes += 1
                    await asyncio.sleep(0)

            for number in (1, 2):
                for key in keys:
                    writer._core.lanes[key].written.extend((key, f"{key}:{number}".encode()))
            flushed = []
            looking = asyncio.ensure_future(look())
            await writer.flush()
            flushed.append(True)
            await looking
            assert passes >= 3, "the loop has had turns between the slices"
            assert not writer._core.pending_bytes
        assert by_key(await read_all(stream)) == {key: [0, 1, 2] for key in keys}

    simulate(test)


class InterruptedLane(list):
    """The events of a lane. The thread that writes goes on in the middle of a call that it interrupted."""

    late = ["k", b"2"]

    def __delitem__(self, taken):
        super().__delitem__(taken)
        self.extend(self.late)
        self.late = []


def test_events_written_while_blocks_of_their_lane_are_taken_keep_their_order():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer:
            core = writer._core
            await core.open()
            (lane,) = core.lane_list()
            lane.written = InterruptedLane(["k", b"1"])
            prepared = prepare_events(core.lanes, [bytes(50)] * 4, ["k"] * 4, 64)
            assert len(prepared) > 1
            core.enqueue(prepared)
            await writer.flush()
        assert [event for event in await read_all(stream) if len(event) == 1] == [b"1", b"2"]

    simulate(test)
