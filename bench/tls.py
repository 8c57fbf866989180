"""What TLS costs: single durable events, and events in bulk, with TLS and without, in turns of one run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import penstock
from bench.measure import Figure, figure, percentile
from bench.store import payloads
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

_SINGLE = 2_000  # events
_BULK = 400_000  # events
_EVENT_BYTES = 100


class TlsBench:
    """Two servers, which differ in TLS alone, and a client for each."""

    def __init__(self, directory: Path, runs: int, scale: float) -> None:
        self._directory = directory
        self._runs = runs
        self._single = payloads(_EVENT_BYTES, max(200, int(_SINGLE * scale)))
        self._bulk = payloads(_EVENT_BYTES, max(10_000, int(_BULK * scale)))

    def run(self) -> Iterator[Figure]:
        """Alternate the two in each run, so that a change of the machine's load meets both."""
        single: dict[str, list[float]] = {"plain": [], "TLS": []}
        bulk: dict[str, list[float]] = {"plain": [], "TLS": []}
        with ExitStack() as stack:
            self._directory.mkdir(parents=True, exist_ok=True)
            root = Authority()
            files, ca = root.issue(self._directory), root.write(self._directory / "ca.pem")
            stores: dict[str, penstock.Store] = {}
            for kind in single:
                server = ServerProcess(self._directory / kind, *(files.options() if kind == "TLS" else ()))
                stack.enter_context(server)
                store = (
                    penstock.connect(f"tls://{server.address}", tls_ca=ca)
                    if kind == "TLS"
                    else penstock.connect(server.address)
                )
                stores[kind] = stack.enter_context(store)
                stores[kind].create_scope("bench")
            for turn in range(self._runs + 1):
                for kind, store in stores.items():
                    p50_us, per_s = self._one(store, f"bench/turn-{turn}")
                    if turn:  # the first one warms up
                        single[kind].append(p50_us)
                        bulk[kind].append(per_s)
        for name, work, unit, values, target in (
            ("T1", "one durable event, p50", "us", single, "<= 1.1"),
            ("T2", "durable events in bulk", "events/s", bulk, ">= 0.9"),
        ):
            plain = figure(f"{name}-plain", f"{work}, plain", unit, values["plain"])
            yield plain
            yield figure(
                f"{name}-tls", f"{work}, TLS 1.3", unit, values["TLS"], limit=("plain", plain.median), target=target
            )

    def _one(self, store: penstock.Store, name: str) -> tuple[float, float]:
        """The median time of a single event in microseconds, and events per second in bulk."""
        stream = store.create_stream(name, segments=1)
        times: list[float] = []
        with stream.writer() as writer:
            for event in self._single:
                began = time.perf_counter()
                writer.write(event, key="k")
                writer.flush()
                times.append((time.perf_counter() - began) * 1e6)
        began = time.perf_counter()
        with stream.writer() as writer:
            for event in self._bulk:
                writer.write(event, key="k")
            writer.flush()
        per_s = len(self._bulk) / (time.perf_counter() - began)
        return percentile(times, 0.5), per_s
