"""A search takes time in proportion to the events, finds values under any spelling of a path, and passes nothing over."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cases.ledger import kept_in
from penstock.core.cases.matching import PARTS_MAX, Contains, JsonField, check_parts, values_in
from penstock.model.errors import InvalidArgumentError, UnsearchableEventError

NAMES = st.sampled_from(["a", "b", "a.a", "a.b", "a.a.b", "0", "1"])
DOCUMENTS = st.recursive(
    st.sampled_from(["x", "y"]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=20,
)


def by_definition(found: Any, names: list[str]) -> list[str]:
    """The values at a path: each member whose name is the next name, or several joined by dots."""
    if not names:
        return [] if isinstance(found, dict | list) else [found]
    values: list[str] = []
    if isinstance(found, dict):
        for count in range(1, len(names) + 1):
            name = ".".join(names[:count])
            if name in found:
                values += by_definition(found[name], names[count:])
    elif isinstance(found, list) and names[0].isdecimal() and int(names[0]) < len(found):
        values = by_definition(found[int(names[0])], names[1:])
    return values


@given(document=DOCUMENTS, names=st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=6))
def test_a_path_has_the_values_of_its_definition(document: Any, names: list[str]) -> None:
    assert sorted(values_in(json.dumps(document).encode(), names)) == sorted(by_definition(document, names))


class Counted(list[str]):
    """Names of a path that count how often they are looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(found, list):
            Counted.looks += len(found)
            return Counted(found)
        Counted.looks += 1
        return found


@pytest.mark.parametrize("depth", [10, 40, 80])
def test_crafted_names_cost_no_more_than_the_size_of_the_event(depth: int) -> None:
    text = '"x"'
    for _ in range(depth):
        text = '{"a":' + text + ',"a.a":1,"a.a.a":{"a":2}}'
    Counted.looks = 0
    assert list(values_in(text.encode(), Counted(["a"] * min(depth, PARTS_MAX))))
    assert Counted.looks < 300 * len(text)


def test_an_event_nested_too_deeply_does_not_count_as_free_of_the_value() -> None:
    deep = b'{"user":"x","more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    field = JsonField(path="user", values=frozenset({"x"}))
    for matcher in (field, field.keyed(b"k" * 32)):
        with pytest.raises(UnsearchableEventError, match="nested too deeply"):
            matcher.matcher()(deep)


def test_a_path_of_a_case_has_a_limited_number_of_names() -> None:
    values = frozenset({"x"})
    check_parts(Contains(values=values))
    check_parts(JsonField(path=".".join("a" * PARTS_MAX), values=values))
    with pytest.raises(InvalidArgumentError, match="too many names"):
        check_parts(JsonField(path=".".join("a" * (PARTS_MAX + 1)), values=values))


@given(
    ranges=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda at: (at[0], at[0] + at[1]))),
    length=st.integers(0, 80),
)
def test_a_ledger_covers_each_byte_that_the_copy_has(ranges: list[tuple[int, int]], length: int) -> None:
    def covered(found: Any) -> set[int]:
        return {at for start, end in found for at in range(start, end)}

    kept = kept_in(ranges, length)
    assert covered(kept) == {at for at in covered(ranges) if at < length}
    assert all(start < end for start, end in kept)
