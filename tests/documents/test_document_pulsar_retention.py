"""Pulsar, Message retention and expiry, up to and with retention policies: each rule, row and command by its place there.

A command of pulsar-admin is driven as the request that it makes. MB are 2^20 bytes.
"""

from __future__ import annotations

import asyncio

import pytest
from documents_world import ADMIN, DAY_S, FIRST, HOUR_S, NAMESPACE, TOPIC, TOPIC_STREAM, World, play, play_pulsar

from penstock.model.names import StreamName
from penstock.model.retention import Unsubscribed

MB = 1 << 20
RETENTION = f"{NAMESPACE}/retention"
TTL = f"{NAMESPACE}/messageTTL"


def limits(minutes: int, mb: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mb}


async def messages(w: World, count: int, *, size: int = 100) -> None:
    await w.append(*[size] * count, stream=TOPIC_STREAM)


async def subscription(w: World, name: str = "sub") -> None:
    await w.ok("PUT", f"{TOPIC}/subscription/{name}", "earliest")


async def acknowledge(w: World, count: int, name: str = "sub") -> None:
    await w.ok("POST", f"{TOPIC}/subscription/{name}/skip/{count}")


async def cycle(w: World, after_s: float = 1.0) -> None:
    await w.cycle(stream=TOPIC_STREAM, after_s=after_s)


async def kept(w: World) -> tuple[int | None, int | None]:
    """The age in ms and the bytes that retention keeps on the topic."""
    policy = await w.controller.policies.effective(TOPIC_STREAM)
    assert policy.unsubscribed is Unsubscribed.RELEASE
    return policy.min_age_ms, policy.min_bytes


# --- introduction -------------------------------------------------------------------------------------------------


def test_only_what_is_in_a_backlog_is_kept_by_default() -> None:
    """Introduction: by default messages are kept that are in the backlog of at least one subscription; a topic has as many
    backlogs as subscriptions."""

    async def story(w: World) -> None:
        await subscription(w, "a")
        await subscription(w, "b")
        await messages(w, 5)
        await acknowledge(w, 4, "a")
        await acknowledge(w, 2, "b")
        assert (await w.backlog("a"), await w.backlog("b")) == (1, 3)
        await cycle(w)
        assert await w.stored() == 3
        await acknowledge(w, 3, "b")
        await cycle(w)
        assert await w.stored() == 1

    play_pulsar(story)


def test_without_a_subscription_nothing_is_kept_by_default() -> None:
    """Introduction: on a topic without any subscription no message is retained by default."""

    async def story(w: World) -> None:
        await messages(w, 5)
        await cycle(w)
        assert await w.stored() == 0

    play_pulsar(story)


def test_what_may_go_is_not_always_gone_at_once() -> None:
    """Introduction, note: what is no longer stored may still be there until the next rollover; nobody should rely on it.
    Differs: unit of truncation"""

    async def story(w: World) -> None:
        await messages(w, 3)
        assert await w.stored() == 3  # Until the next cycle; no rollover is waited for.
        await asyncio.sleep(61)
        assert await w.stored() == 0
        report = await w.controller.retention.reclaim(TOPIC_STREAM)
        assert report.disk_bytes == report.tiered_bytes + report.pending_bytes

    play_pulsar(story, cycle_s=60)


def test_both_can_be_changed_for_a_namespace() -> None:
    """Introduction: retention policies and time to live are set for each namespace, and so within one tenant."""

    async def story(w: World) -> None:
        await w.ok("PUT", f"{ADMIN}/namespaces/my-tenant/other")
        await w.ok("POST", RETENTION, limits(10, 500))
        await w.ok("POST", TTL, 120)
        policy = await w.controller.policies.effective(TOPIC_STREAM)
        assert (policy.min_age_ms, policy.min_bytes, policy.ttl_ms) == (600_000, 500 * MB, 120_000)
        await w.ok("PUT", f"{ADMIN}/persistent/my-tenant/other/topic")
        other = await w.controller.policies.effective(StreamName("my-tenant.other", "topic"))
        assert (other.min_age_ms, other.min_bytes, other.ttl_ms) == (0, 0, None)

    play_pulsar(story)


# --- two problems -------------------------------------------------------------------------------------------------


def test_retention_keeps_data_although_it_was_acknowledged() -> None:
    """Retention and TTL solve two different problems: retention keeps data for at least so long, even if acknowledged."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(60, -1))
        await subscription(w)
        await messages(w, 3)
        await acknowledge(w, 3)
        await cycle(w)
        await cycle(w, HOUR_S - 2)
        assert await w.stored() == 3
        await cycle(w, 2)
        assert await w.stored() == 0

    play_pulsar(story)


def test_time_to_live_discards_data_although_it_was_not_acknowledged() -> None:
    """Retention and TTL solve two different problems: time to live discards data after some time, by acknowledging it."""

    async def story(w: World) -> None:
        await w.ok("POST", TTL, 3600)
        await subscription(w)
        await messages(w, 3)
        await cycle(w)
        await cycle(w, HOUR_S - 2)
        assert await w.backlog("sub") == 3
        await cycle(w, 2)
        assert (await w.backlog("sub"), await w.stored()) == (0, 0)

    play_pulsar(story)


def test_what_has_expired_is_kept_as_long_as_retention_says() -> None:
    """Retention and TTL solve two different problems: with both, what has expired counts as acknowledged, and retention still
    keeps it."""

    async def story(w: World) -> None:
        await w.ok("POST", TTL, 600)
        await w.ok("POST", RETENTION, limits(60, -1))
        await subscription(w)
        await messages(w, 3)
        await cycle(w)
        await cycle(w, 600)
        assert (await w.backlog("sub"), await w.stored()) == (0, 3)
        await cycle(w, 3000)
        assert await w.stored() == 0

    play_pulsar(story)


# --- retention policies -------------------------------------------------------------------------------------------


def test_a_message_stays_until_all_subscriptions_have_acknowledged_it() -> None:
    """Retention policies: by default a message is stored until it is acknowledged on all subscriptions; a policy for the
    namespace keeps it longer, on all of its topics."""

    async def story(w: World) -> None:
        for name in ("a", "b"):
            await subscription(w, name)
        await messages(w, 2)
        await acknowledge(w, 2, "a")
        await cycle(w)
        assert await w.stored() == 2
        await w.ok("POST", RETENTION, limits(-1, -1))
        await acknowledge(w, 2, "b")
        await cycle(w)
        assert await w.stored() == 2

    play_pulsar(story)


def test_the_reader_interface_needs_a_retention() -> None:
    """Retention policies: readers do not acknowledge and have no backlog, so that retention must be set for them."""

    async def story(w: World) -> None:
        await messages(w, 3)
        assert len(await w.read(TOPIC_STREAM)) == 3
        await cycle(w)
        assert await w.read(TOPIC_STREAM) == []
        await w.ok("POST", RETENTION, limits(-1, -1))
        await messages(w, 3)
        await cycle(w)
        assert len(await w.read(TOPIC_STREAM)) == 3

    play_pulsar(story)


@pytest.mark.parametrize("subscribed", [True, False])
@pytest.mark.parametrize(
    ("minutes", "mb", "left_early", "left_late"),
    [
        (-1, -1, 6, 6),  # infinite
        (-1, 3, 3, 3),  # by size
        (60, -1, 6, 0),  # by time
        (0, 0, 0, 0),  # disabled
        (60, 3, 3, 0),  # either lets go: the size first
        (60, 9, 6, 0),  # either lets go: the time first
    ],
)
def test_table_of_time_and_size(minutes: int, mb: int, left_early: int, left_late: int, subscribed: bool) -> None:
    """Retention policies, table: -1 and -1 is infinite, one of them -1 leaves the other to decide, 0 and 0 disables, and of two
    limits the one that is reached first lets go.
    Differs: bound leaves exactly the minimum"""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(minutes, mb))
        if subscribed:
            await subscription(w)
        for _ in range(6):
            await messages(w, 1, size=MB)
            await cycle(w, 0.5)
        if subscribed:
            await acknowledge(w, 6)
        await cycle(w)
        assert await w.stored() == left_early
        await cycle(w, HOUR_S)
        await cycle(w)
        assert await w.stored() == left_late

    play_pulsar(story)


@pytest.mark.parametrize(("minutes", "mb"), [(0, 1), (0, -1), (1, 0), (-1, 0)])
@pytest.mark.parametrize("level", [NAMESPACE, TOPIC])
def test_table_one_limit_of_0_is_invalid(level: str, minutes: int, mb: int) -> None:
    """Retention policies, table: 0 together with another limit is invalid.
    Differs: one of time and size 0, the other not"""

    async def story(w: World) -> None:
        before = await kept(w)
        answer = await w.ask("POST", f"{level}/retention", limits(minutes, mb))
        assert answer.status == 400
        assert "0" in answer.json["reason"]
        assert await kept(w) == before

    play_pulsar(story)


def test_retention_does_not_affect_what_is_not_acknowledged() -> None:
    """Retention policies: they apply to what all subscriptions have acknowledged or nobody subscribes to, and do not affect
    unacknowledged messages; those are for the backlog quota."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(1, 1))
        await subscription(w)
        for _ in range(5):
            await messages(w, 1, size=MB)
            await cycle(w, 3600)
        assert await w.stored() == 5
        assert await w.backlog("sub") == 5

    play_pulsar(story, days=1)


def test_the_oldest_goes_until_the_rest_is_within_the_limit() -> None:
    """Retention policies: beyond a limit the oldest messages go until what is retained is within it again."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(-1, 3))
        for number in range(8):
            await messages(w, 1, size=MB)
            await cycle(w)
            assert await w.head(TOPIC_STREAM) == {FIRST: MB * max(0, number + 1 - 3)}

    play_pulsar(story)


def test_defaults_disable_retention() -> None:
    """Defaults: at the level of the instance both limits are 0, which disables retention.
    Differs: instance-wide defaults"""

    async def story(w: World) -> None:
        found = await w.ok("GET", f"{ADMIN}/brokers/configuration/runtime")
        assert (found["defaultRetentionTimeInMinutes"], found["defaultRetentionSizeInMB"]) == ("0", "0")
        assert await kept(w) == (0, 0)
        assert await w.ok("GET", f"{TOPIC}/retention?applied=true") == limits(0, 0)

    play_pulsar(story)


def test_other_scopes_are_kept_by_default_and_have_the_servers_policy() -> None:
    """Defaults: at the level of the instance both limits can be set.
    Differs: instance-wide defaults"""

    async def story(w: World) -> None:
        await w.stream()
        await w.append(100)
        await w.cycle()
        assert await w.size() == 100
        await w.ok("PUT", "/v1/retention", {"retain": {"min_age_s": 60, "min_bytes": 0, "combine": "all"}})
        await w.cycle()
        assert await w.size() == 100
        await w.cycle(after_s=60)
        assert await w.size() == 0

    play(story)


# --- set retention policy -----------------------------------------------------------------------------------------


def test_a_topics_own_policy_goes_before_that_of_the_namespace() -> None:
    """Set retention policy: applies to all topics and partitions of the namespace that have no policy of their own."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(180, 10 * 1024))
        assert await kept(w) == (3 * 3_600_000, 10 << 30)
        await w.ok("POST", f"{TOPIC}/retention", limits(-1, -1))
        assert await kept(w) == (None, None)
        await w.ok("DELETE", f"{TOPIC}/retention")
        assert await kept(w) == (3 * 3_600_000, 10 << 30)
        await w.ok("PUT", f"{ADMIN}/persistent/my-tenant/my-ns/parts/partitions", 3)
        parts = await w.controller.policies.effective(StreamName("my-tenant.my-ns", "parts"))
        assert (parts.min_bytes, parts.measure.value) == (10 << 30, "segment")

    play_pulsar(story)


def test_each_partition_is_held_against_the_limit_by_itself() -> None:
    """Set retention policy: topics without partitions and each partition have the limit for themselves.
    Differs: what a limit counts"""
    parts = StreamName("my-tenant.my-ns", "parts")

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(-1, 2))
        await w.ok("PUT", f"{ADMIN}/persistent/my-tenant/my-ns/parts/partitions", 2)
        first, second = (item.segment for item in await w.controller.layout.current(parts))
        for number in range(6):
            await w.append(MB, stream=parts, segment=first)
            if number % 3 == 0:
                await w.append(MB, stream=parts, segment=second)
            await w.cycle(stream=parts)
        # Six and two of a MB each: of the first, four go; the second has two, and keeps them.
        assert await w.head(parts) == {first: 4 * MB, second: 0}

    play_pulsar(story)


@pytest.mark.parametrize(
    ("command", "minutes", "mb", "age_ms", "size"),
    [
        ("--size 10G --time 3h", 180, 10 * 1024, 3 * 3_600_000, 10 << 30),
        ("--size 1T --time -1", -1, 1024 * 1024, None, 1 << 40),
        ("--size -1 --time 3h", 180, -1, 3 * 3_600_000, None),
        ("--size -1 --time -1", -1, -1, None, None),
        ("--size 0 --time 0", 0, 0, 0, 0),
    ],
)
def test_commands_set_retention(command: str, minutes: int, mb: int, age_ms: int | None, size: int | None) -> None:
    """Set retention policy, pulsar-admin: the five examples of set-retention, as what they send and what is answered after."""

    async def story(w: World) -> None:
        assert (await w.ask("POST", RETENTION, limits(minutes, mb))).status == 204, command
        assert await kept(w) == (age_ms, size)
        assert await w.ok("GET", RETENTION) == limits(minutes, mb)

    play_pulsar(story)


def test_example_of_10_gb_and_3_hours_size_first() -> None:
    """Set retention policy, first example: when 10 GB are reached within 3 hours, acknowledged messages are not retained
    beyond. With a thousandth of the size."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(180, 10))
        await subscription(w)
        for _ in range(15):
            await messages(w, 1, size=MB)
            await acknowledge(w, 1)
            await cycle(w, 60)
        assert await w.size(TOPIC_STREAM) == 10 * MB

    play_pulsar(story)


def test_example_of_10_gb_and_3_hours_time_first() -> None:
    """Set retention policy, first example: after 3 hours acknowledged messages are not retained, although the size is less."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(180, 10 * 1024))
        await subscription(w)
        await messages(w, 5)
        await acknowledge(w, 5)
        await cycle(w, 0.5)
        await cycle(w, 3 * HOUR_S - 1)
        assert await w.stored() == 5
        await cycle(w, 1)
        assert await w.stored() == 0

    play_pulsar(story, days=1)


def test_example_of_1_tb_the_size_decides() -> None:
    """Set retention policy, second example: time is not limited, so that the size determines the retention."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(-1, 2))
        for _ in range(4):
            await messages(w, 1, size=MB)
            await cycle(w, 30 * DAY_S)
        assert await w.stored() == 2

    play_pulsar(story, days=150)


def test_example_of_infinite_retention() -> None:
    """Set retention policy, fourth example: -1 and -1 retains forever."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(-1, -1))
        await subscription(w)
        await messages(w, 5, size=MB)
        await acknowledge(w, 5)
        for _ in range(3):
            await cycle(w, 100 * DAY_S)
        assert await w.stored() == 5

    play_pulsar(story, days=400)


def test_example_of_disabled_retention() -> None:
    """Set retention policy, fifth example: 0 and 0 disables it again."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, limits(-1, -1))
        await messages(w, 5)
        await cycle(w)
        assert await w.stored() == 5
        await w.ok("POST", RETENTION, limits(0, 0))
        await cycle(w)
        assert await w.stored() == 0

    play_pulsar(story)


def test_rest_path_of_set_retention() -> None:
    """Set retention policy, REST API: the document has the path retention/setRetention, which brokers do not have.
    Differs: path of set-retention"""

    async def story(w: World) -> None:
        assert (await w.ask("POST", f"{RETENTION}/setRetention", limits(10, 500))).status == 404
        assert (await w.ask("POST", RETENTION, limits(10, 500))).status == 204

    play_pulsar(story)


def test_java_example_of_10_minutes_and_500_megabytes() -> None:
    """Set retention policy, Java: RetentionPolicies of 10 minutes and 500 megabytes."""

    async def story(w: World) -> None:
        await w.ok("POST", RETENTION, {"retentionTimeInMinutes": 10, "retentionSizeInMB": 500})
        assert await kept(w) == (600_000, 500 * MB)

    play_pulsar(story)


def test_command_get_retention() -> None:
    """Get retention policy: an object with retentionTimeInMinutes and retentionSizeInMB, in the example 10 and 500."""

    async def story(w: World) -> None:
        assert (await w.ask("GET", RETENTION)).status == 204  # None was set.
        await w.ok("POST", RETENTION, limits(10, 500))
        assert await w.ok("GET", RETENTION) == {"retentionTimeInMinutes": 10, "retentionSizeInMB": 500}
        await w.ok("DELETE", RETENTION)
        assert (await w.ask("GET", RETENTION)).status == 204

    play_pulsar(story)
