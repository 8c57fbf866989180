"""Changed rows over a store, against a plain map; commits may fail or be overtaken."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import DamagedRowError, StorageFullError
from penstock.segmentstore.metadata import MetadataRows
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue

KEYS = [prefix + suffix for prefix in (b"a", b"b", b"c") for suffix in (b"", b"1", b"2", b"\xff")]
KEY = st.sampled_from(KEYS)
CHANGE = st.one_of(
    st.tuples(st.just("put"), KEY, st.binary(min_size=1, max_size=2)),
    st.tuples(st.just("put_new"), KEY, st.binary(min_size=1, max_size=2)),
    st.tuples(st.just("delete"), KEY),
    st.tuples(st.just("delete_range"), st.sampled_from([(b"a", b"b"), (b"b", b"c"), (b"c", b"d")])),
)
STEP = CHANGE | st.tuples(st.sampled_from(["commit", "fail"]), st.lists(CHANGE, max_size=4))


class Store(MemoryKeyValue):
    """Lets the test act while a commit is in flight, and may fail it, before or after it took effect."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile = None
        self.fails = False

    async def commit(self, puts, deletes=(), *, delete_ranges=()) -> None:
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.fails:
            raise StorageFullError("no room")
        await super().commit(puts, deletes, delete_ranges=delete_ranges)


def change(rows: MetadataRows, model: dict[bytes, bytes], kind: str, *arguments) -> None:
    if kind == "put_new" and arguments[0] in model:
        kind = "put"
    getattr(rows, kind)(*arguments)
    if kind in ("put", "put_new"):
        model[arguments[0]] = arguments[1]
    elif kind == "delete":
        model.pop(arguments[0], None)
    else:
        start, end = arguments[0]
        for key in [key for key in model if start <= key < end]:
            del model[key]


async def check(rows: MetadataRows, model: dict[bytes, bytes]) -> None:
    assert await rows.get_many(KEYS) == [model.get(key) for key in KEYS]
    assert await rows.scan_all((b"", b"\xff")) == sorted(model.items())
    assert (
        await rows.scan((b"a1", b"c"), limit=3)
        == sorted((key, value) for key, value in model.items() if b"a1" <= key < b"c")[:3]
    )


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=15))
def test_reads_see_all_changes_and_a_commit_takes_them_all(steps) -> None:
    async def main() -> None:
        store = Store()
        rows, model = MetadataRows(store), {}
        for step in steps:
            if step[0] not in ("commit", "fail"):
                change(rows, model, *step)
                continue

            async def meanwhile(changes=step[1]) -> None:
                for item in changes:
                    change(rows, model, *item)
                    await check(rows, model)

            store.meanwhile, store.fails = meanwhile, step[0] == "fail"
            try:
                await rows.commit()
            except StorageFullError:
                assert store.fails
            store.meanwhile, store.fails = None, False
            await check(rows, model)
        await check(rows, model)
        await rows.commit()
        assert not rows.changed
        assert rows.changed_bytes == 0
        assert dict(store._values) == model

    asyncio.run(main())


def test_what_comes_and_goes_between_two_commits_leaves_no_trace_in_them() -> None:
    class Recorder(MemoryKeyValue):
        async def commit(self, puts, deletes=(), *, delete_ranges=()) -> None:
            self.last = dict(puts), list(deletes), list(delete_ranges)
            await super().commit(puts, deletes, delete_ranges=delete_ranges)

    async def main() -> None:
        store = Recorder()
        rows = MetadataRows(store)
        rows.put_new(b"a1", b"1")
        rows.put(b"a1", b"2")
        rows.put_new(b"b1", b"3")
        rows.put_new(b"stays", b"4")
        rows.delete(b"a1")
        rows.delete_range((b"b", b"c"), stored=False)
        assert await rows.get_many([b"a1", b"b1", b"stays"]) == [None, None, b"4"]
        await rows.commit()
        assert store.last == ({b"stays": b"4"}, [], [])
        # What a commit has taken may be in the store: from here on it takes a deletion.
        rows.delete(b"stays")
        await rows.commit()
        assert store.last == ({}, [b"stays"], [])

    asyncio.run(main())


def test_a_row_that_was_read_while_a_commit_changed_it_is_not_remembered() -> None:
    class Slow(MemoryKeyValue):
        def __init__(self) -> None:
            super().__init__()
            self.reads = 0
            self.go_on = asyncio.Event()
            self.go_on.set()

        async def get_many(self, keys):
            self.reads += 1
            found = await super().get_many(keys)
            await self.go_on.wait()
            return found

    async def main() -> None:
        store = Slow()
        rows = MetadataRows(store)
        rows.put(b"a", b"1")
        await rows.commit()
        store.go_on.clear()
        late = asyncio.ensure_future(rows.get(b"a"))
        await asyncio.sleep(0)
        rows.put(b"a", b"2")
        await rows.commit()
        store.go_on.set()
        assert await late in (b"1", b"2")
        assert [await rows.get(b"a") for _ in range(3)] == [b"2"] * 3
        assert store.reads == 2, "what is read twice is known the second time"
        rows.delete(b"a")
        assert await rows.get(b"a") is None
        await rows.commit()
        assert await rows.get(b"a") is None

    asyncio.run(main())


class Late(MemoryKeyValue):
    """Its answers are those of the moment in which it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def get_many(self, keys):
        await self.go_on.wait()
        return await super().get_many(keys)

    async def scan(self, start, end, *, limit, reverse=False):
        await self.go_on.wait()
        return await super().scan(start, end, limit=limit, reverse=reverse)


@pytest.mark.parametrize("commits", [1, 2])
@pytest.mark.parametrize("how", ["known", "changed", "scan"])
def test_rows_that_change_together_are_read_together(how: str, commits: int) -> None:
    async def main() -> None:
        store = Late()
        rows = MetadataRows(store)
        for key in (b"a", b"b"):
            rows.put(key, b"1")
        await rows.commit()
        before = [b"1", b"1"]
        if how == "known":
            assert await rows.get(b"a") == b"1"
        else:
            rows.put(b"a", b"2")
            before = [b"2", b"1"]
        store.go_on.clear()
        read = rows.scan((b"a", b"c"), limit=10) if how == "scan" else rows.get_many([b"a", b"b"])
        late = asyncio.ensure_future(read)
        await asyncio.sleep(0)
        for number in range(commits):
            for key in (b"a", b"b"):
                rows.put(key, b"new %d" % number)
            await rows.commit()
        store.go_on.set()
        found = await late
        values = [value for _, value in found] if how == "scan" else found
        assert values in (before, [b"new %d" % (commits - 1)] * 2)

    asyncio.run(main())


@pytest.mark.parametrize("key", [b"a", b"b", b"c", b"d"])
def test_rows_out_of_order_are_damage_and_not_read_for_ever(key: bytes) -> None:
    """Where pages of the store are damaged, a scan may name a damaged row outside of the range that was asked for."""

    class OutOfOrder(MemoryKeyValue):
        async def scan(self, start, end, *, limit, reverse=False):
            raise DamagedRowError("value fails its checksum", key=key.hex())

    async def main() -> None:
        damaged: list[bytes] = []
        async with asyncio.timeout(5):
            with pytest.raises(DamagedRowError):
                await MetadataRows(OutOfOrder()).scan((b"b", b"c"), limit=10, damaged=damaged)

    asyncio.run(main())
