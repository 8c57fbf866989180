"""A cluster in memory: coordinator, bookies and a directory as tier 2, and stores that open containers of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.unit import UnitsShared, share_units
from penstock.app.segments import StoreSource
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.codec.store.cluster_nodes import CONTAINERS, ClusterConfig
from penstock.codec.store.container_record import ContainerRecord, decode_record, encode_record
from penstock.core.segments.placement import container_of
from penstock.ports.data.segments import Append
from penstock.segmentstore.store import SegmentStore
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.testing.bookkeeper.bookies import SimBookKeeper

ADDRESS = ClusterAddress(hosts="zk:2181", root="/penstock/c1")
WRITER = UUID(int=7)


@dataclass(slots=True)
class MemoryCluster:
    """``path``: where tier 2 and the directories of stores are."""

    path: Path
    containers: int = 4
    bookkeeper: SimBookKeeper = field(default_factory=SimBookKeeper)
    rng: RealRng = field(default_factory=RealRng)

    def __post_init__(self) -> None:
        (self.path / "tier2").mkdir()
        for number in range(self.containers):
            record = ContainerRecord(uid=str(self.rng.uuid()))
            self.bookkeeper.nodes.nodes[self.record_path(number)] = (encode_record(record), 0)

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig(
            cluster="c1", containers=self.containers, ledgers="/ledgers", tier2=str(self.path / "tier2")
        )

    def record_path(self, number: int) -> str:
        return f"{ADDRESS.root}/{CONTAINERS}/{number}"

    def record(self, number: int) -> ContainerRecord:
        return decode_record(self.bookkeeper.nodes.nodes[self.record_path(number)][0])

    @asynccontextmanager
    async def shared(self, store: str) -> AsyncIterator[UnitsShared]:
        """What the units of one store share."""
        clock = RealClock()
        async with AsyncExitStack() as stack:
            offload = ThreadOffload()
            stack.push_async_callback(offload.close)
            nodes = self.bookkeeper.nodes
            ledgers = await stack.enter_async_context(
                open_ledgers(nodes, root="/ledgers", clock=clock, rng=self.rng, connect=self.bookkeeper.connect)
            )
            source = StoreSource(clock=clock, rng=self.rng, offload=offload, telemetry=Counters())
            base = EmbeddedSettings(data=self.path / store)
            yield share_units(ADDRESS, self.config, base, nodes=nodes, ledgers=ledgers, source=source)

    def segment_of(self, number: int) -> str:
        """The name of a segment that belongs to the container."""
        names = (f"shop/s{count}/0.#epoch.0" for count in range(1000))
        return next(name for name in names if container_of(name, self.containers) == number)


async def write(store: SegmentStore, segment: str, events: Iterable[int]) -> None:
    """Events of eight bytes each, with these numbers."""
    previous = await store.setup_append(segment, WRITER)
    for number in events:
        data = number.to_bytes(8, "big")
        await store.append(
            Append(segment=segment, writer=WRITER, data=data, event_number=number, event_count=1, previous=previous)
        )
        previous = number


async def numbers(store: SegmentStore, segment: str) -> list[int]:
    """The events of a segment."""
    info = await store.info(segment)
    found = b""
    while len(found) < info.length:
        read = await store.read(segment, len(found), 1 << 20, wait=False)
        found += b"".join(bytes(part) for part in read.parts)
    return [int.from_bytes(found[at : at + 8], "big") for at in range(0, len(found), 8)]
