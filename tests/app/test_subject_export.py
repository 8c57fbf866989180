"""The export of a person's data is exactly what an independent scan of all segments finds."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
from typer.testing import CliRunner

import penstock
from penstock.app.cli.main import app
from penstock.model.names import segment_name


def scan(store, names, is_of_person):
    """Read the bytes of all segments, and take the events apart by hand."""

    async def read(opened):
        found = []
        for name in names:
            stream = opened.stream(name)
            head = await opened.controller.cuts.head(stream.name)
            segments = {*head.positions, *(await opened.controller.cuts.tail(stream.name)).positions}
            for segment in sorted(segments):
                place = segment_name(stream.name, segment)
                info = await opened.segments.info(place)
                at, data = info.start_offset, b""
                while at + len(data) < info.length:
                    got = await opened.segments.read(place, at + len(data), 1 << 20, wait=False)
                    data += b"".join(got.parts)
                position = 0
                while position < len(data):
                    size = int.from_bytes(data[position : position + 8])
                    event = data[position + 8 : position + 8 + size]
                    if is_of_person(event):
                        found.append((name, segment, at + position, event.decode()))
                    position += 8 + size
        return sorted(found)

    return store.call(read)


def test_the_export_is_what_a_scan_finds_and_lists_what_was_erased(tmp_path):
    data, names = tmp_path / "data", ["s/a", "s/b"]
    with penstock.open(data) as store:
        for name in [*names, "r/c"]:
            stream = store.create_stream(name, segments=3, create_scope=True)
            with stream.writer() as writer:
                for number in range(90):
                    writer.write(json.dumps({"user": {"id": number % 9}, "n": number}), key=str(number))
            stream.scale(4)
            with stream.writer() as writer:
                writer.write_many([json.dumps({"user": {"id": 4}}), "no JSON", "", json.dumps({"user": "4"})])
        expected = scan(store, names, lambda event: b'"id": 4}' in event)
    (tmp_path / "values").write_text("4\n")

    def export(name, *more):
        output = tmp_path / name
        asked = ["subject", "export", "s", "--json-field", "user.id", "--values-from", tmp_path / "values"]
        result = CliRunner().invoke(app, [*map(str, asked), "--output", str(output), "--data", str(data), *more])
        return result, output

    result, output = export("one.jsonl", "--json")
    assert json.loads(result.output)["events"] == len(expected) == 22, result.output
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted((row["stream"], row["segment"], row["offset"], row["event"]) for row in rows) == expected
    assert all(row["appended_ms"] > 0 and row["erasure"] is None for row in rows)
    result, output = export("two.parquet")
    table = pq.read_table(output).to_pylist()
    assert sorted((row["stream"], row["segment"], row["offset"], row["event"].decode()) for row in table) == expected
    assert export("two.parquet")[0].exit_code, "the file exists"
    with penstock.open(data) as store:
        store.cases().open("s/a", ["4"], json_field="user.id", who="ann", why="request 17", case="c")
        store.cases().wait("c")
        assert scan(store, names, lambda event: b'"id": 4}' in event) == [row for row in expected if row[0] == "s/b"]
    _, output = export("three.jsonl")
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    erased = [row for row in rows if row["erasure"] is not None]
    assert sorted((row["stream"], row["segment"], row["offset"]) for row in rows) == [row[:3] for row in expected]
    assert {row["stream"] for row in erased} == {"s/a"}
    assert not any("event" in row for row in erased)


def test_an_export_counts_deleted_streams_that_it_cannot_search(tmp_path):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        for name in ("s/a", "s/b", "r/c"):
            store.create_stream(name, create_scope=True)
        for name in ("s/b", "r/c"):
            store.stream(name).delete(seal=True)
    (tmp_path / "values").write_text("4\n")
    words = [
        "subject",
        "export",
        "s",
        "--values-from",
        tmp_path / "values",
        "--output",
        tmp_path / "o.jsonl",
        "--data",
        data,
    ]
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exit_code == 0, shown.output
    assert "not searched: 1 deleted stream that can be restored" in shown.output
