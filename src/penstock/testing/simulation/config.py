"""Configuration of one run: sizes, intervals, actors and faults, all drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import asdict, replace

from penstock.model.values.dataclass import dataclass
from penstock.segmentstore.settings import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Mean seconds between faults of one kind; None: never."""

    process_crash_s: float | None
    power_loss_s: float | None
    clean_stop_s: float | None
    clock_jump_s: float | None
    full_disk_s: float | None
    tier_errors_s: float | None
    sync_error_s: float | None
    network_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """A run whose stream scales by rate, with minutes of ``minute_ms``, and whose writers note times. Events/s."""

    minute_ms: int
    target_rate: int
    factor: int
    watermark_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """One run. ``wire``: clients use the wire server; else they call the store in the same process.

    ``evicts``: at each await of files or rows, every segment that may leave memory is evicted. ``slow_s``: longest
    duration of slow row scans and slow hole punches, in seconds.
    """

    seed: int
    wire: bool
    store: StoreSettings
    log_file_bytes: int
    log_files: int
    latency_s: float
    in_place: float
    chunk_handles: int
    sweep_ms: int
    retention_cycle_ms: int
    evicts: bool
    slow_s: float
    event_bytes: int
    block_bytes: int
    keys: int
    think_s: float
    writers: int
    transactions: int
    segments: int
    faults: FaultRates
    rates: RateSettings | None = None


def draw_config(seed: int) -> SimConfig:
    """Draw a configuration from all that are worth testing. The same seed gives the same one."""
    rng = random.Random(f"{seed}/config")
    log_file_bytes = rng.choice((48, 64, 96, 192)) << 10
    flush_bytes = rng.choice((256, 1024, 4096, 16 << 10))
    # Separate draws, so that the other draws do not change.
    evicting = random.Random(f"{seed}/evicts")
    evicts = evicting.random() < 0.4
    store = StoreSettings(
        containers=rng.choice((1, 1, 2, 3, 4)),
        cache_bytes=rng.choice((1 << 10, 8 << 10, 64 << 10, 1 << 20)),
        read_cache_bytes=rng.choice((1 << 10, 64 << 10)),
        chunk_bytes=flush_bytes * rng.choice((1, 3, 10)),
        flush_bytes=flush_bytes,
        tier_gather_bytes=flush_bytes * random.Random(f"{seed}/gather").choice((1, 1, 4)),
        flush_interval_s=rng.choice((0.05, 0.3, 1.0, 4.0)),
        checkpoint_interval_s=rng.choice((0.1, 0.5, 2.0, 5.0)),
        checkpoint_bytes=log_file_bytes * rng.choice((1, 2)),
        checkpoint_rows_bytes=rng.choice((2 << 10, 64 << 10)),
        frame_bytes=rng.choice((1 << 10, 16 << 10)),
        frame_operations=rng.choice((1, 4, 64)),
        max_unflushed_bytes=rng.choice((16 << 10, 64 << 10, 1 << 20)),
        max_loaded_segments=min(rng.choice((3, 10, 100)), 1 if evicts else 100),
        max_loaded_attributes=rng.choice((2, 10, 100)),
        merge_memory_ms=86_400_000,
        free_head_bytes=rng.choice((512, 4096)),
        retry_min_s=0.05,
        retry_max_s=1.0,
    )
    # Chunks are small here, so the head of a chunk is freed before all of it is dead.
    store = replace(store, free_head_bytes=min(store.free_head_bytes, store.chunk_bytes // 8))
    harsh = rng.choice((0.5, 1.0, 2.0))
    return SimConfig(
        seed=seed,
        wire=rng.random() < 0.4,
        store=store,
        log_file_bytes=log_file_bytes,
        log_files=rng.choice((6, 8, 12)),
        latency_s=rng.choice((0.0002, 0.001, 0.003)),
        # A separate draw, so that the other draws do not change.
        in_place=random.Random(f"{seed}/in place").choice((0.0, 0.5, 1.0)),
        chunk_handles=rng.choice((2, 16)),
        sweep_ms=rng.choice((1000, 3000)),
        retention_cycle_ms=rng.choice((3000, 8000)),
        evicts=evicts,
        slow_s=evicting.choice((0.2, 1.0)) if evicts else 0.0,
        event_bytes=rng.choice((20, 100, 1000)),
        block_bytes=rng.choice((1 << 10, 4 << 10)),
        keys=rng.choice((1, 3, 10)),
        think_s=rng.choice((0.3, 0.8, 1.5)),
        writers=rng.choice((1, 2)),
        transactions=rng.choice((0, 1, 2)),
        segments=rng.choice((1, 2)),
        faults=_draw_faults(rng, harsh),
    )


def at_pace(config: SimConfig, pace: float) -> SimConfig:
    """The same run, with ``pace`` times as much time between operations of actors and between faults.

    The store's own intervals stay, so it tiers, checkpoints and becomes idle in between, and may crash while idle.
    """
    faults = {name: None if mean_s is None else mean_s * pace for name, mean_s in asdict(config.faults).items()}
    return replace(config, think_s=config.think_s * pace, faults=FaultRates(**faults))


def _draw_faults(rng: random.Random, harsh: float) -> FaultRates:
    def often(mean_s: float, chance: float) -> float | None:
        return mean_s * harsh if rng.random() < chance else None

    return FaultRates(
        process_crash_s=often(12.0, 0.7),
        power_loss_s=often(10.0, 0.8),
        clean_stop_s=often(40.0, 0.3),
        clock_jump_s=often(20.0, 0.4),
        full_disk_s=often(25.0, 0.3),
        tier_errors_s=often(15.0, 0.4),
        sync_error_s=often(15.0, 0.5),
        network_s=often(15.0, 0.6),
    )
