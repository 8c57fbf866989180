"""A store of several workers from tier 2 alone; places that are not all of one store are refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from integrity_world import snapshot
from workers_disk import WORKERS, running
from workers_history import by_key, events, read_all, write

from penstock.app.integrity.rebuild import rebuild
from penstock.app.workers.layout import RECORD, load_layout, workers_of
from penstock.model.errors import DirectoryInUseError, InvalidArgumentError, PenstockError
from penstock.storage.machine.data_directory import DataDirectory

LINES = events("s/a", 1, 200)


async def fill(data: Path, tier2: Path | None = None, *, workers: int = WORKERS) -> None:
    async with running(data, tier2, workers=workers) as opened:
        await opened.store.create_stream("s/a", segments=4, create_scope=True)
        await write(opened, "s/a", LINES)
        await opened.tier()


def made(home: Path, *, elsewhere: bool) -> tuple[Path, Path | None]:
    tier2 = home / "tier2" if elsewhere else None
    if tier2 is not None:
        tier2.mkdir(parents=True)
    asyncio.run(fill(home / "data", tier2))
    return home / "data", tier2


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("inside"), elsewhere=False)[0]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tier 2 of a store whose data directory is lost."""
    data, tier2 = made(tmp_path_factory.mktemp("outside"), elsewhere=True)
    shutil.rmtree(data)
    assert tier2 is not None
    return tier2


def lose(data: Path) -> None:
    for worker in range(WORKERS):
        for part in ("wal", "metadata"):
            shutil.rmtree(data / "workers" / str(worker) / part)


def check(new: Path, tier2: Path | None = None) -> None:
    async def main() -> None:
        async with running(new, tier2) as opened:
            assert by_key(await read_all(opened, "s/a")) == by_key(LINES)
            await write(opened, "s/a", events("s/a", 2))
            assert by_key(await read_all(opened, "s/a")) == by_key([*LINES, *events("s/a", 2)])

    asyncio.run(main())


def test_tier_2_in_the_directory_is_enough(inside: Path, tmp_path: Path) -> None:
    shutil.copytree(inside, tmp_path / "old")
    lose(tmp_path / "old")
    before = snapshot(tmp_path / "old")
    report = asyncio.run(rebuild(str(tmp_path / "old"), tmp_path / "new"))
    assert report.is_complete, report.as_json()
    assert (report.workers, report.events) == (WORKERS, report.as_json()["events"])
    assert [item["events"] for item in report.streams.streams if item["stream"] == "s/a"] == [len(LINES)]
    assert snapshot(tmp_path / "old") == before
    check(tmp_path / "new")


def test_the_directory_may_have_lost_the_record_of_its_workers(inside: Path, tmp_path: Path) -> None:
    shutil.copytree(inside, tmp_path / "old")
    (tmp_path / "old" / RECORD).unlink()
    report = asyncio.run(rebuild(str(tmp_path / "old"), tmp_path / "new"))
    assert report.workers == WORKERS
    check(tmp_path / "new")


def test_tier_2_elsewhere_is_enough_and_the_new_store_has_its_own(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "tier2").mkdir()
    report = asyncio.run(rebuild(str(outside), tmp_path / "new", tier2=str(tmp_path / "tier2")))
    assert report.is_complete, report.as_json()
    assert not (tmp_path / "new" / "workers" / "0" / "chunks").exists()
    check(tmp_path / "new", tmp_path / "tier2")
    again = asyncio.run(rebuild(str(tmp_path / "new"), tmp_path / "newest"))
    assert again.workers == WORKERS
    check_again(tmp_path / "newest")


def check_again(new: Path) -> None:
    async def main() -> None:
        async with running(new) as opened:
            assert set(LINES) <= set(await read_all(opened, "s/a"))

    asyncio.run(main())


def test_a_rebuilt_store_keeps_its_number_of_workers(outside: Path, tmp_path: Path) -> None:
    asyncio.run(rebuild(str(outside), tmp_path / "new"))
    layout = load_layout(tmp_path / "new")
    assert layout is not None
    assert (layout.workers, workers_of(tmp_path / "new", None)) == (WORKERS, WORKERS)
    for other in (1, 2, 4):
        with pytest.raises(InvalidArgumentError, match="copy the streams to a new store") as refused:
            workers_of(tmp_path / "new", other)
        assert refused.value.fields["created_with"] == WORKERS


def refusal(place: Path, new: Path) -> PenstockError:
    before = snapshot(place)
    with pytest.raises(PenstockError) as refused:
        asyncio.run(rebuild(str(place), new))
    assert snapshot(place) == before
    assert sorted(entry.name for entry in new.parent.iterdir() if entry.name.startswith(new.name)) == []
    return refused.value


@pytest.mark.parametrize("worker", range(WORKERS))
def test_a_missing_part_is_named(worker: int, outside: Path, tmp_path: Path) -> None:
    shutil.copytree(outside, tmp_path / "tier2")
    shutil.rmtree(tmp_path / "tier2" / f"worker-{worker}")
    error = refusal(tmp_path / "tier2", tmp_path / "new")
    assert "lacks the parts of some workers" in error.message
    assert (error.fields["missing"], error.fields["workers"]) == (f"worker-{worker}", WORKERS)


def test_a_part_without_a_catalogue_is_missing(outside: Path, tmp_path: Path) -> None:
    shutil.copytree(outside, tmp_path / "tier2")
    shutil.rmtree(tmp_path / "tier2" / "worker-1" / "catalogue")
    assert refusal(tmp_path / "tier2", tmp_path / "new").fields["missing"] == "worker-1"


def test_an_empty_place_and_the_part_of_one_worker_are_refused(outside: Path, inside: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no store" in refusal(tmp_path / "empty", tmp_path / "new").message
    (tmp_path / "parts" / "worker-0").mkdir(parents=True)
    assert refusal(tmp_path / "parts", tmp_path / "new") is not None
    for part in (outside / "worker-1", inside / "workers" / "1"):
        assert "the part of one worker" in refusal(part, tmp_path / "new").message


def test_parts_of_other_workers_and_of_other_stores_are_refused(outside: Path, tmp_path: Path) -> None:
    shutil.copytree(outside, tmp_path / "swapped")
    (tmp_path / "swapped" / "worker-0").rename(tmp_path / "swapped" / "x")
    (tmp_path / "swapped" / "worker-1").rename(tmp_path / "swapped" / "worker-0")
    (tmp_path / "swapped" / "x").rename(tmp_path / "swapped" / "worker-1")
    assert "do not belong together" in refusal(tmp_path / "swapped", tmp_path / "new").message
    (tmp_path / "of-two").mkdir()
    asyncio.run(fill(tmp_path / "two", tmp_path / "of-two", workers=2))
    shutil.copytree(outside, tmp_path / "mixed")
    shutil.rmtree(tmp_path / "mixed" / "worker-1")
    shutil.copytree(tmp_path / "of-two" / "worker-1", tmp_path / "mixed" / "worker-1")
    assert "do not belong together" in refusal(tmp_path / "mixed", tmp_path / "new").message


def test_another_tier_2_in_the_recorded_place_is_refused(tmp_path: Path) -> None:
    data, tier2 = made(tmp_path / "one", elsewhere=True)
    other = made(tmp_path / "other", elsewhere=True)[1]
    assert tier2 is not None
    assert other is not None
    shutil.rmtree(tier2 / "worker-2")
    shutil.copytree(other / "worker-2", tier2 / "worker-2")
    assert "belongs to another store" in refusal(data, tmp_path / "new").message


def test_a_running_store_is_refused(inside: Path, tmp_path: Path) -> None:
    shutil.copytree(inside, tmp_path / "old")
    for held in (tmp_path / "old", tmp_path / "old" / "workers" / "1"):
        with DataDirectory.open(held), pytest.raises(DirectoryInUseError):
            asyncio.run(rebuild(str(tmp_path / "old"), tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_the_report_is_json(outside: Path, tmp_path: Path) -> None:
    report = asyncio.run(rebuild(str(outside), tmp_path / "new"))
    found = json.loads(json.dumps(report.as_json()))
    assert (found["workers"], found["unreachable"], len(found["containers"])) == (WORKERS, [], 4 * WORKERS)
    (stream,) = [item for item in found["streams"] if item["stream"] == "s/a"]
    assert stream["missing_bytes"] == 0
