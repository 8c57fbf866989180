"""What is durable takes effect, also if the answer to the call that decided it was lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from controller_world import QUIET, STREAM, name_of, seg, with_stream
from lossy_segments import Lossy
from memory_segments import MemorySegments

from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.model.errors import UnavailableError
from penstock.model.retention import PolicyDocument, Retain
from penstock.ports.data.tables import TablePut
from penstock.testing.fakes import FakeClock

ONE = seg(0, 0)
ERASURE = keys.erasure("e1")
AT_ONCE = replace(QUIET, retention_cycle_ms=10**9, retention_pause_ms=1)


async def _ask(controller: Controller) -> None:
    asked = {"erasure": "e1", "who": "a", "why": "b", "looked_for": {}}
    await controller.erasures.erase(STREAM, asked, {ONE: [0]})


def _state(segments: MemorySegments) -> ErasureState:
    return ErasureRecord.decode(segments.tables[keys.TABLE].entries[ERASURE][0]).state


def _decides(put: TablePut) -> bool:
    return put.key == ERASURE and ErasureRecord.decode(put.value).state is ErasureState.ASKED


@pytest.mark.parametrize("then", ["repeat", "status", "sweep"])
def test_an_erasure_is_performed_although_the_answer_to_its_decision_was_lost(then: str) -> None:
    async def work() -> None:
        segments = Lossy()
        async with with_stream(segments, 1) as controller:
            segments.write(name_of(ONE), b"x" * 100)
            segments.lose = _decides
            with pytest.raises(UnavailableError):
                await _ask(controller)
            assert _state(segments) is ErasureState.ASKED
            if then == "repeat":
                await _ask(controller)
            elif then == "status":
                await controller.erasures.get("e1")
            else:
                await controller.sweep()
            # Reads the table itself: to ask for the state would perform the erasure.
            async with asyncio.timeout(10):
                while _state(segments) is not ErasureState.DONE:
                    await asyncio.sleep(0)

    asyncio.run(work())


def test_an_erasure_outlives_an_unexpected_error() -> None:
    async def work() -> None:
        segments = Lossy()
        async with with_stream(segments, 1) as controller:
            segments.write(name_of(ONE), b"x" * 100)
            segments.broken = True
            await _ask(controller)
            async with asyncio.timeout(10):
                while _state(segments) is not ErasureState.DONE:
                    await asyncio.sleep(0)
            assert not segments.broken

    asyncio.run(work())


@pytest.mark.parametrize("call", ["policy", "release of a hold"])
def test_the_loop_looks_again_although_the_answer_was_lost(call: str) -> None:
    async def work() -> None:
        segments, clock = Lossy(), FakeClock()
        async with with_stream(segments, 1, clock, settings=AT_ONCE) as controller:
            policy = PolicyDocument(retain=Retain(min_bytes=0, max_bytes=10))
            segments.write(name_of(ONE), b"x" * 100)
            if call != "policy":
                await controller.holds.add("s", owner="o", reason="r", hold_id="h")
                await controller.policies.set("s", policy)
            key = keys.scope_policy("s") if call == "policy" else keys.hold("s", "h")
            for _ in range(20):
                await asyncio.sleep(0.005)
                await controller._loop.turn()
            assert segments.segments[name_of(ONE)].start == 0
            segments.lose = lambda put: put.key == key
            is_policy = call == "policy"
            change = controller.policies.set("s", policy) if is_policy else controller.holds.release("h", owner="o")
            with pytest.raises(UnavailableError):
                await change
            async with asyncio.timeout(10):
                while segments.segments[name_of(ONE)].start != 100:
                    await asyncio.sleep(0)
                    clock.ms += 1000
                    await controller._loop.turn()

    asyncio.run(work())
