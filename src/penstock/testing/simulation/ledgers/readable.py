"""What somebody who has everything could still read: the entries of all bookies, and every object and node that is left.

Used after a wipe of a log. The bookies of a simulation free nothing by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.codec.bookie import decode_entry
from penstock.codec.store.ledger_cipher import LedgerCipher
from penstock.codec.store.ledger_entries import SEALED_VERSION, FramePart, decode_header, decode_part
from penstock.model.errors import CorruptDataError
from penstock.model.ledgers import LedgerKey
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.objects import Objects
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys
from penstock.testing.bookkeeper.bookies import SimBookie


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadablePart:
    """A part of a frame that can be read: from a ledger without encryption, or with a secret that is left."""

    ledger: int
    address: int
    index: int
    data: bytes
    sealed: bool


class NotedKeys(ObjectLedgerKeys):
    """Notes each secret that was ever drawn, stored or not, in ``drawn``, which all openings share."""

    def __init__(self, objects: Objects, drawn: dict[bytes, None], *, uid: str, clock: Clock) -> None:
        super().__init__(objects, uid=uid, clock=clock)
        self._drawn = drawn

    async def write(self, key: LedgerKey, secret: bytes) -> None:
        self._drawn[secret] = None
        await super().write(key, secret)


def readable_parts(
    bookies: Iterable[SimBookie], left: Iterable[bytes], drawn: Mapping[bytes, None], *, uid: str
) -> Iterator[ReadablePart]:
    """All parts that can be read. ``left``: every object and node that exists, whatever it is: a secret counts wherever its
    bytes are, also in what is damaged. ``drawn``: all secrets that there ever were."""
    found = list(left)
    secrets = [secret for secret in drawn if any(secret in data for data in found)]
    for ledger, entries in _ledgers(bookies).items():
        if 0 not in entries:
            continue
        header = decode_header(entries[0], ledger=ledger)
        if header.key is None:
            for entry, data in entries.items():
                if entry and data[0] < SEALED_VERSION:
                    part = decode_part(data, ledger=ledger)
                    yield _readable(ledger, part, bytes(part.data))
            continue
        key = LedgerKey(epoch=header.epoch, id=header.key)
        for secret in secrets:
            yield from _opened(LedgerCipher(secret, key, uid=uid, ledger=ledger), ledger, entries)


def _opened(cipher: LedgerCipher, ledger: int, entries: Mapping[int, bytes]) -> Iterator[ReadablePart]:
    try:
        cipher.check_header(entries[0])
    except CorruptDataError:
        return  # the secret of another ledger
    for entry, data in entries.items():
        if entry:
            yield _readable(ledger, decode_part(data, ledger=ledger), cipher.open(entry, data))


def _readable(ledger: int, part: FramePart, data: bytes) -> ReadablePart:
    is_sealed = part.written_ms is not None
    return ReadablePart(ledger=ledger, address=part.address, index=part.index, data=data, sealed=is_sealed)


def _ledgers(bookies: Iterable[SimBookie]) -> dict[int, dict[int, bytes]]:
    """The payloads of each ledger, from the memory and the disk of all bookies."""
    found: dict[int, dict[int, bytes]] = {}
    for bookie in bookies:
        for held in (bookie.memory, bookie.disk):
            for ledger, stored in held.items():
                entries = found.setdefault(ledger, {})
                for entry, data in stored.entries.items():
                    entries[entry] = bytes(decode_entry(data, ledger=ledger, entry=entry).payload)
    return found
