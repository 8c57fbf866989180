"""Kill a query that writes to several streams, between the commits of its streams; then count events.

    python tests/spark/route_kills.py            every place, in a few minutes

The sink is the real one, on a real server, and is called in Spark's order without Spark, as in ``small_driver.py``. Each
batch has rows for three streams: many for ``a``, which tasks write to tier 2, and few for the others. A process is killed by
SIGKILL before and after the commit of each stream, or the server is killed there, and is started again. Prints one JSON object;
the exit status is 1 where anything is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from kill_matrix import CONTROL, make_control, pause, until
from pyspark import TaskContext
from small_driver import Checkpoint, Context

from penstock.model.names import StreamName
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.spark.connect import Link, Services, dial
from penstock.spark.options import parse_sink
from penstock.spark.writing.batch_commit import BatchCommit
from penstock.spark.writing.sink import StreamWriter
from penstock.testing.server import ServerProcess

NAMES = ("a", "b", "c")
PLACES = tuple(f"{when} {at}" for at in range(len(NAMES)) for when in ("before", "after"))
VICTIMS = ("driver", "server")


def rows_of(batch: int, task: int) -> list[tuple[str, bytes]]:
    """The rows of a task: the same for each repeat of the batch."""
    first = batch * 1000 + task * 500
    rows = []
    for number in range(first, first + 120):
        name = NAMES[0] if number % 10 else NAMES[1 + number // 10 % 2]
        rows.append((name, b"k%d:%d:" % (number % 5, number) + bytes(2000)))
    return rows


def arrow(rows: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "event": [event for _, event in rows],
            "routing_key": [event.split(b":")[0].decode() for _, event in rows],
            "stream": [name for name, _ in rows],
        }
    )


# --- the process that is killed ----------------------------------------------------------------------------------


def drive(work: Path, address: str, place: str, victim: str, last: int) -> None:
    """Write batches up to ``last``. At the first commit of a batch that reaches the place, the victim is killed."""
    decide, seen = BatchCommit.decide, 0

    async def watched(self: BatchCommit, services: Services) -> bool:
        nonlocal seen
        number, seen = seen, seen + 1
        if place == f"before {number}":
            strike(victim)
        answer = await decide(self, services)
        if place == f"after {number}":
            strike(victim)
        return answer

    BatchCommit.decide = watched  # type: ignore[method-assign]
    options = parse_sink({"controller": address, "scope": "route", "transaction_timeout_ms": "60000"})
    checkpoint, run = Checkpoint(work / "checkpoint"), str(uuid4())
    for batch in range(checkpoint.committed + 1, last + 1):
        checkpoint.plan(batch, {})
        planned = StreamWriter(dial, options, True, ("stream",))
        messages = []
        for task in range(2):
            said = {
                "sql.streaming.queryId": checkpoint.query,
                "streaming.sql.batchId": str(batch),
                "spark.jobGroup.id": run,
            }
            context = Context(task, said)
            TaskContext.get = staticmethod(lambda context=context: context)
            rows = rows_of(batch, task)
            messages.append(planned.write(iter([arrow(rows[:50]), arrow(rows[50:])])))
        StreamWriter(dial, options, True, ("stream",)).commit(messages, batchId=batch)
        checkpoint.commit(batch)


def strike(victim: str) -> None:
    if victim == "driver":
        os.kill(os.getpid(), signal.SIGKILL)
    pause("commit")


# --- the process that kills --------------------------------------------------------------------------------------


def run(work: Path, kills: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A batch for each kill, given as (place, victim), and one more. Returns a summary."""
    make_control(work)
    control = Path(os.environ[CONTROL])
    killed: Counter[str] = Counter()
    with ServerProcess(work / "data") as server:
        _create(server.address)
        for batch, (place, victim) in enumerate(kills):
            if victim == "server":
                (control / "hold-commit").touch()
            process = _start(work, server.address, place, victim, batch)
            if victim == "server":
                held = until(lambda: next(control.glob("held-commit-*"), None), "nobody came by", 120)
                server.kill()
                server.start()
                held.unlink()
                assert process.wait(120) == 0
            else:
                assert process.wait(120) == -signal.SIGKILL
            killed[f"{victim} {place}"] += 1
        assert _start(work, server.address, "nowhere", "driver", len(kills)).wait(120) == 0
        return {"killed": dict(killed), **_verdict(server.address, len(kills) + 1)}


def _start(work: Path, address: str, place: str, victim: str, last: int) -> subprocess.Popen[bytes]:
    with (work / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, __file__, "--drive", str(work), address, place, victim, str(last)], stdout=log, stderr=log
        )


def _create(address: str) -> None:
    async def create(services: Services) -> None:
        await services.controller.scopes.create("route")
        for number, name in enumerate(NAMES, 1):
            config = StreamConfig(scaling=ScalingPolicy(min_segments=number))
            await services.controller.streams.create(StreamName("route", name), config)

    link = Link(dial, address)
    link.ask(create)
    link.close()


def _verdict(address: str, batches: int) -> dict[str, Any]:
    import penstock

    missing = surplus = disordered = events = 0
    for name in NAMES:
        with penstock.connect(address) as store, store.stream(f"route/{name}").reader(until_tail=True) as reader:
            found = [item.data for item in reader]
        rows = [row for batch in range(batches) for task in range(2) for row in rows_of(batch, task)]
        wanted, times = Counter(event for target, event in rows if target == name), Counter(found)
        missing += sum((wanted - times).values())
        surplus += sum((times - wanted).values())
        events += len(found)
        last: dict[bytes, int] = {}
        for item in found:
            key, number = item.split(b":")[:2]
            disordered += int(number) <= last.get(key, -1)
            last[key] = int(number)
    return {"events": events, "missing": missing, "surplus": surplus, "out_of_order": disordered}


def is_sound(summary: dict[str, Any]) -> bool:
    return not any(summary[name] for name in ("missing", "surplus", "out_of_order"))


def main() -> int:
    if sys.argv[1:2] == ["--drive"]:
        drive(Path(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))
        return 0
    with tempfile.TemporaryDirectory(prefix="route-kills-") as temporary:
        summary = run(Path(temporary), [(place, victim) for place in PLACES for victim in VICTIMS])
    print(json.dumps(summary))
    return 0 if is_sound(summary) else 1


if __name__ == "__main__":
    sys.exit(main())
