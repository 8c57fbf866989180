"""A key-value table is made or deleted in one decision: whatever happens between two calls, none is lost and none is stray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from controller_world import opened
from memory_segments import MemorySegments
from raced_segments import RacedSegments

from penstock.controller.controller import Controller
from penstock.model.errors import (
    AlreadyExistsError,
    NotEmptyError,
    NotFoundError,
    ScopeNotFoundError,
    UnavailableError,
)
from penstock.net.grpc_scopes import ScopeCalls
from penstock.net.grpc_tables import KeyValueTables, TableConfig
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.controller_service import Endpoint

CONFIG = TableConfig(partitions=2, primary_key_bytes=4, secondary_key_bytes=2, rollover_bytes=0)
OTHER = TableConfig(partitions=1, primary_key_bytes=8, secondary_key_bytes=0, rollover_bytes=0)
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
    listed = await tables.names("s")
    if not await controller.scope_exists("s"):
        assert (parts, listed) == ([], [])
        return False
    try:
        config = await tables.get("s", name)
    except NotFoundError:
        assert (parts, listed) == ([], [])
        return False
    assert listed == [name]
    assert parts == [f"s/{name}_kvtable/{number}.#epoch.0" for number in range(config.partitions)]
    return True


async def _raced(first: str, second: str, at: int) -> bool:
    segments = RacedSegments()
    async with opened(segments) as controller:
        tables = KeyValueTables(controller, segments)
        calls = ScopeCalls(controller, tables, lambda: Endpoint(host="h", port=1))
        await controller.create_scope("s")
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
            tables = KeyValueTables(controller, segments)
            await controller.create_scope("s")
            await tables.create("s", "k", CONFIG)
            with pytest.raises(NotEmptyError):
                await controller.delete_scope("s")
            assert await _check(controller, tables, segments)

    asyncio.run(work())


def test_an_interrupted_creation_leaves_nothing_that_a_later_one_uses() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            tables = KeyValueTables(controller, segments)
            await controller.create_scope("s")
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
