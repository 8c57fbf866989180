"""Load on a cluster, as a process of its own: it notes what was acknowledged, in files of the directory.

    python -m tests.cluster.failover_load ADDRESS DIRECTORY CONTAINERS          writes and counts
    python -m tests.cluster.failover_load ADDRESS DIRECTORY CONTAINERS visitor  the same, with a new client each second

    probes     container, number, sent, acknowledged (seconds of the monotonic clock), one stream for each container
    events     key and number of each acknowledged event; the numbers of a key have no gap
    places     where each of these events lies, and those of the visitor; see ``failover_places``
    counters   ``acked NAME VALUE MOMENT`` or ``unknown NAME`` for each increment, ``read NAME VALUE BEGAN ENDED``
    failures   what ended with an error that a client does not survive

The visitor finds the new owner of a container while the other process may still wait for an owner that is paused: what
that one answers when it continues must not be older than what the visitor has changed, and it must not acknowledge places
that the visitor's events have. The visitor ends when the file ``stop``
exists.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import penstock
from penstock import AsyncStore, AsyncTable
from penstock.core.segments.placement import container_of
from penstock.model.errors import BadKeyVersionError, FencedError, PenstockError, UnavailableError
from tests.cluster.failover_places import PlacedEvent

SCOPE = "failover"
EVENTS = f"{SCOPE}/events"
COUNTERS = f"{SCOPE}/counters"
WRITERS, KEYS, BATCH = 2, 4, 10
COUNTER_NAMES = tuple(f"counter-{number}" for number in range(4))
COUNTING = 2
"""Tasks that increment the same counters."""
DEADLINE_S = 120.0  # longer than any takeover: a writer that gives up leaves the outcome of its events unknown
PROBE_EVERY_S, PAUSE_S = 0.1, 0.05
READ_EVERY_S, READS_MAX = 0.2, 64
VISIT_S, VISIT_MAX_S = 1.0, 5.0
"""How long a client of the visitor counts; how long it waits for an answer."""
RETRY_S = 0.5
VISITOR = "visit"
"""The key of the visitor's events. A number may be missing: the visitor does not repeat what it gave up."""


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
            group.create_task(self._survive(self._read()))

    def _stopped(self) -> bool:
        return (self._directory / "stop").exists()

    async def _survive(self, work: Awaitable[None]) -> None:
        """Note an error that the client gives up at. What was in flight is unknown, so the task does not go on."""
        try:
            await work
        except PenstockError as error:
            print(f"{time.monotonic()} {type(error).__name__} {error}".replace("\n", " "), file=self._failures)

    async def _probe(self, container: int, notes: TextIO) -> None:
        places = self._file("places")
        stream = self._store.stream(probe_stream(container, self._containers))
        async with stream.writer(deadline_s=DEADLINE_S) as writer:
            number = 0
            while not self._stopped():
                sent = time.monotonic()
                event = f"probe-{container} {number}"
                place = await (await writer.write_acknowledged(event, key="probe"))
                acked = time.monotonic()
                print(f"{container} {number} {sent:.6f} {acked:.6f}", file=notes)
                print(note_of(container, event, place.offset, sent, acked), file=places)
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
        counting = Counting(self._store, self._file("counters"))
        while not self._stopped():
            await counting.step()

    async def _read(self) -> None:
        """Read counters without waiting for earlier reads: some reach an owner while it is paused, which answers them when it
        continues."""
        table, notes = self._store.table(COUNTERS), self._file("counters")
        reads: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            turn = 0
            while not self._stopped():
                if len(reads) < READS_MAX:
                    name = COUNTER_NAMES[turn % len(COUNTER_NAMES)]
                    turn += 1
                    read = group.create_task(read_counter(table, name, notes))
                    reads.add(read)
                    read.add_done_callback(reads.discard)
                await asyncio.sleep(READ_EVERY_S)


def note_of(container: int, event: str, offset: int | None, sent_s: float, acked_s: float) -> str:
    return PlacedEvent(container=container, event=event, offset=offset, sent_s=sent_s, acked_s=acked_s).line


async def read_counter(table: AsyncTable, name: str, notes: TextIO) -> None:
    began = time.monotonic()
    with suppress(UnavailableError, FencedError):
        found = await table.get(name)
        value = 0 if found is None else int(found.value)
        print(f"read {name} {value} {began:.6f} {time.monotonic():.6f}", file=notes)


class Counting:
    """Increments counters, one after another, by compare-and-set."""

    def __init__(self, store: AsyncStore, notes: TextIO) -> None:
        self._table = store.table(COUNTERS)
        self._notes = notes
        self._turn = 0

    async def step(self) -> None:
        name = COUNTER_NAMES[self._turn % len(COUNTER_NAMES)]
        self._turn += 1
        began = time.monotonic()
        try:
            found = await self._table.get(name)
        except (UnavailableError, FencedError):
            await asyncio.sleep(RETRY_S)
            return
        value = 0 if found is None else int(found.value)
        print(f"read {name} {value} {began:.6f} {time.monotonic():.6f}", file=self._notes)
        try:
            if found is None:
                await self._table.insert(name, b"1")
            else:
                await self._table.replace(name, b"%d" % (value + 1), found.version)
        except BadKeyVersionError:
            pass  # Another task was faster.
        except (UnavailableError, FencedError):
            print(f"unknown {name}", file=self._notes)
            await asyncio.sleep(RETRY_S)
        except asyncio.CancelledError:
            print(f"unknown {name}", file=self._notes)
            raise
        else:
            print(f"acked {name} {value + 1} {time.monotonic():.6f}", file=self._notes)
        await asyncio.sleep(PAUSE_S)


async def visit(address: str, directory: Path, containers: int) -> None:
    with (
        (directory / "counters").open("a", buffering=1) as notes,
        (directory / "places").open("a", buffering=1) as places,
    ):
        visits = 0
        while not (directory / "stop").exists():
            visits += 1
            with suppress(TimeoutError, UnavailableError, FencedError, ExceptionGroup):
                async with asyncio.timeout(VISIT_MAX_S), penstock.connect_async(address) as store:
                    counting, end = Counting(store, notes), time.monotonic() + VISIT_S
                    async with asyncio.TaskGroup() as group:
                        for container in range(containers):
                            group.create_task(append_once(store, container, containers, visits, places))
                        while time.monotonic() < end:
                            await counting.step()


async def append_once(store: AsyncStore, container: int, containers: int, number: int, places: TextIO) -> None:
    """Append one event to the container's probe stream, with a writer that nobody knows."""
    event, sent = f"{VISITOR}-{container} {number}", time.monotonic()
    async with store.stream(probe_stream(container, containers)).writer(deadline_s=VISIT_MAX_S) as writer:
        place = await (await writer.write_acknowledged(event, key=VISITOR))
        print(note_of(container, event, place.offset, sent, time.monotonic()), file=places)


async def main() -> None:
    address, directory, containers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == ["visitor"]:
        await visit(address, directory, containers)
        return
    async with penstock.connect_async(address) as store:
        await prepare(store, containers)
        await Load(store, directory, containers).run()


if __name__ == "__main__":
    asyncio.run(main())
