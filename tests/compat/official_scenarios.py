"""Scenarios for the official Pravega Python client, each run as a process of its own:

    python official_scenarios.py HOST:PORT SCENARIO

Prints one JSON object with what the client saw.
"""

import asyncio
import json
import math
import os
import sys
import time

import pravega_client

# A reader that is garbage-collected while one of its reads waits at the tail blocks its process for that read's 30 s.
KEPT = []


def read_all(group, expected, name="r1", release=True):
    """Events of a group until ``expected`` have come, as text."""

    async def go():
        reader = group.create_reader(name)
        KEPT.append((group, reader))
        found = []
        while len(found) < expected:
            part = await asyncio.wait_for(reader.get_segment_slice_async(), 40)
            found.extend(bytes(event.data()) for event in part)
            reader.release_segment(part)
        reader.reader_offline()
        return found

    return asyncio.run(go())


def scopes_and_streams(manager):
    made = manager.create_scope("admin")
    again = manager.create_scope("admin")
    scaling = pravega_client.StreamScalingPolicy.fixed_scaling_policy(3)
    retention = pravega_client.StreamRetentionPolicy.by_size(10_000)
    created = manager.create_stream_with_policy("admin", "tagged", scaling, retention, ["t1", "t2"])
    duplicate = manager.create_stream("admin", "tagged", 1)
    repeated = manager.create_stream_with_policy("admin", "repeated", scaling, retention, ["t2", "t1", "t2"])
    tags_repeated = manager.get_stream_tags("admin", "repeated")
    manager.create_stream("admin", "untagged", 1)
    tags_none = manager.get_stream_tags("admin", "untagged")
    manager.update_stream_with_policy("admin", "repeated", scaling, retention, ["t4", "t4"])
    tags_updated = manager.get_stream_tags("admin", "repeated")
    for name in ("repeated", "untagged"):
        manager.seal_stream("admin", name)
        manager.delete_stream("admin", name)
    dot = {"created": manager.create_stream("admin", ".", 1)}
    stream = manager.create_byte_stream("admin", ".")
    stream.write(b"in a dot")
    stream.flush()
    room = bytearray(8)
    stream.readinto(room)
    dot |= {"read": room.decode(), "listed": "." in manager.list_stream("admin")}
    dot |= {"sealed": manager.seal_stream("admin", "."), "deleted": manager.delete_stream("admin", ".")}
    tags = manager.get_stream_tags("admin", "tagged")
    updated = manager.update_stream_with_policy(
        scope_name="admin",
        stream_name="tagged",
        scaling_policy=scaling,
        retention_policy=pravega_client.StreamRetentionPolicy.by_time(60_000),
        tags=["t3"],
    )
    tags_after = manager.get_stream_tags("admin", "tagged")
    for number in range(5):
        manager.create_stream("admin", f"s{number}", 1)
    streams = sorted(manager.list_stream("admin"))
    sealed = manager.seal_stream("admin", "s0")
    deleted = manager.delete_stream("admin", "s0")
    manager.create_scope("empty")
    gone = manager.delete_scope("empty")
    return {
        "made": made,
        "again": again,
        "created": created,
        "duplicate": duplicate,
        "tags": tags,
        "dot": dot,
        "repeated": repeated,
        "tags_repeated": tags_repeated,
        "tags_none": tags_none,
        "tags_updated": tags_updated,
        "updated": updated,
        "tags_after": tags_after,
        "streams": streams,
        "sealed": sealed,
        "deleted": deleted,
        "gone": gone,
        "scopes": sorted(manager.list_scope()),
        "after": sorted(manager.list_stream("admin")),
    }


def events(manager):
    manager.create_scope("ev")
    manager.create_stream("ev", "st", 3)
    writer = manager.create_writer("ev", "st")
    for number in range(300):
        writer.write_event(f"k{number % 7}:{number}", routing_key=f"k{number % 7}")
    writer.flush()
    big = bytes(range(256)) * (9 * 4096)
    writer.write_event_bytes(big, routing_key="big")
    writer.flush()
    found = read_all(manager.create_reader_group("rg", "ev", "st"), 301)
    texts = [item.decode() for item in found if len(item) < 100]
    return {
        "count": len(found),
        "unique": len(set(found)),
        "big": sum(item == big for item in found),
        "ordered": all(
            [int(item.split(":")[1]) for item in texts if item.startswith(f"k{key}:")] == list(range(key, 300, 7))
            for key in range(7)
        ),
    }


def transactions(manager):
    manager.create_scope("tx")
    manager.create_stream("tx", "st", 2)
    writer = manager.create_transaction_writer("tx", "st", 17)
    committed = writer.begin_txn()
    for number in range(20):
        committed.write_event(f"c{number}", routing_key=str(number))
    opened = committed.is_open()
    committed.commit()
    aborted = writer.begin_txn()
    aborted.write_event("never", routing_key="1")
    aborted.abort()
    again = writer.begin_txn()
    same = writer.get_txn(again.get_txn_id())
    again.write_event("last", routing_key="1")
    again.commit()
    found = [item.decode() for item in read_all(manager.create_reader_group("rg", "tx", "st"), 21)]
    return {
        "opened": opened,
        "open_after": committed.is_open(),
        "same": same.get_txn_id() == again.get_txn_id(),
        "found": sorted(found),
    }


def byte_stream(manager):
    manager.create_scope("by")
    manager.create_stream("by", "st", 1)
    stream = manager.create_byte_stream("by", "st")
    written = stream.write(b"hello, bytes" * 1000)
    stream.flush()
    head, tail = stream.current_head_offset(), stream.current_tail_offset()
    room = bytearray(12)
    stream.seek(12, 0)
    got = stream.readinto(room)
    stream.truncate(24)
    stream.truncate(24)
    try:
        stream.truncate(12)
        backwards = "nothing was raised"
    except OSError as error:
        backwards = str(error)
    return {
        "backwards": backwards,
        "written": written,
        "head": head,
        "tail": tail,
        "got": got,
        "bytes": bytes(room).decode(),
        "head_after": stream.current_head_offset(),
        "tell": stream.tell(),
    }


def reader_groups(manager):
    manager.create_scope("rg")
    manager.create_stream("rg", "a", 2)
    manager.create_stream("rg", "b", 1)
    for name in ("a", "b"):
        writer = manager.create_writer("rg", name)
        for number in range(100):
            writer.write_event(f"{name}{number}", routing_key=str(number))
        writer.flush()
    config = pravega_client.StreamReaderGroupConfig(False, "rg", "a", "b")
    found = read_all(manager.create_reader_group_with_config("both", "rg", config), 200)
    group = manager.create_reader_group("cut", "rg", "a")
    first = read_all(group, 100)
    cut = group.get_streamcut()
    manager.delete_reader_group("cut", "rg")
    again = read_all(manager.create_reader_group("cut", "rg", "a"), 100, name="r2")
    return {
        "both": len(set(found)),
        "first": len(set(first)),
        "cut": str(cut),
        "again": len(set(again)),
    }


def asynchronous_writes(manager):
    """Written in a loop, first awaited one by one, then many in flight."""
    manager.create_scope("as")
    manager.create_stream("as", "st", 2)

    async def go():
        writer = manager.create_writer("as", "st", 50)
        for number in range(20):
            await writer.write_event_async(f"a{number}", routing_key="a")
        await asyncio.gather(
            *(writer.write_event_async(f"b{number}", routing_key=str(number)) for number in range(200))
        )
        writer.flush()

    asyncio.run(go())
    texts = [item.decode() for item in read_all(manager.create_reader_group("rg", "as", "st"), 220)]
    return {
        "count": len(texts),
        "unique": len(set(texts)),
        "ordered": [item for item in texts if item[0] == "a"] == [f"a{number}" for number in range(20)],
    }


def transactions_with_timestamps(manager):
    manager.create_scope("ts")
    manager.create_stream("ts", "st", 2)
    writer = manager.create_transaction_writer("ts", "st", 18)
    states = []
    for number in range(3):
        transaction = writer.begin_txn()
        transaction.write_event_bytes(b"t%d" % number, routing_key=str(number))
        transaction.commit_timestamp(1_700_000_000_000 + number)
        states.append(transaction.is_open())
    found = sorted(item.decode() for item in read_all(manager.create_reader_group("rg", "ts", "st"), 3))
    return {"open": states, "found": found}


def scaling_policies(manager):
    """Streams that scale by themselves, by rate of events and of data, written and read, and changed to each other."""
    manager.create_scope("au")
    policy = pravega_client.StreamScalingPolicy
    keep = pravega_client.StreamRetentionPolicy.none()
    by_events = policy.auto_scaling_policy_by_event_rate(100, 2, 2)
    by_data = policy.auto_scaling_policy_by_data_rate(1000, 3, 1)
    made = [
        manager.create_stream_with_policy("au", "events", by_events, keep, []),
        manager.create_stream_with_policy("au", "data", by_data, keep, None),
    ]
    counts = {}
    for name in ("events", "data"):
        writer = manager.create_writer("au", name)
        for number in range(50):
            writer.write_event(f"{number}", routing_key=str(number))
        writer.flush()
        counts[name] = len(set(read_all(manager.create_reader_group(f"rg-{name}", "au", name), 50)))
    changed = manager.update_stream_with_policy(
        scope_name="au", stream_name="events", scaling_policy=by_data, retention_policy=keep, tags=["t"]
    )
    return {"made": made, "counts": counts, "changed": changed}


def scaling(manager):
    """Writes 2,000 events of 10 keys while its parent scales the stream at each line that it prints, then reads them."""
    writer = manager.create_writer("scaled", "st")
    for number in range(2000):
        writer.write_event(f"k{number % 10}:{number}", routing_key=f"k{number % 10}")
        if number % 500 == 250:
            writer.flush()
            print(json.dumps({"written": number}), flush=True)
            sys.stdin.readline()
    writer.flush()
    texts = [item.decode() for item in read_all(manager.create_reader_group("rg", "scaled", "st"), 2000)]
    return {
        "count": len(texts),
        "unique": len(set(texts)),
        "ordered": all(
            [int(item.split(":")[1]) for item in texts if item.startswith(f"k{key}:")] == list(range(key, 2000, 10))
            for key in range(10)
        ),
    }


def scaling_by_rate(manager):
    """Writes 200 events of 20 keys for each line "go" that it reads; then reads all of them."""
    writer, written = manager.create_writer("rated", "st"), 0
    while sys.stdin.readline().strip() == "go":
        for number in range(written, written + 200):
            writer.write_event(f"k{number % 20}:{number}", routing_key=f"k{number % 20}")
        writer.flush()
        written += 200
        print(json.dumps({"written": written}), flush=True)
    texts = [item.decode() for item in read_all(manager.create_reader_group("rg", "rated", "st"), written)]
    return {
        "count": len(texts),
        "unique": len(set(texts)),
        "ordered": all(
            [int(item.split(":")[1]) for item in texts if item.startswith(f"k{key}:")] == list(range(key, written, 20))
            for key in range(20)
        ),
    }


def crowd_writer(manager):
    """Writes with a load that doubles each second, as the first line says; writes the last events after the second."""
    scope, doublings, count, last = sys.stdin.readline().split()
    doublings, count, last = int(doublings), int(count), int(last)
    writer = manager.create_writer(scope, "st")

    def write(begin, end):
        for number in range(begin, end):
            key = f"official.k{number % 50}"
            writer.write_event(f"{key}:{number}", routing_key=key)
        return max(begin, end)

    written, began_s = 0, time.monotonic()
    while written < count:
        seconds = time.monotonic() - began_s
        grown = min(seconds, doublings)
        due = (2**grown - 1) / math.log(2) + (seconds - grown) * 2**doublings
        written = write(written, min(count, int(due)))
        time.sleep(0.02)
    writer.flush()
    print(json.dumps({"written": written}), flush=True)
    sys.stdin.readline()
    write(count, count + last)
    writer.flush()
    return {"written": count + last}


def crowd_reader(manager):
    """Reads as many events as the first line says, however long that takes."""
    scope, expected = sys.stdin.readline().split()
    reader = manager.create_reader_group("official", scope, "st").create_reader("r1")
    KEPT.append(reader)

    async def go():
        found = []
        while len(found) < int(expected):
            part = await reader.get_segment_slice_async()
            found.extend(bytes(event.data()).decode() for event in part)
            reader.release_segment(part)
        return found

    return {"found": asyncio.run(go())}


def rolling_transactions(manager):
    """Three transactions that stay open over the scales of its parent, one for each line that it prints."""
    plain, writer = manager.create_writer("rolled", "st"), manager.create_transaction_writer("rolled", "st", 19)
    places, opened = (1000, 2000, 0), []

    def write(transaction, start, count):
        for number in range(start, start + count):
            transaction.write_event(f"t{number % 5}:{number}", routing_key=f"t{number % 5}")

    for number, place in enumerate(places):
        opened.append(writer.begin_txn())
        write(opened[-1], place, 10)
        for event in range(number * 20, number * 20 + 20):
            plain.write_event(f"k{event % 5}:{event}", routing_key=f"k{event % 5}")
        plain.flush()
        print(json.dumps({"scale": number}), flush=True)
        sys.stdin.readline()
        for earlier, transaction in enumerate(opened):
            write(transaction, places[earlier] + 10 + (number - earlier) * 10, 10)
    still_open = [transaction.is_open() for transaction in opened]
    # The numbers of the events follow the order of the commits.
    for index in (2, 0, 1):
        opened[index].commit()
    expected = 60 + 3 * 10 + (1 + 2 + 3) * 10
    texts = [item.decode() for item in read_all(manager.create_reader_group("rg", "rolled", "st"), expected)]
    keys = {item.split(":")[0] for item in texts}
    numbers = {key: [int(item.split(":")[1]) for item in texts if item.startswith(f"{key}:")] for key in keys}
    return {
        "open": still_open,
        "complete": len(texts) == len(set(texts)) == expected,
        "ordered": all(found == sorted(found) for found in numbers.values()),
    }


def audit(manager):
    """Deletes a stream with data in it, then reads what the store's audit stream tells of it."""
    manager.create_scope("au")
    manager.create_stream("au", "gone", 1)
    writer = manager.create_writer("au", "gone")
    writer.write_event("x" * 100)
    writer.flush()
    manager.seal_stream("au", "gone")
    manager.delete_stream("au", "gone")
    group = manager.create_reader_group("readers", "_system", "audit")
    found = []
    while not found or found[-1]["target"] != "au/gone":
        found += [json.loads(event) for event in read_all(group, 1, name=f"r{len(found)}")]
    return {"kind": found[-1]["kind"], "bytes": found[-1]["bytes"], "events": found[-1]["events"]}


def inside_a_merge(manager):
    """All that a group gets within ten seconds, having begun at the head."""
    reader = manager.create_reader_group("inside", "merge", "st").create_reader("r1")
    found = []

    async def go():
        while True:
            part = await reader.get_segment_slice_async()
            found.extend(bytes(event.data()).decode() for event in part)
            reader.release_segment(part)

    try:
        asyncio.run(asyncio.wait_for(go(), 10))
    except TimeoutError:
        KEPT.append(reader)
    return {"found": found}


def main():
    address, scenario = sys.argv[1:3]
    manager = pravega_client.StreamManager(f"tcp://{address}", False, False)
    print(json.dumps(globals()[scenario](manager)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
