"""The fleet job in a real session: files in, table and report out, each decision the planner's."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fleet_world import lines_of, read, table_of

from penstock.core.policies.levels import document_of, resolve, validate, with_value
from penstock.core.retention.settlement import settle
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DirectoryInUseError,
    InvalidArgumentError,
    VersionTooNewError,
)
from penstock.model.retention import EMPTY, INHERIT, EffectivePolicy
from penstock.spark.fleet import sources
from penstock.spark.fleet.changes import PolicyEdit, edit_of
from penstock.spark.fleet.layout import SCHEMA, VERSION_KEY
from penstock.spark.jobs.fleet import fleet, held, prepared
from penstock.spark.reasons import reason

pytestmark = pytest.mark.spark


@cache
def all_lines():
    return lines_of(1600, seed=5000)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fleet in four files: half as a table, half as lines, a part of these packed."""
    directory = tmp_path_factory.mktemp("facts")
    (directory / "deep").mkdir()
    pq.write_table(pa.Table.from_batches([table_of(all_lines()[:800])]), directory / "a.parquet", row_group_size=200)
    (directory / "b.jsonl").write_text("\n".join(all_lines()[800:1200]))
    (directory / "deep" / "c.jsonl").write_text("\n".join([*all_lines()[1200:1400], "", ""]) + "\n")
    with gzip.open(directory / "d.jsonl.gz", "wt") as packed:
        packed.write("\n".join(all_lines()[1400:]) + "\n")
    return directory


def after(policy: EffectivePolicy | None) -> EffectivePolicy:
    document = EMPTY if policy is None else document_of(policy)
    return resolve(validate(edit_with_age(document)), EMPTY, EMPTY)


def edit_with_age(document: Any) -> Any:
    return with_value(document, "retain.max_age_s", 1)


def same(row: dict[str, Any], facts: Any, now_ms: int) -> None:
    found = settle(facts, now_ms=now_ms)
    main, last = found.main, found.last

    def cut(given: Any) -> Any:
        return None if given is None else {item["segment"]: item["offset"] for item in given}

    assert row["rule"] == main.rule.word
    assert cut(row["candidate"]) == (None if main.candidate is None else dict(main.candidate))
    assert cut(row["truncate"]) == (None if found.truncate is None else dict(found.truncate))
    assert row["frees_bytes"] == found.frees_bytes
    assert row["delete_stream"] == last.deletes_stream
    assert row["drop"] == [item.subscriber for item in found.drops]
    assert row["writers"] == (last.writers.state.word if last.writers.exceeded else "open")
    for name, advances in (("expire", found.expirations), ("evict", found.evictions)):
        expected = [(item.subscriber, item.bytes, item.events, item.rule.word) for item in advances]
        assert [tuple(item.values()) for item in row[name]] == expected
    if not last.deletes_stream:
        assert row["gone_bytes"] == found.frees_bytes
        counts = [item.summary().events for item in found.decisions]
        assert row["events"] in (None if None in counts else sum(counts), None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_each_row_is_decided_as_the_loop_decides_it(spark: Any, facts: Path, tmp_path: Path) -> None:
    change = edit_of({"retain": {"max_age_s": 1}}, scopes=frozenset({"scope-1", "scope-4"}))
    report = fleet(spark, facts, change, out=tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "decisions").to_pylist()
    assert sorted(row["id"] for row in rows) == sorted(json.loads(line)["id"] for line in all_lines())
    found = {row["id"]: row for row in rows}
    refused = 0
    for text in all_lines():
        line = read(text)
        row = found[line.id]
        assert (row["scope"], row["name"], row["at_ms"], row["error"]) == (line.scope, line.name, line.now_ms, None)
        same(row["today"], line.facts, line.now_ms)
        changed = line.facts
        if change.reaches(line.scope):
            try:
                policy = after(line.facts.policy)
            except InvalidArgumentError:
                assert row["change"] is None
                assert "contradicts itself" in row["refused"]
                refused += 1
                continue
            changed = replace(line.facts, policy=policy)
        assert row["refused"] is None
        same(row["change"], changed, line.now_ms)
    check_sums(report, rows)
    assert sum(item["streams"] for item in report.refused) == refused > 0
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report.as_json()


def check_sums(report: Any, rows: list[dict[str, Any]]) -> None:
    """The report adds up to the rows."""
    assert report.streams == len(all_lines())
    assert report.reached == sum(row["scope"] in ("scope-1", "scope-4") for row in rows)
    for name in ("today", "change"):
        side = getattr(report, name)
        decided = [row[name] for row in rows if row[name] is not None]
        assert side.total.bytes == sum(row["gone_bytes"] for row in decided) > 0
        assert side.total.bytes == sum(found.bytes for found in side.days.values())
        assert side.total.bytes == sum(found.bytes for found in side.rules.values())
        assert side.total.streams == sum(found.streams for found in side.rules.values()) == len(decided)
        lost = [item for row in decided for item in (*row["expire"], *row["evict"])]
        assert sum(item["bytes"] for item in side.hurt) == sum(item["bytes"] for item in lost) > 0
        assert side.total.moved == len(lost)
        assert sum(item["streams"] for item in side.dropped) == sum(len(row["drop"]) for row in decided)
        for scope, found in side.scopes.items():
            assert found.bytes == sum(
                row[name]["gone_bytes"] for row in rows if row["scope"] == scope and row[name] is not None
            )
        largest = sorted((row["gone_bytes"] for row in decided), reverse=True)[:20]
        assert [item["bytes"] for item in side.largest] == largest


@pytest.mark.slow
def test_bad_lines_are_named_with_file_and_line_and_stop_nothing(spark: Any, tmp_path: Path) -> None:
    newer = json.dumps({**json.loads(all_lines()[0]), "version": 2})
    (tmp_path / "f.jsonl").write_text("\n".join([all_lines()[0], "{", "", newer, all_lines()[1]]))
    report = fleet(spark, tmp_path / "f.jsonl")
    assert (report.streams, report.failed) == (2, 2)
    assert [item["place"] for item in report.errors] == [2, 4]
    assert {item["facts"] for item in report.errors} == {str(tmp_path / "f.jsonl")}
    assert "not JSON" in report.errors[0]["message"]
    assert "version of the facts is not known" in report.errors[1]["message"]


@pytest.mark.slow
def test_an_empty_fleet_is_an_empty_report(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    pq.write_table(pa.Table.from_batches([], schema=SCHEMA), tmp_path / "none.parquet")
    report = fleet(spark, tmp_path, {"retain": {"max_age_s": 1}}, out=tmp_path / "out")
    assert (report.streams, report.failed, report.today.total.bytes) == (0, 0, 0)


@pytest.mark.slow
def test_a_file_that_breaks_off_stops_the_job(spark: Any, tmp_path: Path) -> None:
    whole = gzip.compress(("\n".join(all_lines()[:50])).encode())
    (tmp_path / "f.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Exception) as caught:
        fleet(spark, tmp_path)
    assert "file of facts is cut off" in str(reason(caught.value))


@pytest.mark.slow
def test_decisions_that_are_there_are_not_overwritten_unasked(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(all_lines()[0])
    first = fleet(spark, tmp_path / "f.jsonl", out=tmp_path / "out")
    with pytest.raises(AlreadyExistsError):
        fleet(spark, tmp_path / "f.jsonl", out=tmp_path / "out")
    again = fleet(spark, tmp_path / "f.jsonl", out=tmp_path / "out", overwrite=True)
    assert again.today == first.today
    with held(tmp_path / "out"), pytest.raises(DirectoryInUseError):
        fleet(spark, tmp_path / "f.jsonl", out=tmp_path / "out", overwrite=True)


def test_a_run_that_died_is_run_again_and_facts_that_are_none_remove_nothing(tmp_path: Path) -> None:
    left = tmp_path / "out" / "decisions"
    left.mkdir(parents=True)
    (left / "part-00000.parquet").touch()
    (left / ".part-00001.parquet.77").touch()
    assert list(prepared(tmp_path / "out", overwrite=False).iterdir()) == []
    (left / "notes.txt").touch()
    with pytest.raises(AlreadyExistsError):
        prepared(tmp_path / "out", overwrite=False)
    (tmp_path / "f.parquet").write_text("no table")
    with pytest.raises(CorruptDataError):
        fleet(None, tmp_path / "f.parquet", out=tmp_path / "out", overwrite=True)
    assert (left / "notes.txt").exists()


# --- without a session ---------------------------------------------------------------------------------------------


def test_tables_of_another_version_or_kind_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_batches([table_of(all_lines()[:3])])
    for name, changed, error in (
        ("newer", table.replace_schema_metadata({VERSION_KEY: b"2"}), VersionTooNewError),
        ("odd", table.replace_schema_metadata({VERSION_KEY: b"x"}), CorruptDataError),
        ("none", table.replace_schema_metadata({}), InvalidArgumentError),
        ("less", table.drop_columns(["epochs"]), InvalidArgumentError),
        ("typed", table.set_column(3, "now_ms", pa.array(["a"] * 3)), InvalidArgumentError),
    ):
        pq.write_table(changed, tmp_path / f"{name}.parquet")
        with pytest.raises(error) as caught:
            sources.shares([tmp_path / f"{name}.parquet"])
        assert caught.value.fields["facts"] == str(tmp_path / f"{name}.parquet")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(CorruptDataError):
        sources.shares([tmp_path / "text.parquet"])


def test_what_is_no_fact_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no such file"):
        sources.find([tmp_path / "gone"])
    with pytest.raises(InvalidArgumentError, match="holds no facts"):
        sources.find([tmp_path])
    with pytest.raises(InvalidArgumentError, match="contradicts itself"):
        edit_of({"retain": {"min_bytes": 2, "max_bytes": 1}})
    with pytest.raises(InvalidArgumentError, match="policy"):
        edit_of({"retain": {"most_bytes": 1}})
    with pytest.raises(InvalidArgumentError, match="the change is empty"):
        edit_of({})


@pytest.mark.parametrize("limit", [1, 7, 100, 5000])
def test_lines_are_shared_out_without_loss_and_with_their_numbers(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SHARE_BYTES", limit)
    monkeypatch.setattr(sources, "_READ_BYTES", 64)
    lines = [b"", b"a", b"bb" * 40, b"", b"c\r", b"d" * 500, b"e"]
    (tmp_path / "f.jsonl").write_bytes(b"\n".join(lines))
    shares = sources.shares([tmp_path / "f.jsonl"])
    found = [item for share in shares for item in sources.read_lines(share)]
    assert found == [(number + 1, line.rstrip(b"\r")) for number, line in enumerate(lines)]


def test_a_change_sets_what_it_names_and_leaves_the_rest() -> None:
    policy = resolve(validate(edit_of({"retain": {"min_bytes": 5}, "backlog": {"ttl_s": 60}}).values), EMPTY, EMPTY)
    found = edit_of({"retain": {"max_bytes": 10}}).of(policy)
    assert (found.min_bytes, found.max_bytes, found.ttl_ms) == (5, 10, 60_000)
    cleared = PolicyEdit(cleared=("retain.min_bytes",)).of(policy)
    assert document_of(cleared).retain.min_bytes is INHERIT
    assert not cleared.truncates
    assert edit_of({"retain": {"max_bytes": 10}}).of(None).max_bytes == 10
