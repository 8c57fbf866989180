"""An erasure that a hold covers is deferred: it blanks nothing, continues when the hold ends, or is withdrawn."""

from __future__ import annotations

import json

import pytest
from erasure_events import SECRET, events_of, files_with, fill, hits_of

import penstock
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    ErasureDeferredError,
    ErasureWithdrawnError,
    InvalidArgumentError,
    NotFoundError,
    RetentionHoldError,
)

ASKED = {"who": "ann", "why": "request 17"}


@pytest.fixture
def store(tmp_path):
    with penstock.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def stream(store):
    created = store.create_stream("s/t", create_scope=True)
    fill(created, 100)
    return created


def hold(stream, name="case-5", **named):
    return stream.retention.holds.add(owner="law", reason=f"for {name}", hold_id=name, **named)


def deferred(stream, hits, erasure="e"):
    """The fields of the error that reports the deferral."""
    with pytest.raises(ErasureDeferredError) as caught:
        stream.erase(hits, **ASKED, erasure=erasure)
    return caught.value.fields


def entries_of(store):
    store._thread.call(store._inner.controller.drain_audit())
    entries = [json.loads(event.data) for event in events_of(store.stream("_system/audit"))]
    return [entry for entry in entries if entry["kind"].startswith("erase")]


def marks_and_pages(store):
    metadata = store._inner.controller._ctx.metadata

    async def keys():
        return [entry.key async for entry in metadata.scan_all(b"erasure-")]

    return [key for key in store._thread.call(keys()) if key.startswith((b"erasure-part/", b"erasure-work/"))]


def test_a_held_erasure_blanks_nothing_and_continues_when_the_hold_is_released(store, stream):
    before = events_of(stream)
    hits = hits_of(before)
    hold(stream)
    fields = deferred(stream, hits)
    assert (fields["erasure"], fields["hold"], fields["owner"], fields["holds"]) == ("e", "case-5", "law", 1)
    state = stream.erasures.show("e")
    assert state.state == "deferred"
    assert state.receipt is None
    assert [item.hold for item in state.deferred.holds] == ["case-5"]
    assert state.deferred.since_ms == fields["since_ms"] == state.asked_ms
    assert events_of(stream) == before
    assert not stream.erasures.verify("e").holds
    # Asked again it is the same deferral; the same id with other events is refused.
    assert deferred(stream, hits) == fields
    assert deferred(stream, hits[1:]) == fields
    other = [event for event in before if event not in hits][:1]
    with pytest.raises(AlreadyExistsError):
        stream.erase(other, **ASKED, erasure="e")
    store.holds().release("case-5", owner="law")
    receipt = stream.erasures.wait("e")
    assert receipt["where"]["events"] == len(hits)
    assert hits_of(events_of(stream)) == []
    assert stream.erasures.verify("e").holds
    assert stream.erase(hits, **ASKED, erasure="e") == receipt
    assert [entry["kind"] for entry in entries_of(store)] == ["erase_deferred", "erase_continued", "erase"]
    first = entries_of(store)[0]
    assert (first["target"], first["erasure"], first["who"]) == ("s/t", "e", "ann")
    assert [item["hold"] for item in first["holds"]] == ["case-5"]


def test_a_deferred_erasure_waits_for_every_hold_that_covers_it(store, stream):
    hits = hits_of(events_of(stream))
    hold(stream, "one")
    deferred(stream, hits)
    store.holds("s").add(owner="law", reason="all of it", hold_id="two")
    hold(stream, "late", cut=stream.tail())
    controller = store._inner.controller
    store._thread.call(controller.sweep())
    assert [item.hold for item in stream.erasures.show("e").deferred.holds] == ["one", "two"]
    store.holds().release("one", owner="law")
    store._thread.call(controller.sweep())
    state = stream.erasures.show("e")
    assert [item.hold for item in state.deferred.holds] == ["two"]
    assert len(hits_of(events_of(stream))) == len(hits)
    store.holds().release("two", owner="law")
    stream.erasures.wait("e")
    assert hits_of(events_of(stream)) == []
    assert [entry["kind"] for entry in entries_of(store)] == ["erase_deferred", "erase_continued", "erase"]


def test_a_hold_from_a_cut_defers_only_what_it_covers(store, stream):
    cut = stream.tail()
    fill(stream, 100, start=100)
    hits = hits_of(events_of(stream))
    first = [event for event in hits if event.offset < next(iter(cut.positions.values()))]
    hold(stream, cut=cut)
    deferred(stream, hits, "all")
    deferred(stream, hits[-1:], "last")
    stream.erase(first, **ASKED, erasure="first")
    assert hits_of(events_of(stream)) == hits[len(first) :]


def test_a_dry_run_names_the_holds_that_would_defer_it(store, stream):
    hits = hits_of(events_of(stream))
    assert stream.erase(hits, **ASKED, dry_run=True)["holds"] == []
    hold(stream)
    found = stream.erase(hits, **ASKED, dry_run=True)
    assert found["events"] == len(hits)
    assert [item["hold"] for item in found["holds"]] == ["case-5"]
    assert store.erasures().list() == []


def test_a_deferred_erasure_is_there_after_a_restart_and_continues_then(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 100)
        hits = hits_of(events_of(stream))
        hold(stream)
        deferred(stream, hits)
    with penstock.open(data) as store:
        assert store.erasures().show("e").state == "deferred"
        # Repeated by a client that does not know what became of it.
        deferred(store.stream("s/t"), hits)
        store._inner.controller.erasures.resume_soon = lambda: None
        store._inner.controller.holds._ended = lambda: None
        store.holds().release("case-5", owner="law")
    with penstock.open(data) as store:
        assert store.erasures().wait("e")["where"]["events"] == len(hits)
        assert store.erasures().verify("e").holds
    assert files_with(data) == []


def test_a_withdrawn_erasure_blanks_nothing_and_its_id_is_used_up(tmp_path, store, stream):
    before = events_of(stream)
    hits = hits_of(before)
    hold(stream)
    deferred(stream, hits)
    state = stream.erasures.withdraw("e", who="bob", why="wrong user")
    assert (state.state, state.withdrawn.who, state.withdrawn.why) == ("withdrawn", "bob", "wrong user")
    assert stream.erasures.withdraw("e", who="eve", why="again") == state
    assert marks_and_pages(store) == []
    store.holds().release("case-5", owner="law")
    store._thread.call(store._inner.controller.sweep())
    for ask in (
        lambda: stream.erase(hits, **ASKED, erasure="e"),
        lambda: stream.erase([], who="eve", why="x", erasure="e"),
        lambda: stream.erasures.wait("e"),
    ):
        with pytest.raises(ErasureWithdrawnError) as caught:
            ask()
        assert caught.value.fields["who"] == "bob"
    assert events_of(stream) == before
    assert stream.erasures.show("e") == state
    assert not stream.erasures.verify("e").holds
    entries = entries_of(store)
    assert [entry["kind"] for entry in entries] == ["erase_deferred", "erase_withdrawn"]
    assert (entries[1]["who"], entries[1]["why"]) == ("bob", "wrong user")
    assert [item["hold"] for item in entries[1]["holds"]] == ["case-5"]
    stream.erase(hits, **ASKED, erasure="e2")
    assert files_with(tmp_path / "data", SECRET) == []


def test_what_is_decided_or_unknown_cannot_be_withdrawn(store, stream):
    stream.erase(hits_of(events_of(stream)), **ASKED, erasure="e")
    with pytest.raises(ConflictError, match="decided"):
        stream.erasures.withdraw("e", who="bob", why="x")
    with pytest.raises(NotFoundError):
        stream.erasures.withdraw("none", who="bob", why="x")
    for texts in ({"who": "", "why": "x"}, {"who": "bob", "why": " "}):
        with pytest.raises(InvalidArgumentError):
            stream.erasures.withdraw("e", **texts)
    assert stream.erasures.show("e").state == "done"


def test_an_erasure_whose_pages_never_came_can_be_withdrawn(store, stream):
    run = {"attempt": "a", "events": 2, "positions_sha256": "0" * 64}
    asked = {"erasure": "e", **ASKED, "looked_for": {}, "run": run}
    controller = store._inner.controller
    (first, *_) = hits_of(events_of(stream))
    call = controller.erasures.erase(stream.name, asked, {0: [first.offset]}, page=0, last=False)
    assert store._thread.call(call).state == "gathering"
    assert stream.erasures.withdraw("e", who="bob", why="x").state == "withdrawn"
    with pytest.raises(ErasureWithdrawnError):
        store._thread.call(controller.erasures.erase(stream.name, asked, {0: [first.offset]}, page=1, last=True))
    assert marks_and_pages(store) == []


def test_a_hold_on_the_scope_defers_the_erasure_of_a_stream_that_can_be_restored(store, stream):
    before = events_of(stream)
    hold(stream)
    deferred(stream, hits_of(before))
    controller = store._inner.controller
    ended, controller.holds._ended = controller.holds._ended, lambda: None
    store.holds().release("case-5", owner="law")
    stream.delete(seal=True)
    store.holds("s").add(owner="law", reason="all of it", hold_id="scope")
    controller.holds._ended = ended
    for _ in range(2):
        store._thread.call(controller.sweep())
        state = store.erasures().show("e")
        assert (state.state, [item.hold for item in state.deferred.holds]) == ("deferred", ["scope"])
    store._thread.call(controller.streams.restore(stream.name))
    assert events_of(store.stream("s/t")) == before
    store.holds().release("scope", owner="law")
    store.erasures().wait("e")
    assert hits_of(events_of(store.stream("s/t"))) == []


def test_a_stream_deleted_when_its_hold_has_ended_is_erased_in_full(tmp_path, store, stream):
    hits = hits_of(events_of(stream))
    hold(stream)
    deferred(stream, hits)
    with pytest.raises(RetentionHoldError):
        stream.delete(seal=True)
    store._inner.controller.holds._ended = lambda: None
    store.holds().release("case-5", owner="law")
    stream.delete(seal=True)
    again = store.create_stream("s/t")
    fill(again, 10)
    hold(again, "case-6")
    store._thread.call(store._inner.controller.sweep())
    receipt = store.erasures().wait("e")
    # The stream can be restored: nothing of it is called gone.
    assert [item["gone"] for item in receipt["where"]["segments"]] == [False]
    assert store.erasures().verify("e").holds
    left = {event.data for event in hits} - {event.data for event in hits_of(events_of(again))}
    assert left
    assert all(files_with(tmp_path / "data", data + b"\x00") == [] for data in left)
    assert len(hits_of(events_of(again))) == 1
