"""Limits of a client of ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.codec.bookie import ENTRY_MAX_BYTES


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
