"""What the machines, controllers and clients of one run share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from penstock.app import tier2
from penstock.app.cluster.address import ClusterAddress
from penstock.codec.store.cluster_nodes import CONTAINERS, HOLDERS, ClusterConfig, HeldContainer, decode_node
from penstock.codec.store.container_record import ContainerRecord, decode_record, encode_record
from penstock.ports.durable_log import LogAddress
from penstock.segmentstore.store import SegmentStore
from penstock.storage.ledgers import ledger_log
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.ledgers.limits import LedgerLogLimits
from penstock.storage.machine import files
from penstock.storage.rows import sqlite_room
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.cluster.tier import SharedTier
from penstock.testing.simulation.config import SimConfig, draw_config
from penstock.testing.simulation.history import History
from penstock.testing.simulation.ledgers.machine import make_bookkeeper
from penstock.testing.simulation.machine.coordination import SimCoordinator
from penstock.testing.simulation.machine.loop import SimLoop, current_process
from penstock.testing.simulation.machine.world import SimClock

ADDRESS: Final = ClusterAddress(hosts="zk:2181", root="/penstock/sim")
_TIER: Final = "s3://sim"


class SharedWorld:
    """Coordinator, bookies, tier 2 and the history of one run. ``path``: where machines have their directories."""

    def __init__(self, loop: SimLoop, path: Path, history: History) -> None:
        self.loop = loop
        self.path = path
        self.history = history
        rng = self.rng = loop.fork("world")
        self.containers = rng.choice((2, 3, 4))
        self.config = draw_cluster_config(loop.seed, containers=self.containers)
        self.clock = SimClock(loop)
        self.coordinator = SimCoordinator(loop.fork("coordinator"), session_s=4.0, patience_s=3.0)
        self.bookkeeper = make_bookkeeper(
            rng.choice((3, 3, 4)), loop.fork("links"), sync_s=rng.choice((0.0, 0.002, 0.02))
        )
        self.tier = SharedTier(loop.fork("tier"), self._is_cut_from_tier)
        self.tier_unit_bytes = rng.choice((64, 1_000, 8_000))
        self.tier_wait_ms = rng.choice((50, 300, 2_000))
        self.catalogue_s = rng.choice((0.2, 1.0, 4.0))
        self.log_limits = LedgerLogLimits(
            frame_max_bytes=200_000,
            entry_max_bytes=rng.choice((1_000, 50_000)),
            ledger_bytes=rng.choice((10_000, 100_000)),
            ledger_age_s=rng.choice((2.0, 20.0)),
            ledger_age_min_s=0.5,
            retry_s=rng.choice(((0.05, 0.5), (0.5, 2.0))),
            close_s=2.0,
        )
        self.cut_from_tier: dict[str, None] = {}
        self.openings = 0
        self._logs: dict[str, list[tuple[LedgerLog, int]]] = {}
        """Openings of each log, with what they found at its end."""
        self._overlapping: dict[tuple[str, int], None] = {}
        self._newest: dict[int, tuple[int, SegmentStore]] = {}
        ids = SeededRng(loop.fork("uids"))
        for number in range(self.containers):
            data = encode_record(ContainerRecord(uid=str(ids.uuid())))
            self.bookkeeper.nodes.nodes[f"{ADDRESS.root}/{CONTAINERS}/{number}"] = (data, 0)

    @property
    def cluster_config(self) -> ClusterConfig:
        return ClusterConfig(cluster="sim", containers=self.containers, ledgers="/ledgers", tier2=_TIER)

    def record(self, number: int) -> ContainerRecord:
        return decode_record(self.bookkeeper.nodes.nodes[f"{ADDRESS.root}/{CONTAINERS}/{number}"][0])

    def held(self) -> Mapping[int, HeldContainer]:
        """The registrations of containers."""
        return {
            int(path.removeprefix(f"{HOLDERS}/")): decode_node(HeldContainer, entry.node.data)
            for path, entry in self.coordinator.tree.items()
            if path.startswith(f"{HOLDERS}/")
        }

    def serves(self, number: int, store: SegmentStore) -> None:
        """An opening of a container begins to serve."""
        self.openings += 1
        self.history.note(f"container {number} is served in epoch {store._log.epoch}")
        if number not in self._newest or store._log.epoch > self._newest[number][0]:
            self._newest[number] = (store._log.epoch, store)

    def is_outdated(self, number: int, store: SegmentStore) -> bool:
        """Whether a later opening of the container has begun to serve."""
        return self._newest[number][0] > store._log.epoch

    def _is_cut_from_tier(self) -> bool:
        process = current_process()
        return process is not None and process.name.partition(".")[0] in self.cut_from_tier

    def overlaps(self) -> Iterator[str]:
        """Openings of a container's log that acknowledged something which a later opening did not find. Each one is
        reported once."""
        for uid, logs in self._logs.items():
            for (log, _), (later, end) in pairwise(sorted(logs, key=lambda one: one[0].epoch)):
                if log.last > end and (uid, log.epoch) not in self._overlapping:
                    self._overlapping[uid, log.epoch] = None
                    yield f"epoch {log.epoch} acknowledged {log.last}, and epoch {later.epoch} began after {end}"

    @contextmanager
    def machinery(self) -> Iterator[None]:
        """Let stores use the simulated tier 2, small ledgers, and nothing that measures real time."""

        def never_fast(*_: Any, **__: Any) -> None:
            return

        replay = LedgerLog.replay

        async def replayed(log: LedgerLog) -> AsyncIterator[tuple[LogAddress, bytes]]:
            async for item in replay(log):
                yield item
            self._logs.setdefault(log.uid, []).append((log, log.last))

        with ExitStack() as stack:
            stack.enter_context(patch.object(LedgerLog, "replay", replayed))
            stack.enter_context(patch.object(tier2, "open_bucket", self.tier.open))
            stack.enter_context(patch.object(tier2, "_CATALOGUE_S", self.catalogue_s))
            stack.enter_context(patch.object(ledger_log, "LedgerLogLimits", lambda: self.log_limits))
            stack.enter_context(patch.object(files._SyncMeter, "record", never_fast))
            stack.enter_context(patch.object(sqlite_room, "ROOM_BYTES", 32 << 10))
            yield


def draw_cluster_config(seed: int, *, containers: int) -> SimConfig:
    """The configuration of a single store, for stores of a cluster, whose clients need no controller."""
    drawn = draw_config(seed)
    store = replace(drawn.store, containers=containers, close_s=5.0, max_unflushed_bytes=1 << 20)
    return replace(drawn, wire=False, evicts=False, store=store)
