"""Segments with secrets, and where their bytes still are."""

from __future__ import annotations

from uuid import UUID

from store_world import World

from penstock.codec.events import frame_events
from penstock.ports.data.segments import NO_EVENT, Append

NAME = "s/t/0.#epoch.0"
SECRET = b"canary-7f3a"


async def write(store, name, events, *, per_append=3):
    """Append events in blocks; returns where each begins."""
    writer = UUID(int=9)
    previous = await store.setup_append(name, writer)
    offsets, at = [], (await store.info(name)).length
    for event in events:
        offsets.append(at)
        at += 8 + len(event)
    number = 0 if previous == NO_EVENT else previous
    for start in range(0, len(events), per_append):
        part = events[start : start + per_append]
        await store.append(
            Append(
                segment=name,
                writer=writer,
                data=frame_events(part),
                event_number=number + len(part),
                event_count=len(part),
                previous=previous,
            )
        )
        previous = number = number + len(part)
    return offsets


async def whole(store, name):
    info = await store.info(name)
    found, at = bytearray(), info.start_offset
    while at < info.length:
        read = await store.read(name, at, 1 << 20)
        part = b"".join(read.parts)
        found += part
        at += len(part)
    return bytes(found)


async def erase(store, name, offsets, erasure="e1"):
    ranges = await store.event_ranges(name, offsets)
    done = await store.erase(name, ranges, erasure=erasure)
    await store.wipe_log()
    return ranges, done


def holds(made: World, needle: bytes) -> list[str]:
    """Which of the disks hold the bytes."""
    found = [f"chunk {name}" for name, chunk in made.chunks._chunks.items() if needle in bytes(chunk.data)]
    found += [f"synced {name}" for name, chunk in made.chunks._chunks.items() if needle in (chunk.durable or b"")]
    found += [f"deleted {name}" for name, chunk in (made.chunks._deleted or {}).items() if needle in chunk.durable]
    found += [f"frame {address}" for address, frame in made.log_state.frames if needle in frame]
    found += [
        f"cache {entry.start}"
        for container in made.store.containers
        for segment in container.segments.loaded()
        for entry in segment.cache._entries
        if entry.data is not None and needle in bytes(entry.data)
    ]
    found += [
        f"block {key}"
        for container in made.store.containers
        for key, data in container.blocks._kept.items()
        if needle in bytes(data)
    ]
    return found


def blanked(data: bytes, ranges) -> bytes:
    out = bytearray(data)
    for start, end in ranges:
        out[start:end] = bytes(end - start)
    return bytes(out)
