"""Limits of a client of ledgers, and of a log on them."""

from __future__ import annotations

from penstock.codec.bookie import ENTRY_MAX_BYTES
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLimits:
    """``timeout_s``: how long a bookie may take to answer; then its connection is given up. ``connect_s``: the same for
    connecting. ``rest_s``: how long a bookie that failed holds no new ledger, where others can. ``in_flight_bytes``:
    entries that are not acknowledged, of one ledger. ``lag_bytes``: entries that one bookie has not answered, of one
    ledger; a bookie with more is given up, because the memory of its connection grows."""

    timeout_s: float = 2.0
    connect_s: float = 2.0
    rest_s: float = 60.0
    in_flight_bytes: int = 64 << 20
    lag_bytes: int = 96 << 20
    entry_max_bytes: int = ENTRY_MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLogLimits:
    """Sizes in bytes, times in seconds.

    A ledger ends at ``ledger_bytes`` or after ``ledger_age_s`` with frames, so that truncation frees space. One whose
    bookie has failed is replaced after ``ledger_age_min_s``: a bookie may fail in each. ``in_flight_bytes``: frames
    that are not acknowledged; further callers wait. ``retry_s``: first and longest pause between attempts to begin a
    ledger, and after two ledgers in which nothing was acknowledged. ``close_s``: how long closing waits for bookies
    that do not answer. ``fenced_s``: how long a log whose ledger was fenced waits for the coordinator to answer who
    owns the log, plus one call. Until then it may be a deposed owner that still answers reads. An election of ZooKeeper
    takes some seconds.
    """

    frame_max_bytes: int = 17 << 20
    entry_max_bytes: int = 4 << 20
    ledger_bytes: int = 256 << 20
    ledger_age_s: float = 600.0
    ledger_age_min_s: float = 10.0
    in_flight_bytes: int = 32 << 20
    retry_s: tuple[float, float] = (0.1, 2.0)
    close_s: float = 10.0
    fenced_s: float = 20.0
