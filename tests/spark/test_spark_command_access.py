"""Each command of ``penstock spark`` presents the credentials and the TLS options that it is given.

No Spark starts: a command asks the store first. The wrong password gets its one sentence, and the right user gets past it: to a
report, or to a stream that does not exist, which a caller without rights would not learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from auth_world import AuthServer, auth_server, without_credentials

from penstock.app.cli.common.security import add_options
from penstock.model.errors import PenstockError, StreamNotFoundError, UnauthenticatedError
from penstock.spark.cli import app
from penstock.spark.connect import close_links
from penstock.spark.jobs import load

pytestmark = pytest.mark.server
LOST = "plant/missing"
COMMANDS: dict[str, Sequence[str]] = {
    "load": (LOST, "{files}", "--dry-run"),
    "export": (LOST, "{out}", "--dry-run"),
    "scrub": (LOST, "--dry-run"),
    "erase": (LOST, "--json-field", "id", "--values-from", "{files}", "--reason", "asked", "--dry-run"),
    "table": (LOST, "{out}", "--key-by", "id", "--dry-run"),
    "lake": (LOST, "{out}", "--format", "parquet", "--dry-run"),
    "fleet": ("--facts", "store", "--dry-run"),
    "audit": ("--dry-run",),
}
"""A cheap call of each command that reaches a store."""
ANSWERED = {"load", "fleet", "audit"}
"""Those that succeed: they name no stream, or would create it."""


def command() -> Any:
    made = typer.main.get_command(app)
    add_options(made)
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthServer]:
    with auth_server(tmp_path_factory.mktemp("auth")) as running:
        yield running


@contextmanager
def no_session(*_: object, **__: object) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace()


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An environment without credentials, which is restored: the options of a command set variables."""
    import os

    monkeypatch.setattr(os, "environ", without_credentials(os.environ))
    for name in COMMANDS:
        monkeypatch.setattr(import_module(f"penstock.spark.cli.{name}"), "spark_session", no_session)
    # What Spark finds in the files, before the store is asked.
    for name, found in {"_read": None, "_listed": [], "events_of": None, "_sample": []}.items():
        monkeypatch.setattr(load, name, lambda *_, found=found, **__: found)
    yield monkeypatch
    close_links()


def run(name: str, server: AuthServer, tmp_path: Path, options: Sequence[str]) -> PenstockError | None:
    """The error with which the command ends."""
    (tmp_path / "files").mkdir(exist_ok=True)
    (tmp_path / "files" / "one.txt").write_text("x\n")
    places = {"files": str(tmp_path / "files" / "one.txt"), "out": str(tmp_path / "out")}
    words = [word.format(**places) for word in COMMANDS[name]]
    try:
        command()([name, *words, "--controller", server.address, *options], standalone_mode=False)
    except PenstockError as error:
        return error
    return None


def options_of(environment: dict[str, str]) -> list[str]:
    return [
        *("--tls-ca", environment["PENSTOCK_TLS_CA"]),
        *("--user", environment["PENSTOCK_USER"]),
        *("--password-file", environment["PENSTOCK_PASSWORD_FILE"]),
    ]


def test_every_command_that_reaches_a_store_is_tested() -> None:
    reaching = {
        name for name, one in command().commands.items() if any(item.name == "controller" for item in one.params)
    }
    assert reaching == set(COMMANDS)


@pytest.mark.parametrize("way", ["environment", "options"])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_right_user_gets_in_and_the_wrong_password_is_reported(
    name: str, way: str, server: AuthServer, tmp_path: Path, clean: pytest.MonkeyPatch
) -> None:
    import os

    def tried(password: str | None = None) -> PenstockError | None:
        user = "root" if name == "audit" else "etl"
        found = server.environment(user) if password is None else server.environment(user, password)
        if way == "environment":
            os.environ.update(found)
            return run(name, server, tmp_path, ())
        return run(name, server, tmp_path, options_of(found))

    wrong = tried("wrong")
    assert isinstance(wrong, UnauthenticatedError), wrong
    assert str(wrong).startswith("the name or the password is wrong")
    close_links()
    right = tried()
    assert right is None if name in ANSWERED else isinstance(right, StreamNotFoundError), right


@pytest.mark.parametrize("name", COMMANDS)
def test_without_credentials_the_command_reports_what_is_missing(
    name: str, server: AuthServer, tmp_path: Path, clean: pytest.MonkeyPatch
) -> None:
    found = run(name, server, tmp_path, ("--tls-ca", str(server.authority)))
    assert isinstance(found, UnauthenticatedError)
    assert "this server needs credentials" in str(found)
