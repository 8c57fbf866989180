"""A server with identities names the verified one in every proof of an erasure, whatever name the caller states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from erasure_events import events_of, fill, hits_of

import penstock
from penstock.core.access.resources import parse_grant
from penstock.model.callers import Caller, calling
from penstock.model.credentials import Credentials
from penstock.model.errors import ErasureDeferredError
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

pytestmark = pytest.mark.server
PASSWORD = "correct horse"
SAID = {"who": "mallory", "why": "request 17"}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path):
    authority, digest = Authority(), hash_password(PASSWORD)

    def add(users: dict[str, User]) -> None:
        for name in ("ann", "bea"):
            users[name] = User(name=name, password=digest, grants=(parse_grant("/=*"),))

    change_users(users_path(tmp_path / "data"), add)
    authority.write(tmp_path / "ca.pem")
    files = authority.issue(tmp_path, hosts=("localhost", "127.0.0.1"))
    with ServerProcess(tmp_path / "data", *files.options(), "--auth") as running:
        yield running


def connect(server: ServerProcess, name: str) -> penstock.Store:
    return penstock.connect(
        f"tls://{server.address}",
        tls_ca=server.data.parent / "ca.pem",
        credentials=Credentials.basic(name, PASSWORD),
    )


def documents(store: penstock.Store, name: str, at_least: int) -> list[dict]:
    with store.stream(name).reader() as reader:
        return [json.loads(reader.read(timeout_s=10).data) for _ in range(at_least)]


def entries(store: penstock.Store) -> list[dict]:
    store.audit().checkpoint()  # It is made once all entries are in the stream.
    return [json.loads(event.data) for event in events_of(store.stream("_system/audit"))]


def command(server: ServerProcess, *words: str) -> str:
    secret = server.data.parent / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    chosen = {
        "PENSTOCK_USER": "bea",
        "PENSTOCK_PASSWORD_FILE": str(secret),
        "PENSTOCK_TLS_CA": str(server.data.parent / "ca.pem"),
    }
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words, "--controller", f"tls://{server.address}"],
        env=os.environ | chosen,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
def test_the_stated_name_of_another_is_in_no_proof_as_the_identity(server, tmp_path):
    with connect(server, "ann") as ann, connect(server, "bea") as bea, calling(Caller(who="mallory", why="x")):
        stream = ann.create_stream("s/t", create_scope=True)
        fill(stream, 50)
        hits = hits_of(events_of(stream))
        ann.holds("s/t").add(owner="mallory", reason="case", hold_id="court")
        with pytest.raises(ErasureDeferredError):
            stream.erase(hits[:2], erasure="e1", **SAID)
        # The request is durable, and its server dies. Another identity ends the hold that it waits for.
        server.kill()
        server.start()
        bea.holds("s/t").release("court", owner="mallory")
        receipt = bea.erasures().wait("e1")
        assert (receipt["who"], receipt["identity"]) == ("mallory", "ann")
        ann.cases().open("s", ["canary-7f3a"], case="c1", **SAID)
        bea.cases().wait("c1")
        case = bea.cases().close("c1", **SAID)
        assert (case.identity, case.ended.identity) == ("ann", "bea")
        for name in (*case.erasures, "e1"):
            found = bea.erasures().show(name)
            assert (found.identity, found.receipt["identity"]) == ("ann", "ann"), name
        feed = documents(bea, "_system/erasures", 1 + len(case.erasures))
        assert {(item["who"], item["identity"]) for item in feed} == {("mallory", "ann")}
        audit = entries(bea)
        known = {kind: [item for item in audit if item["kind"] == kind] for kind in {item["kind"] for item in audit}}
        for kind in ("erase_deferred", "erase_continued", "erase", "case_opened", "case_verified"):
            assert {item["identity"] for item in known[kind]} == {"ann"}, kind
        assert [item["identity"] for item in known["case_closed"]] == ["bea"]
        proof = tmp_path / "proof.json"
        proof.write_text(bea.audit().erasure("e1").text)
        key = bea.audit().log().key
    assert "mallory (verified: ann): request 17" in command(server, "erase", "show", "e1")
    assert "mallory (verified: ann)" in command(server, "erase", "list")
    shown = command(server, "erase", "case", "show", "c1")
    assert "mallory (verified: ann)" in shown
    assert "mallory (verified: bea)" in shown
    checked = [sys.executable, str(ROOT / "scripts" / "verify.py"), str(proof), "--public-key", key]
    assert subprocess.run(checked, capture_output=True, check=False).returncode == 0
