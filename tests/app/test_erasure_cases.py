"""A case of erasure goes from the request to the proof by itself: through holds, late events, crashes and restarts."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import nullcontext, suppress

import pytest
from erasure_events import SECRET, events_of, files_with, fill, hits_of
from typer.testing import CliRunner

import penstock
from penstock.app.cli.erasure import cases as commands
from penstock.app.cli.main import app
from penstock.model.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NotFoundError

WHO = {"who": "ann", "why": "request 17"}
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One for all tests of the module: each has a scope, a case and a hold of its own, which ``here`` names."""
    with penstock.open(tmp_path_factory.mktemp("cases") / "data") as opened:
        yield opened


@pytest.fixture
def here(request):
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


@pytest.fixture
def stream(store, here):
    created = store.create_stream(f"{here}/t", create_scope=True)
    fill(created, 100)
    return created


def people(stream, count=60, start=0):
    with stream.writer() as writer:
        for number in range(start, start + count):
            writer.write(json.dumps({"user": {"id": f"user-{number % 6}"}, "n": number}), key=str(number))


def of_user(stream, user):
    return [event for event in events_of(stream) if user in event.data.decode()]


def entries_of(store, case):
    store._thread.call(store._inner.controller.drain_audit())
    entries = [json.loads(event.data) for event in events_of(store.stream("_system/audit"))]
    return [entry for entry in entries if entry["kind"].startswith("case") and entry["case"] == case]


def test_a_case_erases_and_verifies_in_all_streams_of_its_targets_and_no_other(store, here, stream):
    other, kept = store.create_stream(f"{here}/u"), store.create_stream(f"{here}-r/t", create_scope=True)
    fill(other, 50), fill(kept, 50)
    before = {item.name: events_of(item) for item in (stream, other, kept)}
    opened = store.cases().open([here], [SECRET.decode()], case=here, **WHO)
    assert (opened.case, opened.state, opened.targets) == (here, "open", [here])
    assert opened.due_ms == opened.opened_ms + 30 * DAY_MS
    found = store.cases().wait(here)
    gone = len(hits_of(before[stream.name])) + len(hits_of(before[other.name]))
    assert (found.state, found.events, found.late) == ("verified", gone, 0)
    for item in (stream, other):
        assert events_of(item) == [event for event in before[item.name] if not event.data.startswith(SECRET)]
    assert events_of(kept) == before[kept.name]
    assert len(found.erasures) == 2
    assert all(store.erasures().verify(erasure).holds for erasure in found.erasures)
    receipt = store.erasures().show(found.erasures[0]).receipt
    assert (receipt["looked_for"]["case"], receipt["who"]) == (here, "ann")
    # Once more: the same case. With other words: refused.
    assert store.cases().open([here], [SECRET.decode()], case=here, **WHO).events == gone
    for changed in ({"who": "bob"}, {"why": "no"}):
        with pytest.raises(AlreadyExistsError):
            store.cases().open([here], [SECRET.decode()], case=here, **WHO | changed)
    with pytest.raises(AlreadyExistsError):
        store.cases().open([here], ["somebody else"], case=here, **WHO)
    assert [entry["kind"] for entry in entries_of(store, here)] == ["case_opened", "case_verified"]
    assert SECRET.decode() not in json.dumps(entries_of(store, here))


def test_a_case_with_digests_matches_the_field_and_keeps_no_value(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", create_scope=True)
        people(stream)
        expected = [event for event in events_of(stream) if b'"user-3"' not in event.data]
        case = store.cases().open("s/t", ["user-3", "nobody-17"], json_field="user.id", keep_values=False, **WHO)
        found = store.cases().wait(case.case)
        assert (found.events, found.looked_for["values"]) == (10, 2)
        assert events_of(stream) == expected
        stored = store._thread.call(store._inner.controller.cases._record(case.case))
        assert "user-3" not in json.dumps(stored.subject)
        with pytest.raises(InvalidArgumentError, match="name a field"):
            store.cases().open("s/t", ["user-3"], keep_values=False, **WHO)
    assert os.stat(data / "erasure.key").st_mode & 0o777 == 0o600
    for value in (b"user-3", b"nobody-17"):
        assert files_with(data, value) == []


def test_a_hold_defers_a_case_and_its_end_continues_it(store, here, stream):
    store.holds(here).add(owner="law", reason="case 5", hold_id=here)
    store.cases().open(f"{here}/t", [SECRET.decode()], case=here, **WHO)
    found = store.cases().wait(here, until_deferred=True)
    assert (found.state, [item.hold for item in found.holds], found.events) == ("deferred", [here], 0)
    assert hits_of(events_of(stream))
    with pytest.raises(ConflictError):
        store.cases().close(here, **WHO)
    store.holds().release(here, owner="law")
    assert store.cases().wait(here).state == "verified"
    assert hits_of(events_of(stream)) == []


def test_events_that_arrive_until_the_case_is_closed_are_erased_and_counted(store, here, stream):
    store.cases().open(here, [SECRET.decode()], case=here, **WHO)
    first = store.cases().wait(here)
    fill(stream, 50, start=100)
    fresh = store.create_stream(f"{here}/new")
    fill(fresh, 50)
    late = len(hits_of(events_of(stream))) + len(hits_of(events_of(fresh)))
    closed = store.cases().close(here, who="bob", why="answered")
    assert (closed.state, closed.events, closed.late) == ("closed", first.events + late, late)
    assert closed.ended.who == "bob"
    assert hits_of(events_of(stream)) == hits_of(events_of(fresh)) == []
    assert store.cases().close(here, who="bob", why="answered") == closed
    fill(stream, 50, start=200)
    store.cases().look(here)
    assert hits_of(events_of(stream)), "a closed case erases nothing"


def test_a_late_event_is_erased_without_a_call(store, here, stream):
    store.cases().open(here, [SECRET.decode()], case=here, **WHO)
    store.cases().wait(here)
    fill(stream, 50, start=100)
    deadline = time.monotonic() + 30
    while hits_of(events_of(stream)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert hits_of(events_of(stream)) == []


def test_a_case_goes_on_after_the_store_was_closed(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 200)
        store.cases().open("s/t", [SECRET.decode()], case="c", **WHO)
    with penstock.open(data) as store:
        assert store.cases().wait("c").state == "verified"
        assert hits_of(events_of(store.stream("s/t"))) == []
    assert files_with(data / "chunks") == []


def test_a_withdrawn_case_ends_without_erasing_what_a_hold_keeps(store, here, stream):
    store.holds(here).add(owner="law", reason="case 5", hold_id=here)
    store.cases().open(f"{here}/t", [SECRET.decode()], case=here, **WHO)
    store.cases().wait(here, until_deferred=True)
    assert store.cases().withdraw(here, **WHO).state == "withdrawn"
    store.holds().release(here, owner="law")
    with suppress(ConflictError):
        store.cases().look(here)
    assert hits_of(events_of(stream))
    with pytest.raises(ConflictError):
        store.cases().close(here, **WHO)


def test_bytes_that_are_not_events_are_reported_and_do_not_stop_a_case(store, here, stream):
    store.create_stream(f"{here}/raw")
    with store.byte_stream(f"{here}/raw") as raw:
        raw.write(b"\xff" * 100 + SECRET)
    store.cases().open(here, [SECRET.decode()], case=here, **WHO)
    found = store.cases().wait(here)
    assert (found.state, [item.stream for item in found.defects]) == ("verified", [f"{here}/raw"])


def test_an_invalid_request_opens_no_case(store, here, stream):
    before = [item.case for item in store.cases()]
    for wrong in (
        {"targets": []},
        {"targets": ["a/b/c"]},
        {"targets": ["_system/audit"]},
        {"values": []},
        {"values": ["\0\0"]},
        {"json_field": "a..b"},
        {"case": "with space"},
        {"case": "x" * 41},
        {"who": ""},
        {"due": -1},
    ):
        with pytest.raises(InvalidArgumentError):
            store.cases().open(**{"targets": here, "values": ["value"], **WHO, **wrong})
    assert [item.case for item in store.cases()] == before
    with pytest.raises(NotFoundError):
        store.cases().show(here)


def test_the_commands_open_show_and_close_a_case_and_overdue_ones_are_marked(
    tmp_path, store, here, stream, monkeypatch
):
    # The store is open: that every command opens one is tested elsewhere, and takes longer than all of this.
    monkeypatch.setattr(commands, "open_target", lambda *given, **named: nullcontext(store))
    store.holds(here).add(owner="law", reason="case 5", hold_id=here)
    (tmp_path / "values").write_text(f"{SECRET.decode()}\n")

    def run(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments)])

    asked = ["erase", "request", here, "--values-from", tmp_path / "values", "--reason", "r 17", "--owner", "ann"]
    refused = run(*asked)
    assert refused.exit_code
    assert "yes" in str(refused.exception)
    deferred = run(*asked, "--id", here, "--yes", "--due", "1s")
    assert deferred.exit_code == 10, deferred.output
    assert f"erasures  {here}." in deferred.output, "what is deferred has an erasure, and no receipt yet"
    assert "receipts" not in deferred.output
    give_up_s = time.monotonic() + 20
    while "OVERDUE" not in (listed := run("erase", "cases")).output:
        assert time.monotonic() < give_up_s, listed.output
        time.sleep(0.05)
    assert f"deferred by hold {here}" in listed.output
    store.holds().release(here, owner="law")
    waited = run("erase", "case", "wait", here, "--json")
    assert json.loads(waited.output)["state"] == "verified"
    assert "OVERDUE" not in run("erase", "cases").output
    closed = run("erase", "case", "close", here, "--reason", "answered", "--owner", "bob")
    assert "15 events erased" in closed.output or "14 events erased" in closed.output
    assert "closed" in run("erase", "case", "show", here).output
