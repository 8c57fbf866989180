"""Server and client on a simulated loop: random deliveries, resets, partitions; nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from wire_memory_store import MemorySegments, OneEndpoint

from penstock.app.telemetry import Counters
from penstock.model.errors import PenstockError, UnavailableError, WriterFencedError
from penstock.net.dial.segments import RemoteSegments
from penstock.net.wire.wire_server import WireServer
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.machine.loop import SimLoop

PORT = 12345
EVENTS = 40


async def write(segments, name, writer):
    """Write numbered events exactly once, whatever happens to connections: set up, then send what is missing."""
    while True:
        try:
            last = await segments.setup_append(name, writer)
            begin = 0 if last == NO_EVENT else last + 1
            if begin == EVENTS:
                return
            async with asyncio.TaskGroup() as group:
                for number in range(begin, EVENTS):
                    request = Append(
                        segment=name,
                        writer=writer,
                        data=b"%s:%03d " % (writer.hex[-1:].encode(), number),
                        event_number=number,
                        previous=number - 1 if number else NO_EVENT,
                    )
                    group.create_task(segments.append(request))
                    await asyncio.sleep(0.0003)
        except* (UnavailableError, WriterFencedError):
            await asyncio.sleep(0.01)


async def read(segments, name, upto):
    seen = bytearray()
    while len(seen) < upto:
        found = await segments.read(name, len(seen), 100)
        seen += b"".join(found.parts)
    return bytes(seen)


async def scenario(loop, store, *, faults):
    rng = loop.fork("faults")
    writers = [UUID(int=number) for number in range(1, 4)]
    names = ["s/t/0", "s/t/1"]
    telemetry = Counters()
    async with WireServer(store, port=PORT, rng=SeededRng(loop.fork("server")), telemetry=telemetry):
        segments = RemoteSegments(
            OneEndpoint("127.0.0.1", PORT), native=store, rng=SeededRng(loop.fork("client")), telemetry=telemetry
        )
        async with segments:
            for name in names:
                await segments.create_segment(name)

            async def break_things():
                for _ in range(faults):
                    await asyncio.sleep(rng.expovariate(200))
                    for transport in [one for one in loop.network._transports if rng.random() < 0.3]:
                        transport.abort()

            async with asyncio.TaskGroup() as group:
                readers = [group.create_task(read(segments, name, 3 * EVENTS * 6)) for name in names]
                for name in names:
                    for writer in writers:
                        group.create_task(write(segments, name, writer))
                group.create_task(break_things())
            return {name: task.result() for name, task in zip(names, readers, strict=True)}


@pytest.mark.parametrize("seed", range(12))
def test_events_are_stored_exactly_once_and_in_order_through_resets(seed):
    loop = SimLoop(seed)
    store = MemorySegments()
    seen = loop.run(scenario(loop, store, faults=12 if seed else 0), max_seconds=600)
    for name, data in seen.items():
        assert data == store.segments[name].data
        events = data.decode().split()
        for writer in "123":
            numbers = [int(event[2:]) for event in events if event[0] == writer]
            assert numbers == list(range(EVENTS))


def test_one_seed_gives_one_run():
    def trace():
        loop = SimLoop(3)
        seen = loop.run(scenario(loop, MemorySegments(), faults=8), max_seconds=600)
        return loop.trace, loop.time(), seen

    assert trace() == trace()


def test_a_silent_store_is_given_up_and_found_again():
    loop = SimLoop(5)

    async def main():
        store = MemorySegments()
        telemetry = Counters()
        async with (
            WireServer(store, port=PORT, rng=SeededRng(loop.fork("server")), telemetry=telemetry),
            RemoteSegments(
                OneEndpoint("127.0.0.1", PORT), native=store, rng=SeededRng(loop.fork("client")), telemetry=telemetry
            ) as segments,
        ):
            await segments.create_segment("s/t/0")
            waiting = asyncio.ensure_future(segments.read("s/t/0", 0, 10))
            await asyncio.sleep(1)
            # An idle connection that is answered stays: the read waits for an hour and nothing is dialled anew.
            dialled = telemetry.counts["dialled_connections"]
            await asyncio.sleep(3600)
            assert telemetry.counts["dialled_connections"] == dialled
            loop.network.partitioned["127.0.0.1"] = None
            started = loop.time()
            with pytest.raises(PenstockError):
                async with asyncio.timeout(300):
                    await segments.delete("s/t/0")
            assert 8 < loop.time() - started < 40
            loop.network.partitioned.clear()
            await segments.create_segment("s/t/1")
            await write(segments, "s/t/1", UUID(int=1))
            assert await segments.setup_append("s/t/1", UUID(int=1)) == EVENTS - 1
            waiting.cancel()

    loop.run(main(), max_seconds=10_000)
