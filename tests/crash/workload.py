"""One life of a store: actors append, seal, truncate, merge, delete, change tables and a stream, and keep the journal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from penstock.app.embedded import Runtime
from penstock.client.store import AsyncStore
from penstock.client.stream import AsyncStream
from penstock.codec.store.chunk_builder import ChunkBuilder
from penstock.model.errors import InternalError, PenstockError, StorageFullError, UnavailableError
from penstock.model.names import transaction_segment_name
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.ports.data.imports import ChunkImports, ImportedChunk
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.service import SegmentService
from penstock.ports.data.tables import TablePut, TableRemoval
from penstock.storage.chunks.imports import open_place
from tests.crash.model import Belief, Journal, Op, State, payload
from tests.crash.observe import observe, plain

_KEEP = RetentionPolicy(type=RetentionType.SIZE, minimum=1 << 40)


class Stopped(Exception):
    """An operation failed: this actor does nothing more, for it does not know what it has done."""


class Actor:
    """Tells the journal before and after each operation. ``state`` is that of all its acknowledged ones."""

    def __init__(
        self, name: str, life: int, store: Runtime, journal: Journal, rng: random.Random, state: State
    ) -> None:
        self.name = name
        self.life = life
        self.store = store
        self.journal = journal
        self.rng = rng
        self.state = dict(state)
        self.made = 0

    @property
    def segments(self) -> SegmentService:
        return self.store.segments

    @property
    def imports(self) -> ChunkImports:
        if not isinstance(self.store.segments, ChunkImports):
            raise InternalError("a store that adopts no chunks")
        return self.store.segments

    def writer(self, name: str) -> str:
        """A writer id per segment and life."""
        return UUID(int=random.Random(f"{name}/{self.life}").getrandbits(128), version=4).hex

    def tag(self) -> str:
        self.made += 1
        return f"{self.name}.{self.life}.{self.made}"

    async def do(self, op: Op, call: Callable[[], Awaitable[Any]]) -> Any:
        """Raises Stopped where the call fails; an error that is none of ours is a broken promise."""
        self.journal.begin(self.name, op)
        try:
            done = await call()
        except PenstockError as error:
            self.journal.fail(self.name, f"{type(error).__name__} {error}"[:300])
            raise Stopped from error
        except OSError as error:
            self.journal.fail(self.name, f"OSError {error}"[:300])
            raise Stopped from error
        except Exception as error:
            self.journal.broken(self.name, f"untyped error {error!r} of {op['do']}"[:300])
            raise
        self.journal.acknowledge(self.name)
        return done

    async def create(self, name: str) -> None:
        await self.do({"do": "create", "name": name}, lambda: self.segments.create_segment(name))

    async def append(self, name: str, previous: int, size: int) -> None:
        op, request = self.request(name, previous, size)
        await self.do(op, lambda: self.segments.append(request))

    def request(self, name: str, previous: int, size: int) -> tuple[Op, Append]:
        number = max(previous, 0) + 1
        tag, writer = self.tag(), self.writer(name)
        op: Op = {"do": "append", "name": name, "tag": tag, "size": size, "writer": writer, "number": number}
        request = Append(
            segment=name, writer=UUID(writer), data=payload(tag, size), event_number=number, previous=previous
        )
        return op, request

    async def burst(self, name: str, previous: int, sizes: Sequence[int]) -> int:
        """Several appends under way at once, acknowledged in their order. Returns the last number."""
        made = []
        for size in sizes:
            op, request = self.request(name, previous, size)
            self.journal.begin(self.name, op)
            made.append(request)
            previous = request.event_number
        answers = await asyncio.gather(*(self.segments.append(request) for request in made), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, PenstockError | OSError):
                self.journal.fail(self.name, f"{type(answer).__name__} {answer}"[:300])
                raise Stopped
            if isinstance(answer, BaseException):
                self.journal.broken(self.name, f"untyped error {answer!r}"[:300])
                raise Stopped
            self.journal.acknowledge(self.name)
        return previous


async def append_and_truncate(actor: Actor, count: int) -> None:
    """One segment over all lives, with appends in flight together, losing its head."""
    name, rng = "crash/log", actor.rng
    if name not in actor.state:
        await actor.create(name)
    start = length = 0
    if (known := actor.state.get(name)) is not None:
        start, length = known[1], known[2]
    bounds = [start, length]
    previous = NO_EVENT
    for _ in range(count):
        sizes = [rng.choice((20, 200, 200, 900, 3000)) for _ in range(rng.randrange(1, 4))]
        previous = await actor.burst(name, previous, sizes)
        bounds.append((await actor.segments.info(name)).length)
        if rng.random() < 0.15:
            cut = rng.choice(bounds)
            await actor.do(
                {"do": "truncate", "name": name, "offset": cut},
                partial(actor.segments.truncate, name, cut),
            )


async def live_and_die(actor: Actor, count: int) -> None:
    """Segments that are created, filled, sealed, truncated, deleted."""
    rng = actor.rng
    old = [name for name in actor.state if name.startswith("crash/short")]
    for number in range(count):
        name = f"crash/short-{actor.life}-{number}"
        await actor.create(name)
        previous, length = NO_EVENT, 0
        for _ in range(rng.randrange(4)):
            await actor.append(name, previous, rng.choice((30, 500, 2500)))
            previous = max(previous, 0) + 1
            length = (await actor.segments.info(name)).length
        if rng.random() < 0.6:
            await actor.do({"do": "seal", "name": name}, partial(actor.segments.seal, name))
        if rng.random() < 0.4:
            await actor.do(
                {"do": "truncate", "name": name, "offset": length},
                partial(actor.segments.truncate, name, length),
            )
        old.append(name)
        if rng.random() < 0.6:
            gone = old.pop(rng.randrange(len(old)))
            await actor.do({"do": "delete", "name": gone}, partial(actor.segments.delete, gone))


async def merge(actor: Actor, count: int) -> None:
    """Segments that are filled beside a target and merged into it."""
    target, rng = "crash/target", actor.rng
    if target not in actor.state:
        await actor.create(target)
    for number in range(count):
        id_ = UUID(int=random.Random(f"{actor.life}/{number}").getrandbits(128), version=4)
        source = transaction_segment_name(target, id_)
        await actor.create(source)
        previous = NO_EVENT
        for _ in range(rng.randrange(3)):
            await actor.append(source, previous, rng.choice((40, 700, 2500)))
            previous = max(previous, 0) + 1
        await actor.do(
            {"do": "merge", "name": target, "source": source},
            partial(actor.segments.merge, target, source),
        )


async def adopt_and_erase(actor: Actor, count: int) -> None:
    """Chunks that are written beside the store, adopted and merged; events that are erased, each from one chunk."""
    target, rng = "crash/erased", actor.rng
    if target not in actor.state:
        await actor.create(target)
    offset = actor.state[target][2] if target in actor.state else 0
    events: list[tuple[int, int, str]] = []
    previous = NO_EVENT
    for number in range(count):
        id_ = UUID(int=random.Random(f"erased/{actor.life}/{number}").getrandbits(128), version=4)
        source = transaction_segment_name(target, id_)
        await actor.create(source)
        made = [(actor.tag(), rng.choice((30, 300, 1500))) for _ in range(rng.randrange(1, 4))]
        # Attempts of one task write the same, and one of them is adopted.
        for _ in range(rng.randrange(1, 3)):
            chunks = await _written(actor, source, made)
        await actor.do(
            {"do": "adopt", "name": source, "events": made},
            partial(actor.imports.adopt_chunks, source, 0, chunks),
        )
        await actor.do(
            {"do": "merge", "name": target, "source": source},
            partial(actor.segments.merge, target, source),
        )
        one = (f"{actor.name}.{actor.life}.{actor.made + 1}", rng.choice((40, 700)))
        await actor.append(target, previous, one[1])
        previous = max(previous, 0) + 1
        for tag, size in (*made, one):
            end = offset + len(payload(tag, size))
            events.append((offset, end, tag))
            offset = end
        if rng.random() < 0.8:
            first, last, tag = events.pop(rng.randrange(len(events)))
            await actor.do(
                {"do": "erase", "name": target, "range": [first + 8, last], "tag": tag},
                partial(_erase, actor, target, (first + 8, last), f"{actor.life}-{number}"),
            )


async def _written(actor: Actor, source: str, events: Sequence[tuple[str, int]]) -> list[ImportedChunk]:
    """What an executor does. Raises Stopped where it cannot."""
    try:
        grant = await actor.imports.grant_import(source)
        place = await open_place(grant)
        if place is None:
            actor.journal.broken(actor.name, f"tier 2 is not to be seen at {grant.location}")
            raise Stopped
        builder = ChunkBuilder(block_bytes=grant.block_bytes, chunk_bytes=grant.chunk_bytes)
        built = [builder.add(payload(tag, size), 1) for tag, size in events]
        chunks = [item for item in [*built, builder.finish()] if item is not None]
        made = [await place.write(number, item) for number, item in enumerate(chunks)]
        await place.settle()
    except (UnavailableError, StorageFullError) as error:
        actor.journal.fail(actor.name, f"{type(error).__name__} {error}"[:300])
        raise Stopped from error
    return made


async def _erase(actor: Actor, name: str, wanted: tuple[int, int], erasure: str) -> None:
    store = actor.store.segments
    (found,) = await store.event_ranges(name, [wanted[0] - 8])
    if found != wanted:
        actor.journal.broken(actor.name, f"another event lies at {found} than at {wanted}")
        raise Stopped
    await store.erase(name, [wanted], erasure=erasure)
    await store.wipe_log()


async def change_table(actor: Actor, count: int) -> None:
    """A table over all lives, and one that is made and removed."""
    name, rng = "crash/table", actor.rng
    if name not in actor.state:
        await actor.do({"do": "table", "name": name}, lambda: actor.segments.create_table(name))
    for _ in range(count):
        keys = rng.sample(range(12), rng.randrange(1, 4))
        if rng.random() < 0.75:
            entries = [(f"k{key}", f"{actor.tag()}{'.' * rng.choice((0, 50, 400))}") for key in keys]
            puts = [TablePut(key=key.encode(), value=value.encode()) for key, value in entries]
            await actor.do(
                {"do": "put", "name": name, "entries": entries},
                partial(actor.segments.table_update, name, puts),
            )
        else:
            removals = [TableRemoval(key=f"k{key}".encode()) for key in keys]
            await actor.do(
                {"do": "remove", "name": name, "entries": [(f"k{key}", None) for key in keys]},
                partial(actor.segments.table_remove, name, removals),
            )


async def use_stream(actor: Actor, count: int) -> None:
    """A stream over all lives: events, transactions, scaling, truncation at its end."""
    name, rng = "crash/stream", actor.rng
    store = AsyncStore(actor.segments, actor.store.controller, actor.store.clock, actor.store.rng)
    if name not in actor.state:
        await actor.do(
            {"do": "stream", "name": name},
            lambda: store.create_stream(name, segments=1, retention=_KEEP, create_scope=True, if_absent=True),
        )
    stream = store.stream(name)
    for _ in range(count):
        events = [(f"key{rng.randrange(3)}", actor.tag()) for _ in range(rng.randrange(1, 5))]
        kind = rng.random()
        if kind < 0.45:
            # One by one: what was written after may be lost alone.
            for item in events:
                await actor.do({"do": "events", "name": name, "events": [item]}, partial(_write, stream, item))
        elif kind < 0.75:
            await actor.do({"do": "events", "name": name, "events": events}, partial(_transact, stream, events))
        elif kind < 0.87:
            await actor.do({"do": "scale", "name": name}, lambda: stream.scale(rng.choice((1, 2, 3))))
        else:
            await actor.do({"do": "cut", "name": name}, lambda: _cut(stream))


async def _write(stream: AsyncStream, item: tuple[str, str]) -> None:
    async with stream.writer(deadline_s=5.0) as writer:
        await writer.write(f"{item[0]}|{item[1]}".encode(), item[0])


async def _transact(stream: AsyncStream, events: Sequence[tuple[str, str]]) -> None:
    async with stream.transaction(deadline_s=5.0) as transaction:
        for key, tag in events:
            await transaction.write(f"{key}|{tag}".encode(), key)


async def _cut(stream: AsyncStream) -> None:
    await stream.truncate(await stream.tail())


ACTORS: dict[str, tuple[Callable[[Actor, int], Awaitable[None]], int]] = {
    "log": (append_and_truncate, 12),
    "short": (live_and_die, 6),
    "merge": (merge, 4),
    "erased": (adopt_and_erase, 4),
    "table": (change_table, 10),
    "stream": (use_stream, 8),
}


async def live(store: Runtime, journal: Journal, belief: Belief, *, life: int, seed: int, scale: float = 1.0) -> None:
    """Look at what earlier lives have left, tell the journal, and work. Ends when all actors have ended or failed."""
    seen = await observe(store, belief.subjects)
    for actor, subject in belief.subjects.items():
        found = plain(seen[actor])
        index = subject.matching(found)
        if index is None:
            journal.broken(actor, "a later life finds what cannot be")
            return
        subject.resolve(index)
        journal.resolve(actor, index)
    work = []
    for name, (act, count) in ACTORS.items():
        known = belief.subjects.get(name)
        state: State = {} if known is None else known.states[known.low]
        actor_of = Actor(name, life, store, journal, random.Random(f"{seed}/{life}/{name}"), state)
        work.append(_until_stopped(act(actor_of, max(1, round(count * scale)))))
    await asyncio.gather(*work)


async def _until_stopped(work: Awaitable[None]) -> None:
    try:
        await work
    except (Stopped, PenstockError, OSError):
        # The journal reports it; reads between operations may fail alike once the store is offline.
        return
