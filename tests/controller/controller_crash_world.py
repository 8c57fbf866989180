"""A crash at every step of a workflow, and what has to hold after it: the harness."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from controller_world import QUIET, STREAM, check_invariants, config, name_of, opened, seg
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.controller.settings import ControllerSettings
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    ContainerOfflineError,
    UnavailableError,
)
from penstock.model.policies import ReaderGroupRetention
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import FakeClock

ID = UUID(int=5)
STEPS_MAX = 200


@dataclass
class World:
    segments: MemorySegments
    clock: FakeClock
    facts: dict[str, Any] = field(default_factory=dict)

    def copied(self) -> World:
        fresh = MemorySegments()
        fresh.segments = copy.deepcopy(self.segments.segments)
        fresh.tables = copy.deepcopy(self.segments.tables)
        fresh.merged = set(self.segments.merged)
        clock = FakeClock()
        clock.ms = self.clock.ms
        return World(fresh, clock, dict(self.facts))


Step = Callable[[Controller, World], Awaitable[None]]


@dataclass(frozen=True)
class Workflow:
    """``act`` is what crashes. ``again`` repeats it as a client would; ``after`` holds once that has returned."""

    prepare: Step
    act: Step
    after: Step
    again: Step | None = None
    settings: ControllerSettings = QUIET

    def opened(self, world: World) -> AbstractAsyncContextManager[Controller]:
        return opened(world.segments, world.clock, self.settings)


async def base(controller: Controller, world: World, **fields: Any) -> None:
    await controller.scopes.create("s")
    await controller.streams.create(STREAM, config(2, **fields))
    world.segments.write(name_of(seg(0, 0)), b"a" * 10)
    world.segments.write(name_of(seg(0, 1)), b"b" * 20)


def group(positions: dict[int, int] | None = None) -> ReaderGroupConfig:
    return ReaderGroupConfig(
        scope="s",
        name="g",
        id=ID,
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={STREAM: StreamCut(STREAM, positions or {})},
    )


async def scale(controller: Controller, world: World) -> None:
    await controller.layout.scale(
        STREAM,
        sealed=[seg(0, 0), seg(0, 1)],
        new_ranges=[item.keys for item in await controller.layout.current(STREAM)],
    )


async def crash_once(workflow: Workflow, world: World, step: int, effect_first: bool) -> bool:
    """Whether the workflow met the fault at that step. The controller is closed as a dying one: its calls fail."""
    world.segments.arm(step, effect_first=effect_first)
    try:
        async with workflow.opened(world) as controller:
            await workflow.act(controller, world)
            await controller.sweep()
    except (ContainerOfflineError, UnavailableError):
        pass
    met = world.segments.offline
    world.segments.heal()
    return met


async def reopen_with_crash(world: World, step: int, effect_first: bool, settings: ControllerSettings = QUIET) -> None:
    """Open, and fail at a step of finishing what was left."""
    world.segments.arm(step, effect_first=effect_first)
    try:
        async with opened(world.segments, world.clock, settings):
            pass
    except (ContainerOfflineError, UnavailableError):
        pass
    world.segments.heal()


def crash_everywhere(workflow: Workflow, *, effect_first: bool) -> None:
    """Crash at every step, before or after its effect, and again while the next controllers open."""

    async def run() -> int:
        prepared = World(MemorySegments(), FakeClock())
        async with workflow.opened(prepared) as controller:
            await workflow.prepare(controller, prepared)
            await controller.sweep()
        for step in range(1, STEPS_MAX):
            world = prepared.copied()
            if not await crash_once(workflow, world, step, effect_first):
                return step
            for second in (1, 2, 3, 5):
                await reopen_with_crash(world, second, effect_first, workflow.settings)
            async with workflow.opened(world) as controller:
                await check_invariants(controller, world.segments)
                await (workflow.again or workflow.act)(controller, world)
                await workflow.after(controller, world)
                await controller.sweep()
                await check_invariants(controller, world.segments)
        raise AssertionError("the workflow never got through without a fault")

    assert asyncio.run(run()) > 2


def fail_everywhere(workflow: Workflow) -> None:
    """Let the store fail at every step for a while, and go on with the same controller."""

    async def run() -> None:
        prepared = World(MemorySegments(), FakeClock())
        async with workflow.opened(prepared) as controller:
            await workflow.prepare(controller, prepared)
            await controller.sweep()
        for step in range(1, STEPS_MAX):
            world = prepared.copied()
            async with workflow.opened(world) as controller:
                world.segments.arm(step, effect_first=False)
                try:
                    await workflow.act(controller, world)
                    await controller.sweep()
                except (ContainerOfflineError, UnavailableError):
                    pass
                met = world.segments.offline
                world.segments.heal()
                await controller.sweep()
                await check_invariants(controller, world.segments)
                if met:
                    await (workflow.again or workflow.act)(controller, world)
                await workflow.after(controller, world)
                await controller.sweep()
                await check_invariants(controller, world.segments)
            if not met:
                return
        raise AssertionError("the workflow never got through without a fault")

    asyncio.run(run())
