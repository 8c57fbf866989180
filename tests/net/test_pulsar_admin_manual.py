"""Every command and example of Pulsar's manual, "Message retention and expiry", as the requests that its tools make of it.

The same is done with the tools themselves in ``tests/compat``.
"""

from __future__ import annotations

from pulsar_admin_world import NS, TOPIC, N, P, World, play

from penstock.model.retention import OnExceed
from penstock.net.http.pulsar.context import RELEASED

GIB_MB = 1024


async def set_retention(w: World, minutes: int, mib: int) -> None:
    body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mib}
    await w.ok("POST", f"{N}/retention", body)
    assert await w.ok("GET", f"{N}/retention") == body


async def kept(w: World) -> tuple[int | None, int | None]:
    """The minimum in ms and bytes that applies to the topic."""
    policy = await w.controller.policies.effective(TOPIC.stream)
    return policy.min_age_ms, policy.min_bytes


def test_defaults_nothing_is_retained_that_all_subscriptions_have_acknowledged() -> None:
    async def story(w: World) -> None:
        assert await kept(w) == (0, 0)
        assert (await w.controller.policies.effective(TOPIC.stream)).truncates

    play(story, topic=True)


def test_set_retention_policy_10_gb_and_3_hours() -> None:
    async def story(w: World) -> None:
        await set_retention(w, 180, 10 * GIB_MB)
        assert await kept(w) == (3 * 3_600_000, 10 << 30)

    play(story, topic=True)


def test_set_retention_policy_1_tb_without_limit_of_time() -> None:
    async def story(w: World) -> None:
        await set_retention(w, -1, GIB_MB * GIB_MB)
        assert await kept(w) == (None, 1 << 40)

    play(story, topic=True)


def test_set_retention_policy_3_hours_without_limit_of_size() -> None:
    async def story(w: World) -> None:
        await set_retention(w, 180, -1)
        assert await kept(w) == (3 * 3_600_000, None)

    play(story, topic=True)


def test_set_retention_policy_infinite() -> None:
    async def story(w: World) -> None:
        await set_retention(w, -1, -1)
        assert await kept(w) == (None, None)

    play(story, topic=True)


def test_set_retention_policy_disabled() -> None:
    async def story(w: World) -> None:
        await set_retention(w, 0, 0)
        assert await kept(w) == (0, 0)

    play(story, topic=True)


def test_set_retention_policy_rest_api_one_limit_of_0_is_invalid() -> None:
    async def story(w: World) -> None:
        for body in ({"retentionTimeInMinutes": 10}, {"retentionSizeInMB": 500}):
            assert (await w.ask("POST", f"{N}/retention", body)).status == 400

    play(story)


def test_set_retention_policy_rest_api_path_of_the_manual_is_none_of_a_broker() -> None:
    async def story(w: World) -> None:
        assert (await w.ask("POST", f"{N}/retention/setRetention", {})).status == 404

    play(story)


def test_set_and_get_retention_policy_java_10_minutes_and_500_megabytes() -> None:
    async def story(w: World) -> None:
        await set_retention(w, 10, 500)
        assert await w.ok("GET", f"{N}/retention") == {"retentionTimeInMinutes": 10, "retentionSizeInMB": 500}

    play(story)


def test_set_backlog_quota_2_gb_hold() -> None:
    async def story(w: World) -> None:
        body = {"limitSize": 2 << 30, "limitTime": -1, "policy": "producer_request_hold"}
        await w.ok("POST", f"{N}/backlogQuota?backlogQuotaType=destination_storage", body)
        policy = await w.controller.policies.effective(TOPIC.stream)
        assert (policy.backlog_bytes, policy.backlog_age_ms, policy.on_exceed) == (2 << 30, None, OnExceed.HOLD)

    play(story, topic=True)


def test_set_backlog_quota_one_hour_of_a_topic() -> None:
    async def story(w: World) -> None:
        body = {"limitSize": -1, "limitTime": 3600, "policy": "producer_request_hold"}
        await w.ok("POST", f"{P}/backlogQuota?backlogQuotaType=message_age", body)
        policy = await w.controller.policies.effective(TOPIC.stream)
        assert (policy.backlog_bytes, policy.backlog_age_ms, policy.on_exceed) == (None, 3_600_000, OnExceed.HOLD)

    play(story, topic=True)


def test_set_backlog_quota_java_with_size_and_time() -> None:
    async def story(w: World) -> None:
        body = {"limitSize": 2147483648, "limitTime": 3600, "policy": "producer_request_hold"}
        await w.ok("POST", f"{N}/backlogQuota", body)
        assert await w.ok("GET", f"{N}/backlogQuotaMap") == {"destination_storage": {"limit": 2147483648, **body}}

    play(story)


def test_get_backlog_threshold_has_the_limit_and_policy_of_the_manual() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/backlogQuota", {"limitSize": 2147483648, "policy": "producer_request_hold"})
        found = (await w.ok("GET", f"{N}/backlogQuotaMap"))["destination_storage"]
        assert {name: found[name] for name in ("limit", "policy")} == {
            "limit": 2147483648,
            "policy": "producer_request_hold",
        }

    play(story)


def test_remove_backlog_quotas() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/backlogQuota", {"limitSize": 5, "policy": "producer_request_hold"})
        await w.ok("DELETE", f"{N}/backlogQuota?backlogQuotaType=destination_storage")
        assert await w.ok("GET", f"{N}/backlogQuotaMap") == {}
        assert (await w.controller.policies.effective(TOPIC.stream)).backlog_bytes is None

    play(story, topic=True)


def test_clear_backlog() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        await w.write(TOPIC, b"one", b"two")
        await w.ok("POST", f"{N}/clearBacklog")
        assert await w.backlog("a") == 0

    play(story, topic=True)


def test_set_the_ttl_for_a_namespace_2_minutes() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 120)
        assert (await w.controller.policies.effective(TOPIC.stream)).ttl_ms == 120_000

    play(story, topic=True)


def test_get_the_ttl_configuration_for_a_namespace() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 60)
        assert (await w.ask("GET", f"{N}/messageTTL")).body == b"60"

    play(story)


def test_remove_the_ttl_configuration_for_a_namespace() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 60)
        await w.ok("DELETE", f"{N}/messageTTL")
        assert (await w.ask("GET", f"{N}/messageTTL")).body == b""
        assert (await w.controller.policies.get(NS.scope)).backlog == RELEASED.backlog

    play(story)
