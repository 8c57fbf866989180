"""Kill a streaming copy, and restart it under old checkpoints and new ones; then count events.

    python tests/spark/kill_owners.py --times 50 --seed 1
    python tests/spark/kill_owners.py --times 50 --seed 1 --part 2/10     the second tenth of the same kills, on a fresh store
    python tests/spark/kill_owners.py --times 50 --seed 1 --engine spark  with Spark, for hours; otherwise ``small_driver.py``

The copy writes under one ``writer_id`` and reads as one ``subscriber``. Behind each kill one of these follows:

* the query goes on from its checkpoint, and nothing else;
* a stranger starts beside it: a query with a new checkpoint, under the same writer, with or without the subscriber;
* a new checkpoint takes the names over, at the end of what is copied; it is killed in its first batch, while more is
  written, and goes on; then the checkpoint before it starts again;
* a copy of the checkpoint from some batches ago starts beside it.

Strangers must be refused with a typed error, and write nothing. At the end every event must be in the target once, none
missing, those of a key in order. Prints one JSON object; the exit status is 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kill_matrix import EACH_BATCH, Driver, Matrix, is_sound, make_control, session_in, stretch, until

from penstock.model.names import StreamName
from penstock.spark.reasons import reason
from penstock.testing.server import ServerProcess

VICTIMS = (
    "driver before a commit",
    "driver after a commit",
    "store before a commit",
    "store under a task",
    "driver at any time",
)
SEQUELS = ("old checkpoint", "stranger", "stranger without subscriber", "takeover", "old copy")
MASTER = "local[2]"
REFUSALS = ("WriterInUseError", "ConflictError")


def drive(work: Path, master: str, address: str) -> None:
    """The driver's life: the query of ``query.json``, until it is killed or fails."""
    said = json.loads((work / "query.json").read_text())
    session = session_in(work, master)
    given = {"controller": address, "scope": "kill"}
    frame = (
        session.readStream.format("penstock")
        .options(**given, stream="in", columns="event", max_events_per_trigger=str(EACH_BATCH), min_partitions="4")
        .options(**said["read"])
        .load()
        .selectExpr("event", "substring_index(cast(event as string), ':', 1) as routing_key")
    )
    query = (
        frame.writeStream.format("penstock_paused")
        .options(**given, stream="out", writer_id="copy", transaction_timeout_ms="60000")
        .options(**said["write"], checkpointLocation=said["checkpoint"])
        .start()
    )
    (work / "started").touch()
    try:
        query.awaitTermination()
    except Exception as error:
        (work / "failure").write_text(reason(error) or str(error))
        raise


class Owners(Matrix):
    """A matrix whose query changes its checkpoint, beside other queries."""

    def __init__(self, work: Path, server: ServerProcess, *, engine: str, seed: int) -> None:
        self._script = __file__ if engine == "spark" else str(Path(__file__).with_name("small_driver.py"))
        super().__init__(work, server, master=MASTER, seed=seed, script=self._script)
        self._engine = engine
        self._checkpoints = 0
        self._checkpoint = work / "checkpoint-0"
        self._copy: Path | None = None
        self.sequels: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.admitted: list[str] = []
        self._say(work, self._checkpoint, {"start_stream_cut": "earliest", "subscriber": "copy"}, {})

    def _say(self, work: Path, checkpoint: Path, read: dict[str, str], write: dict[str, str]) -> None:
        work.mkdir(exist_ok=True)
        said = {"checkpoint": str(checkpoint), "read": read, "write": write}
        (work / "query.json").write_text(json.dumps(said))

    def follow(self, sequel: str) -> None:
        """What happens behind a kill, once all is copied."""
        if sequel == "takeover":
            self._take_over()
        elif sequel == "old copy":
            self._start_copy()
        elif sequel.startswith("stranger"):
            read = {"start_stream_cut": "earliest"} | ({} if "without" in sequel else {"subscriber": "copy"})
            self._refused(sequel, self._work / f"stranger-{self.sequels.total()}", read)
        self.sequels[sequel] += 1

    def _refused(self, sequel: str, checkpoint: Path, read: dict[str, str]) -> None:
        """Run a query that must be refused, and note how it was."""
        work = self._work / f"beside-{self.sequels.total()}"
        self._say(work, checkpoint, read, {})
        before = self.copied_bytes()
        driver = Driver(work, MASTER, self._server.address, self._script)
        driver.start()
        try:
            driver.process.wait(300)  # type: ignore[union-attr]
        except subprocess.TimeoutExpired:
            self.admitted.append(f"{sequel}: still running")
        finally:
            driver.close()
        failure = (work / "failure").read_text() if (work / "failure").exists() else "none"
        if not failure.startswith(REFUSALS):
            self.admitted.append(f"{sequel}: {failure[:300]}")
        if self.copied_bytes() != before:
            self.admitted.append(f"{sequel}: wrote {self.copied_bytes() - before} bytes")
        self.refusals[failure.partition(":")[0]] += 1

    def _take_over(self) -> None:
        self.driver.kill()
        old, owner = self._checkpoint, json.loads((self._checkpoint / "metadata").read_text())["id"]
        published = self._link.ask(lambda services: services.controller.streams.describe(StreamName("kill", "in")))
        self._checkpoints += 1
        self._checkpoint, self._copy = self._work / f"checkpoint-{self._checkpoints}", None
        (subscriber,) = published.subscribers
        read = {"start_stream_cut": "latest", "subscriber": "copy", "replaces_query": subscriber.query}
        self._say(self._work, self._checkpoint, read, {"replaces_query": owner})
        begun = time.monotonic()
        self._kill_first_batch()
        self.write(EACH_BATCH)
        self.settle(begun)
        # The replaced query has more input to copy, and must not copy it.
        self._refused("replaced", old, {"subscriber": "copy"})
        self._refused("replaced without subscriber", old, {})

    def _kill_first_batch(self) -> None:
        """Kill a new query between its first plan and commit, and start it again. Its start is a moment that has passed."""
        (self._control / "hold-before").touch()
        begins = self._engine == "small" and self._rng.random() < 0.7
        if begins:
            (self._control / "hold-start").touch()
        self.driver.start()
        if begins:
            held = self._held("start")
            self.write(self._rng.choice([40, EACH_BATCH]))
            held.unlink()
        self._held("before")
        self.write(self._rng.choice([40, EACH_BATCH]))
        self.driver.kill()
        for path in self._control.iterdir():
            path.unlink(missing_ok=True)
        self.driver.start()
        self.killed["driver in its first batch" if begins else "driver in an empty first batch"] += 1

    def _held(self, point: str) -> Path:
        found: Path = until(lambda: next(self._control.glob(f"held-{point}-*"), None), "nobody came by", 300)
        return found

    def _start_copy(self) -> None:
        if self._copy is not None:
            # Enough batches behind that it cannot be a restart.
            self._refused("old copy", self._copy, {})
        self._copy = self._work / f"copy-{self.sequels.total()}"
        shutil.copytree(self._checkpoint, self._copy, ignore=shutil.ignore_patterns(".*tmp*"))
        begun = time.monotonic()
        for _ in range(2):
            self.write(EACH_BATCH)
            self.settle(begun)


def run(
    work: Path, *, times: int, seed: int, engine: str, part: tuple[int, int] = (1, 1), say: Any = None
) -> dict[str, Any]:
    """Kill ``times`` times, with a follow-up after each kill, in an order drawn from the seed. Returns a summary."""
    make_control(work)
    plan = [(VICTIMS[number % len(VICTIMS)], SEQUELS[(number + number // 5) % len(SEQUELS)]) for number in range(times)]
    plan = stretch(plan, seed=seed, part=part)
    which, parts = part
    begun = time.monotonic()
    with ServerProcess(work / "data") as server:
        matrix = Owners(work, server, engine=engine, seed=seed * parts + which - 1)
        try:
            matrix.begin()
            for number, (victim, sequel) in enumerate(plan, 1):
                matrix.kill(victim)
                matrix.follow(sequel)
                if say is not None:
                    say(f"{number}/{len(plan)} {victim}, {sequel}: {time.monotonic() - begun:.0f} s")
            matrix.driver.kill()
            return {
                "killed": dict(matrix.killed),
                "sequels": dict(matrix.sequels),
                "refusals": dict(matrix.refusals),
                "admitted": matrix.admitted,
                "driver_starts": matrix.driver.starts,
                "query_failures": matrix.query_failures,
                **matrix.verdict(),
                "took_s": round(time.monotonic() - begun),
                "seed": seed,
                "part": f"{which}/{parts}",
            }
        finally:
            matrix.close()


def main() -> int:
    if sys.argv[1:2] == ["--drive"]:
        drive(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
        return 1
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="how many kills (50)")
    parser.add_argument("--seed", type=int, default=1, help="order and moments are drawn from it (1)")
    parser.add_argument("--part", default="1/1", metavar="N/M", help="only the N-th of M stretches of these kills")
    parser.add_argument("--engine", choices=("small", "spark"), default="small", help="what runs the query (small)")
    given = parser.parse_args()
    which, parts = (int(word) for word in given.part.split("/"))
    with tempfile.TemporaryDirectory(prefix="kill-owners-") as temporary:
        summary = run(
            Path(temporary),
            times=given.times,
            seed=given.seed,
            engine=given.engine,
            part=(which, parts),
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
    print(json.dumps(summary))
    return 0 if is_sound(summary) and not summary["admitted"] else 1


if __name__ == "__main__":
    sys.exit(main())
