"""Settings of a segment store."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How a store uses memory, disk and time. Checked when made; raises InvalidArgumentError.

    containers: number of containers; 4 lets tiering of one go on while another commits. Fixed when a store is created.
    cache_bytes: memory for bytes near the tails, tiered or not; 64 MiB serves some seconds of catching up.
    read_cache_bytes: memory for verified chunk blocks, per container; 4 MiB spares re-reading a block for small reads.
    chunk_bytes: a chunk is rolled at this size; 16 MiB is one task of a Spark job and a fair unit to give back.
    flush_bytes: size of a block in tier 2; 1 MiB is read and verified in under a millisecond.
    tier_run_bytes: blocks of a segment that are written to its chunk with one sync, bytes; 8 MiB, for a sync costs as much
        as writing one or two.
    tier_gather_bytes: the most that a segment gathers before it is written to a file of tier 2, while few segments do; 8 MiB,
        a run. What all of them gather is at most a quarter of ``max_unflushed_bytes``.
    tier_unit_bytes: what a segment gathers before it is written to tier 2, where that is more than a block; 1: files grow.
        An object store is written whole objects, which should be few: 8 MiB there.
    flush_interval_s: seconds that bytes may wait to be tiered; 10 bounds the log that recovery replays. Where thousands of
        segments have little each, those wait longer: they are written at a pace.
    checkpoint_interval_s: seconds between checkpoints of a container that changed; 5 bounds replay of metadata.
    checkpoint_bytes: bytes of log after which every container tiers and checkpoints; 256 MiB replays in about a second.
    checkpoint_rows_bytes: bytes of changed rows that trigger a checkpoint early; 8 MiB. At four times that, changes of
        tables wait for a checkpoint.
    rows_wait_s: how long a change of a table waits for that before it is refused, seconds; 5, less than callers do.
    frame_bytes: bytes after which a log frame takes no further operation; 8 MiB, half of the largest append.
    frame_operations: operations in one frame; 4096 keep one pass of the event loop under some milliseconds.
    max_unflushed_bytes: memory for bytes not tiered yet; appends beyond are throttled. 256 MiB rides out a tier 2 that
        stands still for a while.
    max_loaded_segments: segments held in memory, per container, while idle; 10000 take about 20 MB.
    max_loaded_attributes: writers and attributes held in memory per segment, those aside that change; 10000.
    max_parked_reads: reads waiting at tails, per container; 20000.
    max_parked_appends: appends waiting for their segment to be loaded, per container; 10000.
    max_leases: leases held at a time, per container; 1000. A lease counts once, however much it holds.
    max_leased_segments: segments held by leases, per container, counted once per lease; 100000 take about 20 MB.
    max_lease_ms: longest lease, milliseconds; a day outlives any sane job.
    max_changed_segments: names of changed segments remembered for whoever asks; 100000 take about 20 MB. Beyond, all are to
        be looked at.
    merge_memory_ms: how long a finished merge is remembered for a repeated call, milliseconds; a day.
    free_head_bytes: dead bytes at the head of a chunk worth giving back before the whole chunk goes; 1 MiB.
    catalogue_interval_s: how often changed rows go to the catalogue in tier 2, seconds; 5, with each checkpoint. An object
        store is asked every minute.
    catalogue_object_bytes: a journal of the catalogue is written anew with what is new until it has this size; 128 KiB.
    catalogue_part_bytes: size of the objects of a snapshot, of which three may be in memory for each container; 4 MiB.
    catalogue_growth_bytes, catalogue_objects: a snapshot replaces journals above this size, and twice its own, or above this
        many; 4 MiB and 256.
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
    retry_min_s: float = 0.1
    retry_max_s: float = 5.0

    @property
    def unit_bytes(self) -> int:
        """From how many bytes on a segment is written to tier 2 without waiting further, when many segments gather."""
        return max(self.flush_bytes, self.tier_unit_bytes)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("setting must be positive", setting=name, value=getattr(self, name))
        if self.containers > 0xFFFF:
            raise InvalidArgumentError("too many containers", containers=self.containers, limit=0xFFFF)
        if self.retry_max_s < self.retry_min_s:
            raise InvalidArgumentError("longest pause is shorter than the shortest", retry_max_s=self.retry_max_s)
