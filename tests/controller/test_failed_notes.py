"""A failed read makes the retention loop forget no stream, and arguments that no record can hold are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from controller_world import QUIET, STREAM, config, name_of, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller import keys
from penstock.model.errors import InvalidArgumentError, PenstockError, ThrottledError, UnavailableError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

U, V = StreamName("s", "u"), StreamName("s", "v")
SETTINGS = replace(QUIET, retention_cycle_ms=10**9, retention_pause_ms=1)
ERRORS = [UnavailableError("container moves"), ThrottledError("too many", resource="metadata", limit=1)]


class Failing(MemorySegments):
    """Fails the next read of a record under ``prefix``."""

    prefix: bytes | None = None
    error: PenstockError = ERRORS[0]

    async def table_get(self, name: str, keys: Any) -> Any:
        if self.prefix is not None and any(key.startswith(self.prefix) for key in keys):
            self.prefix = None
            raise self.error
        return await super().table_get(name, keys)


@pytest.mark.parametrize("error", ERRORS, ids=["unavailable", "throttled"])
@pytest.mark.parametrize("key", [keys.stream(U), keys.scope_policy("s")], ids=["stream", "policy"])
def test_a_failed_read_makes_the_loop_forget_no_stream(key: bytes, error: PenstockError) -> None:
    async def work() -> None:
        segments, clock = Failing(), FakeClock()
        async with with_stream(segments, 1, clock, settings=SETTINGS) as controller:
            for name in (U, V):
                await controller.streams.create(name, config(1))
                await controller.policies.set(name, PolicyDocument(retain=Retain(min_bytes=0, max_bytes=10)))
            for _ in range(20):
                await asyncio.sleep(0.005)
                await controller._loop.turn()
            for name in (U, V):
                segments.write(name_of(seg(0, 0), name), b"x" * 100)
            clock.ms += 100_000
            segments.prefix, segments.error = key, error
            for _ in range(6):
                try:
                    await controller._loop.turn()
                except PenstockError:
                    assert segments.prefix is None
                clock.ms += 700_000
            assert segments.prefix is None
            assert [segments.segments[name_of(seg(0, 0), name)].start for name in (U, V)] == [100, 100]

    asyncio.run(work())


def test_arguments_that_no_record_can_hold_are_refused() -> None:
    async def work() -> None:
        async with with_stream(MemorySegments(), 1) as controller:
            await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
            for owner in ("\ud800", "a\x1b[2Jb"):
                with pytest.raises(InvalidArgumentError):
                    await controller.holds.release("h", owner=owner)
            with pytest.raises(InvalidArgumentError):
                await controller.holds.add(STREAM, owner="o", reason="r", until_ms=1 << 63)
            with pytest.raises(InvalidArgumentError):
                await controller.batches.commit(STREAM, writer="w", batch=2**70, transactions=[])
            with pytest.raises(InvalidArgumentError):
                await controller.erasures.part("e1", -1)
            good: dict[str, Any] = {"attempt": "a", "events": 1, "positions_sha256": "0" * 64}
            for bad in ({"attempt": "\ud800"}, {"events": float("inf")}):
                asked = {"erasure": "e1", "who": "a", "why": "b", "looked_for": {}, "run": {**good, **bad}}
                with pytest.raises(InvalidArgumentError):
                    await controller.erasures.erase(STREAM, asked, {seg(0, 0): [0]}, page=0, last=False)

    asyncio.run(work())
