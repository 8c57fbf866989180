"""Four eyes: who may decide, what an approval is bound to, and what shortens retention."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.policies.approvals import ACTIONS, check_may_decide, checked_actions, request_digest, shortens
from penstock.core.policies.levels import resolve
from penstock.model.errors import InvalidArgumentError, PermissionDeniedError
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
