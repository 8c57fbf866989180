"""Kill everything that takes part in a streaming copy, one after the other, at moments that matter; then count events.

    python tests/spark/kill_matrix.py --times 50 --seed 1
    python tests/spark/kill_matrix.py --times 50 --seed 1 --part 2/4     the second quarter of the same kills, on a fresh store

A query reads one stream and writes another, with real executor processes (``local-cluster``, which the wheel of PySpark can
start), on a real server. Victims: a Python worker in the middle of its rows, an executor's JVM likewise, the driver just before
and just after a commit, the store under tasks and under a commit, and any of them at any moment. What was killed is started
again. At the end every event must be in the target once, none missing, those of a key in order, and tier 2 must hold no file
that nothing names. Prints one JSON object; the exit status is 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from penstock.model.errors import UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.spark.connect import Link, Services, dial
from penstock.spark.source import PenstockSource
from penstock.spark.writing.sink import StreamWriter
from penstock.testing.server import ServerProcess

T = TypeVar("T")
CONTROL = "PENSTOCK_KILL_MATRIX"
EVENT_BYTES = 2_000
KEYS = 7
EACH_BATCH = 800
WAIT_S = 900
VICTIMS = (
    "worker in a task",
    "executor in a task",
    "store under a task",
    "store before a commit",
    "driver before a commit",
    "driver after a commit",
    "worker at any time",
    "executor at any time",
    "store at any time",
    "driver at any time",
)


# --- in Spark's processes ----------------------------------------------------------------------------------------


def pause(point: str) -> None:
    """Stop here if the matrix asks somebody to, until it lets go. One process takes each request."""
    control = Path(os.environ[CONTROL])
    held = control / f"held-{point}-{os.getpid()}"
    try:
        (control / f"hold-{point}").rename(held)
    except FileNotFoundError:
        return
    while held.exists():
        time.sleep(0.02)


class PausingWriter(StreamWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(self._paused(iterator))

    def _paused(self, iterator: Iterator[Any]) -> Iterator[Any]:
        for number, rows in enumerate(iterator):
            yield rows
            if number == 1:
                pause("task")

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark names it
        pause("before")
        super().commit(messages, batchId)
        pause("after")


class PausingSource(PenstockSource):
    """Penstock's format, with places to be killed at."""

    @classmethod
    def name(cls) -> str:
        return "penstock_paused"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = PausingWriter
        return writer


def session_in(work: Path, master: str) -> Any:
    """A session whose workers find what is in this file."""
    import pyspark

    from penstock.spark.java import ensure_java
    from penstock.spark.session import configure

    ensure_java(work / "java")
    os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
    # Workers unpickle the source by name.
    sys.path.insert(0, os.path.dirname(__file__))
    import kill_matrix

    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    session = (
        configure(pyspark.sql.SparkSession.builder.master(master).appName("kill matrix"))
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.executorEnv.PYTHONPATH", path)
        .config(f"spark.executorEnv.{CONTROL}", os.environ[CONTROL])
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.task.maxFailures", "20")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "60")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(kill_matrix.PausingSource)
    return session


def drive(work: Path, master: str, address: str) -> None:
    """The driver's life: copy from the checkpoint on, until killed."""
    session = session_in(work, master)
    given = {"controller": address, "scope": "kill"}
    frame = (
        session.readStream.format("penstock")
        .options(**given, stream="in", start_stream_cut="earliest", max_events_per_trigger=str(EACH_BATCH))
        .options(columns="event", min_partitions="4")
        .load()
        .selectExpr("event", "substring_index(cast(event as string), ':', 1) as routing_key")
    )
    query = (
        frame.writeStream.format("penstock_paused")
        .options(**given, stream="out", transaction_timeout_ms="60000")
        .options(checkpointLocation=str(work / "checkpoint"))
        .start()
    )
    (work / "started").touch()
    query.awaitTermination()


# --- processes ---------------------------------------------------------------------------------------------------


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command line of each process."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(entry.name)] = parent, (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def ancestors(pid: int, known: dict[int, tuple[int, str]]) -> Iterator[int]:
    while pid in known:
        pid = known[pid][0]
        yield pid


class Driver:
    """The driver's processes, and those that live of it."""

    def __init__(self, work: Path, master: str, address: str, script: str = __file__) -> None:
        self._work = work
        self._script = script
        self._arguments = [str(work), master, address]
        self._groups: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        (self._work / "started").unlink(missing_ok=True)
        with (self._work / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, self._script, "--drive", *self._arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._groups.append(self.process.pid)
        self.starts += 1
        until(lambda: (self._work / "started").exists() or self.process_is_gone(), "the driver did not start")
        if self.process_is_gone():
            log = (self._work / "driver.log").read_text(errors="replace").splitlines()
            raise UnavailableError("the driver did not start", log="\n".join(log[-30:]))

    def process_is_gone(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def tree(self) -> dict[int, str]:
        """All that the driver has started, by process id."""
        known = processes()
        root = self.process.pid if self.process else -1
        return {pid: known[pid][1] for pid in known if root in ancestors(pid, known)}

    def kill(self) -> None:
        """Driver and its JVM. Executors are left to find out by themselves, and may go on for a while."""
        victims = [
            pid for pid, command in self.tree().items() if "SparkSubmit" in command or "PythonGatewayServer" in command
        ]
        if self.process is not None:
            for pid in [self.process.pid, *victims]:
                send_kill(pid)
            self.process.wait()

    def executors(self) -> list[int]:
        return [pid for pid, command in self.tree().items() if "ExecutorBackend" in command]

    def workers(self) -> list[int]:
        """Python workers of tasks: forked by a warm daemon."""
        known = processes()
        daemon = "penstock.spark.worker.daemon"
        return [pid for pid, command in self.tree().items() if daemon in command and daemon in known[known[pid][0]][1]]

    def close(self) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


def send_kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def until(done: Callable[[], Any], failure: str, wait_s: float = WAIT_S) -> Any:
    end = time.monotonic() + wait_s
    while not (found := done()):
        if time.monotonic() > end:
            raise UnavailableError(failure)
        time.sleep(0.05)
    return found


# --- the matrix --------------------------------------------------------------------------------------------------


class Matrix:
    def __init__(self, work: Path, server: ServerProcess, *, master: str, seed: int, script: str = __file__) -> None:
        self._work = work
        self._server = server
        self._rng = random.Random(seed)
        self._link = Link(dial, server.address)
        self._written = 0
        self._control = Path(os.environ[CONTROL])
        self.driver = Driver(work, master, server.address, script)
        self.killed: Counter[str] = Counter()
        self.query_failures = 0
        self.slowest_s = 0.0
        self._numbers: dict[str, int] = {}
        self._writer = uuid4()

    # --- streams ---

    def create(self) -> None:
        async def create(services: Services) -> None:
            from penstock.model.policies import ScalingPolicy, StreamConfig

            await services.controller.scopes.create("kill")
            for name in ("in", "out"):
                config = StreamConfig(scaling=ScalingPolicy(min_segments=2))
                await services.controller.streams.create(StreamName("kill", name), config)

        self._link.ask(create)

    def begin(self) -> None:
        """Start the copy, and wait for its first batch."""
        begun = time.monotonic()
        self.create()
        self.driver.start()
        self.write(EACH_BATCH)
        self.settle(begun)

    def write(self, count: int) -> None:
        from spark_world import World

        world = World(self._link)
        world._writer, world._numbers = self._writer, self._numbers
        events = [event(number) for number in range(self._written, self._written + count)]
        world.write(StreamName("kill", "in"), events, block=200)
        self._written += count

    def copied_bytes(self) -> int:
        cut = self._link.ask(lambda services: services.controller.cuts.tail(StreamName("kill", "out")))
        return sum(cut.positions.values())

    def settle(self, begun: float) -> None:
        """Wait until all is copied; whatever has stopped meanwhile is started again."""
        expected = self._written * (EVENT_BYTES + 8)

        def done() -> bool:
            if self.driver.process_is_gone():
                self.query_failures += 1
                self.driver.start()
            return self.copied_bytes() >= expected

        until(done, f"only {self.copied_bytes()} of {expected} bytes were copied")
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)

    # --- one kill ---

    def kill(self, victim: str) -> None:
        begun = time.monotonic()
        who, _, when = victim.partition(" ")
        point = {
            "in a task": "task",
            "under a task": "task",
            "before a commit": "before",
            "after a commit": "after",
        }.get(when)
        if point is not None:
            (self._control / f"hold-{point}").touch()
            self.write(EACH_BATCH * self._rng.randrange(1, 3))
            held = until(lambda: next(self._control.glob(f"held-{point}-*"), None) or self._revived(), "nobody came by")
            self._strike(who, int(held.name.rpartition("-")[2]))
            for path in self._control.iterdir():
                path.unlink(missing_ok=True)
        else:
            self.write(self._rng.choice([40, EACH_BATCH, 2 * EACH_BATCH]))
            time.sleep(self._rng.random() * 3)
            self._strike(who, None)
        self._mend(who)
        self.settle(begun)
        self.killed[victim] += 1

    def _revived(self) -> None:
        if self.driver.process_is_gone():
            self.query_failures += 1
            self.driver.start()

    def _strike(self, who: str, held: int | None) -> None:
        if who == "store":
            self._server.kill()
        elif who == "driver":
            self.driver.kill()
        elif who == "executor":
            executors = self.driver.executors()
            known = processes()
            own = [pid for pid in ancestors(held, known) if pid in executors] if held is not None else executors
            for pid in own[:1] or ([held] if held is not None else []):
                send_kill(pid)
        else:
            for pid in [held] if held is not None else self.driver.workers()[:1]:
                send_kill(pid)

    def _mend(self, who: str) -> None:
        if who == "store":
            self._server.start()
        elif who == "driver":
            self.driver.start()

    # --- the end ---

    def verdict(self) -> dict[str, Any]:
        import penstock

        with (
            penstock.connect(self._server.address) as store,
            store.stream("kill/out").reader(until_tail=True) as reader,
        ):
            found = [item.data for item in reader]
        wanted = Counter(event(number) for number in range(self._written))
        times = Counter(found)
        last: dict[bytes, int] = {}
        disordered = 0
        for item in found:
            key, number = item.split(b":")[:2]
            disordered += int(number) <= last.get(key, -1)
            last[key] = int(number)
        return {
            "events": self._written,
            "missing": sum((wanted - times).values()),
            "surplus": sum((times - wanted).values()),
            "out_of_order": disordered,
            "adopted_chunks": len(self._named()),
            "left_files": len(self._left()),
        }

    def _named(self) -> set[str]:
        async def names(services: Services) -> set[str]:
            stream = StreamName("kill", "out")
            cut = await services.controller.cuts.tail(stream)
            found: set[str] = set()
            for segment, end in cut.positions.items():
                ranges = await services.segments.chunk_ranges(segment_name(stream, segment), 0, end)
                found |= {item.name for item in ranges if "/i" in item.name}
            return found

        return self._link.ask(names)

    def _left(self) -> set[str]:
        """Files of tasks that nothing names, once abandoned transactions have had time to end."""
        chunks = self._server.data / "chunks"

        def left() -> set[str]:
            files = {str(path.relative_to(chunks)).removesuffix(".idx") for path in chunks.glob("*/i*")}
            return {name for name in files if "/i0-" not in name} - self._named()

        self._server.stop()
        self._server.start()
        with suppress(UnavailableError):
            until(lambda: not left(), "files are left", wait_s=90)
        return left()

    def close(self) -> None:
        self.driver.close()
        self._link.close()


def event(number: int) -> bytes:
    return b"k%d:%d:" % (number % KEYS, number) + bytes(EVENT_BYTES - len(b"k%d:%d:" % (number % KEYS, number)))


def make_control(work: Path) -> None:
    """Make the directory through which processes are held, and name it in the environment."""
    control = work / "control"
    control.mkdir(parents=True)
    os.environ[CONTROL] = str(control)


def stretch(plan: list[T], *, seed: int, part: tuple[int, int]) -> list[T]:
    """The plan in an order drawn from the seed; of that, the first, second, … of so many equal stretches."""
    random.Random(seed).shuffle(plan)
    which, parts = part
    return plan[(which - 1) * len(plan) // parts : which * len(plan) // parts]


def run(
    work: Path,
    *,
    times: int,
    seed: int,
    master: str,
    victims: tuple[str, ...] = VICTIMS,
    part: tuple[int, int] = (1, 1),
    say: Any = None,
) -> dict[str, Any]:
    """Kill ``times`` times, each victim in turn, in an order drawn from the seed; the summary.

    ``part``: only the first, second, … of so many equal stretches of these kills.
    """
    make_control(work)
    plan = stretch([victims[number % len(victims)] for number in range(times)], seed=seed, part=part)
    which, parts = part
    begun = time.monotonic()
    with ServerProcess(work / "data") as server:
        matrix = Matrix(work, server, master=master, seed=seed * parts + which - 1)
        try:
            matrix.begin()
            for number, victim in enumerate(plan, 1):
                matrix.kill(victim)
                if say is not None:
                    say(f"{number}/{len(plan)} {victim}: {time.monotonic() - begun:.0f} s")
            matrix.driver.kill()
            summary = {
                "killed": dict(matrix.killed),
                "driver_starts": matrix.driver.starts,
                "query_failures": matrix.query_failures,
                "slowest_s": round(matrix.slowest_s, 1),
                **matrix.verdict(),
                "took_s": round(time.monotonic() - begun),
                "seed": seed,
                "part": f"{which}/{parts}",
                "master": master,
            }
        finally:
            matrix.close()
    return summary


def is_sound(summary: dict[str, Any]) -> bool:
    return not any(summary[name] for name in ("missing", "surplus", "out_of_order", "left_files"))


def main() -> int:
    if sys.argv[1:2] == ["--drive"]:
        drive(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
        return 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="how many kills (50)")
    parser.add_argument("--seed", type=int, default=1, help="order and moments are drawn from it (1)")
    parser.add_argument("--part", default="1/1", metavar="N/M", help="only the N-th of M stretches of these kills")
    parser.add_argument(
        "--master", default="local-cluster[2,1,1024]", help="Spark's master (two executors of one core)"
    )
    parser.add_argument("--work", type=Path, help="directory to work in, which must be empty (a temporary one)")
    given = parser.parse_args()
    which, parts = (int(word) for word in given.part.split("/"))
    if not 1 <= which <= parts:
        parser.error("--part is N/M with 1 <= N <= M")
    with tempfile.TemporaryDirectory(prefix="kill-matrix-") as temporary:
        work = given.work or Path(temporary)
        summary = run(
            work,
            times=given.times,
            seed=given.seed,
            master=given.master,
            part=(which, parts),
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(json.dumps(summary))
    return 0 if is_sound(summary) else 1


if __name__ == "__main__":
    sys.exit(main())
