"""Values of any type that the ports use, drawn by their type hints: legal ones and others."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import random
import types
import typing
from functools import cache
from typing import Any
from uuid import UUID

from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, make_segment_id

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


@cache
def hints_of(declared: Any) -> dict[str, Any]:
    """The evaluated type hints of a function or class. To evaluate them takes most of the time of a draw."""
    return typing.get_type_hints(declared)


def some(rng: random.Random, draw: collections.abc.Callable[[], Any]) -> list[Any]:
    """None, one, some, or repeated ones."""
    return [draw() for _ in range(rng.choice([0, 1, 2, 3]))] * rng.choice([1, 1, 2, 100])


def value_of(rng: random.Random, hint: Any) -> Any:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint](rng)
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        return value_of(rng, rng.choice(parts))
    if origin is tuple and parts[-1:] != (...,):
        return tuple(value_of(rng, part) for part in parts)
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
    hints = hints_of(kind)
    drawn = {
        item.name: value_of(rng, hints[item.name])
        for item in dataclasses.fields(kind)
        if rng.random() < 0.3 or (item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING)
    }
    return kind(**drawn)
