"""The number of workers of a store is decided once; a start with another number is refused and says what to do."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.app.integrity.offline import open_offline
from penstock.app.integrity.rebuild import rebuild
from penstock.app.segments import open_segments
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import tier2_of_worker
from penstock.app.workers.layout import RECORD, load_layout, settle_layout, worker_directory, workers_of
from penstock.model.errors import ContainerOfflineError, CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.storage.access.users_file import change_users, users_path
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng


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


def test_users_that_were_added_before_the_first_start_leave_the_choice(tmp_path: Path) -> None:
    change_users(users_path(tmp_path), lambda _: None)
    with DataDirectory.open(tmp_path):
        assert workers_of(tmp_path, 3) == 3
        assert settle_layout(tmp_path, 3).workers == 3


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
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        tier2_of_worker(places, 0)
    shared.mkdir()
    assert tier2_of_worker(places, 1) == str(shared / "worker-1")
    assert (shared / "worker-1").is_dir()
    bucket = EmbeddedSettings(data=data, tier2="s3://bucket/prefix/")
    assert tier2_of_worker(bucket, 0) == "s3://bucket/prefix/worker-0"
    assert tier2_of_worker(EmbeddedSettings(data=data), 0) is None


def test_a_store_of_several_workers_is_looked_at_worker_by_worker_and_raises_no_false_alarm(tmp_path: Path) -> None:
    data = tmp_path / "data"
    own = worker_directory(data, 0)

    async def make() -> None:
        with DataDirectory.open(data):
            layout = settle_layout(data, 2)
            with DataDirectory.open(own):
                async with open_segments(
                    EmbeddedSettings(data=own),
                    clock=RealClock(),
                    rng=RealRng(),
                    telemetry=Counters(),
                    containers=layout.containers,
                    owned=layout.owned(0),
                ) as store:
                    for number in range(20):
                        with suppress(ContainerOfflineError):
                            await store.create_segment(f"s/t/{number}.#epoch.0")

    async def damage(place: Path) -> list[object]:
        async with ThreadOffload() as offload, open_offline(place, offload=offload) as store:
            scrubber, found, cursor = store.scrubber(offload), list(store.damage), None
            while (page := await scrubber.page(cursor, 1 << 22)).cursor is not None:
                found += page.damage
                cursor = page.cursor
            return [*found, *page.damage]

    asyncio.run(make())
    with pytest.raises(InvalidArgumentError, match="several workers") as refused:
        asyncio.run(damage(data))
    assert refused.value.fields["first"] == str(own)
    assert asyncio.run(damage(own)) == []
    with pytest.raises(InvalidArgumentError, match="the part of one worker"):
        asyncio.run(rebuild(str(own), tmp_path / "new"))
    # As tier 2 alone, which does not say whose it is but by what it holds.
    tier = tmp_path / "tier2"
    tier.mkdir()
    (own / "catalogue").rename(tier / "catalogue")
    (own / "chunks").rename(tier / "chunks") if (own / "chunks").exists() else (tier / "chunks").mkdir()
    with pytest.raises(InvalidArgumentError, match="the part of one worker"):
        asyncio.run(rebuild(str(tier), tmp_path / "new"))
    assert not (tmp_path / "new").exists()
