"""The decorator of values makes what the one of the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from functools import partial
from typing import Any, ClassVar

import pytest

from penstock.model.values.dataclass import dataclass

STANDARD: Any = dataclasses.dataclass


def values(decorator: Any) -> list[Any]:
    """One class of each kind, made by the decorator."""

    @decorator(frozen=True, slots=True, kw_only=True)
    class Range:
        """A range."""

        unit: ClassVar[str] = "byte"
        start: int
        end: int = 7
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        secret: bytes = dataclasses.field(default=b"", repr=False)
        made: int = dataclasses.field(default=3, init=False)

        def __post_init__(self) -> None:
            if self.end < self.start:
                raise ValueError("not ordered")

    @decorator(frozen=True, slots=True)
    class Pair:
        left: Any
        right: Any = None

    @decorator(slots=True, kw_only=True)
    class State:
        count: int = 0
        found: dict[str, int] = dataclasses.field(default_factory=dict)

    @decorator(slots=True, eq=False)
    class Thing:
        name: str

    @decorator(frozen=True, slots=True)
    class Own:  # noqa: PLW1641 - the decorator makes its hash
        name: str

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

    @decorator(frozen=True, slots=True, repr=False)
    class Longer(Pair):
        more: int = 1

    @decorator(frozen=True, slots=True, order=True)
    class Ordered:
        at: int

    return [Range, Pair, State, Thing, Own, Longer, Ordered]


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((2,), {}),
    ((1, 2), {}),
    ((1, 2, 3), {}),
    ((), {"start": 1}),
    ((), {"start": 9}),
    ((), {"start": 1, "secret": b"x", "names": ["a"]}),
    ((), {"start": 1, "made": 4}),
    ((), {"count": 2, "found": {"a": 1}}),
    (("a",), {}),
    (([],), {}),
]


def outcome(call: Any) -> Any:
    try:
        return call()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


def contents(made: Any) -> list[Any]:
    return [getattr(made, field.name) for field in dataclasses.fields(made)]


def seen(made: Any) -> list[Any]:
    """What can be seen of a value: attributes, text, hash, fields, copies, changes."""
    first = dataclasses.fields(made)[0].name
    compared = type(made).__eq__ is not object.__eq__
    return [
        repr(made) if "0x" not in repr(made) else None,
        outcome(lambda: dataclasses.asdict(made)),
        outcome(lambda: hash(made)) if compared else None,
        outcome(lambda: contents(copy.copy(made))),
        outcome(lambda: contents(copy.deepcopy(made))),
        outcome(lambda: contents(dataclasses.replace(made))),
        outcome(lambda: made.__reduce_ex__(4)[2]),
        outcome(lambda: setattr(made, first, 5)),
        contents(made),
        outcome(lambda: delattr(made, first)),
    ]


@pytest.mark.parametrize("number", range(7))
def test_values_are_those_of_the_standard_library(number: int) -> None:
    ours, theirs = values(dataclass)[number], values(STANDARD)[number]
    made = 0
    for plain, named in CALLS:
        one, other = (outcome(partial(kind, *plain, **named)) for kind in (ours, theirs))
        if isinstance(other, tuple):
            assert one == other
            continue
        made += 1
        assert (one == ours(*plain, **named)) == (other == theirs(*plain, **named))
        assert (one != object(), one == 1) == (other != object(), other == 1)
        assert seen(one) == seen(other)
        # The standard library of Python 3.11 raises TypeError for frozen classes with slots, which is a defect of its own.
        with pytest.raises((AttributeError, TypeError)):
            one.other = 1
    assert made


@pytest.mark.parametrize("number", range(7))
def test_classes_are_those_of_the_standard_library(number: int) -> None:
    def facts(kind: Any) -> Any:
        return (
            str(inspect.signature(kind)),
            kind.__match_args__,
            kind.__slots__,
            repr(kind.__dataclass_params__),
            [repr(field) for field in dataclasses.fields(kind)],
            kind.__hash__ is None,
            kind.__init__.__annotations__,
            kind.__init__.__qualname__,
            kind.__module__,
        )

    ours, theirs = values(dataclass)[number], values(STANDARD)[number]
    assert facts(ours) == facts(theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A value that a pickle can name."""

    a: int
    b: tuple[str, ...] = ()


def test_a_value_survives_a_pickle_and_matches_a_pattern() -> None:
    state = pickle.dumps(Kept(a=1, b=("x",)))
    assert pickle.loads(state) == Kept(a=1, b=("x",))
    assert typing.get_type_hints(Kept.__init__) == {"a": int, "b": tuple[str, ...], "return": type(None)}
    match Kept(a=2):
        case Kept(a=2, b=()):
            pass
        case other:
            raise AssertionError(other)


def test_a_subclass_that_is_no_dataclass_has_its_own_signature_and_attributes() -> None:
    pair = values(dataclass)[1]

    class Wider(pair):  # type: ignore[misc, valid-type]
        def __init__(self, only: int) -> None:
            pair.__init__(self, only, only)
            self.extra = 1

    assert str(inspect.signature(Wider)) == "(only: 'int') -> 'None'"
    assert (Wider(2).right, Wider(2).extra) == (2, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Wider(2).left = 3


def test_methods_are_compiled_at_their_first_call_only() -> None:
    pair = values(dataclass)[1]
    first = pair.__init__
    made = pair(1)
    assert pair.__init__ is not first
    # The first one still works for a caller that kept it.
    first(made, 3, 4)
    assert contents(made) == [3, 4]
    assert contents(pair(5)) == [5, None]


def test_a_class_of_the_standard_library_extends_one_of_ours() -> None:
    pair = values(dataclass)[1]
    added = {"__annotations__": {"more": int}, "more": 0}
    wider = STANDARD(frozen=True, slots=True)(type("Wider", (pair,), dict(added)))
    assert contents(wider(1, 2, 3)) == [1, 2, 3]
    with pytest.raises(TypeError, match="frozen"):
        STANDARD(type("Loose", (pair,), dict(added)))
