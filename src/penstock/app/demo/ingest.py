"""The writer of the demo, a process of its own: ``python -m penstock.app.demo.ingest``.

Prints one JSON object per line: the number of durable events.
"""

from __future__ import annotations

import argparse
import json
import time

import penstock
from penstock.app.demo.flights import events

_STEP = 1000  # events between two pauses: few enough for an even rate
_PATIENCE_S = 600.0  # the backlog quota lets it wait for the query, whose first batch takes minutes on a busy machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controller", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="spread the input over this time")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()

    flights = events(given.limit)
    pause = given.seconds / max(1, len(flights) / _STEP)
    with (
        penstock.connect(given.controller) as store,
        store.stream(given.stream).writer(deadline_s=_PATIENCE_S) as writer,
    ):
        due = time.monotonic()
        size_bytes = 0
        for start in range(0, len(flights), _STEP):
            for event, key in flights[start : start + _STEP]:
                writer.write(event, key)
                size_bytes += len(event)
            writer.flush()
            done = min(start + _STEP, len(flights))
            print(json.dumps({"events": done, "bytes": size_bytes, "of": len(flights)}), flush=True)
            due += pause
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
