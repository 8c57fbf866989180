"""A store on a full disk: appends are refused with StorageFullError, what makes space is not, and then it goes on."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from store_world import World, Writer, append, content, run

from penstock.model.errors import ContainerOfflineError, StorageFullError, ThrottledError, UnavailableError
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT, TablePut
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_log import MemoryLog

SEGMENT = "scope/stream/0.#epoch.0"
OTHER = "scope/other/0.#epoch.0"
TABLE = "scope/table"
QUICK = {"retry_min_s": 0.001, "retry_max_s": 0.01}


async def fill_tier_2(world: World) -> Writer:
    """A segment whose bytes do not fit into tier 2 any more, and whose store knows it."""
    await world.store.create_segment(SEGMENT)
    one = await Writer(world.store, SEGMENT).setup()
    await one.append(bytes(10_000))
    await world.store.flush()
    world.chunks._budget_bytes = world.chunks._allocated()
    await one.append(b"more")
    for container in world.store.containers:
        container.tiering.force()
    while "tiering_failures" not in world.telemetry.counts:
        await asyncio.sleep(0)
    return one


async def fail_with(error: Exception, *_: object, **__: object) -> None:
    raise error


async def accepted(one: Writer, data: bytes) -> int:
    """The end of an append that is tried until it is taken."""
    while True:
        try:
            return await one.append(data)
        except StorageFullError:
            await asyncio.sleep(0.001)


def test_appends_are_refused_while_tier_2_has_no_room_and_truncation_ends_it() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(OTHER)
        one = await fill_tier_2(world)
        for _ in range(3):
            with pytest.raises(StorageFullError):
                await one.append(b"refused")
        # Another container of the same store lives on the same disk.
        for number in range(4):
            name = f"scope/s{number}/0.#epoch.0"
            await store.create_segment(name)
            with pytest.raises(StorageFullError):
                await append(store, name, b"refused")
        assert await content(store, SEGMENT) == bytes(10_000) + b"more"
        await store.create_table(TABLE)
        await store.table_update(TABLE, [TablePut(key=b"k", value=b"v", version=ANY_VERSION)])
        await store.truncate(SEGMENT, 10_000)
        for container in store.containers:
            container.checkpointer.ask()
        assert await accepted(one, b"again") == 10_009
        assert await content(store, SEGMENT) == b"moreagain"
        store = await world.crash()
        assert await content(store, SEGMENT) == b"moreagain"

    run(body, **QUICK)


def test_a_store_goes_on_when_somebody_else_makes_space() -> None:
    async def body(world: World) -> None:
        one = await fill_tier_2(world)
        with pytest.raises(StorageFullError):
            await one.append(b"refused")
        world.chunks._budget_bytes = None
        assert await accepted(one, b"again") == 10_009
        assert await content(world.store, SEGMENT) == bytes(10_000) + b"moreagain"

    run(body, **QUICK)


def test_appends_are_refused_while_metadata_has_no_room() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"kept")
        real = world.keyvalue.commit
        full = True

        async def commit(puts, deletes=(), *, delete_ranges=()) -> None:
            if full:
                raise StorageFullError("disk is full", file="store.db")
            await real(puts, deletes, delete_ranges=delete_ranges)

        world.keyvalue.commit = commit
        for container in store.containers:
            container.checkpointer.ask()
        while "checkpoint_failures" not in world.telemetry.counts:
            await asyncio.sleep(0)
        with pytest.raises(StorageFullError) as caught:
            await one.append(b"refused")
        assert caught.value.fields == {"file": "store.db"}
        full = False
        assert await accepted(one, b"!") == 5

    run(body, **QUICK)


def test_tables_say_why_metadata_does_not_keep_up() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        put = [TablePut(key=b"k", value=bytes(5_000), version=ANY_VERSION)]

        async def change_for_ever() -> None:
            while True:
                await store.table_update(TABLE, put)

        for error, reported in (
            (OSError(5, "input/output error"), ThrottledError),
            (StorageFullError("disk is full"), StorageFullError),
        ):
            world.keyvalue.commit = partial(fail_with, error)
            failures = world.telemetry.counts.get("checkpoint_failures", 0)
            while world.telemetry.counts.get("checkpoint_failures", 0) < failures + 2:
                try:
                    await store.table_update(TABLE, put)
                except UnavailableError:
                    await asyncio.sleep(0.001)
            with pytest.raises(reported):
                await change_for_ever()

    run(body, checkpoint_rows_bytes=5_000, rows_wait_s=0.02, **QUICK)


def test_changes_of_tables_wait_for_metadata_that_keeps_up_again() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        go_on, real = asyncio.Event(), world.keyvalue.commit

        async def commit(puts, deletes=(), *, delete_ranges=()):
            await go_on.wait()
            await real(puts, deletes, delete_ranges=delete_ranges)

        world.keyvalue.commit = commit
        container = store._container(TABLE)
        versions: list[int] = []

        async def change() -> None:
            for number in range(20):
                put = TablePut(key=b"%d" % number, value=bytes(5_000), version=KEY_ABSENT)
                versions.extend(await store.table_update(TABLE, [put]))

        async with asyncio.TaskGroup() as group:
            task = group.create_task(change())
            while container.rows.changed_bytes < 20_000:
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not task.done()
            assert len(versions) < 10
            go_on.set()
        assert versions == sorted(versions)
        assert len(await store.table_get(TABLE, [b"0", b"19"])) == 2

    run(body, checkpoint_rows_bytes=5_000, **QUICK)


def test_a_container_that_goes_offline_lets_changes_of_tables_go() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        container = store._container(TABLE)
        world.keyvalue.commit = partial(fail_with, OSError(5, "input/output error"))
        put = [TablePut(key=b"k", value=bytes(25_000), version=ANY_VERSION)]
        await store.table_update(TABLE, put)
        waiting = asyncio.ensure_future(store.table_update(TABLE, put))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        container.go_offline("the log has failed", None)
        with pytest.raises(ContainerOfflineError):
            await waiting

    run(body, checkpoint_rows_bytes=5_000, rows_wait_s=3600.0, **QUICK)


def test_a_full_log_is_not_asked_for_every_append() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"kept")
        await store.flush()
        asked = 0
        real = store._log.append

        async def asking(parts, *, vital=False):
            nonlocal asked
            asked += 1
            return await real(parts, vital=vital)

        store._log.append = asking
        world.log_state.full = True
        for _ in range(5):
            with pytest.raises(StorageFullError):
                await one.append(b"refused")
        assert asked == 1
        world.log_state.full = False
        with pytest.raises(StorageFullError):
            await one.append(b"not yet")
        store._shared_log.shortage.log_shrank()
        assert await one.append(b"!") == 5

    run(body, containers=1, retry_min_s=60.0, retry_max_s=60.0)


def test_what_leads_to_space_is_told_to_the_log_and_appends_are_not() -> None:
    async def body(world: World) -> None:
        store = world.store
        said: list[bool] = []
        real = store._log.append

        async def listening(parts, *, vital=False):
            said.append(vital)
            return await real(parts, vital=vital)

        store._log.append = listening
        await store.create_segment(SEGMENT)
        await store.create_table(TABLE)
        await append(store, SEGMENT, b"data")
        assert said == [False] * 3
        said.clear()
        await store.truncate(SEGMENT, 2)
        await store.seal(SEGMENT)
        await store.delete(SEGMENT)
        await store.table_update(TABLE, [TablePut(key=b"k", value=b"v", version=ANY_VERSION)])
        assert said == [True] * 4

    run(body, containers=1)


def test_the_log_learns_that_no_truncation_will_come() -> None:
    reported: list[StorageFullError | None] = []

    class Log(MemoryLog):
        def refuse_waits(self, error: StorageFullError | None) -> None:
            reported.append(error)

    class LogWorld(World):
        def make_log(self) -> MemoryLog:
            return Log(self.log_state)

    async def body() -> None:
        world = LogWorld(**QUICK)
        world.chunks = MemoryChunks()
        await world.open()
        async with asyncio.timeout(20):
            one = await fill_tier_2(world)
            assert [type(error) for error in reported] == [StorageFullError]
            world.chunks._budget_bytes = None
            await accepted(one, b"again")
            assert reported[1:] == [None]
        await world.store.close(checkpoint=False)

    asyncio.run(body())
