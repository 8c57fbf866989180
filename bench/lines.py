"""Single durable events of a blocking writer, with and without its direct line (docs/design/0030-writing.md).

python -m bench.lines DIRECTORY ...    an embedded store in each directory; the two writers take turns of 30 events
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import penstock
from penstock.client.blocking import writers

ROUNDS, TURN_EVENTS = 60, 30
EVENT = b"x" * 100


def compare(directory: Path) -> None:
    """Print the tenth, the half and the CPU time of an event for both writers."""
    with tempfile.TemporaryDirectory(dir=directory) as data, penstock.open(data) as store:
        store.create_scope("s")
        with_line = store.create_stream("s/line").writer()
        with patch.object(writers, "direct_lines", lambda *_, **__: None):
            without = store.create_stream("s/none").writer()
        kinds = {"with a line": with_line, "without": without}
        waits: dict[str, list[float]] = {name: [] for name in kinds}
        cpu_s = dict.fromkeys(kinds, 0.0)
        for number in range(-1, ROUNDS):
            for name in sorted(kinds, reverse=bool(number % 2)):
                found, used_s = _turn(kinds[name])
                if number >= 0:  # the first turn opens the line
                    waits[name] += found
                    cpu_s[name] += used_s
        for name, found in waits.items():
            found.sort()
            tenth, half, cpu = found[len(found) // 10], found[len(found) // 2], cpu_s[name] / len(found)
            print(
                f"{directory}  {name:12}  p10 {tenth * 1e6:.0f}  p50 {half * 1e6:.0f}  CPU {cpu * 1e6:.0f} us an event"
            )


def _turn(writer: penstock.Writer) -> tuple[list[float], float]:
    waits = list[float]()
    began_cpu = time.process_time()
    for _ in range(TURN_EVENTS):
        began = time.perf_counter()
        writer.write(EVENT)
        writer.flush()
        waits.append(time.perf_counter() - began)
    return waits, time.process_time() - began_cpu


if __name__ == "__main__":
    for place in sys.argv[1:]:
        compare(Path(place))
