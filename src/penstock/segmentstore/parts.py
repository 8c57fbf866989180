"""The ports that a store and its containers are built from."""

from __future__ import annotations

from dataclasses import field

from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkStorage
from penstock.ports.clock import Clock
from penstock.ports.cluster.publications import Publications
from penstock.ports.holds import NoHolds, SpaceHolds
from penstock.ports.keyvalue import KeyValueStore
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.settings import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """Borrowed: their owner closes them after the store.

    keyvalue: holds the rows of metadata.
    chunks: tier 2.
    clock, rng, offload, telemetry: time, randomness, threads and metrics.
    settings: how the store uses memory, disk and time.
    catalogue: tier 2, where rows of metadata are repeated (``segmentstore.tiering.catalogue``). Without it tier 2 alone
        cannot restore the store.
    publications: where the catalogue's position is noted for later owners, before anything that it named is deleted. Without
        it, the data directory alone knows the position.
    holds: asked before space is freed. Without it, the store cannot be backed up while it runs.
    """

    keyvalue: KeyValueStore
    chunks: ChunkStorage
    clock: Clock
    rng: Rng
    offload: Offload
    telemetry: Telemetry
    settings: StoreSettings = field(default_factory=StoreSettings)
    catalogue: Objects | None = None
    publications: Publications | None = None
    holds: SpaceHolds = field(default_factory=NoHolds)
