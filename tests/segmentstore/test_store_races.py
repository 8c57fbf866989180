"""What was looked up before an await is looked at again after it: each test holds one call at its worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from held_calls import Held
from store_world import World, Writer, append, content, run, writer

from penstock.model.errors import BadKeyVersionError, ContainerOfflineError
from penstock.ports.data.segments import NO_EVENT, Appended
from penstock.ports.data.tables import ANY_VERSION, TablePut
from penstock.storage.memory.memory_log import MemoryLog

SEGMENT = "scope/stream/0.#epoch.0"
TXN = SEGMENT + "#transaction." + "0" * 32
TABLE = "_system/table/0"


def looks_for(tag: bytes) -> Callable[..., bool]:
    return lambda keys: any(key[:1] == tag for key in keys)


def test_a_segment_is_not_loaded_as_it_was_before_it_changed() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"old")
        await world.evict()
        held = Held(world.keyvalue, "get_many", matches=looks_for(b"s"))
        reading = asyncio.ensure_future(store.info(SEGMENT))
        await held.reached.wait()
        await append(store, SEGMENT, b"new")
        await world.evict()
        held.release.set()
        assert (await reading).length == 6
        assert await append(store, SEGMENT, b"!") == 7

    run(body)


def test_a_writer_is_not_set_up_with_what_it_was_before() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"0")
        await world.evict()
        await store.info(SEGMENT)
        held = Held(world.keyvalue, "get_many", matches=looks_for(b"a"))
        setup = asyncio.ensure_future(store.setup_append(SEGMENT, writer(1)))
        await held.reached.wait()
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"1")
        await world.evict()
        held.release.set()
        assert await setup == 1
        assert await one.append(b"2") == 3

    run(body)


def test_a_writer_forgotten_meanwhile_is_read_again() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"0")
        await world.evict()
        await store.info(SEGMENT)
        held = Held(world.keyvalue, "get_many", matches=looks_for(b"a"))
        setup = asyncio.ensure_future(store.setup_append(SEGMENT, writer(1)))
        await held.reached.wait()
        await append(store, SEGMENT, b"1")
        await append(store, SEGMENT, b"2", 2)
        await store.flush()
        store._container(SEGMENT).segments.evict_idle(1000)
        held.release.set()
        assert await setup == 1

    run(body, max_loaded_attributes=1)


def test_an_attribute_is_not_cleared_from_under_a_change() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.flush()  # of a segment that no checkpoint has seen nothing is looked for
        held = Held(world.keyvalue, "get_many", matches=looks_for(b"a"))
        first = asyncio.ensure_future(store.update_attribute(SEGMENT, writer(1), 5, expected=NO_EVENT))
        await held.reached.wait()
        assert await store.update_attribute(SEGMENT, writer(1), 7, expected=NO_EVENT)
        await world.evict()
        held.release.set()
        assert not await first
        assert await store.get_attribute(SEGMENT, writer(1)) == 7

    run(body)


@pytest.mark.parametrize("pending", [False, True])
def test_a_table_condition_is_not_decided_on_what_was_before_a_checkpoint(pending: bool) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        (version,) = await store.table_update(TABLE, [TablePut(key=b"k", value=b"1")])
        await store.flush()
        held = Held(world.keyvalue, "get_many", matches=looks_for(b"t"))
        late = asyncio.ensure_future(store.table_update(TABLE, [TablePut(key=b"k", value=b"late", version=version)]))
        await held.reached.wait()
        await store.table_update(TABLE, [TablePut(key=b"k", value=b"2", version=version)])
        if not pending:
            await store.flush()
        held.release.set()
        with pytest.raises(BadKeyVersionError):
            await late
        assert (await store.table_get(TABLE, [b"k"]))[0].value == b"2"

    run(body)


def test_a_table_change_does_not_go_to_a_deleted_table() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        held = Held(world.keyvalue, "get_many", matches=looks_for(b"t"))
        late = asyncio.ensure_future(
            store.table_update(TABLE, [TablePut(key=b"k", value=b"late", version=ANY_VERSION)])
        )
        await held.reached.wait()
        await store.delete_table(TABLE)
        await store.create_table(TABLE)
        held.release.set()
        assert list(await late) == [0]
        store = await world.crash()
        assert (await store.table_get(TABLE, [b"k"]))[0].value == b"late"
        assert (await store.table_info(TABLE))[1] == 1

    run(body)


def test_a_merge_does_not_take_a_source_that_has_gone() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await world.evict()
        await store.create_segment(TXN)
        await append(store, TXN, b"old")
        held = Held(world.keyvalue, "get_many", matches=looks_for(b"s"))
        merging = asyncio.ensure_future(store.merge(SEGMENT, TXN))
        await held.reached.wait()
        await store.delete(TXN)
        await store.create_segment(TXN)
        await append(store, TXN, b"newer")
        held.release.set()
        assert await merging == 5
        assert await content(store, SEGMENT) == b"newer"
        store = await world.crash()
        assert await content(store, SEGMENT) == b"newer"

    run(body)


def test_a_file_stays_until_the_commit_that_began_after_its_release() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"data")
        await store.flush()
        container = store._container(SEGMENT)
        await store.update_attribute(SEGMENT, writer(1), 1, expected=None)
        real, reached, release = world.keyvalue.commit, asyncio.Event(), asyncio.Event()

        async def commit(*arguments, **named) -> None:
            reached.set()
            await release.wait()
            await real(*arguments, **named)

        world.keyvalue.commit = commit
        committing = asyncio.ensure_future(container.checkpointer.checkpoint())
        await reached.wait()
        await store.delete(SEGMENT)
        release.set()
        await committing
        await container.reclaimer.free()
        assert len(await world.chunks.list()) == 2, "the rows still name the chunk"
        await store.flush()
        assert await world.chunks.list() == []

    run(body)


class GatedLog(MemoryLog):
    """A log whose writes wait for ``gate``."""

    def __init__(self, world: World) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        super().__init__(world.log_state, pause=self.wait)

    async def wait(self) -> None:
        self.waiting.set()
        await self.gate.wait()


class GatedWorld(World):
    def make_log(self) -> MemoryLog:
        self.log = GatedLog(self)
        return self.log

    async def hold(self) -> None:
        self.log.gate.clear()
        self.log.waiting.clear()


async def gated(test) -> None:
    world = GatedWorld(containers=1)
    await world.open()
    try:
        async with asyncio.timeout(20):
            await test(world)
    finally:
        world.log.gate.set()
        await world.store.close(checkpoint=False)


def test_a_frame_in_flight_is_held_by_its_container() -> None:
    async def body(world: GatedWorld) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await store.flush()
        (container,) = store.containers
        assert container.log_free_upto() is None
        last = store._shared_log.last_address
        await world.hold()
        results: list = []
        one.submit(b"x", results)
        await world.log.waiting.wait()
        assert container.log_free_upto() == last
        world.log.gate.set()
        while not results:
            await asyncio.sleep(0)
        assert results == [Appended(end_offset=1)]
        assert container.log_free_upto() == last

    asyncio.run(gated(body))


def test_going_offline_answers_what_is_in_flight_once() -> None:
    async def body(world: GatedWorld) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        reading = asyncio.ensure_future(store.read(SEGMENT, 0, 1))
        await world.hold()
        results: list = []
        one.submit(b"in flight", results)
        await world.log.waiting.wait()
        one.submit(b"queued", results)
        store.containers[0].go_offline("a test says so", ValueError("cause"))
        world.log.gate.set()
        with pytest.raises(ContainerOfflineError):
            await reading
        for _ in range(10):
            await asyncio.sleep(0)
        assert [type(result) for result in results] == [ContainerOfflineError] * 2
        assert "cause" in str(results[0])
        assert store._memory.queued_bytes == 0
        store = await world.crash()
        assert await content(store, SEGMENT) in (b"", b"in flight")

    asyncio.run(gated(body))


def test_a_close_makes_no_checkpoint_once_the_log_has_ended_under_it() -> None:
    async def body(world: GatedWorld) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await world.hold()
        results: list = []
        one.submit(b"in flight", results)
        await world.log.waiting.wait()
        container = store._container(SEGMENT)
        checkpoints = 0
        original = container.checkpointer.last

        async def last() -> None:
            nonlocal checkpoints
            checkpoints += 1
            await original()

        container.checkpointer.last = last
        closing = asyncio.ensure_future(container.settle())
        for _ in range(10):
            await asyncio.sleep(0)
        container.go_offline("no bookie answers", ValueError("cause"))
        world.log.gate.set()
        await closing
        assert [type(result) for result in results] == [ContainerOfflineError]
        assert checkpoints == 0

    asyncio.run(gated(body))


def test_parked_appends_are_answered_when_the_container_goes_offline() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await world.evict()
        held = Held(world.keyvalue, "get_many")
        results: list = []
        one = Writer(store, SEGMENT)
        one.submit(b"a", results)
        one.submit(b"b", results)
        await held.reached.wait()
        store._container(SEGMENT).go_offline("a test says so", None)
        held.release.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert [type(result) for result in results] == [ContainerOfflineError] * 2

    run(body)


def test_a_failing_callback_is_reported_and_stops_nobody() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        reported: list = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        request = one.request(b"x")
        one.last = request.event_number

        def done(_) -> None:
            raise ValueError("a caller's bug")

        store.submit_append(request, done)
        assert await one.append(b"y") == 2
        assert [str(error) for error in reported] == ["a caller's bug"]

    run(body)


def test_writers_that_have_gone_leave_the_memory_of_a_segment_that_is_never_idle() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        parked = asyncio.ensure_future(store.read(SEGMENT, 1 << 40, 10))
        for number in range(1, 101):
            await store.setup_append(SEGMENT, writer(number))
        late = await Writer(store, SEGMENT, number=101).setup()
        await late.append(b"x")
        segments = store._container(SEGMENT).segments
        segment = segments.visible(SEGMENT)
        assert segment is not None
        assert not segment.is_idle
        segments.evict_idle(1000)
        assert list(segment.attributes) == [writer(101).int], "one that no checkpoint has written stays"
        await store.flush()
        segments.evict_idle(1000)
        assert len(segment.attributes) <= 1
        await late.append(b"y")
        assert await store.setup_append(SEGMENT, writer(1)) == NO_EVENT
        assert await store.setup_append(SEGMENT, writer(101)) == late.last
        parked.cancel()

    run(body, max_loaded_attributes=1)


def test_an_attribute_set_to_what_it_was_survives_leaving_memory_on_its_way() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        assert await store.update_attribute(SEGMENT, writer(1), 5, expected=None)
        assert await store.update_attribute(SEGMENT, writer(2), 5, expected=None)
        await store.flush()
        again = asyncio.ensure_future(store.update_attribute(SEGMENT, writer(1), 5, expected=5))
        segments = store._container(SEGMENT).segments
        segment = segments.visible(SEGMENT)
        assert segment is not None
        await asyncio.sleep(0)
        assert segment.pending_operations
        segments.evict_idle(1000)
        assert await again
        await store.flush()
        assert await store.get_attribute(SEGMENT, writer(1)) == 5

    run(body, max_loaded_attributes=1)
