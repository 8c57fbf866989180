"""Scaling policies, scales and times that cannot be, over Pravega's port and our own clients: refused, nothing half done."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from controller_stub import ControllerStub
from grpc_store_world import Running, running

from penstock.client.store import AsyncStore
from penstock.model.errors import InvalidArgumentError, ScaleConflictError, TimeGoesBackError
from penstock.model.names import StreamName
from penstock.model.policies import ScaleType, ScalingPolicy, StreamConfig
from penstock.model.segments import KeyRange, make_segment_id
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.transactions import TransactionStatus
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

S = StreamName("s", "events")
INFO = pb.StreamInfo(scope="s", stream="events")
CONFIG = StreamConfig(scaling=ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=10, factor=2, min_segments=2))
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
BY_RATE = {
    "scaleType": pb.ScalingPolicy.BY_RATE_IN_EVENTS_PER_SEC,
    "targetRate": 5,
    "scaleFactor": 2,
    "minNumSegments": 1,
}


@asynccontextmanager
async def stream() -> AsyncIterator[tuple[Running, ControllerStub]]:
    """A stream by rate with two segments. At the end it must be as it was."""
    async with running() as run, grpc.aio.insecure_channel(f"127.0.0.1:{run.port}") as channel:
        await run.remote.scopes.create("s")
        await run.remote.streams.create(S, CONFIG)
        before = await picture(run)
        yield run, ControllerStub(channel)
        assert await picture(run) == before


async def picture(run: Running) -> object:
    found = await run.remote.streams.describe(S)
    return found.config, found.epoch, found.segments, await run.remote.streams.list("s")


def play(scene: Callable[[Running, ControllerStub], Any]) -> None:
    async def body() -> None:
        async with stream() as (run, stub):
            await scene(run, stub)

    asyncio.run(body())


async def refusal(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    code: grpc.StatusCode = raised.value.code()
    return code


_REFUSED = (pb.ScaleResponse.PRECONDITION_FAILED, grpc.StatusCode.INVALID_ARGUMENT)


async def answered(call: Any) -> object:
    """The status of the answer, or of the error."""
    try:
        return (await call).status
    except grpc.aio.AioRpcError as error:
        return error.code()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"targetRate": rate} for rate in (0, -1, INT_MIN)),
        *({"scaleFactor": factor} for factor in (0, 1, -2, INT_MIN)),
        *({"minNumSegments": least} for least in (0, -1, 10_001, INT_MAX, INT_MIN)),
        {"scaleType": 7},
    ],
    ids=str,
)
def test_policies_that_cannot_be_are_refused_when_a_stream_is_created_and_updated(wrong: dict[str, int]) -> None:
    async def scene(run: Running, stub: ControllerStub) -> None:
        policy = pb.ScalingPolicy(**(BY_RATE | wrong))
        fresh = pb.StreamConfig(streamInfo=pb.StreamInfo(scope="s", stream="fresh"), scalingPolicy=policy)
        assert await refusal(stub.createStream(fresh)) is grpc.StatusCode.INVALID_ARGUMENT
        assert await refusal(stub.updateStream(pb.StreamConfig(streamInfo=INFO, scalingPolicy=policy))) is (
            grpc.StatusCode.INVALID_ARGUMENT
        )

    play(scene)


RANGES = {
    "none": [],
    "a gap": [(0.0, 0.25)],
    "an overlap": [(0.0, 0.3), (0.2, 0.5)],
    "beyond": [(0.0, 0.25), (0.25, 0.75)],
    "below": [(-0.5, 0.5)],
    "turned": [(0.5, 0.0)],
    "empty": [(0.0, 0.0), (0.0, 0.5)],
    "no number": [(math.nan, 0.5)],
    "no end": [(0.0, math.inf)],
}


@pytest.mark.parametrize("ranges", RANGES.values(), ids=RANGES)
def test_ranges_that_do_not_replace_the_sealed_segments_are_refused(ranges: list[tuple[float, float]]) -> None:
    async def scene(run: Running, stub: ControllerStub) -> None:
        entries = [pb.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges]
        request = pb.ScaleRequest(streamInfo=INFO, sealedSegments=[0], newKeyRanges=entries)
        assert await answered(stub.scale(request)) in _REFUSED
        with pytest.raises((InvalidArgumentError, ScaleConflictError)):
            await run.remote.layout.scale(
                S, sealed=[make_segment_id(0, 0)], new_ranges=[KeyRange(low=low, high=high) for low, high in ranges]
            )

    play(scene)


@pytest.mark.parametrize("sealed", [[], [7], [0, 0], [0, 1, 2], [-1], [LONG_MAX], [LONG_MIN]], ids=str)
def test_segments_that_cannot_be_sealed_are_refused(sealed: list[int]) -> None:
    async def scene(_: Running, stub: ControllerStub) -> None:
        halves = [pb.ScaleRequest.KeyRangeEntry(start=low, end=low + 0.25) for low in (0.0, 0.25)]
        request = pb.ScaleRequest(streamInfo=INFO, sealedSegments=sealed, newKeyRanges=halves)
        assert await answered(stub.scale(request)) in _REFUSED

    play(scene)


def test_notes_without_a_writer_or_a_stream_of_writers_are_refused_over_pravegas_port() -> None:
    async def scene(run: Running, stub: ControllerStub) -> None:
        cut = pb.StreamCut(streamInfo=INFO, cut={0: 0, 1: 0})
        for writer in ("", "w" * 256):
            note = pb.TimestampFromWriter(writer=writer, timestamp=1, position=cut)
            assert await refusal(stub.noteTimestampFromWriter(note)) is grpc.StatusCode.INVALID_ARGUMENT
            gone = pb.RemoveWriterRequest(writer=writer, stream=INFO)
            assert await refusal(stub.removeWriter(gone)) is grpc.StatusCode.INVALID_ARGUMENT
        for stream_name in ("_MARKevents", "_RGgroup"):
            of = pb.StreamCut(streamInfo=pb.StreamInfo(scope="s", stream=stream_name), cut={0: 0})
            await refusal(stub.noteTimestampFromWriter(pb.TimestampFromWriter(writer="w", timestamp=1, position=of)))
        # Any number of 64 bits is a time.
        for time in (LONG_MIN, 0, LONG_MAX):
            note = pb.TimestampFromWriter(writer="w", timestamp=time, position=cut)
            assert (await stub.noteTimestampFromWriter(note)).result == pb.TimestampResponse.SUCCESS
        note = pb.TimestampFromWriter(writer="w", timestamp=LONG_MAX - 1, position=cut)
        assert (await stub.noteTimestampFromWriter(note)).result == pb.TimestampResponse.INVALID_TIME
        assert (await run.remote.cuts.time_window(await run.remote.cuts.tail(S))).upper_ms is None

    play(scene)


@pytest.mark.parametrize("where", ["embedded", "remote"])
def test_times_that_are_none_are_refused_by_our_client_and_its_writer_goes_on(where: str) -> None:
    async def scene(run: Running, _: ControllerStub) -> None:
        control, segments = (run.controller, run.store) if where == "embedded" else (run.remote, run.store)
        store = AsyncStore(segments, control, RealClock(), RealRng())
        async with store.stream(S).writer() as writer:
            await writer.write(b"one", "k")
            wrong: list[Any] = [True, 1.5, math.nan, "5", None, 1 << 63, LONG_MIN - 1]
            for time in wrong:
                with pytest.raises(InvalidArgumentError):
                    await writer.note_time(time)
            await writer.note_time(5)
            with pytest.raises(TimeGoesBackError):
                await writer.note_time(4)
            await writer.write(b"two", "k")
            await writer.note_time(LONG_MAX)
        for time in (item for item in wrong if item is not None):
            async with store.stream(S).transaction() as transaction:
                await transaction.write(b"three", "k")
                await transaction.flush()
                with pytest.raises(InvalidArgumentError):
                    await transaction.commit(timestamp_ms=time)
                status = await run.controller.transactions.status(S, transaction.id)
                assert status is TransactionStatus.OPEN
                await transaction.abort()

    play(scene)
