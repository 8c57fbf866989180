"""Between numpy and Arrow: the same values as Arrow's own ways, and no pandas."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.arrays import NO_BYTES, integers, moment, numbers, repeated

NUMBERS = st.lists(st.none() | st.integers(-(1 << 31), (1 << 31) - 1), max_size=40)

READS_AND_FRAMES = """
import sys
import numpy as np
import pyarrow as pa
from penstock.core.streams.routing import Router
from penstock.model.segments import even_ranges
from penstock.spark.writing.frames import Sorter, inline_rows, rows_inline
from penstock.spark.reading.scan import Shape, Window, event_places
from penstock.model.names import StreamName

def column(*values, kind):
    places = np.cumsum([0, *map(len, values)]).astype(np.int32)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(places), pa.py_buffer(b"".join(values))])

rows = pa.record_batch({"event": column(b"one", b"two", kind=pa.binary()), "key": column(b"a", b"b", kind=pa.string())})
parts = [
    part
    for events, keys in rows_inline(inline_rows([rows]))
    for part in Sorter(even_ranges(2), turn=0).sort(events, keys)
]
fields = [("event", pa.binary()), ("scope", pa.string()), ("segment_id", pa.int64()), ("offset", pa.int64())]
shape = Shape(pa.schema(fields), StreamName("s", "t"), 10)
read = []
for part in parts:
    places = event_places(bytes(part.data))
    read += [batch.column("event").to_pylist() for batch in shape.batches(Window(0, 0, part.data, places))]
assert sorted(event for batch in read for event in batch) == [b"one", b"two"]
print("pandas" in sys.modules)
"""


@settings(deadline=None)
@given(values=NUMBERS, skip=st.integers(0, 5), absent=st.integers(-5, 5), wide=st.booleans())
def test_numbers_of_a_column_are_its_values(values: list[int | None], skip: int, absent: int, wide: bool) -> None:
    column = pa.array(values, pa.int64() if wide else pa.int32()).slice(min(skip, len(values)))
    assert numbers(column, absent).tolist() == [absent if item is None else item for item in column.to_pylist()]


@settings(deadline=None)
@given(values=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20), step=st.integers(1, 3))
def test_integers_are_a_column_of_the_values(values: list[int], step: int) -> None:
    found = integers(np.array(values, dtype=np.int64)[::step])
    found.validate(full=True)
    assert found.equals(pa.array(values[::step], pa.int64()))


@settings(deadline=None)
@given(text=st.text(max_size=5), count=st.integers(0, 9))
def test_a_repeated_text_is_a_column_of_it(text: str, count: int) -> None:
    found = repeated(text, count)
    found.validate(full=True)
    assert found.equals(pa.array([text] * count, pa.string()))
    assert NO_BYTES.equals(pa.scalar(b"", pa.binary()))


@given(time_us=st.none() | st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_moment_is_the_time(time_us: int | None) -> None:
    assert moment(time_us).equals(pa.scalar(time_us, pa.timestamp("us", "UTC")))


def test_reading_and_framing_load_no_pandas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS_AND_FRAMES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["False"], done.stderr
