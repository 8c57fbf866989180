"""A store's log on BookKeeper, opened for its store alone. Source: docs/design/0062-log-on-bookkeeper.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from penstock.app.replicated.log_place import LogMark, LogPlace, parse_log_place, read_mark, write_mark
from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.model.errors import CorruptDataError, InvalidArgumentError, NotFoundError
from penstock.ports.clock import Clock
from penstock.ports.cluster.ledgers import Ledgers
from penstock.ports.cluster.nodes import Nodes
from penstock.ports.rng import Rng
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog, open_ledger_log
from penstock.storage.ledgers.log_record import Opening


@asynccontextmanager
async def open_replicated_log(
    url: str,
    data: Path,
    *,
    clock: Clock,
    rng: Rng,
    is_new: bool,
    epoch_min: int,
    tier: str | None = None,
    sealing: Sealing | None = None,
) -> AsyncIterator[LedgerLog]:
    """The log at ``url`` for the store in ``data``, which the caller holds. ``is_new``: no start of the store was complete.
    ``epoch_min``: the newest epoch of the log that the store's metadata names. ``tier``: the mark of its tier 2; None: it
    is in the directory. ``sealing``: see ``open_ledger_log``.

    Raises, before any earlier owner is fenced: InvalidArgumentError (the log is another store's), CorruptDataError (the log
    was lost, or is older than the store). Raises as ``LedgerLog.open``; NotFoundError: no BookKeeper is there.
    """
    place = parse_log_place(url)
    async with (
        open_nodes(place.hosts) as nodes,
        open_ledgers(nodes, root=place.ledgers_root, clock=clock, rng=rng) as ledgers,
        bound_log(
            ledgers,
            nodes,
            place,
            url,
            data,
            rng=rng,
            is_new=is_new,
            epoch_min=epoch_min,
            tier=tier,
            sealing=sealing,
        ) as log,
    ):
        yield log


@asynccontextmanager
async def bound_log(
    ledgers: Ledgers,
    nodes: Nodes,
    place: LogPlace,
    url: str,
    data: Path,
    *,
    rng: Rng,
    is_new: bool,
    epoch_min: int,
    tier: str | None = None,
    may_create: bool = True,
    sealing: Sealing | None = None,
) -> AsyncIterator[LedgerLog]:
    """As ``open_replicated_log``, on a coordinator and ledgers that are open. ``may_create``: a new store creates its record;
    if not, NotFoundError is raised."""
    mark = read_mark(data)
    record = await read_record(nodes, place.path)
    check_record(record, mark, is_new=is_new, epoch_min=epoch_min, url=url)
    if mark is None or mark.home is None:
        # The mark comes first. Of two new stores with one URL, only one creates the record; the other finds another uid.
        # A start that ends in between is repeated with the same uid.
        mark = LogMark(uid=str(rng.uuid()), url=url) if mark is None else mark
        mark = replace(mark, home=str(rng.uuid()))
        write_mark(data, mark)
    opening = Opening(uid=mark.uid, create=may_create and record is None, home=mark.home, tier=tier)
    async with open_ledger_log(ledgers, nodes, path=place.path, rng=rng, opening=opening, sealing=sealing) as log:
        yield log


def check_record(
    record: ContainerRecord | None, mark: LogMark | None, *, is_new: bool, epoch_min: int, url: str
) -> None:
    """Raises InvalidArgumentError: the log is another store's. CorruptDataError: the store's log was lost, or is an older
    copy of it."""
    if record is None:
        if mark is not None and (mark.loading or not is_new):
            raise CorruptDataError("the store's log is missing in ZooKeeper", log=url, uid=mark.uid)
        return
    if mark is None:
        raise InvalidArgumentError(
            "the log at this path belongs to another store: use a separate path for each store. If that store's machine or"
            " disk is lost, continue it here with --take-over",
            log=url,
            uid=record.uid,
        )
    if record.uid != mark.uid:
        raise InvalidArgumentError(
            "the log at this path belongs to another store", log=url, uid=record.uid, expected=mark.uid
        )
    if mark.loading:
        return
    if record.home not in (None, mark.home):
        raise InvalidArgumentError(
            "another directory has taken over this store, so the metadata here is out of date. To bring the store back here,"
            " stop it there and use --take-over",
            log=url,
            uid=record.uid,
        )
    if record.epoch < epoch_min:
        raise CorruptDataError(
            "metadata is newer than the log: ZooKeeper has an older copy of the log's record",
            log=url,
            epoch=epoch_min,
            log_epoch=record.epoch,
        )


async def read_record(nodes: Nodes, path: str) -> ContainerRecord | None:
    """The record of the log; None: it does not exist. Raises CorruptDataError, VersionTooNewError, NotConnectedError."""
    try:
        data, _ = await nodes.read(path)
    except NotFoundError:
        return None
    return decode_record(data)
