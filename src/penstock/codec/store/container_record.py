"""The record of a container, which the coordinator keeps: its owner, its ledgers, and where its catalogue ends.

Source: docs/formats/ledger-log.md, "Record".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

FORMAT: Final = 1  # version of the JSON of a record without a catalogue and a home
CATALOGUE_FORMAT: Final = 2  # a program that knows only 1 would drop both with its next change
SEALED_FORMAT: Final = 3  # a program that knows only 2 cannot read encrypted ledgers


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLedger:
    """``first``: the address of its first frame. ``last``: its last entry; None while it may be open. ``sealed``: it is
    encrypted."""

    ledger: int
    first: int
    last: int | None = None
    sealed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguePosition:
    """What of the catalogue in tier 2 counts: the snapshot ``run``, which includes all batches up to ``included``, and
    the batches after it up to ``batch``.

    ``upto``: frames up to this address are included in these rows. ``begins``: pairs of an epoch and the last batch before
    it, oldest first. A batch with a higher number that an earlier epoch wrote is void.
    """

    run: int = 0
    included: int = 0
    batch: int = 0
    upto: int = 0
    begins: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """It changes by compare-and-set.

    ``uid``: drawn once, so that a store knows its log. ``owner``: drawn by each opening. ``ledgers``: in the order of
    their frames. Frames up to ``truncated`` are no longer needed. ``catalogues``: for each container of the log that has
    published something, in order. ``home``: the directory whose metadata belong to the log. ``tier``: the mark of the store's
    tier 2. Both are None in a record of an earlier version; ``tier`` also if the chunks are in the home directory.
    ``plain_ms``: bytes appended before this wall-clock time, in milliseconds since the Unix epoch, may be in ledgers without
    encryption, which bookies may still have. 0: there never was one. None: the record lists one, or may have.
    """

    uid: str
    owner: str = ""
    epoch: int = 0
    truncated: int = 0
    ledgers: tuple[ListedLedger, ...] = ()
    catalogues: tuple[tuple[int, CataloguePosition], ...] = ()
    home: str | None = None
    tier: str | None = None
    plain_ms: int | None = None

    def catalogue(self, container: int) -> CataloguePosition | None:
        """The position of one container; None: it has published nothing."""
        return next((at for index, at in self.catalogues if index == container), None)

    @property
    def format(self) -> int:
        """The newest format that a program must know to change the record."""
        if self.plain_ms is not None or any(one.sealed for one in self.ledgers):
            return SEALED_FORMAT
        is_bare = not self.catalogues and self.home is None and self.tier is None
        return FORMAT if is_bare else CATALOGUE_FORMAT


def encode_record(record: ContainerRecord) -> bytes:
    """JSON, with sorted keys."""
    form = record.format
    ledgers = [{"id": one.ledger, "first": one.first, "last": one.last} for one in record.ledgers]
    fields: dict[str, Any] = {
        "format": form,
        "uid": record.uid,
        "owner": record.owner,
        "epoch": record.epoch,
        "truncated": record.truncated,
        "ledgers": ledgers,
    }
    if form >= CATALOGUE_FORMAT:
        fields["catalogues"] = [{"container": index, **asdict(at)} for index, at in record.catalogues]
        fields["home"], fields["tier"] = record.home, record.tier
    if form >= SEALED_FORMAT:
        fields["plain_ms"] = record.plain_ms
        for shown, one in zip(ledgers, record.ledgers, strict=True):
            shown["sealed"] = one.sealed
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decode_record(data: bytes) -> ContainerRecord:
    """Inverse of ``encode_record``. Raises CorruptDataError, VersionTooNewError."""
    try:
        fields = json.loads(data)
        if fields["format"] > SEALED_FORMAT:
            raise VersionTooNewError(
                "record of the log is too new", version=fields["format"], newest_known=SEALED_FORMAT
            )
        ledgers = [_listed(one) for one in fields["ledgers"]]
        record = ContainerRecord(
            uid=str(fields["uid"]),
            owner=str(fields["owner"]),
            epoch=int(fields["epoch"]),
            truncated=int(fields["truncated"]),
            ledgers=tuple(ledgers),
            catalogues=tuple((int(one["container"]), _position(one)) for one in fields.get("catalogues", ())),
            home=_text(fields.get("home")),
            tier=_text(fields.get("tier")),
            plain_ms=None if fields.get("plain_ms") is None else int(fields["plain_ms"]),
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
    return ListedLedger(ledger=ledger, first=first, last=last, sealed=bool(fields.get("sealed")))


def _position(fields: Mapping[str, Any]) -> CataloguePosition:
    begins = tuple((int(epoch), int(after)) for epoch, after in fields["begins"])
    run, included, batch = int(fields["run"]), int(fields["included"]), int(fields["batch"])
    return CataloguePosition(run=run, included=included, batch=batch, upto=int(fields["upto"]), begins=begins)


def _text(field: object) -> str | None:
    if not isinstance(field, str | None):
        raise ValueError("text is expected")
    return field
