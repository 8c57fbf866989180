"""The life of a store of several workers, with a copy of each worker's tier 2 after each step."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workers_disk import WORKERS, Opened, running

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType

STREAMS = ("s/a", "s/b", "s/c", "s/d")
EVENT_BYTES = 8 + len("s/a k0 000000")
KEEPS_ALL = RetentionPolicy(type=RetentionType.SIZE, minimum=1 << 40)
KEYS = tuple(f"k{number}" for number in range(8))


@dataclass
class History:
    """``written``: by step, the events of each stream that it made readable. ``streams``: by step, the streams that exist."""

    parts: Path
    written: list[dict[str, list[str]]] = field(default_factory=list)
    streams: list[list[str]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.written)

    def upto(self, step: int, stream: str) -> list[str]:
        """The events of the stream up to a step."""
        return [event for found in self.written[: step + 1] for event in found.get(stream, ())]


def place_of(history: History, step: int, worker: int) -> Path:
    return history.parts / f"{step}" / f"worker-{worker}"


def assemble(history: History, steps: Sequence[int], place: Path) -> Path:
    """A tier 2 whose parts are of these steps, by worker."""
    place.mkdir()
    for worker, step in enumerate(steps):
        shutil.copytree(place_of(history, step, worker), place / f"worker-{worker}")
    return place


def events(stream: str, step: int, count: int = 40) -> list[str]:
    return [f"{stream} {KEYS[number % len(KEYS)]} {step * 1000 + number:06}" for number in range(count)]


async def write(opened: Opened, stream: str, lines: Sequence[str]) -> None:
    async with opened.store.stream(stream).writer() as writer:
        await writer.write_many(list(lines), [line.split()[1] for line in lines])


async def read_all(opened: Opened, stream: str) -> list[str]:
    async with opened.store.stream(stream).reader(until_tail=True) as reader:
        return [event.data.decode() async for event in reader]


def by_key(lines: Sequence[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line.split()[1], []).append(line)
    return found


async def _create(opened: Opened) -> dict[str, list[str]]:
    for name in STREAMS[:2]:
        await opened.store.create_stream(name, segments=3, retention=KEEPS_ALL, create_scope=True)
    return {name: events(name, 0) for name in STREAMS[:2]}


async def _more(opened: Opened) -> dict[str, list[str]]:
    return {name: events(name, 1) for name in STREAMS[:2]}


async def _scale(opened: Opened) -> dict[str, list[str]]:
    await opened.store.stream("s/a").scale(4)
    return {"s/a": events("s/a", 2)}


async def _transaction(opened: Opened) -> dict[str, list[str]]:
    lines = events("s/b", 3)
    async with opened.store.stream("s/b").transaction() as txn:
        for line in lines:
            await txn.write(line, key=line.split()[1])
    await opened.store.create_stream("s/c", segments=2)
    return {"s/c": events("s/c", 3), "s/b": []}


async def _truncate(opened: Opened) -> dict[str, list[str]]:
    tail = await opened.store.stream("s/b").tail()
    await opened.controller.streams.truncate(
        StreamName("s", "b"),
        StreamCut(
            StreamName("s", "b"), {key: at // EVENT_BYTES // 2 * EVENT_BYTES for key, at in tail.positions.items()}
        ),
    )
    return {"s/a": events("s/a", 4)}


async def _delete_and_seal(opened: Opened) -> dict[str, list[str]]:
    await opened.store.stream("s/c").delete(seal=True)
    await opened.store.create_stream("s/d", segments=2)
    await write(opened, "s/d", events("s/d", 5))
    await opened.store.stream("s/d").seal()
    return {"s/b": events("s/b", 5)}


_STEPS = (_create, _more, _scale, _transaction, _truncate, _delete_and_seal)


def live(home: Path) -> History:
    """Live a life in ``home``, and keep tier 2 after each step."""
    tier, history = home / "tier2", History(parts=home / "parts")
    tier.mkdir(parents=True)

    async def main() -> None:
        async with running(home / "data", tier) as opened:
            for number, step in enumerate(_STEPS):
                written = await step(opened)
                for name, lines in written.items():
                    await write(opened, name, lines)
                if step is _transaction:
                    written["s/b"] = events("s/b", 3)
                if step is _delete_and_seal:
                    written["s/d"] = events("s/d", 5)
                # Retention records cuts, which later refer to bytes that a part may lack.
                for name in STREAMS[:2]:
                    await opened.store.stream(name).retention.run()
                await opened.tier()
                history.written.append(written)
                history.streams.append([f"s/{name}" for name in await opened.store.streams("s")])
                for worker in range(WORKERS):
                    shutil.copytree(tier / f"worker-{worker}", place_of(history, number, worker))

    asyncio.run(main())
    return history
