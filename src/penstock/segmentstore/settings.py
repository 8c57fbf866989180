"""Settings of a segment store."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How a store uses memory, disk and time. Checked on creation; raises InvalidArgumentError.

    containers: number of containers; with 4, one can tier while another commits. Fixed when a store is created.
    cache_bytes: memory for bytes near the tails, tiered or not; 64 MiB covers some seconds of catch-up reads.
    read_cache_bytes: memory for verified chunk blocks, per container; with 4 MiB, small reads do not re-read a block.
    chunk_bytes: a chunk is rolled at this size; 16 MiB is one task of a Spark job and a reasonable unit to free.
    flush_bytes: size of a block in tier 2; 1 MiB is read and verified in under a millisecond.
    tier_run_bytes: bytes of blocks of one segment that are written to its chunk with one sync; 8 MiB, because a sync
        costs as much as writing one or two MiB.
    tier_gather_bytes: the most that a segment gathers before it is written to a file of tier 2, while few segments
        gather; 8 MiB, a run. All segments together gather at most a quarter of ``max_unflushed_bytes``.
    tier_unit_bytes: what a segment gathers before it is written to tier 2, if more than a block; 1, because files grow.
        An object store takes whole objects, which should be few: 8 MiB there.
    flush_interval_s: seconds that bytes may wait to be tiered; 10 bounds the log that recovery replays. If thousands of
        segments have few bytes each, those wait longer: they are written at a limited rate.
    checkpoint_interval_s: seconds between checkpoints of a container that changed; 5 bounds replay of metadata.
    checkpoint_bytes: bytes of log after which every container tiers and checkpoints; 256 MiB replays in about a second.
    checkpoint_rows_bytes: bytes of changed rows that trigger a checkpoint early; 8 MiB. At four times that, changes of
        tables wait for a checkpoint.
    rows_wait_s: how long a table change waits for that checkpoint before it is refused, seconds; 5, less than callers
    wait.
    frame_bytes: bytes after which a log frame takes no further operation; 8 MiB, half of the largest append.
    frame_operations: operations in one frame; 4096 keep one pass of the event loop under some milliseconds.
    max_unflushed_bytes: memory for bytes not tiered yet; appends beyond are throttled. 256 MiB bridges a short outage
        of tier 2.
    max_loaded_segments: segments held in memory, per container, while idle; 10000 take about 20 MB.
    max_loaded_attributes: writers and attributes held in memory per segment, not counting those that change; 10000.
    max_parked_reads: reads waiting at tails, per container; 20000.
    max_parked_appends: appends waiting for their segment to be loaded, per container; 10000.
    max_leases: leases held at a time, per container; 1000. A lease counts once, however much it holds.
    max_leased_segments: segments held by leases, per container, counted once per lease; 100000 take about 20 MB.
    max_lease_ms: longest lease, milliseconds; a day, longer than any normal job.
    max_changed_segments: names of changed segments remembered for the next poll; 100000 take about 20 MB. Beyond that,
        the caller must check all segments.
    merge_memory_ms: how long a finished merge is remembered for a repeated call, milliseconds; a day.
    free_head_bytes: dead bytes at the head of a chunk that are worth freeing before the whole chunk; 1 MiB.
    catalogue_interval_s: how often changed rows go to the catalogue in tier 2, seconds; 5, with each checkpoint. An
        object store: every minute.
    catalogue_object_bytes: a journal of the catalogue is rewritten with new batches added until it has this size; 128
    KiB.
    catalogue_part_bytes: size of the objects of a snapshot, of which three may be in memory for each container; 4 MiB.
    catalogue_growth_bytes, catalogue_objects: a snapshot replaces the journals once they exceed this size and twice the
        snapshot's own, or this number; 4 MiB and 256.
    close_s: how long a close waits for the log and tier 2, for all containers together, seconds; 15, since one call to
        ZooKeeper or an attempt at a bucket can take 10. A service that stops usually has 90.
    retry_min_s, retry_max_s: pause between failed attempts at tier 2 or the metadata, seconds; doubles from 0.1 to 5.
    """

    containers: int = 4
    cache_bytes: int = 64 * MIB
    read_cache_bytes: int = 4 * MIB
    chunk_bytes: int = 16 * MIB
    flush_bytes: int = MIB
    tier_run_bytes: int = 8 * MIB
    tier_gather_bytes: int = 8 * MIB
    tier_unit_bytes: int = 1
    flush_interval_s: float = 10.0
    checkpoint_interval_s: float = 5.0
    checkpoint_bytes: int = 256 * MIB
    checkpoint_rows_bytes: int = 8 * MIB
    rows_wait_s: float = 5.0
    frame_bytes: int = 8 * MIB
    frame_operations: int = 4096
    max_unflushed_bytes: int = 256 * MIB
    max_loaded_segments: int = 10_000
    max_loaded_attributes: int = 10_000
    max_parked_reads: int = 20_000
    max_parked_appends: int = 10_000
    max_leases: int = 1_000
    max_leased_segments: int = 100_000
    max_lease_ms: int = 86_400_000
    max_changed_segments: int = 100_000
    merge_memory_ms: int = 86_400_000
    free_head_bytes: int = MIB
    catalogue_interval_s: float = 5.0
    catalogue_object_bytes: int = 128 << 10
    catalogue_part_bytes: int = 4 * MIB
    catalogue_growth_bytes: int = 4 * MIB
    catalogue_objects: int = 256
    close_s: float = 15.0
    retry_min_s: float = 0.1
    retry_max_s: float = 5.0

    @property
    def unit_bytes(self) -> int:
        """The size at which a segment is written to tier 2 without further waiting, while many segments gather."""
        return max(self.flush_bytes, self.tier_unit_bytes)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("setting must be positive", setting=name, value=getattr(self, name))
        if self.containers > 0xFFFF:
            raise InvalidArgumentError("too many containers", containers=self.containers, limit=0xFFFF)
        if self.retry_max_s < self.retry_min_s:
            raise InvalidArgumentError("longest pause is shorter than the shortest", retry_max_s=self.retry_max_s)
