"""What one format of a committed table must survive that the others do not have: cleaned logs, expired snapshots, rollbacks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake.exceptions import CommitFailedError
from lake_world import DEFINITION, SCHEMA, address_of, cut_at, offset_of, rows_of, table_of, written
from pyiceberg.exceptions import CommitStateUnknownException

from penstock.model.errors import ConflictError, InvalidArgumentError, UnsupportedError
from penstock.spark.jobs.export.files import ExportDirectory
from penstock.spark.jobs.table_files import TableDirectory
from penstock.spark.lake.iceberg import open_catalog
from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.place import Place
from penstock.spark.lake.port import FORMATS, Change, CommittedTable, TableMovedError, TableState
from penstock.spark.lake.upkeep import erase


def filled(table: CommittedTable, commits: int = 3) -> TableState:
    state = table.create(DEFINITION, SCHEMA, cut_at(0))
    for number in range(commits):
        files = written(table, state, rows_of([number]))
        state = table.commit(state, Change(cut=cut_at(10 * number + 10), added=files))
    return state


def test_a_directory_that_deltas_library_cannot_read_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="as an escape"):
        open_table(TableAddress(format="delta", target=str(tmp_path / "a%20b" / "t")))
    assert not list(tmp_path.iterdir())
    for name in ("a b", "a#b", "a?b", "ä"):
        table = open_table(TableAddress(format="delta", target=str(tmp_path / name / "t")))
        state = table.create(DEFINITION, SCHEMA, cut_at(0))
        assert table.state() == state


def test_deltas_log_may_lose_its_old_entries(tmp_path: Path) -> None:
    table = table_of("delta", tmp_path)
    state = filled(table)
    path = str(tmp_path / "t")
    # Another writer commits, makes a checkpoint, and the log is cleaned up: only the checkpoint has our numbers.
    rows = deltalake.DeltaTable(path).to_pyarrow_table().slice(0, 0)
    deltalake.write_deltalake(path, rows, mode="append")
    deltalake.DeltaTable(path).create_checkpoint()
    for entry in sorted((tmp_path / "t" / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    assert table_of("delta", tmp_path).state() == state
    files = written(table, state, rows_of([3]))
    assert offset_of(table.commit(state, Change(cut=cut_at(40), added=files))) == 40


def test_a_delta_writer_between_two_commits_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of("delta", tmp_path)
    state = filled(table)
    files = written(table, state, rows_of([3]))
    real = type(table)._state_of  # type: ignore[attr-defined]
    raced: list[int] = []

    def racing(self: Any, opened: Any) -> TableState:
        found: TableState = real(self, opened)
        if len(raced) < 2:
            # Another writer commits after we have read the table, and before our commit.
            raced.append(1)
            deltalake.write_deltalake(str(tmp_path / "t"), rows_of([100 + len(raced)]), mode="append")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(type(table), "_state_of", racing)
        table.commit(state, Change(cut=cut_at(40), added=files))
    assert len(raced) == 2
    assert sorted(table.read().column("n").to_pylist()) == [0, 1, 2, 3, 101, 102]


def test_another_description_of_a_delta_table_is_a_typed_error(tmp_path: Path) -> None:
    table = table_of("delta", tmp_path)
    state = filled(table)
    plain = deltalake.DeltaTable(str(tmp_path / "t"))
    given = plain.metadata().description
    for text in ("turbines of the plant", "[1]", "{}"):
        plain.alter.set_table_description(text)
        with pytest.raises(ConflictError, match="description"):
            table.state()
    plain.alter.set_table_description(given)
    assert table.state() == state


def test_deltas_log_has_no_values_of_events(tmp_path: Path) -> None:
    table = table_of("delta", tmp_path)
    filled(table)
    text = "".join(path.read_text() for path in (tmp_path / "t" / "_delta_log").glob("*.json"))
    assert "plain-" not in text


def test_icebergs_snapshots_may_expire_and_a_rollback_takes_the_cut_back(tmp_path: Path) -> None:
    table = table_of("iceberg", tmp_path)
    state = filled(table)
    address = address_of("iceberg", tmp_path)
    plain = open_catalog(address.catalog).load_table(address.target)
    plain.append(rows_of([50]))
    plain.refresh()
    kept = plain.current_snapshot()
    assert kept is not None
    snapshots = [item.snapshot_id for item in plain.snapshots()]
    assert table_of("iceberg", tmp_path).state() == state
    plain.maintenance.expire_snapshots().by_ids([item for item in snapshots if item != kept.snapshot_id]).commit()
    assert table_of("iceberg", tmp_path).state() == state
    files = written(table, state, rows_of([3]))
    state = table.commit(state, Change(cut=cut_at(40), added=files))
    before = open_catalog(address.catalog).load_table(address.target).current_snapshot()
    assert before is not None
    table.commit(state, Change(cut=cut_at(50), added=written(table, state, rows_of([4]))))
    plain.refresh()
    with plain.manage_snapshots() as manage:
        manage.rollback_to_snapshot(before.snapshot_id)
    assert table_of("iceberg", tmp_path).state() == state
    state = table.commit(state, Change(cut=cut_at(50), added=written(table, state, rows_of([4]))))
    assert sorted(table.read().column("n").to_pylist()) == [0, 1, 2, 3, 4, 50]


def test_a_restore_of_delta_takes_the_cut_back(tmp_path: Path) -> None:
    table = table_of("delta", tmp_path)
    first = filled(table)
    plain = deltalake.DeltaTable(address_of("delta", tmp_path).target)
    at = plain.version()
    second = table.commit(first, Change(cut=cut_at(50), added=written(table, first, rows_of([3]))))
    plain.update_incremental()
    plain.restore(at)
    state = table.state()
    assert state is not None
    assert (state.cut, state.sequence) == (first.cut, second.sequence)
    # A run that has read from the old cut must not commit on top of it.
    with pytest.raises(TableMovedError):
        table.commit(second, Change(cut=cut_at(60), added=written(table, second, rows_of([4]))))
    # Other programs commit, and somebody restores what was restored.
    for _ in range(10):
        plain.update_incremental()
        plain.alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    assert table.state() == state
    plain.update_incremental()
    plain.restore(plain.version() - 1)
    assert table.state() == state
    again = table.commit(state, Change(cut=cut_at(50), added=written(table, state, rows_of([3]))))
    assert (again.cut, again.sequence) == (cut_at(50), second.sequence + 1)
    assert table.state() == again
    assert sorted(table.read().column("n").to_pylist()) == [0, 1, 2, 3]


def test_an_iceberg_tag_on_an_old_version_stops_an_erasure(tmp_path: Path) -> None:
    table = table_of("iceberg", tmp_path)
    state = filled(table)
    address = address_of("iceberg", tmp_path)
    plain = open_catalog(address.catalog).load_table(address.target)
    current = plain.current_snapshot()
    assert current is not None
    with plain.manage_snapshots() as manage:
        manage.create_tag(current.snapshot_id, "audit")
    with pytest.raises(ConflictError, match="branch or tag"):
        erase(table, "e", {0: [0]})
    assert not table.is_applied("e")
    plain.refresh()
    with plain.manage_snapshots() as manage:
        manage.remove_tag("audit")
    erase(table, "e", {0: [0]})
    assert table.is_applied("e")
    assert state.cut == cut_at(30)


def test_an_iceberg_commit_is_not_repeated_on_top_of_one_of_another_run(tmp_path: Path) -> None:
    one, two = table_of("iceberg", tmp_path), table_of("iceberg", tmp_path)
    state = filled(one, 1)
    files = written(two, state, rows_of([1]))
    real = two._state_of  # type: ignore[attr-defined]

    def racing(table: Any) -> TableState:
        found: TableState = real(table)
        two._state_of = real  # type: ignore[attr-defined]
        one.commit(state, Change(cut=cut_at(20), added=written(one, state, rows_of([1]))))
        return found

    two._state_of = racing  # type: ignore[attr-defined]
    with pytest.raises(ConflictError, match="another run has committed"):
        two.commit(state, Change(cut=cut_at(20), added=files))
    assert sorted(one.read().column("n").to_pylist()) == [0, 1]


def test_a_slow_parquet_run_cannot_reuse_the_number_of_a_deleted_commit(tmp_path: Path) -> None:
    slow, table = table_of("parquet", tmp_path), table_of("parquet", tmp_path)
    state = filled(table, 1)
    late = written(slow, state, rows_of([1]))
    now = state
    for number in range(1, 8):
        now = table.commit(now, Change(cut=cut_at(10 * number), added=written(table, now, rows_of([number]))))
    # It has checked its base long ago, and its number is free again.
    slow.state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(ConflictError):
        slow.commit(state, Change(cut=cut_at(20), added=late))
    assert table.state() == now
    del slow.state  # type: ignore[method-assign]
    assert slow.state() == now


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (TableAddress(format="orc", target="/x"), "format"),
        (TableAddress(format="delta", target="http://x/y"), "s3://"),
        (TableAddress(format="delta", target="/x", storage={"aws_region": "x"}), "object stores"),
        (TableAddress(format="delta", target="/x", catalog={"uri": "x"}), "catalog"),
        (TableAddress(format="iceberg", target="turbine", catalog={"type": "sql", "uri": "sqlite://"}), "NAMESPACE"),
    ],
)
def test_an_address_that_is_none_is_refused(address: TableAddress, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        open_table(address)


@pytest.mark.parametrize("directory", [ExportDirectory, TableDirectory])
def test_a_job_that_renames_directories_refuses_a_bucket_and_names_the_other_job(directory: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="spark lake"):
        directory(Path("s3://bucket/table"))


def test_a_store_without_conditional_writes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = Place(url="s3://bucket/x")
    monkeypatch.setattr(Place, "put_new", lambda *_: True)
    deleted: list[list[str]] = []
    monkeypatch.setattr(Place, "delete", lambda _, paths: deleted.append(list(paths)))
    with pytest.raises(UnsupportedError, match="conditional writes"):
        place.check_conditional()
    assert len(deleted) == 1


def test_a_slow_iceberg_run_cannot_commit_on_another_commit_of_the_same_number(tmp_path: Path) -> None:
    slow, other = table_of("iceberg", tmp_path), table_of("iceberg", tmp_path)
    address = address_of("iceberg", tmp_path)
    filled(slow, 1)
    plain = open_catalog(address.catalog).load_table(address.target)
    before = plain.current_snapshot()
    assert before is not None
    base = slow.state()
    assert base is not None
    base = slow.commit(base, Change(cut=cut_at(20), added=written(slow, base, rows_of([1]))))
    late = written(slow, base, rows_of([2]))
    plain.refresh()
    with plain.manage_snapshots() as manage:
        manage.rollback_to_snapshot(before.snapshot_id)
    state = other.state()
    assert state is not None
    state = other.commit(state, Change(cut=cut_at(30), added=written(other, state, rows_of([1, 2]))))
    assert state.sequence == base.sequence
    with pytest.raises(ConflictError, match="another run has committed"):
        slow.commit(base, Change(cut=cut_at(30), added=late))
    assert sorted(slow.read().column("n").to_pylist()) == [0, 1, 2]


def test_a_table_that_is_created_again_under_its_name_does_not_take_an_old_commit(tmp_path: Path) -> None:
    for kind in FORMATS:
        table = table_of(kind, tmp_path / kind)
        base = table.create(DEFINITION, SCHEMA, cut_at(0))
        if kind == "iceberg":
            address = address_of(kind, tmp_path / kind)
            open_catalog(address.catalog).drop_table(address.target)
        else:
            shutil.rmtree(tmp_path / kind / "t")
        table.create(DEFINITION, SCHEMA, cut_at(500))
        with pytest.raises(ConflictError, match="another run has committed"):
            table.commit(base, Change(cut=cut_at(10)))


def test_an_iceberg_table_that_is_created_again_elsewhere_has_its_files_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of("iceberg", tmp_path)
    filled(table)
    address = address_of("iceberg", tmp_path)
    catalog = open_catalog(address.catalog)
    catalog.drop_table(address.target)
    # Catalogs over HTTP choose a new location for each table.
    create = type(catalog).create_table_transaction
    elsewhere = str(tmp_path / "elsewhere")
    monkeypatch.setattr(
        type(catalog), "create_table_transaction", lambda *given, **named: create(*given, location=elsewhere, **named)
    )
    filled(table)
    assert table_of("iceberg", tmp_path).files() == table.files()
    assert table.place.url == elsewhere


@pytest.mark.parametrize("kind", FORMATS)
def test_a_commit_whose_answer_is_lost_is_made_once_and_is_no_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(kind, tmp_path)
    state = filled(table)
    owner, name, lost = {
        "parquet": (Place, "put_new", None),
        "delta": (deltalake.DeltaTable, "create_write_transaction", CommitFailedError("lost")),
        "iceberg": (type(table), "_send", CommitStateUnknownException("lost")),
    }[kind]
    real, calls = getattr(owner, name), []

    def answers_late(*given: Any, **named: Any) -> bool:
        found: bool = real(*given, **named)
        calls.append(1)
        if lost is not None:
            raise lost
        return found and False

    files = written(table, state, rows_of([3]))
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, answers_late)
        state = table.commit(state, Change(cut=cut_at(40), added=files))
    assert len(calls) == 1
    assert table_of(kind, tmp_path).state() == state
    assert sorted(table.read().column("n").to_pylist()) == [0, 1, 2, 3]
