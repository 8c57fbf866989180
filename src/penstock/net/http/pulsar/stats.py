"""Statistics of topics, with Pulsar's names and nesting. Sizes and counts are exact; rates are not measured and are
0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from penstock.model.answers.subscribers import Eviction
from penstock.model.cuts import StreamCut
from penstock.model.retention import EffectivePolicy
from penstock.net.http.pulsar.bodies import AdminError
from penstock.net.http.pulsar.context import Admin, Call, Reply, Routes, Topic, as_json
from penstock.net.http.pulsar.cursors import Cursors
from penstock.net.http.pulsar.positions import Layout, Ledger
from penstock.net.http.pulsar.topics import P
from penstock.ports.control.subscribers import SubscriberInfo

_RATES_IN = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "averageMsgSize")
_SUMMED = ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize", "backlogSize")
_SUMMED_SUB = ("msgBacklog", "msgBacklogNoDelayed", "backlogSize")


class Stats:
    """Calls that only read."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._cursors = Cursors(admin)

    def routes(self) -> Routes:
        return (
            ("GET", P + "/stats", self.stats),
            ("GET", P + "/partitioned-stats", self.partitioned_stats),
            ("GET", P + "/internalStats", self.internal_stats),
            ("GET", P + "/partitioned-internalStats", self.partitioned_internal_stats),
            ("GET", P + "/backlog", self.backlog),
        )

    async def stats(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if topic.only is None:
            raise AdminError(404, f"Topic {topic} is partitioned, ask for its partitioned-stats")
        gathered = await self._gather(topic)
        return as_json(await self._one(gathered, topic.only, call))

    async def partitioned_stats(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if not topic.is_parent:
            raise AdminError(404, f"Partitioned Topic not found: {topic} has zero partitions")
        gathered = await self._gather(topic)
        parts = {
            topic.name.partition(index): await self._one(gathered, index, call) for index in range(topic.partitions)
        }
        total = _sum(list(parts.values()))
        total["metadata"] = {"partitions": topic.partitions, "deleted": False}
        total["partitions"] = parts if call.query.get("perPartition", "true").lower() == "true" else {}
        return as_json(total)

    async def _gather(self, topic: Topic) -> _Gathered:
        return _Gathered(
            topic=topic,
            layout=await self._admin.positions.layout(topic.stream),
            subscribers=await self._cursors.all(topic),
            policy=await self._admin.controller.policies.effective(topic.stream),
            evictions=await self._admin.controller.retention.list_evictions(topic.stream),
        )

    async def _one(self, gathered: _Gathered, index: int, call: Call) -> dict[str, Any]:
        topic, layout = gathered.topic, gathered.layout
        ledgers = layout.partitions[index]
        subscriptions = {
            name: await self._subscription(gathered, index, info) for name, info in gathered.subscribers.items()
        }
        slowest = max(subscriptions.items(), key=lambda item: int(item[1]["backlogSize"]), default=None)
        oldest = _oldest(gathered.subscribers)
        stored = sum(ledger.bytes for ledger in ledgers)
        owner = f"{topic.name.partition(index)}" if topic.partitioned else str(topic.name)
        policy = gathered.policy
        return {
            **dict.fromkeys(_RATES_IN, 0.0),
            "bytesInCounter": sum(ledger.info.length for ledger in ledgers),
            "msgInCounter": sum(ledger.info.event_count for ledger in ledgers),
            "systemTopicBytesInCounter": 0,
            "bytesOutCounter": 0,
            "msgOutCounter": 0,
            "msgChunkPublished": False,
            "storageSize": stored,
            "offloadedStorageSize": 0,
            "lastOffloadLedgerId": 0,
            "lastOffloadSuccessTimeStamp": 0,
            "lastOffloadFailureTimeStamp": 0,
            "backlogSize": 0 if slowest is None else slowest[1]["backlogSize"],
            "backlogQuotaLimitSize": -1 if policy.backlog_bytes is None else policy.backlog_bytes,
            "backlogQuotaLimitTime": -1 if policy.backlog_age_ms is None else -(-policy.backlog_age_ms // 1000),
            "oldestBacklogMessageAgeSeconds": -1 if oldest is None else oldest[1] // 1000,
            "oldestBacklogMessageSubscriptionName": None if oldest is None else oldest[0],
            "earliestMsgPublishTimeInBacklogs": self._published_at(oldest),
            "publishers": [],
            "waitingPublishers": 0,
            "subscriptions": subscriptions,
            "replication": {},
            "deduplicationStatus": "Disabled",
            "nonContiguousDeletedMessagesRanges": 0,
            "nonContiguousDeletedMessagesRangesSerializedSize": 0,
            "compaction": {
                "lastCompactionRemovedEventCount": 0,
                "lastCompactionSucceedTimestamp": 0,
                "lastCompactionFailedTimestamp": 0,
                "lastCompactionDurationTimeInMills": 0,
            },
            "ownerBroker": call.host,
            "topicName": owner,
        }

    def _published_at(self, oldest: tuple[str, int] | None) -> int:
        return 0 if oldest is None else self._admin.clock.now_ms() - oldest[1]

    async def _subscription(self, gathered: _Gathered, index: int, info: SubscriberInfo) -> dict[str, Any]:
        cut = await self._cursors.cut_of(gathered.topic, info)
        events, size = await self._admin.positions.backlog(gathered.layout, cut, index)
        expired, expired_ms = gathered.expired(info.name)
        return {
            **dict.fromkeys(("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate"), 0.0),
            "chunkedMessageRate": 0,
            "bytesOutCounter": 0,
            "msgOutCounter": 0,
            "msgBacklog": events,
            "msgBacklogNoDelayed": events,
            "backlogSize": size,
            "earliestMsgPublishTimeInBacklog": 0
            if info.lag_ms is None or not events
            else self._admin.clock.now_ms() - info.lag_ms,
            "blockedSubscriptionOnUnackedMsgs": False,
            "msgDelayed": 0,
            "msgInReplay": 0,
            "unackedMessages": 0,
            "type": None,
            "activeConsumerName": None,
            "msgRateExpired": 0.0,
            "totalMsgExpired": expired,
            "lastExpireTimestamp": expired_ms,
            "lastConsumedFlowTimestamp": 0,
            "lastConsumedTimestamp": 0,
            "lastAckedTimestamp": info.updated_ms,
            "lastMarkDeleteAdvancedTimestamp": info.updated_ms,
            "consumers": [{"consumerName": name} for name in await self._admin.consumers(info.name)],
            "isDurable": True,
            "isReplicated": False,
            "allowOutOfOrderDelivery": False,
            "consumersAfterMarkDeletePosition": {},
            "nonContiguousDeletedMessagesRanges": info.holes,
            "nonContiguousDeletedMessagesRangesSerializedSize": 0,
            "subscriptionProperties": {},
            "durable": True,
            "replicated": False,
        }

    # --- internal stats ------------------------------------------------------------------------------------

    async def internal_stats(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if topic.only is None:
            raise AdminError(404, f"Topic {topic} is partitioned, ask for its partitioned-internalStats")
        return as_json(await self._internal(await self._gather(topic), topic.only))

    async def partitioned_internal_stats(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if not topic.is_parent:
            raise AdminError(404, f"Partitioned Topic not found: {topic} has zero partitions")
        gathered = await self._gather(topic)
        parts = {
            topic.name.partition(index): await self._internal(gathered, index) for index in range(topic.partitions)
        }
        return as_json({"metadata": {"partitions": topic.partitions, "deleted": False}, "partitions": parts})

    async def _internal(self, gathered: _Gathered, index: int) -> dict[str, Any]:
        ledgers = gathered.layout.partitions[index]
        last = ledgers[-1]
        cursors = {}
        for name, info in gathered.subscribers.items():
            cut = await self._cursors.cut_of(gathered.topic, info)
            cursors[name] = await self._cursor(gathered.layout, index, cut, info)
        return {
            "entriesAddedCounter": sum(ledger.info.event_count for ledger in ledgers),
            "numberOfEntries": sum(ledger.entries for ledger in ledgers),
            "totalSize": sum(ledger.bytes for ledger in ledgers),
            "currentLedgerEntries": last.entries,
            "currentLedgerSize": last.bytes,
            "lastLedgerCreatedTimestamp": _iso(last.info.last_modified_ms),
            "lastLedgerCreationFailureTimestamp": None,
            "waitingCursorsCount": 0,
            "pendingAddEntriesCount": 0,
            "lastConfirmedEntry": f"{last.segment}:{last.info.event_count - 1}",
            "state": "Terminated" if last.info.sealed else "LedgerOpened",
            "ledgers": [_ledger(ledger) for ledger in ledgers],
            "cursors": cursors,
            "schemaLedgers": [],
            "compactedLedger": {
                "ledgerId": -1,
                "entries": -1,
                "size": -1,
                "offloaded": False,
                "underReplicated": False,
            },
        }

    async def _cursor(self, layout: Layout, index: int, cut: StreamCut, info: SubscriberInfo) -> dict[str, Any]:
        ledger, entry = await self._admin.positions.next_entry(layout, cut, index)
        events, _ = await self._admin.positions.backlog(layout, cut, index)
        return {
            "markDeletePosition": f"{ledger.segment}:{entry - 1}",
            "readPosition": f"{ledger.segment}:{entry}",
            "waitingReadOp": False,
            "pendingReadOps": 0,
            "messagesConsumedCounter": sum(item.info.event_count for item in layout.partitions[index]) - events,
            "cursorLedger": -1,
            "cursorLedgerLastEntry": -1,
            "individuallyDeletedMessages": "[]",
            "lastLedgerSwitchTimestamp": _iso(info.updated_ms),
            "state": "Open",
            "active": False,
            "numberOfEntriesSinceFirstNotAckedMessage": events,
            "totalNonContiguousDeletedMessagesRange": info.holes,
            "subscriptionHavePendingRead": False,
            "subscriptionHavePendingReplayRead": False,
            "properties": {},
        }

    async def backlog(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        gathered = await self._gather(topic)
        chosen: Sequence[int] = range(topic.partitions) if topic.only is None else (topic.only,)
        ledgers = [ledger for index in chosen for ledger in gathered.layout.partitions[index]]
        cursors: dict[str, dict[str, Any]] = {}
        for name, info in gathered.subscribers.items():
            cut = await self._cursors.cut_of(topic, info)
            events, _ = await self._admin.positions.backlog(gathered.layout, cut, topic.only)
            cursors[name] = {"messageBacklog": events, "cursorName": name}
        return as_json(
            {
                "storageSize": sum(ledger.bytes for ledger in ledgers),
                "totalMessages": sum(ledger.entries for ledger in ledgers),
                "messageBacklog": max((item["messageBacklog"] for item in cursors.values()), default=0),
                "brokerName": call.host,
                "topicName": str(topic),
                "dataLedgerDetails": [_ledger(ledger) for ledger in ledgers],
                "cursorDetails": cursors,
            }
        )


class _Gathered:
    """A topic, its ledgers, its subscriptions and its effective policy, requested once."""

    def __init__(
        self,
        *,
        topic: Topic,
        layout: Layout,
        subscribers: dict[str, SubscriberInfo],
        policy: EffectivePolicy,
        evictions: Sequence[Eviction],
    ) -> None:
        self.topic = replace(topic, partition=None)
        self.layout = layout
        self.subscribers = subscribers
        self.policy = policy
        self._evictions = evictions

    def expired(self, subscriber: str) -> tuple[int, int]:
        """Events that the subscriber lost to the time-to-live, as far as recorded, and when it last happened."""
        own = [item for item in self._evictions if item.subscriber == subscriber and item.rule == "ttl"]
        return sum(item.events or 0 for item in own), max((item.at_ms for item in own), default=0)


def _oldest(subscribers: dict[str, SubscriberInfo]) -> tuple[str, int] | None:
    """The subscription with the oldest unread event, and that event's age in ms."""
    ages = [(info.lag_ms, name) for name, info in subscribers.items() if info.lag_ms is not None and info.lag_bytes > 0]
    if not ages:
        return None
    age_ms, name = max(ages)
    return name, age_ms


def _ledger(ledger: Ledger) -> dict[str, Any]:
    return {
        "ledgerId": ledger.segment,
        "entries": ledger.entries,
        "size": ledger.bytes,
        "offloaded": False,
        "underReplicated": False,
    }


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _sum(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a partitioned topic: sums, and the largest age."""
    total = dict(parts[0])
    for name in _SUMMED:
        total[name] = sum(part[name] for part in parts)
    subscriptions: dict[str, Any] = {}
    for part in parts:
        for name, figures in part["subscriptions"].items():
            known = subscriptions.get(name)
            if known is None:
                subscriptions[name] = dict(figures)
                continue
            for key in _SUMMED_SUB:
                known[key] += figures[key]
    total["subscriptions"] = subscriptions
    return total
