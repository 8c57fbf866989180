"""Rows of the metadata that are missing: what a scrub and the doctor report, and what a start makes of it."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from integrity_world import built, seen
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.codec import records

COPIED = [
    records.STORE_KEY,
    records.STORE_COPY_KEY,
    records.prefix(records.TAG_CONTAINER, 0),
    records.container_copy_key(1),
]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "data"
    built(path)
    return path


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "data"))


def lose(data: Path, *keys: bytes) -> None:
    connection = sqlite3.connect(data / "metadata/store.db")
    for key in keys:
        assert connection.execute("DELETE FROM kv WHERE key = ?", (key,)).rowcount == 1, key
    connection.commit()
    connection.close()


def reported(data: Path) -> None:
    """Both commands end with the status of damage."""
    for command in ("scrub", "doctor"):
        result = CliRunner().invoke(app, [command, "--data", str(data)])
        assert result.exit_code == 7, (command, result.output, result.exception)
        assert "missing" in result.output, command


@pytest.mark.parametrize("key", COPIED, ids=bytes.hex)
def test_a_lost_row_with_a_copy_is_reported_and_loses_nothing(pristine: Path, data: Path, key: bytes) -> None:
    lose(data, key)
    reported(data)
    assert seen(data) == seen(pristine)
    if key[:1] == records.TAG_STORE:
        # The rows of a container are written again by its next checkpoint, and here nothing is written.
        assert CliRunner().invoke(app, ["doctor", "--data", str(data)]).exit_code == 0


def test_the_doctor_reports_a_store_whose_row_and_copy_are_lost(data: Path) -> None:
    lose(data, records.STORE_KEY, records.STORE_COPY_KEY)
    reported(data)


@pytest.mark.parametrize("tag", [records.TAG_SEGMENT, records.TAG_NAME])
def test_a_lost_row_of_a_segment_or_of_its_name_is_reported(data: Path, tag: bytes) -> None:
    connection = sqlite3.connect(data / "metadata/store.db")
    names = [key for (key,) in connection.execute("SELECT key FROM kv ORDER BY key") if key[:1] == records.TAG_NAME]
    name = next(key for key in names if not key[3:].startswith(b"_"))
    (value,) = connection.execute("SELECT value FROM kv WHERE key = ?", (name,)).fetchone()
    connection.close()
    container = int.from_bytes(name[1:3], "big")
    uid = records.parse_number(value[-8:])
    lost = name if tag == records.TAG_NAME else records.uid_key(tag, container, uid)
    lose(data, lost)
    for command in ("scrub", "doctor"):
        result = CliRunner().invoke(app, [command, "--data", str(data)])
        assert result.exit_code == 7, (command, result.output, result.exception)
        assert lost.hex() in result.output, (command, result.output)
