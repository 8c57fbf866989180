"""Values of the ports on the network: whatever can be sent arrives as it is, and nothing else is taken."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Protocol

import msgspec
import pytest

from penstock.codec.control.policies import HoldRecord
from penstock.codec.values import Call
from penstock.model.errors import InvalidArgumentError, PenstockError, ProtocolError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.net.native.calls import REPLY_BYTES_MAX, control_calls, segment_calls
from penstock.ports.data.chunks import ChunkBlock, ChunkRange
from tests.drawn_values import hints_of, value_of

CALLS = {call.name: call for calls in control_calls().values() for call in calls.values()} | {
    call.name: call for call in segment_calls().values()
}


def plain(value: Any) -> Any:
    """The value with all sequences as tuples and all byte strings as bytes."""
    if value is None or type(value) in (bool, bytes, int, str):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return sorted((repr(plain(key)), plain(item)) for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(plain(item) for item in value)
    if is_dataclass(value):
        return type(value).__name__, {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return "not a number" if value != value else value


@cache
def parameters_of(call: Call) -> list[inspect.Parameter]:
    """Without ``self``."""
    return list(inspect.signature(call.declared).parameters.values())[1:]


def drawn(rng: random.Random, call: Call) -> dict[str, Any]:
    hints, parameters = hints_of(call.declared), parameters_of(call)
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
            item.name: item.default for item in parameters_of(call) if item.default is not inspect.Parameter.empty
        }
        assert plain(found) == plain(defaults | given)
        arrived += 1
    assert arrived


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
        assert junk in ({}, {"stream": ["a"]}) or data in (b"\x80",) or not parameters_of(call), data


JUNK = [
    None,
    True,
    -1,
    1.5,
    "",
    "ab",
    "x" * 16,
    b"ab",
    b"x" * 16,
    [],
    [None, "a"],
    [1, 2],
    {},
    {"a": 1, "b": 2},
    {1: 2},
]


def with_junk(rng: random.Random, value: Any) -> Any:
    """The plain value with a part of it replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        return value | {name: with_junk(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        return [*value[:at], with_junk(rng, value[at]), *value[at + 1 :]]
    return rng.choice(JUNK)


def is_part(found: Any, given: Any) -> bool:
    """Whether the plain values are equal, but for what is left out of ``found`` because it has its default value."""
    if isinstance(found, dict) and isinstance(given, dict):
        return all(name in given and is_part(item, given[name]) for name, item in found.items())
    if isinstance(found, list) and isinstance(given, list):
        return len(found) == len(given) and all(map(is_part, found, given))
    return found == given and isinstance(found, bool) == isinstance(given, bool)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_values_of_other_types_are_refused_and_never_converted(name: str) -> None:
    rng, call = random.Random(name), CALLS[name]
    for _ in range(300):
        try:
            given = msgspec.msgpack.decode(call.encode_request((), drawn(rng, call)))
        except PenstockError:
            continue
        junk = with_junk(rng, {name: item for name, item in given.items() if name not in ("document", "change")})
        try:
            found = call.decode_request(msgspec.msgpack.encode(junk))
        except PenstockError:
            continue
        assert is_part(msgspec.msgpack.decode(call.encode_request((), found)), junk), junk


def blocks_of(count: int) -> list[ChunkBlock]:
    """Blocks as a store with the default settings writes them."""
    rng, size = random.Random(count), (1 << 20) + 500
    return [
        ChunkBlock(
            start_offset=number * size,
            end_offset=(number + 1) * size,
            crc32c=rng.randrange(1 << 32),
            event_count=rng.randrange(10_000),
            first_ms=1_795_000_000_000 + number * 1000,
            last_ms=1_795_000_000_900 + number * 1000,
        )
        for number in range(count)
    ]


def test_a_reply_describes_millions_of_blocks() -> None:
    call, count = CALLS["segments.chunk_ranges"], 10_000
    chunk = ChunkRange(name="c", location=None, start_offset=0, end_offset=1 << 60, blocks=blocks_of(count))
    reply = call.encode_reply([chunk])
    assert plain(call.decode_reply(reply)) == plain([chunk])
    assert REPLY_BYTES_MAX / (len(reply) / count) > 2_500_000


def test_columns_of_different_lengths_are_refused() -> None:
    call = CALLS["segments.chunk_ranges"]
    chunk = ChunkRange(name="c", location=None, start_offset=0, end_offset=1 << 60, blocks=blocks_of(3))
    for name in ("crc32c", "first_ms"):
        reply = msgspec.msgpack.decode(call.encode_reply([chunk]))
        reply[0]["blocks"][name].pop()
        with pytest.raises(ProtocolError):
            call.decode_reply(msgspec.msgpack.encode(reply))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_replies_arrive_as_they_are(name: str) -> None:
    rng, call = random.Random(name), CALLS[name]
    hint = hints_of(call.declared)["return"]
    if any(name in repr(hint) for name in ("model.answers", "EffectivePolicy", "PolicyDocument")):
        pytest.skip("policies and answers of the planner have their own forms and tests")
    for _ in range(100):
        try:
            given = value_of(rng, hint)
            reply = call.encode_reply(given)
        except (PenstockError, OverflowError, UnicodeEncodeError):
            continue
        assert plain(call.decode_reply(reply)) == plain(given)


def test_a_hold_stored_with_an_end_beyond_64_bits_does_not_hide_the_others() -> None:
    call, stored = CALLS["holds.list"], (None, 1, LONG_MAX, 1 << 64, 1 << 70)
    holds = [
        HoldRecord(stream=None, incarnation=0, owner="o", reason="r", created_ms=0, until_ms=end).info("s", "h")
        for end in stored
    ]
    found = call.decode_reply(call.encode_reply(holds))
    assert [hold.until_ms for hold in found] == [None, 1, LONG_MAX, LONG_MAX, LONG_MAX]


def test_values_that_are_nested_too_deeply_are_refused() -> None:
    call, deep = CALLS["erasures.erase"], [{}]
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArgumentError):
        call.encode_request((StreamName("s", "a"), {"looked_for": deep}, {}), {})
    with pytest.raises(InvalidArgumentError):
        call.decode_request(b"\x91" * 100_000)
    with pytest.raises(ProtocolError):
        call.decode_reply(b"\x91" * 100_000)


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
