"""One container on several stores: the record decides, directories are caches, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.app.cluster.unit import UnitsShared, open_unit, share_units
from penstock.app.replicated.log_place import LogMark, read_mark
from penstock.app.segments import cluster_memory_min_bytes
from penstock.app.settings import EmbeddedSettings
from penstock.codec.store.cluster_nodes import CONTAINERS
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    DirectoryInUseError,
    InvalidArgumentError,
    PenstockError,
)
from penstock.segmentstore.store import SegmentStore
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.objects.file_objects import FileObjects
from tests.cluster.store_node_kit import ADDRESS, MemoryCluster, numbers, write


class Killed(OSError):
    """The process ends without a checkpoint."""


async def serve(shared: UnitsShared, number: int, segment: str, events: range, *, kill: bool = False) -> list[int]:
    """Open the container, append the events, and return all that it has."""
    found: list[int] = []
    try:
        async with open_unit(number, shared) as store:
            if not await _has(store, segment):
                await store.create_segment(segment)
            await write(store, segment, events)
            found = await numbers(store, segment)
            if kill:
                raise Killed
    except Killed:
        pass
    return found


async def _has(store: SegmentStore, segment: str) -> bool:
    return bool(await store.infos([segment]))


def test_a_container_moves_between_stores_with_everything_acknowledged(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(2)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            expected = 0
            # Clean ends and kills, to the other store, to the same one, and back to one whose cache is outdated.
            for shared, kill in ((a, False), (a, True), (b, True), (b, False), (a, True), (b, True), (a, False)):
                found = await serve(shared, 2, segment, range(expected, expected + 5), kill=kill)
                expected += 5
                assert found == list(range(expected))
                assert shared.memory.events.cached_bytes == 0
                assert shared.memory.events.unflushed_bytes == 0
                assert shared.memory.events.queued_bytes == 0

    asyncio.run(main())
    assert cluster.record(2).epoch == 7
    assert cluster.record(0).epoch == 0, "other containers are not touched"
    assert [path.name for path in (tmp_path / "tier2").iterdir()] == ["container-2"]


def test_a_cache_that_is_valid_is_kept_and_an_outdated_one_is_loaded_again(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)

    def home(store: str) -> str | None:
        mark = read_mark(tmp_path / store / "containers" / "0")
        return None if mark is None else mark.home

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            await serve(a, 0, segment, range(3), kill=True)
            first = home("a")
            await serve(a, 0, segment, range(3, 6), kill=True)
            assert home("a") == first == cluster.record(0).home
            await serve(b, 0, segment, range(6, 9))
            await serve(a, 0, segment, range(9, 12))
            assert home("a") not in (first, None)

    asyncio.run(main())


@pytest.mark.parametrize("damage", ["store.db", "metadata", "containers"])
def test_a_damaged_or_deleted_cache_is_loaded_from_tier_2(tmp_path: Path, damage: str) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(1)

    async def main() -> None:
        async with cluster.shared("a") as a:
            await serve(a, 1, segment, range(5))
            await serve(a, 1, segment, range(5, 8), kill=True)
            data = tmp_path / "a" / "containers" / "1"
            if damage == "store.db":
                database = data / "metadata" / "store.db"
                image = bytearray(database.read_bytes())
                image[4096:] = bytes(len(image) - 4096)
                database.write_bytes(image)
            else:
                shutil.rmtree(data / "metadata" if damage == "metadata" else data)
            assert await serve(a, 1, segment, range(8, 10)) == list(range(10))

    asyncio.run(main())


def test_a_missing_record_is_not_created(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(3)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            await serve(a, 3, segment, range(5))
            del cluster.bookkeeper.nodes.nodes[cluster.record_path(3)]
            for shared in (a, b):
                with pytest.raises(CorruptDataError, match="ZooKeeper's data were lost"):
                    await serve(shared, 3, segment, range(5, 6))
            assert cluster.record_path(3) not in cluster.bookkeeper.nodes.nodes

    asyncio.run(main())


def test_an_owner_that_another_store_deposed_acknowledges_nothing_more(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            async with open_unit(0, a) as store:
                await store.create_segment(segment)
                await write(store, segment, range(3))
                async with open_unit(0, b) as other:
                    await write(other, segment, range(3, 5))
                with pytest.raises(ContainerOfflineError):
                    await write(store, segment, range(5, 6))
            assert await serve(b, 0, segment, range(5, 6)) == list(range(6))

    asyncio.run(main())


@pytest.mark.parametrize("moment", range(8))
def test_a_first_opening_that_ends_anywhere_is_repeated_by_another_store(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first owner ends before its n-th change of tier 2, and its directory is lost."""
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)
    original, calls = FileObjects.put, 0

    async def put(self: FileObjects, name: str, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == moment + 1:
            raise Killed
        await original(self, name, data)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            monkeypatch.setattr(FileObjects, "put", put)
            acknowledged: list[int] = []
            with suppress(PenstockError):
                acknowledged = await serve(a, 0, segment, range(3))
            monkeypatch.setattr(FileObjects, "put", original)
            shutil.rmtree(tmp_path / "a")
            found = await serve(b, 0, segment, range(3, 5))
            assert found in ([*acknowledged, 3, 4], [0, 1, 2, 3, 4])

    asyncio.run(main())


def test_two_stores_that_open_a_new_container_at_the_same_time_agree_on_tier_2(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            outcomes = await asyncio.gather(
                *(serve(one, 0, segment, range(0)) for one in (a, b)), return_exceptions=True
            )
            assert all(isinstance(one, list | PenstockError | OSError) for one in outcomes), outcomes
            for one in (a, b, a):
                await serve(one, 0, segment, range(0))
            assert await serve(b, 0, segment, range(3)) == [0, 1, 2]

    asyncio.run(main())


def test_a_budget_that_cannot_hold_all_containers_is_refused(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=16)
    least = cluster_memory_min_bytes(16)
    given = EmbeddedSettings(data=tmp_path / "a", memory_bytes=least - 1)

    async def main() -> None:
        async with cluster.shared("a") as a:
            with pytest.raises(InvalidArgumentError, match="memory budget is too small"):
                share_units(ADDRESS, cluster.config, given, nodes=a.nodes, ledgers=a.ledgers, source=a.source)

    asyncio.run(main())


def test_an_opening_that_is_cancelled_does_not_keep_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assignment changes while a thread opens the directory, and names the store again later."""
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(2)
    opened, cancelled = threading.Event(), threading.Event()

    def slow(path: Path) -> DataDirectory:
        directory = real(path)
        opened.set()
        cancelled.wait(10)
        return directory

    real = DataDirectory.open

    async def main() -> None:
        async with asyncio.timeout(20), cluster.shared("a") as shared:
            monkeypatch.setattr(DataDirectory, "open", slow)
            opening = asyncio.ensure_future(serve(shared, 2, segment, range(5)))
            await asyncio.to_thread(opened.wait, 10)
            opening.cancel()
            await asyncio.wait({opening})
            assert opening.cancelled()
            monkeypatch.setattr(DataDirectory, "open", real)
            cancelled.set()
            while True:
                try:
                    assert await serve(shared, 2, segment, range(5)) == list(range(5))
                    return
                except DirectoryInUseError:
                    await asyncio.sleep(0.01)  # until the thread has ended

    asyncio.run(main())


@pytest.mark.parametrize("serves", [False, True], ids=["while it opens", "while it serves"])
def test_a_directory_stays_locked_while_a_thread_of_a_cancelled_unit_works_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    cluster = MemoryCluster(tmp_path)
    working, ended, locked = threading.Event(), threading.Event(), []
    monkeypatch.setattr("penstock.app.cluster.unit._THREADS_S", 0.05)

    def work(data: Path) -> LogMark | None:
        working.set()
        ended.wait(10)
        try:
            DataDirectory.open(data).close()
        except DirectoryInUseError:
            locked.append(True)
        return read_mark(data)

    async def main() -> None:
        async with asyncio.timeout(20), cluster.shared("a") as shared:
            data = tmp_path / "a" / CONTAINERS / "2"
            if not serves:
                monkeypatch.setattr("penstock.app.cluster.unit.read_mark", work)

            async def unit() -> None:
                async with open_unit(2, shared) as store:
                    await store._parts.offload.run(lambda: work(data))

            running = asyncio.ensure_future(unit())
            await asyncio.to_thread(working.wait, 10)
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled()
            monkeypatch.setattr("penstock.app.cluster.unit.read_mark", read_mark)
            with pytest.raises(DirectoryInUseError):
                async with open_unit(2, shared):
                    pass
            ended.set()
            while True:
                try:
                    async with open_unit(2, shared):
                        break
                except DirectoryInUseError:
                    await asyncio.sleep(0.01)
            assert locked == [True]

    asyncio.run(main())
