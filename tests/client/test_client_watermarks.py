"""Times that our writers note, and the windows that our readers get, in an embedded store and over a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import penstock
from penstock.client.writing.times import NotedTimes
from penstock.model.errors import InvalidArgumentError, TimeGoesBackError
from penstock.testing.fakes import SeededRng
from penstock.testing.server import ServerProcess


@pytest.fixture
def stream(tmp_path) -> Iterator[penstock.Stream]:
    with penstock.open(tmp_path / "data") as store:
        store.create_scope("s")
        yield store.create_stream("s/t", segments=2)


def until(look: Callable[[], object], expected: object) -> None:
    """Wait for the store's next looks at the watermark."""
    deadline = time.monotonic() + 20
    while (found := look()) != expected:
        assert time.monotonic() < deadline, (found, expected)
        time.sleep(0.05)


def bounds(window) -> tuple[int | None, int | None]:
    return window.lower_ms, window.upper_ms


def read_all(reader: penstock.Reader, count: int) -> None:
    for _ in range(count):
        assert reader.read(10) is not None


def at_tail(stream: penstock.Stream) -> tuple[int | None, int | None]:
    with stream.reader(start="latest") as reader:
        return bounds(reader.time_window())


def check_bounds_follow_the_slower_writer(stream: penstock.Stream) -> None:
    with stream.writer() as one, stream.writer() as other, stream.reader() as reader:
        one.write(b"a", key="k")
        one.note_time(10)
        until(lambda: at_tail(stream), (10, None))
        assert bounds(reader.time_window()) == (None, 10)
        other.write(b"b", key="l")
        other.note_time(12)
        one.write(b"c", key="k")
        one.note_time(20)
        until(lambda: at_tail(stream), (12, None))
        one.note_time(30)
        other.note_time(25)
        until(lambda: at_tail(stream), (25, None))
        assert bounds(reader.time_window()) == (None, 10)
        read_all(reader, 3)
        assert reader.read(0) is None  # the last event counts as read when the next one is asked for
        assert bounds(reader.time_window()) == (25, None)
        with pytest.raises(TimeGoesBackError):
            one.note_time(19)
        for wrong in (1.5, True, "now", None, 1 << 63):
            with pytest.raises(InvalidArgumentError):
                one.note_time(wrong)
        # A writer that is closed holds nothing back.
        other.close()
        one.note_time(40)
        until(lambda: at_tail(stream)[0], 40)


def test_bounds_follow_the_slower_writer(stream: penstock.Stream) -> None:
    check_bounds_follow_the_slower_writer(stream)


@pytest.mark.server
@pytest.mark.parametrize(
    "options", [pytest.param([], marks=pytest.mark.slow), ["--workers", "2"]], ids=["one process", "workers"]
)
def test_bounds_follow_the_slower_writer_of_a_server(tmp_path, options) -> None:
    with ServerProcess(tmp_path / "data", *options) as server, penstock.connect(server.address) as store:
        store.create_scope("s")
        check_bounds_follow_the_slower_writer(store.create_stream("s/t", segments=2))


def test_a_commit_notes_the_time_of_its_events(stream: penstock.Stream) -> None:
    # The time that goes back is not noted; its event is committed.
    for time_ms in (10, 20, 15):
        with stream.transaction(writer="ingest") as transaction:
            transaction.write(b"x" * 100)
            transaction.commit(timestamp_ms=time_ms)
    until(lambda: stream.reader(start="latest").time_window().lower_ms, 20)
    assert len(list(stream.reader(until_tail=True))) == 3


def test_a_commit_refuses_a_time_that_it_cannot_note_and_may_be_repeated(stream: penstock.Stream) -> None:
    for wrong in ("", "x" * 256, 7, "\ud800"):
        with pytest.raises(InvalidArgumentError):
            stream.transaction(writer=wrong)
    with stream.transaction() as transaction:
        transaction.write(b"a")
        with pytest.raises(InvalidArgumentError, match="name the writer"):
            transaction.commit(timestamp_ms=5)
        transaction.commit()
    with stream.transaction(writer="w") as transaction:
        transaction.write(b"b")
        for wrong in (1.5, True, "now", 1 << 63, -(1 << 63)):
            with pytest.raises(InvalidArgumentError):
                transaction.commit(timestamp_ms=wrong)
        transaction.commit(timestamp_ms=-5)
    assert sorted(event.data for event in stream.reader(until_tail=True)) == [b"a", b"b"]


class LosesAnswers:
    """Stands for a store that keeps each note, and whose answers are lost for as long as there are ``errors``."""

    def __init__(self, errors: list[BaseException]) -> None:
        self.errors = errors
        self.writers: dict[str, int | None] = {}

    async def note_time(self, writer: str, time_ms: int | None) -> None:
        self.writers[writer] = time_ms
        if self.errors:
            raise self.errors.pop()


@pytest.mark.parametrize("lost", [asyncio.CancelledError(), TimeGoesBackError("back")])
def test_a_writer_leaves_also_if_the_answer_to_its_first_note_was_lost(lost: BaseException) -> None:
    async def main() -> None:
        store: Any = LosesAnswers([lost])
        times = NotedTimes(store, SeededRng(1))
        with suppress(type(lost)):
            await times.note(10)
        await times.note(20)
        assert list(store.writers.values()) == [20]
        await times.leave()
        assert list(store.writers.values()) == [None]

    asyncio.run(main())


def test_a_group_knows_the_window_of_its_slowest_reader(tmp_path) -> None:
    with penstock.open(tmp_path / "data") as store:
        store.create_scope("s")
        stream = store.create_stream("s/t")
        with stream.writer() as writer:
            writer.write(b"x")
            writer.note_time(10)
            group = store.reader_group("s/g", ["s/t"])
            until(lambda: bounds(group.time_windows()[stream.name]), (None, 10))
            with group.reader("r") as reader:
                assert reader.read(10) is not None
                assert reader.read(0) is None
                reader.sync()
                until(lambda: bounds(group.time_windows()[stream.name]), (10, None))
