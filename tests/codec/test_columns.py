from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.columns import Records, column


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: int = 7


@given(rows=st.lists(st.tuples(st.integers(), st.integers())), start=st.integers(-9, 9), end=st.integers(-9, 9))
def test_columns_are_a_sequence_of_their_records(rows: list[tuple[int, int]], start: int, end: int) -> None:
    pairs = [Pair(*row) for row in rows]
    found = Records(Pair, {"left": [left for left, _ in rows], "right": [right for _, right in rows]})
    assert list(found) == pairs
    assert found == pairs
    assert found == tuple(pairs)
    assert (found == [*pairs, Pair(1, 2)]) is False
    assert [found[place] for place in range(-len(pairs), len(pairs))] == pairs + pairs
    assert found[start:end] == pairs[start:end]
    assert pickle.loads(pickle.dumps(found)) == pairs
    assert column(found, "left") == column(pairs, "left")


def test_a_field_without_a_column_has_its_default() -> None:
    found = Records(Pair, {"left": [1, 2]})
    assert list(found) == [Pair(1), Pair(2)]
    assert found.column("right") == [7, 7]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        Records(Pair, {"left": [1], "right": []})
