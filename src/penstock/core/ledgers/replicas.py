"""Which ledgers lack a copy now."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def absent_bookies(ensembles: Iterable[Collection[str]], available: Collection[str]) -> list[str]:
    """The bookies of a ledger that cannot be read from now, sorted. Each entry has one copy on each bookie of its ensemble,
    so the ledger lacks a copy for each of them. ``available``: those registered, read-only ones included."""
    return sorted({name for ensemble in ensembles for name in ensemble if name not in available})
