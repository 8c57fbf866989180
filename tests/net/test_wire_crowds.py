"""Very many writers of a connection whose appends find no room: how often they ask, and that all get in, in order."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import encode
from penstock.model.errors import PenstockError, ThrottledError
from penstock.net.wire.append_meter import AppendMeter
from penstock.net.wire.appends import AppendSide
from penstock.ports.data.segments import NO_EVENT, Append, AppendDone, Appended
from penstock.ports.telemetry import NoTelemetry
from tests.net.appends_one_by_one import AppendsOneByOne

WRITERS = 2000


class Store(AppendsOneByOne):
    """Has room for so many appends, and counts who asks."""

    def __init__(self) -> None:
        self.room = 0
        self.asked: list[UUID] = []
        self.stored: list[tuple[UUID, int]] = []

    def submit_append(self, request: Append, done: AppendDone) -> None:
        self.asked.append(request.writer)
        outcome: Appended | PenstockError = ThrottledError("no room", resource="unflushed_bytes", limit=0)
        if self.room:
            self.room -= 1
            self.stored.append((request.writer, request.event_number))
            outcome = Appended(end_offset=len(self.stored))
        done(outcome)


class Host:
    """A connection whose pauses end when the test says so."""

    must_copy = False

    def __init__(self) -> None:
        self.pauses: list[Callable[[], None]] = []
        self.sent: list[bytes] = []

    def release(self, size_bytes: int) -> None: ...

    def soon(self, call: Callable[[], None]) -> None: ...

    def after_pause(self, call: Callable[[], None], times: int) -> None:
        assert times == 1
        self.pauses.append(call)

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def reply(self, command: object) -> None:
        pytest.fail(f"refused: {command}")

    def end_pause(self) -> None:
        (call,) = self.pauses
        self.pauses.clear()
        call()


def crowd() -> tuple[Store, Host, AppendSide]:
    store, host = Store(), Host()
    side = AppendSide(host, store, AppendMeter(NoTelemetry()))
    for number in range(WRITERS):
        writer = UUID(int=number + 1)
        side.begin_setup(writer.bytes)
        handle = side.finish_setup(writer.bytes, f"a/s/{number}.#epoch.0", NO_EVENT, is_own=True)
        assert handle is not None
        head = c.AppendMany(number, ((handle, 1, 1, 3), (handle, 1, 2, 3)), b"onetwo")
        side.many(memoryview(encode(head))[8:])
    return store, host, side


def test_a_crowd_without_room_asks_little_and_gets_in_fast_once_there_is_room() -> None:
    store, host, _ = crowd()
    asked = len(store.asked)
    for _ in range(50):
        host.end_pause()
    assert len(store.asked) - asked <= 50 * 32, "the task that makes room gets the time for it"
    assert len(set(store.asked[asked:])) >= 1000, "those that have waited longest come first"
    store.room = 3 * WRITERS
    pauses = 0
    while host.pauses:
        host.end_pause()
        pauses += 1
    assert pauses <= 8
    assert len(store.stored) == 2 * WRITERS
    for number in range(WRITERS):
        assert [place for writer, place in store.stored if writer.int == number + 1] == [1, 2]


def test_a_crowd_of_a_connection_that_ends_asks_no_more() -> None:
    store, host, side = crowd()
    side.close()
    asked = len(store.asked)
    host.end_pause()
    assert not host.pauses
    assert len(store.asked) == asked
