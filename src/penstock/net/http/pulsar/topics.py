"""Calls on topics: create, list, grow, delete, truncate, trim, and where they are served."""

from __future__ import annotations

import re
from dataclasses import replace
from zlib import crc32

from penstock.model.errors import AlreadyExistsError, ScopeNotFoundError, StreamNotFoundError
from penstock.model.policies import SEGMENTS_MAX, ScalingPolicy, StreamConfig
from penstock.net.http.pulsar.bodies import AdminError, NoBody, parse_json, whole
from penstock.net.http.pulsar.context import DONE, Admin, Call, Reply, Routes, Topic, as_json
from penstock.net.http.pulsar.cursors import Cursors
from penstock.net.http.pulsar.names import NamespaceName, TopicName
from penstock.net.http.pulsar.positions import with_offset
from penstock.net.http.pulsar.records import Record, topic_key
from penstock.ports.control.streams import change_config

_NAMESPACE = "/admin/v2/persistent/{tenant}/{namespace}"
P = _NAMESPACE + "/{topic}"
_PARTITION_WORD = re.compile(r"-partition-\d+\Z")
_EXISTS = "This topic already exists"


class Topics:
    """Calls on whole topics and partitions."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._cursors = Cursors(admin)

    def routes(self) -> Routes:
        return (
            ("GET", _NAMESPACE + "/partitioned", self.list_partitioned),
            ("GET", _NAMESPACE, self.list_all),
            ("PUT", P, self.create),
            ("DELETE", P, self.delete),
            ("GET", P + "/partitions", self.partitions),
            ("PUT", P + "/partitions", self.create_partitioned),
            ("POST", P + "/partitions", self.grow),
            ("DELETE", P + "/partitions", self.delete_partitioned),
            ("DELETE", P + "/truncate", self.truncate),
            ("POST", P + "/trim", self.trim),
            ("PUT", P + "/unload", self.unload),
            ("GET", P + "/lastMessageId", self.last_message_id),
        )

    async def list_all(self, call: Call) -> Reply:
        """Topics; for partitioned topics, their partitions."""
        await self._admin.check_namespace(call.namespace)
        return as_json([] if call.non_persistent else await self.names(call.namespace))

    async def names(self, namespace: NamespaceName) -> list[str]:
        found: list[str] = []
        for topic in await self._admin.topics(namespace):
            if topic.partitioned:
                found.extend(topic.name.partition(index) for index in range(topic.partitions))
            else:
                found.append(str(topic.name))
        return found

    async def list_partitioned(self, call: Call) -> Reply:
        await self._admin.check_namespace(call.namespace)
        topics = [] if call.non_persistent else await self._admin.topics(call.namespace)
        return as_json([str(topic.name) for topic in topics if topic.partitioned])

    async def make(self, namespace: NamespaceName, local: str, partitions: int | None = None) -> Topic:
        """Create a topic; ``None``: a non-partitioned one. Raises AdminError 404, 409 and 412."""
        if _PARTITION_WORD.search(local):
            raise AdminError(412, "A topic's name cannot end like that of a partition")
        name = TopicName(namespace, local)
        config = StreamConfig(scaling=ScalingPolicy(min_segments=partitions or 1))
        record: Record = {"partitioned": partitions is not None}
        try:
            await self._admin.controller.streams.create(name.stream, config)
        except AlreadyExistsError as error:
            raise AdminError(409, _EXISTS) from error
        except ScopeNotFoundError as error:
            raise AdminError(404, "Namespace does not exist") from error
        await self._admin.records.change(topic_key(name), lambda _: record)
        return Topic(name=name, partition=None, partitioned=partitions is not None, partitions=partitions or 1)

    async def create(self, call: Call) -> Reply:
        _check_persistent(call)
        await self._admin.check_namespace(call.namespace)
        found = await self._admin.find(call.namespace, call.params["topic"])
        if found is not None:
            if found.partition is not None:
                return DONE  # partitions exist with their topic
            raise AdminError(409, _EXISTS)
        await self.make(call.namespace, call.params["topic"])
        return DONE

    async def create_partitioned(self, call: Call) -> Reply:
        _check_persistent(call)
        await self._admin.check_namespace(call.namespace)
        count = _partitions(call)
        if await self._admin.find(call.namespace, call.params["topic"]) is not None:
            raise AdminError(409, _EXISTS)
        await self.make(call.namespace, call.params["topic"], count)
        return DONE

    async def partitions(self, call: Call) -> Reply:
        if call.non_persistent:
            return as_json({"partitions": 0, "deleted": False})
        topic = await self._admin.find(call.namespace, call.params["topic"])
        if topic is None and call.flag("checkAllowAutoCreation"):
            await self._admin.check_namespace(call.namespace)
            topic = await self.make(call.namespace, call.params["topic"])
        if topic is None:
            topic = await self._admin.topic(call)
        return as_json({"partitions": topic.partitions if topic.is_parent else 0, "deleted": False})

    async def grow(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        count = _partitions(call)
        if topic.partition is not None:
            raise AdminError(412, "Partitions are added to the topic, not to one of its partitions")
        if not topic.partitioned:
            raise AdminError(409, f"Topic {topic} is not the partitioned topic.")
        if count < topic.partitions:
            reason = f"Desired partitions {count} can't be less than the current partitions {topic.partitions}."
            raise AdminError(422, reason)
        if count > topic.partitions:
            scaling = ScalingPolicy(min_segments=count)
            streams = self._admin.controller.streams
            await change_config(streams, topic.stream, lambda config: replace(config, scaling=scaling))
            # Also for a topic that was not created through this API: a topic that grows is partitioned.
            await self._admin.records.change(topic_key(topic.name), lambda record: {**record, "partitioned": True})
        return DONE

    async def delete(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if topic.partition is not None:
            raise AdminError(412, "A partition can only be deleted with its topic")
        if topic.partitioned:
            raise AdminError(409, f"{topic} is a partitioned topic, delete it as one")
        return await self._delete(topic, call)

    async def delete_partitioned(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if not topic.is_parent:
            raise AdminError(404, f"Partitioned Topic not found: {topic} has zero partitions")
        return await self._delete(topic, call)

    async def _delete(self, topic: Topic, call: Call) -> Reply:
        controller, stream = self._admin.controller, topic.stream
        await self._check_holds(topic)
        for info in () if call.flag("force") else (await self._cursors.all(topic)).values():
            if await self._admin.consumers(info.name):
                raise AdminError(412, "Topic has active producers/subscriptions")
        try:
            subscriptions = await self._cursors.names(topic)
            # This step comes first: it may be refused, and then nothing is changed.
            await controller.streams.delete(stream, seal=True)
        except StreamNotFoundError as error:
            raise AdminError(404, f"Topic {topic} not found") from error
        for name in subscriptions:
            await self._cursors.forget(topic, name)
        await self._admin.records.remove(topic_key(topic.name))
        return DONE

    async def _check_holds(self, topic: Topic) -> None:
        holds = [item for item in await self._admin.controller.holds.list(topic.stream) if not item.is_undo]
        if holds:
            raise AdminError(412, f"Topic is held by {holds[0].owner}: {holds[0].reason}")

    async def truncate(self, call: Call) -> Reply:
        """Acknowledge everything for all subscriptions, and delete it."""
        if call.non_persistent:
            raise AdminError(405, "Truncate a non-persistent topic is not allowed")
        topic = await self._admin.topic(call)
        controller, stream = self._admin.controller, topic.stream
        # Move subscriptions first, so that no truncation passes them. All refusals are checked before that.
        await self._check_holds(topic)
        if not await controller.layout.current(stream):
            raise AdminError(409, f"Topic {topic} is terminated: nothing of it can be truncated")
        tail = await controller.cuts.tail(stream)
        target = tail
        if topic.partition is not None:
            current = [item.segment for item in await controller.layout.current(stream)]
            segment = current[topic.partition]
            target = with_offset(await controller.cuts.head(stream), current, segment, tail.positions[segment])
        for info in (await self._cursors.all(topic)).values():
            to = target
            if topic.partition is not None:
                to = await self._cursors.end(topic, await self._cursors.cut_of(topic, info))
            await self._cursors.move(topic, info, to)
        await controller.streams.truncate(stream, target)
        return DONE

    async def trim(self, call: Call) -> Reply:
        if call.non_persistent:
            raise AdminError(405, "Trim on a non-persistent topic is not allowed")
        await self._admin.controller.retention.run((await self._admin.topic(call)).stream)
        return DONE

    async def unload(self, call: Call) -> Reply:
        """Does nothing: there is one server, and it keeps serving."""
        await self._admin.topic(call)
        return DONE

    async def last_message_id(self, call: Call) -> Reply:
        topic = await self._admin.topic(call)
        if topic.only is None:
            raise AdminError(404, f"Topic {topic} is partitioned, ask one of its partitions")
        layout = await self._admin.positions.layout(topic.stream)
        ledgers = layout.partitions[topic.only]
        last = next((ledger for ledger in reversed(ledgers) if ledger.info.event_count), ledgers[-1])
        return as_json(
            {
                "ledgerId": last.segment,
                "entryId": last.info.event_count - 1,
                "partitionIndex": -1 if topic.partition is None else topic.partition,
            }
        )

    async def in_bundle(self, namespace: NamespaceName, holds: tuple[int, int] | None) -> list[Topic]:
        """The topics and partitions with hashes in the half-open range; None: all topics, partitioned ones as one
        item."""
        found = await self._admin.topics(namespace)
        if holds is None:
            return found
        parts: list[Topic] = []
        for topic in found:
            ones = [topic]
            if topic.partitioned:
                ones = [replace(topic, partition=index) for index in range(topic.partitions)]
            parts.extend(one for one in ones if holds[0] <= _hash(str(one)) < holds[1])
        return parts


def _hash(name: str) -> int:

    return crc32(name.encode())


def _check_persistent(call: Call) -> None:
    if call.non_persistent:
        raise AdminError(405, "Non-persistent topics are not offered")


def _partitions(call: Call) -> int:
    if not call.body.strip():
        raise NoBody
    value = parse_json(call.body)
    if isinstance(value, dict):  # with the properties of the topic
        value = value.get("partitions")
    count = whole(value, "numPartitions")
    if count <= 0:
        raise AdminError(406, "The number of partitions must be more than 0")
    if count > SEGMENTS_MAX:
        raise AdminError(406, f"The number of partitions must be at most {SEGMENTS_MAX}")
    return count
