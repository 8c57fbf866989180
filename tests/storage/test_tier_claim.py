"""A tier 2 outside the data directory is one store's, and one copy's of it; a directory that is away is not an empty one."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from penstock.app.embedded import embedded_settings
from penstock.app.tier2 import for_tier2, open_tier2
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    StorageFullError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.ports.chunks import ChunkStorage
from penstock.ports.objects import Objects
from penstock.segmentstore.settings import MIB, StoreSettings
from penstock.storage.chunks.claim import MARK, OWNERS, RECORD, TierRecord, claim_tier, load_record
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.chunks.shared_chunks import SharedChunks
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.objects.file_objects import FileObjects
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.chunks import ChunkLaws

PLACE = "s3://bucket/prefix"


def with_files(work: Callable[[Callable[[Path], RealFiles]], Awaitable[None]]) -> None:
    async def run() -> None:
        offload = ThreadOffload()
        try:
            await work(lambda path: RealFiles(path, offload))
        finally:
            await offload.close()

    asyncio.run(run())


async def claim(objects: Objects, files: RealFiles, place: str = PLACE) -> TierRecord:
    return await claim_tier(objects, files, place=place, endpoint=None, rng=RealRng())


def test_a_store_comes_back_to_its_tier_2_and_leaves_one_opening(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        objects = MemoryObjects()
        found = [await claim(objects, files_of(tmp_path)) for _ in range(3)]
        assert len({record.store for record in found}) == 1
        assert list(await objects.list(OWNERS)) == [found[-1].openings[-1]]
        assert await load_record(files_of(tmp_path)) == found[-1]

    with_files(work)


def test_two_stores_never_share_a_tier_2(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        for name in ("a", "b", "c"):
            (tmp_path / name).mkdir()
        objects = MemoryObjects()
        await claim(objects, files_of(tmp_path / "a"))
        with pytest.raises(InvalidArgumentError, match="belongs to another store"):
            await claim(objects, files_of(tmp_path / "b"))
        await claim(MemoryObjects(), files_of(tmp_path / "c"), "s3://other")
        with pytest.raises(InvalidArgumentError, match="belongs to another store"):
            await claim(objects, files_of(tmp_path / "c"))
        assert await load_record(files_of(tmp_path / "b")) is None
        await claim(objects, files_of(tmp_path / "a"))

    with_files(work)


def test_chunks_of_nobody_are_not_adopted(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        for name in ("data", "shared"):
            (tmp_path / name).mkdir()
        for objects in (MemoryObjects(), FileObjects(files_of(tmp_path / "shared"))):
            await objects.put("chunks/0/1-1-0", b"x")
            with pytest.raises(InvalidArgumentError, match="chunks of an unknown store"):
                await claim(objects, files_of(tmp_path / "data"))
            assert list(await objects.list("chunks")) == ["chunks/0/1-1-0"]

    with_files(work)


def test_of_two_copies_of_a_store_the_one_that_was_away_is_refused(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        (tmp_path / "live").mkdir()
        objects = MemoryObjects()
        await claim(objects, files_of(tmp_path / "live"))
        shutil.copytree(tmp_path / "live", tmp_path / "backup")
        last = await claim(objects, files_of(tmp_path / "live"))
        with pytest.raises(InvalidArgumentError, match="another copy") as caught:
            await claim(objects, files_of(tmp_path / "backup"))
        assert caught.value.fields["object"] == last.openings[-1]
        await claim(objects, files_of(tmp_path / "live"))
        # The way out that the message names.
        for name in await objects.list(OWNERS):
            await objects.delete(name)
        await claim(objects, files_of(tmp_path / "backup"))

    with_files(work)


def test_of_two_that_come_at_once_no_more_than_one_gets_in(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()

        async def turn(verb: str, name: str) -> None:
            await asyncio.sleep(0)

        objects = MemoryObjects(before=turn)
        results = await asyncio.gather(
            *(claim(objects, files_of(tmp_path / name)) for name in ("a", "b")), return_exceptions=True
        )
        assert sum(isinstance(result, TierRecord) for result in results) <= 1
        assert any(isinstance(result, InvalidArgumentError) for result in results)

    with_files(work)


@pytest.mark.parametrize("lost", range(1, 5))
def test_an_opening_that_broke_off_does_not_lock_the_store_out(tmp_path: Path, lost: int) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        calls = [0]

        async def lose(verb: str, name: str) -> None:
            if verb == "put":
                calls[0] += 1
                if calls[0] == lost:
                    raise UnavailableError("no answer", object=name)

        objects = MemoryObjects(after=lose)
        failed = 0
        for _ in range(4):
            try:
                await claim(objects, files_of(tmp_path))
            except UnavailableError:
                failed += 1
        assert failed == 1
        record = await claim(objects, files_of(tmp_path))
        assert list(await objects.list(OWNERS)) == [record.openings[-1]]

    with_files(work)


def test_a_claim_survives_any_number_of_failures(tmp_path: Path) -> None:
    """Each failure is a put that was lost before or after it took effect, or a call that was not answered."""

    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        (tmp_path / "data").mkdir()
        rng = random.Random(5)
        broken: dict[str, float] = {}

        async def lose(verb: str, name: str) -> None:
            if rng.random() < broken.get(verb, 0.0):
                raise UnavailableError("no answer", object=name)

        objects = MemoryObjects(before=lose, after=lose)
        files = files_of(tmp_path / "data")
        store = (await claim(objects, files)).store
        for _ in range(50):
            broken |= {verb: rng.choice((0.0, 0.2, 0.6, 1.0)) for verb in ("put", "list", "delete", "read")}
            for _ in range(rng.randrange(40)):
                with suppress(UnavailableError):
                    await claim(objects, files)
            broken.clear()
            record = await claim(objects, files)
            assert record.store == store
            assert list(await objects.list(OWNERS)) == [record.openings[-1]]

    with_files(work)


def test_a_full_tier_2_keeps_the_claim_of_the_last_opening(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        full = [False]

        async def refuse(verb: str, name: str) -> None:
            if verb == "put" and full[0]:
                raise StorageFullError("bucket is full", object=name)

        objects = MemoryObjects(before=refuse)
        for name in ("data", "new"):
            (tmp_path / name).mkdir()
        first = await claim(objects, files_of(tmp_path / "data"))
        full[0] = True
        for _ in range(40):
            await claim(objects, files_of(tmp_path / "data"))
            assert list(await objects.list(OWNERS)) == [first.openings[-1]]
        with pytest.raises(InvalidArgumentError, match="belongs to another store"):
            await claim(objects, files_of(tmp_path / "new"))
        with pytest.raises(StorageFullError):
            await claim(MemoryObjects(before=refuse), files_of(tmp_path / "new"), "s3://unused")
        full[0] = False
        record = await claim(objects, files_of(tmp_path / "data"))
        assert list(await objects.list(OWNERS)) == [record.openings[-1]]

    with_files(work)


def test_a_tier_2_that_lost_its_mark_is_not_begun_anew(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        await claim(MemoryObjects(), files_of(tmp_path))
        with pytest.raises(InvalidArgumentError, match="lacks the chunks of this store"):
            await claim(MemoryObjects(), files_of(tmp_path), "s3://bucket/typo")
        record = await load_record(files_of(tmp_path))
        assert record is not None
        assert record.place == PLACE

    with_files(work)


def test_marks_that_cannot_be_read_stop_the_store(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        objects = MemoryObjects()
        await claim(objects, files_of(tmp_path))
        for data, error in ((b"{", CorruptDataError), (b'{"format": 2}', VersionTooNewError)):
            await objects.put(MARK, data)
            with pytest.raises(error):
                await claim(objects, files_of(tmp_path))
        sound = json.loads((tmp_path / RECORD).read_bytes())
        for wrong in ({"store": 5}, {"claimed": "false"}, {"openings": "abc"}, {"endpoint": 1}):
            (tmp_path / RECORD).write_text(json.dumps(sound | wrong))
            with pytest.raises(CorruptDataError):
                await load_record(files_of(tmp_path))
        for lacking in ("store", "place", "endpoint", "claimed", "openings"):
            (tmp_path / RECORD).write_text(json.dumps({key: sound[key] for key in sound if key != lacking}))
            with pytest.raises(CorruptDataError):
                await load_record(files_of(tmp_path))

    with_files(work)


# --- a shared directory -----------------------------------------------------------------------------------


class SharedChunkLaws(ChunkLaws):
    def __init__(self, data: Path, shared: Path) -> None:
        self.data, self.shared = data, shared

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ChunkStorage]:
        offload = ThreadOffload()
        settings = embedded_settings(self.data, {"tier2": str(self.shared)})
        try:
            async with open_tier2(settings, RealFiles(self.data, offload), offload=offload, rng=RealRng()) as chunks:
                yield chunks
        finally:
            await offload.close()


@pytest.mark.parametrize("law", laws(ChunkLaws))
def test_a_shared_directory_keeps_the_laws_of_chunks(law: str, tmp_path: Path) -> None:
    for name in ("data", "shared"):
        (tmp_path / name).mkdir()
    run_conformance(lambda: SharedChunkLaws(tmp_path / "data", tmp_path / "shared"), law=law)
    assert not (tmp_path / "data" / "chunks").exists()


def test_a_directory_that_was_unmounted_is_unavailable_and_stays_empty(tmp_path: Path) -> None:
    async def work(files_of: Callable[[Path], RealFiles]) -> None:
        for name in ("data", "shared"):
            (tmp_path / name).mkdir()
        shared = files_of(tmp_path / "shared")
        await claim(FileObjects(shared), files_of(tmp_path / "data"))
        chunks = SharedChunks(FileChunks(shared), shared)
        await chunks.append("0/a", 0, [b"here"])
        await chunks.sync("0/a")
        await chunks.close()
        (tmp_path / "shared").rename(tmp_path / "elsewhere")
        (tmp_path / "shared").mkdir()
        for call in (
            lambda: chunks.append("0/b", 0, [b"x"]),
            lambda: chunks.read("0/a", 0, 4),
            lambda: chunks.delete("0/a"),
            lambda: chunks.free_head("0/a", 2),
            chunks.list,
            chunks.allocated_bytes,
        ):
            with pytest.raises(UnavailableError, match="directory of tier 2 is missing"):
                await call()
        assert list((tmp_path / "shared").iterdir()) == []
        (tmp_path / "shared").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "shared")
        assert await chunks.read("0/a", 0, 4) == b"here"
        await chunks.close()

    with_files(work)


def opened(data: Path, **settings: object) -> None:
    async def run() -> None:
        offload = ThreadOffload()
        try:
            files = RealFiles(data, offload)
            async with open_tier2(embedded_settings(data, settings), files, offload=offload, rng=RealRng()):
                pass
        finally:
            await offload.close()

    asyncio.run(run())


def test_a_store_stays_where_its_chunks_are(tmp_path: Path) -> None:
    for name in ("data", "shared", "other", "old"):
        (tmp_path / name).mkdir()
    opened(tmp_path / "data", tier2=str(tmp_path / "shared"))
    opened(tmp_path / "data")
    assert (tmp_path / "shared" / MARK).exists()
    with pytest.raises(InvalidArgumentError, match="lacks the chunks of this store"):
        opened(tmp_path / "data", tier2=str(tmp_path / "other"))
    (tmp_path / "old" / "chunks" / "0").mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match="chosen when a store is new"):
        opened(tmp_path / "old", tier2=str(tmp_path / "other"))
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tier2": "missing"}, "does not exist"),
        ({"tier2": "data/inside"}, "must not contain each other"),
        ({"tier2": "."}, "must not contain each other"),
        ({"tier2": "ftp://host/x"}, "must be s3://"),
        ({"tier2": "s3://bucket", "tier2_endpoint": "http://192.0.2.1:9000"}, "without TLS"),
        ({"tier2": "s3://bucket", "tier2_endpoint": "192.0.2.1:9000"}, "must have the form https://"),
        ({"tier2": 5}, "a URL or a path"),
    ],
)
def test_places_that_cannot_be_tier_2_are_refused(
    settings: dict[str, object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "inside").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=reason):
        opened(tmp_path / "data", **settings)
    assert not (tmp_path / "data" / RECORD).exists()


def test_an_object_store_is_written_in_larger_units(tmp_path: Path) -> None:
    store = embedded_settings(tmp_path, {"tier2_unit_bytes": 4 * MIB, "tier2_wait_ms": 60_000})
    plain = StoreSettings()
    found = for_tier2(plain, store, ObjectChunks(MemoryObjects()))
    assert (found.unit_bytes, found.tier_run_bytes, found.flush_interval_s) == (4 * MIB, plain.chunk_bytes, 60)
    offload = ThreadOffload()
    assert for_tier2(plain, store, FileChunks(RealFiles(tmp_path, offload))) is plain
    asyncio.run(offload.close())
