"""What the job does around Spark: how it reads, and what a merge of files may not stop."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from lake_world import DEFINITION, SCHEMA, STREAM, address_of, cut_at, rows_of, written

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, UnsupportedError
from penstock.spark.jobs.lake.job import LakeRequest, _Run, follow_with_table
from penstock.spark.jobs.lake.task import BAD
from penstock.spark.lake.port import TableMovedError
from penstock.spark.options import parse_read


class Reading:
    """Stands for ``spark.read``, and keeps the options."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}
        self.read = self

    def format(self, _: str) -> Reading:
        return self

    def options(self, **given: str) -> Reading:
        self.given = given
        return self

    def load(self) -> None:
        """Nothing is read."""


def run_of(root: Path, spark: Any = None, **read: str) -> _Run:
    options = {"controller": "store:9090", "stream": str(STREAM), **read}
    return _Run(spark, LakeRequest(read=options, address=address_of("parquet", root)).checked(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["start_timestamp", "endTimestamp", "start_stream_cut"])
def test_a_start_or_end_in_the_options_is_resolved_once(name: str, tmp_path: Path) -> None:
    value = "earliest" if "cut" in name else "2026-05-01T12:00:00Z"
    spark = Reading()
    start, end = (StreamCut.from_text(cut_at(offset)) for offset in (0, 10))
    run_of(tmp_path, spark, **{name: value})._read(start, end)
    options = parse_read(spark.given)
    assert (options.start, options.end) == (start, end)


@pytest.mark.parametrize("partition", [None, "hour"])
def test_a_run_that_fails_deletes_what_its_tasks_have_written(kind: str, partition: str | None, tmp_path: Path) -> None:
    options = {"controller": "store:9090", "stream": str(STREAM)}
    request = LakeRequest(read=options, address=address_of(kind, tmp_path), partition=partition)
    run = _Run(None, request.checked(), None)  # type: ignore[arg-type]
    table = run._table
    state = table.create(replace(DEFINITION, partition=partition), SCHEMA, cut_at(0))
    kept = written(table, state, rows_of(range(3)), partition)  # of another run, which may commit them

    class Rows:
        """Two tasks, of which the second finds an event that does not fit."""

        def mapInArrow(self, task: Any, _: str) -> Rows:
            self.task = task
            return self

        def collect(self) -> None:
            for bad in (False, True):
                rows = rows_of(range(3, 9)).append_column(BAD, pa.array([bad] * 6))
                for batch in rows.to_batches():
                    list(self.task(iter([batch])))
                assert len(table.place.paths(table.data_prefix)) > len(kept)

    with pytest.raises(InvalidArgumentError, match="does not fit"):
        run._write(Rows(), SCHEMA, state)
    assert {path for path in table.place.paths() if path.endswith(".parquet")} == {file.path for file in kept}


def test_rows_that_another_writer_marked_as_deleted_stop_no_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path)

    def files() -> Any:
        raise UnsupportedError("the table has rows that another writer marked as deleted")

    run._table = SimpleNamespace(files=files)  # type: ignore[assignment]
    assert run._compact() == 0
    assert "not merged" in caplog.text


def test_following_repeats_a_step_that_lost_to_another_commit_and_stops_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, steps, seen = threading.Event(), [0], []

    def step(run: _Run, on_progress: Any) -> Any:
        steps[0] += 1
        if steps[0] % 3:
            raise TableMovedError("another commit came first")
        if len(seen) == 3:
            stop.set()
        return SimpleNamespace(events=1)

    monkeypatch.setattr(_Run, "step", step)
    request = run_of(tmp_path)._request

    def follow() -> None:
        follow_with_table(None, request, every_s=0, on_commit=seen.append, stop=stop)

    follow()
    assert len(seen) == 4
    monkeypatch.setattr(_Run, "step", lambda run, on_progress: (_ for _ in ()).throw(TableMovedError("always")))
    stop.clear()
    with pytest.raises(TableMovedError):
        follow()
