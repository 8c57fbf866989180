"""The loop of a client process: one JSON line asks for one piece of work, one answers with what it took.

Runs on the peers' own Python environment, so it and the clients import the standard library and one client library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class PeerClient(Protocol):
    """What every peer's client can do. Times in seconds; latencies in microseconds; events are random bytes of one size."""

    def first(self) -> None:
        """Make a topic and have one event acknowledged. Raises whatever the client raises while there is no server yet."""

    def create(self, topic: str, partitions: int) -> None: ...

    def ingest(self, topic: str, size: int, count: int, keys: int, partitions: int) -> float:
        """Write ``count`` events as fast as they are taken, until the last is acknowledged. ``keys`` 0: no routing keys."""

    def single(self, topic: str, count: int) -> list[float]:
        """Write events of 100 B, each after the one before is acknowledged; the latency of each."""

    def tail(self, topic: str, count: int, rate: int) -> list[float]:
        """Write ``rate`` events a second to an empty topic where a reader waits; from write call to event in hand."""

    def read(self, topic: str, count: int) -> float:
        """Read ``count`` events from the beginning into a list of ``bytes``."""

    def delete(self, topic: str) -> None: ...


def payloads(size: int, count: int) -> list[bytes]:
    """Events of one size, a thousand distinct ones."""
    blob = os.urandom(size * 1000)
    return [blob[index % 1000 * size : (index % 1000 + 1) * size] for index in range(count)]


def routing_keys(keys: int, count: int) -> list[str]:
    names = [f"key-{number}" for number in range(keys)]
    return [names[index * 7919 % keys] for index in range(count)]


def paced(count: int, rate: int) -> Iterator[None]:
    """``count`` steps, ``rate`` a second; late ones follow at once."""
    due = time.perf_counter()
    for _ in range(count):
        yield
        due += 1 / rate
        time.sleep(max(0.0, due - time.perf_counter()))


def stamp() -> bytes:
    """100 bytes that say when they were made."""
    return repr(time.perf_counter()).encode().ljust(100)


def lag_us(event: bytes) -> float:
    return (time.perf_counter() - float(event)) * 1e6


def check(events: Sequence[bytes], count: int) -> None:
    if len(events) < count or not all(type(item) is bytes for item in events):
        raise RuntimeError(f"reader is short of events. wanted={count} got={len(events)}")


def serve(client: Any) -> None:
    """Answer until standard input ends. A failure is sent as the answer; then comes the next piece of work."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries that print do not disturb the answers
    print(json.dumps({"result": "ready"}), file=out)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"result": getattr(client, asked.pop("do"))(**asked)}
        except Exception as error:  # noqa: BLE001 - the caller gets it, and decides
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), file=out)
