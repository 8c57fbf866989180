"""Typed group readers and transactions: values are committed exactly as events are, and a bad record stops and loses nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from client_world import open_services
from registry_world import serving_registry

import penstock
from penstock.client.blocking.stores import Store
from penstock.client.store import AsyncStore
from penstock.model.errors import DecodeError, InvalidArgumentError, SchemaRegistryUnavailableError
from penstock.model.names import StreamName
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]}
BAD = b"\xff no order"


class Order(msgspec.Struct, frozen=True):
    number: int


ORDERS = penstock.JsonSerializer(Order)
TEXTS = penstock.TextSerializer()


@pytest.fixture
def store():
    with Store(lambda: open_services(RealClock(), RealRng())) as store:
        yield store


def in_store(test):
    """Run a coroutine with an asynchronous store of its own."""

    async def main():
        async with open_services(RealClock(), RealRng()) as (segments, controller):
            await test(AsyncStore(segments, controller, RealClock(), RealRng()))

    asyncio.run(main())


def with_a_bad_record(count=6, bad=3):
    """Encoded orders in one segment. The one at the place ``bad`` is none."""
    return [BAD if number == bad else ORDERS.encode(Order(number)) for number in range(count)]


def write_and_fail(transaction, value):
    transaction.write(value)
    ORDERS.decode(BAD)


def check_place(error, event):
    place = {"stream": str(event.stream), "segment": event.segment, "offset": event.offset}
    assert place.items() <= error.fields.items()
    assert f"offset={event.offset}" in str(error)


def test_a_bad_record_is_an_error_with_its_place_and_the_reader_goes_on(store):
    stream = store.create_stream("s/in", create_scope=True)
    with stream.writer() as writer:
        writer.write_many(with_a_bad_record())
    stream.seal()
    group = store.reader_group("g", ["s/in"])
    found = []
    with group.reader("r", serializer=ORDERS, auto_commit=False) as reader:
        for event in reader:
            try:
                found.append(event.value.number)
            except DecodeError as error:
                check_place(error, event)
                found.append(event.data)
            if len(found) == 5:
                break
        reader.commit(event)
        assert len(reader.assigned()) == 1
    assert found == [0, 1, 2, BAD, 4]
    with group.reader("other", serializer=ORDERS) as reader:
        assert [event.value.number for event in reader] == [5]


def test_an_asynchronous_reader_goes_on_behind_a_bad_record_of_records():
    async def test(store):
        stream = await store.create_stream("s/in", create_scope=True)
        async with stream.writer(serializer=ORDERS, records=True) as writer, stream.writer() as plain:
            await writer.write(Order(0), b"k", headers={"a": "1"})
            await writer.flush()
            await plain.write(BAD)
            await plain.flush()
            await writer.write(Order(2), b"k")
        await stream.seal()
        group = await store.reader_group("g", ["s/in"])
        async with group.reader("r", serializer=ORDERS, records=True, auto_commit=False) as reader:
            first, bad = await reader.read(), await reader.read(timeout_s=5)
            assert (first.value, first.record.header("a")) == (Order(0), b"1")
            with pytest.raises(DecodeError) as refused:
                _ = bad.value
            check_place(refused.value, bad)
            await reader.commit()
        async with group.reader("r", serializer=ORDERS, records=True) as reader:
            assert [event.value async for event in reader] == [Order(2)]

    in_store(test)


def avro_of(stub):
    registry = penstock.ConfluentSchemaRegistry(stub.url, retries=0)
    return penstock.AvroSerializer(SCHEMA, registry=registry, subject="s")


def test_no_commit_covers_an_event_whose_schema_was_not_found(store):
    stream = store.create_stream("s/in", create_scope=True)
    with serving_registry() as stub:
        with stream.writer(serializer=avro_of(stub)) as writer:
            writer.write_many([{"number": number} for number in range(3)])
        stream.seal()
        group = store.reader_group("g", ["s/in"])
        stub.faults[:] = [503]
        with group.reader("r", serializer=avro_of(stub), auto_commit=False) as reader:
            with pytest.raises(SchemaRegistryUnavailableError):
                reader.read()
            reader.commit()
        stub.faults[:] = [503]
        with group.reader("r", serializer=avro_of(stub)) as reader:
            with pytest.raises(SchemaRegistryUnavailableError):
                reader.read()
            assert [event.value["number"] for event in reader] == [0, 1, 2]


def test_an_asynchronous_reader_asks_the_registry_beside_the_loop_and_skips_none():
    async def test(store):
        stream = await store.create_stream("s/in", create_scope=True)
        async with stream.transaction(serializer=avro_of(stub)) as transaction:
            await transaction.write_many([{"number": 1}, {"number": 2}], ["k", "k"])
            with pytest.raises(InvalidArgumentError):
                await transaction.write({"number": "x"})
        await stream.seal()
        group = await store.reader_group("g", ["s/in"])
        stub.faults[:] = [503]
        async with group.reader("r", serializer=avro_of(stub)) as reader:
            with pytest.raises(SchemaRegistryUnavailableError):
                await reader.read()
            assert [event.value["number"] async for event in reader] == [1, 2]

    with serving_registry() as stub:
        in_store(test)


def test_a_transaction_of_values_writes_all_or_nothing(store):
    stream = store.create_stream("s/t", create_scope=True)
    dropped = stream.transaction(serializer=ORDERS)
    with pytest.raises(DecodeError), dropped:
        write_and_fail(dropped, Order(9))
    with stream.transaction(serializer=ORDERS, records=True) as transaction:
        transaction.write(Order(1), b"k", headers={"a": "1"}, timestamp_ms=5)
        transaction.write_many([Order(2), Order(3)], [b"k", b"k"])
        with pytest.raises(InvalidArgumentError):
            transaction.write_many([Order(4)], [b"k", b"k"])
        transaction.flush()
        transaction.write_tombstone(b"k")
        named = transaction.id
    assert store.stream("s/t").describe_transaction(named).state == "committed"
    with stream.reader(serializer=ORDERS, records=True, until_tail=True) as reader:
        *orders, gone = reader
    assert [event.value.number for event in orders] == [1, 2, 3]
    assert (orders[0].record.timestamp_ms, gone.record.value) == (5, None)
    with pytest.raises(InvalidArgumentError):
        stream.transaction(records=True)
    aborted = stream.transaction(serializer=ORDERS)
    aborted.open()
    aborted.write(Order(5))
    aborted.abort()
    with stream.reader(until_tail=True) as reader:
        assert len(list(reader)) == 4


def test_values_are_read_and_written_exactly_once_and_bad_records_go_to_a_stream_of_their_own(store):
    store.create_stream("s/in", create_scope=True)
    for name in ("s/out", "s/bad"):
        store.create_stream(name)
    with store.stream("s/in").writer() as writer:
        writer.write_many(with_a_bad_record())
    store.stream("s/in").seal()
    group = store.reader_group("g", ["s/in"])
    with group.reader("r", serializer=ORDERS, auto_commit=False) as reader:
        dropped = reader.transaction("s/out", serializer=TEXTS)
        with pytest.raises(DecodeError), dropped:
            write_and_fail(dropped, f"aborted {reader.read().value}")
        done = False
        while not done:
            with reader.transaction("s/out", "s/bad", serializer=TEXTS) as transaction:
                assert transaction.streams == [StreamName.parse("s/out"), StreamName.parse("s/bad")]
                for _ in range(2):
                    event = reader.read()
                    if event is None:
                        done = True
                        break
                    try:
                        transaction.write(str(event.value.number), to="s/out")
                    except DecodeError as error:
                        transaction.write_many([str(error.fields["offset"])], to="s/bad")
                transaction.flush()
    with store.stream("s/out").reader(serializer=TEXTS, until_tail=True) as reader:
        assert [event.value for event in reader] == ["0", "1", "2", "4", "5"]
    with store.stream("s/bad").reader(serializer=TEXTS, until_tail=True) as reader:
        assert [int(event.value) for event in reader] == [3 * (8 + len(ORDERS.encode(Order(0))))]


def test_an_asynchronous_transaction_of_a_typed_reader_returns_its_values_again_after_an_abort():
    async def test(store):
        await store.create_stream("s/in", create_scope=True)
        out = await store.create_stream("s/out")
        async with store.stream("s/in").writer(serializer=ORDERS) as writer:
            await writer.write_many([Order(number) for number in range(3)])
        group = await store.reader_group("g", ["s/in"])
        async with group.reader("r", serializer=ORDERS, auto_commit=False) as reader:
            transaction = reader.transaction("s/out", serializer=ORDERS, records=True)
            await transaction.open()
            assert (await reader.read()).value == Order(0)
            await transaction.write(Order(100), b"k")
            await transaction.abort()
            async with reader.transaction("s/out", serializer=ORDERS, records=True) as transaction:
                for number in range(3):
                    event = await reader.read()
                    assert event.value == Order(number)
                    await transaction.write(event.value, b"k", headers={"from": str(event.offset)})
                await transaction.write_many([Order(7)], [b"k"])
                await transaction.write_tombstone(b"k")
                await transaction.flush()
            assert await reader.read(timeout_s=0) is None
            plain = reader.transaction("s/out")
            await plain.open()
            await plain.write("plain")
            await plain.commit()
        async with out.reader(serializer=ORDERS, records=True, until_tail=True) as reader:
            *values, gone, plain = [event async for event in reader]
        assert [event.value.number for event in values] == [0, 1, 2, 7]
        assert (gone.record.value, plain.data) == (None, b"plain")

    in_store(test)


def test_arguments_that_contradict_each_other_are_refused(store):
    store.create_stream("s/in", create_scope=True)
    group = store.reader_group("g", ["s/in"])
    with pytest.raises(InvalidArgumentError):
        group.reader("r", records=True)
    with pytest.raises(InvalidArgumentError):
        group.reader("r", serializer="json")
    with group.reader("r", serializer=ORDERS, auto_commit=False) as reader, pytest.raises(InvalidArgumentError):
        reader.transaction("s/in", records=True)
