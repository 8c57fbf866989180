"""Facts of many streams as an Arrow table, one row a stream. Needs pyarrow.

Source: docs/formats/fleet.md. The columns hold the same facts as a line of docs/formats/planner.md.
``penstock.spark.fleet.rows`` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.cuts.order import Positions
from penstock.core.planner_json.requests import FactsLine
from penstock.core.retention.facts import RetentionFacts, StreamCutRecord
from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError

VERSION = 1
VERSION_KEY = b"penstock.fleet.facts"
"""Key of the version in the metadata of the schema."""

CUT = pa.list_(pa.struct([("segment", pa.int64()), ("offset", pa.int64())]))
RECORD = pa.struct([("time_ms", pa.int64()), ("size_bytes", pa.int64()), ("event_count", pa.int64()), ("cut", CUT)])
SUBSCRIBER = pa.struct(
    [
        ("name", pa.string()),
        ("cut", CUT),
        ("oldest_unacked_ms", pa.int64()),
        ("backlog_events", pa.int64()),
        ("last_active_ms", pa.int64()),
    ]
)
HOLD = pa.struct(
    [("id", pa.string()), ("owner", pa.string()), ("reason", pa.string()), ("until_ms", pa.int64()), ("cut", CUT)]
)
SCHEMA = pa.schema(
    [
        ("scope", pa.string()),
        ("name", pa.string()),
        ("id", pa.string()),
        ("now_ms", pa.int64()),
        ("frequency_ms", pa.int64()),
        ("epochs", pa.string()),
        ("sealed", pa.list_(pa.struct([("segment", pa.int64()), ("length", pa.int64())]))),
        ("truncated_at", CUT),
        ("truncated_events", pa.int64()),
        ("truncating", pa.bool_()),
        ("policy", pa.string()),
        ("unreadable", pa.string()),
        ("retention_set", pa.list_(RECORD)),
        ("boundaries", pa.list_(RECORD)),
        ("subscribers", pa.list_(SUBSCRIBER)),
        ("tail", RECORD),
        ("last_append_ms", pa.int64()),
        ("holds", pa.list_(HOLD)),
    ],
    metadata={VERSION_KEY: str(VERSION).encode()},
)
NEEDED = ("now_ms", "epochs")


def check_schema(schema: pa.Schema, *, source: str) -> None:
    """Return if this version can read the table. Unknown columns are allowed, missing ones count as null.

    Raises: InvalidArgumentError (not facts at all, or a column of another type), VersionTooNewError, CorruptDataError.
    """
    given = (schema.metadata or {}).get(VERSION_KEY)
    if given is None:
        raise InvalidArgumentError(
            "file holds no facts of a fleet; docs/formats/fleet.md describes the format", facts=source
        )
    if not given.isdigit():
        raise CorruptDataError("version of the facts is not a number", facts=source, version=repr(given[:20]))
    if int(given) != VERSION:
        raise VersionTooNewError("facts have another version", facts=source, version=int(given), known=VERSION)
    for name in NEEDED:
        if schema.get_field_index(name) < 0:
            raise InvalidArgumentError("a column of the facts is missing", facts=source, column=name)
    for field in SCHEMA:
        place = schema.get_field_index(field.name)
        if place >= 0 and not _same(schema.field(place).type, field.type):
            raise InvalidArgumentError(
                "a column of the facts has another type",
                facts=source,
                column=field.name,
                type=str(schema.field(place).type)[:80],
                expected=str(field.type),
            )


def _same(given: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a type can be read as the expected one. Names of list items and dictionary encoding do not matter."""
    if pa.types.is_dictionary(given):
        return _same(given.value_type, expected)
    if pa.types.is_list(expected):
        return pa.types.is_list(given) and _same(given.value_type, expected.value_type)
    if pa.types.is_struct(expected):
        if not pa.types.is_struct(given):
            return False
        return all(given.get_field_index(f.name) >= 0 and _same(given.field(f.name).type, f.type) for f in expected)
    if pa.types.is_string(expected):
        return bool(pa.types.is_string(given) or pa.types.is_large_string(given))
    return bool(given == expected)


def encode(lines: Iterable[tuple[Mapping[str, Any], FactsLine]]) -> pa.RecordBatch:
    """Facts as rows of the table, from lines of the planner's JSON as parsed values and as checked facts, in their order."""
    return pa.RecordBatch.from_pylist([_row(value, line) for value, line in lines], schema=SCHEMA)


def _row(value: Mapping[str, Any], line: FactsLine) -> dict[str, Any]:
    facts = line.facts
    policy = value.get("policy")
    return {
        "scope": line.scope,
        "name": line.name,
        "id": line.id if line.id is None or isinstance(line.id, str) else json.dumps(line.id),
        "now_ms": line.now_ms,
        "frequency_ms": facts.frequency_ms,
        "epochs": json.dumps(value["stream"]["epochs"], separators=(",", ":")),
        "sealed": [{"segment": s, "length": n} for s, n in sorted(facts.history.sealed_lengths.items())],
        "truncated_at": _cut(facts.head),
        "truncated_events": facts.head_event_count,
        "truncating": facts.truncating,
        "policy": None if policy is None else json.dumps(policy, separators=(",", ":")),
        "unreadable": facts.unreadable or None,
        "retention_set": [_record(item) for item in facts.retention_set],
        "boundaries": [_record(item) for item in facts.boundaries],
        "subscribers": _subscribers(facts),
        "tail": None if facts.tail is None else _record(facts.tail),
        "last_append_ms": facts.last_append_ms,
        "holds": [
            {
                "id": item.id,
                "owner": item.owner,
                "reason": item.reason,
                "until_ms": item.until_ms,
                "cut": _cut(item.positions),
            }
            for item in facts.holds
        ],
    }


def _subscribers(facts: RetentionFacts) -> Sequence[Mapping[str, Any]]:
    found = []
    for name, cut in facts.subscribers.items():
        item = facts.activity.get(name)
        found.append(
            {
                "name": name,
                "cut": _cut(cut),
                "oldest_unacked_ms": None if item is None else item.oldest_unacked_ms,
                "backlog_events": None if item is None else item.backlog_events,
                "last_active_ms": None if item is None else item.last_active_ms,
            }
        )
    return found


def _record(item: StreamCutRecord) -> Mapping[str, Any]:
    return {
        "time_ms": item.time_ms,
        "size_bytes": item.size_bytes,
        "event_count": item.event_count,
        "cut": _cut(item.positions),
    }


def _cut(positions: Positions | None) -> list[Mapping[str, int]] | None:
    """A cut, its segments oldest first; None for one without positions."""
    if not positions:
        return None
    return [{"segment": segment, "offset": positions[segment]} for segment in sorted(positions)]
