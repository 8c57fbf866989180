"""Load on a cluster, as a process of its own: it notes what was acknowledged, in files of the directory.

    python -m tests.cluster.failover_load ADDRESSES DIRECTORY CONTAINERS

    probes     container, number, sent, acknowledged (seconds of the monotonic clock), one stream for each container
    events     key and number of each acknowledged event; the numbers of a key have no gap
    counters   ``acked NAME`` or ``unknown NAME`` for each increment, ``stale NAME`` for a read of an older value
    failures   what ended with an error that a client does not survive

It ends when the file ``stop`` exists.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TextIO

import penstock
from penstock import AsyncStore
from penstock.core.segments.placement import container_of
from penstock.model.errors import BadKeyVersionError, FencedError, PenstockError, UnavailableError

SCOPE = "failover"
EVENTS = f"{SCOPE}/events"
COUNTERS = f"{SCOPE}/counters"
WRITERS, KEYS, BATCH = 2, 4, 10
COUNTER_NAMES = tuple(f"counter-{number}" for number in range(4))
COUNTING = 2
"""Tasks that increment the same counters."""
DEADLINE_S = 120.0  # longer than any takeover: a writer that gives up leaves the outcome of its events unknown
PROBE_EVERY_S, PAUSE_S = 0.1, 0.05
RETRY_S = 0.5


def probe_stream(container: int, containers: int) -> str:
    """A stream whose only segment lies in the container."""
    number = 0
    while container_of(f"{SCOPE}/probe-{container}-{number}/0.#epoch.0", containers) != container:
        number += 1
    return f"{SCOPE}/probe-{container}-{number}"


async def prepare(store: AsyncStore, containers: int) -> None:
    await store.create_scope(SCOPE, if_absent=True)
    await store.create_stream(EVENTS, segments=2 * containers, if_absent=True)
    await store.create_table(COUNTERS, primary_key_bytes=len(COUNTER_NAMES[0]), partitions=4, if_absent=True)
    for container in range(containers):
        await store.create_stream(probe_stream(container, containers), if_absent=True)


class Load:
    def __init__(self, store: AsyncStore, directory: Path, containers: int) -> None:
        self._store = store
        self._directory = directory
        self._containers = containers
        self._failures = self._file("failures")
        self._counters = self._file("counters")
        self._known = dict.fromkeys(COUNTER_NAMES, 0)
        """The largest value of each counter that was acknowledged or read: no later read may return less."""

    def _file(self, name: str) -> TextIO:
        return (self._directory / name).open("a", buffering=1)

    async def run(self) -> None:
        probes, events = self._file("probes"), self._file("events")
        async with asyncio.TaskGroup() as group:
            for container in range(self._containers):
                group.create_task(self._survive(self._probe(container, probes)))
            for writer in range(WRITERS):
                group.create_task(self._survive(self._write(writer, events)))
            for _ in range(COUNTING):
                group.create_task(self._survive(self._count()))

    def _stopped(self) -> bool:
        return (self._directory / "stop").exists()

    async def _survive(self, work: Awaitable[None]) -> None:
        """Note an error that the client gives up at. What was in flight is unknown, so the task does not go on."""
        try:
            await work
        except PenstockError as error:
            print(f"{time.monotonic()} {type(error).__name__} {error}".replace("\n", " "), file=self._failures)

    async def _probe(self, container: int, notes: TextIO) -> None:
        stream = self._store.stream(probe_stream(container, self._containers))
        async with stream.writer(deadline_s=DEADLINE_S) as writer:
            number = 0
            while not self._stopped():
                sent = time.monotonic()
                await (await writer.write_acknowledged(f"probe-{container} {number}", key="probe"))
                print(f"{container} {number} {sent:.6f} {time.monotonic():.6f}", file=notes)
                number += 1
                await asyncio.sleep(PROBE_EVERY_S)

    async def _write(self, number: int, notes: TextIO) -> None:
        async with self._store.stream(EVENTS).writer(deadline_s=DEADLINE_S) as writer:
            first = 0
            while not self._stopped():
                written = []
                for sequence in range(first, first + BATCH):
                    for key in (f"w{number}-{key}" for key in range(KEYS)):
                        await writer.write(f"{key} {sequence}", key=key)
                        written.append(f"{key} {sequence}\n")
                await writer.flush()
                notes.write("".join(written))
                first += BATCH
                await asyncio.sleep(PAUSE_S)

    async def _count(self) -> None:
        table = self._store.table(COUNTERS)
        turn = 0
        while not self._stopped():
            name = COUNTER_NAMES[turn % len(COUNTER_NAMES)]
            turn += 1
            least = self._known[name]
            try:
                found = await table.get(name)
            except (UnavailableError, FencedError):
                await asyncio.sleep(RETRY_S)
                continue
            value = 0 if found is None else int(found.value)
            if value < least:
                print(f"stale {name} {value} < {least}", file=self._counters)
            self._known[name] = max(self._known[name], value)
            try:
                if found is None:
                    await table.insert(name, b"1")
                else:
                    await table.replace(name, b"%d" % (value + 1), found.version)
            except BadKeyVersionError:
                pass  # The other task was faster.
            except (UnavailableError, FencedError):
                print(f"unknown {name}", file=self._counters)
                await asyncio.sleep(RETRY_S)
            else:
                print(f"acked {name}", file=self._counters)
                self._known[name] = max(self._known[name], value + 1)
            await asyncio.sleep(PAUSE_S)


async def main() -> None:
    addresses, directory, containers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    async with penstock.connect_async(addresses) as store:
        await prepare(store, containers)
        await Load(store, directory, containers).run()


if __name__ == "__main__":
    asyncio.run(main())
