"""How many workers a store has is decided once, and whoever says otherwise is told what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import penstock
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.tier2 import tier2_of_worker
from penstock.app.worker_layout import RECORD, load_layout, settle_layout, workers_of
from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.storage.data_directory import DataDirectory


def settled(data: Path, workers: int) -> Path:
    with DataDirectory.open(data):
        settle_layout(data, workers)
    return data


def test_a_new_store_has_what_was_asked_for_and_keeps_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert (workers_of(data, None), workers_of(data, 1), workers_of(data, 3)) == (1, 1, 3)
    settled(data, 3)
    assert (workers_of(data, None), workers_of(data, 3)) == (3, 3)
    layout = load_layout(data)
    assert layout is not None
    assert layout.containers == 12
    assert sorted(index for worker in range(3) for index in layout.owned(worker)) == list(range(12))
    for other in (1, 2, 4):
        with pytest.raises(InvalidArgumentError, match="created_with=3"):
            workers_of(data, other)
        with pytest.raises(InvalidArgumentError, match="copy the streams to a new store"):
            settle_layout(data, other)
    assert load_layout(data) == layout


def test_a_store_of_one_process_stays_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with penstock.open(data) as store:
        store.create_stream("s/t", create_scope=True)
    assert (workers_of(data, None), workers_of(data, 1)) == (1, 1)
    with pytest.raises(InvalidArgumentError, match="created_with=1"):
        workers_of(data, 2)
    assert load_layout(data) is None


def test_a_first_start_that_died_leaves_the_choice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    DataDirectory.open(data).close()
    assert workers_of(data, 2) == 2


def test_a_store_of_several_workers_is_not_opened_by_one_process(tmp_path: Path) -> None:
    data = settled(tmp_path / "data", 2)
    before = sorted(entry.name for entry in data.iterdir())
    with pytest.raises(InvalidArgumentError, match="penstock standalone"):
        penstock.open(data)
    assert sorted(entry.name for entry in data.iterdir()) == before


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (b"", CorruptDataError),
        (b'{"format": 1}', CorruptDataError),
        (b'{"format": 1, "workers": 1, "containers": 4}', CorruptDataError),
        (b'{"format": 1, "workers": 4, "containers": 3}', CorruptDataError),
        (json.dumps({"format": 2, "workers": 2, "containers": 8}).encode(), VersionTooNewError),
    ],
)
def test_a_record_that_cannot_be_is_refused(tmp_path: Path, record: bytes, kind: type[Exception]) -> None:
    (tmp_path / RECORD).write_bytes(record)
    with pytest.raises(kind):
        load_layout(tmp_path)


def test_workers_listen_on_ports_that_follow_each_other(tmp_path: Path) -> None:
    def settings(**ports: int) -> StandaloneSettings:
        return StandaloneSettings(store=EmbeddedSettings(data=tmp_path), **ports)

    assert [settings().worker_port(worker) for worker in range(3)] == [12345, 12346, 12347]
    assert settings(store_port=0).worker_port(2) == 0
    for ports in ({"store_port": 65535}, {"store_port": 9089}, {"store_port": 9089, "controller_port": 0}):
        with pytest.raises(InvalidArgumentError, match="another --store-port"):
            [settings(**ports).worker_port(worker) for worker in range(3)]


def test_numbers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for workers in (0, 65):
        with pytest.raises(InvalidArgumentError, match="number of workers"):
            StandaloneSettings(store=EmbeddedSettings(data=tmp_path), workers=workers)


def test_each_worker_has_a_part_of_tier_2_of_its_own(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    data = tmp_path / "data"
    places = EmbeddedSettings(data=data, tier2=str(shared))
    with pytest.raises(InvalidArgumentError, match="not there"):
        tier2_of_worker(places, 0)
    shared.mkdir()
    assert tier2_of_worker(places, 1) == str(shared / "worker-1")
    assert (shared / "worker-1").is_dir()
    bucket = EmbeddedSettings(data=data, tier2="s3://bucket/prefix/")
    assert tier2_of_worker(bucket, 0) == "s3://bucket/prefix/worker-0"
    assert tier2_of_worker(EmbeddedSettings(data=data), 0) is None
