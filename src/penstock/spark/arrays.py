"""Convert between numpy and Arrow without loading pandas.

On the first call, ``pa.array``, ``to_numpy``, ``pa.scalar`` and other conversions in Arrow load pandas to check for its
types. That costs half a second in each of Spark's processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def integers(values: np.ndarray[Any, Any]) -> pa.Array:
    """Integers as a column of int64. Shares the memory of the array if that is int64 already."""
    return pa.Array.from_buffers(
        pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values, dtype=np.int64))]
    )


def numbers(column: pa.Array, absent: int = 0) -> np.ndarray[Any, Any]:
    """A column of integers as an array, with ``absent`` in place of null. Shares the column's memory if it has no null."""
    kind = f"i{column.type.bit_width // 8}"
    if not len(column):
        return np.zeros(0, dtype=kind)
    valid, data = column.buffers()
    window = slice(column.offset, column.offset + len(column))
    found: np.ndarray[Any, Any] = np.frombuffer(data, dtype=kind)[window]
    if not column.null_count:
        return found
    there = np.unpackbits(np.frombuffer(valid, dtype=np.uint8), bitorder="little")[window]
    return np.where(there, found, absent)


def repeated(text: str, count: int) -> pa.Array:
    """A column that repeats one text."""
    data = text.encode()
    places = np.arange(count + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(places), pa.py_buffer(data * count)])


def moment(time_us: int | None) -> pa.Scalar:
    """A time in UTC as a scalar of Arrow; None: null. Arrow's own way, ``pa.scalar``, loads pandas."""
    kind = pa.timestamp("us", "UTC")
    if time_us is None:
        return pa.nulls(1, kind)[0]
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.array([time_us], dtype=np.int64))])[0]


NO_BYTES = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.zeros(2, dtype=np.int32)), pa.py_buffer(b"")])[
    0
]
"""An empty value, as a scalar of Arrow."""


def blobs(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """A column of bytes, of one of Arrow's variable-length types."""
    plain = [value or b"" for value in values]
    return pa.Array.from_buffers(
        kind,
        len(values),
        [validity(values), _places([len(value) for value in plain], kind), pa.py_buffer(b"".join(plain))],
    )


def texts(values: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """A column of text. Raises UnicodeEncodeError."""
    return blobs([None if value is None else value.encode() for value in values], kind)


def lists(lengths: Sequence[int | None], items: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of lists of these lengths, which take the items in order. None: no list."""
    places = _places([length or 0 for length in lengths], kind)
    return pa.Array.from_buffers(kind, len(lengths), [validity(lengths), places], children=[items])


def validity(values: Sequence[object]) -> pa.Buffer | None:
    """The buffer that marks which values are not None; None if all are."""
    there = np.array([value is not None for value in values], dtype=bool)
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _places(lengths: Sequence[int], kind: pa.DataType) -> pa.Buffer:
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
    ends = np.cumsum(np.array([0, *lengths], dtype=np.int64))
    return pa.py_buffer(ends if wide else ends.astype(np.int32))
