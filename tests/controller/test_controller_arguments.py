"""No argument of any call of the controller ends it, its store or a connection to it: values of every kind, by type."""

from __future__ import annotations

import asyncio
import inspect
import random
import sys
import typing
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from penstock.model.cuts import StreamCut
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import StreamConfig
from penstock.model.retention import PolicyDocument
from penstock.model.segments import make_segment_id
from tests.drawn_values import NUMBERS, TEXTS, WHOLE, value_of
from tests.flat_control import calls_of_the_port

sys.path.insert(0, str(Path(__file__).parents[1] / "net"))
from grpc_store_world import running


def asked(rng: random.Random) -> Any:
    """What an erasure asks for, with wrong and missing parts."""
    run = {"attempt": rng.choice(TEXTS), "events": rng.choice(NUMBERS), "positions_sha256": rng.choice(["0" * 64, "x"])}
    whole: dict[str, Any] = {name: rng.choice(TEXTS) for name in ("erasure", "who", "why")}
    whole |= {"looked_for": value_of(rng, Any), "run": rng.choice([run, None, {}])}
    return {name: value for name, value in whole.items() if rng.random() < 0.9}


async def call(rng: random.Random, controller: Any, name: str, function: Any) -> None:
    hints = typing.get_type_hints(function)
    drawn = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.default is not inspect.Parameter.empty and rng.random() < 0.5:
            continue
        is_asked = (name, parameter.name) == ("erasures.erase", "asked")
        drawn[parameter.name] = asked(rng) if is_asked else value_of(rng, hints[parameter.name])
    async with asyncio.timeout(20):
        await attrgetter(name)(controller)(**drawn)


CALLS = calls_of_the_port()


def no_argument_ends_anything(seed: int, turns: int, *, remote: bool) -> None:
    rng = random.Random(seed)

    async def work() -> None:
        async with running() as world:
            await world.remote.scopes.create("whole")
            await world.remote.streams.create(WHOLE, StreamConfig())
            target: Any = world.remote if remote else world.controller
            for _ in range(turns):
                for scope in ("s", "t"):
                    with suppress(PenstockError):
                        await world.remote.scopes.create(scope)
                    with suppress(PenstockError):
                        await world.remote.streams.create(StreamName(scope, "a"), StreamConfig())
                for name, function in CALLS:
                    try:
                        await call(rng, target, name, function)
                    except PenstockError:
                        pass
                    except BaseException as error:
                        error.add_note(f"call {name}")
                        raise
                    assert world.store.offline is None, name
            await world.append(segment_name(WHOLE, make_segment_id(0, 0)), b"on")
            tail = StreamCut(WHOLE, {make_segment_id(0, 0): 2})
            assert await world.remote.cuts.tail(WHOLE) == tail
            await world.remote.policies.set(WHOLE, PolicyDocument())
            await world.controller.sweep()

    asyncio.run(work())


@pytest.mark.parametrize("remote", [False, True])
def test_no_argument_of_any_call_ends_the_controller_or_its_store(remote: bool) -> None:
    no_argument_ends_anything(1, 4, remote=remote)


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("seed", range(100, 105))
def test_no_argument_of_very_many_calls_ends_the_controller_or_its_store(seed: int, remote: bool) -> None:
    no_argument_ends_anything(seed, 200, remote=remote)
