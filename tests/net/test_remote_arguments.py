"""Nothing that arrives over the network ends a container, a server or another connection: values and sizes of every kind."""

from __future__ import annotations

import asyncio
import collections.abc
import random
import sys
import types
import typing
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from wire_memory_store import OneEndpoint

from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.wire.wire_server import WireLimits, WireServer
from penstock.ports.data.segments import Append
from penstock.ports.data.tables import TableKind
from penstock.storage.machine.rng import RealRng

sys.path.insert(0, str(Path(__file__).parents[1] / "segmentstore"))
from importer import PARENT, TXN
from store_arguments import BYTES, NAMES, NUMBERS, SmallFrames, calls, some
from store_world import append, content, writer
from wire_peers import RawPeer

from penstock.app.telemetry import Counters

WHOLE = "q/whole/0.#epoch.0"
KINDS = [spec.kind for spec in wire.SPECS if spec.is_request]


def value_of(rng: random.Random, hint: Any) -> Any:
    """A value of the type: at its bounds and beyond, empty, repeated, long."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return value_of(rng, rng.choice(typing.get_args(hint)))
    if typing.get_origin(hint) is collections.abc.Sequence:
        (item,) = typing.get_args(hint)
        return some(rng, [value_of(rng, item) for _ in range(rng.randrange(1, 4))])
    if isinstance(hint, type) and issubclass(hint, tuple):
        return command(rng, hint)
    chosen: dict[Any, Any] = {
        int: rng.choice(NUMBERS),
        bool: rng.random() < 0.5,
        bytes: rng.choice([UUID(int=rng.randrange(4)).bytes, *BYTES]),
        bytearray: bytearray(rng.choice(BYTES)),
        memoryview: memoryview(rng.choice(BYTES)),
        UUID: UUID(int=rng.choice([0, 1, (1 << 128) - 1])),
        type(None): None,
    }
    return rng.choice([*NAMES, "t/\udcff"]) if hint is str else chosen[hint]


def command(rng: random.Random, kind: Any) -> Any:
    return kind(**{name: value_of(rng, hint) for name, hint in typing.get_type_hints(kind).items()})


class Peers:
    """A peer that greets, and is replaced once the server has ended its connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._peer: RawPeer | None = None

    async def greeted(self) -> RawPeer:
        if self._peer is None:
            self._peer = RawPeer(*await asyncio.open_connection("127.0.0.1", self._port))
            assert await self._peer.ask(c.Hello(17, 5)) == c.Hello(17, 5)
        return self._peer

    async def send(self, frames: list[bytes]) -> bool:
        """Send them, then wait for the echo behind them. Returns whether the connection lives."""
        peer = await self.greeted()
        try:
            await peer.send(*frames, c.KeepAlive())
            while await peer.receive() != c.KeepAlive():
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return False
        return True

    async def close(self) -> None:
        if self._peer is not None:
            peer, self._peer = self._peer, None
            peer.writer.close()
            with suppress(ConnectionError):
                await peer.writer.wait_closed()


async def prepare(store: Any) -> None:
    for name in (PARENT, TXN, WHOLE):
        await store.create_segment(name)
        await append(store, name, b"a" * 900, number=100)
    await store.create_table("s/h")
    await store.create_table("s/o", kind=TableKind.SORTED, key_bytes=2)


async def check(world: SmallFrames) -> None:
    """The store still serves, and does so after a crash too."""
    await append(world.store, WHOLE, b"on", number=101)
    store = await world.crash()
    assert await content(store, WHOLE) == b"a" * 900 + b"on"


def serve(test: Any) -> None:
    async def main() -> None:
        world = SmallFrames()
        store = await world.open()
        telemetry, rng = Counters(), RealRng()
        try:
            await prepare(store)
            limits = WireLimits(drain_s=0.1, throttle_pause_s=0.001)
            async with WireServer(store, port=0, rng=rng, telemetry=telemetry, limits=limits) as server:
                await test(store, server.port)
                assert store.offline is None
            await check(world)
        finally:
            await world.store.close(checkpoint=False)

    asyncio.run(main())


def remote_segments(store: Any, port: int) -> RemoteSegments:
    return RemoteSegments(
        OneEndpoint("127.0.0.1", port),
        native=store,
        rng=RealRng(),
        telemetry=Counters(),
        limits=DialLimits(retry_for_s=0.2),
    )


def no_frame_ends_anything(seed: int, turns: int) -> None:
    rng = random.Random(seed)

    async def test(store: Any, port: int) -> None:
        peers, sent, alive = Peers(port), 0, 0
        for _ in range(turns):
            for kind in KINDS:
                frames: list[bytes] = []
                for _ in range(rng.randrange(1, 3)):
                    with suppress(PenstockError, UnicodeEncodeError, OverflowError):
                        frames.append(wire.encode(command(rng, kind)))
                async with asyncio.timeout(20):
                    sent += len(frames)
                    alive += await peers.send(frames)
                assert store.offline is None, kind
        await peers.close()
        assert sent > turns * 20
        assert alive > turns * 10

    serve(test)


def no_remote_call_ends_anything(seed: int, turns: int) -> None:
    rng = random.Random(seed)

    async def test(store: Any, port: int) -> None:
        async with remote_segments(store, port) as segments:
            for _ in range(turns):
                for call in calls(rng, segments, local=False):
                    with suppress(PenstockError):
                        async with asyncio.timeout(10):
                            await call()
                    assert store.offline is None

    serve(test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"expected_offset": 1 << 63},
        {"expected_offset": -(1 << 70)},
        {"event_number": 1 << 63},
        {"event_count": 1 << 31},
    ],
)
def test_an_append_with_a_number_that_cannot_be_sent_does_not_stop_those_behind_it(wrong: dict[str, int]) -> None:
    async def test(store: Any, port: int) -> None:
        async with remote_segments(store, port) as segments:
            last = await segments.setup_append(WHOLE, writer(5))
            good = Append(segment=WHOLE, writer=writer(5), data=b"", event_number=1, previous=last)
            with pytest.raises(InvalidArgumentError):
                await segments.append(replace(good, **wrong))
            async with asyncio.timeout(5):
                await segments.append(good)

    serve(test)


@pytest.mark.parametrize("seed", range(3))
def test_no_frame_ends_a_container(seed: int) -> None:
    no_frame_ends_anything(seed, 4)


@pytest.mark.parametrize("seed", range(3))
def test_no_argument_of_a_remote_call_ends_a_container(seed: int) -> None:
    no_remote_call_ends_anything(seed, 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_no_frame_of_very_many_ends_a_container(seed: int) -> None:
    no_frame_ends_anything(seed, 200)
    no_remote_call_ends_anything(seed, 200)
