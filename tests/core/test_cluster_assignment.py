"""The next assignment of a cluster: losses are noted once, kept while they count, and equal facts give equal results."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store.cluster_nodes import Assignment, decode_node, encode_node
from penstock.core.cluster.assignment import LOSSES_MAX, next_assignment
from penstock.core.cluster.placement import FLAP_WINDOW_MS, MOVE_PAUSE_MS, StoreFacts, flaps

NOW_MS = 1_700_000_000_000
NAMES = ("a", "b", "c")
CONTAINERS = 6

times = st.lists(st.integers(0, 3 * FLAP_WINDOW_MS), max_size=12).map(
    lambda ages: tuple(sorted(NOW_MS - age for age in ages))
)
assignments = st.builds(
    Assignment,
    owners=st.dictionaries(st.integers(0, CONTAINERS - 1), st.sampled_from(NAMES)),
    moved_at_ms=st.integers(NOW_MS - 30_000, NOW_MS),
    losses_ms=st.dictionaries(st.sampled_from(NAMES), times),
    known=st.sets(st.sampled_from(NAMES)).map(lambda names: tuple(sorted(names))),
)
names = st.sets(st.sampled_from(NAMES))


def decide(before, registered, drained=(), now_ms=NOW_MS):
    return next_assignment(before, registered=registered, drained=drained, containers=CONTAINERS, now_ms=now_ms)


@given(before=assignments, registered=names, drained=names)
def test_a_second_controller_finds_nothing_to_do_at_the_same_time(before, registered, drained):
    found = decide(before, registered, drained)
    assert found == decide(before, sorted(registered, reverse=True), sorted(drained))
    after = decide(found.assignment, registered, drained)
    assert after.assignment.losses_ms == found.assignment.losses_ms
    assert after.assignment.known == tuple(sorted(registered))
    if not found.assignment.owners or found.again_at_ms is None or found.again_at_ms > NOW_MS:
        assert decode_node(Assignment, encode_node(found.assignment)) == found.assignment


@given(before=assignments, registered=names)
def test_each_store_that_left_containers_behind_has_one_more_loss(before, registered):
    found = decide(before, registered).assignment
    for name in NAMES:
        has_left = name in before.known and name not in registered
        is_lost = has_left and name in before.owners.values()
        assert (found.losses_ms.get(name, (0,))[-1] == NOW_MS) or not is_lost
        if has_left and not is_lost:
            assert set(found.losses_ms.get(name, ())) <= set(before.losses_ms.get(name, ()))
        assert len(found.losses_ms.get(name, ())) <= LOSSES_MAX


@given(losses=times, later_ms=st.integers(0, 2 * FLAP_WINDOW_MS))
def test_forgotten_losses_make_no_difference(losses, later_ms):
    before = Assignment(losses_ms={"a": losses}, known=("a",))
    kept = decide(before, ["a"]).assignment.losses_ms.get("a", ())
    now_ms = NOW_MS + later_ms
    assert flaps(StoreFacts(name="a", losses_ms=kept), now_ms=now_ms) == flaps(
        StoreFacts(name="a", losses_ms=losses), now_ms=now_ms
    )


def test_without_a_store_containers_keep_their_owners():
    before = Assignment(owners={0: "a"}, known=("a",))
    found = decide(before, [])
    assert found.assignment.owners == {0: "a"}
    assert found.assignment.losses_ms == {"a": (NOW_MS,)}
    assert found.again_at_ms is None


def test_a_time_far_ahead_does_not_stop_moves():
    owners = dict.fromkeys(range(CONTAINERS), "a")
    near = Assignment(owners=owners, moved_at_ms=NOW_MS + 100, known=("a", "b"))
    found = decide(near, ["a", "b"])
    assert found.assignment.owners == owners
    assert found.again_at_ms == NOW_MS + 100 + MOVE_PAUSE_MS
    far = Assignment(owners=owners, moved_at_ms=NOW_MS + 86_400_000, known=("a", "b"))
    found = decide(far, ["a", "b"]).assignment
    assert sorted(found.owners.values()) == ["a"] * 5 + ["b"]
    assert found.moved_at_ms == NOW_MS
