"""One event at a time by the writing thread itself: what goes directly, what goes back to the loop, and that neither way,
nor any switch between them, loses, doubles or reorders an event."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections import Counter

import pytest
from direct_world import DirectStore

from penstock.client.writing.local_line import LocalLines
from penstock.model.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    QuotaExceededError,
    QuotaHeldError,
    StreamSealedError,
)
from penstock.ports.data.limits import AppendLimit, LimitAction

WAIT_S = 20.0


@pytest.fixture(params=["wire", "local", "in place"])
def world(request, monkeypatch):
    made = DirectStore(request.param)
    real = LocalLines.open

    async def opened(self, segment, writer):
        made.faulty.met["line"] += 1
        return await real(self, segment, writer)

    monkeypatch.setattr(LocalLines, "open", opened)
    with made.store:
        made.store.create_scope("s")
        yield made


def one_by_one(writer, events, key="k"):
    core = writer._core
    for event in events:
        writer.write(event, key)
        writer.flush()
        # What a flush promises, whichever way the event went.
        assert core.pending_bytes == 0
        assert core.direct._sent is None
        assert not any(lane.written for lane in core.lane_list())


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(start, start + count)]


def until(condition) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.005)


def go_direct(writer, count: int = 8) -> list[bytes]:
    events = [b"warm%04d" % number for number in range(count)]
    one_by_one(writer, events)
    assert writer._core.direct.active
    return events


def test_single_flushed_events_go_directly_and_in_order(world):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        one_by_one(writer, numbered(200))
        assert writer._core.direct.active
        assert world.lines == 1
        assert writer._core.pending_bytes == 0
    assert world.events("s/a") == numbered(200)


def test_a_host_by_name_is_tried_at_each_of_its_addresses(monkeypatch):
    real = socket.getaddrinfo

    def both(host, port, *arguments, **named):
        found = real("127.0.0.1", port, *arguments, **named)
        return [(*item[:4], ("127.0.0.2", port)) for item in found] + found

    monkeypatch.setattr("asyncio.base_events.socket.getaddrinfo", both)
    monkeypatch.setitem(sys.modules, "uvloop", None)  # uvloop resolves by itself
    world = DirectStore(host="store.example")
    with world.store:
        world.store.create_scope("s")
        with world.store.create_stream("s/a").writer() as writer:
            one_by_one(writer, numbered(10))
            assert writer._core.direct.active
        assert world.events("s/a") == numbered(10)


def test_batches_and_pipelined_writers_never_take_a_line(world):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        for start in range(0, 400, 20):
            for event in numbered(20, start):
                writer.write(event, "k")
            writer.flush()
        writer.write_many(numbered(100, 400))
        writer.flush()
        assert not writer._core.direct.active
    assert world.lines == 0
    assert world.events("s/a") == numbered(500)


def test_each_segment_gets_a_line_up_to_a_bound(world):
    few, many = world.store.create_stream("s/few", segments=4), world.store.create_stream("s/many", segments=16)
    keys = [f"key-{number}" for number in range(40)]
    with few.writer() as writer:
        for _ in range(5):
            for key in keys:
                one_by_one(writer, [key.encode()], key)
        assert writer._core.direct.active
        assert len(writer._core.direct._lines) == 4
    with many.writer() as writer:
        for _ in range(5):
            for key in keys:
                one_by_one(writer, [key.encode()], key)
    assert Counter(world.events("s/few")) == Counter({key.encode(): 5 for key in keys})
    assert Counter(world.events("s/many")) == Counter({key.encode(): 5 for key in keys})


def test_events_without_a_key_take_turns_over_the_segments(world):
    stream = world.store.create_stream("s/a", segments=3)
    with stream.writer() as writer:
        one_by_one(writer, numbered(60), None)
        assert writer._core.direct.active
    with stream.reader(until_tail=True) as reader:
        found = [(event.data, event.segment) for event in reader]
    assert sorted(data for data, _ in found) == numbered(60)
    assert len({segment for _, segment in found}) == 3


@pytest.mark.parametrize("seed", range(6))
def test_order_and_count_hold_over_every_switch_and_every_loss(world, seed):
    rng = random.Random(seed)
    stream = world.store.create_stream("s/a", segments=rng.choice((1, 1, 3)))
    appends = Counter()

    def fate(request):
        appends["all"] += 1
        roll = rng.random()
        if appends["all"] > 12 and roll < 0.03:
            return "lose request"
        if appends["all"] > 12 and roll < 0.06:
            return "lose answer"
        return "store"

    world.faulty.fate = fate
    keys = ["a", "b", "c"]
    written: dict[str, list[bytes]] = {key: [] for key in keys}
    number = 0
    with stream.writer(block_bytes=4096) as writer:
        for _ in range(60):
            kind = rng.choice(("one", "one", "one", "burst", "unflushed", "many", "large", "rest"))
            count = {"one": rng.randrange(3, 20), "burst": 30, "unflushed": 3, "many": 50, "large": 1, "rest": 0}[kind]
            fresh = []
            for _ in range(count):
                key = rng.choice(keys)
                event = b"%s-%06d" % (key.encode(), number)
                if kind == "large":
                    event += bytes(50_000)
                number += 1
                written[key].append(event)
                fresh.append((event, key))
            if kind == "many":
                writer.write_many([event for event, _ in fresh], [key for _, key in fresh])
                continue
            for event, key in fresh:
                writer.write(event, key)
                if kind == "one":
                    writer.flush()
            if kind == "rest":
                threading.Event().wait(rng.random() / 20)
        # How many appends there were depends on the threads, and so does what fate they met: go on until both came.
        for _ in range(1000):
            if world.faulty.met["lose request"] and world.faulty.met["lose answer"]:
                break
            written["a"].append(b"a-%06d" % number)
            writer.write(written["a"][-1], "a")
            writer.flush()
            number += 1
    world.faulty.fate = lambda request: "store"
    found = world.events("s/a")
    assert len(found) == number
    for key in keys:
        assert [event for event in found if event.startswith(key.encode() + b"-")] == written[key]
    assert world.lines >= 1
    assert world.faulty.met["lose request"]
    assert world.faulty.met["lose answer"]


def test_order_per_key_holds_when_the_stream_scales_under_a_direct_writer(world):
    stream = world.store.create_stream("s/a")
    keys = [f"key-{number}" for number in range(8)]
    expected = {key: [] for key in keys}
    with stream.writer() as writer:
        for round_number in range(120):
            key = keys[round_number % 8]
            event = b"%s:%04d" % (key.encode(), round_number)
            expected[key].append(event)
            one_by_one(writer, [event], key)
            if round_number % 40 == 39:
                stream.scale(1 + round_number // 40)
    found = world.events("s/a")
    assert {key: [event for event in found if event.startswith(key.encode() + b":")] for key in keys} == expected


def test_a_sealed_stream_is_told_of_as_ever(world):
    stream = world.store.create_stream("s/a")
    writer = stream.writer()
    events = go_direct(writer)
    stream.seal()
    with pytest.raises(StreamSealedError):
        one_by_one(writer, [b"late"])
    writer.abort()
    assert world.events("s/a") == events


def limit_of(action: LimitAction, total_bytes: int | None) -> AppendLimit:
    return AppendLimit(stream="s/a", segments=("s/a/0.#epoch.0",), total_bytes=total_bytes, action=action)


def test_a_quota_that_refuses_is_told_once_and_the_writer_goes_on(world):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        events = go_direct(writer)
        world.in_loop(world.faulty.limit_appends([limit_of(LimitAction.REJECT, 1)]))
        with pytest.raises(QuotaExceededError) as raised:
            one_by_one(writer, [b"refused"])
        assert raised.value.fields["unacked_events"] == 1
        world.in_loop(world.faulty.limit_appends([limit_of(LimitAction.REJECT, None)]))
        one_by_one(writer, numbered(30))
    assert world.events("s/a") == events + numbered(30)


def test_a_quota_that_holds_ends_by_the_writers_deadline_or_by_room(world):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        events = go_direct(writer)
        world.in_loop(world.faulty.limit_appends([limit_of(LimitAction.HOLD, 1)]))
        writer.write(b"held", "k")
        lift = threading.Timer(
            0.4, lambda: world.in_loop(world.faulty.limit_appends([limit_of(LimitAction.HOLD, None)]))
        )
        lift.start()
        writer.flush()
        lift.join()
    assert world.events("s/a") == [*events, b"held"]
    writer = stream.writer(deadline_s=1.0)
    go_direct(writer)
    world.in_loop(world.faulty.limit_appends([limit_of(LimitAction.HOLD, 1)]))
    with pytest.raises(QuotaHeldError):
        one_by_one(writer, [b"never"])
    writer.abort()


def test_a_store_that_falls_silent_is_given_up_at_the_deadline(world):
    stream = world.store.create_stream("s/a")
    writer = stream.writer(deadline_s=1.0)
    go_direct(writer)
    world.faulty.fate = lambda request: "swallow"
    begun = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        one_by_one(writer, [b"lost"])
    assert 0.9 < time.monotonic() - begun < 10
    writer.abort()


@pytest.mark.parametrize("fate", ["lose request", "lose answer"])
def test_what_was_sent_and_not_flushed_is_seen_to_without_another_call(world, fate):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        events = go_direct(writer)
        world.faulty.fate = lambda request: fate if world.faulty.met[fate] == 0 else "store"
        writer.write(b"alone", "k")
        until(lambda: world.events("s/a") == [*events, b"alone"])
        until(lambda: not writer._core.direct.active)
        one_by_one(writer, numbered(20))
    assert world.events("s/a") == [*events, b"alone", *numbered(20)]


def test_an_idle_writer_gives_its_lines_back(world, monkeypatch):
    monkeypatch.setattr("penstock.client.writing.direct._IDLE_TICKS", 2)
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        events = go_direct(writer)
        until(lambda: not writer._core.direct.active)
        one_by_one(writer, numbered(5))
    assert world.events("s/a") == events + numbered(5)


def test_an_interrupted_flush_leaves_the_writer_usable(world, monkeypatch):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        events = go_direct(writer)
        (line,) = writer._core.direct._lines.values()
        real = line.acknowledged

        def interrupted(timeout_s):
            line.acknowledged = real
            raise KeyboardInterrupt

        for number in range(10):
            writer.write(b"%d" % number, "k")
            line.acknowledged = interrupted
            with pytest.raises(KeyboardInterrupt):
                writer.flush()
            writer.flush()
        assert writer._core.direct.active
    assert world.events("s/a") == events + [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("kind", ["wire", "local", "in place"])
def test_a_store_that_is_closed_under_a_direct_writer_keeps_what_was_written(kind):
    world = DirectStore(kind)
    world.store.create_scope("s")
    stream = world.store.create_stream("s/a")
    writer = stream.writer()
    go_direct(writer)
    writer.write(b"last", "k")
    world.store.close()
    assert world.faulty.met["store"] == 9
    with pytest.raises(InvalidArgumentError):
        writer.flush()
    with pytest.raises(InvalidArgumentError):
        one_by_one(writer, [b"late"])


def test_a_store_without_direct_lines_is_written_to_as_before(world):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        writer._core.direct._dial = None
        one_by_one(writer, numbered(20))
        assert not writer._core.direct.active
    assert world.events("s/a") == numbered(20)


def test_lines_that_were_not_worth_it_are_asked_for_less_often(world):
    stream = world.store.create_stream("s/a")
    with stream.writer() as writer:
        number = 0
        for _ in range(40):
            one_by_one(writer, numbered(4, number))
            for event in numbered(20, number + 4):
                writer.write(event, "k")
            number += 24
    assert world.lines <= 3
    assert world.events("s/a") == numbered(number)


def test_a_flush_means_all_lanes_also_those_that_the_loop_was_busy_with(world):
    stream = world.store.create_stream("s/a", segments=4)
    keys = [f"key-{number}" for number in range(12)]
    # Lanes that linger for so long would take an event without a look, and a flush would not know of it.
    with stream.writer(linger_s=30.0) as writer:
        for _ in range(6):
            for key in keys:
                one_by_one(writer, [key.encode()], key)
        assert writer._core.direct.active
    assert Counter(world.events("s/a")) == Counter({key.encode(): 6 for key in keys})
