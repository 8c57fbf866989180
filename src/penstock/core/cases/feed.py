"""What the erasure feed publishes about a performed erasure: never a value, nor a digest that anybody can guess from.

Left out are ``looked_for`` and every digest that covers it: of the request, and of the receipt. With the rest of the
event, somebody could try values until the digest fits. Source: docs/formats/erasure-feed.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.codec.control.cases import CaseRecord, CaseStreamRecord
from penstock.codec.control.erasures import ErasurePartRecord, ErasureRecord
from penstock.codec.erasure_feed import FeedEvent
from penstock.codec.events import HEADER_BYTES
from penstock.core.cases.case import without_values
from penstock.core.cases.ledger import key_digest
from penstock.core.cases.progress import erasure_id
from penstock.core.segments.erasure import Range, joined
from penstock.model.answers.erasure import ErasureTable
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId

DIGESTS_MAX = 100  # keyed digests in one event (7 KB); with more, only their number
LISTED_MAX = 10_000
"""Erased payloads of which the positions are read: those of one erasure of a case. Beyond it, an event has none."""
_NUMBER = re.compile(r"\.([0-9]{1,9})\Z")


def case_of(record: ErasureRecord) -> str | None:
    """The case that an erasure names. Anybody can name one: see ``is_of_case``."""
    case = dict(record.asked.get("looked_for") or {}).get("case")
    return case if isinstance(case, str) else None


def is_of_case(case: str, erasure: str, stream: StreamName, searched: CaseStreamRecord | None) -> bool:
    """Whether the case has asked for the erasure, by what it has recorded about the stream."""
    found = _NUMBER.search(erasure)
    number = 0 if found is None else int(found.group(1))
    is_counted = searched is not None and 0 < number <= searched.rounds
    return is_counted and erasure == erasure_id(case, stream, number)


def is_listed(receipt: Mapping[str, Any]) -> bool:
    """Whether an event can have the positions, which must be read for it."""
    return sum(int(item["ranges"]) for item in receipt["where"]["segments"]) <= LISTED_MAX


def positions_of(parts: Sequence[ErasurePartRecord], receipt: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The erased events, by segment. A consumer may compare its offsets with them: headers are included."""
    found: dict[SegmentId, list[Range]] = {}
    for part in parts:
        whole = [(start - HEADER_BYTES, end) for start, end in part.ranges]
        whole += [(offset, offset + HEADER_BYTES) for offset in part.empty]
        found[part.segment] = joined(found.get(part.segment, ()), whole)
    gone = {int(item["segment"]) for item in receipt["where"]["segments"] if item["gone"]}
    return [
        {"segment": segment, "events": [list(item) for item in ranges], "gone": segment in gone}
        for segment, ranges in sorted(found.items())
    ]


def feed_event(
    number: int,
    record: ErasureRecord,
    *,
    parts: Sequence[ErasurePartRecord] | None,
    tables: Sequence[ErasureTable] | None,
    case: tuple[str, CaseRecord] | None,
    key: bytes | None,
) -> FeedEvent:
    """The event of an erasure that is done. ``parts``: None: too many, or they cannot be read. ``key``: of the digests."""
    receipt = record.receipt or {}
    return FeedEvent(
        n=number,
        erasure=str(receipt["erasure"]),
        stream=record.stream,
        case=None if case is None else case[0],
        subject=None if case is None else _subject(case[1], key),
        who=receipt["who"],
        why=receipt["why"],
        identity=receipt.get("identity"),
        asked_ms=receipt["asked_ms"],
        finished_ms=receipt["finished_ms"],
        events=receipt["where"]["events"],
        bytes=receipt["where"]["bytes"],
        segments=None if parts is None else positions_of(parts, receipt),
        tables=None if tables is None else [{"table": item.table, "state": item.state} for item in tables],
    )


def _subject(record: CaseRecord, key: bytes | None) -> dict[str, Any]:
    """Keyed digests of the values, and which key made them; or how many there are."""
    subject = without_values(record, key)
    digests = subject.get("digests", ())
    if len(digests) > DIGESTS_MAX:
        subject = {"by": subject["by"], "field": subject["field"], "left_out": len(digests)}
    return {**subject, "key": None if key is None else key_digest(key)} if "digests" in subject else subject
