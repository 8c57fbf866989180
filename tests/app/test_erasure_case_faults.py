"""What may go wrong with one stream, one key or one text of a case of erasure, and what must go on in spite of it."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

import pytest
from erasure_events import SECRET, events_of, fill, hits_of

import penstock
from penstock.app.erasure.subjects import export_subject
from penstock.controller.erasure.cases import Cases
from penstock.core.cases.matching import Contains
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)

WHO = {"who": "ann", "why": "request 17"}


@pytest.fixture
def store(tmp_path):
    with penstock.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """A store for tests that change nothing, with a stream that holds matching events."""
    with penstock.open(tmp_path_factory.mktemp("refusing") / "data") as opened:
        fill(opened.create_stream("s/t", create_scope=True), 20)
        yield opened


@pytest.fixture
def stream(store):
    created = store.create_stream("s/t", create_scope=True)
    fill(created, 100)
    return created


def cases_of(store):
    return store._inner.controller.cases


def call(store, work):
    return store._thread.call(work)


def test_a_stream_that_cannot_be_searched_stays_listed(store, stream):
    store.create_stream("s/raw")
    with store.byte_stream("s/raw") as raw:
        raw.write(b"\xff" * 100 + SECRET)
    store.cases().open("s", [SECRET.decode()], case="c", **WHO)
    store.cases().wait("c")
    for _ in range(3):
        found = store.cases().look("c")
        assert [item.stream for item in found.defects] == ["s/raw"]


def test_a_stream_that_cannot_be_read_does_not_keep_a_case_from_the_others(store, stream, monkeypatch):
    bad = store.create_stream("s/a")
    fill(bad, 20)
    search = cases_of(store)._search
    erase = search.erase

    async def failing(case, view, note):
        if str(view.name) == "s/a":
            raise CorruptDataError("block is damaged")
        return await erase(case, view, note)

    monkeypatch.setattr(search, "erase", failing)
    store.cases().open("s", [SECRET.decode()], case="c", **WHO)
    with pytest.raises(CorruptDataError):
        store.cases().look("c")
    assert hits_of(events_of(stream)) == []
    assert store.cases().show("c").state == "open"
    monkeypatch.undo()
    assert store.cases().wait("c").state == "verified"


def test_a_case_that_is_withdrawn_during_a_pass_erases_nothing_more(store, stream, monkeypatch):
    search = cases_of(store)._search
    find, reached, go = search._find, asyncio.Event(), asyncio.Event()

    async def slow(*args, **options):
        found = await find(*args, **options)
        reached.set()
        await go.wait()
        return found

    async def race():
        cases = cases_of(store)
        await cases.open("c", targets=["s"], subject={"by": "payload contains", "values": [SECRET.decode()]}, **WHO)
        await reached.wait()
        await cases.withdraw("c", **WHO)
        go.set()
        with suppress(PenstockError):
            await cases.look("c")

    monkeypatch.setattr(search, "_find", slow)
    call(store, race())
    assert hits_of(events_of(stream))
    assert store.cases().show("c").state == "withdrawn"
    assert store.erasures().list() == []


def test_digests_are_not_compared_with_those_of_another_key(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        store.create_stream("s/t", create_scope=True)
        store.cases().open("s", ["ann"], json_field="user", keep_values=False, case="c", **WHO)
        store.cases().wait("c")
    (data / "erasure.key").rename(tmp_path / "kept")
    with penstock.open(data) as store:
        with store.stream("s/t").writer() as writer:
            writer.write(json.dumps({"user": "ann"}))
        with pytest.raises(InvalidArgumentError, match="key"):
            store.cases().close("c", **WHO)
        assert "key" in store.cases().show("c").waits_for
    (tmp_path / "kept").rename(data / "erasure.key")
    with penstock.open(data) as store:
        assert store.cases().close("c", **WHO).late == 1


@pytest.mark.parametrize("subject", [{"by": "payload contains"}, {"by": "json field", "field": "user"}])
def test_a_value_that_no_payload_can_hold_is_refused(refusing, subject):
    with pytest.raises(InvalidArgumentError):
        call(refusing, cases_of(refusing).open("c", targets=["*"], subject={**subject, "values": ["\ud800"]}, **WHO))
    assert list(refusing.cases()) == []


def test_cases_go_on_after_a_moment_without_metadata(store, stream, monkeypatch):
    rows, failures = Cases._all, []

    def failing(self):
        if not failures:
            failures.append(1)
            raise UnavailableError("no metadata now")
        return rows(self)

    monkeypatch.setattr(Cases, "_all", failing)
    store.cases().open("s", [SECRET.decode()], case="c", **WHO)
    deadline = time.monotonic() + 20
    while store.cases().show("c").state != "verified" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert failures
    assert store.cases().show("c").state == "verified"


@pytest.mark.parametrize("target", ["s/u", "nosuch", "nosuch/t"])
def test_a_mistyped_target_proves_nothing(refusing, target):
    with pytest.raises(NotFoundError, match="no such stream"):
        refusing.cases().open(["s/t", target], [SECRET.decode()], case="c", **WHO)
    assert list(refusing.cases()) == []
    assert hits_of(events_of(refusing.stream("s/t")))
    with pytest.raises(NotFoundError, match="no such stream"):
        call(
            refusing,
            export_subject(refusing._inner, [target], Contains(values=frozenset([SECRET.decode()])), lambda row: None),
        )
