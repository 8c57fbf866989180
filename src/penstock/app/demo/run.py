"""The main job, end to end: a store, a writer, a Spark query, retention, and ``kill -9`` in the middle."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

from penstock.app.demo import check, flights
from penstock.app.demo.picture import Sample, draw
from penstock.app.demo.processes import Child
from penstock.app.demo.sites import Kill, OneServer, Site
from penstock.app.demo.view import Board, View
from penstock.app.remote import open_remote
from penstock.core.retention.facts import holder_in_words
from penstock.core.units import format_size
from penstock.model.errors import InvalidArgumentError, PenstockError, StorageFullError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.plane import ControlPlane

_STORY = """\
Writes {total:,} flights, in time order, to a store. {site}
A Spark query reads them as subscriber 'delays', keeps delay statistics per carrier and hour, and writes every update to a
second stream, exactly once, and to Parquet. The store keeps at least 4 MB and at most 64 MB; in between it deletes what the
query has processed. The writer waits while 48 MB are unread. Everything is in {data}, logs in {data}/logs. First, Spark
starts."""
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
_STEP_EVENTS = 1000  # the writer reports each such step, with events for all segments
_BETWEEN_KILLS_S = 5.0
_NEEDED_BYTES = 1 << 30


@dataclass(slots=True, kw_only=True)
class Outage:
    """``what`` was killed at ``down_s``, when ``events`` were written. ``back_s``: when the writer had written a whole step
    that began later."""

    what: str
    down_s: float
    events: int
    back_s: float | None = None


class Demo:
    """One run. ``data`` was emptied of an earlier run's files."""

    def __init__(self, data: Path, site: Site, *, limit: int | None, plain: bool) -> None:
        self.data = data.absolute()
        self.site = site
        self.limit = limit
        self.total = min(limit or flights.TOTAL_FLIGHTS, flights.TOTAL_FLIGHTS)
        self.board = Board(total_events=self.total)
        self.view = View(self.board, plain=plain)
        self.samples: list[Sample] = []
        self.outages: list[Outage] = []
        self.started = time.monotonic()
        self.children: list[Child] = []
        self._last_count = (0.0, 0)

    def at(self) -> float:
        return time.monotonic() - self.started

    def on_line(self, name: str, values: dict[str, Any]) -> None:
        if name == "writer" and "events" in values:
            then, before = self._last_count
            self._last_count = (self.at(), values["events"])
            rate = (values["events"] - before) / max(1e-3, self.at() - then)
            self.board.written_rate = 0.8 * self.board.written_rate + 0.2 * rate
            self.board.written_events = values["events"]
            for outage in self.outages:
                if outage.back_s is None and values["events"] > outage.events + _STEP_EVENTS:
                    outage.back_s = self.at()
        elif name == "query" and "batch" in values:
            self.board.processed_rows = values["rows"]
            self.board.batch, self.board.batch_ms = values["batch"], values["ms"]

    def start(self, name: str, *command: str) -> Child:
        child = Child(name, command, self.data / "logs" / f"{name}.log", self.on_line)
        self.children.append(child)
        return child

    def start_writer(self) -> Child:
        limit = ("--limit", str(self.limit)) if self.limit else ()
        seconds = str(max(5.0, self.site.writes_s * self.total / flights.TOTAL_FLIGHTS))
        return self.start(
            "writer",
            *("-m", "penstock.app.demo.ingest", "--controller", self.site.address, "--stream", FLIGHTS),
            *("--seconds", seconds, *limit),
        )

    def start_query(self) -> Child:
        return self.start(
            "query",
            *("-m", "penstock.spark.flight_delays", "--controller", self.site.address, "--scope", SCOPE),
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
        """Show the run, kill what the site names, and end the query when everything is written."""
        left = list(self.site.kills)
        async with open_remote(self.site.address) as (_, controller):
            while query.running:
                for child in (writer, query):
                    child.check()
                self.site.look()
                self.board.store = self.site.state
                if left and self.is_due(left[0]):
                    # Not in a thread: a new process would be killed with the thread that started it (PR_SET_PDEATHSIG).
                    self.kill(left.pop(0))
                await self.observe(controller)
                self.view.show(self.at())
                if not writer.running and not left:
                    query.close_input()
                await asyncio.sleep(0.3)
            query.check()
            # One more retention cycle follows what the query published last.
            for _ in range(8):
                await self.observe(controller)
                self.view.show(self.at())
                await asyncio.sleep(0.4)

    def is_due(self, kill: Kill) -> bool:
        """Whether the query works, and the writer has come that far and has got over the kill before."""
        if self.board.batch < 0 or self.board.written_events < kill.share * self.total:
            return False
        last = self.outages[-1] if self.outages else None
        is_over = last is None or (last.back_s is not None and self.at() - last.back_s >= _BETWEEN_KILLS_S)
        return is_over or self.board.written_events >= self.total

    def kill(self, kill: Kill) -> None:
        self.outages.append(Outage(what=kill.what, down_s=self.at(), events=self.board.written_events))
        self.view.note(f"{self.at():5.1f} s  kill -9 of the {kill.what}; writer and query are left alone")
        kill.run()

    def stop(self) -> None:
        for child in reversed(self.children):
            child.stop()


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


def run_demo(data: Path, *, limit: int | None, plain: bool, site: Site | None = None) -> int:
    """Run the whole demo in ``data`` and return 0 if nothing was lost or doubled. ``site``: None: one server."""
    flights.source_file()
    _prepare(data)
    site = site or OneServer(data.absolute())
    demo = Demo(data, site, limit=limit, plain=plain)
    story = _STORY.format(data=data, total=demo.total, site=site.story)
    demo.view.console.print(story, highlight=False, soft_wrap=True)
    try:
        site.start(demo.start)
        demo.board.store = site.state
        asyncio.run(_create(site.address))
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
    results = asyncio.run(_results(demo.site.address))
    wanted = check.expected(demo.limit)
    from_stream = check.compare(check.from_events(results), wanted)
    from_files = check.compare(check.from_parquet(demo.data / "parquet"), wanted)
    official = demo.start(
        "official-client",
        *(
            "-m",
            "penstock.app.demo.official",
            "--controller",
            demo.site.official_address,
            "--scope",
            SCOPE,
            "--stream",
            "delays",
        ),
        *("--expected", str(len(results)), "--group", "official"),
    )
    official.finish(60)
    picture = demo.data / "retention.png"
    maximum = LIMITS.maximum or 0
    draw(demo.samples, picture, minimum=LIMITS.minimum, maximum=maximum, kills=_kills(demo))
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
        *((f"{one.what} killed", _after(one)) for one in demo.outages),
        ("bytes written", format_size(last.written)),
        (
            "bytes reclaimed",
            f"{format_size(min(last.head, last.written - last.disk))}: du of the stream's chunks is {format_size(last.disk)}",
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
    good = (
        from_stream.good
        and from_files.good
        and official.last["read"] == len(results)
        and len(demo.outages) == len(demo.site.kills)
    )
    summary = {"good": good, "written": demo.board.written_events, "processed": from_stream.processed}
    (demo.data / "summary.json").write_text(json.dumps(summary | {"samples": len(demo.samples)}))
    return 0 if good else 1


def _kills(demo: Demo) -> list[tuple[str, float, float]]:
    """What was killed, and from when to when the writer waited."""
    return [(one.what, one.down_s, one.down_s if one.back_s is None else one.back_s) for one in demo.outages]


def _after(outage: Outage) -> str:
    if outage.back_s is None:
        return "the writer had written everything before"
    return f"the writer had its next {_STEP_EVENTS:,} events acknowledged after {outage.back_s - outage.down_s:.1f} s"
