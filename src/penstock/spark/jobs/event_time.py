"""The time of an event from a field of its JSON. Arrow parses a whole batch; if that fails, events are parsed singly."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

TIMESTAMP = pa.timestamp("us", tz="UTC")
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1}
"""Units of a time that is a number, in microseconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROS_MIN, MICROS_END = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The years 1 to 9999. A time outside has a wrong unit and cannot be a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """The field ``a.b`` of a JSON object that has the event's time: ISO 8601 text, or a number in ``unit``.

    A text without a zone is UTC. Raises InvalidArgumentError if the unit or the field is invalid.
    """

    field: str
    unit: str = "ms"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidArgumentError("the unit of a time field must be s, ms or us", unit=self.unit)
        if not all(self.field.split(".")):
            raise InvalidArgumentError("the time field must be a name, or names joined by dots", field=repr(self.field))

    def times(self, events: pa.Array) -> pa.Array:
        """The time of each event in microseconds; null if it is missing or cannot be parsed."""
        try:
            found = self._all(events)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            found = None
        return self._each(events) if found is None else found

    def _all(self, events: pa.Array) -> pa.Array | None:
        """The times of all events, parsed together. None if some event has no time or one of another kind."""
        kind = self._kind(events)
        if kind is None:
            return None
        path = self.field.split(".")
        schema = kind
        for name in reversed(path):
            schema = pa.struct([pa.field(name, schema)])
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(events)], events), b"\n")
        data = joined.buffers()[2]
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1024, data.size + 1)),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(list(schema)), newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
        if len(table) != len(events):
            return None  # some event is not exactly one object
        values = table.column(path[0]).combine_chunks()
        for name in path[1:]:
            values = pc.struct_field(values, name)
        return self._timed(values)

    def _kind(self, events: pa.Array) -> pa.DataType | None:
        for event in events.slice(0, 1):
            value = self._value(event.as_py())
            if isinstance(value, bool):
                return None
            return {int: pa.int64(), float: pa.float64(), str: pa.string()}.get(type(value))
        return None

    def _timed(self, values: pa.Array) -> pa.Array | None:
        if pa.types.is_string(values.type):
            first = next((item.as_py() for item in values if item.is_valid), "")
            zoned = first.endswith("Z") or "+" in first[10:] or "-" in first[10:]
            return values.cast(pa.timestamp("us", tz="UTC" if zoned else None)).cast(TIMESTAMP)
        micros = pc.multiply_checked(values, UNITS[self.unit])
        if pa.types.is_floating(micros.type):
            micros = pc.floor(micros).cast(pa.int64())
        least, most = pc.min_max(micros).as_py().values()
        if least is not None and (least < MICROS_MIN or most >= MICROS_END):
            return None
        return micros.cast(TIMESTAMP)

    def _each(self, events: pa.Array) -> pa.Array:
        return pa.array([self._micros(event) for event in events.to_pylist()], type=pa.int64()).cast(TIMESTAMP)

    def _micros(self, event: bytes) -> int | None:
        value = self._value(event)
        try:
            if isinstance(value, str):
                found = datetime.fromisoformat(value)
                moment = found if found.tzinfo else found.replace(tzinfo=UTC)
                micros = (moment - _EPOCH) // timedelta(microseconds=1)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                micros = int(value * UNITS[self.unit] // 1)
            else:
                return None
        except (ValueError, OverflowError):
            return None
        return micros if MICROS_MIN <= micros < MICROS_END else None

    def _value(self, event: bytes) -> Any:
        try:
            value = json.loads(event)
        except (ValueError, RecursionError):
            return None
        for name in self.field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value
