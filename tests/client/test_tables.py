"""Laws of key-value tables: a table is a dict whose changes are conditional, whatever is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from client_world import World, open_services, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.client.store import AsyncStore
from penstock.client.tables.entries import Entry, Insert, Put, Remove, Replace
from penstock.client.tables.scan import PAGE_ENTRIES
from penstock.client.tables.table import AsyncTable
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    EventTooLargeError,
    InvalidArgumentError,
    InvalidNameError,
    KeyNotFoundError,
    NotConnectedError,
    ScopeNotFoundError,
    TableNotFoundError,
)
from penstock.ports.data.tables import TABLE_BATCH_MAX, VALUE_MAX_BYTES
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World as StoredWorld

PRIMARIES = [b"aa", b"ab", b"zz", b"\x00\xff"]
SECONDARIES = [b"0", b"\xff"]
KEYS = [(primary, secondary) for primary in PRIMARIES for secondary in SECONDARIES]
Model = dict[tuple[bytes, bytes], tuple[bytes, int]]


async def made(store: AsyncStore, name: str = "a/t", partitions: int = 3) -> AsyncTable:
    return await store.create_table(
        name, primary_key_bytes=2, secondary_key_bytes=1, partitions=partitions, create_scope=True
    )


async def found(table: AsyncTable, **bounds: Any) -> list[tuple[tuple[bytes, bytes], bytes]]:
    return [(entry.key, entry.value) async for entry in table.scan(**bounds)]


kinds = st.sampled_from(["put", "insert", "replace", "remove"])
steps = st.lists(
    st.tuples(
        st.sampled_from(PRIMARIES),
        st.booleans(),
        st.lists(
            st.tuples(st.sampled_from(SECONDARIES), kinds, st.binary(max_size=3), st.sampled_from([-1, 0, 1])),
            min_size=1,
            max_size=3,
            unique_by=lambda item: item[0],
        ),
    ),
    max_size=25,
)


def refusal(model: Model, key: tuple[bytes, bytes], kind: str, version: int | None) -> type[Exception] | None:
    if kind == "insert":
        return BadKeyVersionError if key in model else None
    if kind == "put" or version is None:
        return None
    if key not in model:
        return KeyNotFoundError
    return None if model[key][1] == version else BadKeyVersionError


@given(steps=steps, partitions=st.integers(1, 4))
@settings(max_examples=60)
def test_a_table_is_a_dict_with_conditional_changes(steps: Any, partitions: int) -> None:
    async def test(world: World) -> None:
        table, model = await made(world.store, partitions=partitions), dict[Any, Any]()
        for primary, removes, items in steps:
            await perform(table, model, primary, removes, items)
            assert await found(table) == [(key, model[key][0]) for key in sorted(model)]
        entries = await table.get_many([*KEYS, *KEYS])
        seen = [None if entry is None else (entry.value, entry.version) for entry in entries]
        assert seen == 2 * [model.get(key) for key in KEYS]

    simulate(test)


async def perform(table: AsyncTable, model: Model, primary: bytes, removes: bool, items: Any) -> None:
    changes: list[Any] = []
    refusals = set[type[Exception] | None]()
    for secondary, kind, value, off in items:
        key = primary, secondary
        version = max(0, model.get(key, (b"", 0))[1] + off)
        if removes:
            conditional = kind in ("insert", "replace")
            changes.append(Remove(key, version if conditional else None))
            refusals.add(refusal(model, key, "remove", version if conditional else None))
        else:
            kind = "put" if kind == "remove" else kind
            change = {"put": Put, "insert": Insert}.get(kind)
            changes.append(change(key, value) if change else Replace(key, value, version))
            refusals.add(refusal(model, key, kind, version))
    refusals.discard(None)
    if refusals:
        with pytest.raises(tuple(refusals)):
            await (table.remove_many(changes) if removes else table.update(changes))
    elif removes:
        await table.remove_many(changes)
        for change in changes:
            model.pop(change.key, None)
    else:
        versions = await table.update(changes)
        highest = max([version for _, version in model.values()], default=-1)
        if (await table.config()).partitions == 1:
            assert min(versions) > highest
        for change, version in zip(changes, versions, strict=True):
            model[change.key] = change.value, version


@pytest.mark.parametrize("seed", range(6))
def test_of_two_writers_neither_loses_a_change_or_makes_one_twice(seed: int) -> None:
    async def add(table: AsyncTable, safe: AsyncTable, token: bytes) -> None:
        while True:
            try:
                entry = await table.get(("aa", "0"))
                if entry is None:
                    await table.insert(("aa", "0"), token + b" ")
                else:
                    await table.replace(entry.key, entry.value + token + b" ", entry.version)
                return
            except (BadKeyVersionError, KeyNotFoundError):
                continue
            except NotConnectedError:
                entry = await safe.get(("aa", "0"))
                if entry is not None and token in entry.value.split():
                    return

    async def test(world: World) -> None:
        await made(world.safe)
        safe = world.safe.table("a/t")

        async def writer(name: str) -> None:
            table = world.store.table("a/t")
            for number in range(12):
                await add(table, safe, f"{name}{number}".encode())

        async with asyncio.TaskGroup() as group:
            group.create_task(writer("x"))
            group.create_task(writer("y"))
        entry = await safe.get(("aa", "0"))
        assert entry is not None
        tokens = entry.value.split()
        assert sorted(tokens) == sorted(f"{name}{number}".encode() for name in "xy" for number in range(12))
        assert [token for token in tokens if token.startswith(b"x")] == [f"x{n}".encode() for n in range(12)]
        assert world.segments.lost > 0

    simulate(test, seed=seed, loss=0.3)


def test_a_conditional_change_whose_answer_was_lost_is_not_reported_as_refused() -> None:
    """The change was made, its answer was lost, and the repeat finds the version that it made itself."""

    async def test(world: World) -> None:
        table = await made(world.store)
        update, calls = world.segments.table_update, []

        async def answer_lost(*arguments: Any) -> Any:
            calls.append(await update(*arguments))
            raise NotConnectedError("answer lost")

        world.segments.table_update = answer_lost
        table._segments = world.segments

        with pytest.raises(NotConnectedError):
            await table.insert(("aa", "0"), b"mine")
        assert len(calls) == 1
        entry = await world.safe.table("a/t").get(("aa", "0"))
        assert entry is not None
        assert entry.value == b"mine"

    simulate(test, loss=1e-9)


def test_scans_cross_pages_and_partitions_in_order_within_inclusive_bounds() -> None:
    async def test(world: World) -> None:
        table = await made(world.store)
        keys = [(b"%02x" % (7 * number % 256), bytes([number % 251])) for number in range(PAGE_ENTRIES * 3 + 50)]
        for key in keys:
            await table.put(key, b"".join(key))
        ordered = [(key, b"".join(key)) for key in sorted(set(keys))]
        assert await found(table) == ordered
        some = [item for item in ordered if b"20" <= item[0][0] <= b"7f"]
        assert await found(table, first="20", last="7f") == some
        one = [item for item in ordered if item[0][0] == b"31"]
        assert len(one) > 2
        assert await found(table, primary="31") == one
        assert await found(table, primary="31", first=one[1][0][1], last=one[1][0][1]) == one[1:2]
        assert await found(table, first="7f", last="20") == []

    simulate(test)


def test_what_a_crash_leaves_is_what_was_acknowledged() -> None:
    async def work() -> None:
        world = StoredWorld()
        kept: dict[tuple[bytes, bytes], tuple[bytes, int]] = {}
        for life in range(4):
            async with world.serving(crash=life % 2 == 0) as (segments, controller):
                table = AsyncStore(segments, controller, world.clock, world.rng).table("a/t")
                if not life:
                    await made(AsyncStore(segments, controller, world.clock, world.rng))
                seen = {entry.key: (entry.value, entry.version) async for entry in table.scan()}
                assert seen == kept
                for number, key in enumerate(KEYS):
                    value = b"%d %d" % (life, number)
                    before = kept.get(key)
                    if before is None:
                        kept[key] = value, await table.insert(key, value)
                    elif number == life:
                        await table.remove(key, before[1])
                        del kept[key]
                    else:
                        kept[key] = value, await table.replace(key, value, before[1])

    asyncio.run(work())


# --- the blocking client, and wrong arguments ---


@pytest.fixture
def store() -> Iterator[penstock.Store]:
    with penstock.Store(lambda: open_services(RealClock(), RealRng())) as opened:
        yield opened


@pytest.fixture
def table(store: penstock.Store) -> penstock.Table:
    return store.create_table("a/t", primary_key_bytes=2, secondary_key_bytes=1, partitions=2, create_scope=True)


def test_the_blocking_table_has_the_same_calls(store: penstock.Store, table: penstock.Table) -> None:
    first = table.insert(("aa", "0"), "one")
    with pytest.raises(BadKeyVersionError):
        table.insert(("aa", "0"), "two")
    second = table.replace(("aa", "0"), b"two", first)
    assert second > first
    assert table.update([Put(("ab", "1"), b"x"), Insert(("ab", "2"), bytearray(b"y"))]) is not None
    assert table.get(("aa", "0")) == Entry(primary=b"aa", secondary=b"0", value=b"two", version=second)
    assert [entry.key for entry in table.scan()] == [(b"aa", b"0"), (b"ab", b"1"), (b"ab", b"2")]
    assert [entry.value for entry in table.scan(primary=b"ab")] == [b"x", b"y"]
    table.remove_many([Remove(("ab", "1")), Remove(("ab", "2"))])
    table.remove(("aa", "0"), second)
    assert list(table.scan()) == []
    assert store.tables("a") == ["t"]
    assert store.describe_scope("a").tables == 1
    table.delete()
    assert not table.exists()
    assert store.tables("a") == []


def test_a_table_is_opened_where_it_exists_only_with_its_configuration(store: penstock.Store) -> None:
    def create(partitions: int, *, if_absent: bool = False) -> penstock.Table:
        return store.create_table("a/u", primary_key_bytes=4, partitions=partitions, if_absent=if_absent)

    with pytest.raises(ScopeNotFoundError):
        create(1)
    with pytest.raises(ScopeNotFoundError):
        store.tables("a")
    store.create_scope("a")
    create(2).put(b"abcd", b"v")
    with pytest.raises(AlreadyExistsError):
        create(2)
    with pytest.raises(AlreadyExistsError):
        create(3, if_absent=True)
    assert create(2, if_absent=True).get("abcd").value == b"v"
    assert create(2, if_absent=True).config().partitions == 2


def test_a_table_object_follows_a_table_that_is_made_again_with_other_keys(store: penstock.Store) -> None:
    mine = store.create_table("a/t", primary_key_bytes=2, partitions=3, create_scope=True)
    mine.put("aa", "old")
    theirs = store.table("a/t")
    theirs.delete()
    for call in (lambda: mine.get("aa"), lambda: mine.put("aa", b""), lambda: list(mine.scan())):
        with pytest.raises(TableNotFoundError):
            call()
    store.create_table("a/t", primary_key_bytes=3)
    assert mine.get("aaa") is None
    assert mine.put("aaa", b"new") >= 0
    with pytest.raises(InvalidArgumentError):
        mine.get("aa")


WRONG_KEYS = [
    b"a",
    b"aa",
    ("aa",),
    ("aa", "00"),
    ("a", "00"),
    ("aa", 0),
    7,
    None,
    ("aa", "0", "0"),
    [b"aa", b"0"],
    "\ud800",
]


@pytest.mark.parametrize("key", WRONG_KEYS)
def test_a_wrong_key_is_refused_by_every_call(table: penstock.Table, key: Any) -> None:
    calls = [
        lambda: table.get(key),
        lambda: table.put(key, b"v"),
        lambda: table.insert(key, b"v"),
        lambda: table.replace(key, b"v", 1),
        lambda: table.remove(key),
        lambda: table.update([Put(("aa", "0"), b"v"), Put(key, b"v")]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()
    assert list(table.scan()) == []


def test_wrong_values_versions_and_batches_change_nothing(table: penstock.Table) -> None:
    good: Any = Put(("aa", "0"), b"v")
    wrong: list[Any] = [
        [good, Put(("ab", "0"), b"v")],
        [good, Put(("aa", "1"), 7)],
        [good, Replace(("aa", "1"), b"v", -1)],
        [good, Replace(("aa", "1"), b"v", True)],
        [good, Replace(("aa", "1"), b"v", "1")],
        [good, Remove(("aa", "1"))],
        [good, None],
        [],
        good,
        "changes",
        [Put(("aa", bytes([number % 256])), b"v") for number in range(TABLE_BATCH_MAX + 1)],
    ]
    for changes in wrong:
        with pytest.raises(InvalidArgumentError):
            table.update(changes)
    for version in (-1, 1 << 63, 1.0, "1", True):
        with pytest.raises(InvalidArgumentError):
            table.remove(("aa", "0"), version)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        table.remove_many([good])
    with pytest.raises(EventTooLargeError):
        table.update([good, Put(("aa", "1"), bytes(VALUE_MAX_BYTES + 1))])
    large = bytes(VALUE_MAX_BYTES)
    with pytest.raises(EventTooLargeError):
        table.update([good, *(Put(("aa", bytes([number])), large) for number in range(100, 117))])
    with pytest.raises(KeyNotFoundError):
        table.update([good, Replace(("aa", "1"), b"v", 5)])
    assert list(table.scan()) == []


@pytest.mark.parametrize("bounds", [{"first": "a"}, {"last": 7}, {"primary": "aaa"}, {"primary": "aa", "first": "00"}])
def test_wrong_bounds_of_a_scan_are_refused(table: penstock.Table, bounds: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        list(table.scan(**bounds))


def test_wrong_tables_are_refused(store: penstock.Store) -> None:
    wrong: list[dict[str, Any]] = [
        {"primary_key_bytes": 0},
        {"primary_key_bytes": "4"},
        {"primary_key_bytes": 4.0},
        {"primary_key_bytes": 8000, "secondary_key_bytes": 193},
        {"primary_key_bytes": 4, "secondary_key_bytes": -1},
        {"primary_key_bytes": 4, "partitions": 0},
        {"primary_key_bytes": 4, "partitions": 1 << 40},
    ]
    for options in wrong:
        with pytest.raises(InvalidArgumentError):
            store.create_table("a/t", create_scope=True, **options)
    for name in ("t", "a/b/c", "a/t_x", "a/", "/t"):
        with pytest.raises(InvalidNameError):
            store.create_table(name, primary_key_bytes=4)
    with pytest.raises(TableNotFoundError):
        store.table("a/t").config()
    assert store.scopes() == []
