"""Which events an erasure matches. Tasks decide it; no value ever appears in a query plan.

Plans are shown in Spark's pages and kept in its event logs, so values travel with the tasks' code, not with the query.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.core.cases.matching import Contains as Contains
from penstock.core.cases.matching import JsonField as JsonField
from penstock.core.segments.erasure_receipt import NOT_SEEN

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Contains", "JsonField", "Match", "Where", "matching_batches", "without_literals"]

_FEW = 32  # values up to which a block is searched for their bytes


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


def matching_batches(match: JsonField | Contains, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Positions (``segment_id``, ``offset``) of the events that match; this is the work of a task."""
    import pyarrow as pa
    import pyarrow.compute as pc

    decides = match.matcher()
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
