"""What the owner of a container does to the container's record: freeze, fence, extend, roll, publish, delete.

Each function takes the record as this owner knows it and returns the next one, which the owner writes by
compare-and-set. An owner whose compare-and-set fails asks ``judge_change`` what that means. A ledger or an object is
deleted only after the record no longer names it. ``tests/cluster/ownership_model.py`` is an exhaustive model of these
steps, and ``test_ownership_decisions.py`` compares both. Source: docs/design/0063-ownership.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from itertools import pairwise

from penstock.codec.store.container_record import CataloguePosition, ContainerRecord, ListedLedger
from penstock.model.errors import InternalError


class Standing(Enum):
    """What a record that was read back means for an owner."""

    MADE = "made"
    """The record is as the owner wants it: an earlier attempt was made, and its answer was lost."""
    BEHIND = "behind"
    """The owner still owns the container, but another change of its own was made late. Repeat on top of it."""
    DEPOSED = "deposed"
    """A later opening owns the container, or the record was deleted. Stop, and change nothing more."""


def frozen(record: ContainerRecord, *, owner: str) -> ContainerRecord:
    """Begin the next epoch, as ``owner``. Once written, no earlier owner can extend, publish or delete. Batches of the
    catalogue that earlier epochs write from then on are void."""
    epoch, at = record.epoch + 1, record.catalogue
    if at is not None:
        # An epoch that published nothing leaves no batches that count.
        begins = [*(one for one in at.begins if one[1] < at.batch), (epoch, at.batch)]
        at = replace(at, begins=tuple(begins))
    return replace(record, epoch=epoch, owner=owner, catalogue=at)


def unfenced(record: ContainerRecord) -> list[int]:
    """Ledgers that may be open, the newest first: take each one over before the record is extended."""
    return [one.ledger for one in reversed(record.ledgers) if one.last is None]


def ended(record: ContainerRecord, ledger: int, last: int) -> ContainerRecord:
    """The ledger is known to end with the entry ``last``."""
    listed = tuple(replace(one, last=last) if one.ledger == ledger else one for one in record.ledgers)
    return replace(record, ledgers=listed)


def extended(record: ContainerRecord, listed: ListedLedger) -> ContainerRecord:
    """Add a ledger, whose header all its bookies have, as the newest. Once written, its entries may be acknowledged.

    A ledger before it that holds no whole frame is dropped. Otherwise the record would fill while an owner dies at each
    start, or while bookies fail again and again. A ledger that is listed already changes nothing. Raises InternalError:
    the end of the ledger before is not known, so another writer could still add to it.
    """
    if listed in record.ledgers:
        return record
    kept = record.ledgers
    if kept and kept[-1].last is None:
        raise InternalError("ledger follows one that may be open", ledger=listed.ledger, before=kept[-1].ledger)
    if kept and kept[-1].first == listed.first:
        kept = kept[:-1]
    return replace(record, ledgers=(*kept, listed))


def published(
    record: ContainerRecord, *, truncated: int, catalogue: CataloguePosition | None = None
) -> ContainerRecord:
    """Frames up to ``truncated`` are no longer needed, because tier 2 and the catalogue up to ``catalogue`` hold what
    they changed. Ledgers that hold only such frames are dropped, never the newest. ``catalogue``: None if it stays; its
    ``begins`` are ignored, because the record knows them.

    Raises InternalError: the position goes back. What it named may be deleted already.
    """
    truncated = max(record.truncated, truncated)
    gone = {one.ledger for one, later in pairwise(record.ledgers) if later.first - 1 <= truncated}
    ledgers = tuple(one for one in record.ledgers if one.ledger not in gone)
    return replace(record, truncated=truncated, ledgers=ledgers, catalogue=_moved(record, catalogue))


def unnamed(before: ContainerRecord, after: ContainerRecord) -> list[int]:
    """Ledgers that the change drops: delete them once it is written."""
    named = {one.ledger for one in after.ledgers}
    return [one.ledger for one in before.ledgers if one.ledger not in named]


def counts(at: CataloguePosition, *, epoch: int, batch: int) -> bool:
    """Whether a batch of the catalogue that ``epoch`` wrote belongs to it."""
    if not at.included < batch <= at.batch:
        return False
    return epoch == max(begun for begun, after in at.begins if after < batch)


def judge_change(found: ContainerRecord | None, wanted: ContainerRecord) -> Standing:
    """What a record means that refused the change to ``wanted``. None: it does not exist."""
    if found is None or found.owner != wanted.owner:
        return Standing.DEPOSED
    return Standing.MADE if found == wanted else Standing.BEHIND


def is_owner(found: ContainerRecord | None, owner: str) -> bool:
    """Whether an owner whose ledger was fenced goes on. BookKeeper's own recovery fences too, so only the record knows.
    None: it does not exist."""
    return found is not None and found.owner == owner


def acknowledged_upto(sent: Iterable[tuple[int, int]], last: int) -> int:
    """The last address in a ledger that ends with the entry ``last``; 0: none. Later frames are sent again.

    ``sent``: for each frame without acknowledgement its address and its last entry in that ledger; 0 if it was never
    sent there.
    """
    return max((address for address, entry in sent if 0 < entry <= last), default=0)


def _moved(record: ContainerRecord, at: CataloguePosition | None) -> CataloguePosition | None:
    before = record.catalogue
    if at is None:
        return before
    begins = before.begins if before is not None else ((record.epoch, 0),)  # earlier epochs published nothing
    if before is not None and (at.batch < before.batch or at.included < before.included):
        raise InternalError("position of a catalogue goes back", batch=at.batch, before=before.batch)
    # Which epoch wrote a batch matters only for batches that the snapshot does not include.
    needless = [one for one, later in pairwise(begins) if later[1] <= at.included]
    return replace(at, begins=tuple(one for one in begins if one not in needless))
