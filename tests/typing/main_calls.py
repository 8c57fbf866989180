"""The main calls, as a type checker sees them. Checked by ``test_types.py``, never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, assert_type, reveal_type
from uuid import UUID

import msgspec

import penstock
import penstock.client
from penstock.spark.session import configure, settings


def opening(directory: str) -> None:
    with penstock.open(directory, memory_bytes=64 << 20, tier2="s3://bucket/prefix") as store:
        assert_type(store, penstock.Store)
    assert_type(penstock.connect("localhost:9090", dial_s=None), penstock.Store)
    assert_type(penstock.connect().stream("a/s"), penstock.Stream)
    options: penstock.EmbeddedOptions = {"log_bytes": 1 << 30}
    penstock.open(directory, **options).close()
    error: penstock.PenstockError = penstock.errors.StreamNotFoundError("stream does not exist")
    assert_type(error.fields, dict[str, Any])
    assert_type(penstock.__version__, str)


def streams(store: penstock.Store, stream: penstock.Stream) -> None:
    made = store.create_stream(
        "a/s", segments=2, retention=penstock.RetentionPolicy(type=penstock.RetentionType.SIZE), create_scope=True
    )
    assert_type(made, penstock.Stream)
    assert_type(store.scopes(), list[str])
    assert_type(stream.name, penstock.StreamName)
    assert_type(stream.exists(), bool)
    assert_type(stream.describe(), penstock.answers.StreamDescription)
    assert_type(stream.subscribers(), Sequence[penstock.answers.SubscriberInfo])
    assert_type(stream.head(), penstock.StreamCut)
    wait: Callable[[], penstock.StreamCut] = stream.head
    assert_type(wait(), penstock.StreamCut)
    assert_type(stream.config(), penstock.StreamConfig)
    assert_type(stream.update(tags=["billing"], retention=None), penstock.StreamConfig)
    stream.truncate(stream.tail())
    stream.truncate(stream.tail().to_text())
    assert_type(stream.scale(3), penstock.answers.ScaleResult)
    stream.scale(sealed=[penstock.SegmentId(0)], new_ranges=[penstock.KeyRange(low=0.0, high=1.0)])
    stream.delete(seal=True)


def writing(stream: penstock.Stream) -> None:
    with stream.writer(block_bytes=1 << 20, linger_s=0.01) as writer:
        assert_type(writer, penstock.Writer)
        writer.write(b"event")
        writer.write("event", key="k")
        writer.write_many([b"1", "2"], ["k", None])
        assert_type(writer.flush(), None)
    stream.writer(penstock.WriterSettings(deadline_s=5)).close()
    options: penstock.WriterOptions = {"max_in_flight": 2}
    stream.writer(**options).close()


class Order(msgspec.Struct):
    number: int


def typed_streams(stream: penstock.Stream) -> None:
    registry = penstock.ConfluentSchemaRegistry("http://localhost:8081", token="t")
    serializer = penstock.AvroSerializer({"type": "string"}, Order, registry=registry, subject="s")
    assert_type(serializer, penstock.AvroSerializer[Order])
    assert_type(penstock.AvroSerializer({"type": "string"}), penstock.AvroSerializer[dict[str, Any]])
    with stream.writer(serializer=serializer, records=True, block_bytes=1 << 16) as writer:
        assert_type(writer, penstock.TypedWriter[Order])
        writer.write(Order(number=1), "k", headers={"a": "1"}, timestamp_ms=5)
        writer.write_many([Order(number=1)], [b"k"])
    with stream.reader(serializer=serializer, records=True, start="head") as reader:
        assert_type(reader, penstock.TypedReader[Order])
        for event in reader:
            assert_type(event.value, Order)
            assert_type(event.record.key, bytes | None)
    text = stream.reader(serializer=penstock.TextSerializer()).read()
    assert_type(text, penstock.TypedEvent[str] | None)
    with stream.writer() as plain:
        plain.write(penstock.Record("value", key="k", headers=[("a", b"1")]))
    with stream.reader() as events:
        assert_type([event.record.headers for event in events], list[tuple[tuple[str, bytes | None], ...]])


async def typed_async_streams(stream: penstock.AsyncStream) -> None:
    serializer = penstock.JsonSerializer(Order, registry=penstock.MemorySchemaRegistry(), subject="s")
    async with stream.writer(serializer=serializer) as writer:
        assert_type(writer, penstock.AsyncTypedWriter[Order])
        await writer.write(Order(number=1))
    async with stream.reader(serializer=serializer) as reader:
        assert_type(reader, penstock.AsyncTypedReader[Order])
        assert_type([event.value async for event in reader], list[Order])
    assert_type(stream.writer(), penstock.AsyncWriter)


def transactions(stream: penstock.Stream) -> None:
    with stream.transaction(lease_s=60, block_bytes=1 << 16) as transaction:
        assert_type(transaction, penstock.Transaction)
        transaction.write("event", "k")
        assert_type(transaction.id, UUID)
        transaction.ping()
    transaction.commit(wait=False, deadline_s=5)
    assert_type(transaction.status(), penstock.answers.TransactionStatus)


def reading(stream: penstock.Stream) -> None:
    with stream.reader(start="head", end=stream.tail(), on_truncated="skip") as reader:
        assert_type(reader, penstock.Reader)
        for event in reader:
            assert_type(event, penstock.Event)
            assert_type(event.data, bytes)
            assert_type(event.segment, penstock.SegmentId)
        assert_type(reader.read(1.5), penstock.Event | None)
        assert_type(reader.next_block(), penstock.Block | None)
        assert_type([block.events() for block in reader.read_blocks()], list[list[bytes]])
        assert_type(reader.position(), penstock.StreamCut)


def groups(store: penstock.Store, wanted: Literal["none", "manual", "automatic"]) -> None:
    group = store.reader_group("a/g", ["a/s"], start={"a/s": "tail"}, retention=wanted)
    assert_type(group, penstock.ReaderGroup)
    assert_type(store.open_reader_group("a/g", lease_s=3), penstock.ReaderGroup)
    with group.reader("one") as reader:
        assert_type(reader, penstock.GroupReader)
        assert_type(reader.transaction("a/out"), penstock.GroupTransaction)
        assert_type([event.offset for event in reader], list[int])
    assert_type(group.readers(), list[str])
    cuts = group.checkpoint(deadline_s=5)
    assert_type(cuts, Mapping[penstock.StreamName, penstock.StreamCut])
    group.publish(cuts)


def retention(store: penstock.Store, stream: penstock.Stream) -> None:
    assert_type(stream.retention, penstock.Retention)
    assert_type(store.policy("a"), penstock.LevelPolicy)
    stream.retention.set({"retain": {"max_bytes": 1}})
    document = penstock.PolicyDocument(
        backlog=penstock.Backlog(max_bytes=1 << 30, on_exceed=penstock.OnExceed.REJECT), grace_s=60
    )
    stream.retention.set(document)
    assert_type(stream.retention.plan(document, at=1_790_000_000_000), penstock.answers.RetentionPlan)
    assert_type(stream.retention.plan().frees_bytes, int)
    assert_type(stream.retention.explain(stream.head()), penstock.answers.Explanation)
    assert_type(stream.retention.run(), penstock.answers.RetentionRun)
    assert_type(stream.retention.get(), penstock.PolicyDocument)
    assert_type(stream.retention.effective(), penstock.EffectivePolicy)
    assert_type(stream.retention.undo(), penstock.StreamCut)


def holds(store: penstock.Store, stream: penstock.Stream) -> None:
    assert_type(store.holds("a/s"), penstock.Holds)
    hold = stream.retention.holds.add(owner="legal", reason="case 4711", until=None)
    assert_type(hold, penstock.HoldInfo)
    assert_type(store.holds().release(hold.id, owner="legal"), penstock.HoldInfo)
    assert_type([item.owner for item in store.holds()], list[str])
    assert_type(store.holds().list(), Sequence[penstock.HoldInfo])


def erasing(store: penstock.Store, stream: penstock.Stream, events: Sequence[penstock.Event]) -> None:
    stream.erase(events, who="ann", why="request 17")
    stream.erase([(0, 17)], who="ann", why="request 17", dry_run=True)
    stream.erase({penstock.SegmentId(0): [17]}, who="ann", why="request 17", progress=print)
    assert_type(store.approvals(), penstock.Approvals)
    assert_type(store.erasures(), penstock.Erasures)
    assert_type(stream.erasures.verify("id"), penstock.Verification)
    assert_type(stream.erasures.verify("id").holds, bool)


class Builder:
    def config(self, name: str, value: str) -> Builder:
        return self


def spark_options() -> None:
    assert_type(settings(local=False), dict[str, str])
    assert_type(configure(Builder()), Builder)


async def asynchronous(directory: str) -> None:
    async with penstock.connect_async() as store:
        assert_type(store, penstock.AsyncStore)
    async with penstock.open_async(directory, memory_bytes=64 << 20) as store:
        stream = await store.create_stream("a/s")
        assert_type(stream, penstock.AsyncStream)
        async with stream.writer(block_bytes=1 << 20) as writer:
            assert_type(writer, penstock.AsyncWriter)
            await writer.write("event", "k")
        async with stream.transaction() as transaction:
            assert_type(transaction, penstock.AsyncTransaction)
        async with stream.reader(until_tail=True) as reader:
            assert_type(reader, penstock.AsyncReader)
            assert_type([event async for event in reader], list[penstock.Event])
        group = await store.reader_group("a/g", ["a/s"], retention="manual")
        assert_type(group, penstock.AsyncReaderGroup)
        assert_type(group.reader("one"), penstock.AsyncGroupReader)
        assert_type(group.reader("one").transaction("a/out"), penstock.AsyncGroupTransaction)
        assert_type(stream.retention, penstock.AsyncRetention)
        assert_type(stream.retention.holds, penstock.AsyncHolds)
        assert_type(stream.erasures, penstock.AsyncErasures)
        assert_type(await stream.tail(), penstock.StreamCut)


def derived(store: penstock.Store, stream: penstock.Stream) -> None:
    reveal_type(stream.scale)
    reveal_type(store.create_stream)


def same_names() -> None:
    assert_type(penstock.client.Stream, type[penstock.Stream])
    assert_type(penstock.client.AsyncStream, type[penstock.AsyncStream])


def tables_and_bytes(store: penstock.Store) -> None:
    table = store.create_table("a/t", primary_key_bytes=2, secondary_key_bytes=1, if_absent=True)
    version: int = table.put(("aa", b"0"), "value")
    entry: penstock.Entry | None = table.get((b"aa", "0"))
    versions = table.update([penstock.Put(("aa", "0"), b"v"), penstock.Replace(("aa", "1"), b"v", version)])
    table.remove_many([penstock.Remove(("aa", "0"), versions[0])])
    values: list[bytes] = [found.value for found in table.scan(first="aa") if found != entry]
    with store.byte_stream("a/b", follow=True) as file:
        written: int = file.write(memoryview(values[0]))
        data: bytes = file.read(written)
        file.seek(-len(data), 2)
        lines: list[bytes] = file.readlines()
    print(lines)


async def tables_and_bytes_async(store: penstock.AsyncStore) -> None:
    table = store.table("a/t")
    versions: list[int] = [entry.version async for entry in table.scan(primary=b"aa")]
    async with store.byte_stream("a/b") as file:
        await file.write(b"bytes")
        data: bytes = await file.read()
    print(versions, data)
