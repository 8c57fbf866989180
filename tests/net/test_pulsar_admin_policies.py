"""Policies by Pulsar's admin API. Each test is named after its place in Pulsar's rules: tables of limits, levels, conflicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pulsar_admin_world import NS, TOPIC, N, P, World, play

from penstock.model.retention import (
    Backlog,
    Combine,
    Idle,
    IdleWhen,
    Level,
    Measure,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)
from penstock.net.http.pulsar.context import RELEASED

MIB = 1 << 20
LEVELS = [N, P]
HOLD = "producer_request_hold"


def retention(minutes: object, mib: object) -> dict[str, object]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}


def quota(size: int = -1, time: int = -1, policy: str = HOLD) -> dict[str, object]:
    return {"limitSize": size, "limitTime": time, "policy": policy}


def shown(size: int = -1, time: int = -1, policy: str = HOLD) -> dict[str, object]:
    return {"limit": size, "limitSize": size, "limitTime": time, "policy": policy}


# --- resolution -----------------------------------------------------------------------------------------------


def test_resolution_topic_wins_over_namespace_over_broker() -> None:
    async def story(w: World) -> None:
        assert await w.ok("GET", f"{P}/retention?applied=true") == retention(0, 0)
        await w.ok("POST", f"{N}/retention", retention(10, 20))
        assert await w.ok("GET", f"{P}/retention") is None
        assert await w.ok("GET", f"{P}/retention?applied=true") == retention(10, 20)
        await w.ok("POST", f"{P}/retention", retention(1, 2))
        assert await w.ok("GET", f"{P}/retention?applied=true") == retention(1, 2)
        assert (await w.controller.policies.effective(TOPIC.stream)).min_bytes == 2 * MIB
        await w.ok("DELETE", f"{P}/retention")
        assert await w.ok("GET", f"{P}/retention?applied=true") == retention(10, 20)
        assert (await w.controller.policies.effective(TOPIC.stream)).min_age_ms == 600_000

    play(story, topic=True)


def test_resolution_quota_is_by_type() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/backlogQuota", quota(1000))
        await w.ok("POST", f"{P}/backlogQuota?backlogQuotaType=message_age", quota(time=60))
        effective = await w.controller.policies.effective(TOPIC.stream)
        assert (effective.backlog_bytes, effective.backlog_age_ms) == (1000, 60_000)
        assert await w.ok("GET", f"{P}/backlogQuotaMap?applied=true") == {"message_age": shown(time=60)}

    play(story, topic=True)


def test_resolution_zero_is_a_value_a_ttl_of_0_overrides_one_below() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 3600)
        await w.ok("POST", f"{P}/messageTTL?messageTTL=0")
        assert await w.ok("GET", f"{P}/messageTTL") == 0
        assert (await w.controller.policies.effective(TOPIC.stream)).ttl_ms is None
        await w.ok("DELETE", f"{P}/messageTTL")
        assert (await w.controller.policies.effective(TOPIC.stream)).ttl_ms == 3_600_000

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "name", ["retention", "messageTTL", "subscriptionExpirationTime", "inactiveTopicPolicies", "persistence"]
)
def test_resolution_an_unset_level_answers_204_with_an_empty_body(level: str, name: str) -> None:
    async def story(w: World) -> None:
        answer = await w.ask("GET", f"{level}/{name}")
        assert (answer.status, answer.body) == (204, b"")
        assert "content-type" not in answer.headers

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
def test_resolution_an_unset_quota_map_is_an_empty_one(level: str) -> None:
    async def story(w: World) -> None:
        assert await w.ok("GET", f"{level}/backlogQuotaMap") == {}

    play(story, topic=True)


def test_resolution_of_a_broker_without_settings() -> None:
    async def story(w: World) -> None:
        assert await w.ok("GET", f"{P}/messageTTL?applied=true") == 0
        assert await w.ok("GET", f"{P}/subscriptionExpirationTime?applied=true") == 0
        assert (await w.ok("GET", f"{P}/inactiveTopicPolicies?applied=true"))["deleteWhileInactive"] is False
        assert await w.ok("GET", f"{P}/backlogQuotaMap?applied=true") == {
            "destination_storage": shown(),
            "message_age": shown(),
        }

    play(story, topic=True)


# --- retention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("minutes", "mib", "retain"),
    [
        (0, 0, (0, 0)),
        (-1, -1, (None, None)),
        (-1, 5, (None, 5 * MIB)),
        (5, -1, (300, None)),
        (10, 500, (600, 500 * MIB)),
        (2**31 - 1, 2**40, ((2**31 - 1) * 60, 2**60)),
    ],
)
def test_retention_validity_accepts(level: str, minutes: int, mib: int, retain: tuple[int | None, int | None]) -> None:
    async def story(w: World) -> None:
        answer = await w.ask("POST", f"{level}/retention", retention(minutes, mib))
        assert (answer.status, answer.body) == (204, b"")
        assert await w.ok("GET", f"{level}/retention") == retention(minutes, mib)
        document = await w.controller.policies.get(NS.scope if level == N else TOPIC.stream)
        age, size = retain
        wanted = Retain(min_age_s=age, min_bytes=size, combine=Combine.ANY, measure=Measure.SEGMENT)
        assert document.retain == (replace(wanted, max_bytes=None, max_age_s=None) if level == N else wanted)
        assert document.unsubscribed is Unsubscribed.RELEASE

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("minutes", "mib"),
    [(-2, 0), (0, -2), (-2, -2), (5, -2), (-2, 5), (-1, 0), (0, -1), (1, 0), (0, 1), (1, 2**53), (2**31, 1)],
)
def test_retention_validity_refuses_with_400_and_keeps_the_old_value(level: str, minutes: int, mib: int) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/retention", retention(7, 8))
        reason = await w.refused(400, "POST", f"{level}/retention", retention(minutes, mib))
        assert reason.startswith("Invalid retention policy") or "out of range" in reason
        assert await w.ok("GET", f"{level}/retention") == retention(7, 8)

    play(story, topic=True)


def test_retention_validity_also_in_the_body_that_creates_a_namespace() -> None:
    async def story(w: World) -> None:
        path = "/admin/v2/namespaces/my-tenant/other"
        reason = await w.refused(400, "PUT", path, {"retention_policies": retention(1, 0)})
        assert reason.startswith("Invalid retention policy")
        assert await w.refused(404, "GET", path) == "Namespace does not exist"
        await w.ok("PUT", path, {"retention_policies": retention(1, 2), "message_ttl_in_seconds": 5})
        assert await w.ok("GET", f"{path}/retention") == retention(1, 2)
        assert await w.ok("GET", f"{path}/messageTTL") == 5

    play(story)


def test_retention_removed_is_unset_and_the_namespace_retains_nothing() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/retention", retention(10, 20))
        await w.ok("DELETE", f"{N}/retention")
        assert (await w.ask("GET", f"{N}/retention")).status == 204
        assert (await w.controller.policies.get(NS.scope)).retain.min_bytes == 0

    play(story)


def test_retention_a_policy_of_our_own_is_shown_rounded_up_and_a_maximum_stays() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/retention", retention(10, 20))
        mine = PolicyDocument(retain=Retain(min_age_s=61, min_bytes=MIB + 1, max_bytes=9 * MIB))
        await w.controller.policies.set(NS.scope, mine)
        assert await w.ok("GET", f"{N}/retention") == retention(2, 2)
        await w.ok("POST", f"{N}/retention", retention(1, 1))
        assert (await w.controller.policies.get(NS.scope)).retain.max_bytes == 9 * MIB
        assert await w.ok("GET", f"{N}/retention") == retention(1, 1)

    play(story)


def test_retention_above_a_maximum_of_our_own_is_refused_and_the_old_one_stays() -> None:
    async def story(w: World) -> None:
        await w.controller.policies.set(NS.scope, PolicyDocument(retain=Retain(min_bytes=MIB, max_bytes=2 * MIB)))
        await w.refused(400, "POST", f"{N}/retention", retention(-1, 3))
        assert await w.ok("GET", f"{N}/retention") == retention(-1, 1)

    play(story)


# --- time to live, idleness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "query", "reason"),
    [
        ("messageTTL", "messageTTL", "Invalid value for message TTL"),
        ("subscriptionExpirationTime", "subscriptionExpirationTime", "Invalid value for subscription expiration"),
    ],
)
def test_ttl_and_subscription_expiry_are_0_or_more_else_412(level: str, name: str, query: str, reason: str) -> None:
    async def story(w: World) -> None:
        async def put(value: int, status: int) -> str:
            path = f"{level}/{name}" if level == N else f"{level}/{name}?{query}={value}"
            answer = await w.ask("POST", path, value) if level == N else await w.ask("POST", path)
            assert answer.status == status
            return answer.reason if answer.body else ""

        await put(120, 204)
        assert await w.ok("GET", f"{level}/{name}") == 120
        assert (await put(-1, 412)).startswith(reason)
        assert await w.ok("GET", f"{level}/{name}") == 120
        await put(0, 204)
        assert await w.ok("GET", f"{level}/{name}") == 0
        await w.ok("DELETE", f"{level}/{name}")
        assert (await w.ask("GET", f"{level}/{name}")).status == 204

    play(story, topic=True)


def test_subscription_expiry_is_minutes_and_ttl_seconds_of_the_policy() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 120)
        await w.ok("POST", f"{N}/subscriptionExpirationTime", 5)
        document = await w.controller.policies.get(NS.scope)
        assert document.backlog.ttl_s == 120
        assert document.idle.subscriber_s == 300
        await w.ok("POST", f"{N}/subscriptionExpirationTime", 0)
        assert (await w.controller.policies.get(NS.scope)).idle.subscriber_s is None

    play(story)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("mode", "when"),
    [
        ("delete_when_no_subscriptions", IdleWhen.NO_SUBSCRIBERS),
        ("delete_when_subscriptions_caught_up", IdleWhen.CAUGHT_UP),
    ],
)
def test_inactive_topics_policy_is_the_idle_limit_of_the_stream(level: str, mode: str, when: IdleWhen) -> None:
    async def story(w: World) -> None:
        body = {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": 90, "deleteWhileInactive": True}
        await w.ok("POST", f"{level}/inactiveTopicPolicies", body)
        assert await w.ok("GET", f"{level}/inactiveTopicPolicies") == body
        target = NS.scope if level == N else TOPIC.stream
        assert (await w.controller.policies.get(target)).idle == replace(
            RELEASED.idle if level == N else Idle(), stream_s=90, stream_when=when
        )
        await w.ok("POST", f"{level}/inactiveTopicPolicies", body | {"deleteWhileInactive": False})
        assert (await w.controller.policies.get(target)).idle.stream_s is None
        assert (await w.ok("GET", f"{level}/inactiveTopicPolicies"))["deleteWhileInactive"] is False
        await w.ok("DELETE", f"{level}/inactiveTopicPolicies")
        assert (await w.ask("GET", f"{level}/inactiveTopicPolicies")).status == 204
        await w.refused(400, "POST", f"{level}/inactiveTopicPolicies", body | {"inactiveTopicDeleteMode": "x"})
        await w.refused(412, "POST", f"{level}/inactiveTopicPolicies", body | {"maxInactiveDurationSeconds": 0})

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
def test_persistence_is_remembered_and_given_back(level: str) -> None:
    async def story(w: World) -> None:
        body = {
            "bookkeeperEnsemble": 3,
            "bookkeeperWriteQuorum": 2,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 0.5,
        }
        await w.ok("POST", f"{level}/persistence", body)
        assert await w.ok("GET", f"{level}/persistence") == body
        await w.refused(412, "POST", f"{level}/persistence", body | {"bookkeeperAckQuorum": 4})
        await w.ok("DELETE", f"{level}/persistence")
        assert (await w.ask("GET", f"{level}/persistence")).status == 204

    play(story, topic=True)


# --- quotas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("policy", "action"),
    [
        ("producer_request_hold", OnExceed.HOLD),
        ("producer_exception", OnExceed.REJECT),
        ("consumer_backlog_eviction", OnExceed.EVICT),
    ],
)
def test_quota_actions(level: str, policy: str, action: OnExceed) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/backlogQuota", quota(4096, policy=policy))
        await w.ok("POST", f"{level}/backlogQuota?backlogQuotaType=message_age", quota(time=60, policy=policy))
        assert await w.ok("GET", f"{level}/backlogQuotaMap") == {
            "destination_storage": shown(4096, policy=policy),
            "message_age": shown(time=60, policy=policy),
        }
        target = NS.scope if level == N else TOPIC.stream
        unset = RELEASED.backlog if level == N else Backlog()
        wanted = replace(unset, max_bytes=4096, max_age_s=60, on_exceed_bytes=action, on_exceed_age=action)
        wanted = replace(wanted, evict_to=0.9)
        assert (await w.controller.policies.get(target)).backlog == wanted
        await w.ok("DELETE", f"{level}/backlogQuota")
        assert list(await w.ok("GET", f"{level}/backlogQuotaMap")) == ["message_age"]
        await w.ok("DELETE", f"{level}/backlogQuota?backlogQuotaType=message_age")
        assert await w.ok("GET", f"{level}/backlogQuotaMap") == {}
        assert (await w.controller.policies.get(target)).backlog == unset

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
def test_quota_limit_is_the_older_name_of_limit_size(level: str) -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{level}/backlogQuota", {"limit": 99, "policy": HOLD})
        assert await w.ok("GET", f"{level}/backlogQuotaMap") == {"destination_storage": shown(99, 0)}

    play(story, topic=True)


@pytest.mark.parametrize("level", LEVELS)
def test_quota_without_a_policy_is_400(level: str) -> None:
    async def story(w: World) -> None:
        reason = await w.refused(400, "POST", f"{level}/backlogQuota", {"limitSize": 10})
        assert reason == "attribute policy cannot be null"

    play(story, topic=True)


def test_quota_sharp_edges_an_omitted_size_is_0_and_always_exceeded_and_negative_ones_are_unlimited() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/backlogQuota", {"policy": HOLD})
        assert await w.ok("GET", f"{N}/backlogQuotaMap") == {"destination_storage": shown(0, 0)}
        assert (await w.controller.policies.get(NS.scope)).backlog.max_bytes == 0
        await w.ok("POST", f"{N}/backlogQuota", quota(-5, -7))
        assert await w.ok("GET", f"{N}/backlogQuotaMap") == {"destination_storage": shown(-5, -7)}
        assert (await w.controller.policies.get(NS.scope)).backlog.max_bytes is None
        await w.ok("POST", f"{N}/backlogQuota?backlogQuotaType=message_age", quota(time=0))
        assert (await w.controller.policies.get(NS.scope)).backlog.max_age_s is None

    play(story)


def test_quota_that_an_earlier_version_set_is_shown_with_what_it_does_and_replaced_whole() -> None:
    async def story(w: World) -> None:
        evict, age = "consumer_backlog_eviction", f"{P}/backlogQuota?backlogQuotaType=message_age"
        await w.ok("POST", f"{N}/backlogQuota", quota(1000, policy=evict))
        await w.ok("POST", age, quota(time=60, policy=evict))
        # One action for both, as it was: neither quota evicts.
        earlier = Backlog(max_age_s=60, max_events=7, on_exceed=OnExceed.HOLD, evict_to=0.9)
        await w.controller.policies.set(TOPIC.stream, PolicyDocument(backlog=earlier))
        assert await w.ok("GET", f"{P}/backlogQuotaMap") == {"message_age": shown(time=60)}
        await w.ok("POST", age, quota(time=60, policy="producer_exception"))
        policy = await w.controller.policies.effective(TOPIC.stream)
        assert (policy.bytes_action, policy.age_action) == (OnExceed.EVICT, OnExceed.REJECT)
        assert policy.events_action is OnExceed.HOLD

    play(story, topic=True)


def test_quota_of_ours_is_shown_with_the_action_of_the_level_that_names_it() -> None:
    async def story(w: World) -> None:
        await w.controller.policies.set(TOPIC.stream, PolicyDocument(backlog=Backlog(max_bytes=5, max_age_s=6)))
        assert (await w.ok("GET", f"{P}/backlogQuotaMap"))["message_age"] == shown(time=6)
        backlog = Backlog(on_exceed=OnExceed.REJECT, on_exceed_age=OnExceed.EVICT)
        await w.controller.policies.set(NS.scope, PolicyDocument(backlog=backlog))
        for query in ("", "?applied=true"):
            assert await w.ok("GET", f"{P}/backlogQuotaMap{query}") == {
                "destination_storage": shown(5, policy="producer_exception"),
                "message_age": shown(time=6, policy="consumer_backlog_eviction"),
            }
        # An action of the topic applies to the limits of its namespace, and shows there.
        await w.controller.policies.set(NS.scope, PolicyDocument(backlog=replace(backlog, max_bytes=5)))
        await w.controller.policies.set(TOPIC.stream, PolicyDocument(backlog=Backlog(on_exceed=OnExceed.HOLD)))
        assert await w.ok("GET", f"{P}/backlogQuotaMap?applied=true") == {"destination_storage": shown(5)}

    play(story, topic=True)


def test_quota_does_not_touch_ttl_and_ttl_not_the_quota() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 30)
        await w.ok("POST", f"{N}/backlogQuota", quota(1000))
        await w.ok("DELETE", f"{N}/messageTTL")
        document = await w.controller.policies.get(NS.scope)
        assert document.backlog.max_bytes == 1000
        assert document.backlog.ttl_s is None

    play(story)


SERVER = PolicyDocument(
    retain=Retain(max_bytes=1000, max_age_s=60),
    backlog=Backlog(ttl_s=7, max_bytes=5, max_age_s=6, max_events=1, on_exceed=OnExceed.REJECT, evict_to=0.5),
    idle=Idle(subscriber_s=9, stream_s=9, stream_when=IdleWhen.CAUGHT_UP),
)
NOTHING_SET = {
    "retention": b"", "messageTTL": b"", "subscriptionExpirationTime": b"", "inactiveTopicPolicies": b"", "persistence": b"",
    "backlogQuotaMap": b"{}",
}  # fmt: skip


def test_the_server_policy_is_for_other_scopes_whatever_is_set_or_removed() -> None:
    async def story(w: World) -> None:
        await w.controller.policies.set(None, SERVER)

        async def nothing_from_the_server() -> None:
            policy = await w.controller.policies.effective(TOPIC.stream)
            named = {name for name, level in policy.origins.items() if level is Level.SERVER}
            assert not named

        await nothing_from_the_server()
        for name, body in NOTHING_SET.items():
            answer = await w.ask("GET", f"{N}/{name}")
            assert answer.body == body, name
        await w.ok("POST", f"{N}/retention", retention(-1, -1))
        await w.ok("POST", f"{P}/retention", retention(-1, -1))
        await w.ok("POST", f"{N}/messageTTL", 120)
        await w.ok("POST", f"{N}/subscriptionExpirationTime", 5)
        await w.ok("POST", f"{N}/backlogQuota", quota(4096, 3))
        assert await w.ok("GET", f"{N}/backlogQuotaMap") == {"destination_storage": shown(4096, 3)}
        body = {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "maxInactiveDurationSeconds": 90}
        await w.ok("POST", f"{N}/inactiveTopicPolicies", body | {"deleteWhileInactive": True})
        await nothing_from_the_server()
        await w.ok("DELETE", f"{P}/retention")
        for name in NOTHING_SET:
            await w.ask("DELETE", f"{N}/{name.removesuffix('Map')}")
            await nothing_from_the_server()
        assert await w.controller.policies.get(NS.scope) == RELEASED
        for name, given_back in NOTHING_SET.items():
            answer = await w.ask("GET", f"{N}/{name}")
            assert answer.body == given_back, name

    play(story, topic=True)


# --- levels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["retention", "messageTTL", "backlogQuotaMap", "inactiveTopicPolicies", "persistence"])
def test_a_topic_policy_on_a_partition_is_412(name: str) -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        reason = await w.refused(412, "GET", f"{P}-partition-0/{name}")
        assert reason == "Not allowed to set/get topic policy for a partition"
        await w.ok("GET", f"{P}/{name}")

    play(story)


def test_a_topic_policy_on_a_missing_topic_is_404() -> None:
    async def story(w: World) -> None:
        reason = await w.refused(404, "POST", f"{P}/retention", retention(1, 1))
        assert reason == "Topic persistent://my-tenant/my-ns/my-topic not found"

    play(story)


def test_policies_outlive_the_server_and_are_shown_by_the_next_one() -> None:
    async def story(w: World) -> None:
        from starlette.routing import Router

        from penstock.net.http.pulsar.api import pulsar_routes

        await w.ok("POST", f"{N}/retention", retention(10, 20))
        await w.ok("POST", f"{N}/backlogQuota", quota(1000))
        w.app = Router(pulsar_routes(w.controller, w.store, w.clock))
        assert await w.ok("GET", f"{N}/retention") == retention(10, 20)
        described = await w.ok("GET", N)
        assert described["backlog_quota_map"] == {"destination_storage": shown(1000)}
        assert described["retention_policies"] == retention(10, 20)

    play(story)
