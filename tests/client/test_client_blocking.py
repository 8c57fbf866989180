"""Laws of the blocking face: the same results, from any thread, inside a running loop, interrupted or not."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest
from client_world import open_services

from penstock.client.blocking.answer import Answer
from penstock.client.blocking.stores import Store
from penstock.model.errors import (
    EventTooLargeError,
    InternalError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    StorageFullError,
    StreamNotFoundError,
    StreamSealedError,
    ThrottledError,
    TransactionStateError,
    UnsupportedError,
)
from penstock.model.names import StreamName
from penstock.ports.control.transactions import TransactionStatus
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from tests.flat_control import FlatControl


@pytest.fixture
def store():
    with Store(lambda: open_services(RealClock(), RealRng())) as opened:
        yield opened


def test_write_and_read_many_events(store):
    stream = store.create_stream("a/s", segments=3, create_scope=True)
    keys = [f"k{number}" for number in range(100)]
    with stream.writer(block_bytes=4096, max_pending_bytes=65536) as writer:
        for number in range(300):
            for key in keys:
                writer.write(f"{key}:{number}", key)
        writer.flush()
    found = defaultdict(list)
    with stream.reader(until_tail=True) as reader:
        for event in reader:
            key, _, number = event.data.decode().partition(":")
            found[key].append(int(number))
    assert found == {key: list(range(300)) for key in keys}


def test_a_reader_opens_itself_with_its_first_read(store):
    stream = store.create_stream("a/s", create_scope=True)
    with stream.writer() as writer:
        writer.write_many([b"a", b"b"])
    assert [event.data for event in stream.reader(until_tail=True)] == [b"a", b"b"]
    missing = store.stream("a/none").reader(until_tail=True)
    for _ in range(2):
        with pytest.raises(StreamNotFoundError):
            missing.read()


def test_order_per_key_holds_while_another_thread_scales(store):
    stream = store.create_stream("a/s", create_scope=True)
    keys = [f"k{number}" for number in range(20)]
    written = threading.Event()
    failures = []

    def scale():
        try:
            for count in (3, 2, 4, 1, 5):
                stream.scale(count)
            written.wait(60)
        except PenstockError as error:
            failures.append(error)

    scaler = threading.Thread(target=scale)
    with stream.writer(block_bytes=2048) as writer:
        scaler.start()
        number = 0
        while number < 2000 or stream.describe().epoch < 5:
            for key in keys:
                writer.write(f"{key}:{number}", key)
            number += 1
            if number % 500 == 0:
                writer.flush()
    written.set()
    scaler.join()
    assert not failures
    found = defaultdict(list)
    with stream.reader(until_tail=True) as reader:
        for event in reader:
            key, _, value = event.data.decode().partition(":")
            found[key].append(int(value))
    assert found == {key: list(range(number)) for key in keys}


def test_an_event_is_sent_without_flush_and_read_times_out(store):
    stream = store.create_stream("a/s", create_scope=True)
    with stream.writer() as writer, stream.reader() as reader:
        assert reader.read(timeout_s=0.01) is None
        writer.write("hello")
        assert reader.read(timeout_s=30).data == b"hello"
        writer.write_many(["a", b"b"])
        assert [reader.read(30).data, reader.read(30).data] == [b"a", b"b"]
        stream.seal()
        assert reader.read(30) is None


def test_batches_arrow_and_large_events(store):
    pa = pytest.importorskip("pyarrow")
    stream = store.create_stream("a/s", create_scope=True)
    with stream.writer() as writer:
        writer.write(b"0")
        writer.write_arrow(pa.array([b"1", b"2"]))
        writer.write_many([b"3"])
        writer.write(bytes(9 << 20))
        writer.write(b"4")
        with pytest.raises(EventTooLargeError):
            writer.write(bytes((64 << 20) + 1))
    with stream.reader(until_tail=True) as reader:
        batches = list(reader.read_arrow())
    events = [event for batch in batches for event in batch["event"].to_pylist()]
    assert [len(event) for event in events] == [1, 1, 1, 1, 9 << 20, 1]
    assert events[:4] == [b"0", b"1", b"2", b"3"]


def test_transactions_commit_or_abort(store):
    stream = store.create_stream("a/s", segments=2, create_scope=True)
    with stream.transaction() as txn:
        for number in range(50):
            txn.write(f"{number}", f"k{number}")
        txn.flush()
        with stream.reader(until_tail=True) as reader:
            assert reader.read(30) is None
    assert txn.status() is TransactionStatus.COMMITTED
    with pytest.raises(RuntimeError), stream.transaction() as failed:  # noqa: PT012
        failed.write("never")
        raise RuntimeError("while writing")
    assert failed.status() is TransactionStatus.ABORTED
    with stream.reader(until_tail=True) as reader:
        assert sorted(event.data for event in reader) == sorted([b"%d" % number for number in range(50)])


def test_a_transaction_that_takes_no_events_says_so(store):
    stream = store.create_stream("a/s", create_scope=True)
    never, committed, aborted = (stream.transaction() for _ in range(3))
    with committed:
        committed.write("1")
    aborted.open()
    aborted.write("2")
    aborted.open()  # repeating does nothing
    aborted.abort()
    pa = pytest.importorskip("pyarrow")
    for txn, error in (
        (never, InvalidArgumentError),
        (committed, TransactionStateError),
        (aborted, TransactionStateError),
    ):
        uses = (
            lambda: txn.write("late"),  # noqa: B023 - called within this turn
            lambda: txn.write_many(["late"]),  # noqa: B023
            lambda: txn.write_many([]),  # noqa: B023
            lambda: txn.write_arrow(pa.array([b"late"])),  # noqa: B023
            txn.flush,
            txn.commit,
        )
        for use in uses:
            with pytest.raises(error, match=r"not open|decided"):
                use()
    for txn in (committed, aborted):
        with pytest.raises(TransactionStateError, match="begin another"), txn:
            pass
    with never:
        never.write("3")
    with stream.reader(until_tail=True) as reader:
        assert [event.data for event in reader] == [b"1", b"3"]


def test_a_writer_opens_itself_with_its_first_write(store):
    pa = pytest.importorskip("pyarrow")
    stream = store.create_stream("a/s", segments=2, create_scope=True)
    first_uses = (
        lambda writer: writer.write("x", "k"),
        lambda writer: writer.write_many(["x"], ["k"]),
        lambda writer: writer.write_arrow(pa.array([b"x"]), pa.array(["k"])),
        lambda writer: writer.write(bytes(9 << 20), "k"),
    )
    for use in first_uses:
        writer = stream.writer()
        use(writer)
        writer.write("y", "k")
        writer.close()
        for late in (lambda: writer.write("z", "k"), lambda: writer.write_many(["z"]), writer.open):  # noqa: B023
            with pytest.raises(InvalidArgumentError, match="closed"):
                late()
    with stream.reader(until_tail=True) as reader:
        assert [len(event.data) for event in reader] == [1, 1, 1, 1, 1, 1, 9 << 20, 1]
    for _ in range(2):
        with pytest.raises(StreamNotFoundError):
            store.stream("a/none").writer().write("x")
    unused = stream.writer()
    unused.flush()
    unused.close()


def test_what_an_open_writer_holds_is_written_when_the_store_is_closed():
    written = []

    @asynccontextmanager
    async def opener():
        async with open_services(RealClock(), RealRng()) as (segments, controller):
            yield segments, controller
            written.append((await controller.streams.describe(StreamName("a", "s"))).size_bytes)

    store = Store(opener)
    stream = store.create_stream("a/s", create_scope=True)
    writer = stream.writer(linger_s=3600)
    for number in range(1000):
        writer.write(b"%03d" % number)
    txn = stream.transaction()
    txn.open()
    txn.write("never committed")
    txn.flush()
    store.close()
    with pytest.raises(InvalidArgumentError, match="store is closed"):
        txn.write("late")
    printed = ValueError("what the user did wrong")
    txn.__exit__(ValueError, printed, None)  # does not hide it
    assert written == [1000 * (8 + 3)]


def test_reader_groups_and_checkpoints(store):
    stream = store.create_stream("a/s", segments=2, create_scope=True)
    with stream.writer() as writer:
        writer.write_many([f"{number}" for number in range(100)], [f"k{number}" for number in range(100)])
    group = store.reader_group("g", ["a/s"], retention="manual", refresh_s=0.05)
    seen = []
    with group.reader("one") as reader:
        for event in reader:
            seen.append(event.data)
            if len(seen) == 100:
                break
    assert len(set(seen)) == 100
    assert group.positions() == {stream.name: stream.tail()}
    group.publish(group.positions())
    assert group.readers() == []
    assert group.checkpoint() == {stream.name: stream.tail()}
    assert stream.describe().subscribers[0].lag_bytes == 0
    assert list(store.reader_groups("a")) == ["a/g"]
    group.delete()


def test_a_clean_close_counts_returned_blocks_and_batches(store):
    stream = store.create_stream("a/s", create_scope=True)
    group = store.reader_group("g", ["a/s"], refresh_s=0.05)
    for number in range(3):
        with stream.writer() as writer:
            writer.write_many([f"{number}{item}" for item in range(3)])
        with group.reader("r") as reader:
            if number == 0:
                assert reader.next_block(30).events() == [b"00", b"01", b"02"]
            elif number == 1:
                assert next(reader.read_arrow())["event"].to_pylist() == [b"10", b"11", b"12"]
            else:
                assert next(reader.read_blocks()).events() == [b"20", b"21", b"22"]
        assert group.positions() == {stream.name: stream.tail()}


def test_a_block_that_arrives_after_a_timeout_does_not_count(store):
    stream = store.create_stream("a/s", create_scope=True)
    group = store.reader_group("g", ["a/s"], refresh_s=0.05)
    with group.reader("r") as reader:
        with pytest.raises(TimeoutError):
            reader.next_block(0.01)
        with stream.writer() as writer:
            writer.write("x")
        # The block has arrived, and no call has asked for it again.
        assert reader._thread.wait(reader._asked, 30).events() == [b"x"]
    assert group.positions() == {stream.name: stream.head()}
    with group.reader("r") as reader:
        assert reader.read(30).data == b"x"


@pytest.mark.parametrize("kind", ["alone", "in a group"])
def test_a_loop_that_is_left_is_gone_on_with_and_loses_nothing(store, kind):
    stream = store.create_stream("a/s", create_scope=True)
    with stream.writer() as writer:
        writer.write_many([f"{number}" for number in range(20)])
    stream.seal()
    group = store.reader_group("g", ["a/s"], refresh_s=0.05)
    with stream.reader() if kind == "alone" else group.reader("one") as reader:
        first = [next(iter(reader)).data for _ in range(3)]
        assert [*first, reader.read().data] == [b"0", b"1", b"2", b"3"]
        assert [event.data for event in reader] == [b"%d" % number for number in range(4, 20)]


def test_it_works_inside_a_running_loop(store):
    async def cell():
        stream = store.create_stream("a/s", create_scope=True)
        with stream.writer() as writer:
            writer.write("x")
        with stream.reader(until_tail=True) as reader:
            return [event.data for event in reader]

    assert asyncio.run(cell()) == [b"x"]


def test_an_interrupted_read_loses_nothing(store, monkeypatch):
    stream = store.create_stream("a/s", create_scope=True)
    with stream.writer() as writer, stream.reader() as reader:
        real_wait = store._thread.wait

        def interrupted(future, timeout_s=None):
            raise KeyboardInterrupt

        monkeypatch.setattr(store._thread, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.read()
        monkeypatch.setattr(store._thread, "wait", real_wait)
        writer.write("kept")
        assert reader.read(30).data == b"kept"


def test_errors_reach_the_caller(store):
    stream = store.create_stream("a/s", create_scope=True)
    with pytest.raises(StreamNotFoundError), store.stream("a/none").writer():
        pass
    with pytest.raises(StreamSealedError), stream.writer(block_bytes=1024) as writer:  # noqa: PT012
        writer.write("first")
        writer.flush()
        stream.seal()
        while True:  # ends, because a failed writer raises instead of filling memory
            writer.write(bytes(500))


def test_a_closed_store_says_so_and_closes_what_was_left_open():
    ended = []

    @asynccontextmanager
    async def opener():
        async with open_services(RealClock(), RealRng()) as services:
            yield services
        ended.append("closed")

    store = Store(opener)
    stream = store.create_stream("a/s", create_scope=True)
    writer = stream.writer()
    writer.open()
    writer.write("x")
    reader = store.create_stream("a/empty").reader()
    reader.open()
    with pytest.raises(TimeoutError):
        reader.next_block(0.01)
    store.close()
    store.close()
    assert ended == ["closed"]
    with pytest.raises(InvalidArgumentError, match="closed"):
        stream.describe()
    with pytest.raises(NotConnectedError):
        reader.next_block(30)


def test_what_the_opener_raises_is_raised():
    @asynccontextmanager
    async def opener():
        raise NotConnectedError("nobody there")
        yield

    with pytest.raises(NotConnectedError, match="nobody"):
        Store(opener)


def test_importing_the_client_loads_no_event_loop():
    script = "import sys, penstock.client; print([m for m in ('asyncio', 'numpy', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_call_that_is_given_up_before_it_begins_is_ended_and_not_forgotten(store, recwarn):
    thread = store._thread
    begun, held, go_on = [], threading.Event(), threading.Event()

    async def work():
        begun.append(True)

    def hold():
        held.set()
        go_on.wait()

    thread.post(hold)
    held.wait()
    # The loop stands still: given up before its task is made, and between that and its first step.
    early = thread.submit(work())
    early.cancel()
    late = thread.submit(work())
    thread.post(lambda: [task.cancel() for task in list(thread._calls)])
    go_on.set()
    for future in (early, late):
        with pytest.raises(NotConnectedError, match="closed"):
            thread.wait(future)
    thread.call(asyncio.sleep(0))
    gc.collect()
    assert begun == []
    assert [str(item.message) for item in recwarn if "never awaited" in str(item.message)] == []


def test_what_was_submitted_while_the_store_closed_is_ended_and_not_forgotten(recwarn):
    store = Store(lambda: open_services(RealClock(), RealRng()))
    thread = store._thread
    inner = thread._drop_submitted
    late = []

    async def work():
        late.append("ran")

    def after_the_last_step():
        # The loop takes nothing any more: as if it had been posted just before it was closed.
        answer = Answer()
        thread._submitted[answer] = work()
        inner()
        late.append(answer)

    thread._drop_submitted = after_the_last_step
    store.close()
    (answer,) = late
    with pytest.raises(NotConnectedError, match="closed"):
        thread.wait(answer)
    with pytest.raises(InvalidArgumentError, match="closed"):
        thread.submit(work())
    gc.collect()
    assert [str(item.message) for item in recwarn if "never awaited" in str(item.message)] == []


@pytest.mark.parametrize("refusal", [StorageFullError, ThrottledError, UnsupportedError])
def test_a_commit_with_a_lost_answer_succeeds_even_if_the_store_is_full_at_the_retry(refusal):
    fates = ["lose the answer", "refuse"]

    class Controller(FlatControl):
        def __init__(self, inner):
            self._inner = inner

        async def transactions_commit(self, *arguments, **named):
            fate = fates.pop(0) if fates else "pass"
            if fate == "refuse":
                raise refusal("no room")
            status = await self._inner.transactions.commit(*arguments, **named)
            if fate == "lose the answer":
                raise NotConnectedError("answer lost")
            return status

    @asynccontextmanager
    async def services():
        async with open_services(RealClock(), RealRng()) as (segments, controller):
            yield segments, Controller(controller)

    with Store(services) as store:
        stream = store.create_stream("a/s", create_scope=True)
        with stream.transaction() as transaction:
            transaction.write(b"one")
            transaction.write(b"two", "k")
        assert not fates
        assert transaction.status() is TransactionStatus.COMMITTED
        assert [event.data for event in stream.reader(until_tail=True)] == [b"one", b"two"]


def test_a_flush_fails_if_its_call_fails_in_the_loop(store, monkeypatch):
    stream = store.create_stream("a/s", create_scope=True)
    with stream.writer() as writer:
        writer.write(b"one")

        def broken(done):
            raise ValueError("a bug of ours")

        with monkeypatch.context() as patched:
            patched.setattr(writer._core, "flush_then", broken)
            with pytest.raises(InternalError, match="call into the loop failed"):
                writer.flush()
        writer.flush()
    assert [event.data for event in stream.reader(until_tail=True)] == [b"one"]
