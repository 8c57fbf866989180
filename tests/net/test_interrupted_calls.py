"""An exception at any line of a call, as a signal handler raises it: each event is stored at most once, with its own key,
and exactly once where its call had returned. The same for several threads on one writer."""

from __future__ import annotations

import itertools
import linecache
import sys
import threading
from collections import Counter

import pytest
from direct_world import DirectStore

from penstock.client.writing.writer_core import WriterCore
from penstock.codec.events import split_events

pytestmark = [
    # A call that is interrupted as it begins leaves a coroutine that nobody awaits, and nobody needs to.
    pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class SoftLimitError(Exception):
    """What a handler raises, besides KeyboardInterrupt."""


class RaiseAt:
    """Raises at one line of the client, the ``number``-th that the calling thread comes to. ``where`` names it."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.where: str | None = None

    def __enter__(self):
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _called(self, frame, event, argument):
        path = frame.f_code.co_filename
        if "penstock/client/" not in path and "dial/direct_line" not in path:
            return None
        return self._line

    def _line(self, frame, event, argument):
        # Python runs no handler between the end of a with block and the call that leaves it, though it comes to the line again.
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not source.startswith("with "):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                raise KeyboardInterrupt if hash(self.where) % 2 else SoftLimitError(self.where)
        return self._line


def event(key: str, number: int) -> bytes:
    return b"%s|%d" % (key.encode(), number)


class Watched:
    """A stream, what was asked to be written to it, and which keys went with which events."""

    def __init__(self, world: DirectStore, monkeypatch) -> None:
        self.world = world
        self.numbers = itertools.count()
        self.must: list[bytes] = []
        self.may: list[bytes] = []
        self.shifted: list[tuple[bytes, object]] = []
        for name in ("_enqueue", "adopt"):
            monkeypatch.setattr(WriterCore, name, self.checked(getattr(WriterCore, name)))

    def checked(self, take):
        """The step that takes a block, with a look at the keys of its events."""

        def checked(core, sender, block):
            keys = block.keys_in(sender.lane) or [None] * block.event_count
            if len(keys) != block.event_count:
                self.shifted.append((bytes(block.data)[:40], keys))
            for one, key in zip(split_events(bytes(block.data)), keys, strict=False):
                if one.partition(b"|")[0] != str(key).encode():
                    self.shifted.append((one, key))
            take(core, sender, block)

        return checked

    def write(self, writer, key: str | None) -> None:
        one = event(str(key), next(self.numbers))
        self.may.append(one)
        writer.write(one, key)
        self.must.append(self.may.pop())

    def write_many(self, writer, keys) -> None:
        events = [event(str(key), next(self.numbers)) for key in keys]
        self.may += events
        writer.write_many(events, keys)
        del self.may[-len(events) :]
        self.must += events

    def check(self, name: str, where: str | None) -> None:
        found = self.world.events(name)
        doubled = [one for one, times in Counter(found).items() if times > 1]
        assert not doubled, where
        missing = set(self.must) - set(found)
        assert not missing, (where, missing)
        assert set(found) <= set(self.must) | set(self.may), where
        for key in {one.partition(b"|")[0] for one in found} - {b"None"}:
            own = [int(one.partition(b"|")[2]) for one in found if one.partition(b"|")[0] == key]
            assert own == sorted(own), where
        assert not self.shifted, where


def one_direct(watched, writer):
    watched.write(writer, "a")
    writer.flush()


def several_at_once(watched, writer):
    for key in ("a", "b", "a"):
        watched.write(writer, key)
    writer.flush()


def many(watched, writer):
    watched.write(writer, "b")
    watched.write_many(writer, ["a", "b", "c"])
    watched.write(writer, "c")


def closing(watched, writer):
    watched.write(writer, "a")
    writer.close()


SCENARIOS = [one_direct, several_at_once, many, closing]


@pytest.mark.parametrize("kind", ["wire", "in place"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda item: item.__name__)
@pytest.mark.parametrize("warm", [9, pytest.param(1, marks=pytest.mark.slow)], ids=["direct", "loop"])
def test_an_exception_at_any_line_of_a_writer(kind, scenario, warm, monkeypatch):
    world = DirectStore(kind)
    with world.store:
        world.store.create_scope("s")
        for number in itertools.count(1):
            name = f"s/x{number}"
            stream = world.store.create_stream(name)
            watched = Watched(world, monkeypatch)
            writer = stream.writer(linger_s=0.5)
            writer.open()
            for _ in range(warm):
                watched.write(writer, "a")
                writer.flush()
            with RaiseAt(number) as raising:
                try:
                    scenario(watched, writer)
                except (SoftLimitError, KeyboardInterrupt):
                    assert raising.where is not None
            if scenario is not closing or raising.where is not None:
                if not writer._closed:
                    for key in ("b", "a"):
                        watched.write(writer, key)
                    writer.flush()
                writer.close()
            watched.check(name, raising.where)
            if raising.where is None:
                break
        assert number > 5


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_an_exception_at_any_line_of_a_transaction(ends, monkeypatch):
    world = DirectStore("in place")
    with world.store:
        world.store.create_scope("s")
        for number in itertools.count(1):
            name = f"s/t{number}"
            stream = world.store.create_stream(name)
            watched = Watched(world, monkeypatch)
            transaction = stream.transaction(block_bytes=1024)
            transaction.open()
            decided = False
            with RaiseAt(number) as raising:
                try:
                    for key in ("a", None, "b"):
                        watched.write(transaction, key)
                    getattr(transaction, ends)()
                    decided = True
                except (SoftLimitError, KeyboardInterrupt):
                    assert raising.where is not None
            if ends == "commit" and transaction.status().value == "open":
                if not decided and transaction._inner._asked is None:
                    watched.write(transaction, "c")
                transaction.commit()
            if ends == "commit":
                watched.check(name, raising.where)
            elif decided:
                assert world.events(name) == []
            if raising.where is None:
                break
        assert number > 5


@pytest.mark.parametrize("kind", ["wire", "in place"])
def test_several_threads_on_one_writer_lose_and_double_nothing(kind, monkeypatch):
    world = DirectStore(kind)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    errors: list[BaseException] = []

    def work(writer, watched, name):
        try:
            for number in range(150):
                writer.write(event(name, number), name)
                if number % 3 == 0:
                    writer.flush()
                if number % 40 == 0:
                    writer.write_many([event(name, number + 1000)], [name])
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            errors.append(error)

    try:
        with world.store:
            world.store.create_scope("s")
            stream = world.store.create_stream("s/several", segments=2)
            watched = Watched(world, monkeypatch)
            writer = stream.writer()  # The first thread opens it.
            threads = [threading.Thread(target=work, args=(writer, watched, f"k{one}")) for one in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not errors
            writer.close()
            found = world.events("s/several")
    finally:
        sys.setswitchinterval(before)
    wanted = Counter(
        event(f"k{one}", number)
        for one in range(4)
        for number in [*range(150), *(1000 + number for number in range(0, 150, 40))]
    )
    assert Counter(found) == wanted
    assert not watched.shifted
