"""The retention loop: what a cycle costs beside many streams that did not change, and how late data goes.

    python -m bench.retention_cycle [--streams 100000] [--seconds 30]

Runs in the embedded store as users open it (log, SQLite and chunk files on disk), with its loop stopped so that cycles are
made by hand; costs are CPU time of the whole process. Lateness is taken with the loop running, once a second.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from pathlib import Path
from uuid import UUID

from bench.measure import Figure, figure, percentile, show
from penstock.app.embedded import Runtime, open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.codec.events import frame_events
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import RetentionPolicy, RetentionType, StreamConfig
from penstock.model.segments import make_segment_id
from penstock.ports.data.segments import Append

AT_ONCE = 256
CHANGED_SHARE = 0.01
LIMIT_MS = 5000
WRITER = UUID(int=7)
EVENT = frame_events([b"x" * 100])
SEGMENT = make_segment_id(0, 0)


def stream(number: int) -> StreamName:
    return StreamName("bench", f"s{number}")


async def create(runtime: Runtime, streams: range, policy: RetentionPolicy) -> None:
    numbers = iter(streams)

    async def worker() -> None:
        for number in numbers:
            await runtime.controller.streams.create(stream(number), StreamConfig(retention=policy))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def append(runtime: Runtime, number: int) -> int:
    """Append one event; returns where it ends."""
    name = segment_name(stream(number), SEGMENT)
    last = await runtime.segments.setup_append(name, WRITER)
    request = Append(segment=name, writer=WRITER, data=EVENT, event_number=max(last, 0) + 1, previous=last)
    return (await runtime.segments.append(request)).end_offset


async def quiet() -> None:
    """Wait until the process has nothing left to do: new streams are looked at in the background."""
    while True:
        began = time.process_time()
        await asyncio.sleep(1.0)
        if time.process_time() - began < 0.05:
            return


async def cycle_costs(directory: Path, streams: int, runs: int) -> list[Figure]:
    """CPU seconds of the first pass over all streams, and of cycles in which one in a hundred has changed."""
    shutil.rmtree(directory, ignore_errors=True)
    settings = EmbeddedSettings(data=directory, retention_cycle_ms=86_400_000, memory_bytes=512 << 20)
    changed = max(1, int(streams * CHANGED_SHARE))
    async with open_runtime(settings) as runtime:
        loop = runtime.controller._loop
        await runtime.controller.scopes.create("bench")
        await create(runtime, range(streams), RetentionPolicy(type=RetentionType.SIZE, minimum=1 << 20))
        await quiet()
        began = time.process_time()
        await loop.turn()
        first_s = time.process_time() - began
        costs, idle = [], []
        for run in range(runs):
            for number in range(run, streams, streams // changed):
                await append(runtime, number)
            began = time.process_time()
            await loop.turn()
            costs.append(time.process_time() - began)
            began = time.process_time()
            await loop.turn()
            idle.append(time.process_time() - began)
    shutil.rmtree(directory, ignore_errors=True)
    work = f"{streams:,} streams"
    return [
        figure("P2", f"retention cycle, {work}, {changed:,} changed", "CPU s", costs, target="<= 5"),
        figure("P2", f"retention cycle, {work}, none changed", "CPU s", idle),
        figure("P2", f"first pass after a start, {work}", "CPU s", [first_s]),
    ]


async def lateness(directory: Path, seconds: float, streams: int) -> list[Figure]:
    """How old the oldest readable byte is beyond a maximum age of 5 s, with a cycle every second."""
    shutil.rmtree(directory, ignore_errors=True)
    settings = EmbeddedSettings(data=directory, retention_cycle_ms=1000)
    late: list[float] = []
    written: dict[int, list[tuple[int, float]]] = {number: [] for number in range(streams)}
    async with open_runtime(settings) as runtime:
        await runtime.controller.scopes.create("bench")
        policy = RetentionPolicy(type=RetentionType.TIME, minimum=LIMIT_MS, maximum=LIMIT_MS)
        await create(runtime, range(streams), policy)
        ends = time.monotonic() + seconds
        while (now := time.monotonic()) < ends:
            for number in range(streams):
                written[number].append((await append(runtime, number), time.monotonic()))
            for number in range(streams):
                start = (await runtime.segments.info(segment_name(stream(number), SEGMENT))).start_offset
                written[number] = [item for item in written[number] if item[0] > start]
                age_ms = (time.monotonic() - written[number][0][1]) * 1000
                late.append(max(0.0, age_ms - LIMIT_MS))
            await asyncio.sleep(max(0.0, now + 0.1 - time.monotonic()))
    shutil.rmtree(directory, ignore_errors=True)
    settled = late[len(late) // 4 :]
    work = f"oldest readable byte beyond its age limit, cycle 1 s, {streams} streams written all the time"
    return [
        figure("P3", f"{work}: p99", "ms", [percentile(settled, 0.99)]),
        figure("P3", f"{work}: maximum", "ms", [max(settled)]),
    ]


class RetentionCycleBench:
    """The figures of this file for ``python -m bench``."""

    def __init__(self, directory: Path, runs: int, scale: float) -> None:
        self.directory = directory
        self.runs = runs
        self.scale = scale

    def run(self) -> list[Figure]:
        figures = asyncio.run(cycle_costs(self.directory / "cycle", max(1000, int(100_000 * self.scale)), self.runs))
        return figures + asyncio.run(lateness(self.directory / "late", 30 * self.scale + 10, 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path("data/bench"))
    given = parser.parse_args()
    figures = asyncio.run(cycle_costs(given.directory / "cycle", given.streams, given.runs))
    figures += asyncio.run(lateness(given.directory / "late", given.seconds, 20))
    print(show(figures))


if __name__ == "__main__":
    main()
