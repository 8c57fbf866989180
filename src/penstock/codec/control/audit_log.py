"""What the controller stores about the audit log: where it continues, and the hashes of its entries.

Source: docs/formats/metadata.md, docs/formats/audit.md.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from penstock.codec.control.record import Field, JsonRecord
from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass

_HASH_BYTES = 32


def dump_hashes(hashes: Sequence[bytes]) -> str:
    return b64encode(b"".join(hashes)).decode()


def load_hashes(text: str) -> tuple[bytes, ...]:
    """Raises CorruptDataError: not a whole number of hashes."""
    data = b64decode(text, validate=True)
    if len(data) % _HASH_BYTES:
        raise CorruptDataError("hashes are cut off", length=len(data))
    return tuple(data[at : at + _HASH_BYTES] for at in range(0, len(data), _HASH_BYTES))


def dump_hash(value: bytes) -> str:
    return value.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLogRecord(JsonRecord):
    """The audit log up to a place in the audit stream. What follows that place is read from the stream."""

    KIND = "audit log"
    origin: Annotated[str, Field("name of the log")]
    size: Annotated[int, Field("entries up to `end`")]
    end: Annotated[int, Field("bytes of the audit stream's segment up to here")]
    edge: Annotated[
        tuple[bytes, ...], Field("right edge of the tree: 32 bytes each, base64", dump=dump_hashes, load=load_hashes)
    ]
    last: Annotated[bytes | None, Field("hash of the last entry, hex", dump=dump_hash, load=bytes.fromhex)]
    open: Annotated[
        tuple[bytes, ...],
        Field("hashes of the entries after the last whole tile", dump=dump_hashes, load=load_hashes),
    ]
    open_offset: Annotated[int, Field("where the first of them begins, bytes")]
    after: Annotated[Mapping[str, Any] | None, Field("the log that it replaces: `origin`, `size`, `root`")] = None
    ended: Annotated[bool, Field("the next entry begins another log: this store was restored", optional=True)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTileRecord(JsonRecord):
    """Hashes of 256 entries of the audit log in a row."""

    KIND = "audit tile"
    offset: Annotated[int, Field("where the first of them begins in the audit stream's segment, bytes")]
    hashes: Annotated[tuple[bytes, ...], Field("32 bytes each, base64", dump=dump_hashes, load=load_hashes)]
    root: Annotated[bytes, Field("root of the tree of these entries, hex", dump=dump_hash, load=bytes.fromhex)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditKeysRecord(JsonRecord):
    """The public key of an audit log, and the keys before it."""

    KIND = "audit keys"
    public: Annotated[bytes, Field("the key that signs now, hex", dump=dump_hash, load=bytes.fromhex)]
    rotations: Annotated[
        Sequence[Mapping[str, str]], Field("`old`, `new`, `signature` of each earlier key (evidence.md), oldest first")
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCheckpointRecord(JsonRecord):
    """A checkpoint of an audit log that was signed."""

    KIND = "audit checkpoint"
    note: Annotated[str, Field("the signed note (evidence.md)")]
    at_ms: Annotated[int, Field("wall clock, ms")]
