"""Receipts of erasures: canonical JSON, the digests in it, the chain from one to the next.

Source: docs/formats/erasure.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any

from penstock.core.segments.erasure import Range
from penstock.model.errors import InvalidArgumentError
from penstock.model.ledgers import LogWipe
from penstock.model.segments import SegmentId

FORMAT = 1

BY_POSITIONS = "positions"
"""The ``by`` of an erasure whose caller gave positions and stated no search."""

KEYS_SHOWN_MAX = 200
"""Keys of the log that a receipt lists; there is one for each ledger since the wipe before."""

_PLACES = {
    "cache": "the blanked bytes are in no cache of the store",
    "chunks": "chunks that held them were written anew, or belonged to segments that were deleted; the old files were "
    "overwritten and deleted, old objects deleted, leased or not",
    "metadata": "metadata and the catalogue of tier 2 never hold payloads of events",
}
_OVERWRITTEN = "log files that held them were overwritten, files that wait to be used again included"
_UNREADABLE = (
    "the bytes on bookies are unreadable, because their keys were destroyed by {at}; the bookies free them later"
)
_UNREADABLE_OBJECTS = (
    "the bytes of the log in tier 2 are unreadable, because their keys were destroyed by {at}; "
    "the objects are deleted later"
)

NOT_SEEN = "not_seen"
"""Field of a search in a receipt: events that the search does not find although they may hold a value."""

NOT_EXAMINED = "not_examined"
"""Field of a search in a receipt: events that could not be searched, so that nobody knows whether they match."""


def canonical(value: object) -> bytes:
    """JSON with sorted keys and no spaces, UTF-8: the bytes that digests are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def plain(fields: Mapping[str, Any], *, field: str) -> dict[str, Any]:
    """The fields after encoding to JSON and back. Raises InvalidArgumentError for fields that JSON cannot hold."""
    try:
        found: dict[str, Any] = json.loads(canonical(dict(fields)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            "an erasure must state what was looked for", field=field, rule="a JSON object", reason=str(error)[:60]
        ) from error
    return found


def digest_of(value: object) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def ranges_digest(ranges: Iterable[Range]) -> str:
    """SHA-256 of ordered ranges as text: ``start-end`` in decimal, each with a line feed."""
    digest = hashlib.sha256()
    for start, end in ranges:
        digest.update(b"%d-%d\n" % (start, end))
    return digest.hexdigest()


def positions_digest(positions: Mapping[SegmentId, Iterable[int]]) -> tuple[int, str]:
    """The number of distinct requested events, and the SHA-256 of their positions: ``segment:offset`` in decimal, in
    order, each with a line feed. Order, repetitions and pages of the request do not change it."""
    digest = hashlib.sha256()
    count = 0
    for segment, offsets in sorted(positions.items()):
        for offset in sorted(set(offsets)):
            digest.update(b"%d:%d\n" % (segment, offset))
            count += 1
    return count, digest.hexdigest()


def request_fields(stream: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request apart from its positions. The program's description of the search is left out: it may
    change in a new version, and a repeated request must stay equal after an upgrade."""
    looked_for = {name: value for name, value in asked["looked_for"].items() if name != NOT_SEEN}
    return {"stream": stream, **{name: asked[name] for name in ("erasure", "who", "why")}, "looked_for": looked_for}


def request_digest(stream: str, asked: Mapping[str, Any], positions_sha256: str) -> str:
    """Identifies a request: two requests of one id are the same only if their digests are equal."""
    return digest_of({**request_fields(stream, asked), "positions_sha256": positions_sha256})


def undecided(positions: Mapping[SegmentId, Iterable[int]], decided: Mapping[SegmentId, Set[int]]) -> int:
    """How many of the distinct positions the erasure does not cover. 0: a request for them is a repeat of it."""
    return sum(len(set(offsets) - decided.get(segment, frozenset())) for segment, offsets in positions.items())


def log_fields(wipe: LogWipe) -> dict[str, Any]:
    """What a receipt says about the log: ``tiers``, and ``log_keys`` if its keys were destroyed."""
    if wipe.at_ms is None:
        return {"tiers": {**_PLACES, "log": _OVERWRITTEN}}
    at = datetime.fromtimestamp(wipe.at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "tiers": {**_PLACES, "log": (_UNREADABLE_OBJECTS if wipe.is_in_tier2 else _UNREADABLE).format(at=at)},
        "log_keys": {
            "destroyed_ms": wipe.at_ms,
            "count": len(wipe.keys),
            "sha256": digest_of(list(wipe.keys)),
            "keys": list(wipe.keys[:KEYS_SHOWN_MAX]),
        },
    }


def values_digest(values: Iterable[bytes]) -> str:
    """SHA-256 over the SHA-256 of each distinct value, sorted: shows whether a caller has the same values, but not
    which values."""
    digest = hashlib.sha256()
    for item in sorted({hashlib.sha256(value).digest() for value in values}):
        digest.update(item)
    return digest.hexdigest()


def sealed(fields: Mapping[str, Any], *, sequence: int, previous: str | None) -> dict[str, Any]:
    """The receipt: the fields, its place in the chain, and finally its own digest."""
    body = {**fields, "format": FORMAT, "sequence": sequence, "previous": previous}
    return {**body, "sha256": digest_of(body)}


def receipt_problems(receipt: Mapping[str, Any]) -> list[str]:
    """Why a receipt is not the one that was issued. Empty if it is."""
    body = {name: value for name, value in receipt.items() if name != "sha256"}
    if digest_of(body) != receipt.get("sha256"):
        return ["the receipt's own digest does not fit it: it was changed"]
    return []


def chain_problems(receipts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The places where receipts, oldest first, do not continue each other: one is missing or was replaced."""
    found: list[str] = []
    sequence, previous = 0, None
    for receipt in receipts:
        found += [f"{receipt.get('erasure')}: {problem}" for problem in receipt_problems(receipt)]
        if receipt.get("sequence") != sequence + 1 or receipt.get("previous") != previous:
            found.append(f"{receipt.get('erasure')}: does not continue receipt {sequence}")
        sequence, previous = int(receipt.get("sequence", sequence + 1)), receipt.get("sha256")
    return found
