"""Actors on their own segments and tables: conditional appends, merges, leases, counters, creations, deletions."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from uuid import UUID

from penstock.client.retry import RETRYABLE
from penstock.codec.events import frame_events
from penstock.codec.store.chunk_builder import ChunkBuilder
from penstock.codec.store.chunk_index import index_name
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    CorruptDataError,
    InternalError,
    KeyNotFoundError,
    NotFoundError,
    SegmentNotFoundError,
    SegmentSealedError,
    TruncatedError,
)
from penstock.model.names import transaction_segment_name
from penstock.ports.data.imports import ChunkImports, ImportedChunk
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.service import SegmentService
from penstock.ports.data.tables import KEY_ABSENT, TableEntry, TablePut
from penstock.testing.simulation.actors import SCOPE, Env, RawWriter, event, read_raw
from penstock.testing.simulation.history import Increment, Outcome

_LEASE_MS = 6 * 3_600_000
_PAIR = (b"pair-a", b"pair-b")


async def create(env: Env, segments: SegmentService, name: str) -> None:
    """Create a segment. Repeats until it succeeds."""

    async def attempt() -> None:
        try:
            await segments.create_segment(name)
        except AlreadyExistsError:
            env.history.note(f"segment exists {name}")

    await env.insist(attempt)
    env.history.fact(name, "created")


async def look(env: Env, segments: SegmentService, name: str) -> None:
    begun = env.loop.time()
    try:
        info = await segments.info(name)
    except RETRYABLE:
        return
    except SegmentNotFoundError:
        env.history.sight(name, begun, exists=False)
        return
    env.history.sight(name, begun, exists=True, sealed=info.sealed, start=info.start_offset, length=info.length)


async def append_conditionally(env: Env, name: str, segment: str) -> None:
    """Conditional appends to a shared segment: each expects the length that the actor saw."""
    rng = env.rng(name)
    segments = env.segments(name)
    life = 0
    while not env.stopping.is_set():
        life += 1
        writer = RawWriter(env, segments, segment, f"{name}.{life}", rng)
        for _ in range(rng.randrange(1, 20)):
            await writer.append(conditional=rng.random() < 0.7)
            await env.pause(rng, factor=2)
            if env.stopping.is_set():
                return


async def read_segment(env: Env, name: str, segment: str) -> None:
    """Reads a segment from its beginning and waits at the tail, repeatedly."""
    rng = env.rng(name)
    segments = env.segments(name)
    count = 0
    while not env.stopping.is_set():
        count += 1
        reading = env.history.reading(segment, f"{name}.{count}")
        try:
            async with asyncio.timeout(env.config.think_s * 60 * rng.random() + 0.5):
                await read_raw(env, segments, segment, reading, whole=False)
        except TimeoutError:
            await env.pause(rng)


async def merge_segments(env: Env, name: str, target: str) -> None:
    """Fills segments and merges each into the target exactly once, even if answers are lost."""
    rng, history = env.rng(name), env.history
    segments = env.segments(name)
    count = 0
    while not env.stopping.is_set():
        count += 1
        source = transaction_segment_name(target, UUID(int=rng.getrandbits(128), version=4))
        await create(env, segments, source)
        group = history.group(f"{name}.{count}")
        writer = RawWriter(env, segments, source, group.name, rng)
        for _ in range(rng.randrange(1, 5)):
            await writer.append(stream=target, group=group, give_up=False)
        await env.pause(rng, factor=rng.choice((0.1, 3, 10)))
        history.fact(source, "deleting")
        history.deciding(group, moment="merge")
        await env.insist(partial(segments.merge, target, source))
        history.decided(group, Outcome.OK)
        if rng.random() < 0.3:
            await env.insist(partial(segments.merge, target, source))
        history.fact(source, "deleted")
        await look(env, segments, source)
        await env.pause(rng, factor=5)


async def import_chunks(env: Env, name: str, target: str) -> None:
    """Writes chunks directly to tier 2, as Spark's executors do. A transaction's segment adopts them, and is merged
    into the target exactly once. Some attempts are not chosen, and leave their chunks."""
    rng, history = env.rng(name), env.history
    segments = env.segments(name)
    if not isinstance(segments, ChunkImports):
        raise InternalError("a simulated store does not adopt chunks")
    count = 0
    while not env.stopping.is_set():
        count += 1
        source = transaction_segment_name(target, UUID(int=rng.getrandbits(128), version=4))
        await create(env, segments, source)
        group = history.group(f"{name}.{count}")
        writes = [
            history.write(target, group.name, number, "k", data, group=group, piece=source)
            for number in range(1, rng.randrange(2, 9))
            for data in (event(env.config, target, group.name, number, "k", rng),)
        ]
        for _ in range(rng.choice((0, 0, 1, 2))):
            # All attempts of one task write the same events.
            lost = writes[: rng.randrange(1, len(writes) + 1)]
            await write_chunks(env, segments, source, [write.data for write in lost], rng)
        while (chunks := await write_chunks(env, segments, source, [write.data for write in writes], rng)) is None:
            await env.pause(rng, factor=0.3)
        await env.pause(rng, factor=rng.choice((0.1, 1, 3)))
        length = 0
        for chunk in chunks:
            length = await env.insist(partial(segments.adopt_chunks, source, length, [chunk]))
            if rng.random() < 0.3:
                await env.insist(partial(segments.adopt_chunks, source, length - chunk.size_bytes, [chunk]))
        for write in writes:
            history.acknowledged(write)
        history.fact(source, "deleting")
        history.deciding(group, moment="merge")
        await env.insist(partial(segments.merge, target, source))
        history.decided(group, Outcome.OK)
        history.fact(source, "deleted")
        await look(env, segments, source)
        await env.pause(rng, factor=5)


async def write_chunks(
    env: Env, segments: ChunkImports, source: str, events: list[bytes], rng: random.Random
) -> list[ImportedChunk] | None:
    """One attempt: its own location, and some chunks, each synced before its sidecar. None: it ended with the machine.

    Raises SegmentNotFoundError if the transaction has ended.
    """
    grant = await env.insist(partial(segments.grant_import, source))
    storage = env.cluster.chunks
    builder = ChunkBuilder(block_bytes=rng.choice((1, 100)), chunk_bytes=rng.choice((1, 200, 10_000)))
    built = [builder.add(frame_events([data]), 1) for data in events]
    made: list[ImportedChunk] = []
    for number, item in enumerate(item for item in [*built, builder.finish()] if item is not None):
        name = f"{grant.prefix}{number:x}"
        try:
            for each, parts in ((name, item.parts), (index_name(name), (item.index,))):
                await storage.append(each, 0, parts)
                await storage.sync(each)
        except (*RETRYABLE, OSError, NotFoundError):
            return None
        made.append(ImportedChunk.of(name, item))
    return made


async def live_segments(env: Env, name: str) -> None:
    """Create, fill, seal, truncate and delete segments. Every later query must show the acknowledged changes."""
    rng, history = env.rng(name), env.history
    segments = env.segments(name)
    old: list[str] = []
    count = 0
    while not env.stopping.is_set():
        count += 1
        segment = f"{SCOPE}/{name}-{count}"
        await create(env, segments, segment)
        writer = RawWriter(env, segments, segment, segment, rng)
        ends = [0]
        for _ in range(rng.randrange(6)):
            write = await writer.append()
            if write is not None and write.offset is not None:
                ends.append(write.offset + 8 + len(write.data))
            await env.pause(rng)
        if rng.random() < 0.7:
            history.fact(segment, "sealed", await env.insist(partial(segments.seal, segment)))
            try:
                await segments.append(_late(segment, writer))
                history.violation("append behind a seal", segment)
            except (SegmentSealedError, *RETRYABLE):
                await look(env, segments, segment)
        if rng.random() < 0.5:
            cut = rng.choice(ends)
            await env.insist(partial(segments.truncate, segment, cut))
            history.fact(segment, "truncated", cut)
            await look(env, segments, segment)
        await env.pause(rng, factor=3)
        old.append(segment)
        if rng.random() < 0.6:
            await _delete(env, segments, old[rng.randrange(len(old))])
        await look(env, segments, old[rng.randrange(len(old))])


def _late(segment: str, writer: RawWriter) -> Append:
    stranger = UUID(int=writer.rng.getrandbits(128), version=4)
    return Append(segment=segment, writer=stranger, data=b"late", event_number=1, previous=NO_EVENT)


async def _delete(env: Env, segments: SegmentService, segment: str) -> None:
    env.history.fact(segment, "deleting")

    async def attempt() -> None:
        try:
            await segments.delete(segment)
        except SegmentNotFoundError:
            env.history.note(f"segment is gone {segment}")

    await env.insist(attempt)
    env.history.fact(segment, "deleted")


async def lease_chunks(env: Env, name: str) -> None:
    """Leases chunks, truncates their segment, and still reads the chunks."""
    rng, again = env.rng(name), env.rng(f"{name}/again")
    segments = env.cluster.local
    count = 0
    while not env.stopping.is_set():
        count += 1
        segment = f"{SCOPE}/{name}-{count}"
        await create(env, segments, segment)
        writer = RawWriter(env, segments, segment, segment, rng)
        for _ in range(rng.randrange(3, 10)):
            await writer.append()
        content = bytearray()
        info = await env.insist(partial(segments.info, segment))
        while len(content) < info.length:
            found = await env.insist(partial(segments.read, segment, len(content), 1 << 20, wait=False))
            content += b"".join(found.parts)
        for _ in range(50):
            ranges = await env.insist(partial(segments.chunk_ranges, segment, 0, info.length))
            if ranges or env.stopping.is_set():
                break
            await asyncio.sleep(0.2)
        lease = UUID(int=rng.getrandbits(128), version=4)
        until_ms = env.cluster.clock.now_ms() + _LEASE_MS
        take = partial(segments.lease_chunks, [segment], lease, until_ms=until_ms)
        await env.insist(take)
        if again.random() < 0.5:
            # Release the lease and take it again at once, as two batches of one query do.
            await env.insist(partial(segments.release_lease, lease))
            await env.insist(take)
        ranges = await env.insist(partial(segments.chunk_ranges, segment, 0, info.length))
        if rng.random() < 0.7:
            await env.insist(partial(segments.truncate, segment, info.length))
            env.history.fact(segment, "truncated", info.length)
        else:
            await _delete(env, segments, segment)
        for _ in range(rng.randrange(1, 6)):
            await env.pause(rng, factor=10)
            for item in ranges:
                await _read_leased(env, segment, item.name, bytes(content[item.start_offset : item.end_offset]))
        await env.insist(partial(segments.release_lease, lease))


async def _read_leased(env: Env, segment: str, chunk: str, expected: bytes) -> None:
    try:
        found = await env.insist(lambda: env.cluster.chunks.read(chunk, 0, len(expected)))
    except NotFoundError:
        env.history.violation("leased chunk deleted", f"{segment} {chunk}")
        return
    if found != expected:
        env.history.violation("leased chunk changed", f"{segment} {chunk}")


async def count_in_table(env: Env, name: str, table: str) -> None:
    """Counters that several actors increase by compare-and-set; two of them always change together."""
    rng = env.rng(name)
    segments = env.segments(name)

    async def make() -> None:
        try:
            await segments.create_table(table)
        except AlreadyExistsError:
            env.history.note(f"table exists {table}")

    await env.insist(make)
    while not env.stopping.is_set():
        keys = _PAIR if rng.random() < 0.4 else (f"key{rng.randrange(3)}".encode(),)
        begun, scan = env.loop.time(), rng.random() < 0.3
        try:
            entries = await _read_counters(segments, table, keys, scan=scan)
        except RETRYABLE:
            await env.pause(rng)
            continue
        values = {entry.key.decode(): _value(entry) for entry in entries}
        env.history.looked(table, values, begun)
        # A scan may have several pages, so its entries may be of different times.
        if not scan and len(set(values.values())) > 1:
            env.history.violation("torn batch", f"{table} {values}")
        if rng.random() < 0.7:
            await _raise_counters(env, segments, table, entries)
        await env.pause(rng, factor=2)


async def _read_counters(
    segments: SegmentService, table: str, keys: tuple[bytes, ...], *, scan: bool
) -> list[TableEntry]:
    if not scan:
        return list(await segments.table_get(table, keys))
    found = {entry.key: entry for entry in await segments.table_scan(table, after=None, limit=100)}
    return [found.get(key, TableEntry(key=key, value=b"", version=KEY_ABSENT)) for key in keys]


def _value(entry: TableEntry) -> int:
    return int(entry.value or b"0")


async def _raise_counters(env: Env, segments: SegmentService, table: str, entries: list[TableEntry]) -> None:
    history = env.history
    steps: list[Increment] = [history.increment(table, entry.key.decode(), _value(entry) + 1) for entry in entries]
    puts = [
        TablePut(key=entry.key, value=str(step.value).encode(), version=entry.version)
        for entry, step in zip(entries, steps, strict=True)
    ]
    try:
        versions = await segments.table_update(table, puts)
    except (BadKeyVersionError, KeyNotFoundError):
        outcome = Outcome.FAILED
    except RETRYABLE:
        outcome = Outcome.UNKNOWN
    else:
        outcome = Outcome.OK
        if any(version <= entry.version for version, entry in zip(versions, entries, strict=True)):
            history.violation("version went back", f"{table} {[entry.version for entry in entries]} {list(versions)}")
    for step in steps:
        history.incremented(step, outcome)


async def look_at_counters(env: Env, table: str) -> None:
    """At the end: read every counter once more."""
    segments = env.segments("last-look")
    begun = env.loop.time()
    entries = await env.insist(lambda: segments.table_scan(table, after=None, limit=100))
    env.history.looked(table, {entry.key.decode(): _value(entry) for entry in entries}, begun)


async def read_whole(env: Env, segment: str) -> None:
    """At the end: read the whole segment once more."""
    reading = env.history.reading(segment, "final")
    reading.segments = [segment]
    try:
        await read_raw(env, env.segments(f"final/{segment}"), segment, reading, whole=True)
    except (CorruptDataError, TruncatedError, NotFoundError) as error:
        env.history.violation("unreadable", f"{segment}: {error}")
    reading.complete = reading.final = True


def table_names(rng: random.Random) -> list[str]:
    return [f"{SCOPE}/table-{number}" for number in range(rng.randrange(1, 3))]
