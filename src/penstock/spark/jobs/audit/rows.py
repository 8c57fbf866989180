"""Entries of the audit stream as rows: what was deleted, by which rule, who lost unread data, and which holds applied.

One row for each entry of any kind. Missing values are null, and one column has the entry as it was written.
Has no I/O, so that tasks of a batch and of a streaming query can call the same function.
Source: docs/reference/spark.md, "audit"; docs/formats/audit.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.codec.audit import AuditKind, decode_entry
from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.model.names import StreamName, check_name
from penstock.model.values.dataclass import dataclass

UNREADABLE = "unreadable"
"""Kind of a row whose entry cannot be read. Its column ``error`` has the reason."""

KINDS = tuple(item.value for item in AuditKind)

CUT = pa.list_(pa.struct([("segment", pa.int64()), ("offset", pa.int64())]))
_TIME = pa.timestamp("us", "UTC")
_SUBSCRIBER = pa.struct(
    [("name", pa.string()), ("from_cut", CUT), ("to_cut", CUT), ("bytes", pa.int64()), ("events", pa.int64())]
)
SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("at", _TIME),
        ("kind", pa.string()),
        ("scope", pa.string()),
        ("stream", pa.string()),
        ("rule", pa.string()),
        ("policy", pa.list_(pa.struct([("field", pa.string()), ("value", pa.string()), ("level", pa.string())]))),
        ("from_cut", CUT),
        ("to_cut", CUT),
        ("bytes", pa.int64()),
        ("events", pa.int64()),
        ("removed_bytes", pa.int64()),
        ("removed_events", pa.int64()),
        ("subscribers", pa.list_(_SUBSCRIBER)),
        ("lost_bytes", pa.int64()),
        ("lost_events", pa.int64()),
        ("would", pa.string()),
        ("holds", pa.list_(pa.struct([("hold", pa.string()), ("owner", pa.string()), ("reason", pa.string())]))),
        ("who", pa.string()),
        ("why", pa.string()),
        ("identity", pa.string()),
        ("via", pa.string()),
        ("peer", pa.string()),
        ("truncated_at", _TIME),
        ("missing", pa.int64()),
        ("error", pa.string()),
        ("entry", pa.string()),
    ]
)

_REMOVES = (AuditKind.TRUNCATE.value, AuditKind.DELETE.value)
_MOVES = (AuditKind.EXPIRE.value, AuditKind.EVICT.value, AuditKind.MOVE.value)
_HELD_FROM = (AuditKind.HOLD.value, AuditKind.UNHOLD.value)
_INT64 = 1 << 63  # one more than the largest signed 64-bit number
_MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
_MS_MAX = 1 << 52
"""Times beyond this are rejected: as microseconds they would not fit into 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which entries become rows: those that meet all conditions, and all that cannot be read.

    target: A scope, or ``scope/stream``: entries about it and about the levels above it, as in
        ``penstock retention audit``. None: all.
    kinds: The kinds of entries; empty: all.
    since_ms, until_ms: ``since_ms <= at < until_ms``, milliseconds since the Unix epoch.
    """

    target: str | None = None
    kinds: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def checked(self) -> Choice:
        """Itself. Raises InvalidArgumentError, InvalidNameError."""
        if self.target is not None:
            if "/" in self.target:
                StreamName.parse(self.target).checked()
            else:
                check_name("scope", self.target)
        for kind in self.kinds:
            if kind not in KINDS:
                raise InvalidArgumentError("no such kind of entry", kind=repr(kind[:60]), known=", ".join(KINDS))
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise InvalidArgumentError("the time range is empty", since_ms=self.since_ms, until_ms=self.until_ms)
        return self

    def takes(self, fields: Mapping[str, Any]) -> bool:
        """Whether an entry becomes a row."""
        at_ms = int(fields["at_ms"])
        if self.kinds and fields["kind"] not in self.kinds:
            return False
        if self.since_ms is not None and at_ms < self.since_ms:
            return False
        return (self.until_ms is None or at_ms < self.until_ms) and self._concerns(str(fields["target"]))

    def _concerns(self, about: str) -> bool:
        if self.target is None or about in ("", self.target):
            return True
        scope, slash, _ = self.target.partition("/")
        return about == scope if slash else about.startswith(f"{scope}/")


ALL = Choice()


def row_of(event: bytes, position: int, choice: Choice = ALL) -> dict[str, Any] | None:
    """The row of the event of the audit stream at that offset. None if it is not chosen.

    An event that is no entry, or an entry of a newer version, becomes a row with an error, so that the others are read.
    """
    try:
        fields = decode_entry(event)
        if not choice.takes(fields):
            return None
        row = _row(fields)
    except (CorruptDataError, VersionTooNewError, *_MALFORMED) as error:
        row = {"kind": UNREADABLE, "removed_bytes": 0, "lost_bytes": 0, "missing": 0, "error": _text(str(error))}
    return {"position": position, **row, "entry": event.decode("utf-8", "replace")}


def batches(choice: Choice, given: Iterable[Any]) -> Iterator[Any]:
    """Record batches of ``SCHEMA`` from batches with the columns ``event`` and ``offset``; a task of ``mapInArrow``."""
    for batch in given:
        events, offsets = batch.column("event").to_pylist(), batch.column("offset").to_pylist()
        rows = [row_of(event, offset, choice) for event, offset in zip(events, offsets, strict=True)]
        found = [row for row in rows if row is not None]
        if found:
            yield pa.RecordBatch.from_pylist(found, schema=SCHEMA)


def _row(fields: Mapping[str, Any]) -> dict[str, Any]:
    kind = _text(fields["kind"])
    scope, _, stream = str(fields["target"]).partition("/")
    size, events = _whole(fields.get("bytes")), _whole(fields.get("events"))
    subscribers = _subscribers(kind, fields)
    caller = fields.get("caller")
    asked = caller if isinstance(caller, Mapping) else {}
    return {
        "at": _micros(fields["at_ms"]),
        "kind": kind,
        "scope": _text(scope) or None,
        "stream": _text(stream) or None,
        "rule": _text(fields.get("rule")),
        "policy": _policy(fields.get("policy")),
        **_cuts(kind, fields),
        "bytes": size,
        "events": events,
        **_removed(kind, size, events),
        "subscribers": subscribers,
        **_lost(kind, subscribers),
        "would": _text(fields.get("would")),
        "holds": _holds(kind, fields),
        "who": _text(fields.get("who") or fields.get("by") or asked.get("who")),
        "why": _text(fields.get("why") or fields.get("unreadable") or fields.get("reason") or asked.get("why")),
        # The entry's own identity first: for an erasure it is the requester's, even if another caller decided it.
        **{name: _text(fields.get(name) or asked.get(name)) for name in ("identity", "via", "peer")},
        "truncated_at": _micros(fields.get("truncated_at_ms")),
        "missing": _whole(fields.get("entries")) or 0 if kind == AuditKind.GAP.value else 0,
    }


def _removed(kind: str | None, size: int | None, events: int | None) -> dict[str, Any]:
    """Bytes and events that this entry removed; negative for an undo. Over one stream they sum to what its head lost."""
    if kind in _REMOVES:
        return {"removed_bytes": size or 0, "removed_events": events}
    if kind == AuditKind.UNDO.value:
        # The entry does not say how many events came back.
        return {"removed_bytes": -(size or 0), "removed_events": None if events is None else -events}
    return {"removed_bytes": 0, "removed_events": 0}


def _lost(kind: str | None, subscribers: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Bytes and events that subscribers lost unread by this entry. A truncation also names the subscribers that lost data.
    They are not counted here, because each of them has its own entry."""
    if kind not in _MOVES or not subscribers:
        return {"lost_bytes": 0, "lost_events": 0}
    # A subscriber that was moved back manually has lost nothing.
    hurt = [item for item in subscribers if (item["bytes"] or 0) > 0]
    events = [item["events"] for item in hurt]
    return {
        "lost_bytes": sum(item["bytes"] for item in hurt),
        "lost_events": None if None in events else sum(events),
    }


def _cuts(kind: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    if kind == AuditKind.POLICY.value:
        return {}  # For these kinds, ``before`` and ``after`` are documents.
    if kind in _HELD_FROM:
        return {"from_cut": _cut(fields.get("cut"))}
    return {"from_cut": _cut(fields.get("before")), "to_cut": _cut(fields.get("after"))}


def _cut(value: Any) -> list[dict[str, int]] | None:
    """Positions, oldest segment first; empty: the beginning of the stream; None: no cut."""
    if value is None:
        return None
    found = {_number(int(segment)): _number(offset) for segment, offset in value.items()}
    return [{"segment": segment, "offset": found[segment]} for segment in sorted(found)]


def _subscribers(kind: str | None, fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    if kind == AuditKind.DROP.value:
        return [_subscriber({"name": fields.get("subscriber"), "from": fields.get("cut")})]
    found = fields.get("subscribers")
    return None if found is None else [_subscriber(item) for item in found]


def _subscriber(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": _text(item.get("name")),
        "from_cut": _cut(item.get("from")),
        "to_cut": _cut(item.get("to")),
        "bytes": _whole(item.get("bytes")),
        "events": _whole(item.get("events")),
    }


def _holds(kind: str | None, fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    names = ("hold", "owner", "reason")
    if kind in _HELD_FROM:
        return [{name: _text(fields.get(name)) for name in names}]
    found = fields.get("holds")
    return None if found is None else [{name: _text(item.get(name)) for name in names} for item in found]


def _policy(value: Any) -> list[dict[str, Any]] | None:
    """The policy values that the rule used, as JSON, each with the level that it is from."""
    if value is None:
        return None
    return [
        {
            "field": _text(field),
            "value": None if item["value"] is None else _text(json.dumps(item["value"])),
            "level": _text(item["from"]),
        }
        for field, item in value.items()
    ]


def _whole(value: Any) -> int | None:
    return None if value is None else _number(value)


def _number(value: Any) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise ValueError(f"not a whole number of 64 bits: {str(value)[:40]}")
    return int(value)


def _micros(value: Any) -> int | None:
    found = _whole(value)
    if found is None:
        return None
    if abs(found) > _MS_MAX:
        raise ValueError(f"not a time in milliseconds: {found}")
    return found * 1000


def _text(value: Any) -> str | None:
    """The text in a form that Arrow accepts. JSON can escape half of a surrogate pair; that becomes a question mark."""
    return None if value is None else str(value).encode("utf-8", "replace").decode()
