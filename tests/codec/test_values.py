"""Values of the ports on the network: whatever can be sent arrives as it is, and nothing else is taken."""

from __future__ import annotations

import inspect
import random
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol

import msgspec
import pytest

from penstock.codec.values import Call
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.net.native.calls import control_calls, segment_calls
from tests.drawn_values import value_of

CALLS = {call.name: call for calls in control_calls().values() for call in calls.values()} | {
    call.name: call for call in segment_calls().values()
}


def plain(value: Any) -> Any:
    """The value with all sequences as tuples and all byte strings as bytes."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return sorted((repr(plain(key)), plain(item)) for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(plain(item) for item in value)
    if is_dataclass(value):
        return type(value).__name__, {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return "not a number" if value != value else value


def drawn(rng: random.Random, call: Call) -> dict[str, Any]:
    hints = typing.get_type_hints(call.declared)
    parameters = list(inspect.signature(call.declared).parameters.values())[1:]
    return {
        item.name: value_of(rng, hints[item.name])
        for item in parameters
        if item.default is inspect.Parameter.empty or rng.random() < 0.5
    }


@pytest.mark.parametrize("name", sorted(CALLS))
def test_arguments_arrive_as_they_are_or_are_refused(name: str) -> None:
    rng, call = random.Random(name), CALLS[name]
    arrived = 0
    for _ in range(100):
        try:
            given = drawn(rng, call)
        except PenstockError:
            continue
        try:
            found = call.decode_request(call.encode_request((), given))
        except PenstockError:
            continue
        defaults = {
            item.name: item.default
            for item in inspect.signature(call.declared).parameters.values()
            if item.default is not inspect.Parameter.empty
        }
        assert plain(found) == plain(defaults | given)
        arrived += 1
    assert arrived or not inspect.signature(call.declared).parameters


@pytest.mark.parametrize("name", sorted(CALLS))
def test_what_is_no_request_is_refused(name: str) -> None:
    rng, call = random.Random(name), CALLS[name]
    for _ in range(200):
        junk = rng.choice([None, 1, "x", b"x", [], [1], {}, {"stream": 1}, {"stream": ["a"]}, {"unknown": 1}, 1.5])
        data = msgspec.msgpack.encode(junk) if rng.random() < 0.8 else rng.randbytes(rng.randrange(40))
        try:
            call.decode_request(data)
        except PenstockError:
            continue
        names = list(inspect.signature(call.declared).parameters)[1:]
        assert junk in ({}, {"stream": ["a"]}) or data in (b"\x80",) or not names, data


@dataclass(frozen=True)
class Options:
    size: int = 1


@dataclass(frozen=True)
class NewerOptions:
    size: int = 1
    speed: int = 0


class Older(Protocol):
    async def make(self, options: Options) -> Options: ...


class Newer(Protocol):
    async def make(self, options: NewerOptions, dry_run: bool = False) -> NewerOptions: ...


def test_versions_understand_each_other_unless_something_new_is_asked_for() -> None:
    older, newer = Call("x.make", Older.make), Call("x.make", Newer.make)
    assert older.decode_request(newer.encode_request((NewerOptions(size=2),), {})) == {"options": Options(size=2)}
    for refused in (
        newer.encode_request((NewerOptions(speed=1),), {}),
        newer.encode_request((NewerOptions(),), {"dry_run": True}),
    ):
        with pytest.raises(InvalidArgumentError):
            older.decode_request(refused)
    assert older.decode_reply(newer.encode_reply(NewerOptions(size=3, speed=1))) == Options(size=3)
    assert newer.decode_reply(older.encode_reply(Options(size=3))) == NewerOptions(size=3)


def test_a_call_is_made_as_in_python() -> None:
    call = Call("x.make", Newer.make)
    for arguments, named in (((), {}), ((1, 2, 3), {}), ((Options(),), {"wrong": 1})):
        with pytest.raises(TypeError):
            call.encode_request(arguments, named)
