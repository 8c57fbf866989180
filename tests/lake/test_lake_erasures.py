"""An erasure in the tables of one stream: what one of them cannot do does not stop the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lake_world import DEFINITION, SCHEMA, STREAM, address_of, cut_at, rows_of, table_of, written

from penstock.model.segments import SegmentId
from penstock.spark.jobs import erase_tables
from penstock.spark.jobs.erase_tables import TableSettings, erase_in_tables
from penstock.spark.lake.port import Change
from penstock.spark.lake.upkeep import run_here


def test_a_catalog_that_does_not_answer_keeps_no_rows_in_the_other_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of("parquet", tmp_path)
    state = table.create(DEFINITION, SCHEMA, cut_at(0))
    table.commit(state, Change(cut=cut_at(30), added=written(table, state, rows_of(range(3)))))
    registered = ["iceberg plant.turbine", address_of("parquet", tmp_path).registered()]
    answers: list[Any] = [{SegmentId(0): [10]}, registered, None]
    asked: list[Any] = []

    def ask(call: Any) -> Any:
        asked.append(call)
        return answers.pop(0)

    server = SimpleNamespace(ask=ask)
    monkeypatch.setattr(erase_tables, "link", lambda *_: SimpleNamespace(served=lambda: server))
    monkeypatch.setattr(erase_tables, "on_spark", lambda _: run_here)
    away = {"type": "sql", "uri": f"sqlite:///{tmp_path}/absent/catalog.db", "warehouse": str(tmp_path)}
    settings = TableSettings(storage={}, catalog=away)
    found = erase_in_tables(None, STREAM, "request-17", controller="store:9090", settings=settings)
    assert [(item.state, item.rows) for item in found] == [("pending", 0), ("done", 1)]
    assert "unable to open database file" in found[0].why
    assert "\n" not in found[0].why
    assert "unexpected error" in caplog.text
    assert table.read().column("n").to_pylist() == [0, 2]
    # The store is asked to note the table that is done, and no other.
    assert asked[-1].args == ("request-17", registered[1], 1)
    assert not answers
