"""A whole Penstock in memory and in virtual time: store, control plane, client library, HTTP calls.

Tests of the five published documents run their stories here. An hour of the documents costs no time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from starlette.routing import Router

from penstock.client.store import AsyncStore
from penstock.client.stream import AsyncStream
from penstock.codec.control.readers import RetentionSetRecord, TailRecord
from penstock.codec.events import frame_events
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import Metadata
from penstock.controller.settings import ControllerSettings
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType
from penstock.model.segments import SegmentId, make_segment_id
from penstock.net.http.own_calls import OWN_CALLS
from penstock.net.http.pravega_routes import PravegaRest
from penstock.net.http.pulsar.api import pulsar_routes
from penstock.net.http.rest_calls import routes_of
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.store import SegmentStore
from penstock.testing import world as testing
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.machine.loop import SimLoop
from penstock.testing.simulation.machine.world import SimClock

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WRITER = UUID(int=77)
GROUP_ID = UUID(int=3)
STREAM = StreamName("s", "t")
FIRST = make_segment_id(0, 0)
ADMIN = "/admin/v2"
NAMESPACE = f"{ADMIN}/namespaces/my-tenant/my-ns"
TOPIC = f"{ADMIN}/persistent/my-tenant/my-ns/my-topic"
TOPIC_STREAM = StreamName("my-tenant.my-ns", "my-topic")
_UNSAID: Any = object()


async def _not_known(_scope: str, _group: str) -> None:
    return


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class World:
    def __init__(self, loop: SimLoop, segments: SegmentStore, controller: Controller, disks: testing.World) -> None:
        self.loop, self.segments, self.controller, self.disks = loop, segments, controller, disks
        self.clock = SimClock(loop)
        self.store = AsyncStore(segments, controller, self.clock, SeededRng(loop.fork("client")))
        self.app = Router(
            [
                *PravegaRest(controller, readers_of=_not_known).routes(),
                *routes_of(OWN_CALLS, controller),
                *pulsar_routes(controller, segments, self.clock),
            ]
        )

    # --- streams ------------------------------------------------------------------------------------------------

    async def stream(
        self, retention: RetentionPolicy | None = None, *, name: StreamName = STREAM, segments: int = 1
    ) -> AsyncStream:
        return await self.store.create_stream(name, retention=retention, segments=segments, create_scope=True)

    async def append(self, *sizes: int, stream: StreamName = STREAM, segment: SegmentId | None = None) -> int:
        """Append one event for each size, which counts its frame; returns where the segment ends then."""
        if segment is None:
            segment = (await self.controller.layout.current(stream))[0].segment
        name, end = segment_name(stream, segment), -1
        for size in sizes:
            last = await self.segments.setup_append(name, WRITER)
            number = 1 if last == NO_EVENT else last + 1
            data = frame_events([b"x" * (size - 8)])
            request = Append(segment=name, writer=WRITER, data=data, event_number=number, previous=last)
            end = (await self.segments.append(request)).end_offset
        return end

    async def cycle(self, *, stream: StreamName = STREAM, after_s: float = 1.0) -> Mapping[str, Any]:
        """A moment later one truncation cycle; what it decided."""
        await asyncio.sleep(after_s)
        return await self.controller.retention.run(stream)

    async def grow(self, *sizes: int, stream: StreamName = STREAM, after_s: float = 1.0) -> Mapping[str, Any]:
        """Append, and run a cycle after each event, so that each end is recorded; what the last one decided."""
        decision: Mapping[str, Any] = {}
        for size in sizes:
            await self.append(size, stream=stream)
            decision = await self.cycle(stream=stream, after_s=after_s)
        return decision

    async def head(self, stream: StreamName = STREAM) -> dict[SegmentId, int]:
        return dict((await self.controller.cuts.head(stream)).positions)

    async def size(self, stream: StreamName = STREAM) -> int:
        return (await self.controller.streams.describe(stream)).size_bytes

    async def read(self, stream: StreamName = STREAM, **options: Any) -> list[bytes]:
        """All events up to the tail as it is now."""
        async with self.store.stream(stream).reader(until_tail=True, **options) as reader:
            return [event.data async for event in reader]

    async def records(self, stream: StreamName = STREAM) -> list[StreamCut]:
        """The retention set, oldest first."""
        metadata = Metadata(self.segments)
        state = await metadata.get(keys.retention_set(stream), RetentionSetRecord)
        pruned_ms = -1 if state.value is None else state.value.pruned_ms
        found = [TailRecord.decode(entry.value) async for entry in metadata.scan_all(keys.tails(stream))]
        return [StreamCut(stream, item.cut) for item in found if item.time_ms > pruned_ms]

    # --- subscribers --------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str = "g",
        at: Mapping[SegmentId, int] | None = None,
        *,
        kind: ReaderGroupRetention = ReaderGroupRetention.MANUAL,
        streams: Sequence[StreamName] = (STREAM,),
        generation: int = 0,
    ) -> ReaderGroupConfig:
        """A reader group as Pravega's clients make one: it publishes nothing by itself unless ``at`` is given."""
        config = group(name, at, kind=kind, streams=streams, generation=generation)
        return await self.controller.groups.create(config)

    async def publish(self, at: Mapping[SegmentId, int], name: str = "g", *, generation: int = 0) -> None:
        await self.controller.subscribers.publish(
            f"s/{name}", group_id=GROUP_ID, generation=generation, cut=StreamCut(STREAM, at)
        )

    async def acknowledged(self, stream: StreamName = STREAM) -> dict[str, dict[SegmentId, int] | None]:
        found = await self.controller.subscribers.describe(stream)
        return {item.name: None if item.cut is None else dict(item.cut.positions) for item in found}

    # --- HTTP ---------------------------------------------------------------------------------------------------

    async def ask(self, method: str, target: str, body: Any = _UNSAID) -> Answer:
        """One HTTP request, as the routes get it from a server."""
        data = b"" if body is _UNSAID else json.dumps(body).encode()
        parts = urlsplit(target)
        headers = [(b"host", b"localhost:9091")]
        if method in ("PUT", "POST"):
            headers.append((b"content-type", b"application/json"))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "headers": headers,
            "server": ("localhost", 9091),
            "client": ("127.0.0.1", 1),
        }
        sent: list[dict[str, Any]] = []
        given = iter([{"type": "http.request", "body": data, "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(given, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        status = next(item["status"] for item in sent if item["type"] == "http.response.start")
        return Answer(status, b"".join(item.get("body", b"") for item in sent if item["type"] == "http.response.body"))

    async def ok(self, method: str, target: str, body: Any = _UNSAID) -> Any:
        """As ``ask``, which must succeed; the JSON answered, None where there is none."""
        answer = await self.ask(method, target, body)
        assert answer.status in (200, 201, 204), (method, target, answer)
        return answer.json if answer.body else None

    async def backlog(self, subscription: str) -> int:
        """How many messages of my-topic wait for the subscription."""
        stats = await self.ok("GET", f"{TOPIC}/stats")
        return int(stats["subscriptions"][subscription]["msgBacklog"])

    async def stored(self) -> int:
        """How many messages my-topic still has, read or not."""
        return len(await self.read(TOPIC_STREAM))


def group(
    name: str,
    at: Mapping[SegmentId, int] | None = None,
    *,
    kind: ReaderGroupRetention = ReaderGroupRetention.MANUAL,
    streams: Sequence[StreamName] = (STREAM,),
    generation: int = 0,
) -> ReaderGroupConfig:
    starts = {stream: StreamCut(stream, at or {}) for stream in streams}
    return ReaderGroupConfig(
        scope="s", name=name, id=GROUP_ID, retention=kind, start_cuts=starts, generation=generation
    )


async def take(reader: Any, count: int) -> list[bytes]:
    """The next events of a reader of a group. The last one is done with when the next is asked for, or the reader closed."""
    taken: list[bytes] = []
    async for event in reader:
        taken.append(event.data)
        if len(taken) == count:
            break
    return taken


def by_size(minimum: int, maximum: int | None = None) -> RetentionPolicy:
    return RetentionPolicy(type=RetentionType.SIZE, minimum=minimum, maximum=maximum)


def by_time(minimum_s: float, maximum_s: float | None = None) -> RetentionPolicy:
    """By age, in seconds."""
    maximum = None if maximum_s is None else round(maximum_s * 1000)
    return RetentionPolicy(type=RetentionType.TIME, minimum=round(minimum_s * 1000), maximum=maximum)


def storage(loop: SimLoop, *, cycle_s: float | None = None, **store: Any) -> testing.World:
    """What outlives a process. ``cycle_s``: how often a process runs retention by itself; never unless given."""
    settings = ControllerSettings(
        retention_cycle_ms=None if cycle_s is None else round(cycle_s * 1000),
        sweep_ms=None if cycle_s is None else 5000,
        # No stream here scales or has watermarks, and years of seconds would each be looked at.
        scaling_minute_ms=None,
        watermark_ms=None,
        clock_slack_ms=0,
    )
    return testing.World(clock=SimClock(loop), controller=settings, **store)


@asynccontextmanager
async def life(loop: SimLoop, memory: testing.World, name: str = "server") -> AsyncIterator[World]:
    """One life of a process on these disks."""
    memory.rng = SeededRng(loop.fork(name))
    async with memory.serving() as (segments, controller):
        yield World(loop, segments, controller, memory)


def play(story: Callable[[World], Awaitable[None]], *, seed: int = 1, days: float = 0.1, **options: Any) -> None:
    """Run a story in a world of its own, in virtual time, which must not take longer than these days."""
    loop = SimLoop(seed)

    async def main() -> None:
        async with life(loop, storage(loop, **options)) as world:
            await story(world)

    loop.run(main(), max_seconds=days * DAY_S)


def play_lives(*stories: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """Run each story in a process of its own, one after the other on the same disks."""
    loop = SimLoop(1)
    memory = storage(loop, **options)

    async def main() -> None:
        for number, story in enumerate(stories):
            async with life(loop, memory, f"life {number}") as world:
                await story(world)

    loop.run(main(), max_seconds=DAY_S)


def play_pulsar(story: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """As ``play``, with the tenant, namespace and topic that the Pulsar document's commands name."""

    async def with_topic(world: World) -> None:
        await world.ok("PUT", f"{ADMIN}/tenants/my-tenant", {"adminRoles": [], "allowedClusters": ["standalone"]})
        await world.ok("PUT", NAMESPACE)
        await world.ok("PUT", TOPIC)
        await story(world)

    play(with_topic, **options)
