"""No argument of any call of the controller ends it, its store or a connection to it: values of every kind, by type."""

from __future__ import annotations

import asyncio
import collections.abc
import dataclasses
import enum
import inspect
import random
import sys
import types
import typing
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.model.cuts import StreamCut
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import StreamConfig
from penstock.model.retention import PolicyDocument
from penstock.model.segments import KeyRange, SegmentId, make_segment_id
from tests.flat_control import calls_of_the_port

sys.path.insert(0, str(Path(__file__).parents[1] / "net"))
from grpc_store_world import running

STREAMS = [StreamName("s", "a"), StreamName("s", "b"), StreamName("s", "none"), StreamName("t", "a")]
WHOLE = StreamName("whole", "w")
TEXTS = ["", "s", "t", "s/a", "s/g", "g", "x" * 300, "x" * 70_000, "\udcff", "a\0b", "../a", "é", "{}", "any"]
NUMBERS = [0, 1, -1, 2, 7, 1000, 10_000, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 1 << 70]
PLAIN: dict[Any, collections.abc.Callable[[random.Random], Any]] = {
    int: lambda rng: rng.choice(NUMBERS),
    float: lambda rng: rng.choice([0.0, 0.5, 1.0, -1.0, 1e300, float("inf"), float("nan")]),
    bool: lambda rng: rng.random() < 0.5,
    str: lambda rng: rng.choice(TEXTS),
    bytes: lambda rng: rng.choice([b"", b"x", b"x" * 5000]),
    bytearray: lambda _: bytearray(b"x"),
    memoryview: lambda _: memoryview(b"x"),
    UUID: lambda rng: UUID(int=rng.choice([0, 1, (1 << 128) - 1])),
    types.NoneType: lambda _: None,
    Any: lambda rng: rng.choice([None, 1, -1, 1 << 70, "", "x", [], {}, 0.5]),
    StreamName: lambda rng: rng.choice(STREAMS),
    SegmentId: lambda rng: rng.choice([make_segment_id(0, 0), make_segment_id(1, 1), *NUMBERS]),
    KeyRange: lambda rng: rng.choice([KeyRange(low=0.0, high=0.5), KeyRange(low=0.5, high=1.0)]),
}


def some(rng: random.Random, draw: collections.abc.Callable[[], Any]) -> list[Any]:
    """None, one, some, or repeated ones."""
    return [draw() for _ in range(rng.choice([0, 1, 2, 3]))] * rng.choice([1, 1, 2, 100])


def value_of(rng: random.Random, hint: Any) -> Any:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint](rng)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return value_of(rng, rng.choice(parts))
    if origin in (collections.abc.Sequence, tuple):
        found = some(rng, lambda: value_of(rng, parts[0]))
        return tuple(found) if origin is tuple else found
    if origin is collections.abc.Mapping:
        return {value_of(rng, parts[0]): value_of(rng, parts[1]) for _ in range(rng.randrange(3))}
    if issubclass(hint, enum.Enum):
        return rng.choice(list(hint))
    assert dataclasses.is_dataclass(hint), hint
    return record(rng, hint)


def record(rng: random.Random, kind: Any) -> Any:
    """A record with a few fields drawn, the others at their defaults. Raises PenstockError if no such one is legal."""
    hints = typing.get_type_hints(kind)
    drawn = {
        item.name: value_of(rng, hints[item.name])
        for item in dataclasses.fields(kind)
        if rng.random() < 0.3 or (item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING)
    }
    return kind(**drawn)


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
