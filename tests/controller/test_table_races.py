"""A key-value table is made or deleted in one decision: whatever happens between two calls, none is lost and none is stray."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from controller_world import opened
from memory_segments import MemorySegments
from raced_segments import RacedSegments

from penstock.controller.controller import Controller
from penstock.controller.tables.key_value_tables import RECORDS, KeyValueTables, TableRecord, TableState
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotEmptyError,
    NotFoundError,
    ScopeNotFoundError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.net.grpc.scopes import ScopeCalls
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.layout import Endpoint
from penstock.ports.control.tables import TableConfig
from penstock.ports.data.tables import KEY_ABSENT, TablePut

CONFIG = TableConfig(partitions=2, primary_key_bytes=4, secondary_key_bytes=2, rollover_bytes=0)
OTHER = TableConfig(partitions=1, primary_key_bytes=8, secondary_key_bytes=0, rollover_bytes=0)
CONFIG_RECORD = TableRecord(config=CONFIG, state=TableState.ACTIVE).encode()
REFUSED = (AlreadyExistsError, NotEmptyError, NotFoundError, ScopeNotFoundError, UnavailableError)

Step = Callable[[], Awaitable[object]]


async def _tried(step: Step) -> bool:
    try:
        await step()
    except REFUSED:
        return False
    return True


async def _check(controller: Controller, tables: KeyValueTables, segments: MemorySegments, name: str = "k") -> bool:
    """Every listed table is whole, and no segment is of none. Returns whether the table is there."""
    parts = sorted(item for item in segments.tables if "_kvtable" in item)
    listed = await tables.list("s")
    if not await controller.scopes.exists("s"):
        assert (parts, listed) == ([], ())
        return False
    try:
        config = await tables.get("s", name)
    except NotFoundError:
        assert (parts, listed) == ([], ())
        return False
    assert listed == (name,)
    assert parts == [f"s/{name}_kvtable/{number}.#epoch.0" for number in range(config.partitions)]
    return True


async def _raced(first: str, second: str, at: int) -> bool:
    segments = RacedSegments()
    async with opened(segments) as controller:
        tables = KeyValueTables(controller.scopes, segments)
        calls = ScopeCalls(controller, lambda: Endpoint(host="h", port=1))
        await controller.scopes.create("s")
        await tables.create("s", "other", OTHER)
        await tables.delete("s", "other")
        steps: dict[str, Step] = {
            "create": lambda: tables.create("s", "k", CONFIG),
            "create another": lambda: tables.create("s", "k", OTHER),
            "delete": lambda: tables.delete("s", "k"),
            "delete scope": lambda: calls.delete_scope(pb.ScopeInfo(scope="s")),
        }
        if first != "create" and (first, second) != ("delete scope", "create"):
            await tables.create("s", "k", CONFIG)
        done: list[asyncio.Task[bool]] = []

        async def other() -> None:
            done.append(asyncio.ensure_future(_tried(steps[second])))
            # It may wait for the call that it interrupts.
            for _ in range(50):
                await asyncio.sleep(0)

        segments.arm_hook(at, other)
        won = await _tried(steps[first])
        segments.hook = None
        if not done:
            return False
        also = await done[0]
        there = await _check(controller, tables, segments)
        match first, second:
            case "create", "create another":
                assert won != also
                assert there
                assert await tables.get("s", "k") == (CONFIG if won else OTHER)
            case "create", "delete scope":
                assert won != also
                assert there == won
            case "delete", "create another":
                assert won
                assert there == also
            case "delete scope", "create":
                assert won != also
                assert there == also
            case "delete", "delete":
                assert won or also
                assert not there
        return True


PAIRS = [
    ("create", "create another"),
    ("create", "delete scope"),
    ("delete", "create another"),
    ("delete", "delete"),
    ("delete scope", "create"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[" beside ".join(pair) for pair in PAIRS])
def test_no_table_is_lost_or_stray_whatever_happens_at_any_step(first: str, second: str) -> None:
    async def work() -> int:
        at = 1
        while await asyncio.wait_for(_raced(first, second, at), 5):
            at += 1
        return at

    assert asyncio.run(work()) > 3


def test_a_scope_with_a_table_is_not_deleted_by_any_caller() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            tables = KeyValueTables(controller.scopes, segments)
            await controller.scopes.create("s")
            await tables.create("s", "k", CONFIG)
            with pytest.raises(NotEmptyError):
                await controller.scopes.delete("s")
            assert await _check(controller, tables, segments)

    asyncio.run(work())


def test_an_interrupted_creation_leaves_nothing_that_a_later_one_uses() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            tables = KeyValueTables(controller.scopes, segments)
            await controller.scopes.create("s")
            for done in range(1, 8):
                attempt = asyncio.ensure_future(tables.create("s", "k", CONFIG))
                for _ in range(3 * done):
                    await asyncio.sleep(0)
                attempt.cancel()
                await asyncio.wait([attempt])
                if not attempt.cancelled():
                    break
            await _tried(lambda: tables.delete("s", "k"))
            await tables.create("s", "k", OTHER)
            assert await tables.get("s", "k") == OTHER
            assert await _check(controller, tables, segments)

    asyncio.run(work())


class Slow:
    """Segments whose calls on segments of tables wait at a gate: another server of the same store is faster."""

    def __init__(self, inner: MemorySegments, slow: str, gate: asyncio.Event) -> None:
        self._inner, self._slow, self._gate = inner, slow, gate

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name != self._slow:
            return call

        async def wait(segment: str, **options: Any) -> Any:
            if "_kvtable" in segment:
                await self._gate.wait()
            return await call(segment, **options)

        return wait


@pytest.mark.parametrize("slow", ["create_table", "table_info"])
def test_a_slow_creator_leaves_the_table_that_another_server_made_meanwhile(slow: str) -> None:
    async def work() -> None:
        segments, gate = MemorySegments(), asyncio.Event()
        async with opened(segments) as controller:
            one = KeyValueTables(controller.scopes, Slow(segments, slow, gate))
            two = KeyValueTables(controller.scopes, segments)
            await controller.scopes.create("s")
            creation = asyncio.ensure_future(one.create("s", "k", CONFIG))
            for _ in range(100):
                await asyncio.sleep(0)
            await two.create("s", "k", CONFIG)
            segment = "s/k_kvtable/0.#epoch.0"
            await segments.table_update(segment, [TablePut(key=b"abcdef", value=b"v", version=KEY_ABSENT)])
            gate.set()
            with pytest.raises(UnavailableError):
                await creation
            (entry,) = await segments.table_get(segment, [b"abcdef"])
            assert entry.value == b"v"
            assert await two.get("s", "k") == CONFIG
            assert await _check(controller, two, segments)

    asyncio.run(work())


ROTTEN = [b"rot", b"[]", b'{"version": 1}', CONFIG_RECORD.replace(b'"partitions": 2', b'"partitions": 0')]


@pytest.mark.parametrize("rotten", ROTTEN)
def test_a_table_whose_record_cannot_be_read_is_deleted_with_its_segments(rotten: bytes) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            tables = KeyValueTables(controller.scopes, segments)
            await controller.scopes.create("s")
            await tables.create("s", "k", CONFIG)
            entries = segments.tables[RECORDS].entries
            entries[b"s/k"] = (rotten, entries[b"s/k"][1])
            for call in (tables.get("s", "k"), tables.create("s", "k", CONFIG)):
                with pytest.raises(CorruptDataError):
                    await call
            await segments.delete_table("s/k_kvtable/0.#epoch.0")  # a deletion that was cut short
            await tables.delete("s", "k")
            assert not await _check(controller, tables, segments)
            await controller.scopes.delete("s")

    asyncio.run(work())


def test_a_record_of_a_newer_version_is_not_deleted() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            tables = KeyValueTables(controller.scopes, segments)
            await controller.scopes.create("s")
            await tables.create("s", "k", CONFIG)
            entries = segments.tables[RECORDS].entries
            entries[b"s/k"] = (entries[b"s/k"][0].replace(b'"version": 1', b'"version": 9'), entries[b"s/k"][1])
            before = copy.deepcopy(entries)
            with pytest.raises(VersionTooNewError):
                await tables.delete("s", "k")
            assert segments.tables[RECORDS].entries == before

    asyncio.run(work())
