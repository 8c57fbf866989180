"""The record of a container, which the coordinator keeps: its owner, its ledgers, and where its catalogue ends.

Source: docs/formats/ledger-log.md, "Record".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.model.errors import CorruptDataError, VersionTooNewError

FORMAT: Final = 1  # version of the JSON of a record without a catalogue
CATALOGUE_FORMAT: Final = 2  # a program that knows only 1 would drop the catalogue with its next change


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLedger:
    """``first``: the address of its first frame. ``last``: its last entry; None while it may be open."""

    ledger: int
    first: int
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguePosition:
    """What of the catalogue in tier 2 counts: the snapshot ``run``, which includes all batches up to ``included``, and
    the batches after it up to ``batch``.

    ``begins``: pairs of an epoch and the last batch before it, oldest first. A batch with a higher number that an
    earlier epoch wrote is void.
    """

    run: int = 0
    included: int = 0
    batch: int = 0
    begins: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """It changes by compare-and-set.

    ``uid``: drawn once, so that a store knows its log. ``owner``: drawn by each opening. ``ledgers``: in the order of
    their frames. Frames up to ``truncated`` are no longer needed. ``catalogue``: None until something was published.
    """

    uid: str
    owner: str = ""
    epoch: int = 0
    truncated: int = 0
    ledgers: tuple[ListedLedger, ...] = ()
    catalogue: CataloguePosition | None = None


def encode_record(record: ContainerRecord) -> bytes:
    """JSON, with sorted keys."""
    ledgers = [{"id": one.ledger, "first": one.first, "last": one.last} for one in record.ledgers]
    fields: dict[str, Any] = {
        "format": FORMAT if record.catalogue is None else CATALOGUE_FORMAT,
        "uid": record.uid,
        "owner": record.owner,
        "epoch": record.epoch,
        "truncated": record.truncated,
        "ledgers": ledgers,
    }
    if record.catalogue is not None:
        at = record.catalogue
        fields["catalogue"] = {"run": at.run, "included": at.included, "batch": at.batch, "begins": at.begins}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decode_record(data: bytes) -> ContainerRecord:
    """Inverse of ``encode_record``. Raises CorruptDataError, VersionTooNewError."""
    try:
        fields = json.loads(data)
        if fields["format"] > CATALOGUE_FORMAT:
            raise VersionTooNewError(
                "record of the log is too new", version=fields["format"], newest_known=CATALOGUE_FORMAT
            )
        ledgers = [_listed(one) for one in fields["ledgers"]]
        record = ContainerRecord(
            uid=str(fields["uid"]),
            owner=str(fields["owner"]),
            epoch=int(fields["epoch"]),
            truncated=int(fields["truncated"]),
            ledgers=tuple(ledgers),
            catalogue=_position(fields["catalogue"]) if fields["format"] >= CATALOGUE_FORMAT else None,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptDataError("record of the log cannot be read", cause=repr(error)) from error
    _check_order(record.ledgers)
    return record


def _check_order(ledgers: Sequence[ListedLedger]) -> None:
    """Raises CorruptDataError unless the ledgers' first addresses never decrease, and only the newest can be open."""
    firsts = [one.first for one in ledgers]
    if firsts != sorted(firsts) or any(one.last is None for one in ledgers[:-1]):
        raise CorruptDataError("ledgers of the log are not in order", ledgers=tuple(one.ledger for one in ledgers))


def _listed(fields: Mapping[str, Any]) -> ListedLedger:
    ledger, first, last = fields["id"], fields["first"], fields["last"]
    if not isinstance(ledger, int) or not isinstance(first, int) or not isinstance(last, int | None):
        raise ValueError("ledger is not described by numbers")
    return ListedLedger(ledger=ledger, first=first, last=last)


def _position(fields: Mapping[str, Any]) -> CataloguePosition:
    begins = tuple((int(epoch), int(after)) for epoch, after in fields["begins"])
    run, included, batch = int(fields["run"]), int(fields["included"]), int(fields["batch"])
    return CataloguePosition(run=run, included=included, batch=batch, begins=begins)
