"""A store's log on BookKeeper, opened for its store alone. Source: docs/design/0062-log-on-bookkeeper.md."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.app.replicated.binding import bound_log
from penstock.app.replicated.log_place import parse_log_place
from penstock.ports.clock import Clock
from penstock.ports.rng import Rng
from penstock.storage.cluster.nodes import open_nodes as open_nodes  # takeovers use it too
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog


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
