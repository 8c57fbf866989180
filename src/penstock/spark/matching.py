"""What an erasure looks for: which events match, decided in tasks, without a value ever in a query plan.

Plans are shown in Spark's pages and kept in its event logs, so values travel with the tasks' code, not with the query.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.core.erasure_receipt import values_digest

if TYPE_CHECKING:
    import pyarrow as pa

_FEW = 32
_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Leaves numbers as they are written: 1.10 and 1e5 are not what Python would write for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonField:
    """Events whose payload is a JSON object with one of the values at a path of names and indexes, as ``user.id`` or
    ``users.0.id``. Numbers, ``true``, ``false`` and ``null`` match their JSON text, as it stands in the event."""

    path: str
    values: frozenset[str]

    def looked_for(self) -> dict[str, Any]:
        """What a receipt says."""
        return {
            "by": "json field",
            "field": self.path,
            "values": len(self.values),
            "values_sha256": values_digest(value.encode() for value in self.values),
        }

    def matches(self, event: bytes) -> bool:
        try:
            found = _JSON.decode(event.decode(json.detect_encoding(event), "surrogatepass"))
        except (ValueError, RecursionError):
            return False
        for name in self.path.split("."):
            if isinstance(found, dict):
                found = found.get(name, _ABSENT)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return False
        if found is _ABSENT or isinstance(found, dict | list):
            return False
        return (found if isinstance(found, str) else json.dumps(found)) in self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """Events whose payload holds one of the values as bytes, anywhere."""

    values: frozenset[str]

    def looked_for(self) -> dict[str, Any]:
        return {
            "by": "payload contains",
            "values": len(self.values),
            "values_sha256": values_digest(value.encode() for value in self.values),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Events for which a SQL predicate holds, over the columns that ``schema`` (DDL) reads from a JSON payload."""

    schema: str
    where: str

    def looked_for(self) -> dict[str, Any]:
        """The predicate without its literals, and the digest of all of it."""
        return {
            "by": "predicate",
            "schema": self.schema,
            "where": without_literals(self.where),
            "where_sha256": hashlib.sha256(self.where.encode()).hexdigest(),
        }


Match: TypeAlias = JsonField | Contains | Where
_ABSENT = object()
_LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|\b\d[\w.]*")


def without_literals(where: str) -> str:
    """The predicate with a question mark in the place of each text and number."""
    return _LITERAL.sub("?", where)


class _Needles:
    """Very many values to look for in payloads: looked up by their first bytes, so that their number costs little."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = sorted({value.encode() for value in values})
        self._size = min(map(len, self._values), default=0)
        found: dict[bytes, list[bytes]] = {}
        for value in self._values:
            found.setdefault(value[: self._size], []).append(value)
        self._by_start = {start: tuple(some) for start, some in found.items()}

    def are_in(self, event: bytes) -> bool:
        """Whether the payload holds one of them."""
        if len(self._values) < len(event):
            return any(value in event for value in self._values)
        size, by_start = self._size, self._by_start
        for at in range(len(event) - size + 1):
            some = by_start.get(event[at : at + size])
            if some is not None and event.startswith(some, at):
                return True
        return False


def matching_batches(match: JsonField | Contains, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Positions (``segment_id``, ``offset``) of the events that match; what a task does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    decides = match.matches if isinstance(match, JsonField) else _Needles(match.values).are_in
    few = [value.encode() for value in sorted(match.values)] if len(match.values) <= _FEW else []
    for batch in batches:
        events = batch.column("event")
        if few and isinstance(match, Contains):
            mask = pc.match_substring(events, few[0])
            for value in few[1:]:
                mask = pc.or_(mask, pc.match_substring(events, value))
        else:
            mask = pa.array([decides(event) for event in events.to_pylist()], pa.bool_())
        found = batch.select(["segment_id", "offset"]).filter(mask)
        if found.num_rows:
            yield found
