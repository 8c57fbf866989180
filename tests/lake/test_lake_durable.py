"""What a power failure may not take back: commits whose cut is published, deletions, and the directories of new tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lake_world import DEFINITION, SCHEMA, STREAM, address_of, cut_at, rows_of, table_of, written

from penstock.model.cuts import StreamCut
from penstock.spark.jobs.lake.job import LakeRequest, _Run
from penstock.spark.jobs.table_files import TableDirectory
from penstock.spark.lake.port import Change, CommittedTable, TableState
from penstock.spark.lake.upkeep import compact, erase


class Died(Exception):
    """The process ends here."""


class Syncs:
    """Files and directories that were synced. ``kills``: the first sync of a file that is no data file ends the process."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.kills = False

    def __call__(self, handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if self.kills and path.is_file() and not path.name.startswith("penstock-"):
            raise Died
        self.paths.append(path)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    found = Syncs()
    monkeypatch.setattr(os, "fsync", found)
    return found


def filled(table: CommittedTable, commits: int = 3) -> TableState:
    state = table.create(DEFINITION, SCHEMA, cut_at(0))
    for number in range(commits):
        state = table.commit(
            state, Change(cut=cut_at(10 * number + 10), added=written(table, state, rows_of([number])))
        )
    return state


def files_in(table: CommittedTable) -> set[Path]:
    directory = table.place.directory
    assert directory is not None
    return {path for path in directory.rglob("*") if path.is_file()}


@contextmanager
def ends(syncs: Syncs) -> Iterator[None]:
    syncs.kills = True
    with pytest.raises(Died):
        yield
    syncs.kills = False
    syncs.paths.clear()


def test_a_commit_whose_process_died_is_durable_and_complete_once_it_is_settled(
    kind: str, syncs: Syncs, tmp_path: Path
) -> None:
    table = table_of(kind, tmp_path)
    state = filled(table)
    before = files_in(table)
    with ends(syncs):
        compact(table, target_bytes=1 << 20)
    again = table_of(kind, tmp_path)
    now = again.state()
    assert now is not None
    assert now.sequence == state.sequence + 1
    new = {path for path in files_in(again) - before if not path.name.startswith("penstock-")}
    assert new
    again.settle()
    assert new <= set(syncs.paths)
    assert {path.parent for path in new} <= set(syncs.paths)
    if kind == "parquet":  # Readers of Parquet list the directory.
        place = again.place.directory
        assert place is not None
        assert {str(path.relative_to(place)) for path in place.rglob("*.parquet")} == {f.path for f in again.files()}
    assert sorted(again.read().column("n").to_pylist()) == [0, 1, 2]
    again.settle()
    assert again.state() == now


def test_a_deletion_is_durable(kind: str, syncs: Syncs, tmp_path: Path) -> None:
    table = table_of(kind, tmp_path)
    filled(table)
    before = files_in(table)
    erase(table, "e-1", {0: [10]})
    deleted = [path for path in before - files_in(table) if path.name.startswith("penstock-")]
    assert deleted
    # Later than the file that replaced it was written to the same directory.
    last = {path: at for at, path in enumerate(syncs.paths)}
    written_at = max(at for path, at in last.items() if path.name.startswith("penstock-"))
    assert all(last[path.parent] > written_at + 1 for path in deleted)


def test_the_directories_of_a_new_table_are_durable(kind: str, syncs: Syncs, tmp_path: Path) -> None:
    table = (
        table_of(kind, tmp_path, name="one") if kind == "iceberg" else table_of(kind, tmp_path, name="one/two/three")
    )
    table.create(DEFINITION, SCHEMA, cut_at(0))
    directory = table.place.directory
    assert directory is not None
    made = [path for path in (directory, *directory.parents) if path.is_relative_to(tmp_path) and path != tmp_path]
    assert {path.parent for path in made} <= set(syncs.paths)


def test_a_version_of_a_table_of_keys_is_durable_before_the_next_run_reads_its_cut(
    syncs: Syncs, tmp_path: Path
) -> None:
    with TableDirectory(tmp_path / "t").held():
        assert {tmp_path, tmp_path / "t", tmp_path / "t" / "versions"} <= set(syncs.paths)


def test_the_cut_of_an_earlier_run_is_published_only_when_its_commit_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = LakeRequest(
        read={"controller": "store:9090", "stream": str(STREAM)}, address=address_of("parquet", tmp_path)
    )
    run = _Run(None, request.checked(), None)  # type: ignore[arg-type]
    states = [TableState(sequence=n, cut=cut_at(n), definition=run._definition.as_json()) for n in (1, 2)]
    done: list[Any] = []
    table: Any = SimpleNamespace(state=lambda: states[0], settle=lambda: done.append("settled"))
    run._table = table

    def ask(_: Any) -> Any:
        cut = StreamCut.from_text(states[0].cut)
        return cut, cut, 0

    monkeypatch.setattr(run, "_ask", ask)
    monkeypatch.setattr(run, "_typed", lambda *_: (None, None))
    monkeypatch.setattr(run, "_publish", done.append)
    cuts = [StreamCut.from_text(state.cut) for state in states]
    run.step(lambda _: None, dry_run=True)
    assert done == []
    for _ in range(2):
        run.step(lambda _: None)
    assert done == ["settled", cuts[0], cuts[0]]
    del states[0], done[:]  # another run has committed
    run.step(lambda _: None)
    assert done == ["settled", cuts[1]]
