"""Laws of options: a number or text that no call can use is refused with its name, before anything is done with it."""

from __future__ import annotations

import asyncio
import inspect
import math
from dataclasses import fields

import pytest
from client_world import open_services
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
import penstock.client
from penstock.client.blocking.stores import Store
from penstock.client.writing.settings import WriterSettings
from penstock.model.cuts import ENDS
from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng


@pytest.fixture(scope="module")
def store():
    with Store(lambda: open_services(RealClock(), RealRng())) as opened:
        made = opened.create_stream("a/s", create_scope=True, tags=["kept"])
        with made.writer() as writer:
            writer.write_many([b"1", b"2", b"3"])
        opened.reader_group("a/g", ["a/s"], retention="manual")
        yield opened


def in_group(store, **options):
    return store.reader_group("a/new", ["a/s"], **options)


def in_transaction(store, act):
    with store.stream("a/s").transaction() as txn:
        act(txn)


def in_async_transaction(store, act):
    async def work(inner):
        async with inner.stream("a/s").transaction() as txn:
            await act(txn)

    store.call(work)


def reading(store, timeout_s):
    with store.stream("a/s").reader() as reader:
        return reader.next_block(timeout_s)


def waiting(store, timeout_s):
    with store.stream("a/s").reader() as reader:
        return reader.wait_block(timeout_s)


def reading_one(store, timeout_s):
    with store.stream("a/s").reader() as reader:
        return reader.read(timeout_s)


async def connected(dial_s):
    async with penstock.connect_async("localhost:1", dial_s=dial_s):
        pass


SECONDS = {
    "reader_group lease_s": lambda store, value: in_group(store, lease_s=value),
    "reader_group refresh_s": lambda store, value: in_group(store, refresh_s=value),
    "reader_group checkpoint_interval_s": lambda store, value: in_group(store, checkpoint_interval_s=value),
    "open_reader_group lease_s": lambda store, value: store.open_reader_group("a/g", lease_s=value),
    "open_reader_group refresh_s": lambda store, value: store.open_reader_group("a/g", refresh_s=value),
    "reset_reader_group lease_s": lambda store, value: store.reset_reader_group("a/g", "tail", lease_s=value),
    "checkpoint deadline_s": lambda store, value: store.open_reader_group("a/g").checkpoint(deadline_s=value),
    "transaction lease_s": lambda store, value: store.stream("a/s").transaction(lease_s=value),
    "commit deadline_s": lambda store, value: in_async_transaction(store, lambda txn: txn.commit(deadline_s=value)),
    "abort deadline_s": lambda store, value: in_async_transaction(store, lambda txn: txn.abort(deadline_s=value)),
    "next_block timeout_s": reading,
    "read timeout_s": reading_one,
    "wait_block timeout_s": waiting,
    "connect dial_s": lambda store, value: penstock.connect("localhost:1", dial_s=value),
    "connect_async dial_s": lambda store, value: asyncio.run(connected(value)),
    **{
        f"writer {item.name}": lambda store, value, name=item.name: store.stream("a/s").writer(**{name: value})
        for item in fields(WriterSettings)
    },
}  # fmt: skip


def in_writer(store, event):
    with store.stream("a/s").writer() as writer:
        writer.write(event)


def many(store, events):
    with store.stream("a/s").writer() as writer:
        writer.write_many(events)


TEXTS = {
    "event": in_writer,
    "events": lambda store, value: many(store, ["good", value]),
    "transaction event": lambda store, value: in_transaction(store, lambda txn: txn.write(value)),
    "tags": lambda store, value: store.create_stream("a/new", tags=["good", value]),
    "update tags": lambda store, value: store.stream("a/s").update(tags=[value]),
    "listed tag": lambda store, value: store.streams("a", tag=value),
    "scope": lambda store, value: store.create_scope(value),
    "stream": lambda store, value: store.create_stream(f"a/{value}"),
    "group": lambda store, value: store.reader_group(f"a/{value}", ["a/s"]),
    "reader": lambda store, value: store.open_reader_group("a/g").reader(value),
    "removed reader": lambda store, value: store.open_reader_group("a/g").remove_reader(value),
    "subscriber": lambda store, value: store.stream("a/s").set_acknowledged(value, "tail"),
    "removed subscriber": lambda store, value: store.stream("a/s").remove_subscriber(value),
    "reset group": lambda store, value: store.reset_reader_group(f"a/{value}", "tail"),
    "hold owner": lambda store, value: store.holds("a/s").add(owner=value, reason="r"),
    "hold reason": lambda store, value: store.holds("a/s").add(owner="o", reason=value),
    "hold id": lambda store, value: store.holds("a/s").add(owner="o", reason="r", hold_id=value),
    "erase who": lambda store, value: store.stream("a/s").erase({0: [0]}, who=value, why="w"),
    "erase why": lambda store, value: store.stream("a/s").erase({0: [0]}, who="w", why=value),
}  # fmt: skip


def seen(store):
    stream = store.stream("a/s")
    return (
        store.scopes(),
        store.streams("a"),
        list(store.reader_groups("a")),
        stream.tail(),
        stream.config(),
        [(item.name, item.cut) for item in stream.subscribers()],
        list(store.holds("a/s").list()),
    )


def check_refused(store, call, value):
    before = seen(store)
    with pytest.raises(InvalidArgumentError) as caught:
        call(store, value)
    assert caught.value.fields
    str(caught.value).encode()  # The error itself can be printed and logged.
    assert seen(store) == before


NOT_NUMBERS = [math.nan, math.inf, -math.inf, -1e300, True, "1", b"1", [1.0], 10**400, 1e300]


@pytest.mark.parametrize("what", SECONDS)
@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1.0], ids=lambda value: repr(value)[:8])
def test_a_number_that_no_call_can_use_is_refused_with_its_name(store, what, value):
    if value == -1.0 and "timeout_s" in what:
        return  # The time left of one that has passed: nobody waits.
    check_refused(store, SECONDS[what], value)


def test_the_table_of_numbers_has_every_time_that_the_public_api_takes():
    found = {f"{name} dial_s" for name in ("connect", "connect_async")}
    for kind in (getattr(penstock.client, name) for name in penstock.client.__all__):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                options = inspect.signature(method).parameters
                found |= {f"{name} {option}" for option in options if option.endswith("_s")}
    found.remove("commit_with deadline_s")  # only a group transaction calls it, which has checked the number
    assert found == {what for what in SECONDS if not what.startswith("writer ")}


halves = st.builds(
    lambda before, half, after: before + chr(half) + after,
    st.text("ab", max_size=3), st.integers(0xD800, 0xDFFF), st.text("ab", max_size=3),
)  # fmt: skip


@pytest.mark.parametrize("what", TEXTS)
@settings(max_examples=5, deadline=None)
@given(value=halves)
def test_half_of_a_surrogate_pair_is_refused_wherever_text_is_taken(store, what, value):
    check_refused(store, TEXTS[what], value)


@pytest.mark.parametrize("word", ENDS)
def test_every_call_that_takes_a_position_takes_each_word_for_the_ends(store, word):
    stream = store.stream("a/s")
    events = 3 if ENDS[word] == "head" else 0
    with stream.reader(start=word, until_tail=True) as reader:
        assert len(list(reader)) == events
    if ENDS[word] == "tail":
        with stream.reader(start="earliest", end=word) as reader:
            assert len(list(reader)) == 3
    else:
        with pytest.raises(InvalidArgumentError, match="end must be None"):
            stream.reader(end=word)
    for start in (word, {"a/s": word}):
        store.reader_group(f"a/{word}", ["a/s"], retention="manual", start=start)
    assert stream.set_acknowledged(f"a/{word}", word, dry_run=True).bytes == 0
    assert [item["bytes"] for item in store.reset_reader_group(f"a/{word}", word, dry_run=True)] == [0]
