"""Causes each alert of examples/monitoring in a live server, one after the other, with a scrape every minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from alert_rules import Page, no_answer, parse_page
from live_server import LiveServer

import penstock
from penstock.app import tier2
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.model.errors import CorruptDataError, ErasureWaitsError, NotConnectedError, StorageFullError
from penstock.ports.data.space import DiskSpace
from penstock.ports.files import File
from penstock.storage.machine.files import RealFiles
from tests.certificates import DAY, Authority

MINUTE_S = 60


class FullFiles(RealFiles):
    """Files of a tier 2 that can be full: then no file is created and none grows."""

    full = False

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        if self.full and create:
            raise StorageFullError("disk is full", file=path)
        return await super().open(path, create=create, direct=direct)

    async def write_together(self, writes: Any) -> Any:
        if self.full:
            return [StorageFullError("disk is full", file=write.path) for write in writes]
        return await super().write_together(writes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """After ``cause``, exactly the alerts ``expected`` fire at the time of the last of ``pages``."""

    cause: str
    expected: frozenset[str]
    pages: int


class Timeline:
    """The scrapes of a server whose clock moves with them."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._at_ms = time.time_ns() // 1_000_000
        self.started_s = self._at_ms / 1000
        self.pages: list[Page] = []
        self.wrong_ms = 0
        self.cycles_fail = False

    def _is_new(self, page: Page) -> bool:
        """Whether what the server does in the background has happened since the clock was moved."""
        (age_s,) = page.samples["penstock_metric_sample_age_seconds"].values()
        (due_s,) = page.samples["penstock_retention_cycle_due_time_seconds"].values()
        behind_s = page.at_s + self.wrong_ms / 1000 - due_s
        return abs(age_s) < MINUTE_S / 2 and (self.cycles_fail or behind_s < MINUTE_S / 2)

    def begin_again(self) -> None:
        """Forget all pages but the last, as if hours had passed."""
        del self.pages[:-1]

    def passes(self, minutes: int, *, every: int = 1) -> None:
        """Let that time pass, with scrapes of samples that are not older. ``every``: minutes between two scrapes."""
        for _ in range(0, minutes, every):
            self._at_ms += every * MINUTE_S * 1000
            self._server.clock.ahead_ms = self._at_ms + self.wrong_ms - time.time_ns() // 1_000_000
            deadline = time.monotonic() + 20
            while True:
                try:
                    self._server.sample()
                    page = parse_page(self._server.scrape(), at_s=self._at_ms / 1000)
                except OSError:
                    page = no_answer(at_s=self._at_ms / 1000)
                    break
                if self._is_new(page):
                    break
                assert time.monotonic() < deadline, "the server did not keep up with its clock"
            self.pages.append(page)


def causes(directory: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Step, Timeline]]:
    """Each step, right after it has happened."""
    (directory / "tier2").mkdir()
    patch.setattr(tier2, "RealFiles", FullFiles)
    settings = StandaloneSettings(
        store=EmbeddedSettings(data=directory / "store", tier2=str(directory / "tier2"), retention_cycle_ms=100),
        controller_port=0,
        store_port=0,
        http_port=0,
    )
    with LiveServer(settings, patch) as server, penstock.connect(server.address) as store:
        timeline = Timeline(server)

        def step(cause: str, *expected: str, minutes: int, every: int = 1) -> tuple[Step, Timeline]:
            timeline.passes(minutes, every=every)
            return Step(cause=cause, expected=frozenset(expected), pages=len(timeline.pages)), timeline

        stream = store.create_stream("s/t", create_scope=True)
        stream.retention.set({"retain": {"min_bytes": 1000}, "backlog": {"max_bytes": 10**15, "on_exceed": "hold"}})
        with stream.writer() as writer:
            writer.write_many([b"x" * 100] * 100)
        group = store.reader_group("s/g", ["s/t"], retention="manual", start="head")
        yield step("nothing", minutes=3)

        # Rates are of the retention clock, which counts real seconds: a few kB suffice.
        stream.retention.set({"retain": {"min_bytes": 1000}, "backlog": {"max_bytes": 10**6, "on_exceed": "hold"}})
        limit = 'penstock_stream_limit_seconds{limit="backlog.max_bytes",stream="s/t"}'

        def grows() -> bool:
            with stream.writer() as writer:
                writer.write_many([b"x" * 1000] * 10)
            server.sample()
            return limit in server.scrape()

        until(grows)
        yield step("a backlog grows towards its quota", "PenstockQuotaWithinADay", minutes=7)
        stream.retention.set({"retain": {"min_bytes": 1000}, "backlog": {"max_bytes": 10**15, "on_exceed": "hold"}})
        yield step("the quota is raised", minutes=1)

        yield step("a subscriber is idle for over an hour", "PenstockIdleSubscriberHoldsData", minutes=64, every=4)
        group.publish(stream.tail())
        yield step("it reads on", minutes=1)

        timeline.wrong_ms = 120_000
        yield step("the server's clock jumps ahead", "PenstockClockWrong", minutes=3)
        timeline.wrong_ms = 0
        yield step("the clock is set back", minutes=1)

        segments = server.served.runtime.segments
        with replaced(segments, "changed_segments", failing(NotConnectedError("the store is away"))):
            timeline.cycles_fail = True
            yield step("no retention cycle ends", "PenstockRetentionLate", minutes=14, every=2)
            timeline.cycles_fail = False
        yield step("cycles end again", minutes=1)

        with stream.reader(until_tail=True) as reader:
            last = list(reader)[-1:]
        with replaced(segments, "erase", failing(StorageFullError("no room to rewrite a chunk"))):
            with pytest.raises(ErasureWaitsError):
                stream.erase(last, who="ann", why="a request", erasure="e")
            yield step("an erasure cannot go on", "PenstockErasureOpen", minutes=64, every=4)
        stream.erasures.wait("e")
        yield step("the erasure is done", minutes=1)

        contacts = store.create_stream("people/contacts", create_scope=True)
        with contacts.writer() as writer:
            writer.write(b"person-17")
        store.holds("people").add(owner="law", reason="a dispute", hold_id="h")
        due_ms = server.clock.now_ms() + 3 * MINUTE_S * 1000
        store.cases().open("people", ["person-17"], who="ann", why="a request", case="c", due=due_ms)
        yield step("a case is open", minutes=1)
        yield step("a hold defers a case past its due date", "PenstockCaseOverdue", minutes=4)
        store.holds().release("h", owner="law")
        store.cases().wait("c")
        yield step("the case is verified", minutes=1)

        real = segments.disk
        free_bytes = iter(range(10**9, 0, -(10**6)))

        async def filling() -> DiskSpace:
            return replace(await real(), free_bytes=next(free_bytes))

        with replaced(segments, "disk", filling):
            yield step("the disk fills up", "PenstockDiskFullWithinADay", minutes=48, every=4)
        assert 0 < timeline.pages[-1].samples["penstock_disk_limit_seconds"][frozenset()] < 86_400
        timeline.begin_again()

        FullFiles.full = True
        try:
            with stream.writer() as writer:
                writer.write_many([b"y" * 1000] * 100)
            with pytest.raises(StorageFullError):
                server.call(segments.flush)
            until(lambda: 'penstock_not_ready{function="tiering",process="server"} 1.0' in server.scrape())
            yield step("tier 2 takes nothing", "PenstockNotReady", minutes=4)
        finally:
            FullFiles.full = False
        until(lambda: 'penstock_not_ready{function="tiering",process="server"} 0.0' in server.scrape())
        server.call(segments.flush)
        yield step("tier 2 has room", minutes=1)
        group.publish(stream.tail())

        def is_met() -> bool:
            server.call(lambda: _drop_memory(server))
            try:
                with stream.reader(until_tail=True) as reader:
                    list(reader)
            except CorruptDataError:
                return True
            return False

        assert damage(directory / "tier2", b"y" * 1000)
        until(is_met)
        yield step("a damaged chunk is read", "PenstockDamage", minutes=1)
    server.stop()
    timeline.passes(3)
    # Damage is shown for an hour.
    expected = frozenset({"PenstockDown", "PenstockDamage"})
    yield Step(cause="the server ends", expected=expected, pages=len(timeline.pages)), timeline


def certificate_causes(directory: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Step, Timeline]]:
    """As ``causes``, for a server with TLS."""
    root = Authority()
    files = root.issue(directory)
    store = EmbeddedSettings(data=directory / "store", retention_cycle_ms=100)
    settings = StandaloneSettings(store=store, controller_port=0, store_port=0, http_port=0, tls=files.settings())
    with LiveServer(settings, patch, trusted=root.write(directory / "ca.pem")) as server:
        timeline = Timeline(server)
        timeline.passes(6)
        yield Step(cause="a certificate of 60 days", expected=frozenset(), pages=len(timeline.pages)), timeline
        good = files.key.read_bytes()
        files.key.write_bytes(b"no key")
        until(lambda: 'penstock_certificate_refused{process="server"} 1.0' in server.scrape())
        timeline.passes(6)
        expected = frozenset({"PenstockCertificateRefused"})
        yield Step(cause="a broken key", expected=expected, pages=len(timeline.pages)), timeline
        files.key.write_bytes(good)
        root.issue(directory, ends=3 * DAY)
        until(lambda: 'penstock_certificate_refused{process="server"} 0.0' in server.scrape())
        timeline.passes(6)
        expected = frozenset({"PenstockCertificateExpires"})
        yield Step(cause="a certificate of three days", expected=expected, pages=len(timeline.pages)), timeline


async def _drop_memory(server: LiveServer) -> None:
    """Make reads go to tier 2."""
    server.served.runtime.segments.allow_memory(cache_bytes=0, unflushed_bytes=1 << 20)


def damage(directory: Path, event: bytes) -> int:
    """Change the event wherever it is; returns in how many files."""
    found = [path for path in directory.rglob("*") if path.is_file() and event in path.read_bytes()]
    for path in found:
        path.write_bytes(path.read_bytes().replace(event, event[::-1].swapcase()))
    return len(found)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


def failing(error: Exception) -> Callable[..., Any]:
    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


class replaced:  # noqa: N801 - used as a function
    """Inside the block, the object has another method."""

    def __init__(self, owner: Any, name: str, method: Any) -> None:
        self._owner, self._name, self._method = owner, name, method

    def __enter__(self) -> None:
        setattr(self._owner, self._name, self._method)

    def __exit__(self, *_: object) -> None:
        delattr(self._owner, self._name)
