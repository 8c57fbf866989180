"""One worker's metadata or directory is lost: it is repaired from its part of tier 2, and the others are not touched."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from workers_disk import WORKERS, running
from workers_history import by_key, events, read_all, write

from penstock.app.integrity import repair_worker as repairing
from penstock.app.integrity.doctor import diagnose
from penstock.app.integrity.rebuild import rebuild
from penstock.app.integrity.repair_worker import repair_worker
from penstock.app.restored import MARKER
from penstock.app.workers.layout import CONTAINERS_EACH
from penstock.controller import keys
from penstock.core.segments.placement import container_of
from penstock.model.errors import CorruptDataError, DirectoryInUseError, InvalidArgumentError, PenstockError
from penstock.ports.data.tables import TablePut
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.offload import ThreadOffload

TIERED, LOGGED = events("s/a", 1, 200), events("s/a", 2, 60)


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


async def _fill(home: Path, tier2: Path | None) -> None:
    async with running(home / "running", tier2) as opened:
        await opened.store.create_stream("s/a", segments=6, create_scope=True)
        await write(opened, "s/a", TIERED)
        await opened.tier()
        await write(opened, "s/a", LOGGED)
        # As a process that is killed leaves it: the last events are in the logs alone.
        copy(home / "running", home / "data")
        if tier2 is not None:
            copy(tier2, home / "tier2-then")
    shutil.rmtree(home / "running")
    if tier2 is not None:
        shutil.rmtree(tier2)
        (home / "tier2-then").rename(tier2)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("inside")
    asyncio.run(_fill(home, None))
    return home / "data"


@pytest.fixture
def data(inside: Path, tmp_path: Path) -> Path:
    copy(inside, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A store with its tier 2 in another directory, whose path its records have."""
    (tmp_path / "tier2").mkdir()
    asyncio.run(_fill(tmp_path, tmp_path / "tier2"))
    return tmp_path / "data"


def own(data: Path, worker: int) -> Path:
    return data / "workers" / str(worker)


def others(data: Path, worker: int) -> Mapping[str, tuple[int, int]]:
    """All files of the other workers: their sizes and when they were written."""
    return {
        str(path.relative_to(data)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted((data / "workers").rglob("*"))
        if path.is_file() and path.relative_to(data / "workers").parts[0] != str(worker)
    }


def damage_metadata(data: Path, worker: int) -> None:
    file = own(data, worker) / "metadata" / "store.db"
    file.write_bytes(b"not a database" * 1000)
    file.with_name("store.db-wal").unlink(missing_ok=True)


def seen(data: Path, tier2: Path | None = None) -> list[str]:
    async def main() -> list[str]:
        async with running(data, tier2) as opened:
            found = await read_all(opened, "s/a")
            await write(opened, "s/a", events("s/a", 3))
            assert set(await read_all(opened, "s/a")) == {*found, *events("s/a", 3)}
        async with running(data, tier2) as opened:
            assert set(await read_all(opened, "s/a")) == {*found, *events("s/a", 3)}
        return found

    return asyncio.run(main())


def check_prefixes(found: list[str]) -> None:
    """Per key, all that was in tier 2, and of what followed a first part."""
    for key, lines in by_key([*TIERED, *LOGGED]).items():
        mine = by_key(found)[key]
        assert mine == lines[: len(mine)]
    assert set(TIERED) <= set(found)


@pytest.mark.parametrize("worker", range(WORKERS))
def test_damaged_metadata_is_replaced_and_the_log_loses_nothing(worker: int, data: Path) -> None:
    damage_metadata(data, worker)
    with pytest.raises(CorruptDataError):
        seen(data)
    before = others(data, worker)
    report = asyncio.run(repair_worker(data, worker))
    assert (report.log_kept, report.is_complete, report.unknown()) == (True, True, [])
    assert others(data, worker) == before
    assert not (data / MARKER).exists()
    assert report.replaced is not None
    assert (Path(report.replaced) / "metadata" / "store.db").read_bytes().startswith(b"not a database")
    assert by_key(seen(data)) == by_key([*TIERED, *LOGGED])


@pytest.mark.parametrize("worker", range(WORKERS))
def test_without_its_log_a_worker_continues_from_tier_2(worker: int, data: Path) -> None:
    for part in ("metadata", "wal"):
        shutil.rmtree(own(data, worker) / part)
    before = others(data, worker)
    report = asyncio.run(repair_worker(data, worker))
    assert not report.log_kept
    assert others(data, worker) == before
    assert (data / MARKER).exists()
    check_prefixes(seen(data))
    assert not (data / MARKER).exists()


def test_a_damaged_log_is_replaced_too_and_kept_aside(data: Path) -> None:
    damage_metadata(data, 1)
    (own(data, 1) / "wal" / "EPOCH").write_bytes(b"x" * 100)
    report = asyncio.run(repair_worker(data, 1))
    assert (report.log_kept, report.is_complete) == (False, False)
    assert report.replaced is not None
    assert (Path(report.replaced) / "wal" / "EPOCH").read_bytes() == b"x" * 100
    check_prefixes(seen(data))


@pytest.mark.parametrize("worker", [0, 2])
def test_a_lost_directory_comes_back_if_tier_2_is_elsewhere(worker: int, elsewhere: Path, tmp_path: Path) -> None:
    shutil.rmtree(own(elsewhere, worker))
    before = others(elsewhere, worker)
    report = asyncio.run(repair_worker(elsewhere, worker))
    assert not report.log_kept
    assert others(elsewhere, worker) == before
    check_prefixes(seen(elsewhere, tmp_path / "tier2"))


def test_a_repaired_worker_can_be_lost_again(elsewhere: Path, tmp_path: Path) -> None:
    for _ in range(2):
        shutil.rmtree(own(elsewhere, 1))
        asyncio.run(repair_worker(elsewhere, 1))
        check_prefixes([line for line in seen(elsewhere, tmp_path / "tier2") if line not in events("s/a", 3)])


def test_a_repaired_worker_is_rebuilt_from_its_own_catalogue(data: Path, tmp_path: Path) -> None:
    for part in ("metadata", "wal"):
        shutil.rmtree(own(data, 1) / part)
    asyncio.run(repair_worker(data, 1))
    found = seen(data)

    async def tier() -> None:
        async with running(data) as opened:
            await opened.tier()

    asyncio.run(tier())
    report = asyncio.run(rebuild(str(data), tmp_path / "new"))
    assert (report.lost, report.damage, report.streams.made, report.streams.unreachable) == ([], [], [], [])

    async def read() -> list[str]:
        async with running(tmp_path / "new") as opened:
            return await read_all(opened, "s/a")

    assert by_key(asyncio.run(read())) == by_key([*found, *events("s/a", 3)])


class _KilledError(Exception):
    """Stands for the end of the process."""


def _repair_killed_at(attempt: Path, kill_at: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Repair worker 1, and end as a killed process does before its rename ``kill_at``. The number of renames until then."""
    rename, steps = Path.rename, 0

    def killed(self: Path, target: Path) -> Path:
        nonlocal steps
        steps += 1
        if steps == kill_at:
            raise _KilledError
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        patched.setattr(repairing.shutil, "rmtree", lambda *_, **__: None)  # A killed process tidies nothing.
        asyncio.run(repair_worker(attempt, 1))
    return steps


@pytest.mark.parametrize("keeps_log", [True, False], ids=["log", "no-log"])
def test_an_interrupted_repair_can_be_repeated(
    keeps_log: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_metadata(data, 1)
    if not keeps_log:  # A sound log that cannot continue the catalogue, because that has lost an object.
        max((own(data, 1) / "catalogue").rglob("j-*")).write_bytes(b"x" * 50)
    copy(data, tmp_path / "whole")
    whole = asyncio.run(repair_worker(tmp_path / "whole", 1))
    expected = by_key(seen(tmp_path / "whole"))
    for kill_at in range(1, 20):
        attempt = tmp_path / f"attempt-{kill_at}"
        copy(data, attempt)
        try:
            steps = _repair_killed_at(attempt, kill_at, monkeypatch)
            break
        except _KilledError:
            pass
        if (own(attempt, 1) / "replacing" / "metadata").exists() and (own(attempt, 1) / "metadata").exists():
            assert by_key(seen(attempt)) == expected  # Only the name of what was replaced is missing.
            continue
        with pytest.raises(PenstockError):  # Nothing starts on a half of it.
            seen(attempt)
        again = asyncio.run(repair_worker(attempt, 1))
        assert (again.log_kept, again.log, again.lost) == (whole.log_kept, whole.log, whole.lost)
        assert not (own(attempt, 1) / "rebuilding").exists()
        assert not (own(attempt, 1) / "replacing").exists()
        kept = [path.read_bytes()[:6] for path in own(attempt, 1).glob("replaced-*/metadata/store.db")]
        assert kept == [b"not a "]
        assert by_key(seen(attempt)) == expected
        shutil.rmtree(attempt)
    assert steps >= (3 if keeps_log else 5)
    assert whole.log_kept is keeps_log
    assert not keeps_log or expected == by_key([*TIERED, *LOGGED])
    assert keeps_log or whole.log


def test_a_worker_on_a_disk_of_its_own_is_repaired(data: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        shutil.move(own(data, 1), Path(disk) / "1")
        own(data, 1).symlink_to(Path(disk) / "1")
        damage_metadata(data, 1)
        assert asyncio.run(repair_worker(data, 1)).log_kept
        assert by_key(seen(data)) == by_key([*TIERED, *LOGGED])


def test_a_mount_point_is_refused_before_anything_moves(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(own(data, 1) / "metadata")
    (own(data, 1) / "wal" / "EPOCH").unlink()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path).name == "wal")
    before = others(data, -1)
    with pytest.raises(InvalidArgumentError, match="mount point"):
        asyncio.run(repair_worker(data, 1))
    assert others(data, -1) == before
    assert not (data / MARKER).exists()


def test_tier_2_of_another_store_is_refused(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "b" / "tier2").mkdir(parents=True)
    asyncio.run(_fill(tmp_path / "b", tmp_path / "b" / "tier2"))
    theirs = others(tmp_path / "b", -1)

    def refused(match: str, tier2: Path) -> None:
        with pytest.raises(InvalidArgumentError, match=match):
            asyncio.run(repair_worker(elsewhere, 1, tier2=str(tier2)))
        assert not (elsewhere / MARKER).exists()

    refused("belongs to another store", tmp_path / "b" / "tier2")
    shutil.rmtree(own(elsewhere, 1))
    refused("belongs to another store", tmp_path / "b" / "tier2")
    assert not own(elsewhere, 1).exists()
    refused("does not exist", tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    refused("does not exist", tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())
    assert others(tmp_path / "b", -1) == theirs
    asyncio.run(repair_worker(elsewhere, 1, tier2=str(tmp_path / "tier2")))
    check_prefixes(seen(elsewhere, tmp_path / "tier2"))


def test_tier_2_beside_workers_that_keep_their_own_is_refused(data: Path, elsewhere: Path, tmp_path: Path) -> None:
    shutil.rmtree(own(data, 1))
    with pytest.raises(InvalidArgumentError, match="keep their tier 2 in their directories"):
        asyncio.run(repair_worker(data, 1, tier2=str(tmp_path / "tier2")))


@pytest.mark.parametrize("text", [b"", b"{}", b'{"format": 1}'], ids=["empty", "no-format", "no-fields"])
def test_an_unreadable_record_of_tier_2_is_replaced(text: bytes, elsewhere: Path, tmp_path: Path) -> None:
    (own(elsewhere, 1) / "tier2.json").write_bytes(text)
    report = asyncio.run(repair_worker(elsewhere, 1))
    assert report.log_kept
    assert report.replaced is not None
    assert (Path(report.replaced) / "tier2.json").read_bytes() == text
    assert by_key(seen(elsewhere)) == by_key([*TIERED, *LOGGED])


def test_a_worker_that_still_runs_is_not_repaired(elsewhere: Path) -> None:
    (own(elsewhere, 1) / "tier2.json").unlink()
    with DataDirectory.open(own(elsewhere, 1)), pytest.raises(DirectoryInUseError):
        asyncio.run(repair_worker(elsewhere, 1))


def test_a_deleted_stream_can_still_be_restored_after_a_repair(tmp_path: Path) -> None:
    written = [*events("s/b", 1, 100), *events("s/b", 2, 60)]
    lost = (container_of(keys.TABLE, WORKERS * CONTAINERS_EACH) + 1) % WORKERS  # not that of the controller's table

    async def delete() -> None:
        async with running(tmp_path / "running") as opened:
            await opened.store.create_stream("s/b", segments=6, create_scope=True)
            await write(opened, "s/b", written[:100])
            await opened.tier()
            stream = opened.store.stream("s/b")
            await stream.scale(9)
            await write(opened, "s/b", written[100:])
            await stream.seal()
            await stream.delete()
            await opened.tier(*(worker for worker in range(WORKERS) if worker != lost))
            copy(tmp_path / "running", tmp_path / "data")

    async def restore() -> None:
        async with running(tmp_path / "data") as opened:
            await opened.store.restore_stream("s/b")
            found = await asyncio.wait_for(read_all(opened, "s/b"), 60)
            assert set(written[:100]) <= set(found) <= set(written)
            assert len(found) == len(set(found))

    asyncio.run(delete())
    for part in ("metadata", "wal"):
        shutil.rmtree(own(tmp_path / "data", lost) / part)
    asyncio.run(repair_worker(tmp_path / "data", lost))
    asyncio.run(restore())


@pytest.mark.parametrize("key", [b"stream/s/bad", b"stream/nonsense", b"stream/s/\xff", b"head/s/b"])
def test_one_unreadable_record_does_not_stop_the_start_after_a_repair(
    key: bytes, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def spoil() -> None:
        async with running(data) as opened:
            await opened.store.create_stream("s/b", segments=2)
            await opened.segments.table_update(keys.TABLE, [TablePut(key=key, value=b"garbage")])
            await opened.tier()

    asyncio.run(spoil())
    for part in ("metadata", "wal"):
        shutil.rmtree(own(data, 1) / part)
    asyncio.run(repair_worker(data, 1))
    assert by_key(seen(data)) == by_key([*TIERED, *LOGGED])
    assert "repaired store: cannot be read" in caplog.text

    report = asyncio.run(rebuild(str(data), tmp_path / "new"))
    (sentence,) = report.streams.unreadable
    assert sentence.startswith("stream/")
    assert not report.is_complete
    assert len(seen(tmp_path / "new")) > len(TIERED)


def test_a_relative_directory_is_repaired_too(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own(data, 1) / "metadata").rename(own(data, 1) / "x")
    monkeypatch.chdir(data.parent)
    assert asyncio.run(repair_worker(Path(data.name), 1)).log_kept
    assert (own(data, 1) / "metadata").is_dir()


def test_the_doctor_advises_to_repair_the_damaged_worker(data: Path) -> None:
    async def verdict() -> str:
        async with ThreadOffload() as offload:
            return (await diagnose(own(data, 1), offload=offload)).verdict

    (own(data, 1) / "metadata").rename(own(data, 1) / "x")
    assert f"penstock rebuild --data {data} --worker 1" in asyncio.run(verdict())


def test_bad_requests_change_nothing(data: Path, tmp_path: Path) -> None:
    def refused(worker: int, match: str, kind: type[PenstockError] = InvalidArgumentError, place: Path = data) -> None:
        before = others(place, -1)
        with pytest.raises(kind, match=match):
            asyncio.run(repair_worker(place, worker))
        assert others(place, -1) == before
        assert not (place / MARKER).exists()

    refused(3, "no worker with this number")
    with DataDirectory.open(data):
        refused(1, "data directory", DirectoryInUseError)
    with DataDirectory.open(own(data, 1)):
        refused(1, "data directory", DirectoryInUseError)
    (own(data, 1) / "catalogue").rename(own(data, 1) / "x")
    refused(1, "is lost, or its place is not known")
    shutil.copytree(own(data, 2) / "catalogue", own(data, 1) / "catalogue")
    refused(1, "another worker or another store")
    single = tmp_path / "single"
    DataDirectory.open(single).close()
    with pytest.raises(InvalidArgumentError, match="has no workers"):
        asyncio.run(repair_worker(single, 0))
