"""``kill -9`` the real server again and again under load from the official client, then check what was acknowledged.

    python -m tests.crash.kill_cycles --cycles 60

Prints one JSON object: cycles, acknowledged events, lost, duplicated, out of order, the slowest restart.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import penstock
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.testing.server import ServerProcess

LOAD = (sys.executable, "-m", "tests.crash.official_load")
WRITERS, KEYS = 2, 5


def check(acked: Sequence[str], found: Sequence[str]) -> dict[str, int]:
    """Anomalies of what was read, in order, against what was acknowledged, as counts.

    Events that were written but not acknowledged may be there or not; they may not be there twice.
    """
    times = Counter(found)
    order: dict[str, list[int]] = defaultdict(list)
    for event in found:
        key, sequence = event.split()
        order[key].append(int(sequence))
    return {
        "lost": sum(event not in times for event in set(acked)),
        "duplicated": sum(count > 1 for count in times.values()),
        "out_of_order": sum(
            later <= earlier for values in order.values() for earlier, later in zip(values, values[1:], strict=False)
        ),
    }


def run(directory: Path, cycles: int, seed: int, *, pause: tuple[float, float] = (0.2, 1.0)) -> dict[str, float]:
    """Run the cycles below ``directory`` and return the summary."""
    rng = random.Random(seed)
    stop = directory / "stop"
    slowest = 0.0
    with ServerProcess(directory / "data") as server:
        with penstock.connect(server.address) as store:
            store.create_scope("kill")
            keep = RetentionPolicy(type=RetentionType.SIZE, minimum=1 << 40)
            store.create_stream("kill/st", segments=2, retention=keep)
        logs = [directory / f"acked-{number}" for number in range(WRITERS)]
        writers = [
            subprocess.Popen([*LOAD, "write", server.address, "kill/st", str(log), str(stop), f"w{n}", str(KEYS)])
            for n, log in enumerate(logs)
        ]
        seen = directory / "seen"
        reader = subprocess.Popen([*LOAD, "read", server.address, "kill/st", str(seen), str(stop), "rg"])
        try:
            for _ in range(cycles):
                # A server that is killed before its writers are back loses nothing, and shows nothing.
                wait_for_writers(logs, server)
                time.sleep(rng.uniform(*pause))
                server.kill()
                slowest = max(slowest, server.start())
            wait_for_writers(logs, server)
            stop.touch()
            for writer in writers:
                assert writer.wait(90) == 0, "the official client gave up"
            acked = [line for log in logs for line in log.read_text().splitlines()]
            handed_out = wait_for(seen, set(acked), reader)
        finally:
            for child in (*writers, reader):
                child.kill()
                child.wait()
        with penstock.connect(server.address) as store, store.stream("kill/st").reader(until_tail=True) as all_events:
            found = [event.data.decode() for event in all_events]
    by_reader = check(acked, handed_out)
    return {
        "cycles": cycles,
        "acked": len(acked),
        "read": len(found),
        "slowest_restart_s": round(slowest, 2),
        **check(acked, found),
        **{f"reader_{name}": count for name, count in by_reader.items()},
    }


def wait_for_writers(logs: Sequence[Path], server: ServerProcess, timeout_s: float = 60) -> None:
    """Wait until a writer has had one more batch acknowledged. The writers must get through by themselves."""

    def acknowledged() -> int:
        return sum(log.stat().st_size for log in logs if log.exists())

    before, deadline = acknowledged(), time.monotonic() + timeout_s
    while acknowledged() == before:
        if time.monotonic() > deadline:
            raise AssertionError(f"no writer got on after a restart\n{server.tail()}")
        time.sleep(0.1)


def wait_for(log: Path, wanted: set[str], reader: subprocess.Popen[bytes], timeout_s: float = 120) -> list[str]:
    """What the official reader was handed, once all that is wanted is among it. It re-issues a lost read after 30 s."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = log.read_text().splitlines() if log.exists() else []
        if wanted <= set(found):
            return found
        assert reader.poll() is None, "the official reader gave up"
        if time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        started = time.monotonic()
        summary = run(Path(directory), given.cycles, given.seed)
        print(json.dumps(summary | {"took_s": round(time.monotonic() - started)}))
    sys.exit(any(count for name, count in summary.items() if name.endswith(("lost", "duplicated", "out_of_order"))))


if __name__ == "__main__":
    main()
