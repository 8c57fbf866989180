"""How the ledgers of a log begin: which version they have, and on how many bookies they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.codec.store.ledger_cipher import LedgerCipher, sealed_parts
from penstock.codec.store.ledger_entries import LedgerHeader, encode_header, parts_of
from penstock.model.errors import NotEnoughBookiesError
from penstock.model.ledgers import COPIES_MIN, LedgerSpec
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.ledgers import Ledgers, LedgerWriter
from penstock.ports.files import Buffer
from penstock.storage.ledgers.keyring import Keyring

LOG_LABEL = "log"
"""Names the label of a ledger with the ``uid`` of its log."""
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class BegunLedger:
    """A new ledger, whose header all its bookies have. ``cipher``: None: it is not encrypted."""

    writer: LedgerWriter
    cipher: LedgerCipher | None
    clock: Clock | None = None
    entries: int = 0
    """Of the caller, behind the header."""

    def add_entries(self, address: int, frame: bytes, *, entry_max_bytes: int) -> Sequence[Sequence[Buffer]]:
        """The entries of a frame, to be added in this order, before those of any other frame."""
        if self.cipher is None or self.clock is None:
            found = list(parts_of(address, frame, entry_max_bytes=entry_max_bytes))
        else:
            first, now_ms = self.entries + 1, self.clock.now_ms()
            parts = sealed_parts(self.cipher, first, address, frame, written_ms=now_ms, entry_max_bytes=entry_max_bytes)
            found = list(parts)
        self.entries += len(found)
        return found


class Beginnings:
    """Begins ledgers of one opening of a log. ``keyring``: None: they are never encrypted."""

    def __init__(self, ledgers: Ledgers, spec: LedgerSpec, keyring: Keyring | None, *, uid: str, epoch: int) -> None:
        self._ledgers = ledgers
        # Tools find the ledgers of a log by this label, including those that no record names any more.
        self._spec = replace(spec, labels=(*spec.labels, (LOG_LABEL, uid.encode())))
        self._keyring = keyring
        self._epoch = epoch

    async def begin(self, first: int) -> BegunLedger:
        """A ledger whose first frame has at least the address ``first``. Its secret is written before the ledger is created.
        Raises NotEnoughBookiesError, UnavailableError: bookies, coordinator or tier 2 do not answer."""
        keyring = self._keyring
        if keyring is None or not keyring.seals:
            return BegunLedger(await self._create(encode_header(LedgerHeader(epoch=self._epoch, first=first))), None)
        key, secret = await keyring.take()

        def cipher_of(ledger: int) -> LedgerCipher:
            return LedgerCipher(secret, key, uid=keyring.uid, ledger=ledger)

        writer = await self._create(lambda ledger: cipher_of(ledger).header(first))
        keyring.began(writer.ledger, key)
        return BegunLedger(writer, cipher_of(writer.ledger), keyring.clock)

    async def _create(self, header: bytes | Callable[[int], bytes]) -> LedgerWriter:
        """A ledger with all copies, or with two if only two bookies can be written to."""
        try:
            return await self._ledgers.create(self._spec, header)
        except NotEnoughBookiesError:
            if self._spec.copies <= COPIES_MIN:
                raise
        fewer = replace(self._spec, copies=COPIES_MIN, acks=COPIES_MIN)
        writer = await self._ledgers.create(fewer, header)
        _log.warning("log continues with fewer copies", extra={"copies": COPIES_MIN, "wanted": self._spec.copies})
        return writer
