"""Replicated ledgers as values: their bookies, and how many copies they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.model.values.dataclass import dataclass

KEY_ID_BYTES: Final = 16
_KEY = re.compile(r"([0-9a-f]{16})-([0-9a-f]{32})")

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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class LedgerKey:
    """Names a secret that encrypts ledgers: the epoch of the opening that drew it, and 16 random bytes."""

    epoch: int
    id: bytes

    def __str__(self) -> str:
        return f"{self.epoch:016x}-{self.id.hex()}"

    @classmethod
    def parse(cls, text: str) -> LedgerKey | None:
        """Inverse of ``str``; None: the text names no secret."""
        match = _KEY.fullmatch(text)
        return None if match is None else cls(epoch=int(match[1], 16), id=bytes.fromhex(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWipe:
    """A wipe of a log that has ended. ``keys``: names of destroyed secrets, sorted, of a log whose frames are encrypted;
    those destroyed in the last day are included. ``at_ms``: when the last of them was destroyed, milliseconds since the Unix
    epoch; None: the log has no keys, and its files were overwritten. ``is_in_tier2``: the log is there, and not on bookies.
    """

    keys: Sequence[str] = ()
    at_ms: int | None = None
    is_in_tier2: bool = False

    @classmethod
    def joined(cls, wipes: Iterable[LogWipe]) -> LogWipe:
        """The wipe of several logs."""
        found = list(wipes)
        times = [one.at_ms for one in found if one.at_ms is not None]
        return cls(keys=tuple(sorted(key for one in found for key in one.keys)), at_ms=max(times, default=None))
