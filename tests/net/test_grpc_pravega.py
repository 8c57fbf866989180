"""The gRPC port as Pravega's clients see it: statuses, codes, pages, key-value tables."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest
from controller_stub import ControllerStub
from grpc_fakes import MemoryController, MemorySegments, Refusing
from hypothesis import given
from hypothesis import strategies as st

from penstock.controller.tables.key_value_tables import KeyValueTables
from penstock.model import errors
from penstock.model.errors import (
    AddressInUseError,
    ConflictError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    UnsupportedError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.dial.grpc_connection import GrpcConnection
from penstock.net.grpc.grpc_errors import ERROR_KEY, STATUSES, code_of, decode_error, encode_error
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.tables import TableKind

INFO = pb.StreamInfo(scope="s", stream="t")
SCOPE = pb.ScopeInfo(scope="s")
CUT = pb.StreamCut(streamInfo=INFO, cut={0: 0})
TXN = pb.TxnRequest(streamInfo=INFO, txnId=pb.TxnId(highBits=1, lowBits=2))
ID = str(UUID(int=1))
GROUP = pb.ReaderGroupConfiguration(scope="s", readerGroupName="g", readerGroupId=ID)
GROUP_INFO = pb.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId=ID)
CONFIG = pb.StreamConfig(streamInfo=INFO, scalingPolicy=pb.ScalingPolicy(minNumSegments=1))
KVT = pb.KeyValueTableConfig(scope="s", kvtName="k", partitionCount=3, primaryKeyLength=4, secondaryKeyLength=2)
KVT_INFO = pb.KeyValueTableInfo(scope="s", kvtName="k")

REQUESTS: dict[str, Any] = {
    "createScope": SCOPE,
    "deleteScope": SCOPE,
    "deleteScopeRecursive": SCOPE,
    "listStreamsInScope": pb.StreamsInScopeRequest(scope=SCOPE),
    "listStreamsInScopeForTag": pb.StreamsInScopeWithTagRequest(scope=SCOPE, tag="x"),
    "createStream": CONFIG,
    "updateStream": CONFIG,
    "truncateStream": CUT,
    "sealStream": INFO,
    "deleteStream": INFO,
    "scale": pb.ScaleRequest(streamInfo=INFO),
    "commitTransaction": TXN,
    "abortTransaction": TXN,
    "pingTransaction": pb.PingTxnRequest(streamInfo=INFO, txnId=TXN.txnId),
    "checkTransactionState": TXN,
    "noteTimestampFromWriter": pb.TimestampFromWriter(writer="w", position=CUT),
    "removeWriter": pb.RemoveWriterRequest(writer="w", stream=INFO),
    "createKeyValueTable": KVT,
    "getKeyValueTableConfiguration": KVT_INFO,
    "deleteKeyValueTable": KVT_INFO,
    "listKeyValueTablesInScope": pb.KVTablesInScopeRequest(scope=SCOPE),
    "createReaderGroup": GROUP,
    "updateReaderGroup": GROUP,
    "getReaderGroupConfig": GROUP_INFO,
    "deleteReaderGroup": GROUP_INFO,
    "listSubscribers": INFO,
    "updateSubscriberStreamCut": pb.SubscriberStreamCut(subscriber="s/g", readerGroupId=ID, streamCut=CUT),
}


@asynccontextmanager
async def stub_of(controller: Any, segments: Any = None) -> AsyncIterator[Any]:
    async with (
        GrpcServer(controller, segments or MemorySegments(), port=0) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield ControllerStub(channel)


async def code(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    found: grpc.StatusCode = caught.value.code()
    return found


def test_every_refusal_has_its_status_and_carries_the_error_beside_it() -> None:
    assert set(REQUESTS) == set(STATUSES)

    async def play() -> None:
        refusing = Refusing(PenstockError("none"))
        async with stub_of(refusing, refusing) as stub:
            for rpc, statuses in STATUSES.items():
                for kind, status in statuses.items():
                    refusing.error = kind("refused", segment="x", at=7)
                    call = getattr(stub, rpc)(REQUESTS[rpc])
                    reply = await call
                    field = next(name for name in ("status", "result", "state") if hasattr(reply, name))
                    assert getattr(reply, field) == status, (rpc, kind)
                    (data,) = [value for key, value in await call.trailing_metadata() if key == ERROR_KEY]
                    error = decode_error(data)
                    assert type(error) is kind
                    assert error.fields == {"segment": "x", "at": 7}

    asyncio.run(play())


def test_users_mistakes_never_look_like_failures_of_the_server() -> None:
    server_kinds = (InternalError,)
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, PenstockError) and not issubclass(kind, server_kinds):
            found = code_of(kind("x"))
            assert found not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), kind
            if issubclass(kind, InvalidArgumentError):
                assert found is grpc.StatusCode.INVALID_ARGUMENT
            if issubclass(kind, NotFoundError):
                assert found is grpc.StatusCode.NOT_FOUND
    assert code_of(InternalError("x")) is grpc.StatusCode.INTERNAL


def test_mistakes_without_a_status_are_refused_at_once() -> None:
    async def play() -> None:
        controller = MemoryController()
        await controller.scopes.create("s")
        await controller.streams.create(StreamName("s", "t"), StreamConfig())
        async with stub_of(controller) as stub:
            bad = grpc.StatusCode.INVALID_ARGUMENT
            none = pb.StreamConfig(streamInfo=pb.StreamInfo(scope="s", stream="zero"))
            assert await code(stub.createStream(none)) is bad
            assert "zero" not in await controller.streams.list("s")
            assert await code(stub.getCurrentSegments(pb.StreamInfo(scope="s"))) is bad
            assert await code(stub.sealStream(pb.StreamInfo(stream="t"))) is bad
            assert await code(stub.createTransaction(pb.CreateTxnRequest(streamInfo=INFO, lease=1))) is bad
            wrong_way = pb.StreamCutRange(streamInfo=INFO, to={0: 1})
            getattr(wrong_way, "from")[1 << 32] = 0
            assert await code(stub.getSegmentsBetween(wrong_way)) is bad
            assert await code(stub.getEpochSegments(pb.GetEpochSegmentsRequest(streamInfo=INFO, epoch=9))) is bad
            absent = pb.StreamInfo(scope="s", stream="absent")
            assert await code(stub.getCurrentSegments(absent)) is grpc.StatusCode.NOT_FOUND
            assert await code(stub.getStreamConfiguration(absent)) is grpc.StatusCode.NOT_FOUND
            unknown = pb.StreamCut(streamInfo=INFO, cut={9 << 32: 0})
            assert (await stub.isStreamCutValid(unknown)).response is False
            bucket = pb.BucketMappingRequest()
            assert await code(stub.getControllerToBucketMapping(bucket)) is grpc.StatusCode.UNIMPLEMENTED
            await controller.streams.seal(StreamName("s", "t"))
            # FAILED_PRECONDITION would be repeated for minutes.
            assert await code(stub.createTransaction(pb.CreateTxnRequest(streamInfo=INFO, lease=20_000))) is bad
            nobody = pb.TimestampFromWriter(position=CUT)
            assert await code(stub.noteTimestampFromWriter(nobody)) is bad

    asyncio.run(play())


def test_what_only_pravegas_clients_ask_is_answered() -> None:
    async def play() -> None:
        controller = MemoryController()
        await controller.scopes.create("s")
        await controller.streams.create(StreamName("s", "t"), StreamConfig())
        async with (
            GrpcServer(controller, MemorySegments(), port=0, server_address="store.example") as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            stub = ControllerStub(channel)
            (node,) = (await stub.getControllerServerList(pb.ServerRequest())).nodeURI
            assert (node.endpoint, node.port) == ("store.example", server.port)
            assert (await stub.getDelegationToken(INFO)).delegationToken == ""
            segment = pb.SegmentId(streamInfo=INFO, segmentId=0)
            assert await stub.getSegmentsImmediatlyFollowing(segment) == pb.SuccessorResponse()
            table = pb.SegmentId(streamInfo=pb.StreamInfo(scope="s", stream="x_kvtable"))
            assert (await stub.getURI(table)).port == 12345
            noted = await stub.noteTimestampFromWriter(
                pb.TimestampFromWriter(writer="w", position=pb.StreamCut(streamInfo=INFO, cut={0: -1}))
            )
            assert noted.result == pb.TimestampResponse.SUCCESS
            early = pb.TimestampFromWriter(writer="w", position=CUT, timestamp=-1)
            assert (await stub.noteTimestampFromWriter(early)).result == pb.TimestampResponse.INVALID_TIME
            wrong = pb.TimestampFromWriter(writer="w", position=pb.StreamCut(streamInfo=INFO, cut={0: -2}))
            assert (await stub.noteTimestampFromWriter(wrong)).result == pb.TimestampResponse.INVALID_POSITION
            writer = pb.RemoveWriterRequest(writer="w", stream=INFO)
            assert (await stub.removeWriter(writer)).result == pb.RemoveWriterResponse.SUCCESS
            gone = pb.RemoveWriterRequest(writer="w", stream=pb.StreamInfo(scope="s", stream="absent"))
            assert (await stub.removeWriter(gone)).result == pb.RemoveWriterResponse.STREAM_DOES_NOT_EXIST

    asyncio.run(play())


def test_a_time_under_a_name_that_cannot_be_noted_refuses_no_commit() -> None:
    async def play() -> None:
        controller = MemoryController()
        await controller.scopes.create("s")
        await controller.streams.create(StreamName("s", "t"), StreamConfig())
        async with (
            GrpcServer(controller, MemorySegments(), port=0) as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
        ):
            stub = ControllerStub(channel)
            for writer in ("w", "", "x" * 256):
                begun = await stub.createTransaction(pb.CreateTxnRequest(streamInfo=INFO, lease=10_000))
                wanted = pb.TxnRequest(streamInfo=INFO, txnId=begun.txnId, writerId=writer, timestamp=5)
                assert (await stub.commitTransaction(wanted)).status == pb.TxnStatus.SUCCESS

    asyncio.run(play())


def test_lists_end_with_an_empty_page_that_has_its_token() -> None:
    async def play() -> None:
        controller = MemoryController()
        await controller.scopes.create("s")
        await controller.streams.create(StreamName("s", "t"), StreamConfig())
        async with stub_of(controller) as stub:
            page = await stub.listStreamsInScope(pb.StreamsInScopeRequest(scope=SCOPE))
            assert [item.stream for item in page.streams] == ["t"]
            request = pb.StreamsInScopeRequest(scope=SCOPE, continuationToken=page.continuationToken)
            end = await stub.listStreamsInScope(request)
            assert not end.streams
            assert end.HasField("continuationToken")
            scopes = await stub.listScopes(pb.ScopesRequest())
            end = await stub.listScopes(pb.ScopesRequest(continuationToken=scopes.continuationToken))
            assert not end.scopes
            assert end.HasField("continuationToken")

    asyncio.run(play())


def test_a_scope_is_deleted_with_all_that_it_holds() -> None:
    async def play() -> None:
        controller, segments = MemoryController(), MemorySegments()
        controller.tables = KeyValueTables(controller.scopes, segments)
        await controller.scopes.create("s")
        await controller.scopes.create("other")
        for name in ("a", "b"):
            await controller.streams.create(StreamName("s", name), StreamConfig())
        await controller.groups.create(
            ReaderGroupConfig(scope="s", name="g", id=UUID(int=1), retention=ReaderGroupRetention.NONE)
        )
        async with stub_of(controller, segments) as stub:
            await stub.createKeyValueTable(KVT)
            assert (await stub.deleteScope(SCOPE)).status == pb.DeleteScopeStatus.SCOPE_NOT_EMPTY
            assert (await stub.deleteScopeRecursive(SCOPE)).status == pb.DeleteScopeStatus.SUCCESS
            assert (await stub.deleteScopeRecursive(SCOPE)).status == pb.DeleteScopeStatus.SCOPE_NOT_FOUND
        assert set(controller.made) == {"other"}
        assert not controller.made_groups
        assert set(segments.tables) == {"_system/_tables/keyvaluetables"}

    asyncio.run(play())


def test_key_value_tables_are_made_found_listed_and_deleted() -> None:
    async def play() -> None:
        controller, segments = MemoryController(), MemorySegments()
        controller.tables = KeyValueTables(controller.scopes, segments)
        async with stub_of(controller, segments) as stub:
            status = pb.CreateKeyValueTableStatus
            assert (await stub.createKeyValueTable(KVT)).status == status.SCOPE_NOT_FOUND
            await controller.scopes.create("s")
            assert (await stub.createKeyValueTable(KVT)).status == status.SUCCESS
            assert (await stub.createKeyValueTable(KVT)).status == status.TABLE_EXISTS
            illegal = pb.KeyValueTableConfig(scope="s", kvtName="_k", partitionCount=1, primaryKeyLength=1)
            assert (await stub.createKeyValueTable(illegal)).status == status.INVALID_TABLE_NAME
            empty = pb.KeyValueTableConfig(scope="s", kvtName="e", partitionCount=0, primaryKeyLength=1)
            assert await code(stub.createKeyValueTable(empty)) is grpc.StatusCode.INVALID_ARGUMENT
            made = {name: kind for name, kind in segments.kinds.items() if name.startswith("s/")}
            assert made == {f"s/k_kvtable/{number}.#epoch.0": (TableKind.SORTED, 6) for number in range(3)}

            ranges = (await stub.getCurrentSegmentsKeyValueTable(KVT_INFO)).segmentRanges
            assert [item.segmentId.segmentId for item in ranges] == [0, 1, 2]
            assert ranges[-1].maxKey == 1.0
            assert ranges[0].segmentId.streamInfo.stream == "k"
            assert (await stub.getKeyValueTableConfiguration(KVT_INFO)).config == KVT
            listed = await stub.listKeyValueTablesInScope(pb.KVTablesInScopeRequest(scope=SCOPE))
            assert [item.kvtName for item in listed.kvtables] == ["k"]
            again = pb.KVTablesInScopeRequest(scope=SCOPE, continuationToken=listed.continuationToken)
            assert not (await stub.listKeyValueTablesInScope(again)).kvtables

            assert (await stub.deleteKeyValueTable(KVT_INFO)).status == pb.DeleteKVTableStatus.SUCCESS
            assert (await stub.deleteKeyValueTable(KVT_INFO)).status == pb.DeleteKVTableStatus.TABLE_NOT_FOUND
            missing = await stub.getKeyValueTableConfiguration(KVT_INFO)
            assert missing.status == pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND
            assert await code(stub.getCurrentSegmentsKeyValueTable(KVT_INFO)) is grpc.StatusCode.NOT_FOUND
            assert (await stub.createKeyValueTable(KVT)).status == status.SUCCESS

    asyncio.run(play())


def test_a_table_that_was_made_halfway_is_completed_by_the_next_attempt() -> None:
    async def play() -> None:
        controller, segments = MemoryController(), MemorySegments()
        controller.tables = KeyValueTables(controller.scopes, segments)
        await controller.scopes.create("s")
        await segments.create_table("s/k_kvtable/0.#epoch.0", kind=TableKind.SORTED, key_bytes=6)
        async with stub_of(controller, segments) as stub:
            assert (await stub.createKeyValueTable(KVT)).status == pb.CreateKeyValueTableStatus.SUCCESS
            assert len(segments.tables) == 4

    asyncio.run(play())


def test_a_taken_port_raises_a_typed_error() -> None:
    async def play() -> None:
        async with GrpcServer(MemoryController(), MemorySegments(), port=0) as first:
            with pytest.raises(AddressInUseError) as caught:
                async with GrpcServer(MemoryController(), MemorySegments(), port=first.port):
                    pytest.fail("the port was given twice")
            assert caught.value.fields == {"host": "127.0.0.1", "port": first.port}

    asyncio.run(play())


def test_listening_everywhere_needs_an_address_for_clients() -> None:
    with pytest.raises(InvalidArgumentError):
        GrpcServer(MemoryController(), MemorySegments(), host="0.0.0.0", port=0)
    with pytest.raises(InvalidArgumentError):
        GrpcServer(MemoryController(), MemorySegments(), port=70_000)
    GrpcServer(MemoryController(), MemorySegments(), host="0.0.0.0", port=0, server_address=Endpoint(host="a", port=1))


json_values = st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=30)
kinds = st.sampled_from(
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)]
)
fields = st.dictionaries(
    st.text("abcdefgh_", min_size=1, max_size=8).filter(lambda name: name not in ("self", "message")),
    json_values,
    max_size=5,
)


@given(kind=kinds, message=st.text(max_size=80), named=fields)
def test_typed_errors_survive_the_wire(kind: type[PenstockError], message: str, named: dict[str, Any]) -> None:
    error = decode_error(encode_error(kind(message, **named)))
    assert type(error) is kind
    assert (error.message, error.fields) == (message, named)


@given(message=st.text(), named=st.dictionaries(st.text("abcdefgh", min_size=1), st.text() | st.binary(), max_size=40))
def test_an_error_never_outgrows_its_header(message: str, named: dict[str, Any]) -> None:
    data = encode_error(ConflictError(message * 100, **{name: value * 400 for name, value in named.items()}))
    assert len(data) <= 4096
    assert type(decode_error(data)) is ConflictError


@given(data=st.binary() | st.text().map(str.encode))
def test_bytes_that_are_no_error_are_none(data: bytes) -> None:
    assert decode_error(data) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"class": "OSError", "message": "m", "fields": {}}',
        '{"class": "builtins.eval", "message": "m", "fields": {}}',
        '{"class": "ConflictError", "message": "m", "fields": []}',
        "[]",
        "null",
    ],
)
def test_only_our_own_errors_are_rebuilt(text: str) -> None:
    assert decode_error(text.encode()) is None


def test_fields_of_an_error_cannot_take_the_place_of_its_message() -> None:
    error = decode_error(b'{"class": "ConflictError", "message": "m", "fields": {"message": 1, "self": 2, "a": 3}}')
    assert error is not None
    assert (error.message, error.fields) == ("m", {"a": 3})


def test_a_server_that_is_not_ours_is_refused() -> None:
    replies: dict[str, Any] = {
        "createScope": pb.CreateScopeStatus(status=2),
        "deleteScope": pb.DeleteScopeStatus(status=2),
        "createStream": pb.CreateStreamStatus(status=4),
        "updateStream": pb.UpdateStreamStatus(status=1),
        "commitTransaction": pb.TxnStatus(status=1),
        "listStreamsInScope": pb.StreamsInScopeResponse(status=1),
    }

    def handler(rpc: str) -> Any:
        async def answer(_request: bytes, context: Any) -> bytes:
            if rpc in replies:
                return replies[rpc].SerializeToString()
            if rpc == "getStreamConfiguration":
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
            await context.abort(grpc.StatusCode.UNKNOWN, "something broke")
            raise InternalError("abort raises")

        return grpc.unary_unary_rpc_method_handler(answer)

    async def play() -> None:
        service = pb.DESCRIPTOR.services_by_name["ControllerService"]
        server = grpc.aio.server()
        handlers = {name: handler(name) for name in service.methods_by_name}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with pytest.raises(UnsupportedError, match="not a Penstock server"):
            async with dial_controller(f"127.0.0.1:{port}"):
                pytest.fail("that is not a server of ours")
        await server.stop(None)

    asyncio.run(play())


def test_cancelling_a_call_cancels_it_in_the_server() -> None:
    async def play() -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        class Waiting(MemoryController):
            async def scopes_exists(self, scope: str) -> bool:
                started.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.set()
                    raise
                return True

        async with (
            GrpcServer(Waiting(), MemorySegments(), port=0) as server,
            GrpcConnection(f"127.0.0.1:{server.port}") as connection,
        ):
            task = asyncio.ensure_future(RemoteController(connection).scopes.exists("s"))
            await asyncio.wait_for(started.wait(), 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(cancelled.wait(), 10)

    asyncio.run(play())


CLIENT = """
import sys
import pravega_client
manager = pravega_client.StreamManager("tcp://127.0.0.1:" + sys.argv[1])
assert manager.create_scope("s") is True
assert manager.create_scope("s") is False
assert manager.create_stream("s", "t", 2) is True
assert manager.create_stream("s", "t", 2) is False
policy = pravega_client.StreamScalingPolicy.auto_scaling_policy_by_event_rate(10, 2, 1)
retention = pravega_client.StreamRetentionPolicy.by_size(1000)
assert manager.create_stream_with_policy("s", "u", policy, retention, ["red", "blue"]) is True
assert sorted(manager.get_stream_tags("s", "u")) == ["blue", "red"]
assert manager.update_stream_with_policy("s", "u", policy, retention, ["green"]) is True
assert manager.get_stream_tags("s", "u") == ["green"]
assert manager.get_stream_tags("s", "t") == []
assert manager.update_stream_with_policy("s", "u", policy, retention, ["green", "red", "green"]) is True
assert sorted(manager.get_stream_tags("s", "u")) == ["green", "red"]
assert sorted(manager.list_scope()) == ["s"], manager.list_scope()
assert sorted(manager.list_stream("s")) == ["t", "u"]
for name in ("t", "u"):
    assert manager.seal_stream("s", name) is True
    assert manager.delete_stream("s", name) is True
assert manager.list_stream("s") == []
assert manager.delete_scope("s") is True
assert manager.list_scope() == []
print("done")
"""


def test_pravegas_python_client_manages_scopes_and_streams(tmp_path: Path) -> None:
    pytest.importorskip("pravega_client")
    script = tmp_path / "client.py"
    script.write_text(CLIENT)

    async def play() -> None:
        controller = MemoryController()
        async with GrpcServer(controller, MemorySegments(), port=0) as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(script), str(server.port), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            try:
                out, err = await asyncio.wait_for(process.communicate(), 60)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            assert (process.returncode, out.decode().strip()) == (0, "done"), err.decode()[-2000:]

    asyncio.run(play())
