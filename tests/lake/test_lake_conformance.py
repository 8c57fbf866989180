"""What every format of a committed table does, whatever its library: the laws of ``lake.port.CommittedTable``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_world import (
    DEFINITION,
    SCHEMA,
    address_of,
    cut_at,
    offset_of,
    rows_of,
    table_of,
    written,
)

from penstock.model.errors import AlreadyExistsError, ConflictError
from penstock.spark.lake import rows as lake_rows
from penstock.spark.lake.port import Change, CommittedTable, TableState
from penstock.spark.lake.upkeep import compact, erase

CANARY = "canary-7f3a"


def numbers(table: CommittedTable) -> list[int]:
    """Numbers of all rows, as DuckDB reads what the format's own library offers."""
    rows = table.read()
    return [row[0] for row in duckdb.sql("select n from rows order by n").fetchall()] if rows.num_rows else []


def begun(table: CommittedTable, *, partition: str | None = None) -> TableState:
    return table.create(replace(DEFINITION, partition=partition), SCHEMA, cut_at(0))


def added(
    table: CommittedTable, state: TableState, start: int, end: int, *, partition: str | None = None, mark: str = "plain"
) -> TableState:
    files = written(table, state, rows_of(range(start, end), mark), partition)
    return table.commit(state, Change(cut=cut_at(10 * end), added=files))


def found_in(place: Path, text: bytes) -> list[str]:
    return [str(path) for path in place.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_a_commit_moves_rows_and_cut_together_and_a_new_handle_sees_both(kind: str, tmp_path: Path) -> None:
    table = table_of(kind, tmp_path)
    assert table.state() is None
    state = begun(table)
    assert (state, numbers(table), offset_of(state)) == (table.state(), [], 0)
    for end in (3, 7, 8):
        state = added(table, state, offset_of(state) // 10, end)
        other = table_of(kind, tmp_path)
        assert other.state() == state
        assert (numbers(other), offset_of(state)) == (list(range(end)), 10 * end)
    assert state.definition == DEFINITION.as_json()
    assert sum(file.rows for file in table.files()) == 8


def test_the_second_of_two_runs_loses_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    table, other = table_of(kind, tmp_path), table_of(kind, tmp_path)
    base = begun(table)
    late = written(other, base, rows_of(range(5)))
    state = added(table, base, 0, 3)
    with pytest.raises(ConflictError, match="another run has committed"):
        other.commit(base, Change(cut=cut_at(50), added=late))
    assert (other.state(), numbers(other)) == (state, [0, 1, 2])
    with pytest.raises(ConflictError):
        begun(other)
    gone = written(table, state, rows_of([9]))
    with pytest.raises(ConflictError, match="replaced files"):
        table.commit(state, Change(cut=state.cut, removed=gone))
    assert numbers(table) == [0, 1, 2]


def test_many_commits_and_many_segments_keep_the_exact_cut(kind: str, tmp_path: Path) -> None:
    from penstock.model.cuts import StreamCut
    from penstock.model.segments import make_segment_id

    table = table_of(kind, tmp_path)
    state = begun(table)
    for turn in range(12):  # over a checkpoint of Delta's log
        positions = {make_segment_id(number, turn): 7 * number - 1 for number in range(12 - turn)}
        cut = StreamCut(StreamCut.from_text(state.cut).stream, positions).to_text()
        state = table.commit(state, Change(cut=cut))
        assert table_of(kind, tmp_path).state() == TableState(
            sequence=turn + 2, cut=cut, definition=DEFINITION.as_json()
        )


@pytest.mark.parametrize("partition", [None, "day", "hour"])
def test_compaction_keeps_rows_and_cut(kind: str, partition: str | None, tmp_path: Path) -> None:
    table = table_of(kind, tmp_path)
    state = begun(table, partition=partition)
    for start in range(0, 9, 3):
        state = added(table, state, start, start + 3, partition=partition)
    before = table.read().select(SCHEMA.names).sort_by("n")
    count = len(table.files())
    done = compact(table, target_bytes=1 << 20)
    assert (done.state.cut, done.state.sequence) == (state.cut, state.sequence + 1)
    assert table.read().select(SCHEMA.names).sort_by("n").equals(before)
    expected = {None: 1, "day": 2, "hour": 5}[partition]
    assert (len(table.files()), done.removed - done.added) == (expected, count - expected)
    assert compact(table, target_bytes=1 << 20).removed == 0
    table.forget()
    assert numbers(table) == list(range(9))
    added(table, done.state, 9, 12, partition=partition)
    assert numbers(table) == list(range(12))


@given(
    commits=st.lists(st.integers(1, 60), min_size=2, max_size=6),
    file_bytes=st.integers(1, 10_000),
    target_bytes=st.integers(1_000, 40_000),
)
@settings(max_examples=8, deadline=None)
def test_a_second_compaction_finds_fewer_files_or_nothing(
    commits: list[int], file_bytes: int, target_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as root:
        # Rows that compress well: files that are full in memory are small on disk.
        patched.setattr(lake_rows, "_FILE_BYTES", file_bytes)
        patched.setattr(lake_rows, "_GROUP_BYTES", 1)
        table = table_of("parquet", Path(root))
        state, end = begun(table), 0
        for count in commits:
            state, end = added(table, state, end, end + count), end + count
        while (done := compact(table, target_bytes=target_bytes)).removed:
            assert done.added < done.removed
        assert numbers(table) == list(range(end))


def test_an_erasure_reaches_all_files_and_versions_and_what_a_dead_run_has_left(kind: str, tmp_path: Path) -> None:
    table = table_of(kind, tmp_path)
    state = begun(table, partition="day")
    state = added(table, state, 0, 3, partition="day")
    state = added(table, state, 3, 5, partition="day", mark=CANARY)
    state = added(table, state, 5, 9, partition="day")
    state = compact(table, target_bytes=1 << 20).state
    dead = written(table, state, rows_of(range(3, 5), CANARY), "day")
    assert found_in(tmp_path, CANARY.encode()) or found_in(tmp_path, CANARY[:6].encode())
    done = erase(table, "e-1", {0: [30, 40], 7: [0]})
    assert (done.rows, numbers(table)) == (2, [0, 1, 2, 5, 6, 7, 8])
    # Parquet compresses its pages: so also read every file that is left, of any version.
    for path in tmp_path.rglob("*.parquet"):
        if "_delta_log" not in path.parts:
            assert CANARY not in str(pq.read_table(str(path), partitioning=None).to_pydict())
    assert not found_in(tmp_path, CANARY.encode())
    assert table.is_applied("e-1")
    assert not table.is_applied("e-2")
    assert erase(table, "e-1", {0: [0, 10]}).rows == 0
    with pytest.raises(ConflictError):
        table.commit(state, Change(cut=cut_at(90), added=dead))
    # What a run writes after the erasure is not taken for a leftover of one before.
    now = table.state()
    assert now is not None
    fresh = written(table, now, rows_of([9]), "day")
    table.forget()
    assert numbers(table) == [0, 1, 2, 5, 6, 7, 8]
    table.commit(now, Change(cut=cut_at(100), added=fresh))
    assert numbers(table) == [0, 1, 2, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("step", ["rewritten", "committed", "forgotten"])
def test_an_erasure_that_died_is_completed_by_the_next_run(
    kind: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(kind, tmp_path)
    state = added(table, begun(table), 0, 4)

    class Died(Exception):
        pass

    def die(*_: Any, **__: Any) -> Any:
        raise Died

    commits: list[Change] = []
    real = type(table).commit

    def counted(self: Any, base: TableState, change: Change) -> TableState:
        commits.append(change)
        if step == "forgotten" and len(commits) == 2:
            die()
        return real(self, base, change)

    with monkeypatch.context() as patched:
        patched.setattr(type(table), "commit", die if step == "rewritten" else counted)
        if step == "committed":
            patched.setattr(type(table), "forget", die)
        with pytest.raises(Died):
            erase(table, "e-1", {0: [10]})
    assert not table.is_applied("e-1")
    assert numbers(table) == ([0, 1, 2, 3] if step == "rewritten" else [0, 2, 3])
    erase(table_of(kind, tmp_path), "e-1", {0: [10]})
    assert numbers(table) == [0, 2, 3]
    named = {file.path for file in table.files()}
    assert {p for p in table.place.paths() if p.endswith(".parquet") and "_delta_log" not in p} == named
    now = table.state()
    assert now is not None
    assert now.cut == state.cut


def test_what_is_no_table_of_ours_is_refused(kind: str, tmp_path: Path) -> None:
    address = address_of(kind, tmp_path)
    match kind:
        case "delta":
            import deltalake

            deltalake.write_deltalake(address.target, rows_of(range(2)))
        case "iceberg":
            from penstock.spark.lake.iceberg import open_catalog

            catalog = open_catalog(address.catalog)
            catalog.create_namespace("lake")
            catalog.create_table(address.target, SCHEMA)
        case _:
            (tmp_path / "t").mkdir()
            pq.write_table(rows_of(range(2)), tmp_path / "t" / "file.parquet")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(AlreadyExistsError):
        table_of(kind, tmp_path).state()
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_polars_reads_the_table_with_its_own_reader(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other planner is a package of its own
    table = table_of(kind, tmp_path)
    state = begun(table, partition="day")
    added(table, state, 0, 40, partition="day")
    frame = _polars(kind, table, tmp_path)
    assert sorted(frame["n"].to_list()) == list(range(40))
    assert frame.schema["append_time"] == pl.Datetime("us", "UTC")


def _polars(kind: str, table: CommittedTable, root: Path) -> pl.DataFrame:
    match kind:
        case "delta":
            return pl.scan_delta(table.place.url).collect()
        case "iceberg":
            from penstock.spark.lake.iceberg import open_catalog

            address = address_of(kind, root)
            return pl.scan_iceberg(open_catalog(address.catalog).load_table(address.target)).collect()
        case _:
            return pl.read_parquet(f"{table.place.url}/**/*.parquet")
