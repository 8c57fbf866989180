"""Frames cut from what a socket delivers, however it is cut; blocks put together wherever their halves lie."""

from __future__ import annotations

import asyncio
import struct
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.telemetry import Counters
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.model.errors import ProtocolError
from penstock.net.wire.append_meter import AppendMeter
from penstock.net.wire.appends import AppendSide
from penstock.net.wire.arena import SMALL_BYTES, ArenaPool
from penstock.net.wire.frames import FrameReceiver, Outbox, Sending
from penstock.ports.data.segments import NO_EVENT, Appended
from penstock.ports.telemetry import NoTelemetry

W = UUID(int=5).bytes


def receiver():
    return FrameReceiver(ArenaPool(telemetry=Counters()), wire.REQUEST_CODES)


def feed(target, data, cuts):
    """Deliver ``data`` in pieces of at most ``cuts`` bytes (repeated); yields after each piece."""
    at, turn = 0, 0
    while at < len(data):
        room = target.buffer()
        size = min(len(room), len(data) - at, cuts[turn % len(cuts)])
        room[:size] = data[at : at + size]
        target.received(size)
        at += size
        turn += 1
        yield


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(
        st.one_of(st.integers(0, 300), st.integers(0, 5_000), st.integers(250_000, 270_000), st.integers(0, 3 << 20)),
        min_size=1,
        max_size=12,
    ),
    cuts=st.lists(st.integers(1, 1 << 20), min_size=1, max_size=5).filter(lambda cuts: max(cuts) > 1000),
)
def test_frames_come_out_as_they_went_in_and_kept_views_stay_whole(sizes, cuts):
    payloads = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream = b"".join(wire.HEADER.pack(3, len(payload)) + payload for payload in payloads)
    target = receiver()
    kept = []
    for _ in feed(target, stream, cuts):
        while target.advance():
            assert target.code == 3
            kept.append(target.payload)
    assert [bytes(view) for view in kept] == payloads


def test_a_wrong_header_is_refused_before_its_payload_arrives():
    for code, length in ((3, -1), (3, 1 << 24), (10, 5), (12345, 5)):
        target = receiver()
        for _ in feed(target, wire.HEADER.pack(code, length), [8]):
            with pytest.raises(ProtocolError):
                target.advance()
        assert len(target.buffer()) > 0


def test_a_closed_receiver_lets_its_arena_go():
    telemetry = Counters()
    pool = ArenaPool(telemetry=telemetry)
    for _ in range(50):
        target = FrameReceiver(pool, wire.REQUEST_CODES)
        for _ in feed(target, wire.encode(c.KeepAlive()), [100]):
            assert target.advance()
        target.close()
    assert pool.pooled_bytes == SMALL_BYTES


class Host:
    """A connection that remembers."""

    must_copy = False

    def __init__(self):
        self.released = 0
        self.due = []
        self.sent = []

    def release(self, size_bytes):
        self.released += size_bytes

    def soon(self, call):
        self.due.append(call)

    def after_pause(self, call, times):
        self.due.append(call)

    def send(self, frame):
        self.sent.append(frame)

    def reply(self, command):
        self.sent.append(wire.encode(command))

    def fail(self, error):
        raise error


class Sink:
    """Takes appends as the append path does."""

    def __init__(self):
        self.data = []

    def submit_append(self, request, done):
        self.data.append(request.data)
        done(Appended(end_offset=1))


@pytest.mark.parametrize("kind", ["none", "partial", "padding"])
def test_a_block_is_put_together_wherever_its_end_lies(kind):
    first, second = struct.pack(">ii", 0, 600) + bytes(range(200)) * 3, struct.pack(">ii", 0, 30) + bytes(range(30))
    trailer, rest = {
        "none": (b"", b""),
        "padding": (struct.pack(">ii", -1, 16) + bytes(16), b""),
        "partial": (struct.pack(">ii", -2, 11) + second[:11], second[11:]),
    }[kind]
    expected = first + (second if kind == "partial" else b"")
    block = wire.encode(c.AppendBlock(W, first + trailer))
    end = wire.encode(c.AppendBlockEnd(W, len(first), rest, 1, 9, 1))
    crossed = 0
    # The end of the block moves over the end of the arena, byte by byte.
    for shift in range(0, len(end) + 80, 3):
        host, store, target = Host(), Sink(), receiver()
        appends = AppendSide(host, store, AppendMeter(NoTelemetry()))
        appends.finish_setup(W, "segment", NO_EVENT)
        filler_bytes = SMALL_BYTES - shift - len(block) - 52
        filler = wire.encode(c.AppendBlockEnd(W, 0, bytes(filler_bytes), 1, 1, 1))
        arenas = []
        for _ in feed(target, filler + block + end, [1 << 20]):
            while target.advance():
                arenas.append(target.view)
                if target.code == 3:
                    appends.block(target)
                else:
                    appends.block_end(target, 1 << 20)
        assert [bytes(data) for data in store.data] == [bytes(filler_bytes), expected]
        for call in host.due:
            call()
        assert host.released == appends.taken_bytes
        crossed += arenas[-1] is not arenas[-2]
    assert crossed > 3


def test_small_frames_stay_on_the_first_pages_for_ever():
    target = receiver()
    frame = wire.HEADER.pack(9, 100) + bytes(100)
    highest = 0
    for _ in range(5_000):
        for _ in feed(target, frame, [1 << 20]):
            while target.advance():
                highest = max(highest, target.at)
    assert highest < SMALL_BYTES // 8


def test_an_arena_is_not_begun_again_while_a_frame_in_it_is_looked_at():
    target = receiver()
    kept = []
    for number in range(600):
        payload = bytes([number % 256]) * 100
        for _ in feed(target, wire.HEADER.pack(9, 100) + payload, [1 << 20]):
            while target.advance():
                if number % 50 == 0:
                    kept.append((target.payload, payload))
        assert all(view == payload for view, payload in kept)


class Wire:
    """A transport that keeps what it is given, one item for each call."""

    def __init__(self, *, encrypts):
        self.encrypts, self.calls = encrypts, []

    def get_extra_info(self, name, default=None):
        return self if name == "ssl_object" and self.encrypts else default

    def is_closing(self):
        return False

    def write(self, data):
        self.calls.append([data])

    def writelines(self, parts):
        self.calls.append(list(parts))


@pytest.mark.parametrize("encrypts", [False, True])
@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(1, 400_000)), min_size=1, max_size=40))
def test_queued_frames_are_sent_in_order_and_encrypted_in_few_calls(encrypts, sizes):
    parts = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    loop = asyncio.new_event_loop()
    try:
        wire_end = Wire(encrypts=encrypts)
        outbox = Outbox(Sending(loop), wire_end)
        outbox.put_parts([memoryview(part) if len(part) > 9000 else part for part in parts], sum(sizes))
        outbox.flush()
    finally:
        loop.close()
    assert b"".join(bytes(part) for call in wire_end.calls for part in call) == b"".join(parts)
    if encrypts:
        # TLS encrypts each part that it is given in a call of its own.
        assert sum(map(len, wire_end.calls)) <= 1 + sum(sizes) // (256 << 10)
    else:
        assert len(wire_end.calls) == 1
