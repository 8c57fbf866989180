"""Stores that acknowledge an append once tier 2 has it: what a start refuses, takeovers, outages, erasure."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.app.embedded import embedded_settings, open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.app.standalone import StandaloneSettings, open_standalone
from penstock.client.store import AsyncStore
from penstock.codec.log_objects import LEDGERS, LogObject, encode_object, object_name
from penstock.codec.store.ledger_entries import LedgerHeader, encode_header
from penstock.codec.store.ledger_keys import DIRECTORY, decode_key_object
from penstock.core.segments.erasure_receipt import receipt_problems
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    UnsupportedError,
)
from penstock.storage.object_log.limits import ObjectLogLimits
from penstock.testing import ServerProcess
from penstock.testing.conformance.durable_log import replayed
from tests.app.erasure_events import SECRET, events_of, fill, hits_of
from tests.cluster.object_log_kit import WildBucket, open_log
from tests.cluster.virtual_time import run_virtually
from tests.storage.s3_world import SERVERS, S3Server, running


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    made = tmp_path / "tier2"
    made.mkdir()
    return made


def names(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*")}


# --- what a start refuses


def test_what_does_not_fit_together_is_refused(tmp_path: Path, tier: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="give --tier2"), penstock.open(tmp_path / "a", ack="tier2"):
        pass
    for wrong, word in (
        ({"ack": "disc"}, "disk or tier2"),
        ({"ack": "tier2", "log_at": "bookkeeper://zk:2181/a"}, "leave --ack out"),
        ({"ack": "tier2", "tier2": "hdfs://namenode:8020/a"}, "with HDFS, keep the log on BookKeeper"),
        ({"ack_wait_ms": -1}, "negative"),
        ({"take_over": True}, "--ack tier2"),
    ):
        with pytest.raises(InvalidArgumentError, match=word):
            EmbeddedSettings(data=tmp_path, **wrong)
    store = EmbeddedSettings(data=tmp_path / "b", ack="tier2", tier2=str(tier))

    async def serve() -> None:
        async with open_standalone(StandaloneSettings(store=store, workers=2)):
            pass

    with pytest.raises(InvalidArgumentError, match="leave --workers out"):
        asyncio.run(serve())
    assert names(tier) == set()


def test_a_store_keeps_the_log_that_it_was_created_with(tmp_path: Path, tier: Path) -> None:
    with penstock.open(tmp_path / "a", ack="tier2", tier2=str(tier)) as store:
        store.create_stream("s/t", create_scope=True)
    before = names(tier)
    with pytest.raises(InvalidArgumentError, match="--ack tier2"), penstock.open(tmp_path / "a"):
        pass
    with (
        pytest.raises(InvalidArgumentError, match="in tier 2"),
        penstock.open(tmp_path / "a", log_at="bookkeeper://zk:2181/a"),
    ):
        pass
    with penstock.open(tmp_path / "disk"):
        pass
    (tmp_path / "other").mkdir()
    with (
        pytest.raises(InvalidArgumentError, match="leave --ack out"),
        penstock.open(tmp_path / "disk", ack="tier2", tier2=str(tmp_path / "other")),
    ):
        pass
    with (
        pytest.raises(InvalidArgumentError, match=r"belongs to another store.*--take-over"),
        penstock.open(tmp_path / "b", ack="tier2", tier2=str(tier)),
    ):
        pass
    with (
        pytest.raises(InvalidArgumentError, match="nothing to take over: check --tier2"),
        penstock.open(tmp_path / "b", ack="tier2", tier2=str(tmp_path / "other"), take_over=True),
    ):
        pass
    assert names(tmp_path / "other") == set()
    assert names(tier) == before
    with penstock.open(tmp_path / "a", ack="tier2") as store:  # the place of tier 2 is remembered
        assert events_of(store.stream("s/t")) == []


def test_a_log_in_tier_2_needs_no_client_of_zookeeper(tmp_path: Path, tier: Path) -> None:
    code = (
        "import sys; sys.modules['kazoo'] = None\n"
        "import penstock\n"
        f"with penstock.open({str(tmp_path / 'a')!r}, ack='tier2', tier2={str(tier)!r}): pass\n"
        f"with penstock.open({str(tmp_path / 'b')!r}, ack='tier2', tier2={str(tier)!r}, take_over=True): pass\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_log_that_vanished_is_named(tmp_path: Path, tier: Path) -> None:
    with penstock.open(tmp_path / "a", ack="tier2", tier2=str(tier)) as store:
        store.create_stream("s/t", create_scope=True)
    (tier / "log").rename(tmp_path / "away")
    with pytest.raises(CorruptDataError, match="missing in tier 2"), penstock.open(tmp_path / "a", ack="tier2"):
        pass
    (tmp_path / "away").rename(tier / "log")
    tier.rename(tmp_path / "unmounted")
    tier.mkdir()
    with pytest.raises(InvalidArgumentError, match="check the mount"), penstock.open(tmp_path / "a", ack="tier2"):
        pass
    assert names(tier) == set()
    tier.rmdir()
    (tmp_path / "unmounted").rename(tier)
    with penstock.open(tmp_path / "a", ack="tier2"):
        pass


def test_ledgers_of_dead_openings_are_deleted_and_no_others(tmp_path: Path, tier: Path) -> None:
    for number in range(3):
        with (
            penstock.open(tmp_path / "a", ack="tier2", tier2=str(tier)) as store,
            store.create_stream(f"s/t{number}", create_scope=True).writer() as writer,
        ):
            writer.write(b"event")
    named = {path.name for path in (tier / LEDGERS).iterdir()}

    def plant(ledger: int, number: int, epoch: int) -> Path:
        """An object of a ledger that no record names."""
        place = tier / object_name(ledger, number)
        place.parent.mkdir()
        header = encode_header(LedgerHeader(epoch=epoch, first=1))
        place.write_bytes(encode_object(LogObject(ledger=ledger, number=number, first=0, count=1), [header]))
        return place

    late, spare, newer = plant(1, 7, 1), plant(2, 0, 2), plant(3, 0, 1000)
    damaged = tier / object_name(0, 0)
    damaged.parent.mkdir()
    damaged.write_bytes(b"not an object of a log")
    draft = spare.with_name("00000001.0123456789abcdef.tmp")
    draft.write_bytes(b"its writer was killed")
    with penstock.open(tmp_path / "a", ack="tier2") as store:
        for number in range(3):
            assert [event.data for event in events_of(store.stream(f"s/t{number}"))] == [b"event"]
    assert not late.exists(), "an object that arrived after its ledger was deleted"
    assert not spare.exists(), "a ledger that its opening never used"
    assert not spare.parent.exists(), "with the drafts of killed writers"
    assert newer.exists(), "a ledger that a later opening has begun"
    assert damaged.exists(), "nobody knows whose it is, and it does not keep the others"
    assert {path.name for path in (tier / "log").iterdir()} == {"ledgers", "record"}, "trials leave nothing"
    assert named <= {path.name for path in (tier / LEDGERS).iterdir()}


# --- takeovers


def test_a_living_owner_that_was_deposed_acknowledges_nothing(tmp_path: Path, tier: Path) -> None:
    place = {"ack": "tier2", "tier2": str(tier), "take_over": True}
    asyncio.run(rivals(tmp_path, place))


async def rivals(path: Path, place: dict[str, object]) -> None:
    async with open_runtime(embedded_settings(path / "first", {**place, "take_over": False})) as first:
        store = AsyncStore(first.segments, first.controller, first.clock, first.rng)
        await store.create_stream("s/t", segments=1, create_scope=True)
        await append(store, range(300))
        await first.segments.flush()
        await append(store, range(300, 500))
        async with open_runtime(embedded_settings(path / "second", place)) as second:
            elsewhere = AsyncStore(second.segments, second.controller, second.clock, second.rng)
            assert await numbers_of(elsewhere) == list(range(500))
            await append(elsewhere, range(500, 550))
            with pytest.raises(PenstockError):
                async with asyncio.timeout(30):
                    await append(store, range(9000, 9001))
            await second.segments.flush()
    async with open_runtime(embedded_settings(path / "third", place)) as third:
        store = AsyncStore(third.segments, third.controller, third.clock, third.rng)
        assert await numbers_of(store) == list(range(550))


async def numbers_of(store: AsyncStore) -> list[int]:
    async with store.stream("s/t").reader(until_tail=True) as reader:
        return [int(event.data) async for event in reader]


async def append(store: AsyncStore, numbers: range) -> None:
    async with store.stream("s/t").writer(deadline_s=5.0) as writer:
        for number in numbers:
            await writer.write(b"%d" % number)


def test_acknowledged_events_outlive_the_machine(tmp_path: Path, tier: Path) -> None:
    """Killed under load, and its data directory deleted: another directory continues from tier 2 alone."""
    options = ("--ack", "tier2", "--tier2", str(tier))
    acknowledged = [-1]

    def load(address: str, ready: threading.Event) -> None:
        try:
            with penstock.connect(address) as store, store.stream("s/t").writer(deadline_s=5.0) as writer:
                while True:
                    first = acknowledged[0] + 1
                    for number in range(first, first + 50):
                        writer.write(b"%d" % number, key="ann")
                    writer.flush()
                    acknowledged[0] = first + 49
                    if first >= 1000:
                        ready.set()
        except penstock.PenstockError:
            ready.set()

    with ServerProcess(tmp_path / "first", *options) as server:
        with penstock.connect(server.address) as store:
            store.create_stream("s/t", segments=3, create_scope=True)
        ready = threading.Event()
        writing = threading.Thread(target=load, args=(server.address, ready))
        writing.start()
        assert ready.wait(60)
        server.kill()
        writing.join()
    shutil.rmtree(tmp_path / "first")
    assert acknowledged[0] >= 1000
    with (
        ServerProcess(tmp_path / "second", *options, "--take-over") as server,
        penstock.connect(server.address) as store,
    ):
        found = [int(event.data) for event in store.stream("s/t").reader(until_tail=True)]
    assert found == list(range(len(found)))
    assert len(found) > acknowledged[0]


# --- outages


def test_appends_wait_for_a_bucket_that_is_away_and_a_close_does_not() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        bucket = WildBucket(delay_s=0.001)
        async with open_log(bucket) as log:
            await replayed(log)
            assert await log.append([b"before"]) == 1
            bucket.is_away = True
            waiting = asyncio.ensure_future(log.append([b"during"]))
            await asyncio.sleep(60)
            assert not waiting.done()
            bucket.is_away = False
            assert await waiting == 2
            bucket.is_away = True
            lost = asyncio.ensure_future(log.append([b"unknown"]))
            await asyncio.sleep(1)
            began_s = loop.time()
        assert loop.time() - began_s < 12
        with pytest.raises(ContainerOfflineError):
            await lost
        bucket.is_away = False
        async with open_log(bucket, seed=2) as log:
            frames = [frame for _, frame in await replayed(log)]
            assert frames in ([b"before", b"during"], [b"before", b"during", b"unknown"])

    run_virtually(scenario())


def test_an_idle_log_writes_nothing_and_single_appends_are_limited_in_number() -> None:
    """What a bucket costs is bounded: four objects in each second at most, after forty that are ahead of that."""

    async def scenario() -> None:
        bucket = WildBucket(delay_s=0.001)
        async with open_log(bucket, objects=ObjectLogLimits()) as log:
            await replayed(log)
            before = len(bucket.writes)
            await asyncio.sleep(300)
            assert len(bucket.writes) == before
            began_s = asyncio.get_running_loop().time()
            for _ in range(40):
                await log.append([b"one"])
            assert asyncio.get_running_loop().time() - began_s < 1, "the first appends wait for one write each"
            for _ in range(400):
                await log.append([b"one"])
            took_s = asyncio.get_running_loop().time() - began_s
            assert 95 < took_s < 110
            await asyncio.gather(*(log.append([bytes(1000)]) for _ in range(1000)))
            assert len(bucket.writes) - before < 460, "appends that come together share objects"

    run_virtually(scenario())


# --- erasure


def test_what_was_erased_is_in_no_object_and_the_receipt_says_how(tmp_path: Path, tier: Path) -> None:
    with penstock.open(tmp_path / "a", ack="tier2", tier2=str(tier)) as store:
        stream = store.create_stream("s/t", segments=3, create_scope=True)
        fill(stream, 700)
        receipt = stream.erase(hits_of(events_of(stream)), who="ann", why="request 17", erasure="r17")
        assert hits_of(events_of(stream)) == []
    assert receipt_problems(receipt) == []
    said = receipt["tiers"]["log"]
    assert said.startswith("the bytes of the log in tier 2 are unreadable, because their keys were destroyed by 2")
    assert said.endswith("the objects are deleted later")
    assert receipt["log_keys"]["count"] > 0
    keys = {file.name: file.read_bytes() for file in (tier / DIRECTORY).glob("*/*")}
    for key in receipt["log_keys"]["keys"]:
        assert not isinstance(decode_key_object(keys[key], name=key), bytes)
    for place in (tier, tmp_path / "a"):
        for file in place.rglob("*"):
            assert not file.is_file() or SECRET not in file.read_bytes(), file


# --- real buckets


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.mark.server
@pytest.mark.slow
def test_a_store_acknowledges_after_a_real_bucket_or_is_refused(tmp_path: Path, server: S3Server) -> None:
    """Swift knows no conditions on writes: a start says so before it has changed anything."""
    url = f"{server.new_bucket()}/store1"
    place = {**server.place(url), "ack": "tier2", "take_over": True}
    if server.name == "swift":
        with (
            pytest.raises(UnsupportedError, match="does not know conditional writes"),
            penstock.open(tmp_path / "first", **{**place, "take_over": False}),
        ):
            pass
        return
    asyncio.run(rivals(tmp_path, place))
