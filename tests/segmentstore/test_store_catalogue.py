"""The catalogue: tier 2 knows all that the log has forgotten, whatever fails, and its objects stay few."""

import asyncio
import random
from contextlib import suppress

import pytest
from rebuilt_store import reborn
from store_world import Writer, append, content, run, world, writer

from penstock.codec.store import catalogue as codec
from penstock.codec.store import rows as records
from penstock.model.damage import Damage
from penstock.model.errors import CorruptDataError, StorageFullError, UnavailableError
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.data.tables import TablePut
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair.catalogue_gaps import missing_objects
from penstock.segmentstore.repair.rebuild import list_catalogue, load_container
from penstock.storage.memory.memory_objects import MemoryObjects

NO_SNAPSHOT = "there is no snapshot of the container"
TINY = {"catalogue": True, "catalogue_object_bytes": 2000, "catalogue_growth_bytes": 6000, "catalogue_part_bytes": 1500}


def test_what_the_log_forgot_is_in_the_catalogue_whatever_fails():
    async def one(seed: int) -> None:
        rng = random.Random(seed)
        async with world(**TINY, retry_min_s=0.001, retry_max_s=0.002) as w:
            await _chaos(w, rng)

    for seed in range(8):
        asyncio.run(one(seed))


async def missing(w) -> list[Damage]:
    rows = MetadataRows(w.keyvalue)
    return [item for index in range(w.settings.containers) for item in await missing_objects(rows, index, w.objects)]


async def check_losses(w) -> None:
    """Any object that is lost is missed, or tier 2 gives back as much without it."""
    await w.restart()  # clears the outbox, whose batches are not lost
    assert await missing(w) == []
    known = await list_catalogue(w.objects)
    for name in [name for names in known.values() for name in names]:
        index = name.container
        whole = await load_container(w.objects, index, known[index], None)
        lost = await w.objects.read(str(name), 0, 1 << 20)
        await w.objects.delete(str(name))
        found = await missing(w)
        left = await load_container(w.objects, index, [item for item in known[index] if item != name], None)
        assert {item.container for item in found} <= {index}
        assert bool(found) == (left.applied != whole.applied), (name, found)
        await w.objects.put(str(name), lost)


async def _chaos(w, rng) -> None:
    failing = [0.0]

    async def fail(verb, name):
        if rng.random() < failing[0]:
            raise UnavailableError("tier 2 is away")

    w.objects = MemoryObjects(before=fail, after=fail)
    await w.crash()
    await w.store.create_table("t/t/t")
    for name in ("a/b/0", "a/c/1", "a/d/2"):
        await w.store.create_segment(name)
    data = dict.fromkeys(("a/b/0", "a/c/1", "a/d/2"), b"")
    failing[0] = 0.2
    for number in range(60):
        name = rng.choice(list(data))
        part = rng.randbytes(rng.randrange(1, 60))
        data[name] += part
        await append(w.store, name, part, number=rng.randrange(3))
        await w.store.table_update("t/t/t", [TablePut(key=b"%d" % rng.randrange(9), value=b"%d" % number)])
        if rng.random() < 0.3:
            with suppress(UnavailableError):
                await w.store.flush()
        if rng.random() < 0.05:
            await w.crash()
        if rng.random() < 0.2:
            failing[0] = 0.0
            # One that has just begun has no snapshot yet.
            assert {item.why for item in await missing(w)} <= {NO_SNAPSHOT}
            failing[0] = 0.2
    # The log may have forgotten what tier 2 alone gives back, and nothing else: replayed over it, nothing is missing.
    failing[0] = 0.0
    await w.store.flush()
    entries = await w.store.table_scan("t/t/t", after=None, limit=100)
    numbers = {(name, number): await w.store.setup_append(name, writer(number)) for name in data for number in range(3)}
    await w.store.flush()
    await check_losses(w)
    store = await reborn(w)
    try:
        for name, whole in data.items():
            assert await content(store, name) == whole
        assert await store.table_scan("t/t/t", after=None, limit=100) == entries
        for (name, number), last in numbers.items():
            assert await store.setup_append(name, writer(number)) == last
    finally:
        await store.close(checkpoint=False)


def test_the_log_is_not_truncated_before_the_catalogue_has_it():
    async def scenario(w) -> None:
        away = asyncio.Event()

        async def fail(verb, name):
            if away.is_set() and verb == "put":
                raise UnavailableError("tier 2 is away")

        w.objects = MemoryObjects(before=fail)
        await w.crash()
        await w.store.create_segment("s")
        await w.store.flush()
        away.set()
        await append(w.store, "s", b"data")
        with pytest.raises(UnavailableError):
            await w.store.flush()
        assert any(b"data" in frame for frame in _frames(w))
        away.clear()
        await w.store.flush()
        assert not any(b"data" in frame for frame in _frames(w))

    run(scenario, catalogue=True)


def _frames(w) -> list[bytes]:
    return [frame for _, frame in w.log_state.frames]


def test_chunks_stay_until_the_catalogue_names_them_no_more():
    async def scenario(w) -> None:
        await w.store.create_segment("s")
        await append(w.store, "s", b"x" * 100)
        await w.store.flush()
        (chunk,) = await w.store.chunk_ranges("s", 0, 100)
        away = [True]

        async def fail(verb, name):
            if away[0] and verb == "put":
                raise UnavailableError("tier 2 is away")

        w.objects._before = fail
        await w.store.truncate("s", 100)
        with pytest.raises(UnavailableError):
            await w.store.flush()
        assert chunk.name in await w.chunks.list()
        away[0] = False
        await w.store.flush()
        assert chunk.name not in await w.chunks.list()

    run(scenario, catalogue=True)


def test_a_full_disk_is_emptied_though_the_catalogue_finds_no_room():
    async def scenario(w) -> None:
        await w.store.create_segment("s")
        await append(w.store, "s", b"x" * 100)
        await w.store.flush()
        (chunk,) = await w.store.chunk_ranges("s", 0, 100)

        async def full(verb, name):
            if verb == "put":
                raise StorageFullError("disk is full")

        w.objects._before = full
        await w.store.truncate("s", 100)
        with pytest.raises(StorageFullError):
            await w.store.flush()
        assert chunk.name not in await w.chunks.list()

    run(scenario, catalogue=True)


def test_objects_stay_few_and_snapshots_replace_journals():
    async def scenario(w) -> None:
        await w.store.create_table("t/t/t")
        for number in range(300):
            await w.store.table_update("t/t/t", [TablePut(key=b"%d" % (number % 20), value=b"v" * 50)])
            await w.store.flush()
        assert w.telemetry.counts["catalogue_snapshots"] > 3
        for names in (await list_catalogue(w.objects)).values():
            assert len(names) < 16
        names = {name.container: name for names in (await list_catalogue(w.objects)).values() for name in names}
        assert set(names) == {0, 1}
        entries = await w.store.table_scan("t/t/t", after=None, limit=100)
        store = await reborn(w)
        assert await store.table_scan("t/t/t", after=None, limit=100) == entries
        await store.close(checkpoint=False)

    run(scenario, **TINY)


def test_a_crash_at_any_put_loses_nothing():
    async def one(at: int) -> bool:
        count = [0]

        async def kill(verb, name):
            if verb in ("put", "delete"):
                count[0] += 1
                if count[0] == at:
                    raise UnavailableError("killed")

        async with world(**TINY, retry_min_s=3600, retry_max_s=3600) as w:
            w.objects = MemoryObjects(after=kill) if at % 2 else MemoryObjects(before=kill)
            await w.crash()
            await w.store.create_table("t/t/t")
            for number in range(25):
                await w.store.table_update("t/t/t", [TablePut(key=b"%d" % number, value=b"v" * 40)])
                try:
                    async with asyncio.timeout(5):
                        await w.store.flush()
                except UnavailableError:
                    await w.crash()
            await w.store.flush()
            entries = await w.store.table_scan("t/t/t", after=None, limit=100)
            store = await reborn(w)
            assert await store.table_scan("t/t/t", after=None, limit=100) == entries
            await store.close(checkpoint=False)
            return count[0] >= at

    reached = [asyncio.run(one(at)) for at in range(1, 40, 3)]
    assert all(reached[:8])


def test_a_store_without_a_catalogue_gets_one_when_it_is_opened():
    async def scenario(w) -> None:
        await w.store.create_segment("s")
        await append(w.store, "s", b"before")
        await w.store.flush()
        w.objects = MemoryObjects()
        await w.restart()
        await append(w.store, "s", b" and after")
        await w.store.flush()
        store = await reborn(w)
        assert await content(store, "s") == b"before and after"
        await store.close(checkpoint=False)

    run(scenario)


def test_rows_that_an_older_program_changed_are_noticed():
    async def scenario(w) -> None:
        await w.store.create_segment("s")
        await append(w.store, "s", b"one")
        await w.store.flush()
        objects, w.objects = w.objects, None
        await w.restart()
        await append(w.store, "s", b"two")
        await w.store.flush()
        w.objects = objects
        await w.restart()
        await w.store.flush()
        store = await reborn(w)
        assert await content(store, "s") == b"onetwo"
        await store.close(checkpoint=False)

    run(scenario, catalogue=True)


def test_a_writer_is_set_back_to_what_is_tiered_also_after_a_crash():
    async def scenario(w) -> None:
        await w.store.create_segment("s")
        one = await Writer(w.store, "s", 1).setup()
        for part in (b"a", b"b", b"c"):
            await one.append(part)
        await w.store.flush()
        await one.append(b"d")
        for container in w.store.containers:
            await container.checkpointer.checkpoint()
        await w.crash()
        one.store = w.store
        await one.append(b"e")
        two = await Writer(w.store, "s", 2).setup()
        await two.append(b"f")
        for container in w.store.containers:
            await container.checkpointer.checkpoint()
        reported = []
        store = await reborn(w, reported=reported)
        assert await content(store, "s") == b"abc"
        assert await store.setup_append("s", one.id) == 2
        assert await store.setup_append("s", two.id) == NO_EVENT
        (segment,) = reported
        assert (segment.lost_bytes, segment.lost_events, segment.writers_set_back) == (3, 3, 2)
        container = store._container("s")
        row = await container.rows.get(
            records.uid_key(records.TAG_ATTRIBUTE, container.index, segment.uid, one.id.bytes)
        )
        assert records.decode_writer(row) == (2, 0), "a row without an age is never forgotten"
        await store.close(checkpoint=False)
        assert await w.store.setup_append("s", one.id) == 4

    run(scenario, catalogue=True)


def test_rows_about_the_log_alone_go_when_all_is_tiered():
    async def scenario(w) -> None:
        await w.store.create_segment("s")
        one = await Writer(w.store, "s", 1).setup()
        await one.append(b"a")
        for container in w.store.containers:
            await container.checkpointer.checkpoint()
        assert [key for key in w.keyvalue._keys if key[:1] == b"f"]
        await w.crash()
        await w.store.flush()
        assert not [key for key in w.keyvalue._keys if key[:1] == b"f"]

    run(scenario, catalogue=True)


def test_an_object_under_another_name_or_with_any_flipped_bit_is_refused():
    batch = codec.Batch(
        sequence=5,
        complete_upto=9,
        time_ms=77,
        ranges=[(b"a", b"b")],
        deletes=[b"c"],
        puts=[(b"k", b"v" * 9), (b"l", b"")],
    )
    name = codec.ObjectName(kind=codec.Kind.JOURNAL, container=1, run=(3 << 32) + 1, first=5, last=5)
    data = codec.encode_object(name, codec.encode_batch(batch), containers=4, count=1)
    found = codec.decode_object(str(name), data)
    assert (found.damage, list(codec.decode_batches(found.payload))) == (None, [batch])
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                sound = codec.decode_object(str(name), bytes(changed)).damage is None
            except CorruptDataError:
                sound = False
            assert not sound, (at, bit)
    other = codec.ObjectName(kind=codec.Kind.JOURNAL, container=1, run=(3 << 32) + 2, first=5, last=5)
    with pytest.raises(CorruptDataError):
        codec.decode_object(str(other), data)
    for cut in range(len(data)):
        with suppress(CorruptDataError):
            assert codec.decode_object(str(name), data[:cut]).damage is not None


def test_names_are_read_as_they_are_written():
    for name in (
        codec.ObjectName(kind=codec.Kind.JOURNAL, container=10, run=(3 << 32) + 1, first=5, last=6),
        codec.ObjectName(kind=codec.Kind.SNAPSHOT, container=0, run=1, first=5, last=0, part=2),
        codec.ObjectName(kind=codec.Kind.SNAPSHOT, container=0, run=1, first=5, last=9, part=3, end=True),
    ):
        assert codec.parse_object_name(str(name)) == name
    for text in ("", "catalogue/0/x", "catalogue/0/j-1-2-3", "chunks/0/1-1-0", "catalogue/zz/j-1-2-3"):
        assert codec.parse_object_name(text) is None


def test_a_batch_written_while_rows_are_committed_leaves_the_outbox():
    async def body(w) -> None:
        store = w.store
        await store.create_table("s/table")
        await w.settle()
        await store.table_update("s/table", [TablePut(key=b"k", value=b"1")])
        (container,) = [item for item in store.containers if item.segments.visible("s/table") is not None]
        await container.checkpointer._commit()
        real, reached, release = w.keyvalue.commit, asyncio.Event(), asyncio.Event()

        async def commit(*arguments, **named) -> None:
            reached.set()
            await release.wait()
            await real(*arguments, **named)

        w.keyvalue.commit = commit
        await store.table_update("s/table", [TablePut(key=b"k", value=b"2")])
        committing = asyncio.ensure_future(container.checkpointer._commit())
        await reached.wait()
        await container.catalogue.write()  # as the task that writes snapshots does
        release.set()
        await committing
        for number in range(2):
            await store.table_update("s/table", [TablePut(key=b"k", value=b"%d" % number)])
            await store.flush()
        await store.close()
        start, end = records.range_of(records.prefix(records.TAG_OUTBOX, container.index))
        assert await real.__self__.scan(start, end, limit=100) == []

    run(body, **TINY, containers=1)
