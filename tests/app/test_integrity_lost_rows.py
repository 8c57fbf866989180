"""Rows of the metadata that are missing: what a scrub and the doctor report, and what a start makes of it."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from integrity_world import built, seen
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.codec.store import rows as records

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
