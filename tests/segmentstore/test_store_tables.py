from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import World, append, run, world, writer

from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    ConditionFailedError,
    EventTooLargeError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotEmptyError,
    SegmentNotFoundError,
    UnsupportedError,
)
from penstock.ports.data.tables import (
    ANY_VERSION,
    KEY_ABSENT,
    KEY_MAX_BYTES,
    VALUE_MAX_BYTES,
    TableCheck,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)

TABLE = "_system/table/0"


async def scanned(store, **bounds) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    after = None
    while page := await store.table_scan(TABLE, after=after, limit=3, **bounds):
        assert [entry.key for entry in page] == sorted(entry.key for entry in page)
        found |= {entry.key: entry.value for entry in page}
        after = page[-1].key
    return found


def test_versions_are_positions_and_conditions_look_at_the_state_before_the_batch() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        versions = await store.table_update(
            TABLE,
            [
                TablePut(key=b"k", value=b"one", version=KEY_ABSENT),
                TablePut(key=b"other", value=b""),
                TablePut(key=b"k", value=b"two", version=KEY_ABSENT),
            ],
        )
        assert list(versions) == [0, 17 + 1 + 3, 17 + 1 + 3 + 17 + 5]
        assert await store.table_get(TABLE, [b"k", b"none", b"other"]) == [
            TableEntry(key=b"k", value=b"two", version=versions[2]),
            TableEntry(key=b"none", value=b"", version=KEY_ABSENT),
            TableEntry(key=b"other", value=b"", version=versions[1]),
        ]
        with pytest.raises(BadKeyVersionError):
            await store.table_update(TABLE, [TablePut(key=b"k", value=b"x", version=versions[0])])
        with pytest.raises(BadKeyVersionError):
            await store.table_update(TABLE, [TablePut(key=b"k", value=b"x", version=KEY_ABSENT)])
        with pytest.raises(KeyNotFoundError):
            await store.table_remove(TABLE, [TableRemoval(key=b"none", version=3)])
        batch = [TablePut(key=b"new", value=b"x"), TablePut(key=b"k", value=b"x", version=0)]
        with pytest.raises(BadKeyVersionError):
            await store.table_update(TABLE, batch)
        assert (await store.table_get(TABLE, [b"new"]))[0].version == KEY_ABSENT, "a batch is all or nothing"
        await store.table_remove(TABLE, [TableRemoval(key=b"none"), TableRemoval(key=b"other", version=versions[1])])
        info, entries, key_bytes = await store.table_info(TABLE)
        assert (entries, key_bytes) == (1, 0)
        assert info.length == 3 * 17 + 1 + 3 + 5 + 1 + 3 + 2 * 17 + 4 + 5

    run(body)


def test_a_length_is_compared_with_what_is_queued() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        for turn in range(20):
            length = (await store.table_info(TABLE))[0].length
            condition = TableLength(length=length)
            results = await asyncio.gather(
                *(store.table_update(TABLE, [condition, TablePut(key=b"%d" % one, value=b"v")]) for one in range(4)),
                store.table_remove(TABLE, [condition, TableRemoval(key=b"0")]),
                return_exceptions=True,
            )
            assert [type(one) for one in results].count(ConditionFailedError) == 4, turn
            assert list(results[0]) == [length]
        with pytest.raises(ConditionFailedError):
            await store.table_update(TABLE, [TableLength(length=0)])
        assert (
            list(await store.table_update(TABLE, [TableLength(length=(await store.table_info(TABLE))[0].length)])) == []
        )

    run(body)


def test_a_check_refuses_the_batch_and_changes_nothing() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        (version,) = await store.table_update(TABLE, [TablePut(key=b"k", value=b"one")])
        length = (await store.table_info(TABLE))[0].length
        checks = [TableCheck(key=b"k", version=version), TableCheck(key=b"none", version=KEY_ABSENT)]
        assert list(await store.table_update(TABLE, checks)) == [version, KEY_ABSENT]
        assert (await store.table_info(TABLE))[0].length == length
        answer = await store.table_update(TABLE, [checks[0], TablePut(key=b"a", value=b"x"), checks[1]])
        assert list(answer) == [version, length, KEY_ABSENT]
        assert await scanned(store) == {b"a": b"x", b"k": b"one"}
        # A queued change counts even if it is not durable: the second of the two is refused.
        results = await asyncio.gather(
            store.table_update(TABLE, [TablePut(key=b"k", value=b"two")]),
            store.table_update(TABLE, [TablePut(key=b"b", value=b"x"), checks[0]]),
            return_exceptions=True,
        )
        assert isinstance(results[1], BadKeyVersionError)
        for late in (checks[0], TableCheck(key=b"k", version=KEY_ABSENT)):
            with pytest.raises(BadKeyVersionError):
                await store.table_update(TABLE, [TablePut(key=b"b", value=b"x"), late])
        with pytest.raises(KeyNotFoundError):
            await store.table_update(TABLE, [TablePut(key=b"b", value=b"x"), TableCheck(key=b"none", version=3)])
        assert await scanned(store) == {b"a": b"x", b"k": b"two"}

    run(body)


def test_concurrent_conditional_updates_let_one_win() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        puts = [
            store.table_update(TABLE, [TablePut(key=b"k", value=b"%d" % index, version=KEY_ABSENT)])
            for index in range(5)
        ]
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert sum(isinstance(result, BadKeyVersionError) for result in results) == 4
        winner = next(index for index, result in enumerate(results) if not isinstance(result, Exception))
        assert (await store.table_get(TABLE, [b"k"]))[0].value == b"%d" % winner

    run(body)


def test_delta_gives_each_changed_key_once_and_ends() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        empty = await store.table_delta(TABLE, 0, 10)
        assert (list(empty.entries), empty.reached_end, empty.position) == ([], True, 0)
        for index in range(7):
            await store.table_update(TABLE, [TablePut(key=b"k%d" % index, value=b"v")])
            if index == 3:
                await store.flush()
        await store.table_update(TABLE, [TablePut(key=b"k0", value=b"again")])
        await store.table_remove(TABLE, [TableRemoval(key=b"k5")])
        position, keys = 0, []
        while True:
            delta = await store.table_delta(TABLE, position, 2)
            assert not delta.should_clear
            keys += [entry.key for entry in delta.entries]
            position = delta.position
            if delta.reached_end:
                break
        assert keys == [b"k1", b"k2", b"k3", b"k4", b"k6", b"k0"]
        assert position == (await store.table_info(TABLE))[0].length
        last = await store.table_delta(TABLE, position, 2)
        assert (list(last.entries), last.reached_end, last.position) == ([], True, position)
        await store.table_update(TABLE, [TablePut(key=b"k9", value=b"v")])
        assert [entry.key for entry in (await store.table_delta(TABLE, position, 2)).entries] == [b"k9"]
        with pytest.raises(InvalidArgumentError):
            await store.table_delta(TABLE, 10_000, 2)

    run(body)


def test_sorted_tables_scan_within_inclusive_bounds() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE, kind=TableKind.SORTED, key_bytes=2)
        keys = [bytes([high, low]) for high in (0, 1, 255) for low in (0, 127, 255)]
        await store.table_update(TABLE, [TablePut(key=key, value=key) for key in reversed(keys)])
        assert list(await scanned(store)) == keys
        assert list(await scanned(store, first=b"\x00\xff", last=b"\x01\xff")) == keys[2:6]
        assert list(await scanned(store, first=b"\xff\xff", last=b"\xff\xff")) == [b"\xff\xff"]
        with pytest.raises(InvalidArgumentError):
            await store.table_update(TABLE, [TablePut(key=b"long", value=b"")])
        with pytest.raises(UnsupportedError):
            await store.table_delta(TABLE, 0, 1)
        assert (await store.table_info(TABLE))[2] == 2

    run(body)


def test_limits_and_kinds() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        with pytest.raises(AlreadyExistsError):
            await store.create_table(TABLE)
        with pytest.raises(InvalidArgumentError):
            await store.create_table(TABLE + "1", kind=TableKind.SORTED)
        with pytest.raises(EventTooLargeError):
            await store.table_update(TABLE, [TablePut(key=bytes(KEY_MAX_BYTES + 1), value=b"")])
        with pytest.raises(EventTooLargeError):
            await store.table_update(TABLE, [TablePut(key=b"", value=bytes(VALUE_MAX_BYTES + 1))])
        large = [TablePut(key=b"%d" % index, value=bytes(VALUE_MAX_BYTES)) for index in range(17)]
        with pytest.raises(EventTooLargeError):
            await store.table_update(TABLE, large)
        with pytest.raises(InvalidArgumentError):
            await store.table_update(TABLE, [TablePut(key=b"", value=b"")] * 257)
        plain = "a/b/0"
        await store.create_segment(plain)
        for call in (
            append(store, TABLE, b"x"),
            store.read(TABLE, 0, 1),
            store.info(TABLE),
            store.seal(TABLE),
            store.truncate(TABLE, 0),
            store.delete(TABLE),
            store.get_attribute(TABLE, writer(1)),
            store.table_get(plain, [b""]),
            store.table_update(plain, []),
            store.table_scan(plain, after=None, limit=1),
            store.table_info(plain),
            store.delete_table(plain),
        ):
            with pytest.raises(InvalidArgumentError):
                await call

    run(body)


def test_a_deleted_table_starts_over() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_table(TABLE)
        await store.table_update(TABLE, [TablePut(key=b"k", value=b"v")])
        await store.flush()
        with pytest.raises(NotEmptyError):
            await store.delete_table(TABLE, must_be_empty=True)
        await store.delete_table(TABLE)
        with pytest.raises(SegmentNotFoundError):
            await store.table_get(TABLE, [b"k"])
        await store.create_table(TABLE)
        await store.delete_table(TABLE, must_be_empty=True)
        await store.create_table(TABLE)
        assert await scanned(store) == {}
        assert await store.table_update(TABLE, [TablePut(key=b"k", value=b"v", version=KEY_ABSENT)]) == [0]
        store = await world.crash()
        assert await scanned(store) == {b"k": b"v"}

    run(body)


KEYS = [b"", b"a", b"ab", b"b", b"\xff", b"\xff\xff"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=3), st.sampled_from(["any", "right", "wrong"])),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(CHANGES | st.sampled_from(["flush", "crash", "restart", "evict"]), max_size=25)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_a_table_is_a_map_with_versions(steps) -> None:
    async def main() -> None:
        async with world() as made:
            await made.store.create_table(TABLE)
            model: dict[bytes, TableEntry] = {}
            position = 0
            for step in steps:
                if step == "flush":
                    await made.store.flush()
                elif step in ("crash", "restart"):
                    await getattr(made, step)()
                elif step == "evict":
                    await made.evict()
                else:
                    position = await changed(made.store, step, model, position)
            expected = [model[key] for key in sorted(model)]
            assert list(await made.store.table_scan(TABLE, after=None, limit=100)) == expected
            got = await made.store.table_get(TABLE, KEYS)
            absent = [TableEntry(key=key, value=b"", version=KEY_ABSENT) for key in KEYS]
            assert list(got) == [model.get(entry.key, entry) for entry in absent]
            delta = await made.store.table_delta(TABLE, 0, 100)
            assert list(delta.entries) == sorted(model.values(), key=lambda entry: entry.version)
            info, entries, _ = await made.store.table_info(TABLE)
            assert (info.length, entries) == (position, len(model))

    asyncio.run(main())


async def changed(store, step, model: dict[bytes, TableEntry], position: int) -> int:
    """Run one batch of puts or removals against the store and the model; returns the position behind it."""
    removing = step[0][1] is None
    versions = {"any": lambda _: ANY_VERSION, "right": lambda now: now, "wrong": lambda now: now + 1}
    items = []
    for key, value, which in step:
        now = model[key].version if key in model else KEY_ABSENT
        version = versions[which](now)
        items.append(
            TableRemoval(key=key, version=version)
            if removing
            else TablePut(key=key, value=value or b"", version=version)
        )
    wrong = next((item for item in items if item.version not in (ANY_VERSION, _now(model, item.key))), None)
    call = store.table_remove(TABLE, items) if removing else store.table_update(TABLE, items)
    if wrong is not None:
        with pytest.raises(KeyNotFoundError if wrong.key not in model else BadKeyVersionError):
            await call
        return position
    answer = await call
    expected = []
    for item in items:
        expected.append(position)
        value = b"" if removing else item.value
        if removing:
            model.pop(item.key, None)
        else:
            model[item.key] = TableEntry(key=item.key, value=value, version=position)
        position += 17 + len(item.key) + len(value)
    assert removing or list(answer) == expected
    return position


def _now(model: dict[bytes, TableEntry], key: bytes) -> int:
    return model[key].version if key in model else KEY_ABSENT
