"""What the store answers about its audit log and its evidence. Source: docs/formats/evidence.md."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["AuditCheckpoint", "AuditExport", "AuditLogInfo", "EvidenceDocument", "KeyRotation"]


class KeyRotation(Struct, frozen=True, kw_only=True):
    """A key that replaced another. Both are in the form of ``AuditLogInfo.key``; ``signature``: by the old one, base64."""

    old: str
    new: str
    signature: str


class AuditLogInfo(Struct, frozen=True, kw_only=True):
    """The audit log. ``origin``: its name; ``size``: its entries; ``key``: the public key that signs now, as a line that
    verifiers take; ``rotations``: earlier keys, the oldest first."""

    origin: str
    size: int
    key: str
    rotations: Sequence[KeyRotation]


class AuditCheckpoint(Struct, frozen=True, kw_only=True):
    """A signed checkpoint. ``note``: the text of its file; ``at_ms``: when it was made, milliseconds since the Unix
    epoch."""

    origin: str
    size: int
    note: str
    at_ms: int


class AuditExport(Struct, frozen=True, kw_only=True):
    """An export of the log. ``text``: its first line; the entries follow, one a line. They are the events of the audit
    stream's only segment in ``offset <= byte < end``."""

    text: str
    offset: int
    end: int


class EvidenceDocument(Struct, frozen=True, kw_only=True):
    """A document for a file: ``text`` is its only line, byte for byte. ``kind``: what it
    is about."""

    kind: str
    text: str
