"""Statistics of topics by Pulsar's admin API, and what retention, expiry and idleness do as they show it."""

from __future__ import annotations

from dataclasses import replace

from pulsar_admin_world import TOPIC, N, P, World, play

LIST = "/admin/v2/persistent/my-tenant/my-ns"


# --- statistics -----------------------------------------------------------------------------------------------

STATS = [
    "storageSize",
    "backlogSize",
    "backlogQuotaLimitSize",
    "backlogQuotaLimitTime",
    "oldestBacklogMessageAgeSeconds",
    "oldestBacklogMessageSubscriptionName",
    "earliestMsgPublishTimeInBacklogs",
    "publishers",
    "subscriptions",
]
SUB_STATS = [
    "msgBacklog",
    "backlogSize",
    "earliestMsgPublishTimeInBacklog",
    "msgRateExpired",
    "totalMsgExpired",
    "lastExpireTimestamp",
    "lastMarkDeleteAdvancedTimestamp",
    "unackedMessages",
    "type",
    "isDurable",
    "consumers",
    "nonContiguousDeletedMessagesRanges",
]
INTERNAL = [
    "ledgers",
    "cursors",
    "totalSize",
    "currentLedgerEntries",
    "currentLedgerSize",
    "lastConfirmedEntry",
    "state",
]


def test_stats_have_the_keys_that_tools_look_for_and_exact_figures() -> None:
    async def story(w: World) -> None:
        quota = {"limitSize": 5000, "limitTime": -1, "policy": "producer_exception"}
        await w.ok("POST", f"{N}/backlogQuota", quota)
        await w.ok("POST", f"{N}/backlogQuota?backlogQuotaType=message_age", quota | {"limitTime": 70})
        for sub in ("slow", "fast"):
            await w.ok("PUT", f"{P}/subscription/{sub}", "earliest")
        ends = await w.write(TOPIC, b"one", b"three", b"")
        await w.ok("POST", f"{P}/subscription/fast/skip/2")
        found = await w.ok("GET", f"{P}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true")
        assert set(STATS) <= set(found)
        assert found["storageSize"] == found["backlogSize"] == ends[-1]
        assert found["msgInCounter"] == 3
        assert (found["backlogQuotaLimitSize"], found["backlogQuotaLimitTime"]) == (5000, 70)
        for name, events, size in (("slow", 3, ends[-1]), ("fast", 1, ends[-1] - ends[1])):
            own = found["subscriptions"][name]
            assert set(SUB_STATS) <= set(own)
            assert (own["msgBacklog"], own["backlogSize"]) == (events, size)
            assert own["isDurable"] is True

    play(story, topic=True)


def test_stats_of_an_empty_topic() -> None:
    async def story(w: World) -> None:
        found = await w.ok("GET", f"{P}/stats")
        assert found["storageSize"] == found["backlogSize"] == 0
        assert found["oldestBacklogMessageAgeSeconds"] == -1
        assert found["backlogQuotaLimitSize"] == found["backlogQuotaLimitTime"] == -1
        assert found["subscriptions"] == {}

    play(story, topic=True)


def test_internal_stats_positions_are_segments_and_events() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        found = await w.ok("GET", f"{P}/internalStats")
        assert found["lastConfirmedEntry"] == "0:-1"
        assert found["cursors"]["a"]["markDeletePosition"] == "0:-1"
        ends = await w.write(TOPIC, b"one", b"three", b"x")
        await w.ok("POST", f"{P}/subscription/a/skip/2")
        found = await w.ok("GET", f"{P}/internalStats")
        assert set(INTERNAL) <= set(found)
        assert found["ledgers"] == [
            {"ledgerId": 0, "entries": 3, "size": ends[-1], "offloaded": False, "underReplicated": False}
        ]
        assert found["lastConfirmedEntry"] == "0:2"
        assert found["cursors"]["a"]["markDeletePosition"] == "0:1"
        assert found["cursors"]["a"]["readPosition"] == "0:2"
        assert found["state"] == "LedgerOpened"
        assert await w.ok("GET", f"{P}/lastMessageId") == {"ledgerId": 0, "entryId": 2, "partitionIndex": -1}

    play(story, topic=True)


def test_internal_stats_positions_stay_what_they_are_when_the_head_goes() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        await w.write(TOPIC, b"one", b"three")
        await w.ok("DELETE", f"{P}/truncate")
        await w.write(TOPIC, b"five")
        found = await w.ok("GET", f"{P}/internalStats")
        assert found["lastConfirmedEntry"] == "0:2"
        assert (found["entriesAddedCounter"], found["numberOfEntries"]) == (3, 1)
        assert found["cursors"]["a"]["markDeletePosition"] == "0:1"
        await w.ok("POST", f"{P}/subscription/a/resetcursor", {"ledgerId": 0, "entryId": 0})
        assert await w.backlog("a") == 1
        await w.ok("POST", f"{P}/subscription/a/resetcursor", {"ledgerId": 0, "entryId": 3})
        assert await w.backlog("a") == 0

    play(story, topic=True)


def test_partitioned_stats_sum_their_partitions() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        first = (await w.write(TOPIC, b"one", b"two"))[-1]
        second = (await w.write(TOPIC, b"three", partition=1))[-1]
        found = await w.ok("GET", f"{P}/partitioned-stats?perPartition=true")
        assert found["metadata"]["partitions"] == 2
        assert found["storageSize"] == first + second
        assert found["subscriptions"]["a"]["msgBacklog"] == 3
        parts = {name.rpartition("-")[2]: part for name, part in found["partitions"].items()}
        assert parts["0"]["storageSize"] == first
        assert parts["1"]["subscriptions"]["a"]["msgBacklog"] == 1
        assert (await w.ok("GET", f"{P}/partitioned-stats?perPartition=false"))["partitions"] == {}
        assert (await w.ok("GET", f"{P}-partition-1/lastMessageId"))["partitionIndex"] == 1
        await w.refused(404, "GET", f"{P}/lastMessageId")
        await w.refused(404, "GET", f"{P}-partition-0/partitioned-stats")

    play(story)


def test_two_topics_do_not_share_figures() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}2")
        await w.write(replace(TOPIC, local="my-topic2"), b"x")
        assert (await w.ok("GET", f"{P}/stats"))["msgInCounter"] == 0
        assert (await w.ok("GET", f"{P}2/stats"))["msgInCounter"] == 1

    play(story, topic=True)


def test_stats_tell_what_the_time_to_live_took_and_when() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/messageTTL", 50)
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        await w.write(TOPIC, b"one", b"two", b"three")
        await w.cycle(TOPIC.stream)
        own = (await w.ok("GET", f"{P}/stats"))["subscriptions"]["a"]
        assert (own["msgBacklog"], own["totalMsgExpired"], own["lastExpireTimestamp"]) == (3, 0, 0)
        w.clock.ms += 100_000
        found = await w.ok("GET", f"{P}/stats")
        assert found["oldestBacklogMessageAgeSeconds"] == 100
        assert found["oldestBacklogMessageSubscriptionName"] == "a"
        assert w.clock.ms - found["earliestMsgPublishTimeInBacklogs"] == 100_000
        await w.cycle(TOPIC.stream)
        own = (await w.ok("GET", f"{P}/stats"))["subscriptions"]["a"]
        assert (own["msgBacklog"], own["totalMsgExpired"], own["lastExpireTimestamp"]) == (0, 3, w.clock.ms)

    play(story, topic=True)


def test_data_that_all_have_acknowledged_goes_with_the_next_cycle_and_the_rest_stays() -> None:
    async def story(w: World) -> None:
        for sub in ("a", "b"):
            await w.ok("PUT", f"{P}/subscription/{sub}", "earliest")
        ends = await w.write(TOPIC, b"one", b"two", b"three")
        await w.ok("POST", f"{P}/subscription/a/skip/2")
        await w.ok("POST", f"{P}/trim")
        assert (await w.ok("GET", f"{P}/stats"))["storageSize"] == ends[2]
        await w.ok("POST", f"{P}/subscription/b/skip/1")
        await w.ok("POST", f"{P}/trim")
        assert (await w.ok("GET", f"{P}/stats"))["storageSize"] == ends[2] - ends[0]
        await w.ok("DELETE", f"{P}/subscription/b")
        await w.ok("POST", f"{P}/trim")
        assert (await w.ok("GET", f"{P}/stats"))["storageSize"] == ends[2] - ends[1]
        await w.ok("DELETE", f"{P}/subscription/a")
        await w.ok("POST", f"{P}/trim")
        assert (await w.ok("GET", f"{P}/stats"))["storageSize"] == 0

    play(story, topic=True)


def test_retention_keeps_acknowledged_data_of_each_partition_by_itself() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/partitions", 2)
        await w.ok("POST", f"{N}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 1})
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        for partition, count in ((0, 30), (1, 5)):
            for _ in range(count):
                await w.write(TOPIC, b"x" * 100_000, partition=partition)
                if partition == 0:
                    w.clock.ms += 1000
                    await w.cycle(TOPIC.stream)
        await w.ok("POST", f"{P}/subscription/a/skip_all")
        await w.ok("POST", f"{P}/trim")
        kept = [(await w.ok("GET", f"{P}-partition-{index}/stats"))["storageSize"] for index in (0, 1)]
        assert 1 << 20 <= kept[0] < (1 << 20) + 200_000
        assert kept[1] == 5 * 100_008

    play(story)


def test_a_silent_subscription_expires_and_can_be_made_again() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{N}/subscriptionExpirationTime", 1)
        await w.ok("PUT", f"{P}/subscription/a", "earliest")
        await w.write(TOPIC, b"one", b"two")
        await w.cycle(TOPIC.stream)
        assert await w.ok("GET", f"{P}/subscriptions") == ["a"]
        w.clock.ms += 61_000
        await w.cycle(TOPIC.stream)
        assert await w.ok("GET", f"{P}/subscriptions") == []
        await w.refused(404, "POST", f"{P}/subscription/a/skip_all")
        await w.write(TOPIC, b"three")
        await w.ok("PUT", f"{P}/subscription/a", "latest")
        await w.write(TOPIC, b"four")
        assert await w.backlog("a") == 1

    play(story, topic=True)


def test_an_unused_topic_goes_where_a_policy_says_so_and_its_namespace_can_then_be_deleted() -> None:
    async def story(w: World) -> None:
        await w.ok("PUT", f"{P}/subscription/a", "latest")
        body = {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        }
        await w.ok("POST", f"{N}/inactiveTopicPolicies", body)
        await w.cycle(TOPIC.stream)
        assert await w.ok("GET", LIST) == ["persistent://my-tenant/my-ns/my-topic"]
        w.clock.ms += 3_600_000
        await w.cycle(TOPIC.stream)
        assert await w.ok("GET", LIST) == []
        await w.refused(404, "GET", f"{P}/stats")
        await w.ok("DELETE", N)

    play(story, topic=True)
