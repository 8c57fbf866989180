"""What the calls of the Pulsar facade share: requests, answers, and finding the stream of a topic's path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from penstock.model.cuts import StreamCut
from penstock.model.errors import AlreadyExistsError, NotFoundError, ScopeNotFoundError
from penstock.model.names import StreamName
from penstock.model.retention import (
    INHERIT,
    Backlog,
    Combine,
    Idle,
    IdleWhen,
    Measure,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)
from penstock.model.values.dataclass import dataclass
from penstock.net.access.guarded import by_the_store, check_may
from penstock.net.http.pulsar.bodies import AdminError
from penstock.net.http.pulsar.names import NamespaceName, TopicName, split_partition
from penstock.net.http.pulsar.positions import Positions
from penstock.net.http.pulsar.records import STARTED, Record, Records, namespace_key, tenant_key, topic_key, topics_key
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.scopes import PAGE_MAX
from penstock.ports.data.service import SegmentService

CLUSTER = "standalone"
_Section = TypeVar("_Section", Retain, Backlog, Idle)
_PUBLIC: Record = {"adminRoles": [], "allowedClusters": [CLUSTER]}

RELEASED = PolicyDocument(
    retain=Retain(
        min_bytes=0, min_age_s=0, combine=Combine.ANY, max_bytes=None, max_age_s=None, measure=Measure.SEGMENT
    ),
    unsubscribed=Unsubscribed.RELEASE,
    backlog=Backlog(ttl_s=None, max_bytes=None, max_age_s=None, max_events=None, on_exceed=OnExceed.HOLD, evict_to=0.9),
    idle=Idle(subscriber_s=None, stream_s=None, stream_when=IdleWhen.NO_SUBSCRIBERS),
)
"""Pulsar's defaults: data that all subscriptions have acknowledged is not kept, and there are no other limits. It sets
every limit, so that a namespace inherits none from the server's policy, which Pulsar does not know."""


def closed(document: PolicyDocument) -> PolicyDocument:
    """The document with Pulsar's default for each limit that it leaves to the server, except the grace."""
    return replace(
        document,
        retain=_filled(document.retain, RELEASED.retain),
        unsubscribed=RELEASED.unsubscribed if document.unsubscribed is INHERIT else document.unsubscribed,
        backlog=_filled(document.backlog, RELEASED.backlog),
        idle=_filled(document.idle, RELEASED.idle),
    )


def _filled(section: _Section, default: _Section) -> _Section:
    left = [item.name for item in fields(section) if getattr(section, item.name) is INHERIT]
    return replace(section, **{name: getattr(default, name) for name in left})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request: decoded parts of its path by name; the last value of each query parameter; its body. ``host``: the
    name by which the client addresses this server."""

    params: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    host: str
    non_persistent: bool = False

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    @property
    def namespace(self) -> NamespaceName:
        return NamespaceName(self.params["tenant"], self.params["namespace"])


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``body=None``: no body and no content type."""

    status: int = 204
    body: bytes | None = None
    content_type: str = "application/json"


DONE = Reply()
ReadersOf = Callable[[str, str], Awaitable[Sequence[str] | None]]
"""The readers in a group, by scope and name; None if they are not known."""

MoveReaders = Callable[[str, StreamCut], Awaitable[None]]
"""Move the readers of a subscriber, ``scope/group``, and its acknowledged cut, to a cut.

Raises ConflictError. Either readers are online or keep their positions elsewhere, and nothing was changed. Or another
reset moved the readers at the same time, and their data stays held.
"""

Handler = Callable[[Call], Awaitable[Reply]]
Routes = Sequence[tuple[str, str, Handler]]


def as_json(value: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value, separators=(",", ":")).encode())


def as_text(text: str) -> Reply:
    return Reply(200, text.encode(), "text/plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that exists, or one partition of it. ``partitions`` is 1 if it is not partitioned."""

    name: TopicName
    partition: int | None
    partitioned: bool
    partitions: int

    @property
    def stream(self) -> StreamName:
        return self.name.stream

    @property
    def scope(self) -> str:
        return self.name.namespace.scope

    @property
    def is_parent(self) -> bool:
        """A partitioned topic as a whole."""
        return self.partitioned and self.partition is None

    @property
    def only(self) -> int | None:
        """The partition that is addressed; None for all."""
        return 0 if not self.partitioned else self.partition

    def __str__(self) -> str:
        return str(self.name) if self.partition is None else self.name.partition(self.partition)


class Admin:
    """The services that the calls use, and what several calls need."""

    def __init__(
        self,
        controller: ControlPlane,
        segments: SegmentService,
        clock: Clock,
        readers_of: ReadersOf | None = None,
        move_readers: MoveReaders | None = None,
    ) -> None:
        self._readers_of = readers_of
        self.move_readers = move_readers
        self.controller = controller
        self.segments = segments
        self.clock = clock
        self.positions = Positions(controller, segments)
        self.records = Records(segments)
        self._started = False
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def consumers(self, subscriber: str) -> Sequence[str]:
        """Readers that are known to be connected as the subscriber."""
        if self._readers_of is None:
            return ()
        scope, _, group = subscriber.partition("/")
        return await self._readers_of(scope, group) or ()

    def lock(self, name: str) -> asyncio.Lock:
        """A lock by name: within this server, one change at a time."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def start(self) -> None:
        """At the very first request, create the tenant and namespace that every Pulsar has. Once deleted, they stay
        deleted."""
        if self._started:
            return
        async with self.lock("start"):
            if await self.records.get(STARTED) is None:
                await self.records.create(tenant_key("public"), _PUBLIC)
                with suppress(AlreadyExistsError):
                    await self._make_namespace(NamespaceName("public", "default"), by_the_store(self.controller))
                await self.records.create(STARTED, {})
            self._started = True

    async def make_namespace(self, name: NamespaceName) -> None:
        """Raises AlreadyExistsError."""
        check_may(self.controller, "policies.set", target=name.scope)
        await self._make_namespace(name, self.controller)

    async def _make_namespace(self, name: NamespaceName, control: ControlPlane) -> None:
        await control.scopes.create(name.scope)
        await self.records.change(namespace_key(name), lambda _: {"pulsar": True})
        await control.policies.set(name.scope, RELEASED)

    async def check_tenant(self, tenant: str) -> Record:
        record = await self.records.get(tenant_key(tenant))
        if record is None:
            raise AdminError(404, "Tenant does not exist")
        return record

    async def check_namespace(self, name: NamespaceName, reason: str = "Namespace does not exist") -> None:
        if not await self.namespace_exists(name):
            raise AdminError(404, reason)

    async def namespace_exists(self, name: NamespaceName) -> bool:
        known = await self.records.get(tenant_key(name.tenant)) is not None
        return known and await self.controller.scopes.exists(name.scope)

    async def namespaces(self, tenant: str) -> list[NamespaceName]:
        """All scopes of the tenant, also those not created through Pulsar's API; sorted."""
        found: list[NamespaceName] = []
        after = ""
        while page := await self.controller.scopes.list(after=after, limit=PAGE_MAX):
            after = page[-1]
            names = (NamespaceName.of_scope(scope) for scope in page)
            found.extend(name for name in names if name is not None and name.tenant == tenant)
        return sorted(found)

    async def topics(self, namespace: NamespaceName) -> list[Topic]:
        """All topics of a namespace, sorted; a partitioned topic is one item."""
        found: list[Topic] = []
        after = ""
        records = dict(await self.records.under(topics_key(namespace)))
        while page := await self.controller.streams.list(namespace.scope, after=after, limit=PAGE_MAX):
            after = page[-1]
            for stream in page:
                name = TopicName.of_stream(namespace, stream)
                if name is not None and (topic := await self._topic(name, records.get(name.local))) is not None:
                    found.append(topic)
        return sorted(found, key=lambda topic: topic.name)

    async def _topic(self, name: TopicName, record: Record | None) -> Topic | None:
        try:
            count = max(1, len(await self.controller.layout.current(name.stream)))
        except NotFoundError:
            return None
        partitioned = count > 1 or bool((record or {}).get("partitioned"))
        return Topic(name=name, partition=None, partitioned=partitioned, partitions=count)

    async def find(self, namespace: NamespaceName, local: str) -> Topic | None:
        """The topic or partition with this local name, or None."""
        split = split_partition(local)
        if split is not None:
            parent = await self._existing(TopicName(namespace, split[0]))
            if parent is not None and parent.partitioned:
                if split[1] >= parent.partitions:
                    return None
                return Topic(name=parent.name, partition=split[1], partitioned=True, partitions=parent.partitions)
        return await self._existing(TopicName(namespace, local))

    async def _existing(self, name: TopicName) -> Topic | None:
        try:
            if not await self.controller.streams.exists(name.stream):
                return None
        except ScopeNotFoundError:
            return None
        return await self._topic(name, await self.records.get(topic_key(name)))

    async def topic(self, call: Call) -> Topic:
        """The topic or partition that the path names. Raises AdminError 404."""
        topic = None if call.non_persistent else await self.find(call.namespace, call.params["topic"])
        if topic is None:
            domain = "non-persistent" if call.non_persistent else "persistent"
            raise AdminError(404, f"Topic {domain}://{call.namespace}/{call.params['topic']} not found")
        return topic

    async def topic_to_change(self, call: Call) -> Topic:
        """As ``topic``, for a policy. Raises AdminError 412 for a partition."""
        topic = await self.topic(call)
        if topic.partition is not None:
            raise AdminError(412, "Not allowed to set/get topic policy for a partition")
        return topic


def lifted() -> Backlog:
    """A backlog section with all limits lifted."""
    return Backlog(ttl_s=None, max_bytes=None, max_age_s=None, max_events=None)
