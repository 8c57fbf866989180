"""An auditor's way from the command line: the key, a checkpoint, documents, an export, and their verification."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.cli.common.output import NOT_TRUE_STATUS
from penstock.app.cli.main import app
from penstock.model.errors import InvalidArgumentError, NotFoundError

VERIFY = Path(__file__).parents[2] / "scripts" / "verify.py"


def run(*arguments):
    return CliRunner().invoke(app, [str(item) for item in arguments])


def done(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result.output


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    with penstock.open(path) as store:
        stream = store.create_stream("demo/clicks", create_scope=True)
        with stream.writer() as writer:
            for number in range(20):
                writer.write(f"event {number}", key="k")
        with stream.reader(until_tail=True) as reader:
            events = list(reader)
        (tmp_path / "positions").write_text("".join(f"{event.segment}:{event.offset}\n" for event in events[12:15]))
    return path


def test_an_auditor_is_convinced_without_the_store(tmp_path, data):
    at = ("--data", data)
    key, monday = tmp_path / "key", tmp_path / "monday"
    key.write_text(done("audit", "key", *at))
    done("audit", "checkpoint", monday, *at)
    done("hold", "add", "demo/clicks", "--id", "h", "--reason", "court", "--owner", "legal", *at)
    done("hold", "release", "h", "--owner", "judge", "--yes", *at)
    erase = ("erase", "run", "demo/clicks", "--positions", tmp_path / "positions", "--reason", "request", "--id", "r17")
    done(*erase, "--yes", *at)
    done("audit", "rotate-key", "--yes", *at)
    files = [tmp_path / name for name in ("disposal", "hold", "receipt", "export", "proof", "history")]
    done("retention", "certificate", "demo/clicks", files[0], *at)
    done("audit", "hold", "h", files[1], *at)
    done("audit", "receipt", "r17", files[2], *at)
    done("audit", "export", files[3], *at)
    done("audit", "checkpoint", files[4], "--continues", monday, *at)
    assert done("audit", "key", "--history", files[5], *at) != key.read_text()
    assert json.loads(done("audit", "checkpoints", "--json", *at))["note"] == monday.read_text()

    verify = ("verify", *files, "--public-key", key, "--known", monday)
    text = done(*verify)
    assert text.count("holds: ") == 6
    assert "1 removal" in text
    assert "erasure r17: 3 events of demo/clicks erased" in text
    assert "hold h on demo/clicks is lifted" in text
    assert all(json.loads(line)["holds"] for line in done(*verify, "--json").splitlines())

    again = subprocess.run([sys.executable, VERIFY, *verify[1:]], capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout.count("holds: ")) == (0, 6), again.stderr  # takes the same arguments

    files[2].write_text(files[2].read_text().replace('"events":3', '"events":2'))
    changed = run(*verify)
    assert changed.exit_code == NOT_TRUE_STATUS
    assert "DOES NOT HOLD" in changed.output


def test_what_cannot_be_proved_is_refused(tmp_path, data):
    at = ("--data", data)
    (tmp_path / "file").write_text("no checkpoint")
    assert isinstance(run("audit", "receipt", "none", *at).exception, NotFoundError)
    assert isinstance(run("audit", "hold", "none", *at).exception, NotFoundError)
    refused = run("verify", tmp_path / "file", "--public-key", "no key+1+2")
    assert isinstance(refused.exception, InvalidArgumentError)
    assert isinstance(run("audit", "rotate-key", *at).exception, InvalidArgumentError)


def test_entries_are_shown_without_the_hashes_that_people_do_not_read(data):
    done("audit", "key", "--data", data)
    assert "previous" not in done("retention", "audit", "--data", data)
    assert all(
        "previous" in json.loads(line) for line in done("retention", "audit", "--data", data, "--json").split("\n")[:-1]
    )


def test_a_key_that_is_none_is_a_wrong_argument_of_the_script(tmp_path):
    call = [sys.executable, VERIFY, VERIFY, "--public-key", tmp_path / "missing"]
    refused = subprocess.run(call, capture_output=True, text=True, check=False)
    assert (refused.returncode, "penstock audit key" in refused.stderr) == (2, True)


def test_the_ages_of_the_audit_log_can_be_set_on_the_command_line(data):
    at = ("--data", data, "--yes")
    done("retention", "set", "_system/audit", "--min-age", "3650d", "--max-age", "3650d", *at)
    assert isinstance(
        run("retention", "set", "_system/audit", "--max-bytes", "1MB", *at).exception, InvalidArgumentError
    )
