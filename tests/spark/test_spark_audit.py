"""The audit stream as a table: each entry once, sums that are the store's own figures, runs that are there whole."""

from __future__ import annotations

import fcntl
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_world import spark_in

import penstock
from penstock.app.cli.main import main
from penstock.client.blocking.stores import Store
from penstock.codec.audit import AuditEntry, AuditKind, encode_entry
from penstock.core.access.refusals import Reason, Refusal, RefusalSum
from penstock.model.callers import Caller
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    DirectoryInUseError,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
)
from penstock.model.identity import Identity
from penstock.spark.jobs.audit.files import AuditDirectory
from penstock.spark.jobs.audit.job import AuditReport, AuditRequest, audit, audit_frame, entries, read_audit
from penstock.spark.jobs.audit.rows import ALL, KINDS, SCHEMA, UNREADABLE, Choice, batches, row_of

GROUP = "plant/slow"
AUDIT = "_system/audit"


# --- a store whose retention has acted ------------------------------------------------------------------------------


def fill(store: Store, name: str, count: int = 300) -> Any:
    stream = store.stream(name)
    if not stream.exists():
        store.create_stream(name, segments=2, create_scope=True)
    with stream.writer() as writer:
        for number in range(count):
            writer.write(b"event %06d" % number, key=f"k{number % 7}")
    return stream


def act(store: Store) -> None:
    """All that can befall data, each in a stream of its own."""
    store.create_stream("plant/size", segments=2, create_scope=True)
    store.reader_group(GROUP, ["plant/size"], retention="manual")
    size = fill(store, "plant/size")
    size.retention.set({"retain": {"max_bytes": 1000}})
    size.retention.run()

    free = {"retain": {"min_bytes": 0}}
    used = fill(store, "web/used")
    used.retention.set(free)
    used.retention.run()

    held = fill(store, "plant/held")
    held.retention.set(free)
    held.retention.holds.add(owner="legal", reason="case 7", hold_id="case-7")
    held.retention.run()

    back = fill(store, "plant/back")
    back.retention.set({**free, "grace_s": 3600})
    back.retention.run()
    back.retention.undo()

    hand = fill(store, "plant/hand")
    hand.truncate(hand.tail())

    gone = fill(store, "plant/gone")
    gone.seal()
    gone.delete()

    store.create_stream("plant/moved", create_scope=True)
    store.reader_group("plant/mover", ["plant/moved"], retention="manual")
    moved = fill(store, "plant/moved", 50)
    start = moved.head()
    moved.set_acknowledged("plant/mover", moved.tail())
    moved.set_acknowledged("plant/mover", start)
    moved.remove_subscriber("plant/mover")


def reported(store: Store) -> list[bytes]:
    with store.stream(AUDIT).reader(start="head", until_tail=True) as reader:
        return [event.data for event in reader]


def settled(store: Store, mark: str) -> list[bytes]:
    """All entries, once one of a deed of ours has come, behind which there are none."""
    store.create_scope(mark, if_absent=True)
    store.policy(mark).set({"retain": {"min_bytes": 7}})
    until = time.monotonic() + 30
    while True:
        found = reported(store)
        if any(json.loads(item)["target"] == mark for item in found):
            return found
        assert time.monotonic() < until, "the audit stream was not written"


@pytest.fixture(scope="module")
def store(address: str) -> Iterator[Store]:
    with penstock.connect(address) as found:
        act(found)
        settled(found, "mark")
        yield found


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_in(tmp_path_factory.mktemp("spark")) as session:
        yield session


def asked(address: str, output: Path | None = None, **choice: Any) -> AuditRequest:
    return AuditRequest(read={"controller": address}, choice=Choice(**choice), output=output)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: int(row["position"]))


def gone_from(store: Store, name: str) -> int:
    described = store.stream(name).describe()
    return described.written_bytes - described.size_bytes


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_has_each_entry_once_and_adds_up_to_what_the_store_has_lost(
    spark: Any, address: str, store: Store, tmp_path: Path
) -> None:
    output = tmp_path / "audit"
    looked = audit(None, asked(address, output), dry_run=True)
    assert not output.exists()
    report = audit(spark, asked(address, output))
    wanted = reported(store)
    assert looked.entries == report.entries == report.sums.entries == len(wanted)
    assert (report.run, report.sums.unreadable, report.sums.missing) == (1, 0, 0)
    rows = rows_of(read_audit(spark, output))
    assert [row["entry"].encode() for row in rows] == wanted
    assert len({row["position"] for row in rows}) == len(rows)
    for name in ("plant/size", "web/used", "plant/held", "plant/back", "plant/hand", "plant/moved"):
        scope, _, stream = name.partition("/")
        mine = [row for row in rows if (row["scope"], row["stream"]) == (scope, stream)]
        assert sum(row["removed_bytes"] for row in mine) == gone_from(store, name), name
    assert gone_from(store, "plant/size") > 0 == gone_from(store, "plant/back")
    check_cuts(store, rows)
    check_sums(store, report, rows)


def check_cuts(store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
    """The cuts of a stream's truncations lead to its head."""
    mine = [row for row in rows if row["stream"] == "size" and row["kind"] == "truncate"]
    head = [
        {"segment": item, "offset": offset}
        for item, offset in sorted(store.stream("plant/size").head().positions.items())
    ]
    assert mine[-1]["to_cut"] == head
    assert mine[0]["policy"] is not None
    assert {"field": "retain.max_bytes", "value": "1000", "level": "stream"} in mine[0]["policy"]


def check_sums(store: Store, report: AuditReport, rows: Sequence[Mapping[str, Any]]) -> None:
    sums = report.sums
    assert sums.removed_bytes == sum(row["removed_bytes"] for row in rows)
    by_rule = {item["rule"]: item for item in sums.rules}
    assert sum(item["removed_bytes"] for item in sums.rules) == sums.removed_bytes
    assert sum(item["removed_bytes"] for item in sums.streams) == sums.removed_bytes
    evictions = store.stream("plant/size").retention.evictions()
    (rule,) = {item.rule for item in evictions}
    lost = {
        "lost_bytes": sum(item.bytes for item in evictions),
        "lost_events": sum(item.events for item in evictions),
    }
    slow = next(item for item in sums.subscribers if item["subscriber"] == GROUP)
    assert slow == {"subscriber": GROUP, "rule": rule, "times": len(evictions), "streams": 1, "dropped": 0, **lost}
    assert 0 < slow["lost_bytes"] == by_rule[rule]["lost_bytes"] == by_rule[rule]["removed_bytes"]
    assert slow["lost_events"] == by_rule[rule]["removed_events"] > 0
    # Moved to the end by hand it lost what it had not read; moved back it lost nothing; then it was removed.
    mover = next(item for item in sums.subscribers if item["subscriber"] == "plant/mover")
    assert (mover["rule"], mover["times"], mover["dropped"], mover["lost_events"]) == ("manual", 2, 1, 50)
    assert by_rule["undo"]["removed_bytes"] < 0
    assert by_rule["undo"]["removed_events"] is None
    assert sums.holds == [{"hold": "case-7", "owner": "legal", "streams": 1, "times": 1}]
    (held,) = [row for row in rows if row["kind"] == "held"]
    assert (held["would"], held["removed_bytes"], held["bytes"]) == (
        "truncate",
        0,
        store.stream("plant/held").describe().size_bytes,
    )
    assert held["holds"] == [{"hold": "case-7", "owner": "legal", "reason": "case 7"}]
    assert {"who": "legal", "why": "case 7"}.items() <= next(row for row in rows if row["kind"] == "hold").items()


@pytest.mark.spark
@pytest.mark.slow
def test_runs_follow_each_other_without_a_gap_and_a_run_that_died_leaves_nothing(
    spark: Any, address: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "audit"
    first = audit(spark, asked(address, output))
    before = rows_of(read_audit(spark, output))
    more = fill(store, "web/used")
    more.retention.run()
    fill(store, "plant/size")
    store.stream("plant/size").retention.run()
    settled(store, "mark-of-runs")

    def die(self: AuditDirectory, run: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AuditDirectory, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            audit(spark, asked(address, output))
    assert any(path.name.startswith(".making") for path in output.iterdir())
    assert rows_of(read_audit(spark, output)) == before
    second = audit(spark, asked(address, output))
    assert (second.run, second.start) == (2, first.end)
    assert second.sums.removed_bytes > 0
    again = audit(spark, asked(address, output))
    assert (again.run, again.entries, again.read_bytes) == (0, 0, 0)
    assert sorted(path.name for path in output.iterdir()) == [".lock", "run=00000001", "run=00000002"]
    assert [row["entry"].encode() for row in rows_of(read_audit(spark, output))] == reported(store)
    # Readers that know nothing of us see the same, with the number of the run beside it.
    assert pq.read_table(output).column("run").to_pylist().count(2) == second.entries


LATER = ["identity", "via", "peer"]
"""The columns that tables of earlier versions lack."""


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_from_before_some_columns_is_continued(spark: Any, address: str, store: Store, tmp_path: Path) -> None:
    output = tmp_path / "audit"
    first = audit(spark, asked(address, output))
    run, older = output / "run=00000001", tmp_path / "older"
    spark.read.parquet(str(run)).drop(*LATER).write.parquet(str(older))
    for path in run.glob("*.parquet"):
        path.unlink()
    for path in older.glob("*.parquet"):
        path.rename(run / path.name)
    with penstock.calling(Caller(who="ann", why="now")):
        fill(store, "plant/hand").truncate(store.stream("plant/hand").tail())
    settled(store, "mark-of-columns")
    second = audit(spark, asked(address, output))
    assert (second.run, second.start) == (2, first.end)
    rows = rows_of(read_audit(spark, output))
    assert [row["entry"].encode() for row in rows] == reported(store)
    old, new = rows[: first.entries], rows[first.entries :]
    assert all(row[name] is None for row in old for name in LATER)
    assert {"grpc"} <= {row["via"] for row in new}
    assert audit(spark, asked(address, output)).entries == 0
    # A query without the session's help, as the reference shows it.
    merged = spark.read.option("mergeSchema", True).parquet(str(output))
    assert sorted(rows_of(merged.select(*SCHEMA.names)), key=lambda row: int(row["position"])) == rows
    plain = spark.sql(f"SELECT kind, sum(removed_bytes) FROM parquet.`{output}` GROUP BY 1")
    assert plain.count() == len({row["kind"] for row in rows})


@pytest.mark.spark
@pytest.mark.slow
def test_a_choice_takes_what_it_says_and_nothing_else(spark: Any, address: str, store: Store) -> None:
    wanted = [json.loads(item) for item in reported(store)]
    times = sorted({item["at_ms"] for item in wanted})
    middle = times[len(times) // 2]
    for choice, takes in (
        ({"target": "web"}, lambda item: item["target"] in ("", "web") or item["target"].startswith("web/")),
        ({"target": "plant/size"}, lambda item: item["target"] in ("", "plant", "plant/size")),
        ({"kinds": ("evict", "hold")}, lambda item: item["kind"] in ("evict", "hold")),
        ({"since_ms": middle}, lambda item: item["at_ms"] >= middle),
        ({"until_ms": middle}, lambda item: item["at_ms"] < middle),
    ):
        found = [json.loads(row["entry"]) for row in rows_of(audit_frame(spark, asked(address, **choice)))]
        assert found == [item for item in wanted if takes(item)], choice
        assert found


@pytest.mark.spark
@pytest.mark.slow
def test_a_streaming_query_reads_the_same_rows(spark: Any, address: str, store: Store) -> None:
    live = (
        spark.readStream.format("penstock")
        .options(controller=address, path=AUDIT, start_stream_cut="earliest", columns="event,offset")
        .load()
    )
    query = entries(live).writeStream.format("memory").queryName("audit_live").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert [row["entry"].encode() for row in rows_of(spark.table("audit_live"))] == reported(store)


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_of_something_else_is_left_alone(spark: Any, address: str, store: Store, tmp_path: Path) -> None:
    output = tmp_path / "audit"
    request = asked(address, output, kinds=("evict",))
    with pytest.raises(NotFoundError):
        read_audit(spark, output)
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        audit(spark, asked(address, tmp_path / "no" / "audit"))
    audit(spark, request)
    with pytest.raises(ConflictError, match="begun with other filters") as caught:
        audit(spark, asked(address, output))
    assert caught.value.fields["differing"] == "kinds"
    with (output / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DirectoryInUseError):
            audit(spark, request)
    record = next(output.glob("run=*")) / "_penstock" / "audit.json"
    known = json.loads(record.read_text())
    page = (Path(__file__).parents[2] / "docs/formats/lake.md").read_text().partition("`audit.json`:")[2]
    table = page.partition("\n\n")[2].partition("\n\n")[0]
    reported = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert reported == known.keys()
    record.write_text(json.dumps({**known, "last": {**known["last"], "sha256": "0" * 64}}))
    with pytest.raises(ConflictError, match="another store"):
        audit(spark, request)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(AlreadyExistsError):
        audit(spark, replace(request, output=tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_the_command_says_what_it_would_read(
    address: str, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", "spark", "audit", "--controller", address, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    status, out, _ = run("--dry-run", "--json")
    assert (status, json.loads(out)["entries"]) == (0, len(reported(store)))
    status, out, _ = run("--dry-run")
    assert "would read" in out
    status, _, err = run("--kind", "evct", "--dry-run")
    assert (status, "no such kind" in err) == (2, True)
    status, _, err = run("--since", "yesterday")
    assert (status, "a time must be written" in err) == (2, True)


# --- rows -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_becomes_a_row_that_says_so() -> None:
    good = encode_entry(AuditEntry(kind=AuditKind.GAP, target="", fields={"entries": 3}), at_ms=5)
    newer = json.dumps({"v": 2, "at_ms": 1, "kind": "x", "target": ""}).encode()
    odd = json.dumps({"v": 1, "at_ms": 1, "kind": "truncate", "target": "a/b", "bytes": "many"}).encode()
    batch = pa.record_batch(
        {"event": pa.array([good, b"\xff", newer, odd], pa.binary()), "offset": pa.array([0, 9, 18, 27], pa.int64())}
    )
    (found,) = list(batches(ALL, [batch]))
    assert found.schema == SCHEMA
    rows = found.to_pylist()
    assert [row["kind"] for row in rows] == ["gap", UNREADABLE, UNREADABLE, UNREADABLE]
    assert [row["missing"] for row in rows] == [3, 0, 0, 0]
    assert "newer version" in rows[2]["error"]
    assert "whole number" in rows[3]["error"]


VALUES = st.recursive(
    st.sampled_from([None, True, -1, 5, 1 << 70, 1.5, float("inf"), "", "7", "x\ud800y", "\u00e9"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["7", "name", "from", "x\ud800"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = (
    *("at_ms", "target", "rule", "policy", "before", "after", "cut", "bytes", "events", "subscribers", "subscriber"),
    *("would", "holds", "hold", "owner", "reason", "who", "by", "why", "entries", "truncated_at_ms", "unreadable"),
    *("identity", "via", "peer", "caller"),
)


@given(
    kind=st.sampled_from([*KINDS, "strange"]),
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6),
)
def test_whatever_stands_in_an_entry_it_becomes_one_row(kind: str, fields: dict[str, Any]) -> None:
    event = json.dumps({"v": 1, "at_ms": 1, "kind": kind, "target": "a/b", **fields}).encode()
    row = row_of(event, 12)
    assert row is not None
    (again,) = pa.RecordBatch.from_pylist([row], schema=SCHEMA).to_pylist()
    assert (again["position"], again["entry"]) == (12, event.decode())


CALLER = Caller(who="ann", why="a", via="grpc", peer="10.0.0.7", identity=Identity(name="ann@site", proof="password"))
REFUSED = Refusal(
    reason=Reason.RIGHT, identity="eve@site", peer="10.0.0.9", via="wire", call="read", needs="read on s/t"
)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (AuditKind.TRUNCATE, {"caller": CALLER.as_fields()}, ("ann@site", "grpc", "10.0.0.7")),
        (AuditKind.ERASE, {"who": "ann", "identity": "ann@site"}, ("ann@site", None, None)),
        (AuditKind.CASE_CLOSED, {"identity": "ann@site", "caller": {"via": "http"}}, ("ann@site", "http", None)),
        (AuditKind.REFUSED, RefusalSum(REFUSED, 1, 1).as_fields(), ("eve@site", "wire", "10.0.0.9")),
        (AuditKind.TRUNCATE, {"rule": "age"}, (None, None, None)),
    ],
)
def test_a_row_has_the_verified_identity_and_the_door(kind, fields, expected) -> None:
    row = row_of(encode_entry(AuditEntry(kind=kind, target="s/t", fields=fields), at_ms=5), 0)
    assert row is not None
    assert tuple(row[name] for name in ("identity", "via", "peer")) == expected


@given(st.binary(max_size=40))
def test_bytes_that_are_no_entry_become_one_row(event: bytes) -> None:
    row = row_of(event, 0)
    assert row is not None
    assert pa.RecordBatch.from_pylist([row], schema=SCHEMA).num_rows == 1


def test_a_choice_that_can_never_be_met_is_refused() -> None:
    assert ALL.checked() is ALL
    for choice, error in (
        (Choice(kinds=("evct",)), InvalidArgumentError),
        (Choice(since_ms=5, until_ms=5), InvalidArgumentError),
        (Choice(target="a b"), InvalidNameError),
        (Choice(target="a/b/c"), InvalidNameError),
    ):
        with pytest.raises(error):
            choice.checked()
    with pytest.raises(InvalidArgumentError, match="chooses stream"):
        AuditRequest(read={"controller": "here:1", "endStreamCut": "latest"}).checked()
