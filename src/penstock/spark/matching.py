"""Which events an erasure matches. Tasks decide it; no value ever appears in a query plan.

Plans are shown in Spark's pages and kept in its event logs, so values travel with the tasks' code, not with the query.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.core.cases.matching import Contains as Contains
from penstock.core.cases.matching import JsonField as JsonField
from penstock.core.segments.erasure_receipt import NOT_SEEN
from penstock.model.errors import UnsearchableEventError
from penstock.model.values.dataclass import dataclass

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
    """Positions (``segment_id``, ``offset``) of the events that match; this is the work of a task.

    With ``examined`` false, the event could not be searched, and nobody knows whether it matches. It stops no other.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    decides = match.matcher()
    few = [value.encode() for value in sorted(match.values)] if len(match.values) <= _FEW else []
    for batch in batches:
        events = batch.column("event")
        examined: list[bool] | None = None
        if few and isinstance(match, Contains):
            mask = pc.match_substring(events, few[0])
            for value in few[1:]:
                mask = pc.or_(mask, pc.match_substring(events, value))
        else:
            decided = [_decided(decides, event) for event in events.to_pylist()]
            mask = pa.array([item is not False for item in decided], pa.bool_())
            examined = [item is not None for item in decided if item is not False]
        found = batch.select(["segment_id", "offset"]).filter(mask)
        if found.num_rows:
            known = [True] * found.num_rows if examined is None else examined
            yield found.append_column("examined", pa.array(known, pa.bool_()))


def _decided(decides: Callable[[bytes], bool], event: bytes) -> bool | None:
    """Whether an event matches; None: it cannot be searched."""
    try:
        return decides(event)
    except UnsearchableEventError:
        return None
