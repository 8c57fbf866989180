"""Entries of the audit stream: what was deleted, would have been deleted, or was decided about deletion, and why.

One JSON object for each event, readable by any client; ``v`` is the version, readers must ignore unknown fields.
Source: docs/formats/audit.md.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION = 1
ENTRY_MAX_BYTES = 64 << 10
"""Larger entries leave out their longest fields, and name them: every entry must fit into its record."""


class AuditKind(enum.Enum):
    """What happened."""

    TRUNCATE = "truncate"
    EXPIRE = "expire"
    EVICT = "evict"
    DROP = "drop"
    DELETE = "delete"
    HELD = "held"
    RESTORE = "restore"
    RELEASE = "release"
    UNDO = "undo"
    MOVE = "move"
    HOLD = "hold"
    UNHOLD = "unhold"
    POLICY = "policy"
    ERASE = "erase"
    ERASE_DEFERRED = "erase_deferred"
    ERASE_CONTINUED = "erase_continued"
    ERASE_WITHDRAWN = "erase_withdrawn"
    TABLE_CONFIRMED = "table_confirmed"
    CASE_OPENED = "case_opened"
    CASE_VERIFIED = "case_verified"
    CASE_CLOSED = "case_closed"
    CASE_WITHDRAWN = "case_withdrawn"
    APPROVAL = "approval"
    SCALE = "scale"
    ABORT = "abort"
    GAP = "gap"
    KEY = "key"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry. ``target``: ``scope/stream``, a scope, or empty for the server. ``fields`` are JSON: rule, policy,
    cuts before and after, events, bytes, subscribers that lost data."""

    kind: AuditKind
    target: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def encode_entry(entry: AuditEntry, *, at_ms: int) -> bytes:
    """The event that records the entry; ``at_ms`` is wall time. At most ``ENTRY_MAX_BYTES``."""
    head: dict[str, Any] = {"v": VERSION, "at_ms": at_ms, "kind": entry.kind.value, "target": entry.target}
    fields = dict(entry.fields)
    data = _dump({**head, **fields})
    left_out: list[str] = []
    while len(data) > ENTRY_MAX_BYTES and fields:
        longest = max(fields, key=lambda name: (len(_dump(fields[name])), name))
        del fields[longest]
        left_out.append(longest)
        data = _dump({**head, **fields, "left_out": left_out})
    return data


def decode_entry(data: bytes) -> dict[str, Any]:
    """The fields of an event of the audit stream. Raises VersionTooNewError, CorruptDataError."""
    try:
        fields = json.loads(data)
        version = int(fields["v"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptDataError("audit entry cannot be read", data=bytes(data[:80])) from error
    if version > VERSION:
        raise VersionTooNewError("audit entry was written by a newer version", version=version)
    return dict(fields)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
