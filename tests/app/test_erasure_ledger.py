"""An older copy of a store shows no erased event once the ledger of the original is applied."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace

import pytest
from erasure_events import SECRET, events_of, files_with, fill, hits_of
from erasure_ledgers import check
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.app.erasure.ledger import PENDING, read_ledger, write_ledger
from penstock.core.cases.ledger import Ledger, ledger_lines, ledger_of
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    VersionTooNewError,
)

WHO = {"who": "ann", "why": "request 17"}


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A store with erasures by a case with digests and by position, its ledger, its public key, and a backup and a copy
    from before."""
    place = tmp_path_factory.mktemp("copies")
    data = place / "data"
    with penstock.open(data) as store:
        fill(store.create_stream("s/t", create_scope=True), 200)
        people = store.create_stream("s/people")
        with people.writer() as writer:
            for number in range(60):
                writer.write(json.dumps({"user": f"user-{number % 6}", "n": number}), key=str(number))
        store._thread.call(store._inner.controller.evidence.log())  # from now on a copy can verify ledgers
        store._thread.call(store._inner.controller.drain_audit())
        store._thread.call(store._inner.segments.flush())  # a rebuild has tier 2 only
    shutil.copytree(data, place / "copy")
    assert run("backup", "create", place / "backup", "--data", data).exit_code == 0
    with penstock.open(data) as store:
        stream = store.stream("s/t")
        stream.erase(hits_of(events_of(stream)), **WHO, erasure="e")
        store.cases().open("s/people", ["user-3"], json_field="user", keep_values=False, case="c", **WHO)
        store.cases().wait("c")
        (place / "key").write_text(store.audit().log().key)
    assert run("erase", "ledger", "export", place / "ledger", "--data", data).exit_code == 0
    return place


def shows_no_erased_event(data):
    with penstock.open(data) as store:
        assert hits_of(events_of(store.stream("s/t"))) == []
        left = [json.loads(event.data)["user"] for event in events_of(store.stream("s/people"))]
        assert (len(left), "user-3" in left) == (50, False)
        assert store.cases().wait("c").state == "verified"
        assert all(store.erasures().verify(item.erasure).holds for item in store.erasures().list())
        with pytest.raises(NotFoundError, match="repeated the erasure under another id") as caught:
            store.erasures().verify("e")
        assert store.erasures().verify(caught.value.fields["repeated_as"]).holds
        with pytest.raises(NotFoundError, match="no such erasure"):
            store.erasures().verify("nope")
    assert not (data / PENDING).exists()
    assert files_with(data, SECRET) == files_with(data / "chunks", b"user-3") == []


def test_the_ledger_holds_no_values(copies):
    text = (copies / "ledger").read_bytes()
    assert SECRET not in text
    assert b"user-3" not in text
    ledger = read_ledger(copies / "ledger")
    assert {item.erasure for item in ledger.erasures} > {"e"}
    assert ledger_of(ledger_lines(ledger)) == ledger


def test_a_restored_backup_is_erased_before_its_first_read(copies, tmp_path):
    restored = run("restore", copies / "backup", "--data", tmp_path / "data", "--ledger", copies / "ledger")
    assert restored.exit_code == 0, restored.output
    shows_no_erased_event(tmp_path / "data")


def test_a_rebuilt_store_is_erased_at_its_first_start(copies, tmp_path):
    shutil.copytree(copies / "copy", tmp_path / "copy")
    built = run("rebuild", "--source", tmp_path / "copy", "--data", tmp_path / "data", "--ledger", copies / "ledger")
    assert built.exit_code == 0, built.output
    shows_no_erased_event(tmp_path / "data")


def test_an_older_copy_of_the_directory_is_erased_also_with_another_key_given(copies, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(copies / "copy", data)
    (data / "erasure.key").unlink()
    refused = run("erase", "ledger", "apply", copies / "ledger", "--data", data)
    assert isinstance(refused.exception, InvalidArgumentError)
    # The ledger stays: no start serves before it is applied.
    with pytest.raises(InvalidArgumentError, match="key of another store"):
        penstock.open(data)
    applied = run(
        "erase", "ledger", "apply", copies / "ledger", "--data", data, "--erasure-key", copies / "data" / "erasure.key"
    )
    assert applied.exit_code == 0, applied.output
    shows_no_erased_event(data)


def test_a_ledger_that_was_cut_or_changed_is_refused(copies, tmp_path):
    lines = (copies / "ledger").read_bytes().splitlines()
    changed = [lines[0], lines[1].replace(b"ann", b"bob"), *lines[2:]]
    for wrong in ([], lines[:-1], lines[1:], changed, [b"{}"], [b"\xff"]):
        with pytest.raises(CorruptDataError):
            ledger_of(wrong)
    newer = ledger_lines(Ledger(exported_ms=1))
    with pytest.raises(VersionTooNewError):
        ledger_of([newer[0].replace(b'"format":1', b'"format":2'), *newer[1:]])
    (tmp_path / "cut").write_bytes(b"\n".join(lines[:-1]))
    refused = run("restore", copies / "backup", "--data", tmp_path / "data", "--ledger", tmp_path / "cut")
    assert isinstance(refused.exception, PenstockError)
    assert not (tmp_path / "data").exists()


def test_a_ledger_that_no_trusted_key_has_signed_is_refused(copies, tmp_path):
    own = (copies / "key").read_text()
    with penstock.open(tmp_path / "other") as store:
        store.create_stream("s/t", create_scope=True)
        foreign, key = store.cases().ledger(), store.audit().log().key
    write_ledger(tmp_path / "foreign", foreign)
    unsigned = replace(foreign, note="")
    write_ledger(tmp_path / "unsigned", unsigned)
    changed = replace(read_ledger(copies / "ledger"), exported_ms=1)
    write_ledger(tmp_path / "changed", changed)
    # Each has a digest that fits; only the signature does not.
    for name, words in {"foreign": "another store", "unsigned": "not signed", "changed": "changed after"}.items():
        with pytest.raises(CorruptDataError, match=words):
            read_ledger(tmp_path / name, [own])
    refused = run("restore", copies / "backup", "--data", tmp_path / "data", "--ledger", tmp_path / "foreign")
    assert isinstance(refused.exception, CorruptDataError)
    assert "another store" in str(refused.exception)
    assert not (tmp_path / "data").exists()
    assert read_ledger(tmp_path / "foreign", [key]) == foreign
    report = run("verify", copies / "ledger", "--public-key", own)
    assert report.exit_code == 0, report.output
    assert run("verify", tmp_path / "changed", "--public-key", own).exit_code == 9


@pytest.mark.parametrize("seed", range(1, 6))
def test_no_backup_with_the_ledger_shows_an_erased_event(seed):
    asyncio.run(check(seed))


@pytest.mark.slow
def test_no_backup_with_the_ledger_shows_an_erased_event_in_a_thousand_histories():
    for seed in range(1, 1001):
        asyncio.run(check(seed))
