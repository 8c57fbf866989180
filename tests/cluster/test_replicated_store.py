"""A store whose log is on BookKeeper: it is bound to its log, and what cannot work with it is refused with the reason."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import penstock
from penstock.app.backup.take import take_backup
from penstock.app.integrity.source import open_source
from penstock.app.replicated.log_place import MARK, LogPlace, check_log_choice, parse_log_place, read_mark
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.codec.store.container_record import decode_record, encode_record
from penstock.model.errors import CorruptDataError, InvalidArgumentError, PenstockError, UnsupportedError
from penstock.storage.machine.offload import ThreadOffload
from penstock.testing.bookkeeper.bookies import SimBookKeeper
from tests.cluster.replicated_kit import URL, put_in_place

PATH = "/penstock/store1"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> SimBookKeeper:
    simulated = SimBookKeeper()
    put_in_place(simulated, monkeypatch)
    return simulated


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SimBookKeeper, Path]:
    """A store with 100 events, made once. Each test works on a copy."""
    simulated, path = SimBookKeeper(), tmp_path_factory.mktemp("made") / "store"
    with pytest.MonkeyPatch.context() as monkeypatch:
        put_in_place(simulated, monkeypatch)
        with penstock.open(path, log_at=URL) as store:
            clicks = store.create_stream("shop/clicks", create_scope=True)
            with clicks.writer() as writer:
                for number in range(100):
                    writer.write(b"%d" % number)
    return simulated, path


@pytest.fixture
def data(world: SimBookKeeper, made: tuple[SimBookKeeper, Path], tmp_path: Path) -> Path:
    """A store with 100 events."""
    original, path = made
    world.become(original)
    shutil.copytree(path, tmp_path / "store")
    return tmp_path / "store"


def events(data: Path, **settings: object) -> list[bytes]:
    with penstock.open(data, **settings) as store:
        return [event.data for event in store.stream("shop/clicks").reader(until_tail=True)]


EVENTS = [b"%d" % number for number in range(100)]


def test_events_outlive_the_store_and_a_bookie(world: SimBookKeeper, data: Path) -> None:
    assert not list((data / "wal").glob("*.log")), "no local log"
    assert events(data, log_at=URL) == EVENTS
    world.bookies["bookie-0"].stop()
    assert events(data, log_at=URL) == EVENTS


def test_another_address_of_the_same_log_is_accepted(world: SimBookKeeper, data: Path) -> None:
    assert events(data, log_at="bookkeeper://zk3:2181/penstock/store1/") == EVENTS


def test_a_store_starts_on_no_other_log(world: SimBookKeeper, data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is on BookKeeper: serve it with"):
        events(data)
    with pytest.raises(CorruptDataError, match="missing in ZooKeeper"):
        events(data, log_at=URL + "2")
    with penstock.open(tmp_path / "local"):
        pass
    with pytest.raises(InvalidArgumentError, match="a log cannot be moved"):
        events(tmp_path / "local", log_at=URL)
    before = world.nodes.nodes[PATH]
    with (
        pytest.raises(InvalidArgumentError, match="the log at this path belongs to another store"),
        penstock.open(tmp_path / "second", log_at=URL),
    ):
        pass
    assert world.nodes.nodes[PATH] == before, "the owner was not fenced"
    assert events(data, log_at=URL) == EVENTS


def test_an_older_copy_of_the_record_is_refused(world: SimBookKeeper, data: Path) -> None:
    older = world.nodes.nodes[PATH]
    for _ in range(2):
        with penstock.open(data, log_at=URL) as store:
            store.create_stream("shop/more", if_absent=True)
    record = decode_record(older[0])
    world.nodes.nodes[PATH] = (encode_record(record), 99)
    with pytest.raises(PenstockError) as caught:
        events(data, log_at=URL)
    assert isinstance(caught.value, CorruptDataError)


def test_lost_metadata_is_not_created_again(world: SimBookKeeper, data: Path) -> None:
    shutil.rmtree(data / "metadata")
    with pytest.raises(CorruptDataError, match="metadata"):
        events(data, log_at=URL)


def test_a_mark_that_is_lost_or_damaged_stops_the_start(world: SimBookKeeper, data: Path) -> None:
    (data / MARK).write_text("{}")
    with pytest.raises(CorruptDataError, match="mark of the store's log"):
        events(data, log_at=URL)
    (data / MARK).unlink()
    for settings in ({"log_at": URL}, {}):
        with pytest.raises(CorruptDataError, match="wal"):
            events(data, **settings)


def test_backup_and_work_on_the_stopped_store_are_refused(world: SimBookKeeper, data: Path, tmp_path: Path) -> None:
    async def try_both() -> None:
        with pytest.raises(UnsupportedError, match="a backup is not supported"):
            await take_backup(data, tmp_path / "backup")
        async with ThreadOffload() as offload:
            with pytest.raises(UnsupportedError, match="stopped store"):
                async with open_source(str(data), offload=offload):
                    pass

    asyncio.run(try_both())
    assert events(data, log_at=URL) == EVENTS, "the directory is not locked"


def test_several_workers_are_refused(tmp_path: Path) -> None:
    async def start() -> None:
        store = EmbeddedSettings(data=tmp_path / "store", log_at=URL)
        async with open_standalone(StandaloneSettings(store=store, workers=2)):
            pass

    with pytest.raises(InvalidArgumentError, match="leave --workers out"):
        asyncio.run(start())
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "url",
    ["bookkeeper://", "bookkeeper://zk:1", "bookkeeper://zk:1/", "http://zk:1/x", "bookkeeper://u:p@zk:1/x",
     "bookkeeper://zk:1/x?other=1", "bookkeeper://zk:1/x?ledgers=l", "bookkeeper://zk:1/x#y"],
)  # fmt: skip
def test_addresses_of_another_form_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        EmbeddedSettings(data=tmp_path, log_at=url)


def test_the_parts_of_an_address(tmp_path: Path) -> None:
    assert parse_log_place(URL) == LogPlace(hosts="zk1:2181,zk2:2181", path=PATH, ledgers_root="/ledgers")
    assert parse_log_place("bookkeeper://zk:1/a?ledgers=/bk/").ledgers_root == "/bk"
    assert read_mark(tmp_path) is None
    check_log_choice(tmp_path, None)
    check_log_choice(tmp_path, URL)
