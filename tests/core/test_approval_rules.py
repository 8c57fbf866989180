"""Four eyes: who may decide, what an approval is bound to, and what shortens retention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.policies.approvals import (
    ACTIONS,
    NEEDS,
    PENDING_HERE,
    PENDING_MAX,
    PENDING_OF_ONE,
    check_may_decide,
    check_requester,
    checked_actions,
    request_digest,
    shortens,
    too_many,
)
from penstock.core.policies.levels import resolve
from penstock.model.errors import ConflictError, InvalidArgumentError, PermissionDeniedError
from penstock.model.identity import Action, Grant, Identity
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, Backlog, Idle, OnExceed, PolicyDocument, Retain, Unsubscribed

STREAM = StreamName("s", "t")


def identity(name: str, resource: str, *actions: Action) -> Identity:
    return Identity(name=name, proof="password", grants=(Grant(resource, frozenset(actions)),))


@pytest.mark.parametrize("resource", ["/", "/scope:s", "/scope:s/stream:t"])
def test_another_identity_with_the_right_may_decide(resource: str) -> None:
    check_may_decide(identity("bea", resource, Action.APPROVE), "al", STREAM)


@pytest.mark.parametrize(
    ("who", "target"),
    [
        (identity("al", "/", Action.APPROVE), STREAM),  # the requester
        (identity("bea", "/", *(set(Action) - {Action.APPROVE})), STREAM),  # all other rights
        (identity("bea", "/scope:other", Action.APPROVE), STREAM),
        (identity("bea", "/scope:s", Action.APPROVE), None),
        (identity("bea", "/scope:s/stream:t", Action.APPROVE), "s"),
    ],
)
def test_nobody_else_may(who: Identity, target: StreamName | str | None) -> None:
    with pytest.raises(PermissionDeniedError):
        check_may_decide(who, "al", target)


@pytest.mark.parametrize("action", [*ACTIONS, "require"])
def test_a_requester_needs_the_right_to_the_action_and_no_other_right(action: str) -> None:
    right, others = NEEDS[action], set(Action) - {NEEDS[action]}
    for resource in ("/", "/scope:s", "/scope:s/stream:t"):
        check_requester(identity("al", resource, right), action, STREAM, {})
    none = Identity(name="al", proof="password")
    for lost in (none, identity("al", "/", *others), identity("al", "/scope:other", *Action)):
        with pytest.raises(ConflictError, match="lost the right"):
            check_requester(lost, action, STREAM, {})
    with pytest.raises(ConflictError):
        check_requester(identity("al", "/scope:s/stream:t", right), action, "s", {})


def test_a_requester_needs_the_right_to_the_table_or_to_all_targets_of_the_case() -> None:
    table = identity("al", "/scope:s/key-value-table:k", Action.ADMIN)
    check_requester(table, "delete", "s", {"table": "k"})
    for arguments in ({"table": "other"}, {}):
        with pytest.raises(ConflictError):
            check_requester(table, "delete", "s", arguments)
    eraser = identity("al", "/scope:s", Action.ERASE)
    check_requester(eraser, "erase", "s", {"targets": ["s/t", "s"]})
    with pytest.raises(ConflictError):
        check_requester(eraser, "erase", None, {"targets": ["s/t", "r"]})


WAITING = st.lists(
    st.tuples(
        st.sampled_from(["al", "bea"]),
        st.sampled_from([StreamName("s", "t"), StreamName("s", "u"), StreamName("r", "t"), "s", "r", None]),
        st.integers(0, 2 * PENDING_HERE),
    ),
    max_size=6,
)


@given(groups=WAITING, target=st.sampled_from([StreamName("s", "t"), "s", "r", None]))
def test_a_requester_is_stopped_by_its_own_requests_or_when_all_is_full(groups, target) -> None:  # type: ignore[no-untyped-def]
    waiting = [(who, of) for who, of, count in groups for _ in range(count)]
    mine = [of for who, of in waiting if who == "al"]
    scope = target.scope if isinstance(target, StreamName) else target
    here = [of for of in mine if (of.scope if isinstance(of, StreamName) else of) == scope]
    stopped = len(here) >= PENDING_HERE or len(mine) >= PENDING_OF_ONE or len(waiting) >= PENDING_MAX
    assert (too_many(waiting, "al", target) is not None) == stopped
    assert too_many([("bea", of) for of in mine[: PENDING_MAX - 1]], "al", target) is None


def test_all_requests_together_have_a_bound() -> None:
    waiting = [(f"user{number}", "s") for number in range(PENDING_MAX)]
    assert too_many(waiting, "al", "s") == PENDING_MAX
    assert too_many(waiting[1:], "al", "s") is None
    assert PENDING_MAX >= 10 * PENDING_OF_ONE, "one requester cannot block the others"


def test_unknown_actions_are_refused() -> None:
    assert checked_actions(["truncate", "delete", "delete"]) == ("delete", "truncate")
    with pytest.raises(InvalidArgumentError):
        checked_actions(["erase all"])
    assert checked_actions(ACTIONS) == ACTIONS


TEXT = st.text(max_size=3)
ASKED = st.tuples(TEXT, TEXT, st.dictionaries(TEXT, TEXT), st.dictionaries(TEXT, TEXT))


@given(ASKED, ASKED)
def test_an_approval_is_bound_to_the_action_its_arguments_and_its_facts(first: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert (request_digest(*first) == request_digest(*other)) == (first == other)


BASE = PolicyDocument(retain=Retain(min_age_s=10, max_age_s=100), grace_s=5, backlog=Backlog(ttl_s=50))


@pytest.mark.parametrize(
    ("before", "after", "is_shorter"),
    [
        (BASE, BASE, False),
        (BASE, replace(BASE, retain=Retain(min_age_s=9, max_age_s=100)), True),
        (BASE, replace(BASE, retain=Retain(min_age_s=10, max_age_s=99)), True),
        (BASE, replace(BASE, retain=Retain(min_age_s=11, max_age_s=101)), False),
        (BASE, replace(BASE, grace_s=4), True),
        (BASE, replace(BASE, grace_s=6), False),
        (BASE, replace(BASE, backlog=Backlog(ttl_s=49)), True),
        (BASE, replace(BASE, backlog=Backlog(ttl_s=None)), False),
        (BASE, replace(BASE, backlog=Backlog(ttl_s=50, max_bytes=5, on_exceed=OnExceed.EVICT)), True),
        (BASE, replace(BASE, backlog=Backlog(ttl_s=50, max_bytes=5)), False),
        (BASE, replace(BASE, idle=Idle(stream_s=5)), True),
        (replace(BASE, unsubscribed=Unsubscribed.KEEP), BASE, True),
        (EMPTY, BASE, True),
        (BASE, EMPTY, True),  # the grace
        (replace(BASE, grace_s=0), EMPTY, False),
    ],
)
def test_a_policy_is_shorter_if_data_may_be_deleted_earlier(
    before: PolicyDocument, after: PolicyDocument, is_shorter: bool
) -> None:
    assert shortens(resolve(before, EMPTY, EMPTY), resolve(after, EMPTY, EMPTY)) is is_shorter
