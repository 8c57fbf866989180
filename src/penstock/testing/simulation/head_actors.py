"""Actors on the heads of segments: truncated bytes are freed or blanked, and the bytes after them stay unchanged."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from uuid import UUID

from penstock.client.retry import RETRYABLE
from penstock.codec.events import frame_events
from penstock.model.errors import TruncatedError
from penstock.ports.data.chunks import ChunkRange
from penstock.ports.data.segments import Append
from penstock.testing.simulation.actors import READ_BYTES, SCOPE, Env, cancel
from penstock.testing.simulation.erase_actors import persist
from penstock.testing.simulation.segment_actors import create

_TIERED_WAITS = 40  # waits for tiering before the actor goes on
_WAIT_S = 0.2
_APPENDED_MAX = 12  # events of one append


class Content:
    """A segment of one writer, with everything that was ever stored in it."""

    def __init__(self, env: Env, segment: str, rng: random.Random) -> None:
        self.env = env
        self.segment = segment
        self.rng = rng
        self.data = b""
        self.starts = [0]
        """Offsets of the events, and last the offset of the next event."""
        self.head = 0
        self._writer = UUID(int=rng.getrandbits(128), version=4)

    @property
    def length(self) -> int:
        return len(self.data)

    def places(self) -> list[int]:
        """The boundaries of readable events, including the head and the end."""
        return self.starts[bisect_left(self.starts, self.head) :]

    async def append(self) -> None:
        """Store some events by one append, and return once they are durable."""
        sizes = range(self.rng.randrange(1, _APPENDED_MAX))
        longest = max(60, self.env.config.store.chunk_bytes // 50)
        events = [self.rng.randbytes(self.rng.randrange(1, longest)) for _ in sizes]
        framed, before = frame_events(events), len(self.starts) - 1
        segments = self.env.local
        while True:
            try:
                last = await segments.setup_append(self.segment, self._writer)
                if last < before + len(events):
                    request = Append(
                        segment=self.segment,
                        writer=self._writer,
                        data=framed,
                        event_number=before + len(events),
                        event_count=len(events),
                        previous=last,
                    )
                    await segments.append(request)
                break
            except RETRYABLE:
                await asyncio.sleep(_WAIT_S)
        for item in events:
            self.starts.append(self.starts[-1] + 8 + len(item))
        self.data += framed

    async def fill(self, size_bytes: int) -> None:
        upto = self.length + size_bytes
        while self.length < upto and not self.env.stopping.is_set():
            await self.append()

    async def truncate(self, offset: int) -> None:
        self.head = max(self.head, offset)
        await self.env.insist(partial(self.env.local.truncate, self.segment, offset))

    async def tiered(self) -> Sequence[ChunkRange]:
        """The chunks once they contain all events, or their state after some waits."""
        for _ in range(_TIERED_WAITS):
            found = await self.env.insist(
                partial(self.env.local.chunk_ranges, self.segment, self.head, max(self.head, self.length))
            )
            if self.env.stopping.is_set() or (found and found[-1].end_offset == self.length):
                break
            await asyncio.sleep(_WAIT_S)
        return found

    async def check_data(self) -> None:
        """Check that the bytes after the head are those that were stored."""
        at = self.head
        while at < self.length:
            read = partial(self.env.local.read, self.segment, at, READ_BYTES, wait=False)
            data = b"".join((await self.env.insist(read)).parts)
            if not data or data != self.data[at : at + len(data)]:
                self.env.history.violation("other bytes", f"{self.segment} at {at}, head {self.head}")
                return
            at += len(data)

    async def check_counts(self, when: str) -> None:
        """Check that the count of events between any two bounds equals the number stored there."""
        places = self.places()
        for _ in range(4):
            start, end = sorted(self.rng.choices(places, k=2))
            if start == end:
                continue
            stored = bisect_left(self.starts, end) - bisect_left(self.starts, start)
            counted = await self.env.insist(partial(self.env.local.count_events, self.segment, start, end))
            if counted != stored:
                self.env.history.violation(
                    "wrong count", f"{self.segment} from {start} to {end}: {counted} of {stored}, {when}"
                )


async def free_heads(env: Env, name: str) -> None:
    """Truncates one chunk twice: within it, and past it while its head is being freed.

    A reader at the tail keeps the segment in memory in between, and leaves then.
    """
    rng = env.rng(name)
    count = 0
    while not env.stopping.is_set():
        count += 1
        content = await _content(env, f"{name}-{count}", rng)
        while content.length < 4 * env.config.store.chunk_bytes and not env.stopping.is_set():
            # One block each, because only whole blocks are freed.
            await content.fill(env.config.store.chunk_bytes // rng.choice((2, 4, 8)))
            chunks = await content.tiered()
            if chunks and chunks[0].end_offset < content.length:
                await _truncate_twice(env, content, chunks[0])
                await content.check_data()
        await env.pause(rng)
        await content.check_data()


async def _truncate_twice(env: Env, content: Content, chunk: ChunkRange) -> None:
    rng, disk = content.rng, env.cluster.disk
    within = [place for place in content.places() if place < chunk.end_offset]
    if len(within) < 2:
        return
    punched = asyncio.Event()
    disk.on_punch = lambda path: punched.set() if path.endswith(chunk.name) else None
    reader = env.loop.create_task(_wait_at_end(env, content), name="reader at the end")
    try:
        await content.truncate(rng.choice(within[len(within) // 2 :]))
        async with asyncio.timeout(2 * env.config.store.checkpoint_interval_s):
            await punched.wait()
    except TimeoutError:
        env.history.note(f"head of {chunk.name} is kept")
    finally:
        disk.on_punch = None
        await cancel([reader])
    # Let other actors do some I/O. At each of them an idle segment may leave memory.
    await asyncio.sleep(rng.random() * 20 * env.config.latency_s)
    await content.truncate(rng.choice([place for place in content.places() if place >= chunk.end_offset]))


async def _wait_at_end(env: Env, content: Content) -> None:
    """A read behind the last event, until it is cancelled."""
    while True:
        try:
            await env.local.read(content.segment, content.length, READ_BYTES)
        except TruncatedError:
            raise
        except RETRYABLE:
            await asyncio.sleep(_WAIT_S)


async def erase_behind_heads(env: Env, name: str) -> None:
    """Truncates within a block and erases events behind the cut. No count of events changes, now or after a restart."""
    rng = env.rng(name)
    count = 0
    while not env.stopping.is_set():
        count += 1
        content = await _content(env, f"{name}-{count}", rng)
        for _ in range(rng.randrange(1, 4)):
            await content.fill(rng.choice((100, 1000)))
            if env.stopping.is_set():
                return
            await content.truncate(rng.choice(content.places()))
            await content.check_counts("before an erasure")
            await _erase_some(content)
            await content.check_counts("after an erasure")
            await env.pause(rng, factor=4)
            await content.check_counts("a while after an erasure")


async def _erase_some(content: Content) -> None:
    """Erase events behind the head; perhaps none: what was truncated is blanked all the same."""
    rng, segments = content.rng, content.env.local
    events = content.places()[:-1]
    chosen = sorted(rng.sample(events, min(len(events), rng.randrange(4))))
    ranges = [(start + 8, content.starts[bisect_left(content.starts, start) + 1]) for start in chosen]
    erasure = UUID(int=rng.getrandbits(128), version=4).hex
    await persist(content.env, partial(segments.erase, content.segment, ranges, erasure=erasure))


async def _content(env: Env, label: str, rng: random.Random) -> Content:
    segment = f"{SCOPE}/{label}"
    await create(env, env.local, segment)
    return Content(env, segment, rng)
