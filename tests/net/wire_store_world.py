"""A client and a server of the wire over a real segment store in memory."""

from __future__ import annotations

from contextlib import asynccontextmanager
from uuid import UUID

from wire_memory_store import OneEndpoint

from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.wire.wire_server import WireLimits, WireServer
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World

SEGMENT = "s/t/0.#epoch.0"
WRITER = UUID(int=7)


@asynccontextmanager
async def world(**settings):
    async with whole_world(**settings) as (_, segments, telemetry):
        yield segments, telemetry


@asynccontextmanager
async def whole_world(**settings):
    """With the store itself, whose answers hold what the wire has no field for."""
    rng = RealRng()
    memory = World(clock=RealClock(), rng=rng, **({"flush_interval_s": 0.05} | settings))
    telemetry = memory.telemetry
    async with (
        memory.opened() as store,
        WireServer(
            store, port=0, rng=rng, telemetry=telemetry, limits=WireLimits(drain_s=2, throttle_pause_s=0.002)
        ) as server,
        RemoteSegments(
            OneEndpoint("127.0.0.1", server.port),
            native=store,
            rng=rng,
            telemetry=telemetry,
            limits=DialLimits(retry_for_s=2),
        ) as segments,
    ):
        await segments.create_segment(SEGMENT)
        yield store, segments, telemetry


def append(number, data, *, expected=None, segment=SEGMENT, writer=WRITER):
    return Append(
        segment=segment,
        writer=writer,
        data=data,
        event_number=number,
        previous=number - 1 if number else NO_EVENT,
        expected_offset=expected,
    )


async def everything(segments, name, length):
    seen = bytearray()
    while len(seen) < length:
        found = await segments.read(name, len(seen), 1 << 20)
        for part in found.parts:
            seen += part
    return bytes(seen)
