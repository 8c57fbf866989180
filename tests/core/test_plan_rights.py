"""The rights of a plan: exactly its streams and its action, and never more than the identity has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.plans import PLAN_END_S, plan_grants, plan_life, still_held
from penstock.core.access.resources import grant_text, of_stream, parse_grant
from penstock.core.access.rights import actions_on
from penstock.model.errors import InvalidArgumentError, PermissionDeniedError
from penstock.model.identity import Action, Identity
from penstock.model.names import StreamName

NAMES = st.sampled_from(["a", "ab", "b"])
RESOURCES = st.one_of(
    st.just("/"),
    st.builds("/scope:{}".format, st.sampled_from(["a", "ab", "a*"])),
    st.builds("/scope:{}/stream:{}".format, NAMES, st.sampled_from(["a", "ab", "a*"])),
)
GRANTS = st.lists(
    st.builds(
        lambda resource, actions: parse_grant(f"{resource}={','.join(sorted(actions))}"),
        RESOURCES,
        st.sets(st.sampled_from(["read", "write", "admin", "audit"]), min_size=1),
    ),
    max_size=4,
)
TARGETS = st.lists(st.one_of(st.builds(StreamName, NAMES, NAMES), NAMES, st.none()), min_size=1, max_size=3)
EVERY_STREAM = [StreamName(scope, stream) for scope in ("a", "ab", "b", "c") for stream in ("a", "ab", "b", "c")]


def held(grants, stream):
    return actions_on(grants, of_stream(stream))


@given(grants=GRANTS, targets=TARGETS, action=st.sampled_from(["read", "write"]))
def test_a_plan_has_its_action_on_its_targets_and_nothing_else(grants, targets, action):
    identity = Identity(name="ann", proof="password", grants=tuple(grants))
    try:
        found = plan_grants(identity, targets, action)
    except PermissionDeniedError:
        return
    for stream in EVERY_STREAM:
        wanted = any(target in (None, stream, stream.scope) for target in targets)
        expected = held(grants, stream) & {Action(action)} if wanted else frozenset()
        assert held(found, stream) == expected


@given(grants=GRANTS, stream=st.sampled_from(EVERY_STREAM), action=st.sampled_from(["read", "write"]))
def test_a_stream_without_the_right_is_refused(grants, stream, action):
    identity = Identity(name="ann", proof="password", grants=tuple(grants))
    if Action(action) in held(grants, stream):
        plan_grants(identity, [stream], action)
    else:
        with pytest.raises(PermissionDeniedError):
            plan_grants(identity, [stream], action)


@given(planned=GRANTS, present=GRANTS)
def test_a_plan_loses_what_its_user_loses(planned, present):
    left = still_held(planned, present)
    for stream in EVERY_STREAM:
        assert held(left, stream) <= held(planned, stream) & held(present, stream)


@pytest.mark.parametrize("name", ["audit", "erasures"])
def test_the_stores_records_need_the_right_to_audit_and_no_other_stream_of_the_store_is_planned(name):
    audit, other = StreamName("_system", name), StreamName("_system", "other")
    root = Identity(name="root", proof="password", grants=(parse_grant("/=*"),))
    assert [grant_text(one) for one in plan_grants(root, [audit], "read")] == ["/=audit"]
    for stream, action in ((audit, "write"), (other, "read")):
        with pytest.raises(PermissionDeniedError):
            plan_grants(root, [stream], action)
    reader = Identity(name="rob", proof="password", grants=(parse_grant("/=read,write,admin"),))
    with pytest.raises(PermissionDeniedError):
        plan_grants(reader, [audit], "read")


@pytest.mark.parametrize("action", ["admin", "erase", "", "*"])
def test_a_plan_reads_or_writes_and_does_nothing_else(action):
    root = Identity(name="root", proof="password", grants=(parse_grant("/=*"),))
    with pytest.raises(InvalidArgumentError):
        plan_grants(root, [None], action)


def test_renewed_tokens_end_a_day_after_the_plan():
    user = Identity(name="ann", proof="certificate")
    first = plan_life(user, valid_s=3600, now_ms=0)
    assert (first.proof, first.expires_ms, first.ends_ms) == ("certificate", 3_600_000, PLAN_END_S * 1000)
    tasks = Identity(name="ann", proof="plan", plan=first)
    last = plan_life(tasks, valid_s=3600, now_ms=first.ends_ms - 1000)
    assert (last.proof, last.expires_ms, last.ends_ms) == ("certificate", first.ends_ms, first.ends_ms)
    for valid_s in (9, 86_401):
        with pytest.raises(InvalidArgumentError):
            plan_life(user, valid_s=valid_s, now_ms=0)
