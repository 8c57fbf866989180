"""Records as columns: what a read with ``event_format=record`` returns, and a write with it takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.codec.events import HEADER_BYTES
from penstock.codec.records import decode_record, encode_record
from penstock.model.errors import DecodeError, EventTooLargeError, InvalidArgumentError, VersionTooNewError
from penstock.model.records import Record
from penstock.spark.arrays import blobs, integers, lists, numbers, texts, validity
from penstock.spark.option_values import PlainEvents

KEY, VALUE, HEADERS, TIMESTAMP = "key", "value", "headers", "timestamp"
_TIMES_MS = range(-(1 << 63) // 1000 + 1, (1 << 63) // 1000)
"""Times that Spark's timestamps hold, which count microseconds."""


class RecordShape:
    """Makes the columns of records that a schema names."""

    def __init__(self, schema: pa.Schema, plain_events: PlainEvents) -> None:
        self._schema = schema
        self._plain_events = plain_events

    def columns(
        self,
        view: memoryview,
        offset: int,
        bounds: np.ndarray[Any, Any],
        keep: np.ndarray[Any, Any] | None,
    ) -> dict[str, pa.Array]:
        """One row for each event. ``bounds``: where events begin in the view, and the last one ends. ``offset``: of the view
        in its segment. ``keep``: False for an event that was erased, whose row is dropped later.

        Raises DecodeError and VersionTooNewError, which name the offset: an event is not a record, and ``plain_events``
        is "fail".
        """
        records = [
            None
            if keep is not None and not keep[row]
            else self._record(view[start + HEADER_BYTES : end], offset + start)
            for row, (start, end) in enumerate(pairwise(bounds.tolist()))
        ]
        return columns_of(records, self._schema)

    def _record(self, event: memoryview, offset: int) -> Record | None:
        try:
            return _fitting(decode_record(bytes(event)))
        except (DecodeError, VersionTooNewError) as error:
            if self._plain_events == "null":
                return None
            raise type(error)(
                f"{error.message.partition(';')[0]}; plain_events=null reads it as a row without key and value",
                **{**error.fields, "offset": offset},
            ) from error


def columns_of(records: Sequence[Record | None], wanted: pa.Schema) -> dict[str, pa.Array]:
    """The columns of records that a schema names, null where there is no record."""
    made: dict[str, pa.Array] = {}
    if KEY in wanted.names:
        made[KEY] = blobs([None if item is None else item.key for item in records], wanted.field(KEY).type)
    if VALUE in wanted.names:
        made[VALUE] = blobs([None if item is None else item.value for item in records], wanted.field(VALUE).type)
    if TIMESTAMP in wanted.names:
        made[TIMESTAMP] = _times(
            [None if item is None else item.timestamp_ms for item in records], wanted.field(TIMESTAMP).type
        )
    if HEADERS in wanted.names:
        made[HEADERS] = _headers(
            [item.headers or None if item else None for item in records], wanted.field(HEADERS).type
        )
    return made


def _fitting(record: Record) -> Record:
    if record.timestamp_ms is not None and record.timestamp_ms not in _TIMES_MS:
        raise DecodeError("time of the record is out of range for Spark's timestamps", timestamp_ms=record.timestamp_ms)
    return record


def _times(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    data = integers(np.array([(value or 0) * 1000 for value in values], dtype=np.int64))
    return pa.Array.from_buffers(kind, len(values), [validity(values), data.buffers()[1]])


def _headers(values: Sequence[Sequence[tuple[str, bytes | None]] | None], kind: pa.DataType) -> pa.Array:
    """Lists of names and values; null for a record without headers, as Spark's Kafka source has it."""
    pairs = [pair for found in values for pair in found or ()]
    item = kind.value_type
    names = texts([name for name, _ in pairs], item.field(0).type)
    inner = pa.Array.from_buffers(
        item, len(pairs), [None], children=[names, blobs([value for _, value in pairs], item.field(1).type)]
    )
    return lists([None if found is None else len(found) for found in values], inner, kind)


def record_events(rows: pa.RecordBatch, routing_key: str) -> tuple[pa.Array, pa.Array]:
    """The events of rows with the columns of records, and their routing keys: those of the column ``routing_key`` where it
    has one, else the keys of the records.

    Raises InvalidArgumentError and EventTooLargeError, each with the number of the row in its batch.
    """
    count = rows.num_rows
    values = _bytes(rows, VALUE, count)
    keys = _bytes(rows, KEY, count)
    given = rows.column(routing_key).to_pylist() if routing_key in rows.schema.names else [None] * count
    headers = rows.column(HEADERS).to_pylist() if HEADERS in rows.schema.names else [None] * count
    times = _times_ms(rows, count)
    events, routes = [], []
    for row in range(count):
        try:
            pairs = [(item["key"], item["value"]) for item in headers[row] or ()]
            record = Record(values[row], key=keys[row], headers=pairs, timestamp_ms=times[row])
        except (InvalidArgumentError, EventTooLargeError) as error:
            raise type(error)(error.message, **{**error.fields, "row": row}) from error
        except TypeError as error:
            raise InvalidArgumentError("a header of a row is null", row=row) from error
        events.append(encode_record(record))
        routes.append(record.routing_key if given[row] is None else given[row])
    return blobs(events, pa.binary()), texts(routes, pa.string())


def _bytes(rows: pa.RecordBatch, name: str, count: int) -> list[Any]:
    found: list[Any] = rows.column(name).to_pylist() if name in rows.schema.names else [None] * count
    return found


def _times_ms(rows: pa.RecordBatch, count: int) -> list[int | None]:
    """Times in whole milliseconds, rounded down."""
    if TIMESTAMP not in rows.schema.names:
        return [None] * count
    column = rows.column(TIMESTAMP)
    plain = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    ms = (numbers(plain) // 1000).tolist()
    valid = column.is_valid().to_pylist()
    return [value if there else None for value, there in zip(ms, valid, strict=True)]
