"""Faults of a log at the moments that matter, where faults at random times seldom come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from penstock.testing.bookkeeper.bookies import SimBookie
from penstock.testing.simulation.machine.loop import Process, SimLoop

_LOOK_S, _LOOKS_MAX = 0.001, 150
"""How often a fault looks for its moment. If there is none in time, it comes without it."""


class Aims:
    """An entry that only one bookie has, and the loss of that bookie's disk after the next owner has found the entry.

    ``newest_ledger``: the one that the log's record names last.
    """

    def __init__(
        self, bookies: Mapping[str, SimBookie], loop: SimLoop, newest_ledger: Callable[[], int | None]
    ) -> None:
        self.ended = False
        """Whether the time of faults is over."""
        self._bookies = bookies
        self._loop = loop
        self._newest_ledger = newest_ledger
        self._rng = loop.fork("aims")
        self._only_copy: SimBookie | None = None
        self._lost = False

    async def cut_off(self, process: Process) -> None:
        """Kill an owner while an entry is on one bookie only. The other bookies lose what was on its way to them."""
        ledger = self._newest_ledger()
        for _ in range(_LOOKS_MAX):
            if (holder := self._only_holder(ledger)) is not None:
                break
            await asyncio.sleep(_LOOK_S)
        process.die()
        self._only_copy = holder
        for bookie in self._bookies.values():
            if holder is not None and bookie is not holder:
                bookie.stop()
                self._loop.call_later(self._rng.uniform(0.0, 0.3), revive, bookie)

    def _only_holder(self, ledger: int | None) -> SimBookie | None:
        last = 0  # entry 0 is the header
        holders: list[SimBookie] = []
        for bookie in self._bookies.values():
            stored = None if ledger is None else bookie.memory.get(ledger)
            newest = next(reversed(stored.entries), 0) if stored is not None else 0
            if newest > last:
                last, holders = newest, []
            if newest == last:
                holders.append(bookie)
        return holders[0] if last > 0 and len(holders) == 1 else None

    def recovered(self) -> None:
        """An owner has found everything. The disk that alone had the end of the log before may be lost now."""
        holder, self._only_copy = self._only_copy, None
        if holder is not None:
            self._loop.call_later(self._rng.uniform(0.0, 0.2), self.lose_disk, holder)

    def lose_disk(self, bookie: SimBookie) -> None:
        """Once in a run, a bookie loses its disk. What only it has is lost, so nothing acknowledged may be there alone."""
        if not self._lost and not self.ended:
            self._lost = True
            self._loop.note(f"{bookie.name} loses its disk")
            bookie.stop()
            bookie.start(without_disk=True)


def revive(bookie: SimBookie) -> None:
    """End the faults of a bookie, except the loss of its disk."""
    bookie.is_silent = bookie.read_only = False
    bookie.start()
