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
from typing import Final

from penstock.codec.store.catalogue import Kind, ObjectName
from penstock.codec.store.container_record import CataloguePosition, ContainerRecord, ListedLedger
from penstock.model.errors import InternalError

CLOCK_SLACK_MS: Final = 60_000
"""How much the clocks of owners may differ before an event counts as younger than a plain ledger that holds it."""


class Standing(Enum):
    """What a record that was read back means for an owner."""

    MADE = "made"
    """The record is as the owner wants it: an earlier attempt was made, and its answer was lost."""
    BEHIND = "behind"
    """The owner still owns the container, but another change of its own was made late. Repeat on top of it."""
    DEPOSED = "deposed"
    """A later opening owns the container, or the record was deleted. Stop, and change nothing more."""


def frozen(record: ContainerRecord, *, owner: str, home: str | None = None, tier: str | None = None) -> ContainerRecord:
    """Begin the next epoch, as ``owner``. Once written, no earlier owner can extend, publish or delete. Batches of the
    catalogue that earlier epochs write from then on are void. ``home`` and ``tier``: None if they stay."""
    epoch = record.epoch + 1
    catalogues = tuple((index, _begun(at, epoch)) for index, at in record.catalogues)
    return replace(
        record,
        epoch=epoch,
        owner=owner,
        catalogues=catalogues,
        home=home or record.home,
        tier=tier or record.tier,
    )


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
    record: ContainerRecord, *, truncated: int, container: int = 0, catalogue: CataloguePosition | None = None
) -> ContainerRecord:
    """Frames up to ``truncated`` are no longer needed, because tier 2 and the catalogues hold what they changed. Ledgers that
    hold only such frames are dropped, never the newest. ``catalogue``: the next position of the ``container``; None if it
    stays; its ``begins`` are ignored, because the record knows them.

    Raises InternalError: the position goes back. What it named may be deleted already.
    """
    truncated = max(record.truncated, truncated)
    gone = {one.ledger for one, later in pairwise(record.ledgers) if later.first - 1 <= truncated}
    ledgers = tuple(one for one in record.ledgers if one.ledger not in gone)
    after = replace(record, truncated=truncated, ledgers=ledgers)
    if catalogue is None:
        return after
    others = [one for one in record.catalogues if one[0] != container]
    moved = (container, _moved(record, record.catalogue(container), catalogue))
    return replace(after, catalogues=tuple(sorted((*others, moved), key=lambda one: one[0])))


def plain_noted(before: ContainerRecord, after: ContainerRecord, *, now_ms: int) -> ContainerRecord:
    """``after``, which changes ``before``, with the time at which its last plain ledger left it.

    A ledger leaves once tier 2 has all that its frames changed. So a block of a chunk that was begun later holds no byte that
    was ever in a plain ledger, not even by a merge. Clocks of owners differ, hence the slack.
    """
    if not after.ledgers or not all(one.sealed for one in after.ledgers):
        return replace(after, plain_ms=None)
    if before.plain_ms is not None:
        return replace(after, plain_ms=before.plain_ms)
    # The newest ledger always stays, so a record without ledgers never had one, unless it was made again after a loss.
    is_new = not before.ledgers and not before.truncated and not before.catalogues
    return replace(after, plain_ms=0 if is_new else now_ms + CLOCK_SLACK_MS)


def unnamed(before: ContainerRecord, after: ContainerRecord) -> list[int]:
    """Ledgers that the change drops: delete them once it is written."""
    named = {one.ledger for one in after.ledgers}
    return [one.ledger for one in before.ledgers if one.ledger not in named]


def counts(at: CataloguePosition, *, epoch: int, batch: int) -> bool:
    """Whether a batch of the catalogue that ``epoch`` wrote belongs to it."""
    first, last = batches_of(at, epoch)
    return first <= batch <= last


def batches_of(at: CataloguePosition, epoch: int) -> tuple[int, int]:
    """The first and the last batch that count among those that ``epoch`` wrote and the snapshot does not include. The first
    is higher than the last if none does."""
    for number, (begun, after) in enumerate(at.begins):
        if begun == epoch:
            later = at.begins[number + 1 :]
            return max(after, at.included) + 1, min(at.batch, later[0][1]) if later else at.batch
    return 1, 0


def counted_objects(names: Iterable[ObjectName], at: CataloguePosition) -> list[ObjectName]:
    """The objects of a catalogue that the position names: those of its snapshot, and of the journals those batches that
    count, as the names that these would have alone. A deposed owner may have written other objects."""
    found: list[ObjectName] = []
    for name in names:
        if name.kind is Kind.SNAPSHOT:
            found += [name] if name.run == at.run else []
            continue
        first, last = batches_of(at, name.epoch)
        part = replace(name, first=max(first, name.first), last=min(last, name.last))
        found += [part] if part.first <= part.last else []
    return found


def judge_change(found: ContainerRecord | None, wanted: ContainerRecord) -> Standing:
    """What the record ``found`` means for an owner whose change to ``wanted`` failed. ``found``: None if it does not
    exist."""
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


def _begun(at: CataloguePosition, epoch: int) -> CataloguePosition:
    """The position once ``epoch`` begins. An epoch that published nothing leaves no batches that count."""
    return replace(at, begins=(*(one for one in at.begins if one[1] < at.batch), (epoch, at.batch)))


def _moved(record: ContainerRecord, before: CataloguePosition | None, at: CataloguePosition) -> CataloguePosition:
    begins = before.begins if before is not None else ((record.epoch, 0),)  # earlier epochs published nothing
    if before is not None and (at.batch, at.included) != (
        max(at.batch, before.batch),
        max(at.included, before.included),
    ):
        raise InternalError("position of a catalogue goes back", batch=at.batch, before=before.batch)
    # Which epoch wrote a batch matters only for batches that the snapshot does not include.
    needless = [one for one, later in pairwise(begins) if later[1] <= at.included]
    return replace(at, begins=tuple(one for one in begins if one not in needless))
