"""What an opening of a log reads: the frames of all ledgers that its record lists."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from penstock.codec.store.container_record import ContainerRecord, ListedLedger
from penstock.codec.store.ledger_cipher import LedgerCipher
from penstock.codec.store.ledger_entries import FrameJoiner, decode_header
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.model.ledgers import LedgerKey
from penstock.ports.cluster.ledgers import Ledgers
from penstock.storage.ledgers.keyring import Keyring


class Replay:
    """Reads the ledgers of a record once. ``next_address``: of the first frame after them, once ``frames`` has ended.

    ``check_owner``: raises ContainerOfflineError if a later opening owns the log, which may have destroyed the keys.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        record: ContainerRecord,
        keyring: Keyring | None,
        check_owner: Callable[[], Awaitable[None]],
    ) -> None:
        self._ledgers = ledgers
        self._record = record
        self._keyring = keyring
        self._check_owner = check_owner
        # Without ledgers: a new log, or one that was lost and continues behind what tier 2 has.
        self.next_address = record.ledgers[0].first if record.ledgers else record.truncated + 1

    async def frames(self) -> AsyncIterator[tuple[int, bytes]]:
        """Addresses and frames that are not truncated. All keys are read before the first frame.

        Raises CorruptDataError, VersionTooNewError, UnavailableError (also if tier 2 does not answer: repeat the opening),
        NotFoundError, ContainerOfflineError.
        """
        record = self._record
        ciphers = {one.ledger: await self._cipher(one) for one in record.ledgers if one.last is not None}
        for listed in record.ledgers:
            if listed.first != self.next_address or listed.last is None:
                raise CorruptDataError(
                    "ledgers of the log leave a gap", ledger=listed.ledger, expected=self.next_address
                )
            cipher = ciphers[listed.ledger]
            joiner = FrameJoiner(listed.ledger, listed.first)
            async for entry, data in self._ledgers.read(listed.ledger, 1, listed.last):
                frame = joiner.add(data, None if cipher is None else cipher.open(entry, data))
                if frame is not None and frame[0] > record.truncated:
                    yield frame
            self.next_address = joiner.next_address

    async def _cipher(self, listed: ListedLedger) -> LedgerCipher | None:
        """Of an encrypted ledger, whose header was checked with its key; None: it is not encrypted."""
        async for _, data in self._ledgers.read(listed.ledger, 0, 0):
            header = decode_header(data, ledger=listed.ledger)
            # The header was written while the ledger before was still in use.
            if header.first > listed.first or listed.sealed != (header.key is not None):
                raise CorruptDataError(
                    "ledger is not the one that the log's record names", ledger=listed.ledger, first=header.first
                )
            if header.key is None:
                return None
            key = LedgerKey(epoch=header.epoch, id=header.key)
            cipher = LedgerCipher(await self._secret(listed, key), key, uid=self._record.uid, ledger=listed.ledger)
            cipher.check_header(data)
            return cipher
        raise CorruptDataError("ledger has no header", ledger=listed.ledger)

    async def _secret(self, listed: ListedLedger, key: LedgerKey) -> bytes:
        if self._keyring is None:
            raise CorruptDataError("ledger is encrypted, and the log was opened without keys", ledger=listed.ledger)
        try:
            return await self._keyring.read(listed.ledger, key)
        except NotFoundError as error:
            await self._check_owner()
            raise CorruptDataError(
                "key of a ledger is missing in tier 2, so frames of the log cannot be read",
                ledger=listed.ledger,
                **error.fields,
            ) from error
        except CorruptDataError as error:
            raise CorruptDataError(error.message, ledger=listed.ledger, **error.fields) from error
