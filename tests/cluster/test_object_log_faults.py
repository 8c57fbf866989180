"""What a directory and a bucket do to the log in tier 2 that the network alone does not: mounts, tags, lost answers."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from penstock.app.replicated.object_log import LogObjects, check_conditions
from penstock.app.tier2 import TierPlace
from penstock.codec.log_objects import LEDGERS
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotConnectedError,
    UnavailableError,
    UnsupportedError,
)
from penstock.storage.ledgers.ledger_log import open_ledger_log
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.object_log import directory
from penstock.storage.object_log.bucket_record import BucketRecord
from penstock.storage.object_log.directory import DirectoryObjects, DirectoryRecord
from penstock.storage.object_log.ledgers import open_object_ledgers
from penstock.storage.object_log.limits import ObjectLogLimits
from penstock.storage.objects.cloud_objects import BucketObjects
from penstock.testing import FakeClock, InlineOffload, SeededRng
from penstock.testing.conformance.durable_log import replayed
from tests.cluster.object_log_kit import LIMITS, RECORD, WildBucket, WildObjects, open_log
from tests.cluster.virtual_time import run_virtually


class Mount:
    """Whether a directory can be reached: as NFS answers while its server is away, or after an unmount."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    async def check(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


def stale() -> OSError:
    return OSError(errno.ESTALE, "Stale file handle")


# --- directories


def test_a_log_waits_while_the_mark_of_its_directory_cannot_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        mount, rng, bucket = Mount(), SeededRng(1), WildBucket()
        async with (
            ThreadOffload() as offload,
            open_object_ledgers(
                DirectoryObjects(tmp_path, offload, rng=rng, check=mount.check),
                clock=FakeClock(),
                rng=rng,
                limits=ObjectLogLimits(interval_s=0, writes=1, retry_s=(0.01, 0.02)),
            ) as ledgers,
            open_ledger_log(
                ledgers,
                DirectoryRecord(tmp_path, offload, rng=rng, check=mount.check),
                path=RECORD,
                rng=rng,
                limits=LIMITS,
                sealing=bucket.sealing(),
            ) as log,
        ):
            await replayed(log)
            for number in range(1, 4):
                mount.errors += [stale() for _ in range(6)]
                assert await log.append([b"frame"]) == number
            assert len(list((tmp_path / "log/ledgers").iterdir())) == 1, "no further ledger was begun"

    asyncio.run(scenario())


def test_a_name_that_exists_is_durable_before_a_writer_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt fails after its link. The second one finds the object, and the writer acknowledges it."""
    synced: list[Path] = []
    failures = [OSError(errno.EIO, "on purpose")]

    def sync(path: Path) -> None:
        if failures:
            raise failures.pop()
        synced.append(path)

    async def scenario() -> None:
        objects = DirectoryObjects(tmp_path, InlineOffload(), rng=SeededRng(1), check=Mount().check)
        monkeypatch.setattr(directory, "sync_directory", sync)
        with pytest.raises(UnavailableError):
            await objects.create_new("log/ledgers/1/0", b"bytes")
        with pytest.raises(AlreadyExistsError):
            await objects.create_new("log/ledgers/1/0", b"bytes")
        assert synced == [tmp_path / "log/ledgers/1"]

    asyncio.run(scenario())


def test_a_record_that_was_unmounted_during_a_read_is_not_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        mount = Mount()
        record = DirectoryRecord(tmp_path, InlineOffload(), rng=SeededRng(1), check=mount.check)

        class Unmounts(InlineOffload):
            async def run(self, work):
                mount.errors.append(UnavailableError("the directory of tier 2 is missing"))
                return await super().run(work)

        record = DirectoryRecord(tmp_path, Unmounts(), rng=SeededRng(1), check=mount.check)
        with pytest.raises(NotConnectedError):
            await record.read(RECORD)

    asyncio.run(scenario())


def test_foreign_files_beside_the_record_are_ignored(tmp_path: Path) -> None:
    async def scenario() -> None:
        record = DirectoryRecord(tmp_path, InlineOffload(), rng=SeededRng(1), check=Mount().check)
        await record.create(RECORD, b"first")
        for name in ("at-", "at-1-copy", "data-", "data-0-copy~", "data-x-y"):
            (tmp_path / RECORD / name).write_bytes(b"foreign")
        assert await record.set(RECORD, b"second", version=0) == 1
        assert await record.read(RECORD) == (b"second", 1)

    asyncio.run(scenario())


# --- buckets


@pytest.fixture
def bucket() -> BucketObjects:
    found = BucketObjects("s3://bucket/store1", endpoint="http://127.0.0.1:9")
    found._store = MemoryStore()
    return found


@pytest.fixture
def tags(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tags that the service gives to the next objects: 32 hexadecimal digits that are no MD5, as with SSE-KMS."""
    given: list[str] = []
    put = obstore.put_async

    async def put_async(*args, **options):
        return {**await put(*args, **options), "e_tag": given.pop(0)}

    monkeypatch.setattr(obstore, "put_async", put_async)
    return given


def test_tags_of_a_bucket_that_encrypts_are_not_taken_for_checksums(bucket: BucketObjects, tags: list[str]) -> None:
    async def scenario() -> None:
        tags.extend(["0" * 32, "1" * 32])
        await bucket.create_new("log/1", b"first")
        await bucket.create_new("log/2", b"second")
        assert await bucket.read_whole("log/2") == b"second"

    asyncio.run(scenario())


def test_an_object_that_is_not_what_was_uploaded_is_found(
    bucket: BucketObjects, tags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_tagged(name: str) -> tuple[bytes, str]:
        return b"flipped", "0" * 32

    async def scenario() -> None:
        tags.append("0" * 32)
        monkeypatch.setattr(bucket, "read_tagged", read_tagged)
        with pytest.raises(CorruptDataError, match="other bytes"):
            await bucket.create_new("log/1", b"first")

    asyncio.run(scenario())


# --- the trial of a start


class Repeating(WildObjects):
    """A client that repeats a request whose answer was lost. ``lost``: which changes from now on are sent twice."""

    def __init__(self, bucket: WildBucket, lost: set[int]) -> None:
        super().__init__(bucket)
        self.lost = lost
        self.changes = 0

    async def _change(self, change) -> str:
        self.changes += 1
        if self.changes in self.lost:
            await super()._change(change)
        return await super()._change(change)


def trial(objects: WildObjects) -> LogObjects:
    tier = TierPlace(record=None, objects=MemoryObjects(), place="s3://bucket", endpoint=None, files=None)
    return LogObjects(records=BucketRecord(objects), objects=objects, tier=tier, limits=ObjectLogLimits())


@pytest.mark.parametrize("lost", [{1}, {3}, {4}, {1, 4}, {1, 2}], ids=str)
def test_a_lost_answer_during_the_trial_does_not_refuse_a_start(lost: set[int]) -> None:
    async def scenario() -> None:
        bucket = WildBucket()
        await check_conditions(trial(Repeating(bucket, lost)), rng=SeededRng(1))
        assert bucket.objects == {}

    asyncio.run(scenario())


def test_a_trial_names_a_service_without_conditions() -> None:
    class Careless(WildObjects):
        async def create_new(self, name: str, data: bytes) -> None:
            self.bucket.put(name, data)

    async def scenario() -> None:
        bucket = WildBucket()
        with pytest.raises(UnsupportedError, match="ignores conditions"):
            await check_conditions(trial(Careless(bucket)), rng=SeededRng(1))
        assert bucket.objects == {}

    asyncio.run(scenario())


# --- objects that are deleted by hand


def test_a_missing_object_of_an_open_ledger_is_found_before_the_ledger_is_ended() -> None:
    """What was acknowledged after it would be void forever, even once the object is restored."""

    async def scenario() -> None:
        bucket = WildBucket()
        async with open_log(bucket) as log:
            await replayed(log)
            for number in range(20):
                await log.append([b"%d" % number])
            bucket.is_away = True  # the server is killed: its close changes nothing
        bucket.is_away = False
        missing = sorted(name for name in bucket.objects if name.startswith(LEDGERS))[9]
        data, kept = bucket.objects.pop(missing), len(bucket.objects)
        with pytest.raises(CorruptDataError, match="object of a log is missing"):
            async with open_log(bucket, seed=2):
                pass
        assert len(bucket.objects) == kept, "nothing was ended"
        bucket.put(missing, data)
        async with open_log(bucket, seed=3) as log:
            assert [frame for _, frame in await replayed(log)] == [b"%d" % number for number in range(20)]

    run_virtually(scenario())
