"""The fleet job on the facts of a running store: row by row what the store's own loop plans, and then does."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from spark_world import spark_in

import penstock
from penstock.app.cli.main import main
from penstock.client.blocking.stores import Store
from penstock.core.planner_json.stream import name_of
from penstock.model.answers.plan import RetentionPlan
from penstock.model.errors import CorruptDataError, StreamNotFoundError, UnavailableError
from penstock.model.segments import SegmentId
from penstock.spark.cli.fleet import print_report
from penstock.spark.connect import Services, dial
from penstock.spark.fleet import store as facts_of_a_store
from penstock.spark.fleet.report import FleetReport
from penstock.spark.fleet.store import StoreFacts, store_lines, store_shares
from penstock.spark.fleet.work import Task, run
from penstock.spark.jobs.fleet import fleet

STREAMS = 23
POLICIES: tuple[Mapping[str, Any] | None, ...] = (
    None,
    {"retain": {"min_bytes": 500}},
    {"retain": {"max_bytes": 700}},
    {"retain": {"min_bytes": 100, "max_bytes": 400, "measure": "segment"}},
    {"retain": {"min_bytes": 0}, "unsubscribed": "keep"},
    {"backlog": {"max_bytes": 300, "on_exceed": "evict"}, "retain": {"min_bytes": 0}},
    {"retain": {"max_age_s": 3600}},
)


def filled(store: Store) -> list[str]:
    """Streams of all kinds: with and without policy, subscribers, holds, scaled, truncated, empty; in three scopes."""
    rng = random.Random(7)
    names = []
    for number in range(STREAMS):
        name = f"scope-{number % 3}/stream-{number:02}"
        stream = store.create_stream(name, segments=1 + number % 3, create_scope=True)
        names.append(name)
        stream.retention.set(POLICIES[number % len(POLICIES)])
        if number % 2:
            store.reader_group(f"scope-{number % 3}/group-{number}", [name], retention="manual")
        for part in range(3):
            with stream.writer() as writer:
                for event in range(rng.choice([0, 20, 40])):
                    writer.write(b"%05d" % event, key=f"k{event % 5}")
            if part < 2 and number % 4 == 1:
                stream.retention.run()
            if part == 1 and number % 5 == 0:
                stream.scale(2 + number % 3)
        if number % 8 == 2:
            stream.retention.holds.add(owner="legal", reason="case", hold_id=f"hold-{number}")
    # What applies comes from other levels, too.
    store.policy("scope-2").set({"retain": {"max_bytes": 900}})
    return sorted(names)


@pytest.fixture(scope="module")
def store(address: str) -> Iterator[Store]:
    with penstock.connect(address) as found:
        yield found


@pytest.fixture(scope="module")
def names(store: Store) -> list[str]:
    return filled(store)


def cut_of(row: Any) -> dict[str, int] | None:
    return None if row is None else {name_of(SegmentId(item["segment"])): item["offset"] for item in row}


def same_as_planned(row: Mapping[str, Any], planned: RetentionPlan) -> None:
    assert (row["rule"], row["frees_bytes"]) == (planned.rule, planned.frees_bytes)
    assert cut_of(row["candidate"]) == planned.candidate
    assert cut_of(row["truncate"]) == planned.truncate
    assert row["drop"] == [item.subscriber for item in planned.drop]
    assert row["delete_stream"] == planned.delete_stream
    for name, moves in (("expire", planned.expire), ("evict", planned.evict)):
        found = [(item["subscriber"], item["bytes"], item["rule"]) for item in row[name]]
        assert found == [(item.subscriber, item.bytes, item.rule) for item in moves]


def subscribers_listed(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What ``penstock subscriber list`` prints of the whole store."""
    monkeypatch.setattr(sys, "argv", ["penstock", "subscriber", "list", "--controller", address, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def check_subscribers(report: FleetReport, listed: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """The report has the same subscribers, fields and order as the list; the terminal shows the first 20 of them."""
    found = json.loads(json.dumps(report.as_json()))["subscribers"]
    assert [sorted(item) for item in found] == [sorted(item) for item in listed]
    passing = ("since_acknowledgement_s", "lag_ms")  # of the moment of asking
    assert [{key: value for key, value in item.items() if key not in passing} for item in found] == [
        {key: value for key, value in item.items() if key not in passing} for item in listed
    ]
    assert len(found) == report.subscribers_total == STREAMS // 2
    assert found[0]["held_bytes"] > found[-1]["held_bytes"]
    print_report(report, "scope")
    lines = capsys.readouterr().out.splitlines()
    head = next(place for place, line in enumerate(lines) if line.split()[:2] == ["stream", "subscriber"])
    shown = [line.split()[:2] for line in lines[head + 1 : head + 1 + len(found)]]
    assert shown == [[item["stream"], item["name"]] for item in found]
    assert "acknowledged" in lines[head]
    assert "holds alone" in lines[head]


@pytest.mark.spark
@pytest.mark.slow
def test_each_stream_of_a_store_is_decided_as_its_loop_plans_it_and_then_does_it(
    address: str,
    store: Store,
    names: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of several shares in each scope.
    monkeypatch.setattr(facts_of_a_store, "SHARE_STREAMS", 3)
    assert len(store_shares(StoreFacts(controller=address))) == 9
    with spark_in(tmp_path / "spark") as spark:
        report = fleet(spark, StoreFacts(controller=address), {"retain": {"max_bytes": 0}}, out=tmp_path / "out")
    assert (report.streams, report.failed, report.files) == (STREAMS, 0, 0)
    rows = {f"{row['scope']}/{row['name']}": row for row in pq.read_table(tmp_path / "out" / "decisions").to_pylist()}
    assert sorted(rows) == names
    assert sorted(row["place"] for row in rows.values()) == list(range(1, STREAMS + 1))
    assert {row["source"] for row in rows.values()} == {address}
    planned = {name: store.stream(name).retention.plan() for name in names}
    for name in names:
        same_as_planned(rows[name]["today"], planned[name])
    assert sum(row["today"]["frees_bytes"] > 0 for row in rows.values()) > 4
    assert any(row["today"]["evict"] for row in rows.values())
    assert any(row["today"]["held_bytes"] for row in rows.values())
    check_subscribers(report, subscribers_listed(address, capsys, monkeypatch), capsys)
    assert report.change is not None
    assert report.change.total.bytes > report.today.total.bytes == sum(item.frees_bytes for item in planned.values())
    for name in names:
        stream = store.stream(name)
        before = stream.describe().size_bytes
        stream.retention.run()
        assert before - stream.describe().size_bytes == rows[name]["today"]["frees_bytes"], name


def test_shares_of_any_size_have_every_stream_once_with_its_number(
    address: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, page in ((1, 1), (2, 50), (7, 3), (8, 1), (500, 50)):
        monkeypatch.setattr(facts_of_a_store, "SHARE_STREAMS", size)
        monkeypatch.setattr(facts_of_a_store, "PAGE_STREAMS", page)
        shares = store_shares(StoreFacts(controller=address))
        assert sum(share.rows for share in shares) == STREAMS
        found = [item for share in shares for some in store_lines(share) for item in some]
        assert [place for place, _ in found] == list(range(1, STREAMS + 1))
        lines = [json.loads(item.line) for _, item in found if isinstance(item.line, bytes)]
        assert [line["id"] for line in lines] == names


async def dial_damaged(address: str) -> Services:
    """A store of whose streams one is deleted after it was listed, and one is damaged."""
    services = await dial(address)
    inner = services.controller.retention.facts

    async def facts(stream: Any, **more: Any) -> Mapping[str, Any]:
        if stream.stream == "stream-04":
            raise CorruptDataError("record fails its checksum", key="x")
        if stream.stream == "stream-05":
            raise StreamNotFoundError("there is no such stream", stream=stream)
        return await inner(stream, **more)

    services.controller.retention.facts = facts  # type: ignore[method-assign]
    return services


def test_a_damaged_stream_is_told_and_a_deleted_one_left_out(address: str, names: list[str]) -> None:
    shares = store_shares(StoreFacts(controller=address, connector=dial_damaged))
    sums = [row for share in shares for row in run(Task(), share, 0).to_pylist()]
    (error,) = [row for row in sums if row["kind"] == "error"]
    assert error["text"] == "scope-1/stream-04: record fails its checksum. key=x"
    assert sum(row["streams"] for row in sums if row["kind"] == "scope") == STREAMS - 2


async def dial_nobody(address: str) -> Services:
    raise UnavailableError("nobody there")


def test_a_store_that_is_away_leaves_no_directory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.connect.RETRY_S", 0.1)
    with pytest.raises(UnavailableError):
        fleet(None, StoreFacts(controller="here:1", connector=dial_nobody), out=tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_the_command_takes_the_store_or_files_and_says_which(
    address: str, names: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", "spark", "fleet", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    status, out, _ = command("--facts", "store", "--controller", address, "--dry-run", "--json")
    assert (status, json.loads(out)["streams"], json.loads(out)["store"]) == (0, STREAMS, address)
    assert f"store {address}" in command("--facts", "store", "--controller", address, "--dry-run")[1]
    assert command("--facts", "store", "--facts", "more.jsonl", "--dry-run")[0] == 2
    status, _, err = command("--facts", "more.jsonl", "--controller", address, "--dry-run")
    assert (status, "--facts store" in err) == (2, True)
