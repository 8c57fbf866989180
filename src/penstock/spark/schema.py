"""Columns of the source and the sink."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from penstock.model.errors import InvalidArgumentError
from penstock.spark.kafka import kafka_columns_hint

EVENT = "event"
ROUTING_KEY = "routing_key"

APPEND_TIME = "append_time"
EVENT_TIME_BOUND = "event_time_bound"

DEFAULT_COLUMNS = ("event", "scope", "stream", "segment_id", "offset")
"""Names and order of Pravega's connector."""

READ_COLUMNS = {
    "event": "binary",
    "scope": "string",
    "stream": "string",
    "segment_id": "bigint",
    "offset": "bigint",
    APPEND_TIME: "timestamp",
    EVENT_TIME_BOUND: "timestamp",
}
"""All columns that a read can select, with Spark's type of each."""


RECORD_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "timestamp": "timestamp",
}
"""The columns of records, named as those of Spark's Kafka source."""

DEFAULT_RECORD_COLUMNS = (*RECORD_COLUMNS, "scope", "stream", "segment_id", "offset")

TARGET_COLUMNS = ("scope", "stream")
"""The columns that name a stream."""

READ_MARK = "penstock.read"
"""Marks, in a column's metadata, that a read made it. Spark keeps it through ``select`` and drops it if a column is
computed."""


def read_columns(columns: Sequence[str] | None, *, records: bool = False) -> list[tuple[str, str]]:
    """Name and Spark's type of each column of a read. ``columns=None``: the default ones. ``records``: also the columns of
    records.

    Raises: InvalidArgumentError (a column is unknown or named twice).
    """
    default = DEFAULT_RECORD_COLUMNS if records else DEFAULT_COLUMNS
    names = default if columns is None else columns
    known = _of_read(records)
    if not names:
        raise InvalidArgumentError("option columns is empty", columns=", ".join(known))
    if len(set(names)) != len(names):
        raise InvalidArgumentError("option columns names a column twice", columns=", ".join(names))
    return [(name, known[_known(name, known)]) for name in names]


def _of_read(records: bool) -> Mapping[str, str]:
    return {**RECORD_COLUMNS, **READ_COLUMNS} if records else READ_COLUMNS


def check_read_schema(fields: Iterable[tuple[str, str]], *, records: bool = False) -> None:
    """Accept any choice and order of our columns, as (name, Spark's type), at least one. Raises InvalidArgumentError."""
    found, known = list(fields), _of_read(records)
    if not found:
        # Spark counts the rows it receives: batches without columns would have none.
        raise InvalidArgumentError("a schema needs at least one column", columns=", ".join(known))
    for name, kind in found:
        wanted = known[_known(name, known)]
        if kind != wanted:
            raise InvalidArgumentError(
                "a column can only be read with its own type; cast it after the read",
                column=name,
                type=wanted,
                asked=kind,
            )


def check_write_schema(fields: Iterable[tuple[str, str]], *, event: str, routing_key: str) -> bool:
    """Whether there are routing keys, from (name, Spark's type) of the columns to be written.

    The metadata columns of our own source are not written, so that a stream can be copied as it was read (see
    ``target_columns``). Any other column would be lost silently, so it is refused. Raises: InvalidArgumentError.
    """
    kinds: dict[str, str] = {}
    for name, kind in fields:
        if name in kinds and name in (event, routing_key):
            raise InvalidArgumentError("two columns to be written have this name; drop one", column=name)
        kinds[name] = kind
    if kinds.get(event) not in ("binary", "string"):
        raise InvalidArgumentError(
            f"the rows need a column of type binary or string for the events{kafka_columns_hint(kinds)}",
            column=event,
            found=", ".join(f"{name} {kind}" for name, kind in kinds.items()),
        )
    if kinds.get(routing_key, "string") != "string":
        raise InvalidArgumentError("routing keys must be strings; cast the column", column=routing_key)
    surplus = [name for name in kinds if name not in (event, routing_key) and name not in READ_COLUMNS]
    if surplus:
        more = "; option event_format=record writes records" if {*surplus} & {*RECORD_COLUMNS} else ""
        raise InvalidArgumentError(
            f"only columns {event} and {routing_key} can be written; select them{more}{kafka_columns_hint(surplus)}",
            surplus=", ".join(surplus),
        )
    return routing_key in kinds


def check_record_schema(fields: Iterable[tuple[str, str]], *, routing_key: str) -> bool:
    """As ``check_write_schema``, for the columns of records: ``value``, and perhaps ``key``, ``headers``, ``timestamp``
    and the routing key. ``key`` and ``value`` may be text."""
    given = list(fields)
    kinds = dict(given)
    for name in (*RECORD_COLUMNS, routing_key):
        if sum(found == name for found, _ in given) > 1:
            raise InvalidArgumentError("two columns to be written have this name; drop one", column=name)
    if "value" not in kinds:
        raise InvalidArgumentError(
            "records need a column value; name it so, or drop option event_format=record",
            found=", ".join(f"{name} {kind}" for name, kind in given),
        )
    for name, wanted in {**RECORD_COLUMNS, routing_key: "string"}.items():
        kind = kinds.get(name, wanted)
        if kind != wanted and not (name in ("key", "value") and kind == "string"):
            raise InvalidArgumentError(
                "a column of records has another type; cast it", column=name, type=wanted, found=kind
            )
    known = {*RECORD_COLUMNS, routing_key, *READ_COLUMNS} - {"event"}
    surplus = [name for name in kinds if name not in known]
    if surplus:
        raise InvalidArgumentError(
            f"only columns {', '.join(RECORD_COLUMNS)} and {routing_key} of records can be written; select them",
            surplus=", ".join(surplus),
        )
    return "key" in kinds or routing_key in kinds


def target_columns(fields: Iterable[tuple[str, str, Mapping[str, object]]], *used: str) -> tuple[str, ...]:
    """The columns among (name, Spark's type, metadata) whose rows must name the target: ``scope`` and ``stream``.

    Leaves out those of our own reads, which state where a copied event comes from, and those ``used`` for events or
    keys. Raises: InvalidArgumentError (such a column is not a string).
    """
    found = []
    for name, kind, metadata in fields:
        if name in TARGET_COLUMNS and name not in used and metadata.get(READ_MARK) is not True:
            if kind != "string":
                raise InvalidArgumentError(_NOT_STRINGS, column=name, type=kind)
            found.append(name)
    return tuple(found)


def routing_columns(
    fields: Iterable[tuple[str, str, Mapping[str, object]]], *used: str, scope: str | None
) -> tuple[str, ...]:
    """The columns among (name, Spark's type, metadata) that name the stream of each row: ``stream``, maybe ``scope``.

    With option ``scope``, the scope column of our own reads is left out: it states where a copied event comes from.
    Raises: InvalidArgumentError (there is no column ``stream``, or one of them is not a string).
    """
    found = []
    for name, kind, metadata in fields:
        is_origin = name == "scope" and scope is not None and metadata.get(READ_MARK) is True
        if name in TARGET_COLUMNS and name not in used and not is_origin:
            if kind != "string":
                raise InvalidArgumentError(_NOT_STRINGS, column=name, type=kind)
            found.append(name)
    if "stream" not in found:
        raise InvalidArgumentError(
            "which stream? give options scope and stream, or save('SCOPE/STREAM'), or rows with a column stream. Spark "
            "keeps the options of a catalog's table from sinks in Python: use a temporary view, or "
            "INSERT INTO table WITH ('path' = 'SCOPE/STREAM') SELECT ..."
        )
    return tuple(found)


_NOT_STRINGS = "scope and stream of a row must be strings; cast or drop the column"


def _known(name: str, columns: Mapping[str, str]) -> str:
    if name not in columns:
        near = difflib.get_close_matches(name, columns, n=1)
        hint = f"did you mean {near[0]}?" if near else f"columns are {', '.join(columns)}"
        if name in RECORD_COLUMNS:
            hint = "it is one of records: use option event_format=record"
        raise InvalidArgumentError(f"there is no such column; {hint}", column=name)
    return name
