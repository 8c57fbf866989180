"""Events as tables of Arrow, Polars and DuckDB, and tables as events.

The columns have the names of the Spark source. Importing this module loads none of the three libraries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.client.reading.blocks import Block
from penstock.model.errors import InvalidArgumentError, missing_extra

if TYPE_CHECKING:
    import pyarrow as pa

ArrowTable: TypeAlias = Any
"""An object with ``__arrow_c_stream__``, or a record batch."""

EVENT_COLUMN = "event"
APPEND_TIME = "append_time"
DEFAULT_COLUMNS = (EVENT_COLUMN, "scope", "stream", "segment_id", "offset")
"""The columns of Spark's source, in its order. With append times, ``append_time`` follows."""

_JSON_ROWS = 4096  # rows that become text in one step: between two steps, the event loop does other work
_ARROW_ROWS = 1 << 17


def library(name: str, extra: str) -> Any:
    """The module, imported now. Raises MissingExtraError, which names the extra that brings it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise missing_extra(name, extra) from error


class Frame:
    """Record batches of blocks, with the chosen columns. The events of a batch are the block's own bytes where Arrow can
    use them in place.

    Raises InvalidArgumentError for an unknown or repeated column, and for ``append_time`` without ``append_times``;
    MissingExtraError.
    """

    def __init__(self, columns: Sequence[str] | None, *, append_times: bool) -> None:
        known = (*DEFAULT_COLUMNS, APPEND_TIME)
        if columns is None:
            columns = known if append_times else DEFAULT_COLUMNS
        if (
            isinstance(columns, str)
            or not columns
            or not set(columns) <= set(known)
            or len(set(columns)) != len(columns)
        ):
            raise InvalidArgumentError(
                "columns must be a list of different names", columns=repr(columns)[:80], known=", ".join(known)
            )
        if APPEND_TIME in columns and not append_times:
            raise InvalidArgumentError(
                "the reader has no append times: make it with append_times=True", columns=columns
            )
        library("numpy", "arrow")
        arrow = library("pyarrow", "arrow")
        kinds = {
            EVENT_COLUMN: arrow.binary(),
            "scope": arrow.string(),
            "stream": arrow.string(),
            "segment_id": arrow.int64(),
            "offset": arrow.int64(),
            APPEND_TIME: arrow.timestamp("us", "UTC"),
        }
        self.schema: pa.Schema = arrow.schema([(name, kinds[name]) for name in columns])
        self._arrow = arrow

    def batch(self, block: Block) -> pa.RecordBatch:
        """The events of the block."""
        from penstock.client.writing.arrow import block_to_batch

        places = block_to_batch(block)
        columns = [
            places.column(name) if name in places.schema.names else self._other(name, block)
            for name in self.schema.names
        ]
        return self._arrow.RecordBatch.from_arrays(columns, schema=self.schema)

    def _other(self, name: str, block: Block) -> pa.Array:
        if name != APPEND_TIME:
            return self._arrow.repeat(getattr(block.stream, name), len(block))
        times = (
            None if at_ms is None else at_ms * 1000
            for _, at_ms in zip(range(len(block)), block.appended(), strict=False)
        )
        return self._arrow.array(times, type=self._arrow.timestamp("us", "UTC"))

    def table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """All batches as one table, which holds them in memory."""
        return self._arrow.Table.from_batches(list(batches), schema=self.schema)

    def reader(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        """The batches as they come."""
        return self._arrow.RecordBatchReader.from_batches(self.schema, batches)


def to_polars(table: pa.Table) -> Any:
    """The table as a Polars DataFrame, which shares its memory where it can."""
    return library("polars", "polars").from_arrow(table)


def to_duckdb(reader: pa.RecordBatchReader, connection: Any) -> Any:
    """The batches as a relation of DuckDB that can be read once. ``connection=None``: DuckDB's default one."""
    duckdb = library("duckdb", "duckdb")
    return (duckdb if connection is None else connection).from_arrow(reader)


class RowWriter:
    """Rows of a table as events of a writer.

    ``event``: the column with the events, binary or text. None: the column ``event`` if there is one, else each row becomes
    a JSON object of all its columns. ``key``: the column with the routing keys; a null is no key.

    Raises InvalidArgumentError for what is not a table, and columns that it does not have; MissingExtraError. Nothing is
    read or written then.
    """

    def __init__(self, table: object, *, key: str | None, event: str | None) -> None:
        library("numpy", "arrow")
        self._arrow = library("pyarrow", "arrow")
        self._batches = self._reader(table)
        names = self._batches.schema.names
        if event is None and EVENT_COLUMN in names:
            event = EVENT_COLUMN
        for option, name in (("event", event), ("key", key)):
            if name is not None and names.count(name) != 1:
                raise InvalidArgumentError(
                    f"{option} is not one column of the table",
                    **{option: repr(name)[:60]},
                    columns=", ".join(names)[:200],
                )
        if event is None:
            self._check_json(self._batches.schema)
        self._event, self._key = event, key
        self.done = 0

    def _reader(self, table: object) -> pa.RecordBatchReader:
        if isinstance(table, self._arrow.RecordBatchReader):
            return table
        if isinstance(table, self._arrow.RecordBatch):
            return self._arrow.Table.from_batches([table]).to_reader()
        if hasattr(table, "__arrow_c_stream__"):
            return self._arrow.RecordBatchReader.from_stream(table)
        raise InvalidArgumentError(
            "a table must come from pyarrow, Polars, pandas or DuckDB, or have __arrow_c_stream__",
            type=type(table).__name__,
        )

    def _check_json(self, schema: pa.Schema) -> None:
        if not schema.names or len(set(schema.names)) != len(schema.names):
            raise InvalidArgumentError(
                "rows as JSON need columns of different names", columns=", ".join(schema.names)[:200]
            )
        for field in schema:
            if "binary" in str(field.type):
                raise InvalidArgumentError(
                    "binary values cannot be written as JSON: name the column of the events, or leave the column out",
                    column=field.name,
                )

    @property
    def is_arrow(self) -> bool:
        """Whether the events of ``pieces`` are arrays, for ``write_arrow``; else texts, for ``write_many``."""
        return self._event is not None

    def pieces(self) -> Iterator[tuple[Any, Any]]:
        """Some rows at a time: events and keys. ``done`` counts the rows of the pieces before.

        Raises InvalidArgumentError, with the rows before in ``written_before``: a null event, or a value without a form in
        JSON.
        """
        step = _ARROW_ROWS if self.is_arrow else _JSON_ROWS
        for batch in self._batches:
            for start in range(0, batch.num_rows, step):
                part = batch.slice(start, step)
                yield self._piece(part)
                self.done += part.num_rows

    def _piece(self, part: pa.RecordBatch) -> tuple[Any, Any]:
        try:
            keys = None if self._key is None else self._text(part.column(self._key))
            if self._event is None:
                rows = [json.dumps(row, default=_json_value, allow_nan=False) for row in part.to_pylist()]
                return rows, None if keys is None else keys.to_pylist()
        except (ValueError, TypeError, LookupError, OverflowError, NotImplementedError, RecursionError) as error:
            raise InvalidArgumentError(f"a row cannot be written: {error}", written_before=self.done) from error
        events = self._plain(part.column(self._event))
        if events.null_count:
            raise InvalidArgumentError(
                "events contain nulls; filter or fill them first", nulls=events.null_count, written_before=self.done
            )
        return events, keys

    def _text(self, keys: pa.Array) -> pa.Array:
        return keys if str(keys.type) == "string" else self._plain(keys).cast(self._arrow.string())

    def _plain(self, array: pa.Array) -> pa.Array:
        """The array without the layout of views, which not every function of Arrow takes."""
        kinds = {"string_view": self._arrow.large_string(), "binary_view": self._arrow.large_binary()}
        found = kinds.get(str(array.type))
        return array if found is None else array.cast(found)


def _json_value(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
