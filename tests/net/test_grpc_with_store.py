"""The gRPC port in front of the real controller and segment store, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import grpc
import pytest
from controller_stub import ControllerStub
from grpc_store_world import WRITER, running

from penstock.client.store import AsyncStore
from penstock.codec.control.streams import BatchRecord
from penstock.controller import keys
from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import (
    InvalidCutError,
    NotEmptyError,
    RetentionHoldError,
    ScaleConflictError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
    TransactionNotFoundError,
    TransactionStateError,
    UnavailableError,
    WriterInUseError,
)
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from penstock.model.queries import QuerySource
from penstock.model.segments import KeyRange, make_segment_id
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.proto import Controller_pb2 as pb
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import ScaleStatus
from penstock.ports.control.transactions import PingStatus, TransactionStatus
from penstock.ports.data.tables import TablePut
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from tests.flat_control import Around

S = StreamName("s", "events")
FIRST, SECOND = make_segment_id(0, 0), make_segment_id(0, 1)
CONFIG = StreamConfig(
    scaling=ScalingPolicy(min_segments=2), retention=RetentionPolicy(type=RetentionType.SIZE, minimum=0, maximum=1000)
)


BEYOND = StreamCut(S, {FIRST: 1 << 40, SECOND: 0})
CALLS_WITH_A_CUT: dict[str, Callable[[RemoteController, StreamCut], Awaitable[object]]] = {
    "streams.truncate": lambda c, cut: c.streams.truncate(S, cut),
    "segments_between start": lambda c, cut: c.cuts.segments_between(S, cut, StreamCut(S, {})),
    "segments_between end": lambda c, cut: c.cuts.segments_between(S, StreamCut(S, {}), cut),
    "cuts.before": lambda c, cut: c.cuts.before(S, cut, 3),
    "cuts.measure": lambda c, cut: c.cuts.measure(S, cut, StreamCut(S, {})),
    "groups.create": lambda c, cut: c.groups.create(_group_at("fresh", cut)),
    "groups.update": lambda c, cut: c.groups.update(_group_at("known", cut)),
    "subscribers.publish": lambda c, cut: c.subscribers.publish("s/known", group_id=WRITER, generation=0, cut=cut),
    "retention.explain": lambda c, cut: c.retention.explain(S, position=cut),
    "holds.add": lambda c, cut: c.holds.add(S, owner="o", reason="r", cut=cut),
    "subscribers.move": lambda c, cut: c.subscribers.move(S, "s/known", cut),
}


def _group_at(name: str, cut: StreamCut) -> ReaderGroupConfig:
    return ReaderGroupConfig(
        scope="s", name=name, id=WRITER, retention=ReaderGroupRetention.MANUAL, start_cuts={cut.stream: cut}
    )


def test_a_cut_that_no_reader_can_have_reached_is_refused_over_the_network_by_its_class() -> None:
    async def play() -> None:
        async with running() as run:
            await run.remote.scopes.create("s")
            await run.remote.streams.create(S, CONFIG)
            await run.remote.groups.create(_group_at("known", await run.remote.cuts.head(S)))
            assert not await run.remote.cuts.is_valid(S, BEYOND)
            for ask in CALLS_WITH_A_CUT.values():
                for cut in (BEYOND, StreamCut(S, {FIRST: 0})):
                    with pytest.raises(InvalidCutError):
                        await ask(run.remote, cut)
            assert (await run.remote.subscribers.describe(S))[0].cut == await run.remote.cuts.head(S)

    asyncio.run(play())


def test_a_client_that_seals_and_deletes_each_listed_stream_empties_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the Java client does that deletes a scope by force. Pages hold only watermarks, or some, or none."""

    async def play(page: int) -> None:
        monkeypatch.setattr("penstock.controller.streams.queries.PAGE_MAX", page)
        async with running() as run, grpc.aio.insecure_channel(f"127.0.0.1:{run.port}") as channel:
            stub = ControllerStub(channel)
            await run.remote.scopes.create("s")
            names = ["A", "a", "b", "c"]
            for name in names:
                await run.remote.streams.create(StreamName("s", name), StreamConfig())
            listed: list[str] = []
            request = pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="s"))
            while (answer := await stub.listStreamsInScope(request)).streams:
                listed += [item.stream for item in answer.streams]
                request.continuationToken.CopyFrom(answer.continuationToken)
            assert listed == names
            for name in listed:
                stream = pb.StreamInfo(scope="s", stream=name)
                assert (await stub.sealStream(stream)).status == pb.UpdateStreamStatus.SUCCESS
                assert (await stub.deleteStream(stream)).status == pb.DeleteStreamStatus.SUCCESS
            assert (await stub.deleteScope(pb.ScopeInfo(scope="s"))).status == pb.DeleteScopeStatus.SUCCESS

    for page in (1, 2, 3, 1000):
        asyncio.run(play(page))


def test_a_stream_lives_from_creation_to_deletion() -> None:
    async def play() -> None:
        async with running() as run:
            remote = run.remote
            await remote.scopes.create("s")
            await remote.streams.create(S, CONFIG)
            assert await remote.streams.config(S) == CONFIG
            assert "events" in await remote.streams.list("s")
            end = await run.append(segment_name(S, FIRST), b"0123456789")
            assert (await remote.cuts.tail(S)).positions == {FIRST: end, SECOND: 0}
            assert (await remote.streams.describe(S)).size_bytes == end

            with pytest.raises(InvalidCutError):
                await remote.streams.truncate(S, StreamCut(S, {FIRST: 5}))
            await remote.streams.truncate(S, StreamCut(S, {FIRST: end, SECOND: 0}))
            assert (await remote.cuts.head(S)).positions == {FIRST: end, SECOND: 0}

            middle = [KeyRange(low=0.0, high=0.25), KeyRange(low=0.25, high=0.5)]
            result = await remote.layout.scale(S, sealed=[FIRST], new_ranges=middle)
            assert result.epoch_before == 0
            assert [item.keys for item in result.segments] == middle
            with pytest.raises(ScaleConflictError):
                await remote.layout.scale(S, sealed=[FIRST], new_ranges=middle)
            assert await remote.layout.scale_status(S, 0) is ScaleStatus.DONE
            following = await remote.layout.successors(S, FIRST)
            assert [item.range for item in following] == list(result.segments)
            assert all(tuple(item.predecessors) == (FIRST,) for item in following)
            assert not await remote.layout.is_active(S, FIRST)

            decision = await remote.retention.explain(S)
            assert decision.version == 1
            await remote.retention.run(S)

            with pytest.raises(StreamNotSealedError):
                await remote.streams.delete(S)
            with pytest.raises(NotEmptyError):
                await remote.scopes.delete("s")
            await remote.streams.seal(S)
            assert await remote.layout.current(S) == ()
            with pytest.raises(StreamSealedError):
                await remote.streams.update(S, CONFIG)
            with pytest.raises(StreamSealedError):
                await remote.transactions.create(S, lease_ms=20_000)
            await remote.streams.delete(S)
            with pytest.raises(StreamNotFoundError):
                await remote.cuts.head(S)
            await remote.scopes.delete("s")

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_head_tells_which_segment_waits_for_an_older_one() -> None:
    async def play() -> None:
        async with running() as run:
            remote = run.remote
            await remote.scopes.create("s")
            await remote.streams.create(S, StreamConfig(scaling=ScalingPolicy(min_segments=1)))
            halves = [KeyRange(low=0.0, high=0.5), KeyRange(low=0.5, high=1.0)]
            left, right = (
                item.segment for item in (await remote.layout.scale(S, sealed=[FIRST], new_ranges=halves)).segments
            )
            end = await run.append(segment_name(S, right), b"0123456789")
            whole = KeyRange(low=0.0, high=1.0)
            (merged,) = (await remote.layout.scale(S, sealed=[left, right], new_ranges=[whole])).segments
            cut = StreamCut(S, {right: end - 5, merged.segment: NOT_STARTED})
            await remote.streams.truncate(S, cut)
            head = await remote.cuts.head(S)
            assert head == cut
            assert await remote.cuts.is_valid(S, head)
            assert list(await remote.cuts.segments_between(S, head, await remote.cuts.tail(S))) == [
                right,
                merged.segment,
            ]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{run.port}") as channel:
                stub = ControllerStub(channel)
                request = pb.GetSegmentsRequest(streamInfo=pb.StreamInfo(scope="s", stream="events"))
                reply = await stub.getSegments(request)
            # Pravega's readers take no other offset.
            reported = {item.segmentId.segmentId: item.offset for item in reply.segments}
            assert reported == {right: end - 5, merged.segment: 0}

    asyncio.run(play())


def test_transactions_and_batches_are_committed() -> None:
    async def play() -> None:
        async with running() as run:
            remote = run.remote
            await remote.scopes.create("s")
            await remote.streams.create(S, CONFIG)
            txn = await remote.transactions.create(S, lease_ms=20_000)
            assert txn.id.int & (1 << 63) == 0  # a set bit breaks Pravega's clients
            assert await remote.transactions.ping(S, txn.id, lease_ms=20_000) is PingStatus.OK
            parent = segment_name(S, txn.segments[0].segment)
            end = await run.append(transaction_segment_name(parent, txn.id), b"abc")
            assert await remote.batches.commit(S, writer="query", batch=4, transactions=[txn.id]) is True
            assert (await run.store.info(parent)).length == end
            assert await remote.batches.last(S, writer="query") == 4
            assert await remote.transactions.status(S, txn.id) is TransactionStatus.COMMITTED
            late = await remote.transactions.create(S, lease_ms=20_000)
            assert await remote.batches.commit(S, writer="query", batch=4, transactions=[late.id]) is False
            owner = QuerySource(query="q1", run="r1", replaces="unknown")
            assert await remote.batches.last(S, writer="query", source=owner) is None
            assert await remote.batches.commit(S, writer="query", batch=0, transactions=[], source=owner) is True
            with pytest.raises(WriterInUseError, match="another txnAppId"):
                await remote.batches.last(S, writer="query")
            for source in (QuerySource(query="q2"), QuerySource(query="q2", replaces="q3", ordered=False)):
                with pytest.raises(WriterInUseError, match="another query") as refused:
                    await remote.batches.last(S, writer="query", source=source)
                assert refused.value.fields["owner"] == "q1"
                with pytest.raises(WriterInUseError):
                    await remote.batches.commit(S, writer="query", batch=9, transactions=[], source=source)
            for writer, one_job in (("job", True), ("person", False)):
                begun = await remote.transactions.create(S, lease_ms=20_000)
                offered = [begun.id]
                assert await remote.batches.commit(S, writer=writer, batch=0, transactions=offered, one_job=one_job)
                metadata = run.controller.batches._ctx.metadata
                stored = (await metadata.get(keys.batch(S, writer), BatchRecord)).value
                assert stored is not None
                assert stored.one_job is one_job
            with pytest.raises(TransactionStateError):
                await remote.transactions.commit(S, late.id)
            with pytest.raises(TransactionNotFoundError):
                await remote.transactions.commit(S, UUID(int=1 << 40))

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_subscriber_publishes_what_it_has_consumed() -> None:
    async def play() -> None:
        async with running() as run:
            remote = run.remote
            await remote.scopes.create("s")
            await remote.streams.create(S, CONFIG)
            end = await run.append(segment_name(S, SECOND), b"0123456789")
            wanted = ReaderGroupConfig(
                scope="s",
                name="g",
                id=UUID(int=9),
                retention=ReaderGroupRetention.MANUAL,
                start_cuts={S: StreamCut(S, {})},
            )
            stored = await remote.groups.create(wanted)
            assert stored.full_name == "s/g"
            assert await remote.groups.get("s", "g") == stored
            assert await remote.groups.list("s") == ("g",)
            assert await remote.subscribers.list(S) == ("s/g",)
            cut = StreamCut(S, {FIRST: 0, SECOND: end})
            await remote.subscribers.publish("s/g", group_id=stored.id, generation=stored.generation, cut=cut)
            (subscriber,) = (await remote.streams.describe(S)).subscribers
            assert (subscriber.name, subscriber.cut) == ("s/g", cut)
            await remote.groups.delete("s", "g", group_id=stored.id)
            assert await remote.subscribers.list(S) == ()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_key_value_tables_and_chunks_reach_the_segment_store() -> None:
    async def play() -> None:
        async with running() as run:
            remote = run.remote
            await remote.scopes.create("s")
            await remote.streams.create(S, CONFIG)
            segment = segment_name(S, FIRST)
            await run.append(segment, b"x" * 100)
            spaces = await remote.segments.spaces([segment, "s/absent/0.#epoch.0"])
            assert spaces == await run.store.spaces([segment])
            assert await remote.segments.chunk_ranges(segment, 0, 100) == tuple(
                await run.store.chunk_ranges(segment, 0, 100)
            )
            async with grpc.aio.insecure_channel(f"127.0.0.1:{run.port}") as channel:
                stub = ControllerStub(channel)
                table = pb.KeyValueTableConfig(scope="s", kvtName="k", partitionCount=2, primaryKeyLength=4)
                named = pb.KeyValueTableInfo(scope="s", kvtName="k")
                assert (await stub.createKeyValueTable(table)).status == pb.CreateKeyValueTableStatus.SUCCESS
                assert (await stub.createKeyValueTable(table)).status == pb.CreateKeyValueTableStatus.TABLE_EXISTS
                await run.store.table_update("s/k_kvtable/1.#epoch.0", [TablePut(key=b"abcd", value=b"1")])
                listed = await stub.listKeyValueTablesInScope(pb.KVTablesInScopeRequest(scope=pb.ScopeInfo(scope="s")))
                assert [item.kvtName for item in listed.kvtables] == ["k"]
                assert (await stub.deleteKeyValueTable(named)).status == pb.DeleteKVTableStatus.SUCCESS
                everything = await stub.deleteScopeRecursive(pb.ScopeInfo(scope="s"))
                assert everything.status == pb.DeleteScopeStatus.SUCCESS
            assert not await remote.scopes.exists("s")

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_scope_with_a_held_stream_is_refused_before_anything_of_it_is_deleted() -> None:
    async def play() -> None:
        async with running() as run:
            remote, others = run.remote, [StreamName("s", name) for name in ("a", "b")]
            await remote.scopes.create("s")
            for stream in (*others, S):
                await remote.streams.create(stream, CONFIG)
            await remote.groups.create(_group_at("known", await remote.cuts.head(S)))
            held = await remote.holds.add(S, owner="legal", reason="case 7")
            before = await remote.streams.list("s")
            async with grpc.aio.insecure_channel(f"127.0.0.1:{run.port}") as channel:
                stub = ControllerStub(channel)
                refused = await stub.deleteScopeRecursive(pb.ScopeInfo(scope="s"))
                assert refused.status == pb.DeleteScopeStatus.FAILURE
                assert await remote.streams.list("s") == before
                assert await remote.groups.list("s") == ("known",)
                assert all([await remote.layout.current(stream) for stream in (*others, S)])

                with pytest.raises(RetentionHoldError):
                    await remote.streams.delete(S, seal=True)
                assert await remote.layout.current(S)
                await remote.streams.delete(others[0], seal=True)
                await remote.holds.release(held.id, owner="legal")
                assert (await stub.deleteScopeRecursive(pb.ScopeInfo(scope="s"))).status == pb.DeleteScopeStatus.SUCCESS
            assert not await remote.scopes.exists("s")

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_hold_whose_answer_was_lost_is_placed_once() -> None:
    lost: list[str] = []

    def losing(name: str, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def answer(*arguments: object, **named: object) -> object:
            found = await call(*arguments, **named)
            if name == "holds.add" and len(lost) % 2 == 0:
                lost.append(name)
                raise UnavailableError("the answer is lost")
            lost.append("")
            return found

        return answer

    async def play() -> None:
        async with running() as world:
            await world.remote.scopes.create("s")
            await world.remote.streams.create(S, CONFIG)
            async with (
                GrpcServer(Around(world.controller, losing), world.store, port=0) as server,
                dial_controller(f"localhost:{server.port}") as remote,
            ):
                store = AsyncStore(world.store, remote, RealClock(), RealRng())
                for holds in (store.stream(S).retention.holds, store.holds("s")):
                    lost.clear()
                    placed = await holds.add(owner="o", reason="r")
                    assert lost
                    assert placed in await holds.list()
            assert len(await world.controller.holds.list()) == 2

    asyncio.run(play())


@pytest.mark.parametrize("call", ["undo_last", "undo"])
def test_an_undo_whose_answer_was_lost_is_not_repeated(call: str) -> None:
    made: list[str] = []

    def losing(name: str, inner: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def answer(*arguments: object, **named: object) -> object:
            if name == f"retention.{call}":
                made.append(name)
                raise UnavailableError("the answer is lost")
            return await inner(*arguments, **named)

        return answer

    async def play() -> None:
        async with (
            running() as world,
            GrpcServer(Around(world.controller, losing), world.store, port=0) as server,
            dial_controller(f"localhost:{server.port}", patience_s=0.2) as remote,
        ):
            with pytest.raises(UnavailableError):
                await getattr(remote.retention, call)(S)
        assert len(made) == 1

    asyncio.run(play())
