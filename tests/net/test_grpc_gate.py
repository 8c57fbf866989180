"""What stands before gRPC: requests that arrive take a bounded part of memory, and no client keeps the others out."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress
from itertools import accumulate

import pytest
from grpc_fakes import MemoryController, MemorySegments
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.wire import http2_frames as h2
from penstock.core.segments.call_memory import CALL_BYTES, CallMemory
from penstock.net.dial.controller import dial_controller
from penstock.net.grpc.gate import GateLimits
from penstock.net.grpc.grpc_server import GrpcServer
from tests.abuse.http2 import CALL, HalfSender, frame

BUDGET_BYTES = 256 << 10
PATIENCE_S = 20.0
frames = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 255), st.integers(0, 2**31 - 1), st.integers(0, 40)), max_size=8
)


@given(sent=frames, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_heads_of_frames_are_the_same_however_the_bytes_are_cut(sent, cuts):
    data = b"".join(frame(kind, flags, stream, bytes(size)) for kind, flags, stream, size in sent)
    scan, heads, starts, before = h2.FrameScan(), [], [], 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        for head in scan.feed(data[before:cut]):
            heads.append(tuple(head[:4]))
            starts.append(before + head.start)
        before = cut
    assert heads == sent
    assert starts == list(accumulate((9 + size for *_, size in sent[:-1]), initial=0))[: len(sent)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "hold", "complete", "answer", "full", "answered", "forget", "late"]),
        st.integers(0, 3),
        st.integers(1, 5),
        st.integers(0, BUDGET_BYTES),
    ),
    max_size=60,
)


@given(steps=steps)
def test_memory_of_calls_is_bounded_and_no_connection_waits_for_ever(steps):
    memory: CallMemory[int] = CallMemory(budget_bytes=BUDGET_BYTES, crowded_s=2, waiting_s=10, request_s=120)
    now = 0.0

    def close(keys):
        for key in keys:
            memory.forget(key, now)

    for step, key, stream, size in steps:
        now += 0.1
        before = memory.counted_bytes
        if step in ("begin", "hold"):
            if not memory.may_send(key):
                continue  # as the gate: it is not read
            getattr(memory, step)(key, stream, size, now)
            # One that is within its free bytes may always send; one that is not is stopped at the first excess.
            assert memory.counted_bytes <= max(before, BUDGET_BYTES) + size + CALL_BYTES
            if memory.counted_bytes > max(before, BUDGET_BYTES):
                assert not memory.may_send(key)
        elif step == "late":
            close(memory.late(now))
        elif step == "forget":
            memory.forget(key, now)
        elif step == "full":
            memory.full(key, now if stream % 2 else None)
        elif step == "complete":
            memory.complete(key, stream)
        else:
            getattr(memory, step)(key, stream, now)
        if memory.counted_bytes <= BUDGET_BYTES // 2:
            assert not memory.contested or memory.late(now + 10)
    close(memory.late(now + 10))
    close(memory.late(now + 20))
    assert not memory.contested
    for key in range(4):
        memory.forget(key, now)
    assert memory.counted_bytes == 0


def test_half_sent_requests_stay_within_their_share_and_keep_no_call_out():
    limits = GateLimits(requests_bytes=BUDGET_BYTES, crowded_s=0.3, waiting_s=1)

    async def scene() -> None:
        async with GrpcServer(MemoryController(), MemorySegments(), port=0, limits=limits) as server:
            memory = server.gate.memory
            with ExitStack() as stack:
                senders = [
                    stack.enter_context(HalfSender(server.port, calls=8, request_bytes=1 << 20)) for _ in range(10)
                ]
                async with dial_controller(f"127.0.0.1:{server.port}") as remote:
                    for number in range(20):
                        for sender in senders:
                            sender.step()
                        await remote.scopes.create(f"s{number}")
                        # Each connection may be in the middle of what one read brings.
                        assert memory.counted_bytes <= BUDGET_BYTES + 10 * (128 << 10)
                    while not all(sender.closed for sender in senders):
                        for sender in senders:
                            if not sender.closed:
                                sender.step()
                        await remote.scopes.exists("s1")
            assert memory.counted_bytes == 0

    run(scene)


def test_connections_that_do_nothing_give_way_and_those_at_work_do_not():
    limits = GateLimits(connections=3)

    async def scene() -> None:
        async with GrpcServer(MemoryController(), MemorySegments(), port=0, limits=limits) as server:
            with ExitStack() as stack:
                silent = []
                for _ in range(6):
                    silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port))))
                    silent[-1].setblocking(False)
                async with dial_controller(f"127.0.0.1:{server.port}") as remote:
                    await remote.scopes.create("s")
                    for _ in range(6):
                        stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                        assert await remote.scopes.exists("s")
                assert len(server.gate.connections) <= limits.connections

    run(scene)


REQUEST = frame(h2.DATA, h2.END_STREAM, 1, b"\x00\x00\x00\x00\x03\x0a\x01s")
NO_WINDOW = frame(4, 0, 0, b"\x00\x04\x00\x00\x00\x00")
UNFINISHED = {
    "head of the last frame": frame(h2.HEADERS, h2.END_HEADERS, 1, CALL) + REQUEST[:9],
    "part of the last frame": frame(h2.HEADERS, h2.END_HEADERS, 1, CALL) + REQUEST[:-1],
    "head of a call without body": frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, CALL)[:9],
    "headers that go on": frame(h2.HEADERS, h2.END_STREAM, 1, CALL),
    "answer that is not taken": NO_WINDOW + frame(h2.HEADERS, h2.END_HEADERS, 1, CALL) + REQUEST,
}


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
def test_a_call_that_only_its_client_can_end_keeps_no_call_out(sent):
    """As many as there may be connections. No patience of the client's is needed for a new call, and none lasts."""
    limits = GateLimits(connections=3, request_s=1.5, crowded_s=0.2)

    async def scene() -> None:
        async with GrpcServer(MemoryController(), MemorySegments(), port=0, limits=limits) as server:
            with ExitStack() as stack:
                for _ in range(limits.connections):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                    client.sendall(h2.PREFACE + frame(4, 0, 0, b"") + sent)
                async with dial_controller(f"127.0.0.1:{server.port}") as remote:
                    await remote.scopes.create("t")
                    while len(server.gate.connections) > 1:
                        assert await remote.scopes.exists("t")

    run(scene)


def test_a_connection_that_the_server_closed_counts_until_its_client_has_taken_the_rest():
    limits = GateLimits(hello_s=0.2)

    async def scene() -> None:
        async with GrpcServer(MemoryController(), MemorySegments(), port=0, limits=limits) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(h2.PREFACE + frame(4, 0, 0, b""))
                client.setblocking(False)
                while not server.gate.connections:
                    await asyncio.sleep(0)
                (outer,) = server.gate.connections
                assert outer.transport is not None
                place, unsent = outer.transport.get_extra_info("socket"), b""
                while not outer.transport.get_write_buffer_size():
                    unsent = unsent or frame(6, 0, 0, bytes(8)) * 1000
                    with suppress(BlockingIOError):
                        unsent = unsent[client.send(unsent) :]
                    await asyncio.sleep(0)
                outer.close()  # as when the server closes its side
                assert outer in server.gate.connections
                while server.gate.connections:
                    await asyncio.sleep(0.01)
                for _ in range(3):  # asyncio closes the socket a turn after the abort
                    await asyncio.sleep(0)
                assert place.fileno() == -1

    run(scene)


def test_what_is_not_http2_and_a_frame_that_is_too_large_end_the_connection():
    async def scene() -> None:
        async with GrpcServer(MemoryController(), MemorySegments(), port=0) as server:
            for sent in (b"GET / HTTP/1.1\r\n\r\n", h2.PREFACE + b"\x01\x00\x00\x00\x00\x00\x00\x00\x01"):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(sent)
                with suppress(ConnectionError):  # reset: closed as well
                    await reader.read()
                writer.close()
            assert not server.gate.connections

    run(scene)


def run(scene) -> None:
    async def whole() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scene()

    asyncio.run(whole())
