"""Cases at their limits: very many segments, deleted streams that can be restored, and events that cannot be searched."""

from __future__ import annotations

import itertools
import json

import pytest
from erasure_events import SECRET, events_of, fill, hits_of

import penstock
from penstock.controller.erasure import case_search
from penstock.model.errors import ConflictError, InvalidArgumentError

WHO = {"who": "ann", "why": "request 17"}


@pytest.fixture
def store(tmp_path):
    with penstock.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def stream(store):
    return store.create_stream("s/t", create_scope=True)


def test_a_case_asks_for_erasures_whose_receipts_fit(store, stream, monkeypatch):
    monkeypatch.setattr(case_search, "SEGMENTS_MAX", 3)
    stream.scale(8)
    fill(stream, 400)
    assert hits_of(events_of(stream))
    store.cases().open("s/t", [SECRET.decode()], case="c", **WHO)
    found = store.cases().wait("c")
    assert found.state == "verified"
    assert hits_of(events_of(stream)) == []
    sizes = [len(store.erasures().show(item).receipt["where"]["segments"]) for item in found.erasures]
    assert max(sizes) == 3
    assert len(sizes) > 2


def test_a_case_waits_for_a_deleted_stream_that_can_be_restored(store, stream):
    fill(stream, 50)
    other = store.create_stream("s/u")
    fill(other, 50)
    stream.delete(seal=True)
    store.cases().open("s", [SECRET.decode()], case="c", **WHO)
    found = store.cases().look("c")
    assert found.state == "performed"
    assert "s/t is deleted and can still be restored" in found.waits_for
    assert hits_of(events_of(other)) == []
    with pytest.raises(ConflictError, match="can still be restored"):
        store.cases().close("c", **WHO)
    store.restore_stream("s/t")
    assert store.cases().wait("c").state == "verified"
    assert hits_of(events_of(stream)) == []
    assert store.cases().close("c", **WHO).state == "closed"


def test_the_undo_of_a_deletion_brings_no_erased_event_back(store, stream):
    fill(stream, 50)
    store.cases().open("s", [SECRET.decode()], case="c", **WHO)
    before = events_of(stream)
    assert store.cases().wait("c").state == "verified"
    stream.delete(seal=True)
    store.restore_stream("s/t")
    assert events_of(stream) == [event for event in before if not event.data.startswith(SECRET)]
    assert store.cases().look("c").state == "verified"


def test_an_event_that_cannot_be_searched_is_a_defect_of_the_case(store, stream):
    with stream.writer() as writer:
        writer.write(json.dumps({"user": "u-1"}), key="a")
        writer.write(b'{"user":"u-1","more":' + b"[" * 50_000 + b"]" * 50_000 + b"}", key="a")
        writer.write(json.dumps({"user": "u-2"}), key="a")
    store.cases().open("s/t", ["u-1"], json_field="user", case="c", **WHO)
    found = store.cases().wait("c")
    assert (found.events, found.state) == (1, "verified")
    (defect,) = found.defects
    assert "nested too deeply" in defect.why
    with pytest.raises(InvalidArgumentError, match="too many names"):
        store.cases().open("s/t", ["u-1"], json_field=".".join("a" * 65), case="d", **WHO)


def test_a_stream_that_gets_matching_events_all_the_time_does_not_keep_a_case_from_the_others(
    store, stream, monkeypatch
):
    others = [store.create_stream("s/a"), store.create_stream("s/z")]
    for one in (stream, *others):
        fill(one, 20)
    search = store._inner.controller.cases._search
    settle, calls = search._settle, itertools.count()

    async def settle_after_a_write(case, view, stored):
        if str(view.name) == "s/t":
            assert next(calls) < 10
            async with store._inner.stream("s/t").writer() as writer:
                await writer.write(SECRET + b" again", key="k")
        return await settle(case, view, stored)

    monkeypatch.setattr(search, "_settle", settle_after_a_write)
    store.cases().open("s", [SECRET.decode()], case="c", **WHO)
    store.cases().look("c")
    assert [hits_of(events_of(other)) for other in others] == [[], []]
    assert hits_of(events_of(stream))
    monkeypatch.undo()
    assert store.cases().look("c").state == "verified"
    assert hits_of(events_of(stream)) == []
