"""Pulsar, Message retention and expiry: backlog quotas, time to live, deletion; each rule and command by its place there."""

from __future__ import annotations

import asyncio

import pytest
from documents_world import NAMESPACE, TOPIC, TOPIC_STREAM, World, play_pulsar

from penstock.model.errors import InvalidArgumentError, QuotaExceededError, QuotaHeldError
from penstock.model.retention import OnExceed

QUOTA = f"{NAMESPACE}/backlogQuota"
TTL = f"{NAMESPACE}/messageTTL"
HOLD = "producer_request_hold"


def quota(policy: str = HOLD, *, size: int = -1, seconds: int = -1) -> dict[str, object]:
    return {"limitSize": size, "limitTime": seconds, "policy": policy}


async def subscription(w: World, name: str = "sub") -> None:
    await w.ok("PUT", f"{TOPIC}/subscription/{name}", "earliest")


async def produce(w: World, count: int, *, size: int = 100, deadline_s: float = 5.0) -> None:
    """As a producer does, one message after the other; ``deadline_s`` is its sendTimeoutMs."""
    stream = w.store.stream(TOPIC_STREAM)
    async with stream.writer(deadline_s=deadline_s) as writer:
        for _ in range(count):
            await writer.write(b"x" * (size - 8))
            await writer.flush()


async def applied(w: World) -> tuple[int | None, int | None, OnExceed]:
    policy = await w.controller.policies.effective(TOPIC_STREAM)
    return policy.backlog_bytes, policy.backlog_age_ms, policy.on_exceed


# --- backlog quotas -----------------------------------------------------------------------------------------------


def test_all_unacknowledged_messages_are_stored() -> None:
    """Backlog quotas: unacknowledged messages are stored until they are processed and acknowledged."""

    async def story(w: World) -> None:
        await subscription(w)
        await produce(w, 10)
        await asyncio.sleep(600)
        assert (await w.backlog("sub"), await w.stored()) == (10, 10)

    play_pulsar(story, cycle_s=60)


def test_the_limit_of_a_backlog_is_hard() -> None:
    """Backlog quotas: a hard limit on the size of the backlogs of a topic; once it is reached the policy acts.
    Differs: when a quota is checked"""

    async def story(w: World) -> None:
        await subscription(w)
        await w.ok("POST", QUOTA, quota(size=1000))
        await asyncio.sleep(2)
        with pytest.raises(QuotaHeldError):
            await produce(w, 50)
        assert await w.size(TOPIC_STREAM) == 1000

    play_pulsar(story, cycle_s=60)


def test_policy_producer_request_hold() -> None:
    """Backlog quotas, table, producer_request_hold: the producer holds the message and tries again until its timeout.
    Differs: `producer_request_hold`"""

    async def story(w: World) -> None:
        await subscription(w)
        await w.ok("POST", QUOTA, quota(size=1000))
        await asyncio.sleep(2)
        await produce(w, 10)
        began = w.loop.time()
        with pytest.raises(QuotaHeldError) as caught:
            await produce(w, 1, deadline_s=20)
        assert 19 < w.loop.time() - began < 25
        assert "backlog" in str(caught.value)
        # One that waits goes on as soon as there is room.
        waiting = asyncio.ensure_future(produce(w, 1, deadline_s=60))
        await asyncio.sleep(10)
        assert not waiting.done()
        await w.ok("POST", f"{TOPIC}/subscription/sub/skip/5")
        await asyncio.wait_for(waiting, 10)
        assert await w.backlog("sub") == 6

    play_pulsar(story, cycle_s=60)


def test_policy_producer_exception() -> None:
    """Backlog quotas, table, producer_exception: sending raises an exception.
    Differs: `producer_exception`"""

    async def story(w: World) -> None:
        await subscription(w)
        await w.ok("POST", QUOTA, quota("producer_exception", size=1000))
        await asyncio.sleep(2)
        await produce(w, 10)
        began = w.loop.time()
        with pytest.raises(QuotaExceededError) as caught:
            await produce(w, 1, deadline_s=60)
        assert w.loop.time() - began < 5
        assert caught.value.fields["subscriber"] == "my-tenant.my-ns/sub"

    play_pulsar(story, cycle_s=60)


def test_policy_consumer_backlog_eviction() -> None:
    """Backlog quotas, table, consumer_backlog_eviction: messages of the backlog are discarded.
    Differs: eviction"""

    async def story(w: World) -> None:
        await subscription(w)
        await w.ok("POST", QUOTA, quota("consumer_backlog_eviction", size=1000))
        await asyncio.sleep(2)
        for _ in range(5):
            await produce(w, 5)
            await asyncio.sleep(5)
            assert await w.backlog("sub") <= 10
        assert await w.backlog("sub") >= 5
        lost = await w.controller.retention.list_evictions(TOPIC_STREAM)
        assert sum(item.events for item in lost) == 25 - await w.backlog("sub")

    play_pulsar(story, cycle_s=60)


def test_quota_is_for_what_is_not_acknowledged_retention_for_what_is() -> None:
    """Beware the distinction: one policy is for messages that are in no backlog, the other for those that are."""

    async def story(w: World) -> None:
        await w.ok("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1})
        await subscription(w)
        await w.ok("POST", QUOTA, quota(size=1000))
        await asyncio.sleep(2)
        for _ in range(5):
            await produce(w, 10)
            await w.ok("POST", f"{TOPIC}/subscription/sub/skip_all")
            await asyncio.sleep(2)
        # Five times the quota is stored, all of it acknowledged: it counts for retention, not for the quota.
        assert (await w.backlog("sub"), await w.stored()) == (0, 50)

    play_pulsar(story, cycle_s=60)


# --- set, get, remove ---------------------------------------------------------------------------------------------


def test_command_set_backlog_quota_of_2_gb() -> None:
    """Set size/time thresholds, first example: --limit 2G --policy producer_request_hold, of type destination_storage."""

    async def story(w: World) -> None:
        await w.ok("POST", f"{QUOTA}?backlogQuotaType=destination_storage", quota(size=2 << 30))
        assert await applied(w) == (2 << 30, None, OnExceed.HOLD)

    play_pulsar(story)


def test_command_set_backlog_quota_of_one_hour_on_a_topic() -> None:
    """Set size/time thresholds, second example: --limitTime 3600 --type message_age on my-topic.
    Differs: quota by age"""

    async def story(w: World) -> None:
        await w.ok("POST", f"{TOPIC}/backlogQuota?backlogQuotaType=message_age", quota(seconds=3600))
        assert await applied(w) == (None, 3_600_000, OnExceed.HOLD)
        await subscription(w)
        await produce(w, 2)
        await asyncio.sleep(3500)
        await produce(w, 1)
        await asyncio.sleep(200)
        with pytest.raises(QuotaHeldError):
            await produce(w, 1)
        await w.ok("POST", f"{TOPIC}/subscription/sub/skip/2")
        await asyncio.sleep(2)
        await produce(w, 1)

    play_pulsar(story, cycle_s=60)


def test_java_example_of_size_and_time() -> None:
    """Set size/time thresholds, Java: limitSize 2147483648 and limitTime of an hour in one quota."""

    async def story(w: World) -> None:
        body = quota(size=2147483648, seconds=60 * 60)
        await w.ok("POST", QUOTA, body)
        found = await w.ok("GET", f"{NAMESPACE}/backlogQuotaMap")
        assert found == {"destination_storage": {"limit": 2147483648, **body}}
        assert (await applied(w))[0] == 2147483648

    play_pulsar(story)


def test_command_get_backlog_quotas() -> None:
    """Get backlog threshold: the example answers destination_storage with limit 2147483648 and producer_request_hold."""

    async def story(w: World) -> None:
        assert await w.ok("GET", f"{NAMESPACE}/backlogQuotaMap") == {}
        await w.ok("POST", QUOTA, quota(size=2 << 30))
        found = await w.ok("GET", f"{NAMESPACE}/backlogQuotaMap")
        assert list(found) == ["destination_storage"]
        # Newer brokers say more of it; what the document shows is in it.
        assert {"limit": 2147483648, "policy": HOLD}.items() <= found["destination_storage"].items()

    play_pulsar(story)


@pytest.mark.parametrize("kind", ["destination_storage", "message_age"])
def test_command_remove_backlog_quota(kind: str) -> None:
    """Remove backlog quotas: removes the quota of a type, destination_storage unless another is named."""

    async def story(w: World) -> None:
        await w.ok("POST", f"{QUOTA}?backlogQuotaType=destination_storage", quota(size=5000))
        await w.ok("POST", f"{QUOTA}?backlogQuotaType=message_age", quota(seconds=60))
        named = "" if kind == "destination_storage" else f"?backlogQuotaType={kind}"
        await w.ok("DELETE", f"{QUOTA}{named}")
        left = {"destination_storage", "message_age"} - {kind}
        assert set(await w.ok("GET", f"{NAMESPACE}/backlogQuotaMap")) == left
        size, age_ms, _ = await applied(w)
        assert (size is None, age_ms is None) == (kind == "destination_storage", kind == "message_age")

    play_pulsar(story)


def test_a_quota_that_retention_leaves_no_room_for_is_refused() -> None:
    """Backlog quotas: a quota of messages that are kept by retention would never be reached.
    Differs: quota at or above retention"""

    async def story(w: World) -> None:
        await w.ok("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1})
        assert (await w.ask("POST", QUOTA, quota(size=2 << 20))).status == 412
        assert (await w.ask("POST", QUOTA, quota(size=1000))).status == 204

    play_pulsar(story)


def test_command_clear_backlog() -> None:
    """Clear backlog: clears the backlogs of all topics of the namespace; the question before it is the tool's."""

    async def story(w: World) -> None:
        for name in ("a", "b"):
            await subscription(w, name)
        await produce(w, 5)
        assert (await w.ask("POST", f"{NAMESPACE}/clearBacklog")).status == 204
        assert (await w.backlog("a"), await w.backlog("b")) == (0, 0)
        await w.cycle(stream=TOPIC_STREAM)
        assert await w.stored() == 0

    play_pulsar(story)


# --- time to live -------------------------------------------------------------------------------------------------


def test_without_a_time_to_live_unacknowledged_messages_stay_for_ever() -> None:
    """Time to live: by default all unacknowledged messages are stored forever."""

    async def story(w: World) -> None:
        await subscription(w)
        await produce(w, 3)
        for _ in range(3):
            await w.cycle(stream=TOPIC_STREAM, after_s=100 * 86_400)
        assert (await w.backlog("sub"), await w.stored()) == (3, 3)

    play_pulsar(story, days=400)


def test_time_to_live_runs_for_each_message() -> None:
    """Time to live: a stopwatch for each message; when it has run out the message counts as acknowledged and may be deleted.
    Differs: when something is old enough"""

    async def story(w: World) -> None:
        await w.ok("POST", TTL, 120)
        await subscription(w)
        for number in range(12):
            await produce(w, 1)
            await w.cycle(stream=TOPIC_STREAM, after_s=0.2)
            await w.cycle(stream=TOPIC_STREAM, after_s=29.8)
            # Messages are 30 s apart. The one of two minutes ago was recorded a moment later, and still has that moment.
            assert await w.backlog("sub") == min(number + 1, 4)

    play_pulsar(story)


def test_command_set_message_ttl_of_two_minutes() -> None:
    """Set the TTL for a namespace: --messageTTL 120 is two minutes."""

    async def story(w: World) -> None:
        assert (await w.ask("POST", TTL, 120)).status == 204
        assert (await w.controller.policies.effective(TOPIC_STREAM)).ttl_ms == 120_000

    play_pulsar(story)


def test_command_get_message_ttl() -> None:
    """Get the TTL configuration: in the example the answer is 60."""

    async def story(w: World) -> None:
        assert (await w.ask("GET", TTL)).status == 204
        await w.ok("POST", TTL, 60)
        assert (await w.ask("GET", TTL)).body == b"60"

    play_pulsar(story)


def test_command_remove_message_ttl() -> None:
    """Remove the TTL configuration: without it there is no time to live any more."""

    async def story(w: World) -> None:
        await w.ok("POST", TTL, 60)
        await w.ok("DELETE", TTL)
        assert (await w.ask("GET", TTL)).body == b""
        assert (await w.controller.policies.effective(TOPIC_STREAM)).ttl_ms is None

    play_pulsar(story)


def test_a_time_to_live_of_0_is_none() -> None:
    """Set the TTL for a namespace: seconds; 0 switches it off.
    Differs: time to live of 0"""

    async def story(w: World) -> None:
        await w.ok("POST", TTL, 0)
        assert (await w.controller.policies.effective(TOPIC_STREAM)).ttl_ms is None
        assert (await w.ask("POST", TTL, -1)).status == 412
        with pytest.raises(InvalidArgumentError, match="null lifts the limit"):
            await w.ask("PUT", "/v1/scopes/my-tenant.my-ns/retention", {"backlog": {"ttl_s": 0}})

    play_pulsar(story)


# --- deletion -----------------------------------------------------------------------------------------------------


def test_storage_is_bounded_by_quota_and_retention() -> None:
    """Delete messages from namespaces: storage should be as large as backlog quota and retention size together.
    Differs: what storage is needed"""

    async def story(w: World) -> None:
        await w.ok("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1})
        await subscription(w)
        await w.ok("POST", QUOTA, quota(size=500_000))
        await asyncio.sleep(2)
        most = 0
        for _ in range(40):
            await produce(w, 4, size=100_000)
            await asyncio.sleep(2)
            most = max(most, await w.size(TOPIC_STREAM))
            await w.ok("POST", f"{TOPIC}/subscription/sub/skip_all")
            await asyncio.sleep(61)
        # Between two recorded places lies what one cycle has brought, here 400,000 bytes.
        assert (1 << 20) <= most <= (1 << 20) + 500_000 + 400_000

    play_pulsar(story, cycle_s=60)


def test_deletion_waits_for_no_rollover() -> None:
    """Delete messages from namespaces: Pulsar deletes whole segments, rolled at 50,000 entries or 240 minutes.
    Differs: unit of truncation"""

    async def story(w: World) -> None:
        await subscription(w)
        await produce(w, 10)
        await w.ok("POST", f"{TOPIC}/subscription/sub/skip/3")
        await w.cycle(stream=TOPIC_STREAM)
        assert await w.stored() == 7

    play_pulsar(story)


def test_disk_space_comes_back_by_chunk_and_the_rest_is_accounted_for() -> None:
    """Delete messages from namespaces: disk space is freed by rollover, entry logs and garbage collection.
    Differs: unit of truncation"""

    async def story(w: World) -> None:
        await subscription(w)
        await produce(w, 30, size=1000)
        await w.segments.flush()
        for _ in range(3):
            await w.ok("POST", f"{TOPIC}/subscription/sub/skip/9")
            await w.cycle(stream=TOPIC_STREAM)
            await w.segments.flush()
            report = await w.controller.retention.reclaim(TOPIC_STREAM)
            assert report.disk_bytes == report.tiered_bytes + report.pending_bytes
        assert report.disk_bytes < 30_000
        assert report.freed_bytes + report.disk_bytes == 30_000

    play_pulsar(story, chunk_bytes=10_000, flush_bytes=5000, free_head_bytes=1000)


def test_messages_of_one_segment_do_not_keep_each_other() -> None:
    """Delete messages from namespaces, diagram: in Pulsar messages beyond a limit stay while others in their segment are within
    it.
    Differs: unit of truncation"""

    async def story(w: World) -> None:
        await w.ok("POST", f"{NAMESPACE}/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
        for _ in range(3):
            await produce(w, 1)
            await w.cycle(stream=TOPIC_STREAM, after_s=0)
            await asyncio.sleep(1200)
        await w.cycle(stream=TOPIC_STREAM, after_s=0.1)
        assert len(await w.controller.layout.current(TOPIC_STREAM)) == 1
        assert await w.stored() == 2

    play_pulsar(story)


def test_without_retention_and_backlog_nothing_acknowledged_stays_longer_than_a_cycle() -> None:
    """Delete messages from namespaces: without retention and with hardly any backlog, what stays is bounded by the periods of
    rollover and garbage collection.
    Differs: unit of truncation"""

    async def story(w: World) -> None:
        await subscription(w)
        for _ in range(20):
            await produce(w, 3)
            await w.ok("POST", f"{TOPIC}/subscription/sub/skip_all")
            await asyncio.sleep(1)
            assert await w.stored() == 0

    play_pulsar(story, cycle_s=1800)
