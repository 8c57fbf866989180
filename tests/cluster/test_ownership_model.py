"""Taking a container over, before any of it is built: no order of steps loses or doubles what was acknowledged."""

from __future__ import annotations

from dataclasses import fields

import pytest
from ownership_model import Rules, begin, explore

WORLDS = {
    "a takeover": {},
    "a roll": {"rolls": 1, "rival": False},
}
LARGE_WORLDS = {
    "a recovery by BookKeeper itself": {"robot": True, "rival": False},
    "a takeover of an owner that publishes": {"publications": 2},
    "a takeover during a roll": {"rolls": 1},
    "a takeover during a recovery by BookKeeper itself": {"robot": True},
    "a takeover and one back": {"again": True},
    "two appends": {"appends": 2},
}
FOUND_IN = {
    "fences": {},
    "asks_quorum": {},
    "adds_again": {},
    "closes_at_confirmed": {"rolls": 1, "rival": False},
    "ignores_late_answers": {"rolls": 1, "rival": False},
}
FOUND_IN_LARGE = {
    "keeps_what_was_recovered": {"robot": True, "rival": False},
    "compares": {"rolls": 1},
    "begins_with_header": {"header": False},
    "publishes_first": {"publications": 2},
}


def check(world: dict[str, int]) -> None:
    found = explore(begin(**world), Rules())
    print(f"{found.states:,} states")
    assert not found.wrong, "\n".join(map(str, found.path[-6:]))


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_nothing_acknowledged_is_lost_or_doubled(world: dict[str, int]) -> None:
    check(world)


@pytest.mark.slow
@pytest.mark.parametrize("world", LARGE_WORLDS.values(), ids=LARGE_WORLDS)
def test_nothing_acknowledged_is_lost_or_doubled_in_large_worlds(world: dict[str, int]) -> None:
    check(world)


@pytest.mark.parametrize("rule", FOUND_IN)
def test_each_rule_is_needed(rule: str) -> None:
    assert explore(begin(**FOUND_IN[rule]), Rules(**{rule: False})).wrong


@pytest.mark.slow
@pytest.mark.parametrize("rule", FOUND_IN_LARGE)
def test_each_rule_is_needed_in_large_worlds(rule: str) -> None:
    assert explore(begin(**FOUND_IN_LARGE[rule]), Rules(**{rule: False})).wrong


def test_every_rule_is_shown_to_be_needed() -> None:
    assert {*FOUND_IN, *FOUND_IN_LARGE} == {field.name for field in fields(Rules)}
