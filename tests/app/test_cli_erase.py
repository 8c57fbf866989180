"""``penstock erase`` on a data directory: dry run, run, list, show, verify, and what cannot be."""

from __future__ import annotations

import json
import os
import threading

import pytest
from typer.testing import CliRunner

import penstock
from penstock.app.cli.common.output import exit_code
from penstock.app.cli.main import app
from penstock.app.erasure import values
from penstock.app.erasure.values import find_values, positions_from, values_from
from penstock.model.errors import AlreadyExistsError, ErasureDeferredError, ErasureWithdrawnError, InvalidArgumentError

SECRET = "canary-7f3a"


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    with penstock.open(path) as store:
        stream = store.create_stream("demo/clicks", create_scope=True)
        with stream.writer() as writer:
            for number in range(100):
                writer.write(f"{SECRET if number % 10 == 3 else 'plain'} {number}", key="k")
        with stream.reader(until_tail=True) as reader:
            hits = [event for event in reader if event.data.startswith(SECRET.encode())]
    (tmp_path / "positions").write_text("".join(f"{event.segment}:{event.offset}\n" for event in hits))
    (tmp_path / "values").write_text(f"{SECRET}\nsomebody else\n")
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(item) for item in arguments])


def test_positions_are_erased_listed_shown_and_verified(tmp_path, data):
    erase = [
        "erase",
        "run",
        "demo/clicks",
        "--positions",
        tmp_path / "positions",
        "--reason",
        "request 17",
        "--owner",
        "ann",
    ]
    tried = run(*erase, "--dry-run", "--data", data)
    assert tried.exit_code == 0, tried.output
    assert "would erase 10 events" in tried.output
    assert list(find_values(data, {SECRET: 1}))
    before = run("erase", "list", "--data", data)
    assert "request 17" not in before.output
    done = run(*erase, "--id", "r17", "--data", data, "--json", "--yes")
    assert done.exit_code == 0, done.output
    receipt = json.loads(done.output)
    assert receipt["where"]["events"] == 10
    assert "request 17" in run("erase", "list", "--data", data).output
    listed = [
        json.loads(line) for line in run("erase", "list", "demo/clicks", "--json", "--data", data).output.splitlines()
    ]
    assert [item["receipt"] for item in listed] == [receipt]
    shown = run("erase", "show", "r17", "--data", data)
    assert receipt["sha256"] in shown.output
    assert "what remains elsewhere" in shown.output
    found = run("erase", "verify", "r17", "--data", data, "--values-from", tmp_path / "values")
    assert found.exit_code == 0, found.output
    assert "no file holds any of the values" in found.output
    (data / "copy").write_text(f"a copy of {SECRET}")
    found = run("erase", "verify", "r17", "--data", data, "--values-from", tmp_path / "values", "--json")
    assert found.exit_code == 9
    printed = json.loads(found.output)
    assert not printed["holds"]
    assert printed["problems"] == ["value on line 1 of the list is in copy at 10"]


def test_what_cannot_be_says_so(tmp_path, data):
    for arguments in (
        ["erase", "show", "none", "--data", data],
        ["erase", "verify", "none", "--data", data],
        ["erase", "verify", "none", "--values-from", tmp_path / "values"],
    ):
        found = run(*arguments)
        assert isinstance(found.exception, penstock.PenstockError), found.output


@pytest.mark.parametrize("text", ["", "\n\n", "5", "x:3", "3:-1", "1:2\n3:4:5\n"])
def test_a_list_of_positions_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "list").write_text(text)
    with pytest.raises(InvalidArgumentError):
        positions_from(tmp_path / "list")


def test_lists_of_values_are_read_line_by_line(tmp_path):
    path = tmp_path / "list"
    path.write_text("ann\n\nbob \nann\n")
    assert values_from(path) == {"ann": 1, "bob ": 3}
    path.write_text("ann\u2028bob\x85\x0b\n")
    assert values_from(path) == {"ann\u2028bob\x85\x0b": 1}, "one value, and not the halves of it"
    path.write_bytes(b"\xef\xbb\xbfann\r\nbob\r\n")
    assert values_from(path) == {"ann": 1, "bob": 2}
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError):
        values_from(path)
    path.write_text("\n")
    with pytest.raises(InvalidArgumentError):
        values_from(path)
    with pytest.raises(InvalidArgumentError):
        list(find_values(tmp_path, {"abc": 1}))


def test_a_value_is_found_wherever_it_lies_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(values, "_WINDOW_BYTES", 16)
    for position in range(50):
        (tmp_path / "file").write_bytes(b"." * position + b"secret" + b"." * 40 + b"secret, other")
        found = {item.value: item.position for item in find_values(tmp_path, {"secret": 1, "other": 2, "absent": 3})}
        assert found == {1: position, 2: position + 6 + 40 + len(b"secret, ")}


def test_a_file_that_becomes_shorter_meanwhile_does_not_end_the_search(tmp_path):
    shrinking, whole = tmp_path / "a", tmp_path / "b"
    shrinking.write_bytes(bytes(32 << 20) + b"secret")
    whole.write_bytes(b"secret")
    ended = threading.Event()

    def shrink():
        while not ended.is_set():
            os.truncate(shrinking, 4096)
            os.truncate(shrinking, 32 << 20)

    thread = threading.Thread(target=shrink)
    thread.start()
    try:
        for _ in range(10):
            assert [item.file for item in find_values(tmp_path, {"secret": 1})] == ["b"]
    finally:
        ended.set()
        thread.join()


def test_a_repeat_with_fewer_positions_prints_the_receipt_and_one_with_more_says_how_many(tmp_path, data):
    lines = (tmp_path / "positions").read_text().splitlines()
    erase = ["erase", "run", "demo/clicks", "--reason", "request 17", "--owner", "ann", "--id", "r17", "--data", data]

    def erase_lines(chosen, *options):
        (tmp_path / "chosen").write_text("".join(f"{line}\n" for line in chosen))
        return run(*erase, "--positions", tmp_path / "chosen", *options)

    first = erase_lines(lines[:8], "--yes")
    assert first.exit_code == 0, first.output
    again = erase_lines(lines[2:5])
    assert (again.exit_code, again.output) == (0, first.output)
    more = erase_lines(lines)
    assert isinstance(more.exception, AlreadyExistsError)
    assert "under another id" in str(more.exception)
    assert "undecided=2 events=10" in str(more.exception)


def test_a_deferred_erasure_has_a_status_of_its_own_is_listed_and_withdrawn(tmp_path, data):
    positions = ["--positions", tmp_path / "positions", "--data", data, "--owner", "ann"]
    erase = ["erase", "run", "demo/clicks", *positions, "--reason", "request 17"]
    with penstock.open(data) as store:
        store.holds("demo/clicks").add(owner="law", reason="case 5", hold_id="case-5")
    tried = run(*erase, "--dry-run")
    assert tried.exit_code == 0
    assert "deferred by hold case-5" in tried.output
    asked = run(*erase, "--id", "r17")
    assert isinstance(asked.exception, InvalidArgumentError)
    assert "deferred by hold case-5" in asked.output
    refused = run(*erase, "--id", "r17", "--yes")
    assert isinstance(refused.exception, ErasureDeferredError)
    assert exit_code(refused.exception) == 10
    listed = run("erase", "list", "--data", data)
    assert "deferred by hold case-5 since" in listed.output
    assert " 0 B " not in listed.output, "nobody has counted yet"
    assert "deferred by hold case-5 since" in run("erase", "show", "r17", "--data", data).output
    withdrawn = run("erase", "withdraw", "r17", "--reason", "wrong user", "--owner", "bob", "--data", data)
    assert withdrawn.exit_code == 0, withdrawn.output
    assert "withdrawn by bob: wrong user" in withdrawn.output
    assert "withdrawn by bob: wrong user" in run("erase", "list", "--data", data).output
    again = run(*erase, "--id", "r17")
    assert isinstance(again.exception, ErasureWithdrawnError)
    assert exit_code(again.exception) == 4
