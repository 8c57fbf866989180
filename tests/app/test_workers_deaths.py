"""A real server with two workers, of which one, or which itself, is killed; and servers that cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from workers_server import PATIENCE_S, alive, pids, places, wait_until

import penstock
from penstock.core.streams.routing import hash_key
from penstock.model.errors import ScaleConflictError, UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.testing.server import ServerProcess

pytestmark = pytest.mark.server


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
        except BaseException as error:  # noqa: BLE001 - raised again by the test
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
        except BaseException as error:  # noqa: BLE001 - raised again by the test
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
            except (UnavailableError, ScaleConflictError):
                # A conflict is with our own first attempt, whose answer was lost.
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


@pytest.mark.slow
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


@pytest.mark.slow
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
