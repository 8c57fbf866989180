"""The map of a cluster: every container has an owner, few move, and equal facts give equal maps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cluster.explanations import ClusterFacts, alike, container_names, why_not_drained
from penstock.core.cluster.placement import (
    FLAP_WINDOW_MS,
    MOVE_PAUSE_MS,
    NO_CHOICES,
    REQUESTED_PAUSE_MS,
    Choices,
    StoreFacts,
    flaps,
    place,
)

NOW_MS = 1_700_000_000_000
NAMES = ("a", "b", "c", "d", "e")
CONTAINERS = 12

losses = st.lists(st.integers(0, 3 * FLAP_WINDOW_MS), max_size=5).map(
    lambda ages: tuple(sorted(NOW_MS - age for age in ages))
)
facts = st.builds(StoreFacts, name=st.sampled_from(NAMES), draining=st.booleans(), losses_ms=losses)
stores = st.lists(facts, max_size=5, unique_by=lambda store: store.name)
owners = st.dictionaries(st.integers(0, CONTAINERS - 1), st.sampled_from(NAMES))


def steady(*names: str) -> list[StoreFacts]:
    return [StoreFacts(name=name) for name in names]


pins = st.dictionaries(st.integers(0, CONTAINERS - 1), st.sampled_from(NAMES))
failures = st.frozensets(st.tuples(st.integers(0, CONTAINERS - 1), st.sampled_from(NAMES)))
choices = st.builds(Choices, pinned=pins, failed=failures)
disabled = st.frozensets(st.integers(0, CONTAINERS - 1))


def settle(before, alive, now_ms=NOW_MS, choices=NO_CHOICES):
    """Follow the decisions until none is left. Returns the maps, oldest first."""
    maps, moved_at_ms = [before], now_ms
    while True:
        found = place(maps[-1], alive, containers=CONTAINERS, now_ms=now_ms, moved_at_ms=moved_at_ms, choices=choices)
        moved_at_ms = now_ms if found.moved else moved_at_ms
        maps.append(found.owners)
        if found.again_at_ms is None:
            return maps
        assert found.again_at_ms > now_ms or found.owners != maps[-2]
        now_ms = found.again_at_ms
        assert len(maps) < 100


@given(before=owners, alive=stores, ago_ms=st.integers(0, 30_000))
def test_every_container_has_a_live_owner_if_a_store_lives(before, alive, ago_ms):
    found = place(before, alive, containers=CONTAINERS, now_ms=NOW_MS, moved_at_ms=NOW_MS - ago_ms)
    if not alive:
        assert found.owners == before
        return
    assert sorted(found.owners) == list(range(CONTAINERS))
    assert set(found.owners.values()) <= {store.name for store in alive}


@given(before=owners, alive=stores, data=st.data())
def test_equal_facts_in_any_order_give_equal_maps(before, alive, data):
    shuffled = data.draw(st.permutations(alive))
    turned = dict(data.draw(st.permutations(list(before.items()))))
    first = place(before, alive, containers=CONTAINERS, now_ms=NOW_MS, moved_at_ms=0)
    assert place(turned, shuffled, containers=CONTAINERS, now_ms=NOW_MS, moved_at_ms=0) == first


@given(before=owners, alive=stores, ago_ms=st.integers(0, 30_000))
def test_a_container_of_a_live_store_moves_alone_and_after_a_pause(before, alive, ago_ms):
    names = {store.name for store in alive}
    found = place(before, alive, containers=CONTAINERS, now_ms=NOW_MS, moved_at_ms=NOW_MS - ago_ms)
    moved = [number for number, name in before.items() if name in names and found.owners[number] != name]
    orphans = [number for number in range(CONTAINERS) if before.get(number) not in names]
    assert len(moved) == int(found.moved)
    assert not (moved and orphans and alive)
    draining = {store.name for store in alive if store.draining}
    for number in moved:
        assert ago_ms >= (REQUESTED_PAUSE_MS if before[number] in draining else MOVE_PAUSE_MS)


@given(before=owners, alive=stores)
def test_a_store_that_flaps_or_drains_receives_nothing_while_another_can(before, alive):
    found = place(before, alive, containers=CONTAINERS, now_ms=NOW_MS, moved_at_ms=0)
    good = {store.name for store in alive if not store.draining and not flaps(store, now_ms=NOW_MS)}
    received = {name for number, name in found.owners.items() if before.get(number) != name}
    assert not good or received <= good


@given(before=owners, alive=stores)
def test_decisions_come_to_rest_with_stores_that_differ_by_at_most_one(before, alive):
    last = settle(before, alive)[-1]
    counts = Counter(last.values())
    wanted = [store.name for store in alive if not store.draining] or [store.name for store in alive]
    if wanted:
        assert max(counts[name] for name in wanted) - min(counts[name] for name in wanted) <= 1
        assert sum(counts[name] for name in wanted) == CONTAINERS


@given(before=owners, alive=stores)
def test_the_map_at_rest_stays(before, alive):
    last = settle(before, alive)[-1]
    later_ms = NOW_MS + 10 * FLAP_WINDOW_MS
    found = place(last, alive, containers=CONTAINERS, now_ms=later_ms, moved_at_ms=0)
    assert (found.owners, found.moved, found.again_at_ms) == (last, False, None)


def test_orphans_of_a_lost_store_go_at_once_to_those_with_the_fewest():
    before = {number: "abc"[number % 3] for number in range(CONTAINERS)}
    found = place(before, steady("a", "b"), containers=CONTAINERS, now_ms=NOW_MS, moved_at_ms=NOW_MS)
    assert not found.moved
    assert all(found.owners[number] == name for number, name in before.items() if name != "c")
    assert Counter(found.owners.values()) == {"a": 6, "b": 6}


def test_a_new_store_is_filled_one_container_at_a_time():
    before = {number: "ab"[number % 2] for number in range(CONTAINERS)}
    maps = settle(before, steady("a", "b", "c"))
    steps = [sum(old[number] != new[number] for number in old) for old, new in zip(maps, maps[1:], strict=False)]
    assert max(steps) == 1
    assert sum(steps) == 4
    assert Counter(maps[-1].values()) == {"a": 4, "b": 4, "c": 4}


def test_a_store_lost_three_times_gets_nothing_until_ten_quiet_minutes():
    minute = 60_000
    twice = StoreFacts(name="a", losses_ms=(NOW_MS - 5 * minute, NOW_MS))
    often = StoreFacts(name="a", losses_ms=(NOW_MS - 8 * minute, NOW_MS - 4 * minute, NOW_MS))
    slowly = StoreFacts(name="a", losses_ms=(NOW_MS - 11 * minute, NOW_MS - 5 * minute, NOW_MS))
    assert [flaps(store, now_ms=NOW_MS) for store in (twice, often, slowly)] == [False, True, False]
    assert flaps(often, now_ms=NOW_MS + FLAP_WINDOW_MS - 1)
    assert not flaps(often, now_ms=NOW_MS + FLAP_WINDOW_MS)
    # One more loss within the rest makes it longer, though the first ones are old by then.
    again = StoreFacts(name="a", losses_ms=(*often.losses_ms, NOW_MS + 9 * minute))
    assert flaps(again, now_ms=NOW_MS + 9 * minute + FLAP_WINDOW_MS - 1)


@given(before=owners, alive=stores, choices=choices)
def test_the_choices_of_operators_and_failed_openings_are_kept_in_the_end(before, alive, choices):
    owners = settle(before, alive, choices=choices)[-1]
    names = {store.name for store in alive}
    late_ms = NOW_MS + 10 * FLAP_WINDOW_MS
    usable = {one.name for one in alive if not one.draining and not flaps(one, now_ms=late_ms)}
    if not usable:
        return
    for number, owner in owners.items():
        able = {name for name in usable if (number, name) not in choices.failed}
        pinned = choices.pinned.get(number)
        if pinned in able:
            assert owner == pinned
        elif able:
            assert owner in able
        assert owner in names


@given(before=owners, alive=stores, choices=choices)
def test_a_container_that_is_served_never_moves_to_a_store_that_could_not_open_it(before, alive, choices):
    names = {store.name for store in alive}
    maps = settle(before, alive, choices=choices)
    for earlier, later in pairwise(maps):
        for number, owner in later.items():
            if earlier.get(number) in names and owner != earlier[number]:
                assert (number, owner) not in choices.failed


def test_a_container_that_no_store_can_open_stays_where_it_is():
    failed = frozenset((3, name) for name in ("a", "b"))
    before = {number: "a" if number % 2 else "b" for number in range(CONTAINERS)}
    found = place(
        before, steady("a", "b"), containers=CONTAINERS, now_ms=NOW_MS, moved_at_ms=0, choices=Choices(failed=failed)
    )
    assert found.owners == before
    found = place(
        before,
        steady("a", "b", "c"),
        containers=CONTAINERS,
        now_ms=NOW_MS,
        moved_at_ms=NOW_MS,
        choices=Choices(failed=failed),
    )
    assert found.owners == {**before, 3: "c"}, "at once, and nothing else moves"


@given(before=owners, alive=stores, choices=choices)
def test_what_an_operator_wants_is_done_within_a_second_for_each_container(before, alive, choices):
    names = {store.name for store in alive if not store.draining}
    alive = [replace(store, losses_ms=()) for store in alive]
    pinned = {number: name for number, name in choices.pinned.items() if name in names}
    maps, now_ms, moved_at_ms = [before], NOW_MS, NOW_MS
    for _ in range(2 * CONTAINERS + 1):
        facts = {"containers": CONTAINERS, "now_ms": now_ms, "moved_at_ms": moved_at_ms}
        found = place(maps[-1], alive, choices=Choices(pinned=pinned), **facts)
        moved_at_ms = now_ms if found.moved else moved_at_ms
        maps.append(found.owners)
        now_ms += REQUESTED_PAUSE_MS
    assert all(maps[-1][number] == name for number, name in pinned.items())
    assert not names or set(maps[-1].values()) <= names


def test_the_balance_leaves_pinned_containers_alone():
    pinned = dict.fromkeys(range(8), "a")
    owners = settle({}, steady("a", "b"), choices=Choices(pinned=pinned))[-1]
    assert [number for number, owner in owners.items() if owner == "a"] == list(range(8))
    assert settle(owners, steady("a", "b"), choices=Choices(pinned=pinned))[-1] == owners


@given(before=owners, alive=stores, choices=choices, disabled=disabled, ago_ms=st.integers(0, 30_000))
def test_a_disabled_container_has_no_owner_and_the_others_are_placed_as_if_it_did_not_exist(
    before, alive, choices, disabled, ago_ms
):
    facts = {"containers": CONTAINERS, "now_ms": NOW_MS, "moved_at_ms": NOW_MS - ago_ms}
    found = place(before, alive, choices=replace(choices, disabled=disabled), **facts)
    assert not found.owners.keys() & disabled, "at once, even without a store"
    if alive:
        assert set(found.owners) == set(range(CONTAINERS)) - disabled
    others = {number: name for number, name in before.items() if number not in disabled}
    assert found == place(others, alive, choices=replace(choices, disabled=disabled), **facts)


@given(before=owners, alive=stores, choices=choices, disabled=disabled)
def test_an_enabled_container_is_placed_again(before, alive, choices, disabled):
    without = settle(before, alive, choices=replace(choices, disabled=disabled))[-1]
    assert set(settle(without, alive, choices=choices)[-1]) == (set(range(CONTAINERS)) if alive else set(without))


@given(before=owners, alive=stores, choices=choices, disabled=disabled)
def test_a_drained_store_keeps_in_the_end_exactly_the_containers_that_have_a_reason(before, alive, choices, disabled):
    choices = replace(choices, pinned={}, disabled=disabled)
    facts = ClusterFacts(
        stores={one.name: one for one in alive},
        controllers=True,
        choices=choices,
        reasons={},
        disabled=dict.fromkeys(disabled, "repair"),
    )
    last = settle(before, alive, choices=choices)[-1]
    late_ms = NOW_MS + 10 * FLAP_WINDOW_MS
    for store in alive:
        if store.draining:
            left = {number for number, name in last.items() if name == store.name}
            found = why_not_drained(store.name, left, facts=facts, now_ms=late_ms)
            assert {number for numbers in found.values() for number in numbers} == left


def test_containers_with_one_reason_are_one_line() -> None:
    found = alike([(0, "full"), (1, "lost"), (2, "full"), (3, "full"), (4, "full")])
    assert [(reason, container_names(numbers)) for reason, numbers in found] == [
        ("full", "containers 0, 2 to 4"),
        ("lost", "container 1"),
    ]
    assert container_names({5, 4}) == "containers 4, 5"
