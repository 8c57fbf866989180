"""Commands about users notice a mistake before they ask for a password, and say where they looked."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.cli.main import app
from penstock.app.cli.upkeep import users
from penstock.model.errors import AlreadyExistsError, NotFoundError
from tests.command_line import CliRunner


def test_a_mistaken_name_is_noticed_before_the_password_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(users.PASSWORD_VARIABLE, "correct horse")
    data = ("--data", str(tmp_path))
    assert CliRunner().invoke(app, ["user", "add", "ann", *data]).exit_code == 0

    def asked(*_: object, **__: object) -> None:
        pytest.fail("a password was asked for")

    monkeypatch.setattr(users, "_password", asked)
    assert isinstance(CliRunner().invoke(app, ["user", "add", "ann", *data]).exception, AlreadyExistsError)
    assert isinstance(CliRunner().invoke(app, ["user", "passwd", "bob", *data]).exception, NotFoundError)


def test_listing_no_users_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users.list_users(tmp_path / "mistaken")
    assert str(tmp_path / "mistaken") in capsys.readouterr().err
    assert not (tmp_path / "mistaken").exists()
