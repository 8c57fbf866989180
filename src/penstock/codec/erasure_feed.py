"""Events of the erasure feed: one for each performed erasure, for consumers that delete derived data.

One JSON object for each event, readable by any client. Source: docs/formats/erasure-feed.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION = 1
POSITIONS_MAX_BYTES = 32 << 10  # JSON of all positions; with more, a consumer asks the store for them
_TABLES_MAX_BYTES = 8 << 10  # JSON of the tables, so that an event stays far below the limit of an append


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEvent:
    """A performed erasure. ``n``: number of its receipt, from 1.

    ``segments``: for each segment, ``segment``, the erased ``events`` as half-open ranges of bytes with their headers,
    and ``gone``; None: there are too many, or they cannot be read. ``tables``: each with ``table`` and ``state``; None:
    not known. ``subject``: keyed digests of the values of the case. ``identity``: the verified one of the requester; None:
    none was verified. With ``erasure`` None, the record of the erasure
    cannot be read, and nothing but the number is known.
    """

    n: int
    erasure: str | None = None
    stream: str | None = None
    case: str | None = None
    subject: Mapping[str, Any] | None = None
    who: str | None = None
    why: str | None = None
    identity: str | None = None
    asked_ms: int | None = None
    finished_ms: int | None = None
    events: int | None = None
    bytes: int | None = None
    segments: Sequence[Mapping[str, Any]] | None = None
    tables: Sequence[Mapping[str, Any]] | None = None


def encode_feed_event(event: FeedEvent) -> bytes:
    """The event of the feed, at most 64 KiB. Lists that are too long are left out: they become null."""
    fields = {"v": VERSION, **asdict(event)}
    for name, limit_bytes in (("segments", POSITIONS_MAX_BYTES), ("tables", _TABLES_MAX_BYTES)):
        if len(_dump(fields[name])) > limit_bytes:
            fields[name] = None
    return _dump(fields)


def decode_feed_event(data: bytes) -> dict[str, Any]:
    """The fields of an event of the feed. Raises VersionTooNewError, CorruptDataError."""
    try:
        fields = json.loads(data)
        version = int(fields["v"])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptDataError("event of the erasure feed cannot be read", data=bytes(data[:80])) from error
    if version > VERSION:
        raise VersionTooNewError("event of the erasure feed was written by a newer version", version=version)
    return dict(fields)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
