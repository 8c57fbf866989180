"""A store that hangs, or whose machine is lost, closes no connection: clients notice by its silence."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock.app.telemetry import Counters
from penstock.client.writing.settings import WriterSettings
from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import VERSION_HIGH, VERSION_LOW, encode
from penstock.model.errors import NotConnectedError
from penstock.net.dial.wire_dial import _SILENT_TICKS, DialLimits, dial
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.net.wire.arena import ArenaPool
from penstock.ports.control.layout import Endpoint
from penstock.storage.machine.rng import RealRng
from tests.flat_control import FlatControl

TICK_S = 0.05


@asynccontextmanager
async def store(*, echoes: bool):
    """A store that greets, and then answers nothing; it may echo."""

    async def serve(reader, writer):
        writer.write(encode(c.Hello(VERSION_HIGH, VERSION_LOW)))
        while data := await reader.read(1 << 16):
            if echoes and data:
                writer.write(encode(c.KeepAlive()))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Endpoint(host="127.0.0.1", port=server.sockets[0].getsockname()[1])


async def connect(endpoint):
    return await dial(endpoint, pool=ArenaPool(telemetry=Counters()), limits=DialLimits(keepalive_s=TICK_S))


def test_a_silent_store_fails_what_waits_for_it():
    async def main():
        async with asyncio.timeout(10), store(echoes=False) as endpoint:
            connection = await connect(endpoint)
            with pytest.raises(NotConnectedError, match="silent"):
                await connection.request(lambda rid: c.GetStreamSegmentInfo(rid, "s/t/0.#epoch.0", ""))
            assert not connection.is_open

    asyncio.run(main())


def test_a_store_that_echoes_may_take_its_time():
    async def main():
        async with asyncio.timeout(10), store(echoes=True) as endpoint:
            connection = await connect(endpoint)
            waiting = asyncio.ensure_future(
                connection.request(lambda rid: c.GetStreamSegmentInfo(rid, "s/t/0.#epoch.0", ""))
            )
            done, _ = await asyncio.wait({waiting}, timeout=TICK_S * (_SILENT_TICKS + 1) * 3)
            assert not done
            connection.abort()
            with pytest.raises(NotConnectedError):
                await waiting

    asyncio.run(main())


class Moving(FlatControl):
    """A controller that names a store that hangs, and from then on another one."""

    def __init__(self, *places) -> None:
        self._places = list(places)

    async def layout_endpoint(self, _segment):
        return self._places.pop(0) if len(self._places) > 1 else self._places[0]


def test_after_silence_the_controller_is_asked_before_the_store_is_dialled_again():
    async def main():
        async with asyncio.timeout(10), store(echoes=False) as hangs, store(echoes=True) as other:
            pool = ConnectionPool(
                Moving(hangs, other).layout_endpoint,
                rng=RealRng(),
                telemetry=Counters(),
                limits=DialLimits(keepalive_s=TICK_S),
            )
            segment = "s/t/0.#epoch.0"
            connection = await pool.open(await pool.endpoint(segment))
            assert connection.endpoint == await pool.endpoint(segment) == hangs
            with pytest.raises(NotConnectedError, match="silent"):
                await connection.request(lambda rid: c.GetStreamSegmentInfo(rid, segment, ""))
            assert await pool.endpoint(segment) == other
            assert await pool.endpoint("s/t/1.#epoch.0") == other
            await pool.close()

    asyncio.run(main())


def test_silence_is_noticed_long_before_a_writer_gives_up():
    assert (_SILENT_TICKS + 1) * DialLimits().keepalive_s <= WriterSettings().deadline_s / 4
