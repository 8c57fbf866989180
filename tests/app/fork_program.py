# ruff: noqa: BLE001, ASYNC
"""Forks after each kind of object is in use. The child tries all of them, then ends as programs do; the parent goes on.

Arguments: ``remote`` with an address, or ``embedded`` with a directory. Prints what went wrong, line by line, and "done".
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock.model.errors import ForkedError

warnings.simplefilter(
    "ignore", DeprecationWarning
)  # newer Pythons warn about forks with threads, which this program tests
CHILD_S = 30


def refused(what: str, use: Callable[[], Any]) -> None:
    try:
        got = use()
    except ForkedError as error:
        if "open the store again after the fork" not in str(error):
            print("says nothing helpful:", what, error)
    except BaseException as error:
        print("in the child", what, "raised", repr(error))
    else:
        print("in the child", what, "gave", got)


class OpenObjects:
    """One of each object that a program may hold while it forks, all in use."""

    def __init__(self, store: penstock.Store) -> None:
        self.store = store
        self.stream = store.create_stream("a/s", create_scope=True)
        self.other = store.create_stream("a/t", segments=3)
        self.acknowledged: list[bytes] = []
        self.direct = self.stream.writer()
        self.direct.open()
        for number in range(12):
            self.write(b"before-%d" % number)
        self.lazy = self.stream.writer(linger_s=60.0)
        self.lazy.write(b"lazy-first")
        self.lazy.flush()
        self.lazy.write(b"lazy-pending", "k")
        self.acknowledged += [b"lazy-first", b"lazy-pending"]
        self.unopened = self.stream.writer()
        self.other_writer = self.other.writer()
        self.other_writer.write_many([b"many"] * 1000, [str(number) for number in range(1000)])
        self.reader = self.stream.reader()
        self.first = [bytes(self.reader.read(30).data) for _ in range(3)]
        self.looping = iter(self.stream.reader(until_tail=True))
        self.looped = [bytes(next(self.looping).data)]
        self.group = store.reader_group("a/g", ["a/s"])
        self.member = self.group.reader("one")
        self.member.open()
        self.handed = [bytes(self.member.read(30).data)]
        self.transaction = self.stream.transaction()
        self.transaction.open()
        self.transaction.write(b"transaction-1")
        self.acknowledged.append(b"transaction-1")

    def write(self, event: bytes) -> None:
        self.direct.write(event)
        self.direct.flush()
        self.acknowledged.append(event)

    def in_child(self) -> None:
        self.lists_and_stores()
        for name in ("direct", "lazy", "unopened", "other_writer"):
            writer = getattr(self, name)
            refused(f"{name}.write", lambda w=writer: w.write(b"CHILD"))
            refused(f"{name}.write key", lambda w=writer: w.write(b"CHILD", "key"))
            refused(f"{name}.write_many", lambda w=writer: w.write_many([b"CHILD"] * 100))
            refused(f"{name}.write_arrow", lambda w=writer: w.write_arrow(pa.array([b"CHILD"] * 9)))
            refused(f"{name}.flush", lambda w=writer: w.flush())
            refused(f"{name}.open", lambda w=writer: w.write(b"CHILD" * 3_000_000))
        refused("reader.read", lambda: self.reader.read(5))
        refused("reader.next_block", lambda: self.reader.next_block(5))
        refused("reader's loop", lambda: bytes(next(self.looping).data))
        refused("group reader", lambda: self.member.read(5))
        refused("group reader's loop", lambda: next(iter(self.member)))
        refused("group reader's sync", self.member.sync)
        refused("group", self.group.positions)
        refused("group.checkpoint", self.group.checkpoint)
        refused("transaction.write", lambda: self.transaction.write(b"CHILD"))
        refused("transaction.flush", self.transaction.flush)
        refused("transaction.commit", self.transaction.commit)
        refused("transaction.abort", self.transaction.abort)
        for close in (
            self.direct.close,
            self.lazy.abort,
            self.other_writer.close,
            self.reader.close,
            self.member.close,
        ):
            close()
        self.store.close()

    def lists_and_stores(self) -> None:
        refused("scopes", self.store.scopes)
        refused("describe", self.stream.describe)
        refused("truncate", lambda: self.stream.truncate(penstock.StreamCut(self.stream.name, {})))
        refused("scale", lambda: self.stream.scale(2))
        refused("retention", self.stream.retention.plan)

    def check(self) -> None:
        self.write(b"after")
        self.lazy.flush()
        self.other_writer.flush()
        self.transaction.write(b"transaction-2")
        self.transaction.commit()
        self.acknowledged.append(b"transaction-2")
        while (event := self.reader.read(0.5)) is not None:
            self.first.append(bytes(event.data))
        self.looped += [bytes(event.data) for event in self.looping]
        while (event := self.member.read(0.5)) is not None:
            self.handed.append(bytes(event.data))
        stored = [bytes(event.data) for event in self.stream.reader(until_tail=True)]
        for name, found in (("stored", stored), ("read", self.first), ("handed out", self.handed)):
            if Counter(found) != Counter(self.acknowledged):
                print(
                    name,
                    "differs:",
                    Counter(found) - Counter(self.acknowledged),
                    Counter(self.acknowledged) - Counter(found),
                )
        if self.looped[:12] != [b"before-%d" % number for number in range(12)] or len(set(self.looped)) < len(
            self.looped
        ):
            print("a loop over the forks read", self.looped)
        if sum(1 for _ in self.other.reader(until_tail=True)) != 1000:
            print("events of another stream are missing")
        for thing in (self.direct, self.lazy, self.unopened, self.other_writer, self.reader, self.member):
            thing.close()


def forked(child: Callable[[], Any], *, ends: str) -> None:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(CHILD_S, exit=True)
        try:
            child()
            gc.collect()
        except BaseException as error:
            print("the child failed:", repr(error))
        sys.stdout.flush()
        if ends == "at once":
            os._exit(0)
        raise SystemExit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        print("the child ended with", status)


def connect_in_child(place: str) -> None:
    """If gRPC was used before the fork, no call may hang. The child may open another store."""
    try:
        penstock.connect(place)
    except ForkedError as error:
        if "connect for the first time after the fork" not in str(error):
            print("says nothing helpful:", error)
    else:
        print("connected in the child")
    with tempfile.TemporaryDirectory() as data, penstock.open(data) as own:
        with own.create_stream("c/s", create_scope=True).writer() as writer:
            writer.write(b"child")
        if [bytes(event.data) for event in own.stream("c/s").reader(until_tail=True)] != [b"child"]:
            print("the child's own store does not work")


def main() -> None:
    kind, place = sys.argv[1:3]
    faulthandler.enable()
    store = penstock.connect(place) if kind == "remote" else penstock.open(place)
    world = OpenObjects(store)
    forked(world.in_child, ends="at once")
    world.write(b"between")
    forked(world.in_child, ends="as programs do")
    world.write(b"between-2")
    if kind == "remote":
        forked(lambda: connect_in_child(place), ends="as programs do")
    for number in range(3):
        process = multiprocessing.get_context("fork").Process(target=world.lists_and_stores)
        process.start()
        process.join()
        for again in range(6):
            world.write(b"parent-%d-%d" % (number, again))
    # A child that drops all references, and stays alive while the parent works.
    ready, release = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(CHILD_S, exit=True)
        world.__dict__.clear()
        del store
        gc.collect()
        os.write(ready[1], b"x")
        os.read(release[0], 1)
        raise SystemExit(0)
    os.read(ready[0], 1)
    world.write(b"beside a child")
    world.check()
    store.close()
    os.write(release[1], b"x")
    if os.waitpid(pid, 0)[1]:
        print("the child that lived on failed")
    if kind == "embedded":
        asyncio.run(asynchronous(penstock.open_async(place)))
    else:
        asyncio.run(asynchronous(penstock.connect_async(place)))
    print("done")


async def asynchronous(opening: Any) -> None:
    events = []
    async with opening as store:
        stream = await store.create_stream("a/async", create_scope=True, if_absent=True)
        async with stream.writer(linger_s=30.0) as writer, stream.reader() as reader:
            await writer.write(b"first")
            await writer.flush()
            events.append((await anext(aiter(reader))).data)
            await writer.write(b"pending")
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                faulthandler.dump_traceback_later(CHILD_S, exit=True)
                for what, use in (
                    ("async write", lambda: writer.write(b"CHILD")),
                    ("async flush", writer.flush),
                    ("async read", reader.next_block),
                    ("async describe", stream.describe),
                ):
                    await refused_async(what, use)
                sys.stdout.flush()
                return  # and leaves all blocks, as programs do
            await writer.write(b"beside")
            await writer.flush()
            await asyncio.get_running_loop().run_in_executor(None, waited, pid)
            await writer.write(b"after")
            await writer.flush()
        found = [bytes(event.data) async for event in stream.reader(until_tail=True)]
        if found != [b"first", b"pending", b"beside", b"after"]:
            print("an async store has", found)


def waited(pid: int) -> None:
    if os.waitpid(pid, 0)[1]:
        print("the child of the loop failed")


async def refused_async(what: str, use: Callable[[], Any]) -> None:
    try:
        got = await use()
    except ForkedError:
        return
    except BaseException as error:
        print("in the child", what, "raised", repr(error))
    else:
        print("in the child", what, "gave", got)


if __name__ == "__main__":
    Path(sys.argv[2]).parent.mkdir(parents=True, exist_ok=True) if sys.argv[1] == "embedded" else None
    main()
