"""A revoked token is refused from the next call on, with all that it has planned, and no other token is."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.app.telemetry import Counters
from penstock.core.access.plans import PLAN_END_S, PLAN_S_MAX, plan_life
from penstock.core.access.resources import parse_grant
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    UnauthenticatedError,
    VersionTooNewError,
)
from penstock.model.identity import Identity
from penstock.model.names import StreamName
from penstock.ports.access.authenticator import Presented
from penstock.storage.access import token_list
from penstock.storage.access.authenticator import StoreAuthenticator
from penstock.storage.access.bearer import StoreTokens
from penstock.storage.access.delegation import Issuer
from penstock.storage.access.plan_tokens import PlanTokens
from penstock.storage.access.store_key import load_key
from penstock.storage.access.token_list import IssuedToken, RevokedTokens, change_tokens, load_tokens, tokens_path
from penstock.storage.access.users_file import User, change_users, load_users, users_path
from penstock.storage.machine.clock import RealClock

READ = parse_grant("/scope:shop=read")
REFUSALS = (
    "the token was revoked",
    "the server cannot read which tokens were revoked; its log has the reason",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    change_users(users_path(tmp_path), lambda users: users.update({"ann": User(name="ann", grants=(READ,))}))
    return tmp_path


def command(data: Path, *words: str) -> str:
    found = CliRunner().invoke(app, ["token", *words, "--data", str(data)])
    if found.exception is not None:
        raise found.exception
    return found.output


def issued(data: Path, name: str = "job") -> tuple[str, str]:
    """A new token, and its id."""
    found = json.loads(command(data, "issue", "--name", name, "--grant", "/scope:shop=read", "--json"))
    return found["token"], found["id"]


def desk(data: Path, outdated: Callable[[], str | None] = lambda: None) -> StoreAuthenticator:
    key, clock = load_key(data), RealClock()
    return StoreAuthenticator(
        users=users_path(data),
        tokens=StoreTokens(key, clock),
        revoked=RevokedTokens(tokens_path(data)),
        plans=PlanTokens(key, clock),
        provider=None,
        clock=clock,
        telemetry=Counters(),
        outdated=outdated,
    )


def identify(door: StoreAuthenticator, token: str) -> Identity:
    return asyncio.run(door.identify(Presented(authorization=f"Bearer {token}", certificate=(), peer="10.0.0.1")))


def refused(door: StoreAuthenticator, token: str) -> bool:
    try:
        identify(door, token)
    except UnauthenticatedError as error:
        return str(error) in REFUSALS
    return False


@pytest.mark.parametrize("by", ["id", "file"])
def test_a_revoked_token_is_refused_at_once_and_others_are_not(data: Path, by: str) -> None:
    (bad, bad_id), (good, good_id) = issued(data), issued(data, "other")
    door = desk(data)
    assert [refused(door, token) for token in (bad, good)] == [False, False]
    (data / "leaked").write_text(bad + "\n")
    chosen = (bad_id,) if by == "id" else ("--leaked-token", str(data / "leaked"))
    if by == "file":
        # As issued by a version that kept no list.
        change_tokens(tokens_path(data), lambda tokens: tokens.pop(bad_id), now_s=0)  # type: ignore[arg-type]
    for _ in range(2):
        assert "of job is revoked" in command(data, "revoke", *chosen)
        assert [refused(door, token) for token in (bad, good)] == [True, False]
    # After a restart too.
    assert [refused(desk(data), token) for token in (bad, good)] == [True, False]
    rows = {row["id"]: row for row in map(json.loads, command(data, "list", "--json").splitlines())}
    assert rows[bad_id]["state"].startswith("revoked")
    assert (rows[good_id]["state"], rows[good_id]["rights"]) == ("valid", "/scope:shop=read")
    assert not any(token in tokens_path(data).read_text() for token in (bad, good))


def test_a_server_whose_list_is_out_of_date_refuses_even_who_was_accepted_just_now(data: Path) -> None:
    reasons: list[str | None] = [None]
    token, _ = issued(data)
    door = desk(data, lambda: reasons[-1])
    assert identify(door, token).name == "job"
    reasons.append("tier 2 is away")
    with pytest.raises(UnauthenticatedError, match="no tokens of its own now: tier 2 is away"):
        identify(door, token)
    for shown in (
        Presented(authorization="Basic YW5uOng=", certificate=(), peer="p"),
        Presented(authorization="", certificate=("DNS:ann",), peer="p"),
    ):
        with pytest.raises(UnauthenticatedError, match="accepts no users"):
            asyncio.run(door.identify(shown))
    reasons.append(None)
    assert identify(door, token).name == "job"


def test_the_plans_of_a_revoked_token_end_with_it(data: Path) -> None:
    (bad, bad_id), (good, _) = issued(data), issued(data, "other")
    door, issuer = desk(data), Issuer(load_key(data), RealClock())
    plans = []
    for token in (bad, good):
        identity = identify(door, token)
        for _ in range(2):
            # The plan, then the plan renewed by itself.
            life = plan_life(identity, valid_s=PLAN_S_MAX, now_ms=issuer.now_ms())
            plans.append(issuer.issue_plan(identity.name, identity.grants, life))
            identity = identify(door, plans[-1])
    assert [refused(door, plan) for plan in plans] == [False] * 4
    command(data, "revoke", bad_id)
    assert [refused(door, plan) for plan in plans] == [True, True, False, False]


@pytest.mark.parametrize("by", ["id", "file"])
@pytest.mark.parametrize("is_expired", [False, True])
def test_no_plan_of_a_revoked_token_is_valid_once_the_token_has_expired(data: Path, by: str, is_expired: bool) -> None:
    """A plan may outlive its token by a day, so the token must stay listed, and can be revoked, that long."""
    token, token_id = issued(data)
    door, issuer, path = desk(data), Issuer(load_key(data), RealClock()), tokens_path(data)
    identity = identify(door, token)
    life = plan_life(identity, valid_s=PLAN_S_MAX, now_ms=issuer.now_ms())
    plan = issuer.issue_plan(identity.name, identity.grants, life)
    chosen: tuple[str, ...] = (token_id,)
    if is_expired:
        # One that was issued earlier, and that expired a minute ago.
        grants, now_s = [READ], issuer.now_ms() // 1000
        token = StoreTokens(load_key(data), RealClock()).issue("job", grants, ttl_s=-60, token_id=UUID(hex=token_id))
        ends = {token_id: replace(load_tokens(path)[token_id], expires_s=now_s - 60)}
        change_tokens(path, lambda tokens: tokens.update(ends), now_s=now_s)
        rows = {row["id"]: row for row in map(json.loads, command(data, "list", "--json").splitlines())}
        assert rows[token_id]["state"] == "expired"
    if by == "file":
        (data / "leaked").write_text(token)
        chosen = ("--leaked-token", str(data / "leaked"))
    command(data, "revoke", *chosen)
    assert refused(door, plan)
    for after_s in (1, PLAN_END_S - 1):
        change_tokens(path, lambda tokens: None, now_s=load_tokens(path)[token_id].expires_s + after_s)
        assert refused(door, plan)
    change_tokens(path, lambda tokens: None, now_s=load_tokens(path)[token_id].expires_s + PLAN_END_S)
    assert token_id not in load_tokens(path)


def test_a_token_that_is_revoked_during_its_check_is_not_remembered(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, token_id = issued(data)
    door, check = desk(data), StoreTokens.identity

    def slow(tokens: StoreTokens, text: str) -> tuple[Identity, float]:
        command(data, "revoke", token_id)
        return check(tokens, text)

    monkeypatch.setattr(StoreTokens, "identity", slow)
    assert [refused(door, token), refused(door, token)] == [True, True]


FORMS = (
    '["v"]',
    '{"v": 1}',
    '{"v": 1e999, "KIND": []}',
    '{"v": 1, "KIND": ["text"]}',
    '{"v": 1, "KIND": [7, null]}',
    '{"v": 1, "KIND": {"a": 1}}',
    '{"v": 1, "KIND": [{"id": "a", "name": "a", "grants": [], "issued_s": 0, "expires_s": 1e999, "certificates": 7}]}',
    '{"v": 1, "KIND": [{"name": "a", "grants": [], "hash": "h", "pravega": "text"}]}',
    '{"v": 1, "KIND": [{"name": "a", "grants": [], "hash": "h", "pravega": {"salt": "", "rounds": 1e999}}]}',
    '{"v": 1, "KIND": ' + "[" * 100_000,
)


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_a_list_of_another_form_refuses_tokens_and_nothing_else(
    data: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = issued(data)
    door, path, reads = desk(data), tokens_path(data), list[Path]()

    def load(path: Path) -> object:
        reads.append(path)
        return load_tokens(path)

    monkeypatch.setattr(token_list, "load_tokens", load)
    path.write_text(form.replace("KIND", "tokens"))
    for _ in range(3):
        assert refused(door, token)
        assert door.grants_of("ann", "password") == (READ,)
    assert len(reads) == 1
    users_path(data).write_text(form.replace("KIND", "users"))
    with pytest.raises(CorruptDataError):
        load_users(users_path(data))


@pytest.mark.parametrize("damage", ["torn", "open to others", "newer"])
def test_no_token_is_accepted_while_the_list_cannot_be_read(data: Path, damage: str) -> None:
    token, token_id = issued(data)
    command(data, "revoke", token_id)
    door, path = desk(data), tokens_path(data)
    good, _ = issued(data, "other")
    before = path.read_bytes()
    if damage == "open to others":
        path.chmod(0o644)
    else:
        path.write_bytes(before[:-9] if damage == "torn" else before.replace(b'"v": 1', b'"v": 2'))
    assert [refused(door, one) for one in (token, good)] == [True, True]
    with pytest.raises((CorruptDataError, InvalidArgumentError, VersionTooNewError)):
        command(data, "list")
    path.chmod(0o600)
    path.write_bytes(before)
    assert [refused(door, one) for one in (token, good)] == [True, False]


def test_expired_tokens_leave_the_list_and_a_full_list_issues_no_more(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tokens_path(data)
    old = IssuedToken(id="old", name="job", grants=(), issued_s=0, expires_s=10)
    assert list(change_tokens(path, lambda tokens: tokens.update({"old": old}), now_s=9)) == ["old"]
    assert command(data, "list", "--json") == ""
    _, kept = issued(data)
    assert list(load_tokens(path)) == [kept]
    monkeypatch.setattr(token_list, "TOKENS_MAX", 1)
    with pytest.raises(InvalidArgumentError, match="too many tokens"):
        issued(data)
    assert list(load_tokens(path)) == [kept]
    # A full list still takes revocations, and expired tokens give way to valid ones.
    now_s = load_tokens(path)[kept].issued_s
    gone = [replace(old, id=f"gone{number}", expires_s=now_s) for number in range(3)]
    bad = replace(old, id="bad", expires_s=now_s, revoked_s=now_s)
    change_tokens(path, lambda tokens: tokens.update({one.id: one for one in [*gone, bad]}), now_s=now_s)
    assert list(load_tokens(path)) == [kept, "bad"]
    command(data, "revoke", kept)
    assert list(load_tokens(path)) == [kept, "bad"]


def test_only_a_valid_token_of_this_store_is_revoked(data: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    change_users(users_path(other), lambda users: users.update({"ann": User(name="ann", grants=(READ,))}))
    key = load_key(data)
    texts = {
        "foreign": issued(other)[0],
        "delegation": Issuer(key, RealClock()).issue("ann", StreamName("shop", "orders"), frozenset(READ.actions)),
        "text": "no token",
        "expired": StoreTokens(key, RealClock()).issue("job", [READ], ttl_s=-PLAN_END_S, token_id=UUID(int=2)),
    }
    for name, text in texts.items():
        (data / name).write_text(text)
        with pytest.raises(InvalidArgumentError, match="nothing to revoke"):
            command(data, "revoke", "--leaked-token", str(data / name))
    with pytest.raises(NotFoundError, match="no token with this id"):
        command(data, "revoke", "5b0c")
    with pytest.raises(InvalidArgumentError, match="name the tokens"):
        command(data, "revoke")
    with pytest.raises(InvalidArgumentError, match="no store in this directory"):
        command(data / "mistaken", "revoke", "5b0c")
    assert not tokens_path(data).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_folders_that_root_makes_belong_to_the_server(tmp_path: Path) -> None:
    """The first user that root adds must not lock the server out of the folder."""
    os.chown(tmp_path, 4711, 4712)
    change_users(tmp_path / "more" / "access" / "users.json", lambda users: None)
    for name, mode in (("more", None), ("more/access", 0o700), ("more/access/users.json", 0o600)):
        found = (tmp_path / name).stat()
        assert (found.st_uid, found.st_gid) == (4711, 4712), name
        assert mode is None or found.st_mode & 0o777 == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_that_root_writes_belong_to_the_server(data: Path) -> None:
    """A token that root issues must not make the server refuse all tokens, because it cannot read the list."""
    (data / "access").chmod(0o700)
    os.chown(data / "access", 4711, 4712)
    issued(data)
    change_users(users_path(data), lambda users: users.update({"bea": User(name="bea", grants=(READ,))}))
    for name in ("tokens.json", "tokens.key", "users.json", ".tokens.json.lock", ".users.json.lock"):
        found = (data / "access" / name).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (4711, 4712, 0o600), name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_a_file_behind_a_link_is_not_given_away(data: Path, link: str) -> None:
    secret = data / "of root"
    secret.write_text("secret")
    os.chown(data / "access", 4711, 4712)
    trap = data / "access" / ".tokens.json.lock"
    trap.symlink_to(secret) if link == "symbolic" else trap.hardlink_to(secret)
    if link == "symbolic":
        with pytest.raises(OSError, match="symbolic links"):
            issued(data)
    else:
        issued(data)
    assert (secret.stat().st_uid, secret.read_text()) == (0, "secret")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_list_that_is_no_file_is_refused_and_leaves_nothing_open(data: Path, make: Callable[[Path], None]) -> None:
    make(tokens_path(data))
    revoked = RevokedTokens(tokens_path(data))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):  # A server tries it again with each call.
        revoked.refresh()
        with pytest.raises(UnauthenticatedError, match="cannot read which tokens were revoked"):
            revoked.check("any")
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(InvalidArgumentError, match="must be a regular file"):
        load_tokens(tokens_path(data))
