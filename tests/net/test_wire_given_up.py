"""Events that a writer gave up while the store was away never reach it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from wire_memory_store import OneEndpoint
from wire_peers import run, stage, until

from penstock.app.telemetry import Counters
from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.writer_core import WriterCore
from penstock.model.errors import DeadlineExceededError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.wire.wire_server import WireServer
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.storage.machine.rng import RealRng

SEGMENT = "s/t/0.#epoch.0"
WRITER, OTHER = UUID(int=7), UUID(int=8)
LIMITS = DialLimits(backoff_s=0.005, backoff_max_s=0.02)


def append(data, writer):
    return Append(segment=SEGMENT, writer=writer, data=data, event_number=0, previous=NO_EVENT)


def test_an_append_that_its_writer_gave_up_is_not_sent_when_the_store_comes_back():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            port = scene.server.port
        controller = OneEndpoint("127.0.0.1", port)
        telemetry = Counters()
        async with RemoteSegments(
            controller, native=scene.store, rng=RealRng(), telemetry=telemetry, limits=LIMITS
        ) as segments:
            segments.submit_append(append(b"given up", WRITER), lambda outcome: None)
            await until(lambda: controller.asked >= 3)
            segments.withdraw_appends(SEGMENT, WRITER)
            async with WireServer(scene.store, port=port, rng=RealRng(), telemetry=telemetry):
                await segments.append(append(b"later", OTHER))
                assert await segments.setup_append(SEGMENT, WRITER) == NO_EVENT
                await segments.close()
        assert bytes(scene.store.segments[SEGMENT].data) == b"later"

    run(main())


@pytest.mark.parametrize("end", ["deadline", "abort"])
def test_a_writer_that_ended_sends_nothing_when_the_store_comes_back(end):
    writers = []

    class OneSegment:
        stream = StreamName("s", "t")

        async def segments(self):
            return [SegmentRange(segment=SegmentId(0), keys=KeyRange(low=0.0, high=1.0))]

        def name_of(self, segment):
            return SEGMENT

        def writer_id(self, random, *, least_ms=0):
            writers.append(random)
            return random

    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            port = scene.server.port
        controller = OneEndpoint("127.0.0.1", port)
        telemetry = Counters()
        async with RemoteSegments(
            controller, native=scene.store, rng=RealRng(), telemetry=telemetry, limits=LIMITS
        ) as segments:
            settings = WriterSettings(deadline_s=0.2 if end == "deadline" else 30.0)
            core = WriterCore(OneSegment(), segments, RealRng(), settings, on_change=lambda: None)
            async with WireServer(scene.store, port=port, rng=RealRng(), telemetry=telemetry):
                await core.open()
                write(core, b"first")
                await core.flush()
            # The loss is known: the next append waits for a connection.
            await until(lambda: not segments._appends._lines)
            asked = controller.asked
            write(core, b"given up")
            flushing = asyncio.ensure_future(core.flush())
            await until(lambda: controller.asked >= asked + 3)
            if end == "abort":
                await core.close()
            with pytest.raises(DeadlineExceededError if end == "deadline" else InvalidArgumentError):
                await flushing
            async with WireServer(scene.store, port=port, rng=RealRng(), telemetry=telemetry):
                for writer in (*writers, *writers):
                    await segments.setup_append(SEGMENT, writer)
                await segments.close()
            await core.close()
        data = bytes(scene.store.segments[SEGMENT].data)
        assert b"first" in data
        assert b"given up" not in data

    def write(core, event):
        lane = core.lanes[None]
        lane.written.extend((None, event))
        lane.size += len(event) + 8
        core.wake(lane)

    run(main())
