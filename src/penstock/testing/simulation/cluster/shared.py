"""What the machines, controllers and clients of one run share."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from penstock.app import tier2
from penstock.app.cluster.address import ClusterAddress
from penstock.codec.store.catalogue import DIRECTORY
from penstock.codec.store.cluster_nodes import CONTAINERS, HOLDERS, LEADER, ClusterConfig, HeldContainer, decode_node
from penstock.codec.store.container_record import ContainerRecord, decode_record, encode_record
from penstock.core.cluster import placement
from penstock.ports.durable_log import LogAddress
from penstock.segmentstore.store import SegmentStore
from penstock.storage.ledgers import ledger_log
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.ledgers.limits import LedgerLogLimits
from penstock.storage.machine import files
from penstock.storage.memory.memory_coordination import Tree
from penstock.storage.rows import sqlite_room
from penstock.testing.bookkeeper.bookies import ROOT, SimBookie
from penstock.testing.fakes import SeededRng
from penstock.testing.simulation.cluster.aims import Moment, Moments, moments_of
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
        self.moments = Moments()
        # Short sessions make takeovers more frequent.
        session_s = loop.fork("session").choice((1.5, 1.5, 4.0))
        self.coordinator = SimCoordinator(loop.fork("coordinator"), session_s=session_s, patience_s=3.0)
        self.coordinator.on_commit = self._committed
        self.bookkeeper = make_bookkeeper(
            rng.choice((3, 3, 4)), loop.fork("links"), sync_s=rng.choice((0.0, 0.002, 0.02, 0.1, 0.1))
        )
        self.sync_s = next(iter(self.bookkeeper.bookies.values())).sync_s
        for bookie in self.bookkeeper.bookies.values():
            bookie.on_add = self._added
        self.tier = SharedTier(loop.fork("tier"), self._is_cut_from_tier)
        self.tier.on_written = self._written
        self.tier.on_deleted = lambda name: self.moments.note(Moment.DELETED)
        # Often a store that is lost again and again still gets containers, so that they come back to it.
        self.flap_losses = loop.fork("flaps").choice((placement.FLAP_LOSSES, 1_000, 1_000))
        self.tier_unit_bytes = rng.choice((64, 1_000, 8_000))
        self.tier_wait_ms = rng.choice((50, 300, 2_000))
        self.record_slow_s = loop.fork("records").choice((0.0, 0.03, 0.1, 0.1))
        """By how much messages about records are slower, so that more can happen between two steps."""
        self.catalogue_s = rng.choice((0.2, 1.0, 8.0, 8.0))
        self.log_limits = LedgerLogLimits(
            frame_max_bytes=200_000,
            entry_max_bytes=rng.choice((1_000, 50_000)),
            ledger_bytes=rng.choice((500, 500, 10_000, 100_000)),
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
        self._served_by: dict[int, str] = {}
        """The machine that has opened each container last."""
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
            process = current_process()
            self._served_by[number] = "" if process is None else process.name.partition(".")[0]

    def is_outdated(self, number: int, store: SegmentStore) -> bool:
        """Whether a later opening of the container has begun to serve."""
        return self._newest[number][0] > store._log.epoch

    # --- moments

    def node_changed(self, path: str, before: bytes) -> None:
        """The running process has created, changed or deleted a node beside the coordinator's sessions."""
        after = self.bookkeeper.nodes.nodes.get(path)
        if after is None:
            self.moments.note(Moment.DELETED)
        elif path.startswith(ROOT):
            self.moments.note(Moment.CLOSED if before else Moment.CREATED)
        else:
            for moment in moments_of(decode_record(before), decode_record(after[0])):
                self.moments.note(moment)

    def _written(self, name: str) -> None:
        self.moments.note(Moment.NOTED if name.startswith(f"{DIRECTORY}/") else Moment.WRITTEN)

    def _committed(self, before: Tree, paths: Sequence[str]) -> None:
        for path in paths:
            if path.startswith(f"{HOLDERS}/"):
                entry = self.coordinator.tree.get(path) or before[path]
                self.moments.note(Moment.HELD, decode_node(HeldContainer, entry.node.data).store)
            elif path == LEADER:
                self.moments.note(Moment.ELECTED)

    def _added(self, ledger: int, entry: int) -> None:
        if self.moments.awaits(Moment.LONE) and entry > 0 and len(self._holders(ledger, entry)) == 1:
            number = next((one for one in range(self.containers) if self._newest_ledger(one) == ledger), None)
            self.moments.note(Moment.LONE, None if number is None else self._served_by.get(number))

    def answered(self, number: int, method: str) -> None:
        """A client has got an answer about a container."""
        machine = self._served_by.get(number)
        if method == "lease_chunks":
            self.moments.note(Moment.LEASED, machine)
        ledger = self._newest_ledger(number)
        if ledger is not None and self.moments.awaits(Moment.THIN):
            ends = [max(one.memory[ledger].entries, default=0) for one in self._bookies_of(ledger)]
            if ends and min(ends) < max(ends):
                self.moments.note(Moment.THIN, machine)

    def _newest_ledger(self, number: int) -> int | None:
        ledgers = self.record(number).ledgers
        return ledgers[-1].ledger if ledgers else None

    def _bookies_of(self, ledger: int) -> list[SimBookie]:
        return [one for one in self.bookkeeper.bookies.values() if ledger in one.memory]

    def _holders(self, ledger: int, entry: int) -> list[SimBookie]:
        return [one for one in self._bookies_of(ledger) if entry in one.memory[ledger].entries]

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
            stack.enter_context(patch.object(placement, "FLAP_LOSSES", self.flap_losses))
            stack.enter_context(patch.object(tier2, "_CATALOGUE_S", self.catalogue_s))
            stack.enter_context(patch.object(ledger_log, "LedgerLogLimits", lambda: self.log_limits))
            stack.enter_context(patch.object(files._SyncMeter, "record", never_fast))
            stack.enter_context(patch.object(sqlite_room, "ROOM_BYTES", 32 << 10))
            yield


def draw_cluster_config(seed: int, *, containers: int) -> SimConfig:
    """The configuration of a single store, for stores of a cluster, whose clients need no controller."""
    drawn = draw_config(seed)
    # Frequent checkpoints leave many batches that are not published, which only the store's own cache has.
    checkpoint_s = random.Random(f"{seed}/checkpoints").choice((0.1, 0.5, 0.5, drawn.store.checkpoint_interval_s))
    store = replace(
        drawn.store,
        containers=containers,
        close_s=5.0,
        max_unflushed_bytes=1 << 20,
        checkpoint_interval_s=min(checkpoint_s, drawn.store.checkpoint_interval_s),
    )
    return replace(drawn, wire=False, evicts=False, think_s=min(drawn.think_s, 0.8), store=store)
