"""A data directory that lost a part is served as it was, or refused with every remaining file unchanged."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from pathlib import Path

import pytest
from integrity_world import WRITER
from lost_parts_world import check_two_starts, copy, files_of, make, remove, settings_of

from penstock.app.segments import open_segments
from penstock.app.settings import StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.app.telemetry import Counters
from penstock.app.workers.layout import load_layout, settle_layout, worker_directory
from penstock.app.workers.supervisor import Patience, Worker
from penstock.model.errors import ContainerOfflineError, CorruptDataError, PenstockError
from penstock.ports.data.segments import Append
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.rng import RealRng
from penstock.storage.machine.shared_counts import CountsMemory

ENTRIES = ("RESERVE", "VERSION", "LOCK", "catalogue", "chunks", "metadata", "wal")
SUBSETS = [lost for count in range(1, 6) for lost in itertools.combinations(ENTRIES, count)]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("closed") / "data")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("killed") / "data", killed=True)


def without(source: Path, place: Path, lost: tuple[str, ...]) -> Path:
    remove(place, ["data"])
    copy(source, place / "data")
    remove(place / "data", lost)
    return place / "data"


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize(
    "lost",
    [
        ("metadata", "wal"),
        ("metadata",),
        ("wal",),
        ("chunks",),
        ("metadata", "wal", "chunks"),
        ENTRIES[3:],
        ("catalogue",),
    ],
    ids="+".join,
)
def test_a_store_that_lost_a_part(
    lost: tuple[str, ...], state: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    refusal = check_two_starts(without(request.getfixturevalue(state), tmp_path, lost))
    assert (refusal is None) == (lost == ("catalogue",))


@pytest.mark.slow
@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("lost", SUBSETS, ids="+".join)
def test_every_subset_of_the_entries_removed(
    lost: tuple[str, ...], state: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    check_two_starts(without(request.getfixturevalue(state), tmp_path, lost))


@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_a_log_file_in_use_that_was_removed_is_noticed_before_anything_is_written(
    state: str, index: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = without(request.getfixturevalue(state), tmp_path, ())
    used = [path for path in sorted((data / "wal").glob("*.log")) if any(path.read_bytes()[4096:8192])]
    used[index].unlink()
    assert check_two_starts(data) is not None


# --- a store of several workers ---------------------------------------------------------------------------

WORKER_ENTRIES = ("VERSION", "workers.json", "workers", "workers/0", "workers/1", "workers/1/wal", "workers/0/metadata")


def make_workers(data: Path) -> Path:
    """A store of two workers with a chunk in each, opened in this process: what counts here are files."""

    async def main() -> None:
        with DataDirectory.open(data) as directory:
            layout = settle_layout(data, 2)
            for worker in range(2):
                with DataDirectory.open(worker_directory(data, worker)) as own:
                    async with open_segments(
                        settings_of(own.path),
                        clock=RealClock(),
                        rng=RealRng(),
                        telemetry=Counters(),
                        containers=layout.containers,
                        owned=layout.owned(worker),
                    ) as store:
                        own.mark_complete()
                        for number in range(20):
                            name = f"s/t/{number}.#epoch.0"
                            with suppress(ContainerOfflineError):
                                await store.create_segment(name)
                                last = await store.setup_append(name, WRITER)
                                await store.append(
                                    Append(
                                        segment=name,
                                        writer=WRITER,
                                        data=b"x" * 100,
                                        event_number=0,
                                        event_count=1,
                                        previous=last,
                                    )
                                )
                        await store.flush()
            directory.mark_complete()

    asyncio.run(main())
    return data


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workers(tmp_path_factory.mktemp("spread") / "data")


@pytest.mark.parametrize("wanted", [None, 1, 2])
@pytest.mark.parametrize("lost", [(name,) for name in WORKER_ENTRIES] + [("workers.json", "workers")], ids="+".join)
def test_a_store_of_workers_that_lost_a_part_is_refused_with_every_file_unchanged(
    lost: tuple[str, ...], wanted: int | None, spread: Path, tmp_path: Path
) -> None:
    data = without(spread, tmp_path, lost)
    before = files_of(data)

    async def start() -> None:
        store = settings_of(data)
        ports = {"controller_port": 0, "store_port": 0, "http_port": 0}
        async with open_standalone(StandaloneSettings(store=store, workers=wanted, **ports)):
            raise AssertionError("it started")

    for _ in range(2):
        with pytest.raises(PenstockError):
            asyncio.run(start())
        assert files_of(data) == before


def test_a_worker_whose_disk_goes_away_is_not_started_on_an_empty_directory(spread: Path, tmp_path: Path) -> None:
    data = without(spread, tmp_path, ("workers/1",))
    (data / "workers" / "1").mkdir()

    async def launch() -> None:
        layout = load_layout(data)
        assert layout is not None
        settings = StandaloneSettings(store=settings_of(data), store_port=0, workers=2)
        counts = CountsMemory(2)
        try:
            await Worker(1, settings, layout, counts, Patience()).launch({})
        finally:
            counts.close()

    with pytest.raises(CorruptDataError, match="has lost a part"):
        asyncio.run(launch())
    assert list((data / "workers" / "1").iterdir()) == []
