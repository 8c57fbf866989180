"""Filters that Spark pushes into a batch read: the same rows from fewer bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from spark_driver import SCHEMA
from spark_world import World, keyed, open_here

from penstock.model.segments import SegmentId
from penstock.spark.options import parse_read
from penstock.spark.reading.plan import Block, Piece
from penstock.spark.reading.pruning import wanted_of
from penstock.spark.source import BatchReader, FilteringReader, PenstockSource

TESTS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,
    GreaterThanOrEqual: lambda value, other: value >= other,
    LessThan: lambda value, other: value < other,
    LessThanOrEqual: lambda value, other: value <= other,
    In: lambda value, others: value in others,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def passes(row: dict[str, Any], filters: Sequence[Filter]) -> bool:
    for item in filters:
        if isinstance(item, Not):
            if row["offset"] == item.child.value:
                return False
        elif isinstance(item, EqualNullSafe | IsNotNull):
            if row[item.attribute[0]] is None:
                return False
        else:
            value = row[item.attribute[0]]
            if value is None or not TESTS[type(item)](value, item.value):
                return False
    return True


@st.composite
def filters(draw: st.DrawFn) -> list[Filter]:
    found: list[Filter] = []
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(["segment_id", "offset", "append_time"]))
        values = {
            "segment_id": st.integers(0, 3),
            "offset": st.integers(-5, 130),
            "append_time": st.integers(0, 13_000).map(lambda us: EPOCH + timedelta(microseconds=us)),
        }[name]
        kind = draw(st.sampled_from([*TESTS, Not, IsNotNull]))
        if kind is In:
            found.append(In((name,), tuple(draw(st.lists(values, min_size=1, max_size=3)))))
        elif kind is Not:
            found.append(Not(EqualTo(("offset",), draw(st.integers(0, 120)))))
        elif kind is IsNotNull:
            found.append(IsNotNull((name,)))
        else:
            found.append(kind((name,), draw(values)))
    return found


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """Ten events of ten bytes each, in blocks and times of one to four events; some parts lie in no block."""
    cuts = draw(st.lists(st.integers(1, 9), max_size=5, unique=True).map(sorted))
    bounds = [0, *(cut * 10 for cut in cuts), 100]
    runs = list(zip(bounds, bounds[1:], strict=False))
    blocks = tuple(Block(low + 20, high + 20, 0) for low, high in runs if draw(st.booleans()))
    times = draw(st.lists(st.none() | st.integers(0, 12), min_size=len(runs), max_size=len(runs)))
    return Piece(
        segment=SegmentId(draw(st.integers(0, 3))),
        start=20,
        end=120,
        location="/chunk" if blocks else None,
        blocks=blocks,
        times=tuple((high + 20, time) for (_, high), time in zip(runs, times, strict=True)),
    )


def rows_of(piece: Piece | None) -> Iterator[dict[str, Any]]:
    if piece is None:
        return
    for offset in range(piece.start, piece.end, 10):
        time = next(time for end, time in piece.times if offset < end)
        at = None if time is None else EPOCH + timedelta(milliseconds=time)
        yield {"segment_id": piece.segment, "offset": offset, "append_time": at}


@given(pieces(), filters())
def test_no_row_that_passes_is_left_out_and_pieces_end_at_blocks(piece: Piece, given: list[Filter]) -> None:
    found = wanted_of(given).trimmed(piece)
    expected = [row for row in rows_of(piece) if passes(row, given)]
    assert [row for row in rows_of(found) if passes(row, given)] == expected
    if found is not None:
        starts = {block.start for block in piece.blocks}
        assert found.start in {piece.start, *starts}
        assert found.end in {piece.end, *starts}
        assert set(found.blocks) <= set(piece.blocks)
        assert all(found.start <= block.start and block.end <= found.end for block in found.blocks)


def test_a_value_of_an_unknown_type_leaves_nothing_out() -> None:
    piece = Piece(segment=SegmentId(0), start=0, end=10, times=((10, 5),))
    for value in ("5", True, None, 2.5, datetime(2020, 1, 1)):
        assert wanted_of([EqualTo(("offset",), value), EqualTo(("append_time",), value)]).trimmed(piece) == piece
    assert wanted_of([EqualTo(("event", "x"), 5), EqualTo(("x",), 5)]).trimmed(piece) == piece


def test_a_read_with_filters_plans_fewer_bytes(world_here: World, data: Path) -> None:
    stream = world_here.create("s", 2)
    world_here.write(stream, keyed(0, 20_000))
    world_here.wait_tiered(stream)

    def read(*given: Filter) -> tuple[int, set[tuple[int, int]]]:
        options = parse_read({"controller": str(data), "path": str(stream)})
        one = FilteringReader(open_here, options, SCHEMA)
        assert one.pushFilters(list(given)) == list(given)
        shares = one.partitions()
        size = sum(piece.size_bytes for share in shares for piece in share.value.pieces)
        rows = [row for share in shares for batch in one.read(share) for row in batch.to_pylist()]
        return size, {(row["segment_id"], row["offset"]) for row in rows if passes(row, given)}

    whole, rows = read()
    assert len(rows) == 20_000
    end = max(offset for segment, offset in rows if segment == 1)
    tail = [EqualTo(("segment_id",), 1), GreaterThan(("offset",), end - 4000)]
    size, found = read(*tail)
    assert found == {row for row in rows if row[0] == 1 and row[1] > end - 4000}
    # A block is a few KiB, or a whole chunk of 32 where the store was slow: at most two hold the rows.
    assert size < whole / 4
    assert read(EqualTo(("segment_id",), 7)) == (0, set())


def test_only_the_process_that_pushes_filters_has_a_reader_that_takes_them(
    address: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "pyspark.sql.worker.data_source_pushdown_filters"
    source = PenstockSource({"controller": address, "path": "s/s"})
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert type(source.reader(SCHEMA)) is BatchReader
    monkeypatch.setitem(sys.modules, name, sys)
    assert type(source.reader(SCHEMA)) is FilteringReader


@pytest.mark.slow
def test_spark_reads_the_same_rows_from_fewer_bytes(address: str, world: World, spark: Any) -> None:
    stream = world.create("filtered", 2)
    world.write(stream, keyed(0, 20_000))
    world.wait_tiered(stream)
    source = spark.read.format("penstock").option("controller", address)
    source = source.option("columns", "event, segment_id, offset, append_time")
    frame = source.load(str(stream))
    late = frame.agg({"append_time": "max"}).first()[0]
    conditions = [
        "segment_id = 1",
        "segment_id in (0) and offset >= 100000 and offset < 110000",
        "offset < 4000",
        f"append_time >= timestamp'{late}'",
        "append_time < timestamp'2001-01-01 00:00:00 UTC'",
        "segment_id <> 1 or offset = 0",
    ]
    plain = {text: sorted(map(tuple, source.load(str(stream)).where(text).collect())) for text in conditions}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for text in conditions:
            assert sorted(map(tuple, source.load(str(stream)).where(text).collect())) == plain[text], text
        assert source.load(str(stream)).count() == 20_000
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
