"""Cuts put together out of pieces: valid, ahead of no piece, and as far as that allows."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from retention_world import World, brute_is_valid, cut, even, history_of, keys_of, position_at, worlds

from penstock.core.cuts.compose import compose
from penstock.core.cuts.order import at_or_after, lower_bound
from penstock.model.segments import KeyRange

LOW, HIGH = KeyRange(low=0.0, high=0.5), KeyRange(low=0.5, high=1.0)


def test_each_half_stands_where_its_piece_stands() -> None:
    assert compose(even(2), [(LOW, cut(s0e0=3, s1e0=9)), (HIGH, cut(s0e0=7, s1e0=4))]) == cut(s0e0=3, s1e0=4)


def test_a_segment_that_one_half_has_not_finished_is_finished_by_neither() -> None:
    split = history_of({"0#0": (0, 1)}, {"1#1": (0, 0.5), "2#1": (0.5, 1)}, sealed={"0#0": 10})
    pieces = [(LOW, cut(s1e1=5, s2e1=5)), (HIGH, cut(s0e0=7))]
    assert compose(split, pieces) == cut(s0e0=7)


def test_a_merged_segment_is_not_started_before_both_halves_are_done() -> None:
    merged = history_of({"0#0": (0, 0.5), "1#0": (0.5, 1)}, {"2#1": (0, 1)}, sealed={"0#0": 10, "1#0": 10})
    pieces = [(LOW, cut(s2e1=5)), (HIGH, cut(s0e0=4, s1e0=6))]
    assert compose(merged, pieces) == {**cut(s1e0=6), **cut(s2e1=-1)}


@settings(deadline=None, max_examples=200)
@given(worlds(steps=40))
def test_a_composed_cut_is_valid_and_the_latest_that_is_ahead_of_no_piece(given_: tuple[World, Random]) -> None:
    world, random = given_
    history = world.history
    pieces = [(item.keys, world.some_cut(random)) for item in history.active.segments]
    made = compose(history, pieces)
    assert brute_is_valid(history, made)
    keys = keys_of(history)
    wanted = {}
    for key in keys:
        [piece] = [positions for span, positions in pieces if span.low <= key < span.high]
        wanted[key] = position_at(history, piece, key)
        assert position_at(history, made, key) <= wanted[key]
    # No other valid cut gets further anywhere: neither the bound of all pieces, nor any cut at random below them.
    others = [lower_bound(history, [positions for _, positions in pieces]), *(world.some_cut(random) for _ in range(6))]
    for other in others:
        if all(position_at(history, other, key) <= wanted[key] for key in keys):
            assert at_or_after(history, made, other)
