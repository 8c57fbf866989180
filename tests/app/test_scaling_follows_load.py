"""Real stores and clients while streams scale by rate, with minutes that last a fraction of a second."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path

import penstock
from penstock.controller.scaling.scaler import CHANGES_MAX
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.model.scaling import ScalingAction

MINUTE_MS = 60
BY_EVENTS = ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=500, factor=4, min_segments=1)
KEYS = 40


def check_whole_and_ordered(got: list[bytes], written: int) -> None:
    """Each event once, and those of a key in the order in which they were written."""
    last: dict[str, int] = defaultdict(lambda: -1)
    for event in got:
        key, _, number = event.decode().partition(":")
        assert int(number) > last[key], (key, number)
        last[key] = int(number)
    assert len(got) == written


async def write_fast(stream, *, until) -> int:
    """Events at several times the target until the condition holds; returns how many."""
    written = 0
    async with stream.writer() as writer:
        while not await until():
            for _ in range(100):
                await writer.write(f"k{written % KEYS}:{written}", f"k{written % KEYS}")
                written += 1
            await writer.flush()
            await asyncio.sleep(0.02)
    return written


def test_a_stream_scales_up_under_load_and_down_when_idle_and_readers_get_each_event_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with penstock.open_async(tmp_path, scaling_minute_ms=MINUTE_MS) as store:
            stream = await store.create_stream("a/s", scaling=BY_EVENTS, create_scope=True)
            group = await store.reader_group("g", ["a/s"])
            got: list[bytes] = []

            async def read() -> None:
                async with group.reader("one") as reader:
                    async for event in reader:
                        got.append(event.data)  # noqa: PERF401 (the list is looked at meanwhile)

            reading = asyncio.ensure_future(read())

            async def wide() -> bool:
                return len((await stream.describe()).segments) >= 8

            written = await write_fast(stream, until=wide)
            found = await stream.explain_scaling()
            assert [change.action for change in found.changes][:2] == [ScalingAction.SPLIT] * 2
            while len((await stream.describe()).segments) > 1:
                await asyncio.sleep(0.05)
            changes = (await stream.explain_scaling()).changes
            assert changes[-1].action is ScalingAction.MERGE
            assert sum(a.action is not b.action for a, b in zip(changes, changes[1:], strict=False)) == 1
            while len(got) < written:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            check_whole_and_ordered(got, written)
            await store.controller.drain_audit()
            entries = [entry["action"] async for entry in audit_of(store)]
            # On a busy machine the stream takes more steps than it remembers; the audit stream has all of them.
            assert entries[-len(changes) :] == [change.action.value for change in changes]
            assert len(entries) == len(changes) or len(changes) == CHANGES_MAX

    async def audit_of(store):
        async with store.stream("_system/audit").reader(until_tail=True) as reader:
            async for event in reader:
                entry = json.loads(event.data)
                if entry["kind"] == "scale":
                    yield entry

    asyncio.run(asyncio.wait_for(body(), 60))
