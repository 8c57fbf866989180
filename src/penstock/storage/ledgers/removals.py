"""Ledgers that a log no longer needs, deleted once its record does not name them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.codec.store.container_record import ContainerRecord
from penstock.core.cluster.ownership import unnamed
from penstock.model.errors import UnavailableError
from penstock.ports.cluster.ledgers import Ledgers
from penstock.storage.ledgers.log_record import HeldRecord

_log = logging.getLogger(__name__)


class Removals:
    """Ledgers that are noted and not deleted yet. If the process ends first, they are left as orphans."""

    def __init__(self, ledgers: Ledgers, held: HeldRecord, deleted: Callable[[int], None]) -> None:
        """``deleted`` is called with each ledger that was deleted."""
        self._ledgers = ledgers
        self._deleted = deleted
        self._held = held
        self._noted: dict[int, None] = {}

    async def change(self, changed: Callable[[ContainerRecord], ContainerRecord]) -> None:
        """Change the record, and note the ledgers that it then no longer names. They are noted before: if the answer is
        lost, a repeated change no longer finds them. Raises as ``HeldRecord.change``."""

        def noting(record: ContainerRecord) -> ContainerRecord:
            wanted = changed(record)
            self._noted.update(dict.fromkeys(unnamed(record, wanted)))
            return wanted

        await self._held.change(noting)

    async def run(self) -> None:
        """Delete what is noted and not named by the record. If one cannot be deleted, the next call tries again."""
        named = {one.ledger for one in self._held.record.ledgers}
        for ledger in [one for one in self._noted if one not in named]:
            try:
                await self._ledgers.delete(ledger)
            except UnavailableError as error:
                _log.warning("ledger was not deleted", extra={"ledger": ledger, "error": str(error)})
                return
            self._noted.pop(ledger, None)
            self._deleted(ledger)

    async def discard(self, ledger: int) -> None:
        """Delete a ledger of ours once a later opening owns the record. If an attempt whose answer was lost has listed
        it there, it belongs to that opening, and stays. Left as an orphan if the coordinator does not answer."""
        try:
            if not await self._held.lists(ledger):
                await self._ledgers.delete(ledger)
        except UnavailableError as error:
            _log.warning("ledger was not deleted", extra={"ledger": ledger, "error": str(error)})
