"""What a server does about workers that do not start, or die: patience has an end, and a reason."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.standalone import store_failure
from penstock.app.workers import supervisor as module
from penstock.app.workers.layout import settle_layout
from penstock.app.workers.supervisor import Patience, Workers, open_workers
from penstock.core.segments.readiness import FUNCTIONS
from penstock.model.errors import InvalidArgumentError, UnavailableError
from penstock.storage.machine.data_directory import DataDirectory

PATIENCE_S = 120.0
SHORT = Patience(pause_s=0.01, pause_max_s=0.02, attempts=3, stop_s=20.0)


@asynccontextmanager
async def opened(data: Path, *, patience: Patience = SHORT, **given: int) -> AsyncIterator[Workers]:
    settings = StandaloneSettings(store=EmbeddedSettings(data=data), workers=2, **({"store_port": 0} | given))
    with DataDirectory.open(data):
        async with open_workers(settings, settle_layout(data, 2), patience=patience) as workers:
            yield workers


def run(body) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await body()

    asyncio.run(main())


def test_workers_that_end_at_once_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr(module.sys, "executable", "/bin/false")
        with pytest.raises(UnavailableError, match="worker does not start"):
            async with opened(tmp_path / "data"):
                raise AssertionError("it opened")

    run(body)


def test_ports_that_collide_are_refused_before_anything_starts(tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(InvalidArgumentError, match="another --store-port"):
            async with opened(tmp_path / "data", store_port=9089):
                raise AssertionError("it opened")
        assert not (tmp_path / "data" / "workers" / "0").exists()

    run(body)


@pytest.mark.server
def test_a_worker_that_does_not_come_back_fails_the_server_and_not_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with opened(tmp_path / "data") as workers:
            segments = workers.segments
            names = {segments.worker_of(name): name for name in (f"s/t/{number}.#epoch.0" for number in range(4))}
            for name in names.values():
                await segments.create_segment(name)
            assert state(workers) is None
            monkeypatch.setattr(module.sys, "executable", "/bin/false")
            pid = workers.workers[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            waiting = asyncio.ensure_future(segments.info(names[0]))
            with pytest.raises(UnavailableError, match="worker does not start"):
                await waiting
            assert isinstance(workers.failure, UnavailableError)
            assert "does not start" in str(state(workers))
            assert (await segments.info(names[1])).length == 0
            monkeypatch.setattr(module.sys, "executable", sys.executable)

    run(body)


@pytest.mark.server
def test_a_worker_that_hangs_is_named_killed_and_started_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "data", patience=replace(SHORT, pulse_s=0.1, silent_s=2.0)) as workers:
            segments = workers.segments
            names = {segments.worker_of(name): name for name in (f"s/t/{number}.#epoch.0" for number in range(4))}
            for name in names.values():
                await segments.create_segment(name)
            pid = workers.workers[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            waiting = asyncio.ensure_future(segments.info(names[0]))
            while state(workers) is None:
                assert (await segments.info(names[1])).length == 0
                await asyncio.sleep(0.01)
            assert state(workers) == "does not answer: worker 0"
            assert (await waiting).length == 0
            assert workers.workers[0].pid not in (None, pid)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert workers.failure is None
            # On a busy machine the new one may be late with an answer, too.
            async with asyncio.timeout(30):
                while state(workers) is not None:
                    await asyncio.sleep(0.01)

    run(body)


@pytest.mark.server
def test_a_server_that_was_stopped_itself_kills_no_worker(tmp_path: Path) -> None:
    async def body() -> None:
        async with opened(tmp_path / "data", patience=replace(SHORT, pulse_s=0.1, silent_s=0.5)) as workers:
            pids = [worker.pid for worker in workers.workers]
            for _ in range(3):
                # Nothing else stops a loop: as SIGSTOP of the server, and SIGCONT, would.
                time.sleep(1.0)  # noqa: ASYNC251
                await asyncio.sleep(0.3)
            assert [worker.pid for worker in workers.workers] == pids
            assert state(workers) is None

    run(body)


def state(workers: Workers) -> str | None:
    return store_failure(lambda: workers.failure, workers.workers)


def test_health_names_the_workers_that_are_away(tmp_path: Path) -> None:
    settings = StandaloneSettings(store=EmbeddedSettings(data=tmp_path), store_port=0)
    data = tmp_path / "data"
    with DataDirectory.open(data):
        layout = settle_layout(data, 2)
    counts = module.CountsMemory(2)
    try:
        workers = Workers(settings, layout, counts, SHORT)
        assert state(workers) == "being started again: worker 0, 1"
        for function in FUNCTIONS:
            assert workers.not_ready()[function] == "worker 0: is being started again; worker 1: is being started again"
    finally:
        counts.close()
