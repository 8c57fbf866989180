"""A real server with two workers: whatever one process offers, and all of it again after one of them was killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import UUID

import pytest

import penstock
from penstock.app.remote import open_remote
from penstock.core.routing import hash_key
from penstock.model.errors import QuotaExceededError, RetentionHoldError, SegmentNotFoundError, UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server
PATIENCE_S = 120.0
SCENARIOS = Path(__file__).parents[1] / "compat" / "official_scenarios.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--workers", "2", "--retention-cycle", "200ms")
    with ServerProcess(tmp_path_factory.mktemp("workers") / "data", *options) as running:
        yield running
        assert running.stop() == 0, running.tail()


@pytest.fixture
def store(server: ServerProcess) -> Iterator[Any]:
    with penstock.connect(server.address) as connected:
        yield connected


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def places(server: ServerProcess, stream: Any) -> dict[str, str]:
    """Where clients are sent for each active segment."""

    async def ask() -> dict[str, str]:
        async with open_remote(server.address) as (_, controller):
            found = {}
            for item in stream.describe().segments:
                name = segment_name(StreamName.parse(str(stream.name)), item.segment)
                endpoint = await controller.endpoint(name)
                found[name] = f"{endpoint.host}:{endpoint.port}"
            return found

    return asyncio.run(ask())


def test_segments_are_spread_and_their_clients_are_sent_to_their_workers(server: ServerProcess, store: Any) -> None:
    assert [worker["worker"] for worker in server.workers] == [0, 1]
    store.create_scope("spread", if_absent=True)
    stream = store.create_stream("spread/t", segments=8)
    with stream.writer() as writer:
        for number in range(2000):
            writer.write(b"%d" % number, key=f"k{number % 37}")
    found = places(server, stream)
    assert set(found.values()) == {worker["store"] for worker in server.workers}
    stream.scale(11)
    with stream.writer() as writer:
        for number in range(2000, 4000):
            writer.write(b"%d" % number, key=f"k{number % 37}")
    by_key = defaultdict(list)
    with stream.reader(until_tail=True) as reader:
        for event in reader:
            by_key[int(event.data) % 37].append(int(event.data))
    assert by_key == {key: list(range(key, 4000, 37)) for key in range(37)}
    for worker in (0, 1):
        own = server.data / "workers" / str(worker)
        assert {entry.name for entry in own.iterdir()} >= {"LOCK", "VERSION", "metadata", "wal"}
    assert not {"wal", "metadata"} & {entry.name for entry in server.data.iterdir()}


def test_transactions_span_workers(server: ServerProcess, store: Any) -> None:
    store.create_scope("spread", if_absent=True)
    stream = store.create_stream("spread/txn", segments=6)
    for number in range(4):
        transaction = stream.transaction()
        transaction.open()
        for item in range(60):
            transaction.write(b"%d-%d" % (number, item), key=f"k{item}")
        if number == 1:
            stream.scale(9)
        if number % 2:
            transaction.abort()
        else:
            transaction.commit()
    with stream.reader(until_tail=True) as reader:
        found = sorted(event.data for event in reader)
    assert found == sorted(b"%d-%d" % (number, item) for number in (0, 2) for item in range(60))


def test_retention_reads_all_workers(store: Any) -> None:
    store.create_scope("keep", if_absent=True)
    stream = store.create_stream("keep/sized", segments=4)
    group = store.reader_group("keep/g", ["keep/sized"], retention="manual")
    with stream.writer() as writer:
        for number in range(400):
            writer.write(b"x" * 92, key=f"k{number % 50}")
    (subscriber,) = stream.subscribers()
    assert (subscriber.lag_events, subscriber.lag_bytes) == (400, 40_000)
    hold = stream.retention.holds.add(owner="me", reason="a test")
    stream.retention.set({"retain": {"max_bytes": 10_000}})
    assert stream.retention.run().get("truncate") is None
    with pytest.raises(RetentionHoldError):
        stream.truncate(stream.tail())
    stream.retention.holds.release(hold.id, owner="me")
    group.publish(stream.tail())
    wait_until(lambda: stream.describe().size_bytes <= 10_000, "retention did not truncate")
    reclaimed = stream.retention.reclaim()
    assert reclaimed["live_bytes"] == stream.describe().size_bytes
    assert stream.retention.forecast() is not None


def test_kept_bytes_come_back_from_all_workers(store: Any) -> None:
    store.create_scope("keep", if_absent=True)
    stream = store.create_stream("keep/graced", segments=4)
    stream.retention.set({"grace_s": 3600})
    head = stream.head()
    with stream.writer() as writer:
        for number in range(200):
            writer.write(b"%d" % number, key=f"k{number}")
    stream.truncate(stream.tail())
    assert stream.describe().size_bytes == 0
    assert str(stream.retention.undo()) == str(head)
    with stream.reader(until_tail=True) as reader:
        assert sorted(int(event.data) for event in reader) == list(range(200))


def test_a_quota_bounds_a_stream_whose_segments_are_on_both_workers(server: ServerProcess, store: Any) -> None:
    store.create_scope("keep", if_absent=True)
    stream = store.create_stream("keep/quota", segments=4)
    assert len(set(places(server, stream).values())) == 2
    group = store.reader_group("keep/q", ["keep/quota"], retention="manual")
    stream.retention.set({"backlog": {"max_events": 40, "on_exceed": "reject"}})
    assert sum(takes(stream, number) for number in range(50)) == 40
    with stream.reader(until_tail=True) as reader:
        assert len({event.data for event in reader}) == 40
    group.publish(stream.tail())
    wait_until(lambda: takes(stream, 200), "the limit was not raised")


def takes(stream: Any, number: int) -> bool:
    """Whether the stream takes one event more."""
    try:
        with stream.writer() as writer:
            writer.write(b"%d" % number, key=f"k{number}")
    except QuotaExceededError:
        return False
    return True


def test_what_the_store_changes_alone_is_refused_by_every_worker(server: ServerProcess) -> None:
    async def ask() -> None:
        async with open_remote(server.address) as (segments, _):
            own = [f"_system/{kind}/{number}.#epoch.0" for kind in ("audit", "_tables") for number in range(4)]
            reached = {(await segments._pool.endpoint(name)).port for name in own}
            assert len(reached) == 2
            for name in own:
                with pytest.raises(SegmentNotFoundError):
                    await segments.delete(name)
                with pytest.raises(SegmentNotFoundError):
                    await segments.setup_append(name, UUID(int=1))

    asyncio.run(ask())


def test_a_hold_is_kept_by_the_workers_too(server: ServerProcess, store: Any) -> None:
    store.create_scope("keep", if_absent=True)
    stream = store.create_stream("keep/held", segments=4)
    with stream.writer() as writer:
        for number in range(100):
            writer.write(b"%d" % number, key=f"k{number}")
    hold = stream.retention.holds.add(owner="me", reason="a test")
    names = list(places(server, stream))

    async def remove(kind: type[Exception] | None) -> None:
        async with open_remote(server.address) as (segments, _):
            for name in names:
                if kind is None:
                    await segments.truncate(name, 5)
                    assert (await segments.info(name)).start_offset == 5
                    continue
                for call in (segments.truncate(name, 5), segments.delete(name)):
                    with pytest.raises(kind):
                        await call

    asyncio.run(remove(RetentionHoldError))
    stream.retention.holds.release(hold.id, owner="me")
    asyncio.run(remove(None))


def test_reader_groups_share_segments_of_both_workers(store: Any) -> None:
    store.create_scope("groups", if_absent=True)
    stream = store.create_stream("groups/t", segments=4)
    with stream.writer() as writer:
        for number in range(300):
            writer.write(b"%d" % number, key=f"k{number}")
    group = store.reader_group("groups/g", ["groups/t"], retention="manual")
    seen: list[int] = []
    with group.reader("a") as one, group.reader("b") as two:
        deadline = time.monotonic() + PATIENCE_S
        while len(seen) < 300 and time.monotonic() < deadline:
            for reader in (one, two):
                event = reader.read(timeout_s=0.05)
                if event is not None:
                    seen.append(int(event.data))
    assert sorted(seen) == list(range(300))


# Reading all events, the official client at times asks for one read again only after 30 s, whatever serves it.
@pytest.mark.parametrize("scenario", [pytest.param("events", marks=pytest.mark.slow), "transactions", "reader_groups"])
def test_the_official_client_meets_nothing_unusual(server: ServerProcess, scenario: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCENARIOS), server.address, scenario],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{server.tail()}"
    seen = json.loads(done.stdout.splitlines()[-1])
    if scenario == "events":
        assert seen == {"count": 301, "unique": 301, "big": 1, "ordered": True}


# --- deaths ---------------------------------------------------------------------------------------------------------


def pids(server: ServerProcess) -> dict[int, int]:
    """The processes of the workers, as the kernel has them: by number."""
    found = {}
    assert server.process is not None
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == server.process.pid and b"penstock.app.worker_process" in words and alive(int(entry.name)):
            found[int(words[5])] = int(entry.name)
    return found


class Load:
    """One writer for each worker, that writes to segments of that worker alone, and says when each event was durable."""

    def __init__(self, server: ServerProcess, stream: Any) -> None:
        self.acked: dict[int, list[tuple[float, bytes]]] = {0: [], 1: []}
        self.failures: list[BaseException] = []
        self._stop = Event()
        by_place = {worker["store"]: worker["worker"] for worker in server.workers}
        owners = {name: by_place[place] for name, place in places(server, stream).items()}
        self._keys = self._keys_of(stream, owners)
        self._stream = stream
        self._threads = [Thread(target=self._write, args=(worker,)) for worker in (0, 1)]
        for thread in self._threads:
            thread.start()

    def _keys_of(self, stream: Any, owners: dict[str, int]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {0: [], 1: []}
        for number in range(64):
            place = hash_key(f"k{number}")
            (segment,) = (item for item in stream.describe().segments if item.keys.low <= place < item.keys.high)
            found[owners[segment_name(StreamName.parse(str(stream.name)), segment.segment)]].append(f"k{number}")
        assert found[0]
        assert found[1]
        return found

    def _write(self, worker: int) -> None:
        try:
            with self._stream.writer(linger_s=0.001, deadline_s=PATIENCE_S) as writer:
                number = 0
                while not self._stop.is_set():
                    for key in self._keys[worker][:4]:
                        event = f"{key} {number}".encode()
                        writer.write(event, key=key)
                        number += 1
                    writer.flush()
                    self.acked[worker].append((time.monotonic(), event))
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failures.append(error)

    def written_since(self, worker: int, moment: float) -> bool:
        return bool(self.acked[worker]) and self.acked[worker][-1][0] > moment

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def end(self) -> None:
        self.stop()
        assert not self.failures, self.failures

    def gap_s(self, worker: int, since: float) -> float:
        """The longest time between two acknowledgements, from shortly before that moment on."""
        times = [at for at, _ in self.acked[worker] if at > since - 0.5]
        return max((later - earlier for earlier, later in zip(times, times[1:], strict=False)), default=PATIENCE_S)


def check_all(stream: Any, load: Load) -> int:
    """Every key's events in order, none twice, none missing up to the last acknowledged; how many there are."""
    numbers = defaultdict(list)
    with stream.reader(until_tail=True) as reader:
        for event in reader:
            key, number = event.data.split()
            numbers[key].append(int(number))
    for found in numbers.values():
        assert found == sorted(set(found)), "out of order, or twice"
        assert {later - earlier for earlier, later in zip(found, found[1:], strict=False)} <= {4}, "a gap"
    for acked in load.acked.values():
        for _, event in acked:
            key, number = event.split()
            assert numbers[key][-1] >= int(number), "an acknowledged event is gone"
    return sum(map(len, numbers.values()))


class Control(Thread):
    """Makes streams, commits to them, scales and truncates them, again and again, however often a call fails."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__()
        self._server = server
        self._over = Event()
        self.made: list[str] = []
        self.failures: list[BaseException] = []
        self.again = 0

    def run(self) -> None:
        try:
            with penstock.connect(self._server.address) as store:
                store.create_scope("control", if_absent=True)
                while not self._over.is_set():
                    self._one(store, f"control/s{len(self.made)}")
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failures.append(error)

    def _one(self, store: Any, name: str) -> None:
        stream = self._insist(lambda: store.create_stream(name, segments=3, if_absent=True))
        self._insist(lambda: self._commit(stream, b"before"))
        self._insist(lambda: stream.scale(5) if len(stream.describe().segments) == 3 else None)
        self._insist(lambda: self._commit(stream, b"after"))
        self.made.append(name)

    def _commit(self, stream: Any, event: bytes) -> None:
        transaction = stream.transaction()
        transaction.open()
        for number in range(12):
            transaction.write(b"%s-%d" % (event, number), key=f"k{number}")
        # From here on a failure may have committed: the store, not we, must make sure that it happens once.
        transaction.flush()
        while True:
            try:
                transaction.commit()
            except UnavailableError:
                self.again += 1
                assert not self._over.wait(0.05), "stopped in the middle"
            else:
                return

    def _insist(self, call: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except UnavailableError:
                self.again += 1
                if time.monotonic() > deadline:
                    raise

    def end(self, at_least: int) -> None:
        wait_until(lambda: len(self.made) >= at_least or bool(self.failures), "the controller does not get on")
        self._over.set()
        self.join(PATIENCE_S)
        assert not self.failures, self.failures

    def check(self, store: Any) -> None:
        """All that was made is whole: five segments, every transaction once."""
        for name in self.made:
            stream = store.stream(name)
            assert len(stream.describe().segments) == 5
            with stream.reader(until_tail=True) as reader:
                found = sorted(event.data for event in reader)
            once = [b"%s-%d" % (event, number) for event in (b"before", b"after") for number in range(12)]
            assert found == sorted(once), name


@pytest.mark.parametrize("kills", [2, pytest.param(16, marks=pytest.mark.slow)])
def test_a_killed_worker_comes_back_while_the_other_serves(tmp_path: Path, kills: int) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, penstock.connect(server.address) as store:
        stream = store.create_stream("kill/t", segments=4, create_scope=True)
        load, control, reading = Load(server, stream), Control(server), Reading(stream)
        control.start()
        reading.start()
        try:
            for number in range(kills):
                kill_one(server, load, number % 2)
            made = len(control.made)
            control.end(made + 2)
            load.end()
            written = {event for acked in load.acked.values() for _, event in acked}
            wait_until(lambda: written <= set(reading.seen), "the reader did not get on")
        finally:
            load.stop()
            control._over.set()
            reading.end()
        total = check_all(stream, load)
        assert len(reading.seen) == len(set(reading.seen)), "the reader was handed an event twice"
        control.check(store)
        print(f"{total} events, {len(control.made)} streams made, {control.again} calls made again")
        assert server.stop() == 0, server.tail()
        server.options = ()
        server.start()
        assert len(server.workers) == 2, "the number is remembered"
        with penstock.connect(server.address) as again:
            assert check_all(again.stream("kill/t"), load) == total


def kill_one(server: ServerProcess, load: Load, victim: int) -> None:
    """Kill a worker under load; the other's writer goes on, and in the end both do."""
    before = pids(server)
    assert set(before) == {0, 1}
    started = time.monotonic()
    wait_until(lambda: all(load.written_since(worker, started) for worker in (0, 1)), "nobody writes")
    killed = time.monotonic()
    os.kill(before[victim], signal.SIGKILL)
    wait_until(lambda: load.written_since(1 - victim, killed + 0.1), "the other one stopped too")
    wait_until(lambda: pids(server).get(victim) not in (None, before[victim]), "it did not come back")
    back = time.monotonic()
    wait_until(lambda: load.written_since(victim, back), server.tail())
    assert pids(server)[1 - victim] == before[1 - victim], "the other one was left alone"
    other, own = load.gap_s(1 - victim, killed), load.gap_s(victim, killed)
    print(f"worker {victim} killed: its writer waited {own:.2f} s, the other's {other:.2f} s")
    assert other < own, "the other worker's writer must not wait for the restart"


class Reading(Thread):
    """A reader that goes on until it is ended."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        self._over = Event()
        self.seen: list[bytes] = []

    def run(self) -> None:
        with self._stream.reader() as reader:
            while not self._over.is_set():
                event = reader.read(timeout_s=0.2)
                if event is not None:
                    self.seen.append(event.data)

    def end(self) -> None:
        self._over.set()
        self.join(PATIENCE_S)


def test_a_killed_server_takes_its_workers_along_and_the_next_one_waits_for_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with ServerProcess(tmp_path / "data", "--workers", "2", "--tier2", str(shared)) as server:
        with penstock.connect(server.address) as store:
            stream = store.create_stream("kill/t", segments=4, create_scope=True)
            with stream.writer() as writer:
                for number in range(500):
                    writer.write(b"%d" % number, key=f"k{number}")
        marks = {(shared / f"worker-{worker}" / "STORE").read_text() for worker in (0, 1)}
        assert len(marks) == 2, "each worker's part of tier 2 is its own"
        orphans = pids(server)
        # A worker that is busy elsewhere when its server dies must still end before another owns its directory.
        os.kill(orphans[1], signal.SIGSTOP)
        server.kill()
        wait_until(lambda: not alive(orphans[0]), "a worker outlived its server")
        waker = Thread(target=lambda: (time.sleep(1.5), os.kill(orphans[1], signal.SIGCONT)))
        waker.start()
        server.start()
        waker.join()
        wait_until(lambda: not alive(orphans[1]), "a worker outlived its server")
        with penstock.connect(server.address) as store, store.stream("kill/t").reader(until_tail=True) as reader:
            assert sorted(int(event.data) for event in reader) == list(range(500))


def failed_start(*options: str, timeout_s: float = PATIENCE_S) -> str:
    """What a server that does not start says."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "standalone", *options),
            *("--controller-port", "0", "--store-port", "0", "--http-port", "0"),
        ],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_one_directory_has_one_server_and_one_number_of_workers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, "--workers", "2") as server:
        assert "another process uses the data directory" in failed_start("--data", str(data), "--workers", "2")
        with penstock.connect(server.address) as store:
            store.create_scope("s")
            assert "s" in store.scopes()
    assert "number of workers is fixed" in failed_start("--data", str(data), "--workers", "3")


def test_a_worker_that_cannot_start_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, "--workers", "2") as server:
        assert server.stop() == 0
    (data / "workers" / "1" / "VERSION").write_text("rubbish")
    said = failed_start("--data", str(data))
    assert "version of the data directory cannot be read" in said


def test_a_worker_whose_directory_breaks_while_it_is_away_ends_the_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, "--workers", "2") as server:
        with penstock.connect(server.address) as store:
            store.create_scope("s")
        (data / "workers" / "0" / "VERSION").write_text("rubbish")
        os.kill(pids(server)[0], signal.SIGKILL)
        assert server.process is not None
        assert server.process.wait(PATIENCE_S) != 0
        assert "version of the data directory cannot be read" in server.tail()
        assert not pids(server)
