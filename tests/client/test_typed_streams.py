"""Typed writers and readers: values come back, one bad event or a silent registry stops nothing, refused values write nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from client_world import open_services
from registry_world import reads, serving_registry

import penstock
from penstock.client.blocking.stores import Store
from penstock.client.store import AsyncStore
from penstock.model.errors import (
    DecodeError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    NotARecordError,
    SchemaRegistryUnavailableError,
)
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]}
REFUSED = {**SCHEMA, "fields": [{"name": "number", "type": "string"}]}


class Order(msgspec.Struct, frozen=True):
    number: int


ORDERS = [Order(number=number) for number in range(20)]


@pytest.fixture
def stream():
    with Store(lambda: open_services(RealClock(), RealRng())) as store:
        yield store.create_stream("s/t", segments=3, create_scope=True)


def of_stream(test):
    """Run a coroutine on an asynchronous stream of its own."""

    async def main():
        async with open_services(RealClock(), RealRng()) as (segments, controller):
            store = AsyncStore(segments, controller, RealClock(), RealRng())
            await test(await store.create_stream("s/t", segments=3, create_scope=True))

    asyncio.run(main())


@pytest.mark.parametrize("records", [False, True])
def test_values_come_back_in_order_per_key(stream, records):
    serializer = penstock.AvroSerializer(SCHEMA, Order, registry=penstock.MemorySchemaRegistry(), subject="s")
    with stream.writer(serializer=serializer, records=records) as writer:
        for order in ORDERS[:5]:
            writer.write(order, f"k{order.number % 2}")
        writer.write_many(ORDERS[5:], [f"k{order.number % 2}" for order in ORDERS[5:]])
    with stream.reader(serializer=serializer, records=records, until_tail=True) as reader:
        found = [event.value for event in reader]
        assert reader.position() == stream.tail()
    assert sorted(found, key=lambda order: order.number) == ORDERS
    for rest in (0, 1):
        assert [order for order in found if order.number % 2 == rest] == ORDERS[rest::2]


def test_records_of_values_have_keys_headers_times_and_tombstones(stream):
    with stream.writer(serializer=penstock.TextSerializer(), records=True) as writer:
        writer.write("one", b"\xff", headers={"a": "1"}, timestamp_ms=5)
        writer.write_tombstone(b"\xff")
    with stream.reader(serializer=penstock.TextSerializer(), records=True, until_tail=True) as reader:
        one, gone = reader
        assert one.value == "one"
        assert one.record == penstock.Record("one", key=b"\xff", headers={"a": "1"}, timestamp_ms=5)
        assert gone.record == penstock.Record(None, key=b"\xff")
        with pytest.raises(DecodeError):
            _ = gone.value


def test_events_of_another_form_stop_nothing(stream):
    with stream.writer() as writer:
        for event in (penstock.Record('{"number": 1}', key="k"), '{"number": 2}', penstock.Record("x", key="k")):
            writer.write(event, "k")
    for records, wanted in ((True, [1, NotARecordError, DecodeError]), (False, [DecodeError, 2, DecodeError])):
        found = []
        with stream.reader(serializer=penstock.JsonSerializer(Order), records=records, until_tail=True) as reader:
            for event in reader:
                try:
                    found.append(event.value.number)
                except DecodeError as error:
                    found.append(type(error))
        assert found == wanted


def test_refused_values_and_schemas_write_nothing(stream):
    registry = penstock.MemorySchemaRegistry(reads)
    good, bad = (penstock.AvroSerializer(schema, registry=registry, subject="s") for schema in (SCHEMA, REFUSED))
    with stream.writer(serializer=good) as writer:
        writer.write({"number": 1}, "k")
        with pytest.raises(InvalidArgumentError):
            writer.write({"number": "x"}, "k")
        with pytest.raises(InvalidArgumentError):
            writer.write_many([{"number": 2}, {"number": "x"}], ["k", "k"])
        with pytest.raises(InvalidArgumentError):
            writer.write({"number": 2}, headers={"a": "1"})
        with pytest.raises(InvalidArgumentError):
            writer.write({"number": 2}, b"bytes")
        with pytest.raises(InvalidArgumentError):
            writer.write_tombstone("k")
    with stream.writer(serializer=bad) as writer, pytest.raises(IncompatibleSchemaError):
        writer.write({"number": "x"})
    with stream.reader(serializer=good, until_tail=True) as reader:
        assert [event.value for event in reader] == [{"number": 1}]


def test_arguments_that_contradict_each_other_are_refused(stream):
    with pytest.raises(InvalidArgumentError):
        stream.writer(records=True)
    with pytest.raises(InvalidArgumentError):
        stream.reader(records=True)
    with pytest.raises(InvalidArgumentError):
        stream.reader(serializer="json")


def serializer_for(stub):
    registry = penstock.ConfluentSchemaRegistry(stub.url, retries=0)
    return penstock.AvroSerializer(SCHEMA, registry=registry, subject="s")


def test_a_registry_that_is_down_holds_the_event_back_and_skips_none(stream):
    with serving_registry() as stub:
        with stream.writer(serializer=serializer_for(stub)) as writer:
            stub.faults[:] = [503]
            with pytest.raises(SchemaRegistryUnavailableError):
                writer.write({"number": 0}, "k")
            writer.write_many([{"number": 1}, {"number": 2}], ["k", "k"])
        stub.faults[:] = [503, None]
        with stream.reader(serializer=serializer_for(stub), until_tail=True) as reader:
            for _ in range(2):
                with pytest.raises(SchemaRegistryUnavailableError):
                    reader.read()
            assert [event.value["number"] for event in reader] == [1, 2]
        assert stub.asked.count("GET /schemas/ids/1") == 3


def test_asynchronous_streams_ask_the_registry_beside_the_loop():
    async def test(stream):
        async with stream.writer(serializer=serializer_for(stub), records=True) as writer:
            stub.faults[:] = [503]
            with pytest.raises(SchemaRegistryUnavailableError):
                await writer.write({"number": 0}, "k")
            await writer.write({"number": 1}, "k", headers={"a": "1"})
            await writer.write_many([{"number": 2}, {"number": 3}], ["k", "k"])
            await writer.write_tombstone("k")
            with pytest.raises(InvalidArgumentError):
                await writer.write({"number": "x"})
        stub.faults[:] = [503]
        async with stream.reader(serializer=serializer_for(stub), records=True, until_tail=True) as reader:
            with pytest.raises(SchemaRegistryUnavailableError):
                await reader.read()
            found = [event async for event in reader]
        assert [event.value["number"] for event in found[:3]] == [1, 2, 3]
        assert found[0].record.header("a") == b"1"
        assert found[3].record.value is None

    with serving_registry() as stub:
        of_stream(test)


def test_an_unknown_schema_is_an_error_of_its_event_alone(stream):
    serializer = penstock.AvroSerializer(SCHEMA, registry=penstock.MemorySchemaRegistry(), subject="s")
    with stream.writer() as writer:
        writer.write_many([b"\0\0\0\0\x09\2", serializer.encode({"number": 1})], ["k", "k"])
    with stream.reader(serializer=serializer, until_tail=True) as reader:
        unknown, known = reader
        with pytest.raises(DecodeError):
            _ = unknown.value
        assert known.value == {"number": 1}
