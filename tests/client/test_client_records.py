"""Records through writers and readers: the key routes, plain events are refused one by one, nothing stops a reader."""

from __future__ import annotations

import pytest
from client_world import open_services, simulate

from penstock.client.blocking.stores import Store
from penstock.codec.records import encode_record
from penstock.model.errors import InvalidArgumentError, NotARecordError
from penstock.model.records import Record
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

RECORDS = [
    Record(f"value {number}", key=f"user-{number % 7}", headers={"n": str(number)}, timestamp_ms=number)
    for number in range(40)
]


@pytest.fixture
def stream():
    with Store(lambda: open_services(RealClock(), RealRng())) as store:
        yield store.create_stream("s/t", segments=4, create_scope=True)


def places(stream):
    """Records in the order in which they are read, and the segments that hold each key."""
    with stream.reader(until_tail=True) as reader:
        events = list(reader)
    found: dict[bytes | None, set[int]] = {}
    for event in events:
        found.setdefault(event.record.key, set()).add(event.segment)
    return [event.record for event in events], found


@pytest.mark.parametrize("way", ["write", "write_many", "transaction", "transaction_many"])
def test_records_are_routed_by_their_keys_and_come_back(stream, way):
    target = stream.transaction() if way.startswith("transaction") else stream.writer()
    with target:
        if way.endswith("many"):
            target.write_many(RECORDS)
        else:
            for record in RECORDS:
                target.write(record)
    found, segments = places(stream)
    assert sorted(found, key=lambda record: record.timestamp_ms) == RECORDS
    assert all(len(places) == 1 for places in segments.values())
    assert len({next(iter(places)) for places in segments.values()}) > 1
    for key in segments:
        assert [one for one in found if one.key == key] == [one for one in RECORDS if one.key == key]


def test_a_routing_key_that_is_given_beats_the_key_of_the_record(stream):
    with stream.writer() as writer:
        for record in RECORDS[:20]:
            writer.write(record, key="all together")
        writer.write_many(RECORDS[20:], ["all together"] * 20)
    _, segments = places(stream)
    assert len(set.union(*segments.values())) == 1


def test_records_and_plain_events_mix_in_one_call(stream):
    mixed = ["plain", RECORDS[0], b"bytes", Record("keyless")]
    with stream.writer() as writer:
        writer.write_many(mixed)
        writer.write_many(mixed, ["k", None, "k", "k"])
        with pytest.raises(InvalidArgumentError):
            writer.write_many([*mixed, 7])
        with pytest.raises(InvalidArgumentError):
            writer.write_many(mixed, ["k"])
    with stream.reader(until_tail=True) as reader:
        assert sorted(event.data for event in reader) == sorted(
            2 * [b"plain", b"bytes", encode_record(RECORDS[0]), encode_record(Record("keyless"))]
        )


def test_a_plain_event_is_a_typed_error_and_the_reader_goes_on(stream):
    with stream.writer() as writer:
        for event in (RECORDS[0], "plain", RECORDS[1]):
            writer.write(event, key="k")
    seen = []
    with stream.reader(until_tail=True) as reader:
        for event in reader:
            try:
                seen.append(event.record)
            except NotARecordError as error:
                seen.append((event.data, error.fields))
    assert seen == [RECORDS[0], (b"plain", {"size_bytes": 5, "begins": b"plain".hex()}), RECORDS[1]]


def test_asynchronous_writers_and_transactions_take_records_too():
    async def test(world):
        stream = await world.store.create_stream("s/t", segments=3, create_scope=True)
        async with stream.writer() as writer:
            await writer.write(RECORDS[0])
            await writer.write_many(RECORDS[1:10])
        async with stream.transaction() as transaction:
            await transaction.write(RECORDS[10])
            await transaction.write_many(RECORDS[11:])
        async with stream.reader(until_tail=True) as reader:
            found = [event.record async for event in reader]
        for key in {record.key for record in RECORDS}:
            assert [one for one in found if one.key == key] == [one for one in RECORDS if one.key == key]

    simulate(test)
