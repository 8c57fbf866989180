"""Random lives of a store that erases while others run, delete, truncate, scale, lease, hold, fail and close.

The law: a receipt that verifies means that no file of the store holds a byte of what was asked for. An erasure that holds
defer, or that was withdrawn, has no receipt, and readers find all of its events.
More of them: ``python tests/app/erasure_histories.py FIRST_SEED COUNT``.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import penstock
from penstock.client.blocking.stores import Store, Stream
from penstock.client.erasure import by_segment
from penstock.client.reading.blocks import Event
from penstock.core.segments.erasure_receipt import positions_digest
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    ErasureDeferredError,
    InvalidArgumentError,
    PenstockError,
    StreamNotFoundError,
    TruncatedError,
)
from penstock.model.ledgers import LogWipe
from penstock.model.segments import KeyRange

STREAM = "s/t"
STEPS = 12

NEEDLE = re.compile(rb"SECRET[0-9]{6}\|")
"""What each event begins with, and no other has."""

REFUSALS = (AlreadyExistsError, TruncatedError, StreamNotFoundError, InvalidArgumentError)
"""What a run may meet that comes second: another request, and a stream that was truncated or deleted meanwhile."""


class Gate:
    """Holds each call of an erasure on a segment, and the wipe of the log, until it is opened; then some fail."""

    def __init__(self, store: Store, failures: int) -> None:
        self._segments: Any = store._inner.segments
        self._real = self._segments.erase, self._segments.wipe_log
        self._failures = failures
        self.reached, self._open = threading.Event(), threading.Event()
        self._segments.erase, self._segments.wipe_log = self._erase, self._wipe_log

    async def _erase(self, *args: Any, **named: Any) -> Any:
        await self._wait()
        found = await self._real[0](*args, **named)
        self._fail()
        return found

    async def _wipe_log(self) -> LogWipe:
        self._fail()
        return await self._real[1]()

    async def _wait(self) -> None:
        self.reached.set()
        await asyncio.to_thread(self._open.wait, 60)

    def _fail(self) -> None:
        if self._failures:
            self._failures -= 1
            raise OSError("the disk is away")

    def open(self) -> None:
        self._open.set()


class Life:
    def __init__(self, data: Path, seed: int) -> None:
        self._data = data
        self._rng = random.Random(seed)
        self._count = 0
        self._erasures = 0
        self.problems: list[str] = []
        self.receipts = 0
        self.deferrals = 0
        self._gone: dict[bytes, str] = {}
        self._store = penstock.open(data)
        self._store.create_stream(STREAM, segments=1, create_scope=True)

    def _stream(self) -> Stream:
        return self._store.stream(STREAM)

    def close(self) -> None:
        self._store.close()

    def run(self) -> None:
        self._write()
        steps = [self._write, self._write, self._scale, self._truncate, self._lease, self._reopen]
        for _ in range(STEPS):
            self._rng.choice([*steps, self._erase, self._erase, self._erase])()
        self._erase()
        self._reopen()
        self._scan()

    def _write(self) -> None:
        with self._stream().writer() as writer:
            for _ in range(self._rng.choice([5, 60, 500])):
                size = self._rng.choice([0, 1, 30, 300, 3000])
                writer.write(b"SECRET%06d|" % self._count + b"x" * size, key=str(self._rng.randrange(40)))
                self._count += 1

    def _events(self) -> list[Event]:
        with self._stream().reader(until_tail=True) as reader:
            return list(reader)

    def _scale(self) -> None:
        ranges = sorted(self._stream().describe().segments, key=lambda item: item.keys.low)
        if len(ranges) > 1 and self._rng.random() < 0.5:
            one, two = ranges[:2]
            self._stream().scale(
                sealed=[one.segment, two.segment], new_ranges=[KeyRange(low=one.keys.low, high=two.keys.high)]
            )
            return
        chosen = self._rng.choice(ranges)
        middle = (chosen.keys.low + chosen.keys.high) / 2
        halves = [KeyRange(low=chosen.keys.low, high=middle), KeyRange(low=middle, high=chosen.keys.high)]
        self._stream().scale(sealed=[chosen.segment], new_ranges=halves)

    def _truncate(self) -> None:
        head, events = self._stream().head(), self._events()
        if self._rng.random() < 0.3:
            self._stream().truncate(self._stream().tail())
            return
        cut = dict(head.positions)
        for segment in cut:
            offsets = [event.offset for event in events if event.segment == segment]
            if offsets:
                cut[segment] = self._rng.choice(offsets)
        self._stream().truncate(StreamCut(head.stream, cut))

    def _lease(self) -> None:
        until_ms = int(time.time() * 1000) + 600_000
        lease = UUID(int=self._rng.getrandbits(120))
        for item in self._stream().describe().segments:
            name = f"{STREAM}/{item.segment & 0xFFFFFFFF}.#epoch.{item.segment >> 32}"
            call = self._store._inner.segments.lease_chunks([name], lease, until_ms=until_ms, holder="spark")
            self._store._thread.call(call)

    def _reopen(self) -> None:
        self._store.close()
        self._store = penstock.open(self._data)

    def _delete(self) -> None:
        self._stream().seal()
        self._stream().delete()
        self._store.create_stream(STREAM, segments=1)

    def _erase(self) -> None:
        events = self._events()
        if not events:
            return
        self._erasures += 1
        name = f"e{self._erasures}"
        share = self._rng.choice([0.02, 0.5, 1.0])
        hits = [event for event in events if self._rng.random() < share] or events[:1]
        asked: list[Sequence[Event]] = [hits]
        if self._rng.random() < 0.5:
            asked.append(hits if self._rng.random() < 0.5 else self._rng.sample(events, min(len(events), 20)))
        meanwhile: Sequence[Callable[[], None]] = self._rng.choices(
            [self._write, self._scale, self._truncate, self._lease, self._delete], k=self._rng.choice([0, 1, 2])
        )
        held = self._rng.random() < 0.4 and self._defer(name, events, hits)
        if held and self._rng.random() < 0.3:
            self._withdraw(name, hits)
            return
        gate = Gate(self._store, self._rng.choice([0, 0, 1, 2]))
        if held:
            self._store.holds().release(name, owner="law")
        answers: list[Any] = [None] * len(asked)
        threads = [
            threading.Thread(target=self._ask, args=(name, wanted, answers, place))
            for place, wanted in enumerate(asked)
        ]
        for thread in threads:
            thread.start()
        while not gate.reached.wait(0.05) and any(thread.is_alive() for thread in threads):
            pass
        for step in meanwhile:
            step()
        gate.open()
        for thread in threads:
            thread.join()
        self._judge(name, asked, answers)
        if self._rng.random() < 0.5:
            self._reopen()
        else:
            self._store._inner.segments.erase, self._store._inner.segments.wipe_log = gate._real

    def _defer(self, name: str, events: Sequence[Event], hits: Sequence[Event]) -> bool:
        """Request an erasure of events that a hold covers. False: the hold lies behind the events, or cannot be placed."""
        stream = self._stream()
        cut = None
        if self._rng.random() < 0.5:
            after = self._rng.choice(events)
            ends = {event.segment: event.offset for event in events} | {after.segment: after.offset}
            head = stream.head()
            cut = StreamCut(head.stream, {segment: ends.get(segment, at) for segment, at in head.positions.items()})
        try:
            stream.retention.holds.add(owner="law", reason="a case", cut=cut, hold_id=name)
        except InvalidArgumentError:
            return False
        try:
            stream.erase(hits, who="a", why="b", erasure=name)
        except ErasureDeferredError:
            pass
        else:
            self._store.holds().release(name, owner="law")
            self._gone.update((event.data[:13], name) for event in hits)
            return False
        for step in self._rng.choices([self._write, self._scale, self._lease, self._reopen], k=2):
            step()
        self._check_untouched(name, hits, "deferred")
        return True

    def _withdraw(self, name: str, hits: Sequence[Event]) -> None:
        self._store.erasures().withdraw(name, who="a", why="c")
        self._store.holds().release(name, owner="law")
        if self._rng.random() < 0.5:
            self._reopen()
        self._check_untouched(name, hits, "withdrawn")

    def _check_untouched(self, name: str, hits: Sequence[Event], state: str) -> None:
        found = self._store.erasures().show(name)
        if (found.state, found.receipt) != (state, None):
            self.problems.append(f"{name} is {found['state']}, expected {state}")
        left = {event.data[:13] for event in self._events()}
        lost = [event.data[:13] for event in hits if event.data[:13] not in left]
        if lost:
            self.problems.append(f"{name} is {state}, and readers miss {lost[:3]}")
        self.deferrals += 1

    def _ask(self, name: str, wanted: Sequence[Event], answers: list[Any], place: int) -> None:
        try:
            answers[place] = self._stream().erase(wanted, who="a", why="b", erasure=name)
        except PenstockError as error:
            answers[place] = error

    def _judge(self, name: str, asked: Sequence[Sequence[Event]], answers: Sequence[Any]) -> None:
        if not any(isinstance(answer, dict) for answer in answers):
            self.problems.append(f"{name}: nobody got a receipt: {answers}")
        for wanted, answer in zip(asked, answers, strict=True):
            if isinstance(answer, dict):
                self.receipts += 1
                self._gone.update((event.data[:13], name) for event in wanted)
                if not _is_for(answer, wanted, asked):
                    self.problems.append(f"{name}: a receipt for another request")
            elif not isinstance(answer, REFUSALS):
                self.problems.append(f"{name}: {answer!r}")
        self._scan()

    def _scan(self) -> None:
        for item in self._store.erasures():
            found = self._store.erasures().verify(item.erasure)
            if found.holds == (item.state == "withdrawn"):
                self.problems.append(f"{item['erasure']}: {found.problems[:2]}")
        for path in self._data.rglob("*"):
            found = set(NEEDLE.findall(path.read_bytes())) if path.is_file() else set()
            left = {self._gone[needle] for needle in found & self._gone.keys()}
            if left:
                self.problems.append(f"{path.relative_to(self._data)} holds bytes of {sorted(left)}")


def _is_for(receipt: Mapping[str, Any], wanted: Sequence[Event], asked: Sequence[Sequence[Event]]) -> bool:
    """Whether a request was decided that has all of these events: theirs, or one with more."""
    for request in asked:
        count, digest = positions_digest(by_segment(request))
        if (receipt["request"]["events"], receipt["request"]["positions_sha256"]) == (count, digest):
            places = {(event.segment, event.offset) for event in request}
            return all((event.segment, event.offset) in places for event in wanted)
    return False


def problems_of(seed: int) -> tuple[list[str], int]:
    """The errors of one life, and its number of receipts."""
    with tempfile.TemporaryDirectory() as directory:
        life = Life(Path(directory) / "data", seed)
        try:
            life.run()
        finally:
            life.close()
        return life.problems, life.receipts


if __name__ == "__main__":
    total = 0
    first, count = map(int, sys.argv[1:3])
    for number in range(first, first + count):
        problems, receipts = problems_of(number)
        total += receipts
        print(number, receipts, "receipts", problems or "", flush=True)
    print(count, "lives", total, "receipts")
