"""Wiping a log whose ledgers are encrypted: first its record no longer names them, then their secrets are destroyed.

A crash in between leaves secrets without ledgers, never ledgers without secrets. Source:
docs/design/0067-encrypted-ledgers.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.model.errors import UnavailableError, UnsupportedError
from penstock.model.ledgers import LogWipe
from penstock.storage.ledgers.keyring import Keyring
from penstock.storage.ledgers.log_record import HeldRecord
from penstock.storage.ledgers.removals import Removals


class Wiping:
    """``upto``: the last address of the wipe that has begun."""

    def __init__(self, held: HeldRecord, removals: Removals, keyring: Keyring | None) -> None:
        self._held = held
        self._removals = removals
        self._keyring = keyring
        self.upto = 0

    @property
    def keyring(self) -> Keyring:
        """Raises UnsupportedError: new ledgers are not encrypted."""
        if self._keyring is None:
            raise UnsupportedError("erasure is not possible: the log on BookKeeper is not encrypted")
        if not self._keyring.seals:
            raise UnsupportedError(self._keyring.refusal)
        return self._keyring

    async def from_ms(self) -> int:
        """See ``DurableLog.wipes_from_ms``. Raises UnavailableError also if tier 2 does not answer."""
        keyring, record = self.keyring, self._held.record
        if record.plain_ms is None:
            raise UnavailableError(
                "log still has ledgers from before the upgrade, which are not encrypted; wipe it, or try again later",
                ledgers=sum(not one.sealed for one in record.ledgers),
            )
        await keyring.check(record.ledgers[-1].ledger)
        return record.plain_ms

    async def end(self, begun: Callable[[], Iterable[int]]) -> LogWipe | None:
        """See ``DurableLog.end_wipe``. ``begun``: ledgers that may not be in the record yet, whose frames are all later."""
        keyring, record = self.keyring, self._held.record
        is_old = [one.first <= self.upto or not one.sealed for one in record.ledgers]
        if record.truncated < self.upto or any(is_old):
            return None
        await self._removals.run()
        # Not the ledgers from before: rolls continue meanwhile, and every ledger begun since has later frames only.
        return await keyring.destroy_others(lambda: {one.ledger for one in self._held.record.ledgers}.union(begun()))
