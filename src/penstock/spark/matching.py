"""Which events an erasure matches. Tasks decide it; no value ever appears in a query plan.

Plans are shown in Spark's pages and kept in its event logs, so values travel with the tasks' code, not with the query.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.core.segments.erasure_receipt import NOT_SEEN, values_digest

if TYPE_CHECKING:
    import pyarrow as pa

_FEW = 32  # values up to which a block is searched for their bytes


class _Object(list[tuple[str, Any]]):
    """A JSON object with all of its members, including repeated names."""


_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_Object, strict=False)
"""Keeps numbers as written: Python would write 1.10 and 1e5 differently."""

_BETWEEN = re.compile(r"[\s\x00\x1e\ufeff,]*")
"""Characters allowed before, between and after the JSON texts of one event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonField:
    """Events whose payload is JSON with one of the values at a path of names and indexes, such as ``user.id`` or
    ``users.0.id``. Numbers, ``true``, ``false`` and ``null`` match their JSON text, as written in the event.

    A name may itself hold dots: ``user.id`` is also the member ``"user.id"``. Repeated names are all searched.
    An event may hold several JSON texts, with space, NUL, commas and record separators between them. The search ends
    at the first text that cannot be read.
    """

    path: str
    values: frozenset[str]

    def looked_for(self) -> dict[str, Any]:
        """The search criteria, as a receipt records them."""
        return {
            "by": "json field",
            "field": self.path,
            "values": len(self.values),
            "values_sha256": values_digest(value.encode() for value in self.values),
            NOT_SEEN: "arrays and objects at the field, numbers in another notation, JSON within strings, "
            "anything after the first invalid JSON, compressed or encrypted payloads",
        }

    def matches(self, event: bytes) -> bool:
        names = self.path.split(".")
        return any(
            (found if isinstance(found, str) else json.dumps(found)) in self.values
            for text in _texts_of(event)
            for found in _values_at(text, names)
        )


def _texts_of(event: bytes) -> Iterator[Any]:
    """The JSON texts of an event, up to the first that cannot be read."""
    # A NUL before UTF-8 looks like UTF-16.
    for encoding in {json.detect_encoding(event): None, "utf-8": None}:
        try:
            text = event.decode(encoding, "surrogatepass")
        except ValueError:
            # Bytes that are not text in one place must not hide the rest.
            text = event.decode(encoding, "replace")
        yield from _texts_in(text)


def _texts_in(text: str) -> Iterator[Any]:
    position = _end_of(_BETWEEN.match(text))
    while position < len(text):
        try:
            found, position = _JSON.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield found
        position = _end_of(_BETWEEN.match(text, position))


def _end_of(match: re.Match[str] | None) -> int:
    return 0 if match is None else match.end()


def _values_at(found: Any, names: Sequence[str]) -> Iterator[Any]:
    """Each value at the path that is neither an array nor an object."""
    if not names:
        if not isinstance(found, list):
            yield found
    elif isinstance(found, _Object):
        for count in range(1, len(names) + 1):
            wanted = ".".join(names[:count])
            for name, value in found:
                if name == wanted:
                    yield from _values_at(value, names[count:])
    elif isinstance(found, list) and names[0].isdecimal() and int(names[0]) < len(found):
        yield from _values_at(found[int(names[0])], names[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """Events whose payload holds one of the values as bytes, anywhere."""

    values: frozenset[str]

    def looked_for(self) -> dict[str, Any]:
        return {
            "by": "payload contains",
            "values": len(self.values),
            "values_sha256": values_digest(value.encode() for value in self.values),
            NOT_SEEN: "values in another form: with escapes, in another encoding, compressed or encrypted",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Events for which a SQL predicate holds, over the columns that ``schema`` (DDL) reads from a JSON payload."""

    schema: str
    where: str

    def looked_for(self) -> dict[str, Any]:
        """The predicate without its literals, and the digest of the whole predicate."""
        return {
            "by": "predicate",
            "schema": self.schema,
            "where": without_literals(self.where),
            "where_sha256": hashlib.sha256(self.where.encode()).hexdigest(),
            NOT_SEEN: "payloads that are not one JSON object in UTF-8, all but one of repeated fields, "
            "fields that are not in the schema or of another type",
        }


Match: TypeAlias = JsonField | Contains | Where
_LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|\b\d[\w.]*")


def without_literals(where: str) -> str:
    """The predicate with a question mark in place of each text and number."""
    return _LITERAL.sub("?", where)


class _Needles:
    """Many values to search for in payloads. They are indexed by their first bytes, so that their number costs
    little."""

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
    """Positions (``segment_id``, ``offset``) of the events that match; this is the work of a task."""
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
