"""Pulsar's names become ours and come back; numbers are read as the broker reads them."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.policies.levels import resolve
from penstock.model.errors import InvalidNameError
from penstock.model.names import check_name
from penstock.model.retention import (
    EMPTY,
    INHERIT,
    Backlog,
    EffectivePolicy,
    Idle,
    IdleWhen,
    OnExceed,
    PolicyDocument,
    Retain,
)
from penstock.net.http.pulsar.bodies import (
    POLICY_NAMES,
    AdminError,
    Quota,
    Retention,
    backlog_of,
    inactive_of,
    no_retain,
    number_of_limit,
    quotas_of,
    retain_of,
    retention_of,
    whole,
)
from penstock.net.http.pulsar.names import (
    NamespaceName,
    TopicName,
    group_of,
    split_partition,
    subscriber_of,
    subscription_of,
)

ENTITY = st.text(string.ascii_letters + string.digits + "-=:._", min_size=1, max_size=30)
ANY = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())


@given(tenant=ENTITY, namespace=ENTITY)
def test_every_namespace_is_a_scope_of_its_own_and_is_found_again(tenant: str, namespace: str) -> None:
    name = NamespaceName(tenant, namespace)
    try:
        scope = name.scope
    except InvalidNameError:
        return
    assert check_name("scope", scope) == scope
    assert NamespaceName.of_scope(scope) == name


@given(first=st.tuples(ENTITY, ENTITY), second=st.tuples(ENTITY, ENTITY))
def test_two_namespaces_never_share_a_scope(first: tuple[str, str], second: tuple[str, str]) -> None:
    if first != second:
        assert NamespaceName(*first).scope != NamespaceName(*second).scope


@given(local=ANY)
def test_every_topic_and_subscription_has_a_legal_name_and_is_found_again(local: str) -> None:
    topic = TopicName(NamespaceName("t", "n"), local)
    stream = topic.stream
    assert check_name("stream", stream.stream) == stream.stream
    assert TopicName.of_stream(topic.namespace, stream.stream) == topic
    assert check_name("stream", group_of(local)) == group_of(local)
    assert subscription_of("t.n", subscriber_of("t.n", local)) == local


@pytest.mark.parametrize("scope", ["flights", ".x", "x.", "a..2eb", "a...ff", "a..5f", "..7a.b"])
def test_a_scope_that_no_namespace_writes_is_no_namespace(scope: str) -> None:
    assert NamespaceName.of_scope(scope) is None


def test_plain_names_stay_as_they_are() -> None:
    assert NamespaceName("my-tenant", "my-ns").scope == "my-tenant.my-ns"
    assert NamespaceName("a.b", "c.d").scope == "a..2eb.c.d"
    assert TopicName(NamespaceName("t", "n"), "my_topic").stream.stream == "my..5ftopic"
    assert subscription_of("t.n", "other/group") == "other/group"
    assert subscriber_of("t.n", "other/group") == "other/group"


def test_the_name_of_a_partition_is_taken_apart() -> None:
    assert split_partition("x-partition-12") == ("x", 12)
    assert split_partition("x-partition-") is None
    assert split_partition("-partition-1") is None


def test_names_that_would_be_too_long_are_refused() -> None:
    with pytest.raises(InvalidNameError):
        _ = NamespaceName("t", "_" * 200).scope
    with pytest.raises(InvalidNameError):
        _ = TopicName(NamespaceName("t", "n"), "x" * 251).stream
    with pytest.raises(InvalidNameError):
        group_of("")


@given(minutes=st.integers(1, 10**6), mib=st.integers(1, 10**6))
def test_retention_comes_back_as_it_was_given(minutes: int, mib: int) -> None:
    for given_one in (Retention(minutes, mib), Retention(-1, mib), Retention(minutes, -1), Retention(-1, -1)):
        assert retention_of(retain_of(given_one, Retain())) == given_one


@given(seconds=st.integers(1, 10**6), size=st.integers(1, 10**9))
def test_what_was_not_set_in_minutes_and_mib_is_rounded_up(seconds: int, size: int) -> None:
    found = retention_of(Retain(min_age_s=seconds, min_bytes=size))
    assert found is not None
    assert 0 <= found.minutes * 60 - seconds < 60
    assert 0 <= (found.mib << 20) - size < 1 << 20


def test_a_maximum_survives_whatever_is_done_to_the_minimum() -> None:
    before = Retain(max_bytes=7, max_age_s=8, min_bytes=1)
    assert retain_of(Retention(1, 1), before).max_bytes == 7
    assert no_retain(before) == Retain(max_bytes=7, max_age_s=8)
    assert retention_of(no_retain(before)) is None


@pytest.mark.parametrize("action", list(OnExceed))
def test_each_quota_has_the_action_that_was_asked_for_it(action: OnExceed) -> None:
    before = Backlog(ttl_s=3, max_events=9, on_exceed=OnExceed.REJECT, on_exceed_bytes=OnExceed.HOLD, max_bytes=7)
    found = backlog_of({"message_age": Quota(-1, 5, POLICY_NAMES[action])}, before)
    assert found == Backlog(
        ttl_s=3, max_events=9, max_age_s=5, on_exceed=OnExceed.REJECT, on_exceed_age=action, evict_to=0.9
    )


def test_quotas_set_elsewhere_are_shown_in_pulsars_words() -> None:
    backlog = Backlog(max_bytes=5, max_age_s=1.5, on_exceed=OnExceed.EVICT, on_exceed_age=OnExceed.REJECT)
    assert quotas_of(backlog, resolve(PolicyDocument(backlog=backlog), EMPTY, EMPTY)) == {
        "destination_storage": Quota(5, -1, "consumer_backlog_eviction"),
        "message_age": Quota(-1, 2, "producer_exception"),
    }
    assert quotas_of(Backlog(max_bytes=None), EffectivePolicy()) == {}


def test_idleness_set_elsewhere_is_shown_in_pulsars_words() -> None:
    assert inactive_of(Idle()) is None
    found = inactive_of(Idle(stream_s=1.2, stream_when=IdleWhen.CAUGHT_UP))
    assert found is not None
    assert found.to_json() == {
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 2,
        "deleteWhileInactive": True,
    }
    assert number_of_limit(61, 60) == 2
    assert number_of_limit(None, 60) == 0
    assert number_of_limit(INHERIT, 60) is None


@pytest.mark.parametrize(
    ("value", "number"), [(None, 0), (1.9, 1), ("30", 30), (-1, -1), (" 7 ", 7), (2**31 - 1, 2**31 - 1)]
)
def test_numbers_are_read_as_the_broker_reads_them(value: object, number: int) -> None:
    assert whole(value, "x") == number


@pytest.mark.parametrize("value", [True, "x", "1.5", [], {}, 2**31, float("nan"), -(2**31) - 1, "9" * 50])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(AdminError) as refused:
        whole(value, "x")
    assert refused.value.status == 400
