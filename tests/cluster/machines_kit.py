"""Machines that run a store with a log on simulated bookies, and images of what is left when one of them vanishes."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.app.embedded import LocalRuntime, open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.client.store import AsyncStore
from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.storage.chunks.shared_chunks import SharedChunks, SharedObjects
from penstock.storage.object_log.directory import DirectoryObjects, DirectoryRecord
from penstock.testing.bookkeeper.bookies import SimBookKeeper
from penstock.testing.bookkeeper.nodes import MemoryNodes
from tests.cluster.replicated_kit import URL, put_in_place

PATH = "/penstock/store1"
STREAM = "shop/clicks"
KEYS = ("ann", "bob", "cid")
CALLS = (
    (MemoryNodes, ("set",)),
    (DirectoryRecord, ("create", "set")),
    (DirectoryObjects, ("create_new", "delete")),
    (SharedObjects, ("put", "delete")),
    (SharedChunks, ("append", "append_together", "sync", "delete", "free_head")),
)
"""What changes the log's record or tier 2. Between two of these calls, only the lost disk changes, and a log on bookies."""


@dataclass(slots=True)
class Acknowledged:
    """What users were promised. ``truncated``: events at the head of each key that may be missing."""

    events: dict[str, list[bytes]] = field(default_factory=lambda: {key: [] for key in KEYS})
    rows: dict[str, bytes] = field(default_factory=dict)
    truncated: int = 0

    def copy(self) -> Acknowledged:
        return Acknowledged({key: list(one) for key, one in self.events.items()}, dict(self.rows), self.truncated)


@dataclass(slots=True)
class Image:
    """What is left of a machine: bookies, coordinator and tier 2."""

    label: str
    bookkeeper: SimBookKeeper
    tier: Path
    acknowledged: Acknowledged


@dataclass(slots=True)
class Machines:
    """A store on one machine, and images of what would be left if it vanished. ``wanted``: numbers of the moments. ``ack``:
    with ``tier2``, the log is in tier 2, not on bookies."""

    path: Path
    bookkeeper: SimBookKeeper = field(default_factory=SimBookKeeper)
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    wanted: Callable[[int], bool] = lambda number: True
    images: list[Image] = field(default_factory=list)
    moments: int = 0
    records: bool = False
    ack: str = "disk"

    @property
    def tier(self) -> Path:
        return self.path / "tier2"

    def moment(self, label: str) -> None:
        self.moments += 1
        if not self.records or not self.wanted(self.moments):
            return
        left = SimBookKeeper()
        left.become(self.bookkeeper)
        place = self.path / f"left-{self.moments}"
        shutil.copytree(self.tier, place)
        self.images.append(Image(label, left, place, self.acknowledged.copy()))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Bookies and coordinator in memory, and a moment before and after each call that changes what others see."""

        put_in_place(self.bookkeeper, monkeypatch)
        for kind, names in CALLS:
            for name in names:
                monkeypatch.setattr(kind, name, self.seen(getattr(kind, name), f"{kind.__name__}.{name}"))

    def seen(self, call, label):
        async def wrapped(*args, **named):
            self.moment(f"before {label}")
            result = await call(*args, **named)
            self.moment(f"after {label}")
            return result

        return wrapped

    @asynccontextmanager
    async def opened(self, name: str, *, take_over: bool = False) -> AsyncIterator[tuple[LocalRuntime, AsyncStore]]:
        settings = EmbeddedSettings(
            data=self.path / name,
            log_at=URL if self.ack == "disk" else None,
            ack=self.ack,
            tier2=str(self.tier),
            take_over=take_over,
            deletion_grace_ms=0,
        )
        async with open_runtime(settings) as runtime:
            yield runtime, AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)

    def record(self) -> ContainerRecord:
        return decode_record(self.bookkeeper.nodes.nodes[PATH][0])


async def write(store: AsyncStore, acknowledged: Acknowledged, number: int) -> None:
    """Ten events of each key, and one row of a table."""
    async with store.stream(STREAM).writer() as writer:
        for count in range(10):
            for key in KEYS:
                await writer.write(b"%s %d" % (key.encode(), number * 10 + count), key=key)
        await writer.flush()
    for key in KEYS:
        acknowledged.events[key] += [b"%s %d" % (key.encode(), number * 10 + count) for count in range(10)]
    table = store.table("shop/prices")
    name = f"p{number % 3}"
    await table.put(name.encode(), b"%d" % number)
    acknowledged.rows[name] = b"%d" % number


async def check(store: AsyncStore, acknowledged: Acknowledged, label: str) -> int:
    """Everything acknowledged is there, once, and in order per key. Returns how many events of each key there are, with
    those that were truncated; -1: the keys differ."""
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    if any(acknowledged.events.values()):
        async with store.stream(STREAM).reader(until_tail=True) as reader:
            async for event in reader:
                key, number = event.data.decode().split()
                found[key].append(int(number))
    for key, expected in acknowledged.events.items():
        first = found[key][0] if found[key] else acknowledged.truncated
        assert first in (0, acknowledged.truncated), f"{label}: head of {key}"
        assert found[key] == list(range(first, first + len(found[key]))), f"{label}: order of {key}"
        assert first + len(found[key]) >= len(expected), f"{label}: events of {key}"
    for name, value in acknowledged.rows.items():
        entry = await store.table("shop/prices").get(name.encode())
        assert entry is not None, f"{label}: row {name}"
        assert int(entry.value) >= int(value), f"{label}: row {name}"
    lengths = {found[key][-1] + 1 if found[key] else 0 for key in KEYS}
    return lengths.pop() if len(lengths) == 1 else -1
