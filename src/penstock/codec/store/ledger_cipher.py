"""Encryption of one ledger: its header, and the parts of its frames.

Source: docs/formats/ledger-log.md, docs/design/0067-encrypted-ledgers.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.codec.store.ledger_entries import (
    SEALED_HEADER,
    SEALED_PART,
    SEALED_VERSION,
    TAG_BYTES,
    LedgerHeader,
    sealed_header,
)
from penstock.model.errors import CorruptDataError, InternalError, VersionTooNewError
from penstock.model.ledgers import LedgerKey

Buffer: TypeAlias = bytes | memoryview
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_VERSION: Final = bytes([SEALED_VERSION])
OVERHEAD_BYTES: Final = SEALED_PART.size + TAG_BYTES
"""What an entry has beside the bytes of the frame."""


class LedgerCipher:
    """Encrypts and decrypts the entries of one ledger by AES-256-GCM. The nonce is the number of the entry, so each number
    is encrypted once. ``secret``: 32 bytes. ``uid``: of the log."""

    def __init__(self, secret: bytes, key: LedgerKey, *, uid: str, ledger: int) -> None:
        info = ledger.to_bytes(8, "big")
        # A secret that two ledgers use by mistake gives two keys.
        derived = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(secret)
        self.key = key
        self._gcm = AESGCM(derived)
        self._ledger = ledger
        self._context = _VERSION + info + key.epoch.to_bytes(8, "big") + uid.encode()
        self._sealed = 0

    def header(self, first: int) -> bytes:
        """Entry 0. ``first``: an address that the first frame has at least."""
        head = sealed_header(LedgerHeader(epoch=self.key.epoch, first=first, key=self.key.id))
        return head + self._gcm.encrypt(_nonce(0), b"", self._context + head)

    def check_header(self, data: bytes) -> None:
        """Raises CorruptDataError: the secret is another ledger's, or the header was changed."""
        head = data[: SEALED_HEADER.size - TAG_BYTES]
        try:
            self._gcm.decrypt(_nonce(0), data[len(head) :], self._context + head)
        except InvalidTag as error:
            raise CorruptDataError("key does not fit the ledger", ledger=self._ledger, key=str(self.key)) from error

    def seal(self, entry: int, head: bytes, data: Buffer) -> bytes:
        """Encrypted bytes of a frame. ``head``: of the part, which is not encrypted but protected.

        Raises InternalError: the entry does not follow the one before, so its nonce could repeat.
        """
        if entry != self._sealed + 1:
            raise InternalError("entry is encrypted out of order", ledger=self._ledger, entry=entry, last=self._sealed)
        self._sealed = entry
        return self._gcm.encrypt(_nonce(entry), data, self._context + head)

    def open(self, entry: int, data: bytes) -> bytes:
        """The decrypted bytes of a whole entry. Raises CorruptDataError, VersionTooNewError."""
        if data[:1] > _VERSION:
            raise VersionTooNewError(
                "entry was written by a newer version", version=data[0], newest_known=SEALED_VERSION
            )
        head, sealed = data[: SEALED_PART.size], memoryview(data)[SEALED_PART.size :]
        try:
            if len(sealed) < TAG_BYTES:
                raise InvalidTag
            return self._gcm.decrypt(_nonce(entry), sealed, self._context + head)
        except InvalidTag as error:
            raise CorruptDataError("entry of a log cannot be decrypted", ledger=self._ledger, entry=entry) from error


def sealed_parts(
    cipher: LedgerCipher, entry: int, address: int, frame: bytes, *, written_ms: int, entry_max_bytes: int
) -> Iterator[list[Buffer]]:
    """The entries of one frame, each as buffers. The first of them gets the number ``entry``."""
    room = entry_max_bytes - OVERHEAD_BYTES
    total = max(1, -(-len(frame) // room))
    view = memoryview(frame)
    for index in range(total):
        head = SEALED_PART.pack(SEALED_VERSION, index, total, address, written_ms)
        yield [head, cipher.seal(entry + index, head, view[index * room : (index + 1) * room])]


def _nonce(entry: int) -> bytes:
    return entry.to_bytes(_NONCE_BYTES, "big")
