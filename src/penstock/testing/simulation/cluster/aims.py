"""Moments at which a fault hurts a cluster most, so that faults can wait for them.

A container is in danger while its owner, its log, its catalogue or a lease changes. Such a change takes milliseconds, so
faults at random times seldom meet one.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Collection

from penstock.codec.store.container_record import ContainerRecord
from penstock.testing.simulation.machine.loop import current_process


class Moment(enum.Enum):
    """What has just happened."""

    FROZEN = "a record has another owner"
    EXTENDED = "a record names another ledger"
    PUBLISHED = "a record names another position of the catalogue"
    TRUNCATED = "a record needs fewer frames"
    CREATED = "a ledger was created, and none is closed for it yet"
    CLOSED = "the metadata of a ledger have changed"
    WRITTEN = "a chunk was written"
    NOTED = "an object of the catalogue was written, which no record names yet"
    DELETED = "an object or a ledger was deleted"
    HELD = "a container was taken, is served, or was released"
    ELECTED = "a controller was elected, or its place became free"
    LONE = "the first bookie has an entry"
    THIN = "a client has an answer, and some bookie lacks the last entry behind it"
    LEASED = "a client has a lease of chunks"
    STRUCK = "a fault has struck"


OF_OWNERS = (Moment.FROZEN, Moment.EXTENDED, Moment.PUBLISHED, Moment.HELD)
"""A takeover, step by step."""
OF_CLIENTS = (*OF_OWNERS, Moment.CREATED, Moment.STRUCK)
"""When a request of a client finds a container that changes."""


class Moments:
    """Who waits for which moment. Costs nothing while nobody waits."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Collection[Moment], str | None, asyncio.Future[str | None]]] = []

    def awaits(self, moment: Moment) -> bool:
        """Whether anybody waits for it, so that it must be looked for."""
        return any(moment in wanted for wanted, _, _ in self._waiting)

    def note(self, moment: Moment, machine: str | None = None) -> None:
        """It is now. ``machine``: whose container it is about; None: that of the process that runs."""
        if not self._waiting:
            return
        if machine is None and (process := current_process()) is not None:
            machine = process.name.partition(".")[0]
        for wanted, but, found in self._waiting:
            if moment in wanted and not found.done() and (but is None or machine not in (None, but)):
                found.set_result(machine)

    async def next(self, wanted: Collection[Moment], *, within_s: float, but: str | None = None) -> str | None:
        """The machine of the next such moment. None: no machine has it, or there was none in time. ``but``: not of this
        machine."""
        found: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        waiting = (wanted, but, found)
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout(within_s):
                return await found
        except TimeoutError:
            return None
        finally:
            self._waiting.remove(waiting)


def moments_of(before: ContainerRecord, after: ContainerRecord) -> list[Moment]:
    """What a change of a container's record means."""
    found: list[Moment] = []
    if after.epoch != before.epoch:
        found.append(Moment.FROZEN)
    elif after.catalogues != before.catalogues:
        found.append(Moment.PUBLISHED)
    if after.truncated != before.truncated:
        found.append(Moment.TRUNCATED)
    if {one.ledger for one in after.ledgers} - {one.ledger for one in before.ledgers}:
        found.append(Moment.EXTENDED)
    return found
