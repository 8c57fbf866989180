"""What TLS and tokens cost: single durable events, and events in bulk, with and without them, in turns of one run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import penstock
from bench.measure import Figure, figure, percentile
from bench.store import payloads
from penstock.core.access.resources import parse_grant
from penstock.model.credentials import Credentials
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import ServerProcess
from tests.certificates import Authority, Files

_SINGLE = 2_000  # events
_IN_A_ROW = 50
"""Single events with one server before those with the next: a slow moment of the disk meets all of them."""
_BULK = 400_000  # events
_EVENT_BYTES = 100
_SWITCH_S = 0.001
"""The interpreter's switch interval of the second bulk run: the default, 5 ms, is how long the client's loop waits for the
writing thread after each call that encrypts."""
_PASSWORD = "correct horse"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a server and its client are protected."""

    name: str
    tls: bool
    tokens: bool


_KINDS = (_Kind("plain", False, False), _Kind("TLS 1.3", True, False), _Kind("TLS 1.3 and tokens", True, True))


class TlsBench:
    """Servers that differ in their protection alone, and a client for each."""

    def __init__(self, directory: Path, runs: int, scale: float) -> None:
        self._directory = directory
        self._runs = runs
        self._single = payloads(_EVENT_BYTES, max(200, int(_SINGLE * scale)))
        self._bulk = payloads(_EVENT_BYTES, max(10_000, int(_BULK * scale)))

    def run(self) -> Iterator[Figure]:
        """Take turns in each run, so that a change of the machine's load meets all kinds."""
        single: dict[str, list[float]] = {kind.name: [] for kind in _KINDS}
        bulk: dict[str, list[float]] = {kind.name: [] for kind in _KINDS}
        switched: dict[str, list[float]] = {kind.name: [] for kind in _KINDS}
        with ExitStack() as stack:
            self._directory.mkdir(parents=True, exist_ok=True)
            root = Authority()
            files, ca = root.issue(self._directory), root.write(self._directory / "ca.pem")
            stores = {kind.name: self._open(stack, kind, files, ca) for kind in _KINDS}
            for turn in range(self._runs + 1):
                streams = {
                    name: store.create_stream(f"bench/turn-{turn}", segments=1) for name, store in stores.items()
                }
                times = self._singles(streams)
                for name, stream in streams.items():
                    per_s = self._in_bulk(stream)
                    switched_per_s = self._in_bulk(stream, switch_s=_SWITCH_S)
                    if turn:  # the first one warms up
                        single[name].append(percentile(times[name], 0.5))
                        bulk[name].append(per_s)
                        switched[name].append(switched_per_s)
        for row, work, unit, values, target in (
            ("T1", "one durable event, p50", "us", single, "<= 1.1"),
            ("T2", "durable events in bulk", "events/s", bulk, ">= 0.9"),
            ("T3", "the same, sys.setswitchinterval(0.001)", "events/s", switched, ">= 0.9"),
        ):
            plain = figure(f"{row}-plain", f"{work}, plain", unit, values["plain"])
            yield plain
            for kind, mark in zip(_KINDS[1:], ("tls", "tls-tokens"), strict=True):
                limit = ("plain", plain.median)
                yield figure(
                    f"{row}-{mark}", f"{work}, {kind.name}", unit, values[kind.name], limit=limit, target=target
                )

    def _open(self, stack: ExitStack, kind: _Kind, files: Files, ca: Path) -> penstock.Store:
        data = self._directory / kind.name.replace(" ", "-")
        options = [*(files.options() if kind.tls else ()), *(("--auth",) if kind.tokens else ())]
        if kind.tokens:

            def add(users: dict[str, User]) -> None:
                users["ann"] = User(name="ann", password=hash_password(_PASSWORD), grants=(parse_grant("/=*"),))

            change_users(users_path(data), add)
        server = stack.enter_context(ServerProcess(data, *options))
        credentials = Credentials.basic("ann", _PASSWORD) if kind.tokens else None
        if kind.tls:
            store = penstock.connect(f"tls://{server.address}", tls_ca=ca, credentials=credentials)
        else:
            store = penstock.connect(server.address)
        stack.enter_context(store)
        store.create_scope("bench")
        return store

    def _singles(self, streams: dict[str, penstock.Stream]) -> dict[str, list[float]]:
        """Times of single events in microseconds."""
        times: dict[str, list[float]] = {name: [] for name in streams}
        with ExitStack() as stack:
            writers = {name: stack.enter_context(stream.writer()) for name, stream in streams.items()}
            for first in range(0, len(self._single), _IN_A_ROW):
                for name, writer in writers.items():
                    for event in self._single[first : first + _IN_A_ROW]:
                        began = time.perf_counter()
                        writer.write(event, key="k")
                        writer.flush()
                        times[name].append((time.perf_counter() - began) * 1e6)
        return times

    def _in_bulk(self, stream: penstock.Stream, *, switch_s: float | None = None) -> float:
        """Events per second. ``switch_s``: the interpreter's switch interval; None: as it is."""
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(usual_s if switch_s is None else switch_s)
        try:
            began = time.perf_counter()
            with stream.writer() as writer:
                for event in self._bulk:
                    writer.write(event, key="k")
                writer.flush()
            return len(self._bulk) / (time.perf_counter() - began)
        finally:
            sys.setswitchinterval(usual_s)
