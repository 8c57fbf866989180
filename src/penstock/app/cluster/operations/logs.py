"""The logs of containers for an operator: what is not published yet, and which ledgers lack a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final

from penstock.codec.bookie import Entry
from penstock.codec.ledger_metadata import LedgerMetadata
from penstock.codec.store.container_record import ContainerRecord, ListedLedger
from penstock.codec.store.ledger_entries import decode_part
from penstock.codec.store.operation_frames import decode_frame_header
from penstock.core.ledgers.replicas import absent_bookies
from penstock.model.errors import PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.storage.ledgers.inspection import LedgerInspection

_AT_ONCE: Final = 8
"""Containers whose ledgers are read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What the log of a container holds and tier 2 does not. ``size_bytes``: of its entries. ``since_ms``: when the oldest
    such frame was written, in milliseconds since the Unix epoch; None: there is none."""

    size_bytes: int
    since_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinLedger:
    """A ledger that lacks a copy now. ``absent``: its bookies that are not registered."""

    ledger: int
    absent: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """``lag``: None if it cannot be known now. ``problems``: why, and what is wrong with the ledgers."""

    lag: Lag | None
    thin: Sequence[ThinLedger] = ()
    problems: Sequence[str] = ()


async def log_states(records: Mapping[int, ContainerRecord], inspection: LedgerInspection) -> Mapping[int, LogState]:
    """The state of each log, by container. Ledgers are read without fencing anyone. What cannot be read is a problem of that
    log alone.

    Raises NotFoundError (no BookKeeper is at the root), UnavailableError (ZooKeeper does not answer).
    """
    available = (await inspection.bookies()).available
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(record: ContainerRecord) -> LogState:
        async with slots:
            return await _log_state(record, available, inspection)

    found = await asyncio.gather(*map(one, records.values()))
    return dict(zip(records, found, strict=True))


async def _log_state(record: ContainerRecord, available: Collection[str], inspection: LedgerInspection) -> LogState:
    problems: list[str] = []
    thin: list[ThinLedger] = []
    for listed in record.ledgers:
        try:
            metadata = await inspection.metadata(listed.ledger)
        except PenstockError as error:
            problems.append(str(error))
            continue
        absent = absent_bookies([one.bookies for one in metadata.ensembles], available)
        thin += [ThinLedger(ledger=listed.ledger, absent=absent)] if absent else []
    lag = None
    if not problems:
        try:
            lag = await lag_of(record, inspection)
        except PenstockError as error:
            problems.append(str(error))
    return LogState(lag=lag, thin=thin, problems=problems)


async def lag_of(record: ContainerRecord, inspection: LedgerInspection) -> Lag:
    """The frames that the next owner of the container replays. Raises PenstockError: a ledger cannot be read."""
    upto = record.truncated
    size_bytes, since_ms = 0, None
    published = {one.ledger for one, later in pairwise(record.ledgers) if later.first - 1 <= upto}
    for listed in record.ledgers:
        if listed.ledger in published:
            continue
        metadata = await inspection.metadata(listed.ledger)
        last = await _last(listed, metadata, inspection)
        first = await _first_behind(upto, listed, last, metadata, inspection)
        if first is None:
            continue
        size_bytes += last.length_bytes - first.length_bytes + len(first.payload)
        if since_ms is None:
            part = decode_part(first.payload, ledger=listed.ledger)
            since_ms = part.written_ms if part.written_ms is not None else decode_frame_header(part.data).time_ms
    return Lag(size_bytes=size_bytes, since_ms=since_ms)


async def _last(listed: ListedLedger, metadata: LedgerMetadata, inspection: LedgerInspection) -> Entry:
    if listed.last is None:
        return await inspection.last(listed.ledger, metadata)
    return await inspection.entry(listed.ledger, metadata, listed.last)


async def _first_behind(
    upto: int, listed: ListedLedger, last: Entry, metadata: LedgerMetadata, inspection: LedgerInspection
) -> Entry | None:
    """The first entry of the ledger whose frame has an address above ``upto``. Most frames are one entry, so the first guess
    is mostly right. Entry 0 is the ledger's header."""
    low, high, found = 1, last.entry, None
    guess = 1 + max(0, upto + 1 - listed.first)
    while low <= high:
        middle = min(max(guess, low), high)
        entry = await inspection.entry(listed.ledger, metadata, middle)
        part = decode_part(entry.payload, ledger=listed.ledger)
        if part.address > upto:
            found, high = entry, middle - 1
            if part.index == 0 and part.address == max(upto + 1, listed.first):
                break
        else:
            low = middle + 1
        guess = (low + high) // 2
    return found
