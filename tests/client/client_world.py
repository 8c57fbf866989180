"""A whole store in memory under a simulated loop, and a wrapper that loses requests and answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

from penstock.client.store import AsyncStore
from penstock.controller.controller import Controller
from penstock.model.errors import NotConnectedError
from penstock.ports.clock import Clock
from penstock.ports.rng import Rng
from penstock.segmentstore.store import SegmentStore
from penstock.testing import world as testing
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.machine.loop import SimLoop
from penstock.testing.simulation.machine.world import SimClock
from tests.flat_control import SUBJECTS, Around

T = TypeVar("T")

STEP_S = 60
EVENTS = 20


def open_services(clock: Clock, rng: Rng) -> AbstractAsyncContextManager[tuple[SegmentStore, Controller]]:
    """A store in memory and its controller. By themselves they only write checkpoints."""
    return testing.World(clock=clock, rng=rng, checkpoint_interval_s=5.0).serving()


class LossyService:
    """Calls take a random while; some are lost before they are done, some are done and their answer is lost.

    It offers no direct appends: the writer sees it as a remote store.
    """

    LOSSY = (
        "setup_append",
        "append",
        "read",
        "table_update",
        "table_get",
        "create_transient",
        "merge",
        "layout.successors",
        "transactions.commit",
    )

    def __init__(self, inner: Any, rng: random.Random, rate: float) -> None:
        self._inner = inner
        self._rng = rng
        self.rate = rate
        self.lost = 0

    submit_append = withdraw_appends = open_direct = None

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return getattr(Around(self._inner, self._lossy), name)
        return self._lossy(name, getattr(self._inner, name))

    def _lossy(self, name: str, call: Callable[..., Any]) -> Any:
        if name not in self.LOSSY:
            return call

        async def lossy(*arguments: Any, **named: Any) -> Any:
            # Decided and begun before the first wait: appends take their places in call order.
            fate = self._rng.random()
            if fate < self.rate / 2:
                self.lost += 1
                await asyncio.sleep(self._rng.random() / 100)
                raise NotConnectedError("request lost", call=name)
            answer = await call(*arguments, **named)
            await asyncio.sleep(self._rng.random() / 100)
            if fate < self.rate:
                self.lost += 1
                raise NotConnectedError("answer lost", call=name)
            return answer

        return lossy


class World:
    """The same store by calls that get lost, and by calls that do not (``safe``)."""

    def __init__(self, loop: SimLoop, segments: Any, controller: Any, *, loss: float) -> None:
        self.loop = loop
        self.real_segments = segments
        self.controller = controller
        self.clock = SimClock(loop)
        self.rng = rng = SeededRng(loop.fork("client"))
        self.segments = LossyService(segments, loop.fork("loss"), loss) if loss else segments
        lossy_controller = LossyService(controller, loop.fork("controller"), loss) if loss else controller
        self.store = AsyncStore(self.segments, lossy_controller, self.clock, rng)
        self.safe = AsyncStore(segments, controller, self.clock, rng)


def simulate(
    test: Callable[[World], Coroutine[Any, Any, T]], *, seed: int = 1, loss: float = 0.0, max_seconds: float = 3600.0
) -> T:
    """Run ``test`` on a fresh store in memory, in virtual time."""
    loop = SimLoop(seed)

    async def main() -> T:
        async with open_services(SimClock(loop), SeededRng(loop.fork("server"))) as (segments, controller):
            return await test(World(loop, segments, controller, loss=loss))

    return loop.run(main(), max_seconds=max_seconds)


async def read_all(stream: Any) -> list[bytes]:
    """All events up to the tail as it is now."""
    async with stream.reader(until_tail=True) as reader:
        return [event.data async for event in reader]


def time_of(world: World) -> datetime:
    """What the clock of the world shows."""
    return datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)


async def write_steps(world: World, stream: Any, first: int, last: int, *, tiered: bool = True) -> list[datetime]:
    """Some events each minute, in blocks of their own; returns the time of each step."""
    times: list[datetime] = []
    for step in range(first, last):
        await asyncio.sleep(STEP_S)
        times.append(time_of(world))
        async with stream.writer() as writer:
            for number in range(EVENTS):
                await writer.write(f"{step}", f"k{number}")
        if tiered:
            await world.real_segments.flush()
    return times
