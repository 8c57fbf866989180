"""``penstock doctor`` finds each file with a key or with users that a running store could not use."""

import asyncio
import json
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.app.integrity.doctor import diagnose
from penstock.model.damage import DamageKind
from penstock.storage.access.store_key import key_path, load_key
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.storage.machine.offload import ThreadOffload

NO_CYCLE = {"retention_cycle_ms": 3_600_000}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A closed store whose audit log was signed by two keys, with a user and a key of tokens."""
    place = tmp_path_factory.mktemp("doctor") / "data"
    with penstock.open(place, **NO_CYCLE) as store:
        store.create_scope("shop")
        store.audit().checkpoint()
        store.audit().rotate_key()
        store.audit().checkpoint()
    change_users(users_path(place), lambda users: users.update(ann=User(name="ann")))
    load_key(place)
    return place


def found(data):
    async def main():
        offload = ThreadOffload()
        try:
            return await diagnose(data, offload=offload)
        finally:
            await offload.close()

    return asyncio.run(main())


def audit_key(data):
    (path,) = (data / "audit-keys").glob("*.key")
    return path


@contextmanager
def changed(path, how):
    """The file as ``how`` leaves it, and as it was again after the block."""
    before, mode = path.read_bytes(), path.stat().st_mode
    how(path)
    try:
        yield
    finally:
        path.write_bytes(before)
        path.chmod(mode)


def test_doctor_reports_no_damage_in_sound_secrets(data):
    diagnosis = found(data)
    assert diagnosis.damage == []
    facts = diagnosis.as_json()["secrets"]
    assert (facts["audit_keys"], facts["users"], facts["tokens_key"]) == (1, 1, True)
    assert facts["audit_key"].startswith("penstock")
    shown = CliRunner().invoke(app, ["doctor", "--data", str(data)])
    assert shown.exit_code == 0
    assert "1 user, a key of tokens" in shown.output


def other_key(path):
    path.write_text("11" * 32 + "\n")


CHANGES = {
    "lost": lambda path: path.unlink(),
    "garbage": lambda path: path.write_text("no key"),
    "readable": lambda path: path.chmod(0o644),
}


@pytest.mark.parametrize(
    ("which", "how"),
    [
        *(("audit", name) for name in (*CHANGES, "other")),
        *(("users", name) for name in ("garbage", "readable")),
        *(("tokens", name) for name in ("garbage", "readable")),
    ],
)
def test_unusable_secret_files_are_reported(data, which, how):
    path = {"audit": audit_key(data), "users": users_path(data), "tokens": key_path(data)}[which]
    with changed(path, CHANGES.get(how, other_key)):
        before = sorted(data.rglob("*"))
        diagnosis = found(data)
        assert sorted(data.rglob("*")) == before
    assert [(item.kind, item.place) for item in diagnosis.damage] == [(DamageKind.SECRET, str(path))]
    assert diagnosis.refusal is None
    assert "a key or with users" in diagnosis.verdict
    assert any("secret" in line for line in diagnosis.as_json()["advice"])


def test_the_command_fails_and_never_shows_a_secret(data):
    path = audit_key(data)
    with changed(path, lambda one: one.chmod(0o640)):
        shown = CliRunner().invoke(app, ["doctor", "--data", str(data), "--json"])
    assert shown.exit_code == 7
    assert json.loads(shown.output)["damage"][0]["kind"] == "secret"
    assert path.read_text().strip() not in shown.output


def test_records_that_contradict_each_other_are_found(data):
    from penstock.app.integrity.secrets import LogKey, check_secrets
    from penstock.codec.control.audit_log import AuditKeysRecord

    diagnosis = found(data)
    (one,) = diagnosis.log_keys
    cut = AuditKeysRecord(public=one.record.public, rotations=[])
    assert check_secrets(data, [LogKey(origin=one.origin, record=cut, last=one.last)]).damage == []
    first = AuditKeysRecord(public=bytes(32), rotations=one.record.rotations)
    places = [item.why for item in check_secrets(data, [LogKey(origin=one.origin, record=first, last=one.last)]).damage]
    assert any("do not lead" in why for why in places)
    stranger = LogKey(origin=one.origin, record=AuditKeysRecord(public=bytes(32)), last=one.last)
    assert any("not signed" in item.why for item in check_secrets(data, [stranger]).damage)
