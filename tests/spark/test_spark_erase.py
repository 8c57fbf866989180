"""The job that erases: executors find, the store blanks, a receipt tells; a Spark read sees none of it any more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_world import World, served
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.core.cases.matching import Contains, JsonField
from penstock.model.errors import AlreadyExistsError, ErasureWithdrawnError
from penstock.model.segments import SegmentId
from penstock.spark.cli import erase as cli_erase
from penstock.spark.jobs import erase as jobs_erase
from penstock.spark.jobs.erase import erase, matches_of
from penstock.spark.matching import Where, matching_batches, without_literals


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def address(directory: Path) -> Iterator[str]:
    with served(directory) as found:
        yield found


def users(count: int) -> list[bytes]:
    return [
        json.dumps({"user": {"id": f"ann-{n % 97:04}", "age": n % 80}, "text": "t" * (n % 50)}).encode()
        for n in range(count)
    ]


def read(spark: Any, address: str, stream: str) -> list[bytes]:
    scope, name = stream.split("/")
    options = {"controller": address, "scope": scope, "stream": name}
    return sorted(bytes(row.event) for row in spark.read.format("penstock").options(**options).load().collect())


def files_with(directory: Path, needle: bytes) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]


@pytest.mark.spark
def test_what_matches_is_erased_and_no_file_or_reader_has_it(
    spark: Any, address: str, world: World, directory: Path
) -> None:
    stream = world.create("erase-by-field", segments=3)
    events = users(3000)
    world.write(stream, events[:2500])
    world.wait_tiered(stream)
    world.write(stream, events[2500:])
    wanted = frozenset({"ann-0013", "ann-0077", "nobody-9999"})
    match = JsonField(path="user.id", values=wanted)
    gone = [event for event in events if json.loads(event)["user"]["id"] in wanted]
    how = {"controller": address, "who": "ann", "why": "request 17"}
    tried = erase(spark, str(stream), match, dry_run=True, **how)
    assert (tried.state, tried.events) == ("dry run", len(gone))
    assert read(spark, address, str(stream)) == sorted(events)
    reported: list[Any] = []

    def refuse(found: Mapping[str, Any]) -> None:
        assert (found["events"], found["bytes"]) == (len(gone), tried.bytes)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        erase(spark, str(stream), match, erasure="r17", confirm=refuse, **how)
    assert read(spark, address, str(stream)) == sorted(events)
    report = erase(spark, str(stream), match, erasure="r17", confirm=reported.append, progress=reported.append, **how)
    assert any(item.get("state") == "dry run" for item in reported), "asked before it was decided"
    assert (report.state, report.events) == ("done", len(gone))
    assert report.bytes == sum(map(len, gone))
    assert {item["state"] for item in reported} >= {"looking", "found"}
    assert read(spark, address, str(stream)) == sorted(event for event in events if event not in gone)
    assert files_with(directory, b"ann-0013") == files_with(directory, b"ann-0077") == []
    with penstock.connect(address) as store:
        assert store.erasures().verify("r17").holds
    assert "ann-0013" not in json.dumps(report.as_json())
    # Once more: nothing is looked for, the receipt comes back. For something else it would be a lie.
    again = erase(spark, str(stream), match, erasure="r17", **how)
    assert again.receipt == report.receipt
    with pytest.raises(AlreadyExistsError, match="looked for something else"):
        erase(spark, str(stream), JsonField(path="user.id", values=frozenset({"ann-0001"})), erasure="r17", **how)
    with pytest.raises(AlreadyExistsError, match="another stream"):
        erase(spark, "plant/other", match, erasure="r17", **how)
    for changed in ({"who": "bob"}, {"why": "request 18"}):
        with pytest.raises(AlreadyExistsError, match="another owner or reason"):
            erase(spark, str(stream), match, erasure="r17", **how | changed)
    # A predicate, over what is left; and a hold that covers it.
    where = Where(schema="user struct<id: string, age: int>", where="user.age >= 70 and user.id like 'ann-00%'")
    with penstock.connect(address) as store:
        hold = store.holds(stream).add(owner="law", reason="case 5")
        assert [item["hold"] for item in erase(spark, str(stream), where, dry_run=True, **how).holds] == [hold.id]
        waits = erase(spark, str(stream), where, **how)
        assert (waits.state, waits.receipt, [item["hold"] for item in waits.holds]) == ("deferred", None, [hold.id])
        old = [e for e in events if e not in gone and json.loads(e)["user"]["age"] >= 70]
        assert waits.events == len(old)
        again = erase(spark, str(stream), where, erasure=waits.erasure, **how)
        assert again.as_json() == waits.as_json()
        assert read(spark, address, str(stream)) == sorted(event for event in events if event not in gone)
        store.holds().release(hold.id, owner="law")
        store.erasures().wait(waits.erasure)
    report = erase(spark, str(stream), where, erasure=waits.erasure, **how)
    assert (report.state, report.events) == ("done", len(old))
    assert report.looked_for["where"] == "user.age >= ? and user.id like ?"
    left = sorted(event for event in events if event not in gone and event not in old)
    assert read(spark, address, str(stream)) == left


@pytest.mark.spark
def test_the_command_reports_a_deferral_with_its_own_status_and_a_withdrawn_id_is_refused(
    spark: Any, address: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command would stop the session of the other tests.
    monkeypatch.setattr(cli_erase, "spark_session", lambda *_, **__: nullcontext(spark))
    stream = world.create("erase-held", segments=1)
    world.write(stream, users(100))
    (tmp_path / "values").write_text("ann-0013\n")
    with penstock.connect(address) as store:
        store.holds(stream).add(owner="law", reason="case 6", hold_id="case-6")
        options = ["--json-field", "user.id", "--values-from", tmp_path / "values", "--reason", "x", "--owner", "ann"]
        command = ["spark", "erase", stream, *options, "--id", "held", "--yes", "--controller", address]
        found = CliRunner().invoke(app, [str(item) for item in command])
        assert found.exit_code == 10, found.output
        assert "deferred by hold case-6" in found.output
        store.erasures().withdraw("held", who="bob", why="wrong user")
        store.holds().release("case-6", owner="law")
        match = JsonField(path="user.id", values=frozenset({"ann-0013"}))
        with pytest.raises(ErasureWithdrawnError):
            erase(spark, str(stream), match, controller=address, who="ann", why="x", erasure="held")
    assert len(read(spark, address, str(stream))) == 100


@pytest.mark.spark
def test_a_run_that_comes_second_gets_the_receipt_of_the_first(
    spark: Any, address: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("erase-at-once", segments=2)
    world.write(stream, users(300))
    match = JsonField(path="user.id", values=frozenset({"ann-0013", "ann-0077"}))
    how = {"controller": address, "who": "ann", "why": "request 21", "erasure": "r21"}
    search, first = jobs_erase._positions, list[Any]()

    def search_while_another_decides(*arguments: Any) -> Any:
        monkeypatch.setattr(jobs_erase, "_positions", search)
        world.write(stream, users(20))  # Another tail: what the two have looked for differs by it.
        first.append(erase(spark, str(stream), match, **how))
        return search(*arguments)

    monkeypatch.setattr(jobs_erase, "_positions", search_while_another_decides)
    second = erase(spark, str(stream), match, **how)
    assert first[0].events > 0
    assert second.receipt == first[0].receipt


DEEP = b'{"user":{"id":"ann-0013","more":' + b"[" * 50_000 + b"]" * 50_000 + b"}}"


@pytest.mark.spark
def test_an_event_that_cannot_be_examined_stops_no_erasure_and_is_reported(
    spark: Any, address: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_erase, "spark_session", lambda *_, **__: nullcontext(spark))
    stream = world.create("erase-deep", segments=1)
    world.write(stream, [*users(100), DEEP])
    match = JsonField(path="user.id", values=frozenset({"nobody-1"}))
    found = erase(spark, str(stream), match, controller=address, who="ann", why="x")
    assert (found.events, found.not_examined) == (0, 1)
    assert found.receipt is not None
    (place,) = found.receipt["looked_for"]["not_examined"]["first"]
    (tmp_path / "values").write_text("ann-0013\n")
    options = ["--json-field", "user.id", "--values-from", tmp_path / "values", "--reason", "x", "--owner", "ann"]
    command = ["spark", "erase", stream, *options, "--id", "deep", "--controller", address]
    for more in (["--dry-run"], ["--yes"], ["--yes"]):
        shown = CliRunner().invoke(app, [str(item) for item in [*command, *more]])
        assert shown.exit_code == 0, shown.output
        assert f"NOT EXAMINED: 1 event nested too deeply, at {place}" in shown.output
    # It is still there: by its position it can be erased.
    assert [event for event in read(spark, address, str(stream)) if b"ann-0013" in event] == [DEEP]
    predicate = Where(schema="user struct<id string>", where="user.id = 'ann-0013'")
    erase(spark, str(stream), predicate, controller=address, who="ann", why="x", dry_run=True)
    with penstock.connect(address) as store:
        segment, offset = map(int, place.split(":"))
        receipt = store.stream(stream).erase([(SegmentId(segment), offset)], who="ann", why="by hand")
        assert receipt["where"]["events"] == 1


def test_what_cannot_be_examined_is_neither_a_match_nor_hidden() -> None:
    events = [b'{"user":{"id":"ann-0013"}}', DEEP, b'{"user":{"id":"bob"}}']
    match = JsonField(path="user.id", values=frozenset({"ann-0013"}))
    (batch,) = matching_batches(match, iter([batch_of(events)]))
    assert batch.select(["offset", "examined"]).to_pydict() == {"offset": [0, 1], "examined": [True, False]}


@pytest.mark.spark
def test_a_predicate_never_matches_what_is_no_json_object(spark: Any) -> None:
    events = [
        b'{"user": "ann"}',
        b'{"user": null}',
        b"{}",
        b"",
        b"plain",
        b'{"user": ',
        b'[{"user": null}]',
        b"5",
        b"null",
        b"\xff\xfe\x00",
    ]
    rows = [(bytearray(event), 3, offset) for offset, event in enumerate(events)]
    frame = spark.createDataFrame(rows, "event binary, segment_id bigint, offset bigint")
    for where, expected in (
        ("user is null", [1, 2]),
        ("not user <=> 'ann'", [1, 2]),
        ("coalesce(user, '') = ''", [1, 2]),
        ("true", [0, 1, 2]),
    ):
        found = matches_of(frame, Where(schema="user string", where=where)).collect()
        assert sorted(row["offset"] for row in found) == expected, where


def batch_of(events: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"event": pa.array(events, pa.binary()), "segment_id": [3] * len(events), "offset": list(range(len(events)))}
    )


def found_by(match: JsonField | Contains, events: list[bytes]) -> list[int]:
    return [
        offset for batch in matching_batches(match, iter([batch_of(events)])) for offset in batch["offset"].to_pylist()
    ]


def test_a_field_is_found_by_names_and_indexes_and_what_is_no_json_never_matches() -> None:
    events = [
        b'{"a": {"b": "x"}}',
        b'{"a": [{"b": "x"}]}',
        b'{"a": [{"b": 5}, {"b": "x"}]}',
        b'{"a": {"b": {"c": "x"}}}',
        b"not json x",
        b"",
        b"\xff\xfe",
        b'{"a": {"b": true}}',
        b'{"a": {"b": 5}}',
        b'["x"]',
    ]
    assert found_by(JsonField(path="a.b", values=frozenset({"x"})), events) == [0]
    assert found_by(JsonField(path="a.0.b", values=frozenset({"x", "5"})), events) == [1, 2]
    assert found_by(JsonField(path="a.1.b", values=frozenset({"x"})), events) == [2]
    assert found_by(JsonField(path="a.b", values=frozenset({"true", "5"})), events) == [7, 8]
    assert found_by(JsonField(path="0", values=frozenset({"x"})), events) == [9]


def test_a_number_matches_as_it_is_written() -> None:
    events = [b'{"id": 1.10}', b'{"id": 1e5}', b'{"id": 12345678901234567890123}', b'{"id": -0}', b'{"id": 7}']
    for number, text in enumerate(("1.10", "1e5", "12345678901234567890123", "-0", "7")):
        assert found_by(JsonField(path="id", values=frozenset({text})), events) == [number]


@given(
    events=st.lists(st.binary(max_size=20), max_size=30),
    values=st.frozensets(st.text(min_size=1, max_size=3), min_size=1, max_size=40),
)
def test_payloads_that_contain_a_value_are_found_however_many_values_there_are(
    events: list[bytes], values: frozenset[str]
) -> None:
    expected = [n for n, event in enumerate(events) if any(value.encode() in event for value in values)]
    assert found_by(Contains(values=values), events) == expected


@pytest.mark.parametrize(
    ("where", "reported"),
    [
        ("user = 'ann'", "user = ?"),
        ("user = 'o''hara' and n > 5.5e3", "user = ? and n > ?"),
        (r"user = 'a\'b' or x = \"y\"", r"user = ? or x = \"y\""),
        ("col1 = 3 or a_2b = 'x'", "col1 = ? or a_2b = ?"),
        ('name in ("ann", "bob")', "name in (?, ?)"),
    ],
)
def test_no_literal_of_a_predicate_is_told(where: str, reported: str) -> None:
    assert without_literals(where) == reported


SEEN = [
    b'{"user":{"id":"ann"}}',
    b'{"user.id":"ann"}',
    b'{"user":{"id":"ann","id":"x"}}',
    b'{"user":{"id":"x","id":"ann"}}',
    b'{"user":{"id":"ann"},"user":{"id":"bob"}}',
    b'{"user":{"id":"ann"},"user":7}',
    b'\xef\xbb\xbf{"user":{"id":"ann"}}',
    b'{"user":{"id":"ann"},"n":"\xff"}',
    b'{"user":{"id":"bob"}}\n{"user":{"id":"ann"}}',
    b'{"user":{"id":"bob"}}{"user":{"id":"ann"}}',
    b'\x1e{"user":{"id":"bob"}}\n\x1e{"user":{"id":"ann"}}\n',
    b'{"user":{"id":"ann"}}\x00\x00',
    b'\x00{"user":{"id":"ann"}}',
    b'{"user":{"id":"ann"}} cut off {"a',
    b'{"user":{"id":"ann","text":"a\nb"}}',
    '{"user":{"id":"ann"}}'.encode("utf-16"),
    b'{"user":{"id":17}}',
]
NOT_SEEN = [
    b'{"user":{"id":["ann"]}}',
    b'{"user":{"id":{"ann":"ann"}}}',
    b'{"user":{"id":17.0}}',
    b'[{"user":{"id":"ann"}}]',
    b'{"user":{"id":"{\\"user\\":{\\"id\\":\\"ann\\"}}"}}',
    b'broken {"user":{"id":"ann"}}',
    b"",
    b"\x00",
]


def test_a_field_is_found_in_all_readable_json_and_the_receipt_lists_the_limits() -> None:
    match = JsonField(path="user.id", values=frozenset({"ann", "17"}))
    assert [match.matcher()(event) for event in SEEN] == [True] * len(SEEN)
    assert [match.matcher()(event) for event in NOT_SEEN] == [False] * len(NOT_SEEN)
    for item in (match, Contains(values=frozenset({"x"})), Where(schema="a int", where="a = 1")):
        assert item.looked_for()["not_seen"]


_NAMES = st.sampled_from(["a", "b", "a.b", "b.a", "0"])
_JSON = st.recursive(
    st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.lists(st.tuples(_NAMES, inner), max_size=3).map(tuple),
    max_leaves=8,
)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + ",".join(f'"{name}":{_text(item)}' for name, item in value) + "}"
    return "[" + ",".join(map(_text, value)) + "]" if isinstance(value, list) else f'"{value}"'


def _paths(value: object, path: str = "") -> set[tuple[str, str]]:
    """Each path with the text that is at it."""
    if isinstance(value, str):
        return {(path, value)}
    members = value if isinstance(value, tuple) else [(str(place), item) for place, item in enumerate(value)]
    return {found for name, item in members for found in _paths(item, f"{path}.{name}" if path else name)}


@given(st.lists(_JSON, min_size=1, max_size=3), _NAMES, _NAMES)
def test_every_text_at_the_path_is_found_and_nothing_else(values: list[object], first: str, second: str) -> None:
    event = "\n".join(map(_text, values)).encode()
    path = f"{first}.{second}"
    there = {text for value in values for name, text in _paths(value) if name == path}
    for text in ("x", "y"):
        assert JsonField(path=path, values=frozenset({text})).matcher()(event) is (text in there)
