"""What was erased is in no file and in nobody's hands; a receipt says so, and anybody can check it."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from erasure_events import SECRET, events_of, files_with, fill, hits_of
from msgspec import UNSET

import penstock
from penstock.app.integrity.rebuild import rebuild
from penstock.core.segments.erasure_receipt import receipt_problems
from penstock.model.answers.erasure import ErasureProgress
from penstock.model.errors import (
    AlreadyExistsError,
    ErasureDeferredError,
    ErasureWithdrawnError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    StreamNotFoundError,
)
from penstock.testing.server import ServerProcess


@pytest.fixture
def store(tmp_path):
    with penstock.open(tmp_path / "data") as opened:
        yield opened


@pytest.mark.parametrize(
    "positions", [{0: [-1]}, {0: [3]}, {0: [0, 10**9]}, {0: [2**70]}, {0: [0], 7: [0]}, {0: list(range(60_000))}]
)
def test_a_refused_erasure_leaves_no_trace(store, positions):
    stream = store.create_stream("s/t", segments=1, create_scope=True)
    with stream.writer() as writer:
        writer.write(b"kept", "k")
    with pytest.raises(InvalidArgumentError):
        stream.erase(positions, who="ann", why="request 17")
    assert list(store.erasures().list()) == []
    assert [event.data for event in events_of(stream)] == [b"kept"]


def test_erased_events_are_gone_for_readers_and_from_every_file(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", segments=3, create_scope=True)
        fill(stream)
        before = events_of(stream)
        hits = hits_of(before)
        cut = stream.tail()
        assert files_with(data)
        assert stream.erase(hits, who="ann", why="request 17", dry_run=True)["events"] == len(hits)
        assert len(events_of(stream)) == len(before)
        receipt = stream.erase(hits, who="ann", why="request 17", erasure="r17")
        assert files_with(data) == []
        gone = set(hits)
        key = lambda event: (event.segment, event.offset)  # noqa: E731
        assert sorted(events_of(stream), key=key) == sorted((e for e in before if e not in gone), key=key)
        assert stream.tail() == cut
        assert receipt["where"]["events"] == len(hits)
        assert receipt["where"]["bytes"] == sum(len(event.data) for event in hits)
        assert receipt_problems(receipt) == []
        found = stream.erasures.verify("r17")
        assert found.holds, found
        assert found.bytes > 0
        assert SECRET.decode() not in json.dumps(receipt)
        fill(stream, start=3000)
        assert len(hits_of(events_of(stream))) == len([n for n in range(3000, 6000) if n % 7 == 3])
    with penstock.open(data) as store:
        stream = store.stream("s/t")
        assert stream.erasures.show("r17").receipt == receipt
        assert stream.erasures.verify("r17").holds
        second = stream.erase(hits_of(events_of(stream)), who="ann", why="request 18")
        assert (second["sequence"], second["previous"]) == (2, receipt["sha256"])
        assert [item.receipt for item in store.erasures()] == [receipt, second]
        assert stream.erasures.verify("r17").holds
        assert stream.erasures.verify(second["erasure"]).holds
        assert files_with(data) == []


def test_other_readers_get_zeros_of_the_same_length(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 200)
    hits = hits_of(events_of(stream))
    thread = store._thread
    segments = store._inner.segments
    name = "s/t/0.#epoch.0"
    before = b"".join(thread.call(segments.read(name, 0, 1 << 20)).parts)
    stream.erase(hits, who="ann", why="x")
    after = b"".join(thread.call(segments.read(name, 0, 1 << 20)).parts)
    expected = bytearray(before)
    for event in hits:
        expected[event.offset + 8 : event.offset + 8 + len(event.data)] = bytes(len(event.data))
    assert after == expected


def test_events_of_zeros_that_a_writer_wrote_are_read(store):
    stream = store.create_stream("s/t", create_scope=True)
    with stream.writer() as writer:
        for number in range(300):
            writer.write(bytes(number % 11) if number % 3 else SECRET, key="k")
    before = events_of(stream)
    stream.erase(hits_of(before), who="ann", why="x")
    assert events_of(stream) == [event for event in before if event.data != SECRET]
    table = list(stream.reader(until_tail=True).read_arrow())
    rows = [row for batch in table for row in batch.column("event").to_pylist()]
    assert rows == [event.data for event in before if event.data != SECRET]


def test_the_same_id_again_is_no_second_erasure(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 100)
    events = events_of(stream)
    receipt = stream.erase(hits_of(events), who="ann", why="x", erasure="e")
    assert stream.erase(hits_of(events), who="ann", why="x", erasure="e") == receipt
    assert stream.erasures.wait("e") == receipt
    # A search that is run again finds fewer events, or none.
    assert stream.erase(hits_of(events)[1:], who="ann", why="x", erasure="e") == receipt
    assert stream.erase([], who="ann", why="x", erasure="e") == receipt
    other = [event for event in events if event not in hits_of(events)][:1]
    for positions, who in ((hits_of(events), "bob"), (other, "ann")):
        with pytest.raises(AlreadyExistsError):
            stream.erase(positions, who=who, why="x", erasure="e")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"positions": [(0, 3)]}, InvalidArgumentError),
        ({"positions": [(0, 1 << 40)]}, InvalidArgumentError),
        ({"positions": [(77, 0)]}, InvalidArgumentError),
        ({"positions": [("a", "b")]}, InvalidArgumentError),
        ({"who": ""}, InvalidArgumentError),
        ({"why": " "}, InvalidArgumentError),
        ({"erasure": "no/slash"}, InvalidArgumentError),
        ({"erasure": "-" * 5}, InvalidArgumentError),
    ],
)
def test_what_cannot_be_erased_is_refused_and_nothing_changes(store, change, error):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 50)
    before = events_of(stream)
    given = {"positions": hits_of(before), "who": "ann", "why": "x"} | change
    with pytest.raises(error):
        stream.erase(given.pop("positions"), **given)
    assert events_of(stream) == before


def test_unknown_streams_and_erasures_are_named(store):
    with pytest.raises(NotFoundError):
        store.erasures().show("none")
    store.create_scope("s")
    with pytest.raises(StreamNotFoundError):
        store.stream("s/none").erase([(0, 0)], who="ann", why="x")
    with pytest.raises(InvalidArgumentError):
        store._thread.call(store._inner.erasures().run([], who="ann", why="x"))


def test_writing_reading_and_truncating_go_on_meanwhile(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 2000)
    hits = hits_of(events_of(stream))
    stop = threading.Event()
    seen, failures = [], []

    def write():
        try:
            with stream.writer() as writer:
                number = 0
                while not stop.is_set():
                    writer.write(b"new %d" % number, key="k")
                    writer.flush()
                    number += 1
            seen.append(number)
        except PenstockError as error:
            failures.append(error)

    def read():
        try:
            while not stop.is_set():
                events_of(stream)
        except PenstockError as error:
            failures.append(error)

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    try:
        for start in range(0, len(hits), 100):
            stream.erase(hits[start : start + 100], who="ann", why="x")
        stream.truncate(stream.head())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    events = events_of(stream)
    assert hits_of(events) == []
    assert [event.data for event in events if event.data.startswith(b"new")] == [b"new %d" % n for n in range(seen[0])]
    assert all(stream.erasures.verify(item.erasure).holds for item in store.erasures())


def test_verification_sees_a_receipt_that_is_not_true(tmp_path, store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 100)
    hits = hits_of(events_of(stream))
    stream.erase(hits, who="ann", why="x", erasure="e")
    inner = store._inner
    real = inner.segments.read

    async def lying(name, offset, max_bytes, *, wait=True):
        found = await real(name, offset, max_bytes, wait=wait)
        data = bytearray(b"".join(found.parts))
        place = changed[0] - offset
        if 0 <= place < len(data) and name.startswith("s/t/"):
            data[place] ^= 0x20
        return type(found)(
            offset=found.offset, parts=[bytes(data)], at_tail=found.at_tail, end_of_segment=found.end_of_segment
        )

    inner.segments.read = lying
    changed = [0]
    for changed[0], word in (
        (hits[3].offset + 9, "not blank"),
        (hits[3].offset + 8 + len(hits[3].data) + 9, "does not cover"),
    ):
        found = stream.erasures.verify("e")
        assert not found.holds
        assert any(word in problem for problem in found.problems)
    inner.segments.read = real
    assert stream.erasures.verify("e").holds


def test_verification_of_a_stream_whose_end_is_lost_ends_and_says_so(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 100)
    hits = hits_of(events_of(stream))
    stream.erase(hits, who="ann", why="x", erasure="e")
    real = store._inner.segments.read

    async def short(name, offset, max_bytes, *, wait=True):
        found = await real(name, offset, max_bytes, wait=wait)
        data = b"".join(found.parts)[: max(0, hits[-1].offset - offset) if name.startswith("s/t/") else None]
        return type(found)(
            offset=found.offset,
            parts=[data] if data else [],
            at_tail=found.at_tail,
            end_of_segment=found.end_of_segment,
        )

    store._inner.segments.read = short
    found = stream.erasures.verify("e")
    assert any(f"ends at {hits[-1].offset}" in problem for problem in found.problems)


def test_an_erasure_of_another_stream_is_no_excuse_for_other_bytes(store):
    streams = [store.create_stream(f"s/{name}", create_scope=True) for name in ("a", "b")]
    for stream, erasure in zip(streams, ("first", "later"), strict=True):
        fill(stream, 100)
        stream.erase(hits_of(events_of(stream)), who="ann", why="x", erasure=erasure)
    real = store._inner.segments.read

    async def lying(name, offset, max_bytes, *, wait=True):
        found = await real(name, offset, max_bytes, wait=wait)
        data = bytearray(b"".join(found.parts))
        if name.startswith("s/a/") and offset <= 9 < offset + len(data):
            data[9 - offset] ^= 0x20
        return type(found)(
            offset=found.offset, parts=[bytes(data)], at_tail=found.at_tail, end_of_segment=found.end_of_segment
        )

    store._inner.segments.read = lying
    found = streams[0].erasures.verify("first")
    assert any("does not cover" in problem for problem in found.problems)
    assert streams[1].erasures.verify("later").holds


@pytest.mark.parametrize("value", [float("nan"), {1}, b"x", "\ud800"], ids=["nan", "a set", "bytes", "half a pair"])
def test_what_was_looked_for_is_json_or_nothing_is_erased(store, value):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 50)
    hits = hits_of(events_of(stream))
    asked = {"erasure": "e", "who": "ann", "why": "x", "looked_for": {"user": value}}
    for ask in (
        lambda: stream.erase(hits, who="ann", why="x", looked_for=asked["looked_for"]),
        lambda: store._thread.call(store._inner.controller.erasures.erase(stream.name, asked, {})),
    ):
        with pytest.raises(InvalidArgumentError, match="what was looked for"):
            ask()
    assert hits_of(events_of(stream)) == hits
    assert list(store.erasures()) == []


def test_each_erasure_is_told_by_the_audit_stream(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 50)
    receipt = stream.erase(hits_of(events_of(stream)), who="ann", why="x", erasure="e")
    store._thread.call(store._inner.controller.drain_audit())
    entries = [json.loads(event.data) for event in events_of(store.stream("_system/audit"))]
    (entry,) = [item for item in entries if item["kind"] == "erase"]
    assert (entry["target"], entry["erasure"], entry["sha256"]) == ("s/t", "e", receipt["sha256"])
    assert entry["who"] == "ann"


def test_an_erasure_that_was_decided_is_finished_by_the_next_opening(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 500)
        hits = hits_of(events_of(stream))

        async def never(*_args, **_named):
            raise OSError("the disk is away")

        store._inner.segments.erase = never
        asked = {"erasure": "e", "who": "ann", "why": "x", "looked_for": {"by": "positions"}}
        positions = {0: [event.offset for event in hits]}
        store._thread.call(store._inner.controller.erasures.erase(stream.name, asked, positions))
        state = store._thread.call(_failed(store._inner.controller))
        assert "the disk is away" in state.waits_for
        assert state.progress == ErasureProgress(phase="chunks", segments=0, of=1)
    with penstock.open(data) as store:
        stream = store.stream("s/t")
        assert stream.erasures.wait("e")["where"]["events"] == len(hits)
        assert hits_of(events_of(stream)) == []
        assert stream.erasures.verify("e").holds
    assert files_with(data) == []


async def _failed(controller):
    while True:
        state = await controller.erasures.get("e")
        if state.waits_for is not UNSET:
            return state
        await asyncio.sleep(0.01)


def test_a_store_rebuilt_from_tier_2_knows_what_was_erased(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 500)
        before = events_of(stream)
        stream.erase(hits_of(before), who="ann", why="x", erasure="e")
        expected = events_of(stream)
    report = asyncio.run(rebuild(str(data), tmp_path / "new"))
    assert report.damage == []
    with penstock.open(tmp_path / "new") as store:
        stream = store.stream("s/t")
        assert events_of(stream) == expected
        assert stream.erasures.verify("e").holds
    assert files_with(tmp_path / "new") == []


@pytest.mark.server
def test_a_server_with_workers_erases_and_tells_its_clients(tmp_path):
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, penstock.connect(server.address) as store:
        stream = store.create_stream("s/t", segments=4, create_scope=True)
        fill(stream)
        before = events_of(stream)
        hits = hits_of(before)
        assert len(files_with(tmp_path / "data")) >= 2
        assert stream.erase(hits, who="ann", why="x", dry_run=True)["events"] == len(hits)
        receipt = stream.erase(hits, who="ann", why="x", erasure="e")
        assert files_with(tmp_path / "data") == []
        assert receipt["where"]["events"] == len(hits)
        assert len(events_of(stream)) == len(before) - len(hits)
        assert stream.erasures.verify("e").holds
        with pytest.raises(InvalidArgumentError):
            stream.erase([(0, 3)], who="ann", why="x")
        stream.retention.holds.add(owner="law", reason="case 5", hold_id="case-5")
        with pytest.raises(ErasureDeferredError) as deferred:
            stream.erase(events_of(stream)[:1], who="ann", why="x", erasure="e2")
        assert deferred.value.fields["hold"] == "case-5"
        assert stream.erasures.withdraw("e2", who="bob", why="y").state == "withdrawn"
        with pytest.raises(ErasureWithdrawnError):
            stream.erasures.wait("e2")
        assert server.stop() == 0, server.tail()
