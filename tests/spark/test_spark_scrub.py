"""The scrub by tasks: what the store's own scrub reports of the same chunks, and which streams are affected."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from job_world import HereSpark
from spark_world import World, keyed, served

import penstock
from penstock.model.cuts import StreamCut
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.data.chunks import ChunkRange
from penstock.ports.integrity import SCRUB_MAX_BYTES
from penstock.spark.connect import Link, Services, close_links, dial, link
from penstock.spark.jobs.scrub import ScrubOutcome, ScrubRequest, scrub
from penstock.spark.jobs.scrub_task import Findings, ScrubTask, Stretch
from penstock.spark.reading.subscription import subscribe

OF_CHUNKS = (DamageKind.BLOCK, DamageKind.CHUNK, DamageKind.INDEX)


BREAK: dict[str, Callable[[ChunkRange], object]] = {
    "a flipped bit": lambda chunk: flip(location(chunk), location(chunk).stat().st_size // 2),
    "cut short": lambda chunk: location(chunk).write_bytes(location(chunk).read_bytes()[:-100]),
    "missing": lambda chunk: location(chunk).unlink(),
    "a flipped bit in the sidecar": lambda chunk: flip(sidecar(chunk), 60),
    "no sidecar": lambda chunk: sidecar(chunk).unlink(),
    "a short sidecar": lambda chunk: sidecar(chunk).write_bytes(sidecar(chunk).read_bytes()[:48]),
}


OTHERS = ("sound", "scaled", "read", "erased")


@dataclass(frozen=True)
class Store:
    """A served store whose every stream is a test's own; all of it is tiered, and known to its metadata on disk."""

    directory: Path
    address: str
    world: World
    streams: dict[str, StreamName]

    def scrubbed(self, **more: Any) -> ScrubOutcome:
        return scrub(HereSpark(), ScrubRequest(controller=self.address, **more))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    directory = tmp_path_factory.mktemp("store")
    with served(directory) as address:
        try:
            world = World(link(dial, address))
            found = Store(directory, address, world, {name: filled(world, name) for name in (*BREAK, *OTHERS)})
            scaled = found.streams["scaled"]
            head = {segment: chunk.blocks[1].end_offset for segment, chunk in first_chunks(world, scaled).items()}
            world.scale(scaled, 4)
            world.write(scaled, keyed(9000, 14_000))
            world.wait_tiered(scaled)
            world.truncate(scaled, StreamCut(scaled, head))
            chunks = found.scrubbed().checked["chunks"]
            world.link.run(lambda services: _known(services, chunks))
            yield found
        finally:
            close_links()


async def _known(services: Services, chunks: int) -> None:
    """Return once a checkpoint has written so many chunks to the metadata, which the scrub reads."""
    segments: Any = services.segments
    async with asyncio.timeout(30):
        while (await pages(segments))[0].get("chunks", 0) < chunks:
            await asyncio.sleep(0.2)


async def pages(segments: Any) -> tuple[dict[str, int], list[Damage]]:
    checked: dict[str, int] = {}
    found: list[Damage] = []
    cursor: str | None = None
    while True:
        page = await segments.scrub(cursor, SCRUB_MAX_BYTES)
        found += page.damage
        for name, amount in page.checked.items():
            checked[name] = checked.get(name, 0) + amount
        cursor = page.cursor
        if cursor is None:
            return checked, found


def filled(world: World, name: str) -> StreamName:
    stream = world.create("".join(filter(str.isalpha, name)), 1 if name == "read" else 2)
    world.write(stream, keyed(0, 4000))
    world.wait_tiered(stream)
    return stream


def chunks_of(world: World, stream: StreamName) -> list[ChunkRange]:
    async def listing(services: Services) -> list[ChunkRange]:
        tail = await services.controller.cuts.tail(stream)
        head = await services.controller.cuts.head(stream)
        return [
            chunk
            for segment, end in sorted(tail.positions.items())
            for chunk in await services.segments.chunk_ranges(
                segment_name(stream, segment), head.positions.get(segment, 0), end
            )
        ]

    return world.link.run(listing)


def flip(path: Path, at: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def told_by_the_store(world: World, chunks: Sequence[ChunkRange]) -> list[dict[str, Any]]:
    """What the store's own scrub says of these chunks."""

    async def ask(services: Services) -> list[Damage]:
        return (await pages(services.segments))[1]

    names = {chunk.name for chunk in chunks}
    return in_one_order(
        item
        for item in world.link.run(ask)
        if item.kind in OF_CHUNKS and item.place.removesuffix(".idx") in names and "no access" not in item.why
    )


def in_one_order(damage: Any) -> list[dict[str, Any]]:
    return sorted((item.as_json() for item in damage), key=lambda item: json.dumps(item, sort_keys=True))


def location(chunk: ChunkRange) -> Path:
    assert chunk.location is not None
    return Path(chunk.location)


def sidecar(chunk: ChunkRange) -> Path:
    return Path(f"{chunk.location}.idx")


def test_a_sound_stream_is_sound(store: Store) -> None:
    chunks = chunks_of(store.world, store.streams["sound"])
    narrow = store.scrubbed(stream=store.streams["sound"])
    assert narrow.findings == []
    assert narrow.as_json()["sound"]
    assert narrow.checked["chunks"] == narrow.checked["indexes"] == len(chunks)
    assert narrow.checked["blocks"] == sum(len(chunk.blocks) for chunk in chunks)
    looked = scrub(HereSpark(), ScrubRequest(controller=store.address, scope="plant"), dry_run=True)
    assert looked.checked["streams"] >= len(store.streams)
    assert not looked.as_json()["finished"]


@pytest.mark.parametrize("name", list(BREAK))
def test_damage_is_told_as_the_store_tells_it(store: Store, name: str, tmp_path: Path) -> None:
    stream = store.streams[name]
    chunks = chunks_of(store.world, stream)
    chunk = max(chunks, key=lambda item: len(item.blocks))
    BREAK[name](chunk)
    outcome = store.scrubbed(stream=stream)
    if location(chunk).exists() and sidecar(chunk).exists():
        assert in_one_order(outcome.damage) == told_by_the_store(store.world, chunks)
    else:  # the store that wrote a file has it open, and reads it although its name is gone
        copy = tmp_path / "store"
        shutil.copytree(store.directory, copy)
        with served(copy) as address, closing(Link(dial, address)) as own:
            assert in_one_order(outcome.damage) == told_by_the_store(World(own), chunks)
    assert outcome.findings
    assert outcome.damage[0].place.startswith(chunk.name)
    assert not outcome.as_json()["sound"]


def test_many_flipped_bits_are_all_found_after_a_truncation_and_a_scale(store: Store) -> None:
    rng = random.Random(5)
    stream = store.streams["scaled"]
    chunks = [*first_chunks(store.world, stream).values(), *chunks_of(store.world, stream)]
    assert len(chunks) >= 6
    for chunk in rng.sample(chunks, 5):
        flip(location(chunk), rng.randrange(location(chunk).stat().st_size), rng.randrange(8))
    outcome = store.scrubbed(scope="plant")
    own = {chunk.name for chunk in chunks}
    found = in_one_order(item for item in outcome.damage if item.place.removesuffix(".idx") in own)
    assert found == told_by_the_store(store.world, chunks)
    assert len(found) >= 3


def first_chunks(world: World, stream: StreamName) -> dict[SegmentId, ChunkRange]:
    """The chunks of the first two segments that lie across the head."""

    async def listing(services: Services) -> dict[SegmentId, ChunkRange]:
        found: dict[SegmentId, ChunkRange] = {}
        for segment in (SegmentId(0), SegmentId(1)):
            name = segment_name(stream, segment)
            start = (await services.segments.info(name)).start_offset
            found[segment] = (await services.segments.chunk_ranges(name, start, start + 1))[0]
        return found

    return world.link.run(listing)


def test_it_says_which_events_and_which_subscribers_lose(store: Store, tmp_path: Path) -> None:
    stream = store.streams["read"]
    chunk = max(chunks_of(store.world, stream), key=lambda item: len(item.blocks))
    block = chunk.blocks[1]

    async def register(services: Services) -> None:
        await subscribe(services, stream, "behind", await services.controller.cuts.head(stream))
        await subscribe(services, stream, "past", StreamCut(stream, {SegmentId(0): block.end_offset}))
        await subscribe(services, stream, "ahead", await services.controller.cuts.tail(stream))

    store.world.link.run(register)
    flip(location(chunk), block.start_offset - chunk.start_offset + 5)
    outcome = store.scrubbed(stream=stream, findings=tmp_path / "findings.parquet")
    (entry,) = outcome.affected
    assert entry == {
        "stream": str(stream),
        "segment": segment_name(stream, SegmentId(0)),
        "ranges": [[block.start_offset, block.end_offset]],
        "events": block.event_count,
        "subscribers": ["plant/behind"],
    }
    (row,) = pq.read_table(tmp_path / "findings.parquet").to_pylist()
    assert (row["kind"], row["stream"], row["events"]) == ("block", str(stream), block.event_count)
    assert row["subscribers"] == ["plant/behind"]


def test_an_erasure_is_no_damage(store: Store) -> None:
    stream = store.streams["erased"]
    with penstock.connect(store.address) as client:
        client.stream(stream).erase({SegmentId(0): [0], SegmentId(1): [0]}, who="ann", why="request 1")
    assert store.scrubbed(stream=stream).findings == []
    assert told_by_the_store(store.world, chunks_of(store.world, stream)) == []


def test_what_a_second_look_does_not_find_is_not_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = store.streams["sound"]
    chunk = chunks_of(store.world, stream)[0]
    looked = ScrubTask.verify

    def mended(task: ScrubTask, stretches: Sequence[Stretch]) -> Findings:
        found = looked(task, stretches)
        flip(location(chunk), 5)  # the second look sees what it was
        return found

    flip(location(chunk), 5)
    monkeypatch.setattr(ScrubTask, "verify", mended)
    assert store.scrubbed(stream=stream).findings == []
    flip(location(chunk), 5)


def test_what_cannot_be_scrubbed_is_refused_with_the_reason(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ScopeNotFoundError):
        store.scrubbed(scope="none")
    with pytest.raises(StreamNotFoundError):
        store.scrubbed(stream=StreamName("plant", "none"))
    (tmp_path / "there").touch()
    with pytest.raises(AlreadyExistsError):
        store.scrubbed(findings=tmp_path / "there")
    with pytest.raises(InvalidArgumentError, match="directory for the findings"):
        store.scrubbed(findings=tmp_path / "not" / "there")
    directory = location(chunks_of(store.world, store.streams["sound"])[0]).parent
    directory.rename(directory.with_name("away"))
    try:
        with pytest.raises(InvalidArgumentError, match="mount it"):
            store.scrubbed(scope="plant")
    finally:
        directory.with_name("away").rename(directory)
