"""What `penstock doctor` says of a directory is what a start on it does, and it changes nothing to find out."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from lost_parts_world import copy, files_of, make, remove, settings_of
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.app.embedded import open_runtime
from penstock.app.integrity.doctor import Diagnosis, diagnose
from penstock.app.settings import StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.offload import ThreadOffload

ENTRIES = ("RESERVE", "VERSION", "LOCK", "catalogue", "chunks", "metadata", "wal", "tier2.json")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = []
    for killed in (False, True):
        for shared in (False, True):
            place = tmp_path_factory.mktemp("store")
            tier2 = place / "tier2" if shared else None
            if tier2 is not None:
                tier2.mkdir()
            make(place / "data", tier2=tier2, killed=killed)
            made.append(place)
    return made


def verdict(data: Path) -> Diagnosis:
    async def look() -> Diagnosis:
        async with ThreadOffload() as offload:
            return await diagnose(data, offload=offload)

    return asyncio.run(look())


def starts(data: Path) -> bool:
    async def start() -> None:
        async with open_runtime(settings_of(data)):
            pass

    try:
        asyncio.run(start())
    except PenstockError:
        return False
    return True


def exit_status(data: Path) -> int:
    """That of ``penstock doctor``."""
    return CliRunner().invoke(app, ["doctor", "--data", str(data)]).exit_code


def lose_row(data: Path, rng: random.Random, *, first: bytes = b"") -> bytes:
    """Remove one row of the metadata whose key begins with ``first``. Returns its key."""
    with closing(sqlite3.connect(data / "metadata/store.db")) as connection:
        keys = [key for (key,) in connection.execute("SELECT key FROM kv ORDER BY key") if key.startswith(first)]
        # Most rows are those of few kinds.
        tag = rng.choice(sorted({key[:1] for key in keys}))
        lost: bytes = rng.choice([key for key in keys if key[:1] == tag])
        connection.execute("DELETE FROM kv WHERE key = ?", (lost,))
        connection.commit()
    return lost


def damage(data: Path, rng: random.Random) -> str:
    """Remove entries, remove a file, cut one off, or change some of its bytes."""
    how = rng.choice(("entries", "remove", "cut", "flip", "flip", "row", "row"))
    if how == "entries":
        lost = rng.sample(ENTRIES, rng.randint(1, 3))
        remove(data, lost)
        return f"without {lost}"
    if how == "row":
        return f"without row {lose_row(data, rng).hex()}"
    files = sorted(path for path in data.rglob("*") if path.is_file() and path.name not in ("LOCK", "RESERVE"))
    path = rng.choice(files)
    size = path.stat().st_size
    if how == "remove":
        path.unlink()
    elif how == "cut":
        os.truncate(path, rng.randrange(size + 1))
    else:
        with path.open("r+b") as file:
            # The beginning of a log file is where its frames are.
            file.seek(rng.randrange(max(1, min(size, 1 << 16))))
            file.write(rng.randbytes(rng.choice((1, 8, 600))))
    return f"{how} {path.relative_to(data)}"


def check_case(stores: list[Path], tmp_path: Path, seed: int) -> str:
    rng = random.Random(seed)
    source = rng.choice(stores)
    whole = tmp_path / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    # Tier 2 is named by its path: it is damaged, and started on, where it is.
    if (source / "tier2").exists():
        copy(source / "tier2", whole / "kept")
    data = whole / "data"
    copy(source / "data", data)
    reported = damage(data, rng)
    try:
        before = files_of(data)
        if not any((data / name).exists() for name in ENTRIES if name not in ("LOCK", "RESERVE")):
            return "empty"
        found = verdict(data)
        assert files_of(data) == before, (seed, reported)
        status = exit_status(data)
        assert files_of(data) == before, (seed, reported)
        started = starts(data)
        assert (found.refusal is None) == started, (seed, reported, found.verdict)
        assert (status == 0) == (started and not found.damage), (seed, reported, status, found.verdict)
        return "starts" if found.refusal is None else "refused"
    finally:
        if (whole / "kept").exists():
            shutil.rmtree(source / "tier2")
            shutil.copytree(whole / "kept", source / "tier2")


def test_the_verdict_is_what_a_start_does(stores: list[Path], tmp_path: Path) -> None:
    outcomes = [check_case(stores, tmp_path, seed) for seed in range(8)]
    assert {"starts", "refused"} <= set(outcomes)


@pytest.mark.slow
def test_the_verdict_is_what_a_start_does_in_many_cases(stores: list[Path], tmp_path: Path) -> None:
    outcomes = [check_case(stores, tmp_path, seed) for seed in range(1000, 1200)]
    print({outcome: outcomes.count(outcome) for outcome in set(outcomes)})
    assert outcomes.count("starts") > 20
    assert outcomes.count("refused") > 20


@pytest.mark.parametrize("lost", [["metadata"], ["wal"], ["chunks"], ["metadata", "wal"]])
def test_a_start_that_is_refused_is_not_promised(stores: list[Path], tmp_path: Path, lost: list[str]) -> None:
    copy(stores[0] / "data", tmp_path / "data")
    remove(tmp_path / "data", lost)
    found = verdict(tmp_path / "data")
    assert found.refusal is not None
    assert "would not start" in found.verdict


def test_the_exit_status_is_that_of_damage_where_a_start_is_refused(stores: list[Path], tmp_path: Path) -> None:
    # Of the killed store the log has bytes of segments whose rows are gone.
    copy(stores[2] / "data", tmp_path / "data")
    while not (found := verdict(tmp_path / "data")).refusal:
        lose_row(tmp_path / "data", random.Random(1), first=records.TAG_SEGMENT)
    assert not starts(tmp_path / "data")
    assert exit_status(tmp_path / "data") == 7
    assert f"penstock rebuild --source {tmp_path / 'data'}" in found.verdict


def test_a_lost_version_is_named_with_what_to_do(stores: list[Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    copy(stores[0] / "data", data)
    (data / "VERSION").unlink()
    before = files_of(data)
    with pytest.raises(CorruptDataError, match=r"has lost its file VERSION.*write one that holds 1") as refused:
        DataDirectory.open(data)
    assert refused.value.fields["missing"] == "VERSION"
    assert files_of(data) == before
    found = verdict(data)
    assert "lost its file VERSION" in (found.refusal or "")
    assert [item.place for item in found.damage] == ["VERSION"]
    assert "VERSION" in " ".join(found.as_json()["advice"])
    (data / "VERSION").write_text("1\n")
    assert exit_status(data) == 0
    assert starts(data)


def test_a_record_of_tier_2_that_cannot_be_read_is_a_verdict(stores: list[Path], tmp_path: Path) -> None:
    copy(stores[1] / "data", tmp_path / "data")
    (tmp_path / "data" / "tier2.json").write_text("{")
    found = verdict(tmp_path / "data")
    assert "tier 2" in (found.refusal or "")
    assert [item.place for item in found.damage] == ["tier2.json"]
    assert not starts(tmp_path / "data")


def test_a_damaged_key_of_erasures_is_a_verdict(stores: list[Path], tmp_path: Path) -> None:
    copy(stores[0] / "data", tmp_path / "data")
    key = tmp_path / "data" / "erasure.key"
    for text in (b"\xff" * 64, b"00" * 31, b""):
        key.write_bytes(text)
        assert "erasure.key" in (verdict(tmp_path / "data").refusal or "")
        assert not starts(tmp_path / "data")
        assert key.read_bytes() == text
    key.unlink()
    assert verdict(tmp_path / "data").refusal is None
    assert starts(tmp_path / "data")


def test_a_first_start_that_died_is_no_damage(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data").close()
    found = verdict(tmp_path / "data")
    assert (found.refusal, found.damage) == (None, [])
    assert "a store starts" in found.verdict


@pytest.mark.server
def test_the_root_of_a_store_of_workers_is_looked_at(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = StandaloneSettings(store=settings_of(data), workers=2, controller_port=0, store_port=0, http_port=0)

    async def start() -> None:
        async with open_standalone(settings):
            pass

    asyncio.run(start())
    found = verdict(data)
    assert (found.refusal, found.damage, len(found.workers)) == (None, [], 2)
    key = (data / "erasure.key").read_bytes()
    (data / "erasure.key").write_bytes(key[:9])
    assert "erasure.key" in (verdict(data).refusal or "")
    (data / "erasure.key").write_bytes(key)
    remove(data, ["workers/1/metadata"])
    assert "workers/1" in (verdict(data).refusal or "")
    remove(data, ["workers/1"])
    assert "lost a part" in (verdict(data).refusal or "")
    remove(data, ["workers.json"])
    assert "workers.json" in (verdict(data).refusal or "")
