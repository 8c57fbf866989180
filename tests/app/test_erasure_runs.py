"""A receipt is for exactly what was asked: one complete request, even if others ask, delete or lease meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from uuid import UUID

import pytest
from msgspec.structs import replace

import penstock
from penstock.client.erasure import AsyncErasures
from penstock.core.segments.erasure_receipt import positions_digest, request_digest
from penstock.model.errors import AlreadyExistsError, CorruptDataError, ErasureDeferredError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange
from tests.flat_control import FlatControl

SECRET = b"canary-7f3a"
NAME = StreamName("s", "t")


def files_with(directory, needle=SECRET):
    return [str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file() and needle in p.read_bytes()]


def fill(stream, count=30):
    with stream.writer() as writer:
        for number in range(count):
            writer.write(SECRET + b" %06d" % number, key="k")


def events_of(stream):
    with stream.reader(until_tail=True) as reader:
        return list(reader)


@pytest.fixture
def store(tmp_path):
    with penstock.open(tmp_path / "data") as opened:
        yield opened


def run_of(offsets, attempt):
    count, digest = positions_digest({0: offsets})
    return {"attempt": attempt, "events": count, "positions_sha256": digest}


def asked(run=None, **changes):
    found = {"erasure": "r17", "who": "a", "why": "b", "looked_for": {"by": "positions"}} | changes
    return found if run is None else found | {"run": run}


def page(store, run, pages, number, **changes):
    call = store._inner.controller.erasures.erase(
        NAME, asked(run, **changes), {0: pages[number]}, page=number, last=number == len(pages) - 1
    )
    return store._thread.call(call).state


def test_pages_of_two_runs_of_one_id_never_mix(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream)
    offsets = [event.offset for event in events_of(stream)]
    pages = [offsets[:10], offsets[10:20], offsets[20:]]
    one, two = run_of(offsets, "one"), run_of(offsets, "two")
    assert [page(store, one, pages, 0), page(store, one, pages, 1)] == ["gathering"] * 2
    assert page(store, two, pages, 0) == "gathering"
    assert page(store, one, pages, 2) == "asked"
    assert page(store, two, pages, 1) in ("asked", "done")  # It joins the run that decided first.
    receipt = stream.erasures.wait("r17")
    assert receipt["where"]["events"] == receipt["request"]["events"] == 30
    assert stream.erasures.verify("r17").holds
    assert events_of(stream) == []


def test_only_complete_pages_are_decided(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream)
    offsets = [event.offset for event in events_of(stream)]
    pages = [offsets[:10], offsets[10:20], offsets[20:]]
    run = run_of(offsets, "one")
    page(store, run, pages, 0)
    with pytest.raises(InvalidArgumentError, match="pages of positions are missing"):
        page(store, run, pages, 2)
    with pytest.raises(InvalidArgumentError, match="several pages"):
        page(store, None, pages, 0)
    assert len(events_of(stream)) == 30
    assert page(store, run, pages, 1) == "gathering"
    assert page(store, run, pages, 2) == "asked"
    assert stream.erasures.wait("r17")["where"]["events"] == 30


def test_another_request_under_a_used_id_is_refused(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream)
    events = events_of(stream)
    receipt = stream.erase(events[:10], who="a", why="b", erasure="r17")
    for changed in ({"who": "c"}, {"why": "c"}, {"looked_for": {"by": "user"}}):
        with pytest.raises(AlreadyExistsError, match="belongs to another request"):
            stream.erase(events[:10], **{"who": "a", "why": "b", "erasure": "r17"} | changed)
    for positions, undecided in ((events[10:], 20), (events, 20), (events[9:11], 1)):
        with pytest.raises(AlreadyExistsError, match="under another id") as refused:
            stream.erase(positions, who="a", why="b", erasure="r17")
        assert (refused.value.fields["undecided"], refused.value.fields["events"]) == (undecided, len(positions))
    assert stream.erase(reversed(events[:10]), who="a", why="b", erasure="r17") == receipt
    assert len(events_of(stream)) == 20


def test_a_repeat_that_finds_fewer_events_gets_the_receipt(store):
    """A script that finds and erases finds less when it runs again: what it has erased is passed over by readers."""
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream)
    events = events_of(stream)
    receipt = stream.erase(events[:10], who="a", why="b", erasure="r17")
    for fewer in (events[3:5], events[:9], []):
        assert stream.erase(fewer, who="a", why="b", erasure="r17") == receipt
    assert stream.erasures.verify("r17").holds
    assert len(events_of(stream)) == 20


def test_a_repeat_in_several_pages_is_compared_whole(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 6000)
    events = events_of(stream)
    receipt = stream.erase(events[1:-1], who="a", why="b", erasure="r17")
    assert receipt["where"]["events"] == 5998
    assert stream.erase(events[2:-2], who="a", why="b", erasure="r17") == receipt
    with pytest.raises(AlreadyExistsError) as refused:
        stream.erase(events, who="a", why="b", erasure="r17")
    assert (refused.value.fields["undecided"], refused.value.fields["events"]) == (2, 6000)
    assert [event.offset for event in events_of(stream)] == [events[0].offset, events[-1].offset]


class DecidedBehind(FlatControl):
    """A controller with which another run decides an erasure behind the given page."""

    def __init__(self, controller, behind, decide):
        self._inner, self._behind, self._decide = controller, behind, decide

    async def erasures_erase(self, *args, **named):
        found = await self._inner.erasures.erase(*args, **named)
        if named["page"] == self._behind:
            self._behind = None
            await self._decide()
        return found


@pytest.mark.parametrize("undecided", [0, 1])
def test_pages_that_came_before_the_decision_of_another_run_are_compared_too(store, undecided):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 3000)
    events = events_of(stream)
    inner = stream._inner.erasures

    async def decide():
        await inner.run(events[1:], who="a", why="b", erasure="r17")

    controller = DecidedBehind(store._inner.controller, 0, decide)
    erasures = AsyncErasures(NAME, inner._segments, controller, inner._rng)
    work = erasures.run(events[1 - undecided : -1], who="a", why="b", erasure="r17")
    if undecided:
        with pytest.raises(AlreadyExistsError) as refused:
            store._thread.call(work)
        assert refused.value.fields["undecided"] == 1
    else:
        assert store._thread.call(work)["where"]["events"] == 2999
    assert [event.offset for event in events_of(stream)] == [events[0].offset]


def test_a_run_that_comes_second_with_other_events_is_refused(store):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream)
    offsets = [event.offset for event in events_of(stream)]
    pages, others = [offsets[:10], offsets[10:20]], [offsets[:10], offsets[20:]]
    one, two = run_of([*pages[0], *pages[1]], "one"), run_of([*others[0], *others[1]], "two")
    page(store, one, pages, 0)
    page(store, two, others, 0)
    page(store, two, others, 1)
    with pytest.raises(AlreadyExistsError):
        page(store, one, pages, 1)
    assert stream.erasures.wait("r17")["where"]["events"] == 20
    assert [event.offset for event in events_of(stream)] == offsets[10:20]


def test_events_without_payload_are_part_of_the_request(store):
    stream = store.create_stream("s/t", create_scope=True)
    with stream.writer() as writer:
        for number in range(10):
            writer.write(SECRET if number % 2 else b"", key="k")
    events = events_of(stream)
    receipt = stream.erase(events, who="a", why="b", erasure="r17")
    assert (receipt["request"]["events"], receipt["where"]["events"]) == (10, 5)
    assert stream.erase(events, who="a", why="b", erasure="r17") == receipt
    assert stream.erasures.verify("r17").holds
    fill(stream, 1)
    with pytest.raises(AlreadyExistsError):
        stream.erase([*events, *events_of(stream)], who="a", why="b", erasure="r17")


@pytest.mark.parametrize("delay_s", [0, 0.002, 0.01, 0.05])
def test_two_threads_that_run_one_erasure_get_one_true_receipt(store, delay_s):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream, 8000)
    events = events_of(stream)
    found = {}

    def run(name, pause_s):
        time.sleep(pause_s)  # The races differ with it; no outcome depends on it.
        found[name] = stream.erase(events, who="a", why="b", erasure="r17")

    threads = [threading.Thread(target=run, args=("one", 0)), threading.Thread(target=run, args=("two", delay_s))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found["one"] == found["two"]
    assert found["one"]["where"]["events"] == 8000
    assert stream.erasures.verify("r17").holds
    assert events_of(stream) == []


class Gate:
    """Keeps an erasure before its first segment until it is opened."""

    def __init__(self, store):
        self._store, self._real = store, store._inner.segments.erase
        self.reached, self._open = threading.Event(), threading.Event()
        store._inner.segments.erase = self._erase

    async def _erase(self, *args, **named):
        self.reached.set()
        await asyncio.to_thread(self._open.wait, 60)
        return await self._real(*args, **named)

    def open(self):
        self._store._inner.segments.erase = self._real
        self._open.set()


def lease(store, segment):
    now_ms = int(time.time() * 1000)
    call = store._inner.segments.lease_chunks([segment], UUID(int=7), until_ms=now_ms + 600_000, holder="spark")
    store._thread.call(call)


@pytest.mark.parametrize("grace_ms", [0, 3_600_000], ids=["final", "can be restored"])
def test_a_stream_that_is_deleted_while_its_erasure_waits_is_wiped(tmp_path, grace_ms):
    with penstock.open(tmp_path / "data", deletion_grace_ms=grace_ms) as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 2000)
        events = events_of(stream)
        lease(store, "s/t/0.#epoch.0")
        stream.erase(events[:1], who="a", why="b", erasure="first", dry_run=True)
        gate = Gate(store)
        found = []
        thread = threading.Thread(target=lambda: found.append(stream.erase(events, who="a", why="b", erasure="r17")))
        thread.start()
        assert gate.reached.wait(60)
        stream.delete(seal=True)
        assert files_with(tmp_path / "data")  # The lease keeps the chunk.
        again = store.create_stream("s/t")
        with again.writer() as writer:
            writer.write(b"other", key="k")
        gate.open()
        thread.join()
        (receipt,) = found
        # Nothing is called gone that can be restored.
        assert [item["gone"] for item in receipt["where"]["segments"]] == [not grace_ms]
        assert [item["what"][:6] for item in receipt["remains"]] == ["copies"]
        assert files_with(tmp_path / "data") == []
        verified = store.erasures().verify("r17")
        assert verified.holds, verified.problems
        assert [event.data for event in events_of(again)] == [b"other"]
        if grace_ms:
            again.seal()
            again.delete()
            store.restore_stream("s/t", incarnation=0)
            assert [event.data for event in events_of(stream) if event.data] == []
            assert store.erasures().verify("r17").holds
            with stream.writer() as writer:
                writer.write(b"later", key="k")
            later = [event for event in events_of(stream) if event.data]
            receipt = stream.erase(later, who="a", why="b", erasure="r18")
            # The stream that had the name meanwhile can be restored too, and nobody has looked into it.
            assert [(item["what"][:5], item.get("streams")) for item in receipt["remains"]] == [
                ("copie", None),
                ("other", 1),
            ]
        else:
            assert len(verified.notes) == 1, verified.notes


def test_events_that_are_truncated_while_their_erasure_waits_are_wiped(tmp_path):
    with penstock.open(tmp_path / "data") as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 500)
        events = events_of(stream)
        # Tiered, so that the chunk that goes holds nothing else.
        stream.erase(events[:1], who="a", why="b", dry_run=True)
    with penstock.open(tmp_path / "data") as store:
        stream = store.stream("s/t")
        cut = stream.tail()
        with stream.writer() as writer:
            writer.write(b"behind", key="k")
        lease(store, "s/t/0.#epoch.0")
        gate = Gate(store)
        thread = threading.Thread(target=lambda: stream.erase(events, who="a", why="b", erasure="r17"))
        thread.start()
        assert gate.reached.wait(60)
        stream.truncate(cut)
        gate.open()
        thread.join()
        assert files_with(tmp_path / "data") == []
        assert stream.erasures.verify("r17").holds
        assert [event.data for event in events_of(stream)] == [b"behind"]


def test_a_missing_chunk_does_not_count_as_a_deleted_segment(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", create_scope=True)
        fill(stream, 100)
        stream.erase(events_of(stream), who="a", why="b", dry_run=True)
    for path in files_with(data):
        if path.startswith("chunks"):
            (data / path).unlink()
    with penstock.open(data) as store, pytest.raises(CorruptDataError, match="chunk of the segment is missing"):
        store._thread.call(store._inner.segments.erase("s/t/0.#epoch.0", [(8, 20)], erasure="x"))


@pytest.mark.parametrize("count", [pytest.param(count, marks=pytest.mark.slow) for count in (20_001, 50_001)])
def test_a_receipt_for_very_many_events_verifies(tmp_path, store, count):
    stream = store.create_stream("s/t", create_scope=True)
    with stream.writer() as writer:
        for number in range(2 * count):
            writer.write((SECRET if number % 2 else b"plain") + b"%d" % number, key="k")
    hits = [event for event in events_of(stream) if event.data.startswith(SECRET)]
    receipt = stream.erase(hits, who="a", why="b", erasure="r17")
    places = [(chunk["segment"], chunk["start"]) for chunk in store._thread.call(_chunks(stream))]
    assert len(places) == len(set(places)) == receipt["chunks"]["count"]
    verified = stream.erasures.verify("r17")
    assert verified.holds, verified.problems
    assert verified.events == count
    # Also where everything is blank already, and read without a chunk that this erasure wrote.
    assert stream.erase(hits, who="a", why="b", erasure="r18")["chunks"]["count"] == 0
    assert stream.erasures.verify("r18").holds
    assert len(events_of(stream)) == count
    assert files_with(tmp_path / "data") == []


async def _chunks(stream):
    _, chunks = await stream._inner.erasures.details("r17")
    return chunks


def test_a_hold_covers_only_events_after_its_cut_for_any_segment_numbers(store):
    stream = store.create_stream("s/t", segments=2, create_scope=True)
    with stream.writer() as writer:
        for number in range(200):
            writer.write(SECRET + b" %06d" % number, key=str(number))
    events = events_of(stream)
    stream.scale(sealed=[1], new_ranges=[KeyRange(low=0.5, high=0.75), KeyRange(low=0.75, high=1.0)])
    cut = stream.tail()
    with stream.writer() as writer:
        for number in range(20):
            writer.write(b"later %06d" % number, key=str(number))
    stream.retention.holds.add(owner="legal", reason="case 1", cut=cut)
    later = [event for event in events_of(stream) if event.data.startswith(b"later")]
    for event in later:
        with pytest.raises(ErasureDeferredError):
            stream.erase([event], who="a", why="b")
    for segment in (0, 1):
        mine = [event for event in events if event.segment == segment]
        assert stream.erase(mine, who="a", why="b")["where"]["events"] == len(mine)
        check = store._inner.controller.check_removal
        store._thread.call(check(f"s/t/{segment}.#epoch.0", mine[-1].offset))
    assert events_of(stream) == later


def test_new_words_about_what_a_search_does_not_see_leave_the_request_the_same(store):
    """The words come from the program, and change with its versions. Nobody asks for them."""
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream)
    events = events_of(stream)
    old, new = ({"by": "json field", "field": "id", "not_seen": words} for words in ("arrays", "arrays and objects"))
    receipt = stream.erase(events[:10], who="a", why="b", erasure="r17", looked_for=old)
    assert receipt["looked_for"] == old
    assert stream.erase(events[:10], who="a", why="b", erasure="r17", looked_for=new) == receipt
    assert stream.erase(events[:5], who="a", why="b", erasure="r17", looked_for=new) == receipt
    with pytest.raises(AlreadyExistsError, match="belongs to another request"):
        stream.erase(events[:10], who="a", why="b", erasure="r17", looked_for=new | {"field": "name"})


def test_the_digest_of_a_request_covers_what_is_asked_for_and_nothing_else():
    found = asked(looked_for={"by": "json field", "not_seen": "arrays"})
    digest = request_digest("s/t", found, "0")
    assert digest == request_digest("s/t", asked(looked_for={"by": "json field"}), "0")
    assert digest != request_digest("s/t", asked(looked_for={"by": "user"}), "0")
    assert found["looked_for"]["not_seen"] == "arrays"


class Before(FlatControl):
    """A controller that answers as before the receipt of ``erasure``: it is under way (``shown``), or nobody knows of it."""

    def __init__(self, inner, erasure, *, shown):
        self._inner = inner
        self._erasure = erasure
        self._shown = shown

    async def erasures_list(self, stream=None):
        found = await self._inner.erasures.list(stream)
        others = [item for item in found if item.erasure != self._erasure]
        own = [replace(item, state="asked", receipt=None) for item in found if item.erasure == self._erasure]
        return others + own if self._shown else others


@pytest.mark.parametrize("shown", [True, False])
def test_a_receipt_holds_while_another_erasure_rewrites_its_chunk(store, shown):
    stream = store.create_stream("s/t", create_scope=True)
    fill(stream)
    events = events_of(stream)
    stream.erase(events[:2], who="a", why="b", erasure="one")
    stream.erase(events[5:7], who="a", why="b", erasure="two")
    inner = store._inner
    erasures = AsyncErasures(NAME, inner.segments, Before(inner.controller, "two", shown=shown), inner.rng)
    found = store._thread.call(erasures.verify("one"))
    if shown:
        assert found.holds, found.problems
        assert any("two" in note for note in found.notes)
    else:
        assert any("have changed" in problem for problem in found.problems)
