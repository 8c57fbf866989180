"""Pulsar's admin API over the real controller and segment store, in memory, with a clock that tests move by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from starlette.routing import Router

from penstock.codec.events import frame_events
from penstock.controller.controller import Controller
from penstock.model.names import StreamName, segment_name
from penstock.net.http.pulsar.api import pulsar_routes
from penstock.net.http.pulsar.names import NamespaceName, TopicName
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.store import SegmentStore
from penstock.testing import world as testing
from penstock.testing.fakes import FakeClock

WRITER = UUID(int=77)
N = "/admin/v2/namespaces/my-tenant/my-ns"
P = "/admin/v2/persistent/my-tenant/my-ns/my-topic"
S = f"{P}/subscription/sub"
NS = NamespaceName("my-tenant", "my-ns")
TOPIC = TopicName(NS, "my-topic")
TENANT = {"adminRoles": [], "allowedClusters": ["standalone"]}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["reason"])


_UNSAID: Any = object()


@dataclass
class World:
    store: SegmentStore
    controller: Controller
    clock: FakeClock
    app: Router

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = _UNSAID,
        *,
        raw: bytes | None = None,
        content_type: str | None = "application/json",
    ) -> Answer:
        """One request, through the routes as a server calls them. ``body`` is sent as JSON."""
        data = raw if raw is not None else b"" if body is _UNSAID else json.dumps(body).encode()
        parts = urlsplit(target)
        headers = [(b"host", b"broker.example:8080")]
        if content_type is not None and (data or method in ("PUT", "POST")):
            headers.append((b"content-type", content_type.encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path.replace("%2F", "/"),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "headers": headers,
            "server": ("broker.example", 8080),
            "client": ("127.0.0.1", 1),
        }
        sent: list[dict[str, Any]] = []
        given = iter([{"type": "http.request", "body": data, "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(given, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start = next(item for item in sent if item["type"] == "http.response.start")
        content = b"".join(item.get("body", b"") for item in sent if item["type"] == "http.response.body")
        found = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], found, content)

    async def ok(self, method: str, target: str, body: Any = _UNSAID, **options: Any) -> Any:
        """As ``ask``, which must succeed; the value answered, None where there is none."""
        answer = await self.ask(method, target, body, **options)
        assert answer.status in (200, 204), (method, target, answer)
        return answer.json if answer.body else None

    async def refused(self, status: int, method: str, target: str, body: Any = _UNSAID, **options: Any) -> str:
        """As ``ask``, which must be refused so; the reason."""
        answer = await self.ask(method, target, body, **options)
        assert answer.status == status, (method, target, answer)
        return answer.reason if answer.body else ""

    async def write(self, topic: TopicName, *events: bytes, partition: int = 0) -> list[int]:
        """Append events one by one; where each ends."""
        stream = topic.stream
        segment = segment_name(stream, (await self.controller.layout.current(stream))[partition].segment)
        ends = []
        for event in events:
            last = await self.store.setup_append(segment, WRITER)
            number = 1 if last == NO_EVENT else last + 1
            data = frame_events([event])
            request = Append(segment=segment, writer=WRITER, data=data, event_number=number, previous=last)
            ends.append((await self.store.append(request)).end_offset)
        return ends

    async def cycle(self, stream: StreamName) -> None:
        """One retention cycle: it records where the stream is now."""
        await self.controller.retention.run(stream)

    async def backlog(self, subscription: str, topic: str = P) -> int:
        """What is left to the subscription, as its statistics say."""
        stats = await self.ok("GET", f"{topic}/stats")
        return int(stats["subscriptions"][subscription]["msgBacklog"])


@asynccontextmanager
async def opened(*, namespace: bool = True, topic: bool = False) -> AsyncIterator[World]:
    memory = testing.World()
    async with memory.serving() as (store, controller):
        world = World(store, controller, memory.clock, Router(pulsar_routes(controller, store, memory.clock)))
        if namespace:
            await world.ok("PUT", "/admin/v2/tenants/my-tenant", TENANT)
            await world.ok("PUT", N)
        if topic:
            await world.ok("PUT", P)
        yield world


def play(story: Callable[[World], Awaitable[None]], **options: bool) -> None:
    """Run a story in a world of its own."""

    async def run() -> None:
        async with opened(**options) as world:
            await story(world)

    asyncio.run(run())
