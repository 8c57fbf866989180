"""Rebuilds the record of a container from the names in tier 2's catalogue and the ledgers of its log.

Source: docs/design/0065-cluster.md, "Rebuild".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.codec.store.catalogue import Kind, ObjectName
from penstock.codec.store.container_record import CataloguePosition, ListedLedger
from penstock.model.values.dataclass import dataclass


def positions(names: Sequence[ObjectName]) -> Iterator[CataloguePosition]:
    """Positions that the catalogue of a container may have had, the best first, without ``upto``.

    An epoch begins after the last valid batch of earlier epochs. So its first batch shows which batches of earlier
    epochs are void: those of an owner that was deposed and did not know. A snapshot counts if it needs no void batch,
    and all that it needs are there. What the last owner has written and not published counts too: it describes frames
    that were in the log.
    """
    journals: dict[int, list[ObjectName]] = {}
    for name in names:
        if name.kind is Kind.JOURNAL:
            journals.setdefault(name.epoch, []).append(name)
    firsts = {epoch: min(name.first for name in those) for epoch, those in journals.items()}
    ends = sorted(
        (name for name in names if name.end), key=lambda name: (name.epoch, name.first, name.run), reverse=True
    )
    for end in ends:
        later = sorted(epoch for epoch in firsts if epoch > end.epoch)
        if later and end.last >= min(firsts[epoch] for epoch in later):
            continue
        at = CataloguePosition(run=end.run, included=end.first, batch=end.first, begins=((end.epoch, end.first),))
        for epoch in (end.epoch, *later):
            if epoch != end.epoch:
                if firsts[epoch] > at.batch + 1:
                    break  # the batches between are lost
                at = replace(at, begins=(*at.begins, (epoch, firsts[epoch] - 1)))
            stop = min((firsts[one] - 1 for one in later if one > epoch), default=None)
            at = replace(at, batch=_reached(at.batch, journals.get(epoch, ()), stop))
        if at.batch >= end.last:
            yield at


def _reached(batch: int, journals: Sequence[ObjectName], stop: int | None) -> int:
    """The last batch that follows without a gap, at most ``stop``."""
    for name in sorted(journals, key=lambda name: (name.first, name.last)):
        if name.first <= batch + 1:
            batch = max(batch, name.last if stop is None else min(name.last, stop))
    return batch


def earlier(at: CataloguePosition) -> CataloguePosition | None:
    """The same position one batch before; None: there is only the snapshot."""
    if at.batch <= at.included:
        return None
    begins = tuple(one for one in at.begins if one[1] < at.batch) or at.begins[:1]
    return replace(at, batch=at.batch - 1, begins=begins)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerExtent:
    """A ledger that is closed. ``epoch``: of its writer. ``begun``: the address that its first frame has at least. ``first``
    and ``last``: addresses of its whole frames; ``last`` is lower if it has none. ``last_entry``: its last entry.
    ``size_bytes``: of its entries. ``sealed``: it is encrypted. ``is_readable``: its key is there."""

    ledger: int
    epoch: int
    begun: int
    first: int
    last: int
    last_entry: int
    size_bytes: int
    sealed: bool = False
    is_readable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The ledgers that continue a position. ``first``: the first address that they have. ``reached``: the last address up to
    which the container is known; that of the position without ledgers. ``unusable_bytes``: of ledgers that lie behind a gap,
    or whose key is gone.
    ``is_complete``: no ledger is known to be missing."""

    ledgers: tuple[ListedLedger, ...]
    first: int
    reached: int
    unusable_bytes: int
    is_complete: bool


def chain(upto: int, extents: Sequence[LedgerExtent], *, epoch: int) -> Chain:
    """The ledgers that contain the frame after the address ``upto``, or end at ``upto``: in order, as far back as there
    is no gap. Rows up to ``upto`` may name bytes that only earlier frames hold.

    A log has a ledger from its first opening on, and each opening adds one. So without any ledger, or with none of the
    newest epoch that names in tier 2 show (``epoch``; 0: none), ledgers are missing. Ledgers are also missing if the
    newest one begins after the end, or if one follows a gap. A ledger is void if one of a later epoch begins at or
    before its end: the later owner found the log without it. A ledger without its key cannot be used. If a wipe
    destroyed the key, nothing is lost, because tier 2 has all its frames.
    """
    filled = [one for one in extents if one.last >= one.first]
    readable = [one for one in filled if one.is_readable]
    sound = sorted(
        (one for one in filled if not any(_voids(other, one) for other in readable)),
        key=lambda one: (one.first, one.ledger),
    )
    runs: list[list[LedgerExtent]] = []
    for one in sound:
        if not one.is_readable:
            continue
        if runs and runs[-1][-1].last + 1 == one.first:
            runs[-1].append(one)
        else:
            runs.append([one])
    run = next((run for run in runs if run[0].first <= upto + 1 <= run[-1].last + 1), [])
    reached = run[-1].last if run else upto
    unusable_bytes = sum(one.size_bytes for one in sound if (one.first if one.is_readable else one.last) > reached)
    newest = max((one.epoch for one in extents), default=0)
    return Chain(
        ledgers=tuple(
            ListedLedger(ledger=one.ledger, first=one.first, last=one.last_entry, sealed=one.sealed) for one in run
        ),
        first=run[0].first if run else upto + 1,
        reached=reached,
        unusable_bytes=unusable_bytes,
        is_complete=bool(extents)
        and newest >= epoch
        and all(one.begun <= reached + 1 for one in extents if one.epoch == newest)
        and not unusable_bytes,
    )


def _voids(later: LedgerExtent, one: LedgerExtent) -> bool:
    return later.epoch > one.epoch and later.first <= one.last


def newest_epoch(names: Sequence[ObjectName], extents: Sequence[LedgerExtent]) -> int:
    """The highest epoch that is known; the next opening needs a higher one."""
    return max((*(name.epoch for name in names), *(one.epoch for one in extents)), default=0)
