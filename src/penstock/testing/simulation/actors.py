"""What all actors of a run share: services, randomness, the stop signal, and appends whose outcome is known."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import TypeVar, cast
from uuid import UUID

from penstock.client.retry import RETRYABLE
from penstock.client.store import AsyncStore
from penstock.codec.events import event_bounds, frame_events
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    ConditionFailedError,
    SegmentNotFoundError,
    SegmentSealedError,
    TruncatedError,
    WriterFencedError,
)
from penstock.model.names import StreamName
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.segments import NO_EVENT, Append, SegmentRead
from penstock.ports.data.service import LocalSegmentService, SegmentService
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.config import SimConfig
from penstock.testing.simulation.history import Group, History, Reading, Write
from penstock.testing.simulation.machine.cluster import Cluster
from penstock.testing.simulation.machine.loop import SimLoop

T = TypeVar("T")

SCOPE = "sim"
STREAM = StreamName(SCOPE, "stream")
READ_BYTES = 1 << 16
LOOK_S = 0.2
"""Seconds between two checks of an expected condition."""

_PAUSE_S = 0.15


async def _nothing(_: Sequence[bytes]) -> list[str]:
    return []


class Env:
    """One run, as its actors see it."""

    def __init__(self, loop: SimLoop, cluster: Cluster, history: History, config: SimConfig) -> None:
        self.loop = loop
        self.cluster = cluster
        self.history = history
        self.config = config
        self.stack = AsyncExitStack()
        self.stopping = asyncio.Event()
        self.acknowledged: StreamCut | None = None
        """The cut that the stream's subscriber published last. Truncation may reach it."""
        self.audit: Reading | None = None
        """What the subscriber has read."""
        self.raw: dict[str, None] = {}
        """Segments of the simulation that are read in full at the end."""
        self.inside = True
        """Whether the store accepts calls that are reserved for its own controller."""
        self.left_behind: Callable[[Sequence[bytes]], Awaitable[list[str]]] = _nothing
        """The files that contain any of these bytes."""

    @property
    def controller(self) -> ControlPlane:
        return self.cluster.controller

    @property
    def local(self) -> LocalSegmentService:
        """The store with all calls that its controller uses."""
        return cast("LocalSegmentService", self.cluster.local)

    def rng(self, label: str) -> random.Random:
        return self.loop.fork(f"actor/{label}")

    def segments(self, label: str) -> SegmentService:
        """The store as the clients of this run use it: over the wire, or in the same process."""
        if not self.config.wire:
            return self.cluster.local
        remote = self.cluster.remote(label)
        self.stack.push_async_callback(remote.close)
        return remote

    def store(self, label: str) -> AsyncStore:
        return AsyncStore(
            self.segments(label), self.controller, self.cluster.clock, SeededRng(self.loop.fork(f"store/{label}"))
        )

    async def pause(self, rng: random.Random, *, factor: float = 1.0) -> None:
        """Wait for a random time, or not at all once the run must stop."""
        try:
            async with asyncio.timeout(rng.expovariate(1 / (self.config.think_s * factor))):
                await self.stopping.wait()
        except TimeoutError:
            return

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that is safe to repeat until it is answered, however long the node is down."""
        while True:
            try:
                return await call()
            except RETRYABLE:
                await asyncio.sleep(_PAUSE_S)


def event(config: SimConfig, stream: str, writer: str, number: int, key: str, rng: random.Random) -> bytes:
    """A unique event that contains its own name."""
    head = f"{stream}|{writer}|{number}|{key}|".encode()
    return head + rng.randbytes(rng.randrange(config.event_bytes + 1))


class RawWriter:
    """One writer id on one segment. Appends one event at a time and repeats it until its outcome is known."""

    def __init__(self, env: Env, segments: SegmentService, segment: str, name: str, rng: random.Random) -> None:
        self.env = env
        self.segments = segments
        self.segment = segment
        self.name = name
        self.rng = rng
        self.id = UUID(int=rng.getrandbits(128), version=4)
        self.made = 0
        self._last: int | None = None
        self._number = 0

    async def append(
        self, *, stream: str | None = None, group: Group | None = None, conditional: bool = False, give_up: bool = True
    ) -> Write | None:
        """Append an event. None: it is certainly not stored. Raises SegmentSealedError, SegmentNotFoundError."""
        history, env = self.env.history, self.env
        self.made += 1
        stream = stream or self.segment
        data = event(env.config, stream, self.name, self.made, "k", self.rng)
        write = history.write(stream, self.name, self.made, "k", data, group=group, piece=self.segment)
        framed = frame_events([data])
        sent = False
        while True:
            if self._last is None:
                self._last = await env.insist(lambda: self.segments.setup_append(self.segment, self.id))
                if sent and self._last >= self._number:
                    history.acknowledged(write, asked=True)
                    return write
                if sent and give_up and self.rng.random() < 0.5:
                    # The segment does not hold the event and never will: all earlier requests are decided by now.
                    history.refused(write)
                    return None
            expected = (await env.insist(lambda: self.segments.info(self.segment))).length if conditional else None
            self._number = max(self._last, 0) + 1
            sent = True
            try:
                async with asyncio.timeout(self._patience_s()):
                    done = await self.segments.append(self._request(framed, expected))
            except (ConditionFailedError, SegmentSealedError, SegmentNotFoundError) as error:
                history.refused(write)
                if isinstance(error, ConditionFailedError):
                    return None
                raise
            except (WriterFencedError, TimeoutError, *RETRYABLE) as error:
                if isinstance(error, TimeoutError):
                    # While the append may still be in flight, ask for its outcome, or send it again.
                    self._last = None if self.rng.random() < 0.5 else self._last
                    continue
                self._last = None
                await asyncio.sleep(_PAUSE_S * self.rng.random())
            else:
                self._last = self._number
                offset = done.end_offset - len(framed)
                if expected is not None and offset != expected:
                    history.violation("condition ignored", f"{write.name} expected {expected}, is at {offset}")
                if stream == self.segment:
                    history.acknowledged(write, segment=self.segment, offset=offset)
                else:
                    # The segment will be merged into another one, so this offset is not the one at which readers see
                    # the event.
                    history.acknowledged(write)
                return write

    def _patience_s(self) -> float | None:
        """Sometimes a caller gives up before the answer can arrive."""
        return 2 * self.env.config.latency_s * self.rng.random() if self.rng.random() < 0.2 else None

    def _request(self, framed: bytes, expected: int | None) -> Append:
        return Append(
            segment=self.segment,
            writer=self.id,
            data=framed,
            event_number=self._number,
            previous=NO_EVENT if self._last is None else self._last,
            expected_offset=expected,
        )


async def read_raw(
    env: Env, segments: SegmentService, segment: str, reading: Reading, *, offset: int = 0, whole: bool
) -> int:
    """Read events from ``offset``. ``whole``: up to the present length, else until the run stops. Returns the end
    offset. Raises TruncatedError, SegmentNotFoundError."""
    end = (await env.insist(lambda: segments.info(segment))).length if whole else None
    carry, since = b"", env.loop.time()
    while end is None or offset + len(carry) < end:
        at = offset + len(carry)
        # An event that arrives in two pieces is as old as its first piece.
        since = since if carry else env.loop.time()
        found = await (_read_now(env, segments, segment, at) if whole else _tail_read(env, segments, segment, at))
        if found is None:
            return offset
        data = b"".join(found.parts)
        if not data:
            if found.end_of_segment:
                return offset
            if whole:
                env.history.violation("short read", f"{segment} at {at} of {end}")
                return offset
            continue
        carry += data
        bounds = event_bounds(carry, segment=segment, offset=offset)
        for start, stop in pairwise(bounds):
            env.history.read(reading, segment, offset + start, carry[start + 8 : stop], began_s=since)
        offset, carry = offset + bounds[-1], carry[bounds[-1] :]
    return offset


async def _read_now(env: Env, segments: SegmentService, segment: str, offset: int) -> SegmentRead | None:
    return await env.insist(lambda: segments.read(segment, offset, READ_BYTES, wait=False))


async def _tail_read(env: Env, segments: SegmentService, segment: str, offset: int) -> SegmentRead | None:
    while not env.stopping.is_set():
        try:
            async with asyncio.timeout(2.0):
                return await segments.read(segment, offset, READ_BYTES)
        except TimeoutError:
            continue
        except TruncatedError:
            raise
        except RETRYABLE:
            await asyncio.sleep(_PAUSE_S)
    return None


async def until_served(env: Env, done: Callable[[], bool], patience_s: float) -> bool:
    """Whether ``done`` became true within this many seconds of service. In a run with many crashes, service may be
    rare."""
    while not done():
        if patience_s <= 0:
            return False
        await asyncio.sleep(LOOK_S)
        node = env.cluster.node
        if node is not None and node.serves:
            patience_s -= LOOK_S
    return True


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
