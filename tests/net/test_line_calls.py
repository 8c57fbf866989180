"""Calls of the controller over a connection to the store: as over gRPC, and over gRPC where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pytest
from grpc_fakes import MemoryController, MemorySegments, Refusing
from grpc_script import CONFIG, SCRIPT, S, outcome
from wire_memory_store import MemorySegments as WireSegments
from wire_memory_store import OneEndpoint

from penstock.app.telemetry import Counters
from penstock.model.errors import CorruptDataError, InternalError, UnavailableError
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.dial.line_calls import LineCalls
from penstock.net.dial.segments import RemoteSegments
from penstock.net.dial.wire_dial import DialLimits
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.wire.calls import controller_calls
from penstock.net.wire.wire_server import WireServer
from penstock.storage.machine.rng import RealRng

OVER_THE_LINE = {
    "transactions.create",
    "transactions.ping",
    "transactions.commit",
    "transactions.abort",
    "transactions.status",
}


@dataclass
class Recorder:
    """A line that remembers which calls were made over it."""

    calls: LineCalls
    made: list[str] = field(default_factory=list)

    async def call(self, name: str, request: bytes) -> bytes:
        self.made.append(name)
        return await self.calls.call(name, request)


@dataclass
class Scene:
    remote: RemoteController
    line: Recorder
    wire: WireServer
    stack: AsyncExitStack


@asynccontextmanager
async def serving(
    controller: Any, *, says: bool = True, takes: bool = True, patience_s: float = 10
) -> AsyncIterator[Scene]:
    """``says``: the server tells that it takes calls; ``takes``: its store's port does."""
    telemetry = Counters()
    async with AsyncExitStack() as stack:
        calls = controller_calls(controller) if takes else None
        closing = await stack.enter_async_context(AsyncExitStack())
        wire = await closing.enter_async_context(
            WireServer(WireSegments(), port=0, rng=RealRng(), telemetry=telemetry, calls=calls)
        )
        server = await stack.enter_async_context(GrpcServer(controller, MemorySegments(), port=0, line=says))
        remote = await stack.enter_async_context(
            dial_controller(f"localhost:{server.port}", patience_s=patience_s, dial_s=10)
        )
        segments = await stack.enter_async_context(
            RemoteSegments(
                OneEndpoint("127.0.0.1", wire.port),
                native=remote.segments,
                rng=RealRng(),
                telemetry=telemetry,
                limits=DialLimits(connect_s=2),
            )
        )
        line = Recorder(segments.calls)
        remote.use_line(line)  # type: ignore[arg-type]
        yield Scene(remote=remote, line=line, wire=wire, stack=closing)


async def play_script(remote: RemoteController) -> None:
    local = MemoryController()
    for name, arguments, keywords in SCRIPT:
        expected = await outcome(attrgetter(name)(local)(*arguments, **keywords))
        actual = await outcome(attrgetter(name)(remote)(*arguments, **keywords))
        assert actual == expected, (name, arguments, keywords)


def test_every_call_answers_and_raises_over_the_line_as_in_process() -> None:
    async def play() -> list[str]:
        async with serving(MemoryController()) as scene:
            await play_script(scene.remote)
            return scene.line.made

    assert len(asyncio.run(play())) == sum(name in OVER_THE_LINE for name, _, _ in SCRIPT)


@pytest.mark.parametrize(("says", "asked"), [(False, False), (True, True)])
def test_a_server_that_takes_no_calls_there_is_called_over_grpc(says: bool, asked: bool) -> None:
    async def play() -> list[str]:
        async with serving(MemoryController(), says=says, takes=False) as scene:
            await play_script(scene.remote)
            return scene.line.made

    assert bool(asyncio.run(play())) is asked


def test_a_line_that_is_lost_is_made_up_for_over_grpc() -> None:
    async def play() -> None:
        async with serving(MemoryController()) as scene:
            remote = scene.remote
            await remote.scopes.create("s")
            await remote.streams.create(S, CONFIG)
            first = await remote.transactions.create(S, lease_ms=20_000)
            await scene.stack.aclose()  # the store's port closes, the controller's stays
            await remote.transactions.commit(S, first.id)
            second = await remote.transactions.create(S, lease_ms=20_000)
            await remote.transactions.abort(S, second.id)
            assert scene.line.made[0] == "transactions.create"

    asyncio.run(play())


def test_a_controller_that_is_away_is_asked_again_over_grpc_until_patience_ends() -> None:
    async def play() -> str:
        refusing = Refusing(UnavailableError("the controller is closed"))
        async with serving(refusing, patience_s=0.3) as scene:
            with pytest.raises(UnavailableError, match="the controller is closed"):
                await scene.remote.transactions.create(S, lease_ms=20_000)
            return scene.line.made[0]

    assert asyncio.run(play()) == "transactions.create"


@pytest.mark.parametrize("error", [ValueError("a bug"), CorruptDataError("metadata record cannot be read")])
def test_a_failure_of_the_server_is_told_and_does_not_close_the_line(error: Exception) -> None:
    async def play() -> None:
        async with serving(Refusing(error)) as scene:
            wanted = CorruptDataError if isinstance(error, CorruptDataError) else InternalError
            for _ in range(2):
                with pytest.raises(wanted):
                    await scene.remote.transactions.create(S, lease_ms=20_000)
            assert len(scene.line.made) == 2
            assert len(scene.wire._share.connections) == 1

    asyncio.run(play())
