"""Which bookies hold a new ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from penstock.model.errors import NotEnoughBookiesError
from penstock.model.ledgers import Bookie


def choose_bookies(
    bookies: Sequence[Bookie],
    *,
    copies: int,
    refused: Collection[str] = (),
    used: Mapping[str, int] | None = None,
) -> list[Bookie]:
    """``copies`` bookies, of different zones first, then of different hosts, then those that we use least.

    ``bookies``: those registered for writing, in the order that breaks ties. ``refused``: names that did not answer
    lately. ``used``: how many open ledgers of ours each holds. Raises NotEnoughBookiesError.
    """
    used = used or {}
    left = [one for one in bookies if one.name not in refused]
    if len(left) < copies:
        raise NotEnoughBookiesError(
            f"{copies} bookies are needed for {copies} copies of the log, and {len(left)} can be written to;"
            " start another bookie",
            registered=tuple(one.name for one in bookies),
            refused=tuple(sorted(refused)),
        )
    chosen: list[Bookie] = []
    while len(chosen) < copies:
        zones = {one.zone for one in chosen if one.zone}
        hosts = {one.host for one in chosen}
        best = min(left, key=lambda one: (one.zone in zones, one.host in hosts, used.get(one.name, 0)))
        left.remove(best)
        chosen.append(best)
    return chosen
