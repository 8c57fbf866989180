"""A stream with events and a subscriber behind the REST API."""

from __future__ import annotations

from uuid import UUID

from rest_support import FIRST, Running

from penstock.codec.events import frame_events
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.ports.control.groups import ReaderGroupConfig

S = StreamName("s", "events")
STREAM = "/v1/scopes/s/streams/events"
EVENT = frame_events([b"x" * 92])


async def with_events(run: Running, count: int = 10) -> int:
    """A stream of one segment with so many events of 100 bytes; returns its end."""
    await run.controller.scopes.create("s")
    await run.controller.streams.create(S, StreamConfig())
    end = 0
    for _ in range(count):
        end = await run.append(S, EVENT)
    return end


async def head_of(run: Running) -> int:
    return (await run.controller.cuts.head(S)).positions[FIRST]


async def subscribed(run: Running) -> None:
    await run.controller.groups.create(
        ReaderGroupConfig(
            scope="s",
            name="g",
            id=UUID(int=5),
            retention=ReaderGroupRetention.MANUAL,
            start_cuts={S: StreamCut(S, {FIRST: 0})},
        )
    )
