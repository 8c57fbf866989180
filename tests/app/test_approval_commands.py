"""``penstock approval`` with two users: one requests, the other one decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import LiveServer
from typer.testing import CliRunner, Result

from penstock.app.access.settings import AccessSettings
from penstock.app.cli.main import app
from penstock.app.cli.upkeep.approvals import arguments_in_words
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.core.access.resources import parse_grant
from penstock.model.errors import (
    ApprovalRequiredError,
    ConflictError,
    InvalidArgumentError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path

pytestmark = pytest.mark.server
PASSWORD = "correct horse"
RIGHTS = {"al": "/scope:crm=read,write,admin,retain", "bea": "/scope:crm=approve", "root": "/=*"}
DAY_MS = 86_400_000


def allow(data: Path, rights: dict[str, str]) -> None:
    digest = hash_password(PASSWORD)

    def change(users: dict[str, User]) -> None:
        for name, right in rights.items():
            users[name] = User(name=name, password=digest, grants=(parse_grant(right),))

    change_users(users_path(data), change)


class Desk:
    """A server, and the commands of its users."""

    def __init__(self, server: LiveServer, data: Path, patch: pytest.MonkeyPatch, password: Path) -> None:
        self.server = server
        self.data = data
        self._patch = patch
        patch.setenv("PENSTOCK_PASSWORD_FILE", str(password))

    def run(self, user: str, *words: str) -> Result:
        self._patch.setenv("PENSTOCK_USER", user)
        return CliRunner().invoke(app, [*words, "--controller", self.server.address])

    def done(self, user: str, *words: str) -> str:
        found = self.run(user, *words)
        assert found.exit_code == 0, (found.output, found.exception)
        return found.output

    def request(self, name: str) -> str:
        """The request of al to delete the stream, which exists and is sealed."""
        self.done("root", "stream", "create", name)
        self.done("root", "stream", "seal", name)
        asked = self.run("al", "stream", "delete", name, "--yes")
        assert isinstance(asked.exception, ApprovalRequiredError), (asked.output, asked.exception)
        assert "penstock approval approve" in str(asked.exception)  # the message says how it continues
        return str(asked.exception.fields["request"])

    def state(self, request: str) -> str:
        return str(json.loads(self.done("al", "approval", "show", request, "--json"))["state"])

    def exists(self, name: str) -> bool:
        found = self.run("root", "stream", "describe", name)
        assert found.exit_code == 0 or isinstance(found.exception, StreamNotFoundError), found.output
        return found.exit_code == 0


def test_arguments_are_printed_for_people() -> None:
    arguments = {"case": "r17", "targets": ["crm", "shop/orders"], "field": None, "values": 1, "due_ms": 0}
    assert arguments_in_words(arguments) == {
        "case": "r17",
        "targets": "crm, shop/orders",
        "values": 1,
        "due": "1970-01-01 00:00:00Z",
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    path = tmp_path_factory.mktemp("approvals")
    data, password = path / "data", path / "password"
    password.write_text(PASSWORD)
    allow(data, RIGHTS)
    settings = StandaloneSettings(
        store=EmbeddedSettings(data=data), access=AccessSettings(), controller_port=0, store_port=0, http_port=0
    )
    with pytest.MonkeyPatch.context() as patch, LiveServer(settings, patch) as server:
        found = Desk(server, data, patch, password)
        found.done("root", "scope", "create", "crm")
        found.done("al", "approval", "require", "--scope", "crm", "--action", "delete")
        yield found


def test_required_approvals_are_set_and_printed(desk: Desk) -> None:
    assert desk.done("al", "approval", "require", "--scope", "crm") == "scope crm: delete\n"
    printed = desk.done("al", "approval", "require", "--scope", "crm", "--json")
    assert json.loads(printed) == {"actions": ["delete"]}
    for words, kind in (
        (("--server", "--action", "delete"), PermissionDeniedError),
        (("--scope", "crm", "--action", "wipe"), InvalidArgumentError),
        (("--scope", "crm", "--action", "delete", "--nothing"), InvalidArgumentError),
        (("--scope", "crm", "--nothing"), ApprovalRequiredError),
        ((), InvalidArgumentError),
    ):
        assert isinstance(desk.run("al", "approval", "require", *words).exception, kind), words
    assert desk.done("al", "approval", "require", "--scope", "crm") == "scope crm: delete\n"


def test_another_user_approves_and_the_requester_cannot(desk: Desk) -> None:
    request = desk.request("crm/executed")
    assert isinstance(desk.run("al", "approval", "approve", request).exception, PermissionDeniedError)
    assert desk.exists("crm/executed")
    assert request in desk.done("bea", "approval", "list")
    said = desk.done("bea", "approval", "approve", request, "--reason", "checked")
    assert said == f"request {request} to delete crm/executed is executed\n"
    assert not desk.exists("crm/executed")


def test_a_withdrawn_or_refused_request_is_not_approved(desk: Desk) -> None:
    for who, words, state in (("al", ["withdraw"], "withdrawn"), ("bea", ["refuse", "--reason", "no"], "refused")):
        name = f"crm/{state}"
        request = desk.request(name)
        desk.done(who, "approval", words[0], request, *words[1:])
        assert desk.state(request) == state
        assert isinstance(desk.run("bea", "approval", "approve", request).exception, ConflictError)
        assert desk.exists(name)


def test_a_requester_that_has_lost_the_right_gets_nothing(desk: Desk) -> None:
    request = desk.request("crm/lost")
    allow(desk.data, {"al": "/scope:crm=read,retain"})
    try:
        found = desk.run("bea", "approval", "approve", request).exception
        assert isinstance(found, ConflictError)
        assert "the requester has lost the right" in str(found)
        assert desk.exists("crm/lost")
    finally:
        allow(desk.data, RIGHTS)
    assert "is executed" in desk.done("bea", "approval", "approve", request)


def test_an_expired_request_is_not_approved(desk: Desk) -> None:
    request = desk.request("crm/expired")
    desk.server.clock.ahead_ms += 7 * DAY_MS + 1000
    assert isinstance(desk.run("bea", "approval", "approve", request).exception, ConflictError)
    assert desk.state(request) == "expired"
    assert desk.exists("crm/expired")
