"""Calls on subscriptions: create, delete, skip, clear, expire, reset, and the size of the backlog."""

from __future__ import annotations

from penstock.model.cuts import StreamCut
from penstock.model.errors import NotFoundError
from penstock.net.http.pulsar.bodies import AdminError, parse_json, whole_query
from penstock.net.http.pulsar.context import DONE, Admin, Call, Reply, Routes, Topic, as_json
from penstock.net.http.pulsar.cursors import Cursors
from penstock.net.http.pulsar.positions import read_position
from penstock.net.http.pulsar.topics import P, Topics
from penstock.ports.control.subscribers import SubscriberInfo

_CONSUMERS = "Subscription has active connected consumers"
_ALMOST = 1000  # unread messages; a consumer with fewer has almost caught up
_S = P + "/subscription/{subscription}"


class Subscriptions:
    """Calls below ``…/subscription``."""

    def __init__(self, admin: Admin, topics: Topics) -> None:
        self._admin = admin
        self._cursors = Cursors(admin)
        self._topics = topics

    def routes(self) -> Routes:
        return (
            ("GET", P + "/subscriptions", self.names),
            ("PUT", _S, self.create),
            ("DELETE", _S, self.delete),
            ("POST", _S + "/skip_all", self.clear),
            ("POST", _S + "/skip/{count}", self.skip),
            ("POST", _S + "/expireMessages/{seconds}", self.expire),
            ("POST", _S + "/expireMessages", self.expire_to_position),
            ("POST", P + "/all_subscription/expireMessages/{seconds}", self.expire_all),
            ("POST", _S + "/resetcursor/{timestamp}", self.reset_to_time),
            ("POST", _S + "/resetcursor", self.reset_to_position),
            ("POST", _S + "/analyzeBacklog", self.analyze),
            ("PUT", P + "/backlogSize", self.backlog_size),
        )

    async def names(self, call: Call) -> Reply:
        return as_json(await self._cursors.names(await self._admin.topic(call)))

    async def _named(self, call: Call) -> tuple[Topic, SubscriberInfo]:
        topic = await self._admin.topic(call)
        return topic, await self._cursors.get(topic, call.params["subscription"])

    async def create(self, call: Call) -> Reply:
        position = read_position(parse_json(call.body) if call.body.strip() else None)
        topic = await self._admin.find(call.namespace, call.params["topic"])
        if topic is None:
            await self._admin.check_namespace(call.namespace)
            topic = await self._topics.make(call.namespace, call.params["topic"])
        if topic.is_parent and not (position.is_earliest or position.is_latest):
            raise AdminError(412, "A position belongs to one partition of a partitioned topic")
        tail = await self._admin.controller.cuts.tail(topic.stream)
        start = await self._cursors.resolve(topic, tail, position)
        if start is None:
            raise AdminError(412, f"Unable to find position for position specified: {position}")
        await self._cursors.create(topic, call.params["subscription"], start)
        return DONE

    async def delete(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if topic.partition is not None:
            raise AdminError(412, "A subscription is removed from all partitions of its topic together")
        info = await self._cursors.get(topic, call.params["subscription"])
        if not call.flag("force") and await self._admin.consumers(info.name):
            raise AdminError(412, _CONSUMERS)
        await self._cursors.remove(topic, call.params["subscription"])
        return DONE

    async def clear(self, call: Call) -> Reply:
        topic, info = await self._named(call)
        await self._cursors.clear(topic, info)
        return DONE

    async def skip(self, call: Call) -> Reply:
        count = whole_query(call.params["count"])
        topic, info = await self._named(call)
        await self._cursors.skip(topic, info, count)
        return DONE

    async def expire(self, call: Call) -> Reply:
        seconds = whole_query(call.params["seconds"])
        _check_persistent(call)
        topic, info = await self._named(call)
        if not await self._unread(topic, info) or await self._almost_caught_up(topic, info, seconds):
            raise _nothing_to_expire(topic, call.params["subscription"])
        await self._cursors.expire(topic, info, seconds)
        return DONE

    async def expire_all(self, call: Call) -> Reply:
        seconds = whole_query(call.params["seconds"])
        _check_persistent(call)
        topic = await self._admin.topic(call)
        for info in (await self._cursors.all(topic)).values():
            await self._cursors.expire(topic, info, seconds)
        return DONE

    async def expire_to_position(self, call: Call) -> Reply:
        _check_persistent(call)
        if not call.body.strip():
            raise AdminError(400, "The request entity cannot be empty.")
        position = read_position(parse_json(call.body))
        topic, info = await self._named(call)
        if topic.is_parent:
            raise AdminError(405, "Expire message at position is not supported for partitioned-topic")
        if position.partition != (-1 if topic.partition is None else topic.partition):
            raise AdminError(
                412,
                "Invalid parameter for expire message by position, partition index of passed in message position "
                "doesn't match partition index for the topic",
            )
        cut = await self._cursors.cut_of(topic, info)
        target = await self._cursors.resolve(topic, cut, position, behind=not position.excluded)
        if target is None or position.is_earliest or position.is_latest or not await self._unread(topic, info):
            raise AdminError(
                409,
                f"Expire message by position not issued on topic {topic} for subscription "
                f"{call.params['subscription']} due to invalid position or subscription almost catch up.",
            )
        if self._is_ahead(cut, target):
            await self._cursors.move(topic, info, target)
        return DONE

    @staticmethod
    def _is_ahead(cut: StreamCut, target: StreamCut) -> bool:
        """Both cuts differ in at most one segment, or the target is in a newer one."""
        if set(cut.positions) != set(target.positions):
            return max(target.positions) > max(cut.positions)
        return any(offset > cut.positions[segment] for segment, offset in target.positions.items())

    async def _almost_caught_up(self, topic: Topic, info: SubscriberInfo, seconds: int) -> bool:
        """Whether a connected consumer has few unread events, none much older than ``seconds``; then nothing is
        expired."""
        if not await self._admin.consumers(info.name) or await self._unread(topic, info) >= _ALMOST:
            return False
        return info.lag_ms is None or info.lag_ms <= seconds * 1500

    async def _unread(self, topic: Topic, info: SubscriberInfo) -> int:
        layout = await self._admin.positions.layout(topic.stream)
        events, _ = await self._admin.positions.backlog(layout, await self._cursors.cut_of(topic, info), topic.only)
        return events

    async def reset_to_time(self, call: Call) -> Reply:
        at_ms = whole_query(call.params["timestamp"])
        topic, info = await self._named(call)
        cut = await self._cursors.cut_of(topic, info)
        await self._cursors.reset(topic, info, await self._cursors.at_time(topic, cut, at_ms))
        return DONE

    async def reset_to_position(self, call: Call) -> Reply:
        position = read_position(parse_json(call.body) if call.body.strip() else None)
        topic, info = await self._named(call)
        if topic.is_parent and not (position.is_earliest or position.is_latest):
            raise AdminError(405, "Reset-cursor at position is not allowed for partitioned-topic")
        cut = await self._cursors.cut_of(topic, info)
        target = await self._cursors.resolve(topic, cut, position, behind=position.excluded)
        if target is None:
            raise AdminError(412, f"Unable to find position for position specified: {position}")
        await self._cursors.reset(topic, info, target)
        return DONE

    async def analyze(self, call: Call) -> Reply:
        topic, info = await self._named(call)
        if topic.is_parent:
            raise AdminError(405, "Analyze backlog on a partitioned topic is not allowed")
        positions = self._admin.positions
        layout = await positions.layout(topic.stream)
        cut = await self._cursors.cut_of(topic, info)
        events, _ = await positions.backlog(layout, cut, topic.only)
        first, entry = await positions.next_entry(layout, cut, topic.only or 0)
        last = layout.partitions[topic.only or 0][-1]
        return as_json(
            {
                "entries": events,
                "messages": events,
                "markerMessages": 0,
                "filterAcceptedEntries": events,
                "filterRejectedEntries": 0,
                "filterRescheduledEntries": 0,
                "filterAcceptedMessages": events,
                "filterRejectedMessages": 0,
                "filterRescheduledMessages": 0,
                "aborted": False,
                "firstMessageId": f"{first.segment}:{entry}",
                "lastMessageId": f"{last.segment}:{last.info.event_count - 1}",
            }
        )

    async def backlog_size(self, call: Call) -> Reply:
        position = read_position(parse_json(call.body) if call.body.strip() else {"ledgerId": -1, "entryId": -1})
        topic = await self._admin.topic(call)
        head = await self._admin.controller.cuts.head(topic.stream)
        at = head
        if not position.is_earliest:
            if topic.is_parent:
                raise AdminError(412, "A position belongs to one partition of a partitioned topic")
            found = await self._cursors.resolve(topic, head, position)
            if found is None:
                raise AdminError(412, f"Unable to find position for position specified: {position}")
            at = found
        layout = await self._admin.positions.layout(topic.stream)
        _, size = await self._admin.positions.backlog(layout, at, topic.only)
        return as_json(size)

    # --- namespaces ----------------------------------------------------------------------------------------

    async def clear_namespace(self, topics: list[Topic], subscription: str | None) -> None:
        """Clear one subscription, or all, on all the topics.

        Raises AdminError: 500 if a topic has no such subscription, as the broker does. 412 if some cannot be cleared,
        for example because readers are online, with the reason for each; the others are cleared.
        """
        refusals: list[str] = []
        for topic in topics:
            try:
                found = await self._cursors.all(topic)
                if subscription is not None and subscription not in found:
                    raise AdminError(500, "Cursor not found")
                for name, info in found.items():
                    if subscription in (None, name):
                        try:
                            await self._cursors.clear(topic, info)
                        except AdminError as error:
                            if error.status != 412:
                                raise
                            refusals.append(error.reason)
            except NotFoundError:
                continue  # deleted meanwhile
        if refusals:
            raise AdminError(412, "Some subscriptions were not cleared: " + "; ".join(dict.fromkeys(refusals)))

    async def unsubscribe_namespace(self, topics: list[Topic], subscription: str) -> None:
        """Remove the subscription from all the topics that have it."""
        for topic in topics:
            try:
                info = (await self._cursors.all(topic)).get(subscription)
                if info is None:
                    continue
                if await self._admin.consumers(info.name):
                    raise AdminError(412, _CONSUMERS)
                await self._cursors.remove(topic, subscription)
            except NotFoundError:
                continue


def _check_persistent(call: Call) -> None:
    if call.non_persistent:
        raise AdminError(405, "Expire messages on a non-persistent topic is not allowed")


def _nothing_to_expire(topic: Topic, subscription: str) -> AdminError:
    return AdminError(
        409,
        f"Expire message by timestamp not issued on topic {topic} for subscription {subscription} due to ongoing message "
        "expiration not finished or subscription almost catch up. If it's performed on a partitioned topic operation might "
        "succeeded on other partitions, please check stats of individual partition.",
    )
