from __future__ import annotations

import asyncio

import pytest
from store_world import World, Writer, append, content, run

from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentSealedError,
    TruncatedError,
    WriterFencedError,
)
from penstock.ports.data.segments import NO_EVENT, Append, Appended

SEGMENT = "scope/stream/0.#epoch.0"


def test_what_is_appended_is_read() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        assert one.last == NO_EVENT
        assert await one.append(b"hello ") == 6
        assert await one.append(b"world") == 11
        assert await content(store, SEGMENT) == b"hello world"
        info = await store.info(SEGMENT)
        assert (info.start_offset, info.length, info.sealed) == (0, 11, False)
        part = await store.read(SEGMENT, 3, 4)
        assert b"".join(part.parts) == b"lo w"
        assert not part.at_tail

    run(body)


@pytest.mark.parametrize("how", ["crash", "restart"])
@pytest.mark.parametrize("flush", [False, True])
def test_acknowledged_appends_survive(how: str, flush: bool) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        big = bytes(range(256)) * 256
        await one.append(b"small")
        await one.append(big)
        if flush:
            await store.flush()
            assert not world.log_state.frames
        await one.append(b"tail")
        store = await getattr(world, how)()
        assert await content(store, SEGMENT) == b"small" + big + b"tail"
        again = await Writer(store, SEGMENT).setup()
        assert again.last == 2
        await again.append(b"!")
        store = await world.crash()
        assert await content(store, SEGMENT) == b"small" + big + b"tail!"

    run(body)


def test_submitted_appends_are_answered_in_order_and_durable() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        results: list = []
        for index in range(100):
            one.submit(b"%03d" % index, results)
        assert not results, "an answer came before anything could be durable"
        while len(results) < 100:
            await asyncio.sleep(0)
        assert results == [Appended(end_offset=3 * (index + 1)) for index in range(100)]
        assert len(world.log_state.frames) < 10, "appends of one pass share a frame"
        store = await world.crash()
        assert await content(store, SEGMENT) == b"".join(b"%03d" % index for index in range(100))

    run(body)


def test_a_refusal_is_told_after_the_appends_it_rests_on() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        results: list = []
        one.submit(b"abc", results)
        sealing = asyncio.ensure_future(store.seal(SEGMENT))
        await asyncio.sleep(0)
        one.submit(b"def", results)
        assert await sealing == 3
        while len(results) < 2:
            await asyncio.sleep(0)
        assert results[0] == Appended(end_offset=3)
        assert isinstance(results[1], SegmentSealedError)
        assert results[1].fields["length_bytes"] == 3

    run(body)


def test_an_append_that_does_not_continue_the_writer_is_refused() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"a")
        stale = Append(segment=SEGMENT, writer=one.id, data=b"x", event_number=5, previous=NO_EVENT)
        with pytest.raises(WriterFencedError):
            await store.append(stale)
        for request in (
            Append(segment=SEGMENT, writer=one.id, data=b"x", event_number=0, previous=0),
            Append(segment=SEGMENT, writer=one.id, data=b"x", event_number=1, previous=0, event_count=0),
            Append(segment=SEGMENT, writer=one.id, data=bytes(1 << 24), event_number=1, previous=0),
        ):
            with pytest.raises(InvalidArgumentError):
                await store.append(request)
        assert await content(store, SEGMENT) == b"a"

    run(body)


def test_a_failed_condition_leaves_the_writer_as_it_was() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"abc", expected_offset=0)
        with pytest.raises(ConditionFailedError) as failed:
            await one.append(b"def", expected_offset=2)
        assert (failed.value.fields["expected"], failed.value.fields["actual"]) == (2, 3)
        await one.append(b"def", expected_offset=3)
        assert await content(store, SEGMENT) == b"abcdef"
        assert await store.setup_append(SEGMENT, one.id) == 1

    run(body)


def test_an_append_without_setup_finds_its_segment() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = Writer(store, SEGMENT)
        results: list = []
        for data in (b"a", b"b", b"c"):
            one.submit(data, results)
        Writer(store, SEGMENT + "x").submit(b"no", results)
        while len(results) < 4:
            await asyncio.sleep(0)
        assert {type(result) for result in results} == {Appended, SegmentNotFoundError}
        assert await content(store, SEGMENT) == b"abc"

    run(body)


def test_create_and_delete() -> None:
    async def body(world: World) -> None:
        store = world.store
        with pytest.raises(SegmentNotFoundError):
            await store.info(SEGMENT)
        await store.create_segment(SEGMENT)
        with pytest.raises(AlreadyExistsError):
            await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"old")
        await store.flush()
        await store.delete(SEGMENT)
        for call in (store.info(SEGMENT), store.delete(SEGMENT), store.read(SEGMENT, 0, 1), store.seal(SEGMENT)):
            with pytest.raises(SegmentNotFoundError):
                await call
        await store.create_segment(SEGMENT)
        assert (await store.info(SEGMENT)).length == 0
        assert await store.setup_append(SEGMENT, Writer(store, SEGMENT).id) == NO_EVENT
        await append(store, SEGMENT, b"new")
        store = await world.crash()
        assert await content(store, SEGMENT) == b"new"
        await store.flush()
        await store.delete(SEGMENT)
        store = await world.crash()
        with pytest.raises(SegmentNotFoundError):
            await store.info(SEGMENT)
        await store.flush()
        assert await world.chunks.list() == []

    run(body)


def test_truncation_moves_the_head() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"0123456789")
        await store.truncate(SEGMENT, 4)
        await store.truncate(SEGMENT, 2)
        with pytest.raises(TruncatedError) as truncated:
            await store.read(SEGMENT, 3, 1)
        assert truncated.value.start_offset == 4
        with pytest.raises(InvalidArgumentError):
            await store.truncate(SEGMENT, 11)
        assert await content(store, SEGMENT) == b"456789"
        store = await world.crash()
        assert (await store.info(SEGMENT)).start_offset == 4
        await store.flush()
        await store.truncate(SEGMENT, 10)
        store = await world.restart()
        info = await store.info(SEGMENT)
        assert (info.start_offset, info.length) == (10, 10)
        assert await append(store, SEGMENT, b"ab", 2) == 12

    run(body)


def test_seal_is_final_and_idempotent() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"abc")
        assert await store.seal(SEGMENT) == 3
        assert await store.seal(SEGMENT) == 3
        with pytest.raises(SegmentSealedError):
            await append(store, SEGMENT, b"d")
        assert await store.setup_append(SEGMENT, Writer(store, SEGMENT).id) == 0
        part = await store.read(SEGMENT, 0, 100)
        assert (b"".join(part.parts), part.end_of_segment) == (b"abc", True)
        part = await store.read(SEGMENT, 3, 100)
        assert (list(part.parts), part.end_of_segment) == ([], True)
        with pytest.raises(InvalidArgumentError):
            await store.read(SEGMENT, 4, 1)
        store = await world.crash()
        assert (await store.info(SEGMENT)).sealed

    run(body)


def test_a_mutable_buffer_may_be_reused_after_the_answer() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        buffer = bytearray(b"x" * 100_000)
        await one.append(buffer)
        buffer[:] = b"y" * 100_000
        small = bytearray(b"z" * 10)
        await one.append(memoryview(small))
        small[:] = b"w" * 10
        assert await content(store, SEGMENT) == b"x" * 100_000 + b"z" * 10

    run(body)
