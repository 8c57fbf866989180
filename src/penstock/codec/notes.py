"""Signed notes and checkpoints of logs, as other tools read them: text with Ed25519 signatures below it.

Source: C2SP signed-note and tlog-checkpoint; Go's ``golang.org/x/mod/sumdb/note``; docs/formats/evidence.md.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence

from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass

_MARK = "\u2014 "  # an em dash and a space begin a signature
_ED25519 = b"\x01"
_PUBLIC_BYTES, _SIGNATURE_BYTES, _HASH_BYTES, _ID_BYTES = 32, 64, 32, 4
LEDGER = "penstock-erasure-ledger 1"
_SIZE = re.compile("0|[1-9][0-9]{0,18}")
_NAME = re.compile(r"[^\s+]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierKey:
    """A public key and the name of its owner; ``text`` is the form that ``penstock audit key`` prints."""

    name: str
    public: bytes

    @property
    def id(self) -> bytes:
        """Four bytes that select the key among those of a note."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:_ID_BYTES]

    @property
    def text(self) -> str:
        return f"{self.name}+{self.id.hex()}+{b64encode(_ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Raises InvalidArgumentError."""
        name, _, rest = text.strip().partition("+")
        identifier, _, data = rest.partition("+")
        try:
            raw = from_base64(data)
        except ValueError:
            raw = b""
        if not _NAME.fullmatch(name) or raw[:1] != _ED25519 or len(raw) != 1 + _PUBLIC_BYTES:
            raise InvalidArgumentError("not a public key as penstock audit key prints it", key=text[:120])
        found = cls(name=name, public=raw[1:])
        if found.id.hex() != identifier:
            raise InvalidArgumentError("the public key was changed: its parts do not fit each other", key=text[:120])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A signature below a note. ``key``: the id of the key."""

    name: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The size and root of a log. ``text`` is what the signatures cover."""

    origin: str
    size: int
    root: bytes
    text: str = ""
    signatures: tuple[Signature, ...] = ()


def from_base64(text: str) -> bytes:
    """Raises ValueError: the text is not how these bytes are written."""
    raw = b64decode(text, validate=True)
    if b64encode(raw).decode() != text:
        raise ValueError("base64 with other bits than those of its bytes")
    return raw


def checkpoint_text(origin: str, size: int, root: bytes) -> str:
    """The text of a checkpoint, to be signed."""
    return f"{origin}\n{size}\n{b64encode(root).decode()}\n"


def ledger_text(origin: str, lines: int, digest: bytes) -> str:
    """The text to sign for an erasure ledger of so many lines. No checkpoint begins like this."""
    return f"{LEDGER}\n{origin}\n{lines}\n{b64encode(digest).decode()}\n"


def signed_note(text: str, key: VerifierKey, signature: bytes) -> str:
    """The note: the text, an empty line, and the signature."""
    return f"{text}\n{_MARK}{key.name} {b64encode(key.id + signature).decode()}\n"


def parse_checkpoint(note: str) -> Checkpoint:
    """The checkpoint in a note; the signatures are not verified. Raises CorruptDataError."""
    try:
        text, signatures = _parts(note)
        lines = text.split("\n")
        if len(lines) < 4 or not lines[0] or not _SIZE.fullmatch(lines[1]):
            raise ValueError("its lines are not those of a checkpoint")
        root = from_base64(lines[2])
        if len(root) != _HASH_BYTES:
            raise ValueError("its root is not a hash")
    except ValueError as error:
        raise CorruptDataError("checkpoint cannot be read", reason=str(error)) from error
    return Checkpoint(origin=lines[0], size=int(lines[1]), root=root, text=text, signatures=signatures)


def parse_ledger_note(note: str) -> tuple[str, str, Sequence[Signature]]:
    """The origin, the text, and the signatures under an erasure ledger; nothing is verified. Raises CorruptDataError."""
    try:
        text, signatures = _parts(note)
        lines = text.split("\n")
        if len(lines) != 5 or lines[0] != LEDGER:
            raise ValueError("its lines are not those of a note under a ledger")
    except ValueError as error:
        raise CorruptDataError("signature of the ledger cannot be read", reason=str(error)) from error
    return lines[1], text, signatures


def _parts(note: str) -> tuple[str, tuple[Signature, ...]]:
    """The signed text, which ends with a line feed, and the signatures below it. Raises ValueError."""
    text, blank, below = note.rpartition("\n\n")
    if not blank or not below.endswith("\n"):
        raise ValueError("it has no signatures")
    return text + "\n", tuple(_signature(line) for line in below[:-1].split("\n"))


def _signature(line: str) -> Signature:
    name, _, data = line.removeprefix(_MARK).partition(" ")
    raw = from_base64(data)
    if not line.startswith(_MARK) or not _NAME.fullmatch(name) or len(raw) <= _ID_BYTES:
        raise ValueError("a line below it is not a signature")
    return Signature(name=name, key=raw[:_ID_BYTES], value=raw[_ID_BYTES:])
