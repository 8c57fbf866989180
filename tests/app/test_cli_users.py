"""Commands about users notice a mistake before they ask for a password, and say where they looked."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.app.cli.main import app, main
from penstock.app.cli.upkeep import users
from penstock.model.errors import AlreadyExistsError, NotFoundError
from penstock.storage.access.users_file import users_path


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


def test_a_full_disk_has_its_own_exit_status_and_changes_no_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(tmp_path))
    assert CliRunner().invoke(app, ["user", "add", "ann", "--certificate", "ann.shop", *data]).exit_code == 0
    path = users_path(tmp_path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(sys, "argv", ["penstock", "user", "remove", "ann", *data])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 5
    assert "the disk is full; free space and repeat the command" in capsys.readouterr().err
    assert path.read_bytes() == before
