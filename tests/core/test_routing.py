from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.streams import routing
from penstock.core.streams.routing import Router, hash_key
from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import KeyRange, even_ranges

VECTORS = {
    "": 0.24117842791623523,
    "a": 0.9433912753816884,
    "hello": 0.658716230571337,
    "é": 0.6688272069632242,
    "日本": 0.34924442974855974,
}


@pytest.mark.parametrize(("key", "value"), list(VECTORS.items()))
def test_hash_is_that_of_pravegas_java_client(key: str, value: float) -> None:
    assert hash_key(key) == value


@given(st.text())
def test_every_key_hashes_into_the_unit_interval(key: str) -> None:
    assert 0.0 <= hash_key(key) < 1.0


@given(st.text(), st.integers(1, 200))
def test_the_router_finds_the_range_that_holds_the_hash(key: str, count: int) -> None:
    ranges = list(reversed(even_ranges(count)))
    router = Router(ranges)
    for _ in range(2):
        chosen = ranges[router.index_of(key)]
        assert chosen.low <= hash_key(key) < chosen.high


def test_bounds_belong_to_the_range_above_them() -> None:
    router = Router(even_ranges(4))
    assert [router.index_of_hash(value) for value in (0.0, 0.25, 0.4999999999999999, 0.5, 0.9999999999999999)] == [
        0,
        1,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("value", [1.0, -0.1, float("nan")])
def test_a_hash_outside_the_unit_interval_is_refused(value: float) -> None:
    with pytest.raises(InvalidArgumentError):
        Router(even_ranges(2)).index_of_hash(value)


@pytest.mark.parametrize("bounds", [[(0.0, 0.5)], [(0.5, 1.0)], [(0.0, 0.6), (0.5, 1.0)], [(0.0, 0.4), (0.5, 1.0)], []])
def test_ranges_that_do_not_tile_are_refused(bounds: list[tuple[float, float]]) -> None:
    with pytest.raises(InvalidArgumentError, match="gap or overlap"):
        Router([KeyRange(low=low, high=high) for low, high in bounds])


def test_remembered_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_CACHE_MAX", 4)
    router = Router(even_ranges(3))
    keys = [f"key-{number}" for number in range(50)]
    assert [router.index_of(key) for key in keys] == [router.index_of_hash(hash_key(key)) for key in keys]
    assert len(router._known) <= 4
