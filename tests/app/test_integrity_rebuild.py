"""From tier 2 alone: what was flushed is there again, and what is not is said."""

import asyncio
import shutil
from pathlib import Path
from uuid import UUID

import pytest
from integrity_world import (
    SEGMENTS,
    STREAM,
    Contents,
    append,
    block,
    built,
    content,
    fill,
    lose_log_and_metadata,
    running,
    seen,
    snapshot,
    stay,
)

from penstock.app.integrity.rebuild import rebuild
from penstock.model.damage import DamageKind
from penstock.model.errors import CorruptDataError, DirectoryInUseError, InvalidArgumentError, SegmentSealedError
from penstock.model.names import segment_name
from penstock.model.segments import even_ranges


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    data = tmp_path_factory.mktemp("pristine") / "store"
    return data, built(data)


@pytest.fixture
def old(pristine, tmp_path: Path):
    """A store's directory without log and metadata, and what was in it."""
    data, before = pristine
    shutil.copytree(data, tmp_path / "old", ignore=shutil.ignore_patterns("wal", "metadata"))
    return before


def rebuilt(place: Path, data: Path, **more):
    report = asyncio.run(rebuild(str(place), data, **more))
    stay(data)
    return report


def test_all_that_was_flushed_is_a_working_store_again(tmp_path: Path, old: Contents) -> None:
    before = old
    files = snapshot(tmp_path / "old")
    report = rebuilt(tmp_path / "old", tmp_path / "new")
    assert (report.lost, report.damage, report.streams.made) == ([], [], [])
    assert report.is_complete, report.as_json()
    assert snapshot(tmp_path / "old") == files
    after = seen(tmp_path / "new")
    assert after == before
    assert after.head == {0: 2997 * 30, 1: 2997 * 3, 2: 0}
    assert len(after.segments) >= 12
    assert any(events for events in after.events.values())


def test_a_rebuilt_store_goes_on(tmp_path: Path, old: Contents) -> None:
    before = old
    asyncio.run(rebuild(str(tmp_path / "old"), tmp_path / "new"))

    async def go_on() -> str:
        async with running(tmp_path / "new") as runtime:
            # A writer of the old store learns what is stored, and follows to the new segments.
            assert (
                await runtime.segments.setup_append(SEGMENTS[2], UUID(int=7))
                == before.numbers[SEGMENTS[2], UUID(int=7)]
            )
            with pytest.raises(SegmentSealedError):
                await append(runtime, SEGMENTS[2], block(41))
            current = await runtime.controller.layout.current(STREAM)
            assert [item.keys for item in current] == list(even_ranges(3))
            name = segment_name(STREAM, current[2].segment)
            assert await append(runtime, name, block(41)) == 0
            await runtime.segments.flush()
            await runtime.controller.streams.seal(STREAM)
        return name

    new = asyncio.run(go_on())
    after = seen(tmp_path / "new")
    assert after.segments.keys() == before.segments.keys()
    assert {name: found[:2] for name, found in after.segments.items()} == {
        name: found[:2] for name, found in before.segments.items()
    }
    # And once more, from the new store's own tier 2.
    lose_log_and_metadata(tmp_path / "new")
    report = rebuilt(tmp_path / "new", tmp_path / "newest")
    assert report.damage == []
    assert seen(tmp_path / "newest").segments == after.segments

    async def read() -> bytes:
        async with running(tmp_path / "newest") as runtime:
            return await content(runtime, new, 0, (await runtime.segments.info(new)).length)

    assert asyncio.run(read()) == block(41)


def test_bytes_of_the_log_alone_are_told_and_writers_know_what_is_stored(tmp_path: Path) -> None:
    late = UUID(int=9)

    async def behind(runtime) -> None:
        for number in range(5):
            await append(runtime, SEGMENTS[1], block(100 + number))
        await append(runtime, SEGMENTS[1], block(200), writer=late, count=3)
        for container in runtime.segments.containers:
            await container.checkpointer.checkpoint()

    before = built(tmp_path / "old", then=behind)
    lose_log_and_metadata(tmp_path / "old")
    report = rebuilt(tmp_path / "old", tmp_path / "new")
    (lost,) = report.lost
    start, data, _ = before.segments[SEGMENTS[1]]
    assert lost == {
        "segment": SEGMENTS[1],
        "start": start + len(data),
        "bytes": 6 * 2997,
        "events": 8,
        "writers_set_back": 2,
    }
    assert not report.is_complete

    async def ask() -> None:
        async with running(tmp_path / "new") as runtime:
            info = await runtime.segments.info(SEGMENTS[1])
            assert (info.length, info.event_count) == (start + len(data), before.events[SEGMENTS[1]])
            known = before.numbers[SEGMENTS[1], UUID(int=7)]
            assert await runtime.segments.setup_append(SEGMENTS[1], UUID(int=7)) == known
            assert await runtime.segments.setup_append(SEGMENTS[1], late) < 0

    asyncio.run(ask())
    assert seen(tmp_path / "new") == before


def test_writers_numbers_go_with_the_bytes_that_were_tiered_last(tmp_path: Path) -> None:
    """Tiered again after the checkpoint that recorded bytes of the log alone."""

    async def behind(runtime) -> None:
        await append(runtime, SEGMENTS[0], block(100))
        for container in runtime.segments.containers:
            await container.checkpointer.checkpoint()
        await runtime.segments.flush()

    before = built(tmp_path / "old", then=behind)
    lose_log_and_metadata(tmp_path / "old")
    report = rebuilt(tmp_path / "old", tmp_path / "new")
    assert report.is_complete
    after = seen(tmp_path / "new")
    assert after.numbers[SEGMENTS[0], UUID(int=7)] == before.numbers[SEGMENTS[0], UUID(int=7)] + 1
    assert after.segments[SEGMENTS[0]][1] == before.segments[SEGMENTS[0]][1] + block(100)


def test_damaged_blocks_are_refused_in_the_new_store_too_and_what_lies_around_is_read(
    tmp_path: Path, old: Contents
) -> None:
    before = old
    chunks = sorted(path for path in (tmp_path / "old/chunks").rglob("*") if path.suffix != ".idx")
    victim = max(chunks, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 16
    victim.write_bytes(data)
    report = rebuilt(tmp_path / "old", tmp_path / "new")
    (found,) = report.damage
    assert found.kind is DamageKind.BLOCK
    assert found.place == f"{victim.parent.name}/{victim.name}"

    async def read() -> None:
        async with running(tmp_path / "new") as runtime:
            start, whole, _ = before.segments[found.segment]
            with pytest.raises(CorruptDataError):
                await runtime.segments.read(found.segment, max(found.start, start), 100, wait=False)
            behind = await runtime.segments.read(found.segment, found.end, 100, wait=False)
            assert b"".join(bytes(part) for part in behind.parts)[:100] == whole[found.end - start :][:100]

    asyncio.run(read())


def test_a_chunk_that_is_gone_is_told_with_its_range(tmp_path: Path, old: Contents) -> None:
    victim = max(
        (path for path in (tmp_path / "old/chunks").rglob("*") if path.suffix != ".idx"), key=lambda p: p.stat().st_size
    )
    victim.unlink()
    report = rebuilt(tmp_path / "old", tmp_path / "new")
    (found,) = report.damage
    assert found.kind is DamageKind.CHUNK
    assert found.end - found.start > 0


def test_a_damaged_journal_gives_what_came_before_it(tmp_path: Path, old: Contents) -> None:
    for journal in (tmp_path / "old/catalogue").rglob("j-*"):
        data = bytearray(journal.read_bytes())
        data[-3] ^= 1
        journal.write_bytes(data)
    report = rebuilt(tmp_path / "old", tmp_path / "new")
    assert not report.is_complete
    assert all(item.kind is DamageKind.CATALOGUE for item in report.damage)
    assert sum(item["lost_batches"] for item in report.containers) > 0
    seen_streams = {item["stream"] for item in report.streams.streams}
    assert "demo/clicks" in seen_streams


def test_a_container_without_its_catalogue_is_told(tmp_path: Path, old: Contents) -> None:
    shutil.rmtree(tmp_path / "old/catalogue/1")
    report = rebuilt(tmp_path / "old", tmp_path / "new")
    assert [item["recovered"] for item in report.containers] == [True, False, True, True]
    assert report.unnamed_chunks
    assert all(name.startswith("1/") for name in report.unnamed_chunks)


def test_refusals(tmp_path: Path, old: Contents) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="not empty"):
        rebuilt(tmp_path / "old", tmp_path / "full")
    with pytest.raises(InvalidArgumentError, match="directory holds no store"):
        rebuilt(tmp_path / "full", tmp_path / "new")
    shutil.rmtree(tmp_path / "old/catalogue")
    with pytest.raises(CorruptDataError, match="no catalogue"):
        rebuilt(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.rebuilding").exists()

    async def while_it_runs() -> None:
        async with running(tmp_path / "live"):
            with pytest.raises(DirectoryInUseError):
                await rebuild(str(tmp_path / "live"), tmp_path / "new")

    asyncio.run(while_it_runs())


def test_a_shared_directory_is_enough(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    before = built(tmp_path / "old", tier2=str(tmp_path / "tier"))
    shutil.rmtree(tmp_path / "old")
    report = rebuilt(tmp_path / "tier", tmp_path / "new")
    assert report.is_complete, report.as_json()
    assert seen(tmp_path / "new") == before


def test_the_new_store_may_have_its_tier_2_elsewhere(tmp_path: Path, old: Contents) -> None:
    before = old
    (tmp_path / "tier").mkdir()
    report = rebuilt(tmp_path / "old", tmp_path / "new", tier2=str(tmp_path / "tier"))
    assert report.is_complete
    assert any((tmp_path / "tier/chunks").rglob("*.idx"))
    assert seen(tmp_path / "new") == before


@pytest.mark.parametrize("is_behind", [False, True], ids=["closed", "killed"])
def test_operations_that_only_the_log_of_the_store_holds_are_told(tmp_path: Path, is_behind: bool) -> None:
    """Without a start in between, the catalogue does not have them, and neither has the new store."""

    async def work() -> Path:
        async with running(tmp_path / "old") as runtime:
            await fill(runtime)
            await runtime.segments.flush()
            if is_behind:
                await append(runtime, SEGMENTS[1], block(100), count=3)
                # What a kill would leave.
                shutil.copytree(tmp_path / "old", tmp_path / "killed", ignore=shutil.ignore_patterns("LOCK"))
        return tmp_path / ("killed" if is_behind else "old")

    report = rebuilt(asyncio.run(work()), tmp_path / "new")
    assert report.damage == []
    assert report.is_complete is not is_behind
    assert sum(item["operations"] for item in report.as_json()["log_not_applied"]) >= (1 if is_behind else 0)
    assert bool(report.log) is is_behind
