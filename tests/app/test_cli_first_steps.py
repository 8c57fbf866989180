"""Mistakes of people who meet the commands for the first time: each is refused with what to do."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.access.security import open_security
from penstock.app.access.settings import AccessSettings
from penstock.app.cli.main import app
from penstock.app.cli.upkeep.servers import _ready_text
from penstock.app.telemetry import Counters
from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.clock import RealClock

FACTS = {"controller": "h:9090", "store": "h:1", "http": "h:2", "data": "d", "workers": []}


def refused(*words: str) -> str:
    found = CliRunner().invoke(app, list(words))
    assert isinstance(found.exception, InvalidArgumentError), found.output
    return str(found.exception)


def test_a_due_time_in_the_past_is_refused(tmp_path: Path) -> None:
    values = tmp_path / "ids.txt"
    values.write_text("x\n")
    words = ("erase", "request", "demo", "--values-from", str(values), "--reason", "r", "--yes")
    assert "in the past" in refused(*words, "--due", "2020-01-31")


def test_a_token_needs_rights_and_a_store(tmp_path: Path) -> None:
    assert "--grant" in refused("token", "issue", "--name", "job", "--data", str(tmp_path))
    words = ("token", "issue", "--name", "job", "--grant", "/=read", "--data")
    assert "no store" in refused(*words, str(tmp_path / "mistyped"))
    assert not (tmp_path / "mistyped").exists()
    with penstock.open(tmp_path / "store"):
        pass
    assert CliRunner().invoke(app, [*words, str(tmp_path / "store")]).exit_code == 0


@pytest.mark.parametrize("words", [("user", "import"), ("user", "add", "ann", "--new-password-file")])
def test_an_error_names_the_missing_file(words: tuple[str, ...], tmp_path: Path) -> None:
    said = refused(*words, str(tmp_path / "none"), "--data", str(tmp_path))
    assert "cannot be read" in said
    assert str(tmp_path / "none") in said
    assert "Errno" not in said


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("auth", [False, True])
def test_the_first_command_has_the_options_that_this_server_needs(
    tls: bool, auth: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _ready_text({**FACTS, "tls": tls, "auth": auth})
    line = capsys.readouterr().out.splitlines()[-1]
    assert ("tls://" in line, "--tls-ca" in line, "--password-file" in line) == (tls, tls, auth)


def test_a_server_whose_users_are_missing_says_how_to_add_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            open_security(AccessSettings(), tmp_path, None, clock=RealClock(), telemetry=Counters())
        return [item.message for item in caplog.records if "penstock user add" in item.message]

    assert len(said()) == 1
    added = CliRunner().invoke(
        app, ["user", "add", "ann", "--certificate", "ann.shop", "--grant", "/=*", "--data", str(tmp_path)]
    )
    assert added.exit_code == 0
    assert said() == []
