"""Replicated ledgers as values: their bookies, and how many copies they have."""

from __future__ import annotations

from dataclasses import dataclass

COPIES_MIN = 2
"""The fewest copies to which a log falls back by itself. With one copy, the loss of a bookie would lose acknowledged data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookie:
    """A server that takes entries. ``host``: bookies of one host can fail together. ``zone``: the operator's name for a
    larger unit that can fail together; empty if unknown."""

    name: str
    host: str
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSpec:
    """How a ledger is kept: on ``copies`` bookies; an entry is acknowledged once ``acks`` of them have synced it.

    ``labels``: pairs that show tools the owner of the ledger, such as ``("container", b"3")``.
    """

    copies: int = 3
    acks: int = 2
    labels: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """What is known about a ledger. ``last`` (-1: no entry) and ``size_bytes`` are final if ``closed``; else they are
    -1 and 0."""

    ledger: int
    closed: bool
    last: int
    size_bytes: int
    bookies: tuple[str, ...]
    labels: tuple[tuple[str, bytes], ...]
