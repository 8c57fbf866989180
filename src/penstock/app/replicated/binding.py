"""Bind a store to its log: which record is the store's, and when a log must not be opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from penstock.app.replicated.log_place import TIER2_LOG, LogMark, LogPlace, read_mark, write_mark
from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.model.errors import CorruptDataError, InvalidArgumentError, NotFoundError
from penstock.ports.cluster.ledgers import Ledgers
from penstock.ports.cluster.nodes import VersionedNodes
from penstock.ports.rng import Rng
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog, open_ledger_log
from penstock.storage.ledgers.log_record import Opening


@asynccontextmanager
async def bound_log(
    ledgers: Ledgers,
    nodes: VersionedNodes,
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
            raise CorruptDataError(f"the store's log is missing in {_keeper(url)}", log=url, uid=mark.uid)
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
            f"metadata is newer than the log: {_keeper(url)} has an older copy of the log's record",
            log=url,
            epoch=epoch_min,
            log_epoch=record.epoch,
        )


async def read_record(nodes: VersionedNodes, path: str) -> ContainerRecord | None:
    """The record of the log; None: it does not exist. Raises CorruptDataError, VersionTooNewError, NotConnectedError."""
    try:
        data, _ = await nodes.read(path)
    except NotFoundError:
        return None
    return decode_record(data)


def _keeper(url: str) -> str:
    """What keeps the record of the log at ``url``."""
    return "tier 2" if url == TIER2_LOG else "ZooKeeper"
