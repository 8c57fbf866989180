"""The main job, end to end: a store, a writer, a Spark query, retention, and a ``kill -9`` in the middle."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.app.demo import check, flights
from penstock.app.demo.picture import Sample, draw
from penstock.app.demo.processes import Child
from penstock.app.demo.view import Board, View
from penstock.app.remote import open_remote
from penstock.core.retention.facts import holder_in_words
from penstock.core.units import format_size
from penstock.model.errors import InvalidArgumentError, PenstockError, StorageFullError, UnavailableError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.ports.control.plane import ControlPlane

_STORY = """\
Writes {total:,} flights, in time order, to a store in a process of its own. A Spark query reads them as subscriber 'delays',
keeps delay statistics per carrier and hour, and writes every update to a second stream, exactly once, and to Parquet. In the
middle the store is killed (kill -9). The store keeps at least 4 MB and at most 64 MB; in between it deletes what the query
has processed. The writer waits while 48 MB are unread. Everything is in {data}, logs in {data}/logs. First, Spark starts."""
SCOPE = "demo"
FLIGHTS = f"{SCOPE}/flights"
DELAYS = f"{SCOPE}/delays"
LIMITS = RetentionPolicy(type=RetentionType.SIZE, minimum=4_000_000, maximum=64_000_000)
# The maximum takes unread data too: on a slow machine the writer must not come that far ahead of the query.
POLICY = {
    "retain": {"min_bytes": LIMITS.minimum, "max_bytes": LIMITS.maximum},
    "backlog": {"max_bytes": 48_000_000, "on_exceed": "hold"},
    "unsubscribed": "release",
}
_KILL_AT = 0.45  # share of the events: the query is in the middle of its work then
_NEEDED_BYTES = 1 << 30


class Demo:
    """One run. ``data`` is emptied of an earlier run's files first."""

    def __init__(self, data: Path, *, limit: int | None, plain: bool) -> None:
        self.data = data.absolute()
        self.limit = limit
        self.total = min(limit or flights.TOTAL_FLIGHTS, flights.TOTAL_FLIGHTS)
        self.board = Board(total_events=self.total)
        self.view = View(self.board, plain=plain)
        self.samples: list[Sample] = []
        self.kills: list[tuple[float, float]] = []
        self.started = time.monotonic()
        self.controller_port, self.store_port = _free_ports(2)
        self.children: list[Child] = []
        self._last_count = (0.0, 0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.controller_port}"

    def at(self) -> float:
        return time.monotonic() - self.started

    def on_line(self, name: str, values: dict[str, Any]) -> None:
        if name == "writer" and "events" in values:
            then, before = self._last_count
            self._last_count = (self.at(), values["events"])
            rate = (values["events"] - before) / max(1e-3, self.at() - then)
            self.board.written_rate = 0.8 * self.board.written_rate + 0.2 * rate
            self.board.written_events = values["events"]
        elif name == "query" and "batch" in values:
            self.board.processed_rows = values["rows"]
            self.board.batch, self.board.batch_ms = values["batch"], values["ms"]

    def start(self, name: str, *command: str) -> Child:
        child = Child(name, command, self.data / "logs" / f"{name}.log", self.on_line)
        self.children.append(child)
        return child

    def start_store(self) -> Child:
        store = self.start(
            "store",
            *("-m", "penstock", "standalone", "--json", "--data", str(self.data / "store")),
            *("--controller-port", str(self.controller_port), "--store-port", str(self.store_port)),
            *("--http-port", "0", "--retention-cycle", "1s"),
        )
        deadline = time.monotonic() + 30
        while "serving" not in store.last:
            store.check()
            if time.monotonic() > deadline:
                raise UnavailableError("the store did not start in 30 s")
            time.sleep(0.02)
        self.board.store = f"serving on {self.address}, process {store.process.pid}"
        return store

    def start_writer(self) -> Child:
        limit = ("--limit", str(self.limit)) if self.limit else ()
        seconds = str(max(5.0, 60.0 * self.total / flights.TOTAL_FLIGHTS))
        return self.start(
            "writer",
            *("-m", "penstock.app.demo.ingest", "--controller", self.address, "--stream", FLIGHTS),
            *("--seconds", seconds, *limit),
        )

    def start_query(self) -> Child:
        return self.start(
            "query",
            *("-m", "penstock.spark.flight_delays", "--controller", self.address, "--scope", SCOPE),
            *("--input", "flights", "--output", "delays", "--checkpoint", str(self.data / "checkpoint")),
            *("--parquet", str(self.data / "parquet"), "--work", str(self.data / "spark")),
        )

    async def observe(self, controller: ControlPlane) -> None:
        """Take one sample; a store that is down for now just has none."""
        try:
            found = await asyncio.wait_for(controller.streams.describe(StreamName.parse(FLIGHTS)), 1.0)
        except (PenstockError, TimeoutError):
            return
        mine = [item for item in found.subscribers if item.name == f"{SCOPE}/delays" and item.cut is not None]
        head = found.written_bytes - found.size_bytes
        self.board.sample = Sample(
            at_s=self.at(),
            written=found.written_bytes,
            head=head,
            acknowledged=found.written_bytes - mine[0].lag_bytes if mine else head,
            disk=found.disk_bytes,
            events=self.board.written_events,
        )
        self.board.held_by = holder_in_words(found.held_by)
        self.samples.append(self.board.sample)

    async def watch(self, writer: Child, query: Child) -> None:
        """Show the run, kill the store in the middle, and end the query when everything is written."""
        async with open_remote(self.address) as (_, controller):
            while query.running:
                for child in (writer, query):
                    child.check()
                if not self.kills and self.board.written_events >= _KILL_AT * self.total and self.board.batch >= 0:
                    # Not in a thread: the new store would be killed with the thread that started it (PR_SET_PDEATHSIG).
                    self.kill_store()
                await self.observe(controller)
                self.view.show(self.at())
                if not writer.running and self.kills:
                    query.close_input()
                await asyncio.sleep(0.3)
            query.check()
            # One more retention cycle follows what the query published last.
            for _ in range(8):
                await self.observe(controller)
                self.view.show(self.at())
                await asyncio.sleep(0.4)

    def kill_store(self) -> None:
        store = next(child for child in reversed(self.children) if child.name == "store")
        down = self.at()
        self.view.note(
            f"{down:5.1f} s  kill -9 of the store (process {store.process.pid}); writer and query are left alone"
        )
        store.kill()
        self.board.store = "killed"
        time.sleep(1.0)
        self.start_store()
        self.kills.append((down, self.at()))
        self.view.note(
            f"{self.at():5.1f} s  the store is back, {self.at() - down - 1.0:.1f} s after it was started again"
        )

    def stop(self) -> None:
        for child in reversed(self.children):
            child.stop()


def _free_ports(count: int) -> Sequence[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [item.getsockname()[1] for item in held]
    for item in held:
        item.close()
    return ports


def _prepare(data: Path) -> None:
    """Empty the demo's directory; refuse one that holds anything else."""
    marker = data / ".penstock-demo"
    if data.exists() and any(data.iterdir()) and not marker.exists():
        raise InvalidArgumentError(
            "the directory is not empty, and the demo did not create it; choose another with --data", data=data
        )
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    marker.touch()
    if shutil.disk_usage(data).free < _NEEDED_BYTES:
        raise StorageFullError("the demo needs 1 GiB of free disk", data=data)


async def _results(address: str) -> list[bytes]:
    from penstock.client.store import AsyncStore
    from penstock.storage.machine.clock import RealClock
    from penstock.storage.machine.rng import RealRng

    async with open_remote(address) as (segments, controller):
        store = AsyncStore(segments, controller, RealClock(), RealRng())
        async with store.stream(DELAYS).reader(start="head", until_tail=True) as reader:
            return [event.data async for event in reader]


async def _create(address: str) -> None:
    from penstock.client.store import AsyncStore
    from penstock.storage.machine.clock import RealClock
    from penstock.storage.machine.rng import RealRng

    async with open_remote(address) as (segments, controller):
        store = AsyncStore(segments, controller, RealClock(), RealRng())
        await store.create_scope(SCOPE)
        flights_stream = await store.create_stream(FLIGHTS, segments=4)
        await flights_stream.retention.set(POLICY)
        await store.create_stream(DELAYS, segments=2)


def run_demo(data: Path, *, limit: int | None, plain: bool) -> int:
    """Run the whole demo in ``data`` and return 0 if nothing was lost or doubled."""
    flights.source_file()
    _prepare(data)
    demo = Demo(data, limit=limit, plain=plain)
    demo.view.console.print(_STORY.format(data=data, total=demo.total), highlight=False, soft_wrap=True)
    try:
        demo.start_store()
        asyncio.run(_create(demo.address))
        with demo.view:
            query = demo.start_query()
            while "started" not in query.last:
                query.check()
                demo.view.show(demo.at())
                time.sleep(0.2)
            writer = demo.start_writer()
            asyncio.run(demo.watch(writer, query))
        writer.finish(1)
        query.finish(30)
        return _report(demo)
    finally:
        demo.stop()


def _report(demo: Demo) -> int:
    results = asyncio.run(_results(demo.address))
    wanted = check.expected(demo.limit)
    from_stream = check.compare(check.from_events(results), wanted)
    from_files = check.compare(check.from_parquet(demo.data / "parquet"), wanted)
    official = demo.start(
        "official-client",
        *("-m", "penstock.app.demo.official", "--controller", demo.address, "--scope", SCOPE, "--stream", "delays"),
        *("--expected", str(len(results)), "--group", "official"),
    )
    official.finish(60)
    picture = demo.data / "retention.png"
    maximum = LIMITS.maximum or 0
    draw(demo.samples, picture, minimum=LIMITS.minimum, maximum=maximum, kills=demo.kills)
    last = demo.samples[-1]
    table = [
        ("events written", f"{demo.board.written_events:,}"),
        (
            "events processed",
            f"{from_stream.processed:,} in {from_stream.groups:,} groups of carrier and hour, {len(results):,} updates",
        ),
        ("duplicates", f"{from_stream.duplicates} in the result stream, {from_files.duplicates} in Parquet"),
        ("losses", f"{from_stream.losses} in the result stream, {from_files.losses} in Parquet"),
        ("wrong delay sums", f"{from_stream.wrong_sums + from_files.wrong_sums} (against pandas over the source)"),
        ("store killed", f"{len(demo.kills)} time, down {sum(end - start for start, end in demo.kills):.1f} s"),
        ("bytes written", format_size(last.written)),
        (
            "bytes reclaimed",
            f"{format_size(last.written - last.disk)}: du of the stream's chunks is {format_size(last.disk)}",
        ),
        (
            "official client",
            f"read all {official.last['read']:,} updates of the result stream, the first: {official.last['first'][0]}",
        ),
        ("took", f"{demo.at():.0f} s"),
        ("picture", str(picture)),
    ]
    width = max(len(name) for name, _ in table)
    for name, value in table:
        demo.view.console.print(f"{name:<{width}}  {value}", highlight=False, soft_wrap=True)
    good = from_stream.good and from_files.good and official.last["read"] == len(results) and bool(demo.kills)
    summary = {"good": good, "written": demo.board.written_events, "processed": from_stream.processed}
    (demo.data / "summary.json").write_text(json.dumps(summary | {"samples": len(demo.samples)}))
    return 0 if good else 1
