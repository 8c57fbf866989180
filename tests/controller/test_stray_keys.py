"""One key that cannot be read does not stop a listing, nor work on what the other keys name."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import STREAM, join, name_of, seg, with_stream, write_transaction
from memory_segments import MemorySegments

from penstock.controller import keys, retention_keys
from penstock.controller.retention.points import Points, load_points
from penstock.model.errors import CorruptDataError
from penstock.model.retention import Backlog, PolicyDocument
from penstock.testing.fakes import FakeClock

PREFIXES = {
    "scope": b"scope/",
    "stream": b"stream/s/",
    "scope policy": b"scope-policy/",
    "group": b"group/s/",
    "erasure": b"erasure/",
    "point": retention_keys.points(STREAM),
    "batch": keys.batches(STREAM),
    "transaction": keys.transactions(STREAM),
    "outcome": b"done-at/s/t/",
}


@pytest.mark.parametrize("kind", PREFIXES)
@pytest.mark.parametrize("tail", [b"\xff", b"zz"], ids=["not text", "not a number"])
def test_a_stray_key_stops_nothing_else(kind: str, tail: bytes) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await join(controller, "g", {})
            txn = await write_transaction(controller, segments, b"1")
            await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[txn])
            open_txn = await controller.transactions.create(STREAM, lease_ms=10_000)
            segments.tables[keys.TABLE].entries[PREFIXES[kind] + tail] = (b"\x00", 1)

            assert "s" in await controller.scopes.list()
            assert "t" in await controller.streams.list("s")
            assert "g" in await controller.groups.list("s")
            assert await controller.erasures.list() == []
            await controller.policies.set(None, PolicyDocument(backlog=Backlog(ttl_s=1 << 20)))
            points = Points(controller._ctx)
            for number in range(70):
                await points.note(STREAM, time_ms=number * 3_600_000, size_bytes=number)
            await points.flush()
            await controller.retention.run(STREAM)
            assert await load_points(controller._ctx, STREAM)
            await controller._ctx.metadata.remove_keys([keys.group("s/g")])
            await controller.streams.seal(STREAM)
            assert (await controller.transactions.status(STREAM, open_txn.id)).value == "aborted"
            await controller.streams.delete(STREAM)
            assert "t" not in await controller.streams.list("s")

    asyncio.run(work())


@pytest.mark.parametrize("key", [b"hold/s/\xff", b"hold/s"], ids=["not text", "no id"])
def test_a_hold_with_a_stray_key_keeps_its_scope_and_no_other(key: bytes) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            await controller.scopes.create("other")
            segments.tables[keys.TABLE].entries[key] = (b"\x00", 1)
            (hold,) = await controller.holds.list()
            assert hold.scope == "s"
            await controller.sweep()
            await controller.scopes.delete("other")

    asyncio.run(work())


def test_a_subscriber_with_a_stray_key_stops_the_retention_of_its_stream_alone() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await join(controller, "g", {})
            entries = segments.tables[keys.TABLE].entries
            entries[keys.subscribers(STREAM) + b"s/\xff"] = entries[keys.subscriber(STREAM, "s/g")]
            with pytest.raises(CorruptDataError):
                await controller.retention.run(STREAM)

    asyncio.run(work())
