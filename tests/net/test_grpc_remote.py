"""A controller reached over gRPC answers as one in process does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any
from uuid import UUID

import grpc
import pytest
import uvloop
from grpc_fakes import MemoryController, MemorySegments, Refusing
from grpc_script import BLOCK, CONFIG, DOCUMENT, SCRIPT, SECOND, S, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.model.errors import (
    ConditionFailedError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    NotConnectedError,
    SegmentNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import (
    LONG_MAX,
    RetentionPolicy,
    RetentionType,
    ScaleType,
    ScalingPolicy,
    StreamConfig,
)
from penstock.net.dial.addresses import parse_address
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.dial.grpc_connection import GrpcConnection
from penstock.net.dial.security import security_for
from penstock.net.grpc import mapping
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.native.calls import SERVICE
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.transactions import EventBlock
from penstock.ports.data.chunks import ChunkRange, Leased
from penstock.ports.data.imports import ChunkImports, ImportedChunk
from penstock.testing.fakes import FakeClock
from penstock.testing.server import free_ports


@asynccontextmanager
async def serving(
    controller: Any, segments: Any = None, *, patience_s: float = 10.0
) -> AsyncIterator[RemoteController]:
    async with (
        GrpcServer(controller, segments or MemorySegments(), port=0) as server,
        dial_controller(f"localhost:{server.port}", patience_s=patience_s) as remote,
    ):
        yield remote


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_every_call_answers_and_raises_as_in_process(run: Callable[[Any], None]) -> None:
    async def play() -> None:
        local = MemoryController()
        async with serving(MemoryController()) as remote:
            for name, arguments, keywords in SCRIPT:
                expected = await outcome(attrgetter(name)(local)(*arguments, **keywords))
                actual = await outcome(attrgetter(name)(remote)(*arguments, **keywords))
                assert actual == expected, (name, arguments, keywords)

    run(play())


def test_blocks_of_a_commit_arrive_whole() -> None:
    async def play() -> None:
        controller = MemoryController()
        async with serving(controller) as remote:
            await remote.scopes.create("s")
            await remote.streams.create(S, CONFIG)
            txn = (await remote.transactions.create(S, lease_ms=20_000)).id
            blocks = (BLOCK, EventBlock(segment=SECOND, writer=UUID(int=1), event_count=2, data=bytes(300_000)))
            await remote.transactions.commit(S, txn, blocks=blocks)
            assert controller._stream(S).filled == {txn: blocks}

    asyncio.run(play())


def test_the_script_plays_every_call_of_the_port() -> None:
    calls = {name for name in dir(MemoryController) if inspect.iscoroutinefunction(getattr(MemoryController, name))}
    assert calls == {name.replace(".", "_") for name, _, _ in SCRIPT}


def test_an_empty_scope_is_never_taken_for_the_server() -> None:
    async def play() -> None:
        controller = MemoryController()
        async with serving(controller) as remote:
            await remote.policies.set("", DOCUMENT)
        assert controller.documents == {"": DOCUMENT}

    asyncio.run(play())


def test_lists_of_many_pages_are_complete() -> None:
    async def play() -> None:
        controller = MemoryController()
        await controller.scopes.create("s")
        for number in range(2500):
            await controller.streams.create(StreamName("s", f"n{number:04}"), StreamConfig())
        async with serving(controller) as remote:
            names: list[str] = []
            pages = 0
            while page := await remote.streams.list("s", after=names[-1] if names else ""):
                names.extend(page)
                pages += 1
            assert names == [f"n{number:04}" for number in range(2500)]
            assert pages == 3

    asyncio.run(play())


def test_unexpected_failures_are_logged_once_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with serving(Refusing(RuntimeError("secret of the server"))) as remote:
            with pytest.raises(InternalError) as caught:
                await remote.cuts.head(S)
            assert "secret" not in str(caught.value)
            assert caught.value.fields == {"rpc": "cuts.head"}

    asyncio.run(play())
    records = [record for record in caplog.records if record.exc_info is not None]
    assert len(records) == 1
    assert "secret of the server" in str(records[0].exc_info)


def test_calls_that_are_too_large_are_refused_and_not_worth_repeating() -> None:
    class Long(MemorySegments):
        async def chunk_ranges(self, name: str, start: int, end: int) -> Any:
            return [ChunkRange(name="x" * end, location=None, start_offset=0, end_offset=1, blocks=())]

    async def play() -> None:
        async with serving(MemoryController(), Long()) as remote:
            assert len((await remote.segments.chunk_ranges("a", 0, 60 << 20))[0].name) == 60 << 20
            for call in (remote.segments.chunk_ranges("a", 0, 64 << 20), remote.segments.infos(["x" * (4 << 20)])):
                with pytest.raises(InvalidArgumentError) as caught:
                    await call
                assert caught.value.fields["size_bytes"] > caught.value.fields["limit_bytes"]

    asyncio.run(play())


def test_requests_that_no_message_can_hold_are_refused_before_they_are_sent() -> None:
    async def play() -> None:
        async with serving(MemoryController()) as remote:
            with pytest.raises(InvalidArgumentError):
                await remote.transactions.create(S, lease_ms=1 << 70)
            with pytest.raises(InvalidArgumentError):
                await remote.scopes.create("\ud800")
            with pytest.raises(InvalidNameError):
                await remote.cuts.head(StreamName("s", ""))

    asyncio.run(play())


def test_native_segments_give_chunks_leases_and_spaces_as_they_are() -> None:
    async def play() -> None:
        segments = MemorySegments()
        lease = UUID(int=3)
        async with (
            GrpcServer(MemoryController(), segments, port=0, store_id="the store") as server,
            dial_controller(f"tcp://localhost:{server.port}") as remote,
        ):
            assert await remote.segments.chunk_ranges("a", 0, 1 << 41) == await segments.chunk_ranges("a", 0, 1 << 41)
            with pytest.raises(SegmentNotFoundError):
                await remote.segments.chunk_ranges("none", 0, 1)
            leased = await remote.segments.lease_chunks(["a", "b", "c"], lease, until_ms=1 << 45, holder="job")
            assert leased == Leased(granted=("a",), refused=("b", "c"))
            assert segments.leases == {lease: (("a", "b", "c"), 1 << 45, "job")}
            await remote.segments.release_lease(lease)
            assert segments.leases == {}
            await remote.segments.lease_chunks(["a"], lease, until_ms=1 << 45)
            await remote.segments.finish_lease_part(lease, 0, 2)
            assert list(segments.leases) == [lease]
            await remote.segments.finish_lease_part(lease, 1, 2)
            assert segments.leases == {}
            assert await remote.segments.count_events("a", 10, 50) == 4
            with pytest.raises(SegmentNotFoundError):
                await remote.segments.count_events("none", 0, 1)
            assert await remote.segments.disk() == await segments.disk()
            assert await remote.segments.infos(["a", "none", "b"]) == await segments.infos(["a", "none", "b"])
            assert await remote.segments.spaces(["a", "none", "b"]) == await segments.spaces(["a", "none", "b"])
            info = await remote.about.info()
            assert (info.version, info.store_id) == (penstock.__version__, "the store")
            assert "segments.chunk_ranges" in info.calls

    asyncio.run(play())


def test_chunks_are_granted_and_adopted_over_the_wire_as_in_process() -> None:
    async def play() -> None:
        segments = MemorySegments()
        async with (
            GrpcServer(MemoryController(), segments, port=0) as server,
            dial_controller(f"localhost:{server.port}") as remote,
        ):
            segments_there = remote.segments
            assert isinstance(segments_there, ChunkImports)
            for name in ("a", "unseen", "object"):
                assert await segments_there.grant_import(name) == await segments.grant_import(name)
            chunks = [
                ImportedChunk(name="0/i1-2-3-0", size_bytes=1 << 40, event_count=0, index_crc32c=(1 << 32) - 1),
                ImportedChunk(name="0/i1-2-3-1", size_bytes=1, event_count=1 << 33, index_crc32c=0),
            ]
            assert await segments_there.adopt_chunks("a", 5, chunks) == (1 << 40) + 6
            assert segments.adopted == [("a", 5, tuple(chunks))]
            with pytest.raises(SegmentNotFoundError):
                await segments_there.adopt_chunks("none", 0, chunks)
            with pytest.raises(ConditionFailedError):
                await segments_there.adopt_chunks("a", 7, chunks)

    asyncio.run(play())


def test_calls_ride_over_a_restart_of_the_server() -> None:
    async def play() -> None:
        controller = MemoryController()
        async with GrpcServer(controller, MemorySegments(), port=0) as server:
            port = server.port
            connection = await GrpcConnection(f"127.0.0.1:{port}").__aenter__()
            remote = RemoteController(connection)
            await remote.scopes.create("s")

        refused = asyncio.Event()

        async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            refused.set()

        async with asyncio.TaskGroup() as tasks:
            async with await asyncio.start_server(refuse, "127.0.0.1", port):
                asked = tasks.create_task(remote.scopes.exists("s"))
                await asyncio.wait_for(refused.wait(), 10)
                assert not asked.done()
            async with GrpcServer(controller, MemorySegments(), port=port):
                assert await asyncio.wait_for(asked, 10) is True
        await connection.__aexit__(None, None, None)

    asyncio.run(play())


@pytest.mark.parametrize("repeat", [True, False])
def test_a_call_that_ended_with_the_connection_while_it_started_was_lost(repeat: bool) -> None:
    """gRPC then reports CANCELLED, without an error of ours; seen when a server was killed under load."""

    async def play() -> None:
        calls = 0

        async def answer(request: bytes, context: Any) -> bytes:
            nonlocal calls
            calls += 1
            if calls == 1:
                await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
            return request

        server = grpc.aio.server()
        handlers = {"layout.endpoint": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with GrpcConnection(f"127.0.0.1:{port}") as connection:
                if repeat:
                    assert await connection.call("layout.endpoint", b"x") == b"x"
                else:
                    # The caller decides; for reads and writes, this error is one of a lost connection.
                    with pytest.raises(NotConnectedError):
                        await connection.call("layout.endpoint", b"x", repeat=False)
            assert calls == 1 + repeat
        finally:
            await server.stop(None)

    asyncio.run(play())


def test_no_server_raises_what_to_do_once_patience_ends() -> None:
    async def play() -> None:
        async with GrpcServer(MemoryController(), MemorySegments(), port=0) as server:
            address = f"localhost:{server.port}"
        with pytest.raises(NotConnectedError, match="penstock standalone") as caught:
            async with dial_controller(address, patience_s=0.3):
                pytest.fail("nothing is there")
        assert caught.value.fields["address"] == address

    asyncio.run(play())


def test_a_server_that_does_not_answer_raises_deadline_exceeded() -> None:
    async def play() -> None:
        waiting = asyncio.Event()

        class Stuck(MemoryController):
            async def scopes_exists(self, scope: str) -> bool:
                await waiting.wait()
                return True

        async with (
            GrpcServer(Stuck(), MemorySegments(), port=0) as server,
            GrpcConnection(f"localhost:{server.port}", call_s=0.2) as connection,
        ):
            with pytest.raises(DeadlineExceededError):
                await RemoteController(connection).scopes.exists("s")
            waiting.set()

    asyncio.run(play())


def test_calls_after_closing_raise_not_connected() -> None:
    async def play() -> None:
        async with serving(MemoryController()) as remote:
            pass
        with pytest.raises(NotConnectedError):
            await remote.scopes.exists("s")

    asyncio.run(play())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:1", "localhost:1"),
        ("localhost", "localhost:9090"),
        ("tcp://10.0.0.1:77", "10.0.0.1:77"),
        ("penstock://a-b.example", "a-b.example:9090"),
        ("[::1]:5", "[::1]:5"),
        ("tls://a:1", "a:1"),
        ("pravega+tls://a", "a:9090"),
    ],
)
def test_addresses_are_read(text: str, address: str) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ":9090", "a:b", "a:70000", "tcp://", "http://a:1", "a b:1", "unix:/tmp/x", "a:1:2"]
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_address(text)


policies = st.none() | st.builds(
    lambda kind, low, more: RetentionPolicy(
        type=kind, minimum=low, maximum=None if more is None else min(low + more, LONG_MAX - 1)
    ),
    st.sampled_from(RetentionType),
    st.integers(0, LONG_MAX - 1),
    st.none() | st.integers(0, LONG_MAX),
)
scalings = st.builds(lambda count: ScalingPolicy(min_segments=count), st.integers(1, 10_000)) | st.builds(
    lambda kind, rate, factor: ScalingPolicy(type=kind, target_rate=rate, factor=factor),
    st.sampled_from([ScaleType.EVENTS_PER_S, ScaleType.KILOBYTES_PER_S]),
    st.integers(1, (1 << 31) - 1),
    st.integers(2, 100),
)
configs = st.builds(
    StreamConfig,
    scaling=scalings,
    retention=policies,
    tags=st.lists(st.text(min_size=1, max_size=9).filter(lambda text: text.isprintable()), max_size=5).map(tuple),
    timestamp_aggregation_ms=st.integers(0, LONG_MAX),
    rollover_bytes=st.integers(0, LONG_MAX),
)


@given(config=configs)
@settings(max_examples=200)
def test_configurations_survive_the_wire(config: StreamConfig) -> None:
    data = mapping.config_message(S, config).SerializeToString()
    assert mapping.config_of(pb.StreamConfig.FromString(data)) == config


def test_a_maximum_that_is_absent_or_the_largest_number_is_unlimited_and_zero_is_zero() -> None:
    def read(**fields: int) -> RetentionPolicy | None:
        policy = pb.RetentionPolicy(retentionType=pb.RetentionPolicy.SIZE, **fields)
        scaling = pb.ScalingPolicy(minNumSegments=1)
        return mapping.config_of(pb.StreamConfig(scalingPolicy=scaling, retentionPolicy=policy)).retention

    assert read(retentionParam=5) == RetentionPolicy(type=RetentionType.SIZE, minimum=5)
    assert read(retentionParam=5, retentionMax=LONG_MAX) == RetentionPolicy(type=RetentionType.SIZE, minimum=5)
    assert read(retentionMax=0) == RetentionPolicy(type=RetentionType.SIZE, maximum=0)
    with pytest.raises(InvalidArgumentError):
        read(retentionParam=5, retentionMax=4)


@given(txn=st.uuids())
def test_transaction_ids_survive_the_wire(txn: UUID) -> None:
    assert mapping.transaction_of(mapping.transaction_message(txn)) == txn


def test_calls_go_to_the_controller_that_answers() -> None:
    """Of several addresses one has a server; when it ends, another one does."""

    async def play() -> None:
        memory = MemoryController()
        first, second, third = free_ports(3)
        addresses = f"localhost:{first},localhost:{second},tcp://localhost:{third}"
        async with GrpcConnection(addresses) as connection:
            remote = RemoteController(connection)
            async with GrpcServer(memory, MemorySegments(), port=second):
                assert not await remote.scopes.exists("s")
                began = asyncio.get_running_loop().time()
                for _ in range(20):
                    assert not await remote.scopes.exists("s")
                assert asyncio.get_running_loop().time() - began < 1, "the last one that answered is asked first"
            async with GrpcServer(memory, MemorySegments(), port=third):
                found = await asyncio.gather(*(remote.scopes.exists("s") for _ in range(20)))
                assert found == [False] * 20
        async with GrpcConnection(f"localhost:{first},localhost:{second}", patience_s=0.3) as connection:
            with pytest.raises(NotConnectedError) as caught:
                await RemoteController(connection).scopes.exists("s")
            assert caught.value.fields["address"] == f"localhost:{first},localhost:{second}"

    asyncio.run(play())


def test_several_addresses_need_the_same_protection() -> None:
    for text in ("a:1,tls://b:2", "tls://a:1,b:2", "a:1,", "a:1,b:x"):
        with pytest.raises(InvalidArgumentError):
            GrpcConnection(text)
        with pytest.raises(InvalidArgumentError):
            security_for(text, clock=FakeClock())
