"""The retention commands on a real store in a directory: what is planned is what goes, and what is undone comes back."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import penstock as api
from penstock.app.cli.main import main
from penstock.client.blocking.stores import Stream
from penstock.model.errors import CorruptDataError, StreamNotFoundError
from penstock.ports.control.subscribers import SubscriberInfo

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def penstock(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command on a directory of its own; gives (status, stdout, stderr)."""

    def run(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *words, "--data", str(tmp_path / "data")])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfdbinary.readouterr()
        return int(ended.value.code or 0), out.decode(), err.decode()

    return run


def size_of(penstock: Run) -> int:
    return int(json.loads(penstock("stream", "describe", "s/t", "--json")[1])["size_bytes"])


def entries(penstock: Run, *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in penstock("retention", "audit", *words, "--json")[1].splitlines()]


def test_a_limit_is_planned_refused_confirmed_run_audited_and_undone(penstock: Run, tmp_path: Path) -> None:
    assert penstock("stream", "create", "s/t")[0] == 0
    penstock("write", "s/t", stdin=b"abc\n" * 100)
    with api.open(tmp_path / "data") as store:
        store.reader_group("s/g", ["s/t"], retention="manual")
    planned = json.loads(penstock("retention", "plan", "s/t", "--max-bytes", "0B", "--json")[1])
    assert planned["frees_bytes"] == size_of(penstock) == 1100
    assert planned["events"] == 100

    status, _, err = penstock("retention", "set", "s/t", "--max-bytes", "0B")
    assert status == 2
    assert "events=100" in err
    assert "kept forever" in penstock("retention", "show", "s/t")[1]

    status, out, _ = penstock("retention", "set", "s/t", "--max-bytes", "0B", "--grace", "1h", "--yes")
    assert status == 0
    assert "not kept: data is deleted" in out
    ran = json.loads(penstock("retention", "run", "s/t", "--json")[1])
    assert ran["truncate"] == planned["truncate"]
    assert size_of(penstock) == 0
    evicted = entries(penstock, "s/t", "--kind", "evict")
    assert [entry["bytes"] for entry in evicted] == [1100]
    assert "s/g" in json.dumps(evicted)
    out = penstock("retention", "audit", "s/t", "--kind", "truncate", "--last", "1")[1]
    assert "1.1 kB" in out
    assert "retain.max_bytes 0 B (stream)" in out
    assert penstock("retention", "audit", "s/t", "--kind", "hold")[:2] == (0, "no entries\n")
    assert penstock("retention", "audit", "s/t", "--kind", "hold", "--json")[:2] == (0, "")
    policies = penstock("retention", "audit", "--kind", "policy")[1]
    assert "before none, after retain.max_bytes 0 B, grace_s 1 h" in policies

    status, out, err = penstock("retention", "undo", "s/t")
    assert status == 0, err
    assert "begins again at 0#0:0. Rules leave what came back alone until 20" in out
    assert penstock("retention", "audit", "s/typo")[0] == 3
    assert penstock("read", "s/t")[1] == "abc\n" * 100
    assert penstock("retention", "undo", "s/t")[0] == 4


def test_the_confirmation_names_all_that_goes_until_nothing_is_due(penstock: Run) -> None:
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b"abc\n" * 100)
    limits = ("--min-bytes", "110B", "--max-bytes", "550B")
    status, _, err = penstock("retention", "set", "s/t", *limits)
    assert status == 2
    assert "frees_bytes=990" in err
    assert "550 B, by maximum" in err
    assert "440 B, by minimum" in err
    penstock("retention", "set", "s/t", *limits, "--yes")
    penstock("retention", "run", "s/t")
    assert size_of(penstock) == 110


def test_levels_reach_streams_and_name_their_origin(penstock: Run) -> None:
    penstock("stream", "create", "s/t")
    penstock("stream", "create", "s/own", "--type", "time", "--min", "1h")
    assert penstock("retention", "set", "--scope", "s", "--max-age", "30d")[0] == 0
    assert penstock("retention", "set", "--server", "--grace", "1h", "--max-age", "1d")[0] == 0
    shown = json.loads(penstock("retention", "show", "s/t", "--json")[1])["effective"]
    assert shown["retain"]["max_age_s"] == {"value": 2_592_000, "from": "scope"}
    assert shown["grace_s"] == {"value": 3600, "from": "server"}
    assert "1 d" in penstock("retention", "show", "--server")[1]
    status, _, err = penstock("retention", "set", "--scope", "s", "--max-age", "30min")
    assert status == 0, err  # s/own lifts its maximum, as every Pravega policy without one does
    status, _, err = penstock("retention", "set", "s/t", "--min-age", "2h")
    assert status == 2
    assert "level scope" in err
    assert penstock("retention", "unset", "--scope", "s")[0] == 0
    assert "30 d" not in penstock("retention", "show", "s/t")[1]


def test_a_hold_keeps_what_a_rule_would_remove(penstock: Run) -> None:
    penstock("stream", "create", "s/t", "--type", "size", "--min", "0")
    penstock("write", "s/t", stdin=b"abc\n" * 10)
    assert penstock("hold", "add", "s/t", "--reason", "case 7", "--owner", "legal", "--id", "case-7")[0] == 0
    assert penstock("retention", "run", "s/t")[0] == 0
    assert size_of(penstock) == 110
    assert "case 7" in penstock("hold", "list", "s/t")[1]
    status, _, err = penstock("stream", "truncate", "s/t", "--at", "tail", "--yes")
    assert status == 4
    assert "legal" in err
    assert penstock("hold", "release", "case-7", "--owner", "legal", "--yes")[0] == 0
    assert penstock("retention", "run", "s/t")[0] == 0
    assert size_of(penstock) == 0
    kinds = {entry["kind"] for entry in entries(penstock)}
    assert {"hold", "unhold", "truncate"} <= kinds


def read_as_group(tmp_path: Path) -> int:
    """Events that a reader of the group gets."""
    got = 0
    with api.open(tmp_path / "data") as store, store.open_reader_group("s/g").reader("one") as reader:
        while reader.read(0.2) is not None:
            got += 1
    return got


def test_a_reset_of_a_group_is_shown_confirmed_and_refused_while_it_reads(penstock: Run, tmp_path: Path) -> None:
    penstock("stream", "create", "s/t")
    with api.open(tmp_path / "data") as store:
        store.reader_group("s/g", ["s/t"], retention="manual")
    penstock("write", "s/t", stdin=b"abc\n" * 10)
    status, _, err = penstock("group", "reset", "s/g", "--to", "2126-01-01")
    assert (status, "future" in err) == (2, True)
    assert penstock("group", "reset", "s/g", "--to", "yesterday")[0] == 2
    assert penstock("group", "reset", "s/none", "--to", "tail")[0] == 3
    assert penstock("group", "reset", "s/g", "--to", "tail", "--stream", "s/other")[0] == 2
    reset = ("group", "reset", "s/g", "--to", "tail", "--reason", "skip it", "--owner", "anna", "--yes", "--json")
    done = json.loads(penstock(*reset)[1])
    assert (done["stream"], done["events"], done["acknowledged_events"], done["dry_run"]) == ("s/t", 10, 10, False)
    assert read_as_group(tmp_path) == 0
    (entry,) = [item for item in entries(penstock) if item["kind"] == "move"]
    assert entry["caller"] == {"who": "anna", "why": "skip it", "via": "cli"}


def test_subscribers_are_moved_and_their_figures_follow(penstock: Run, tmp_path: Path) -> None:
    penstock("stream", "create", "s/t")
    with api.open(tmp_path / "data") as store:
        store.reader_group("s/g", ["s/t"], retention="manual")
    penstock("write", "s/t", stdin=b"abc\n" * 10)
    found = json.loads(penstock("subscriber", "list", "s/t", "--json")[1])
    assert (found["name"], found["lag_bytes"], found["lag_events"]) == ("s/g", 110, 10)
    assert (found["owner"], found["query"]) == ("reader group", None)
    assert 0 <= found["since_acknowledgement_s"] < 600
    assert penstock("subscriber", "list", "s/t")[1].splitlines()[1].split()[-3:] == ["ago", "reader", "group"]
    assert "skips 110 B, 10 events" in penstock("subscriber", "move", "s/t", "s/g", "--to", "tail", "--dry-run")[1]
    assert penstock("subscriber", "move", "s/t", "s/g", "--to", "tail")[0] == 2, "it asks first"
    assert read_as_group(tmp_path) == 10, "nothing was moved"
    assert "reads again 110 B, 10 events" in penstock("group", "reset", "s/g", "--to", "earliest")[1]
    assert penstock("subscriber", "move", "s/t", "s/g", "--to", "tail", "--yes")[0] == 0
    assert read_as_group(tmp_path) == 0, "its readers were moved, too"
    found = json.loads(penstock("subscriber", "describe", "s/t", "s/g", "--json")[1])
    assert (found["lag_bytes"], found["lag_events"], found["position"]) == (0, 0, {"0#0": 110})
    assert penstock("subscriber", "remove", "s/t", "s/g", "--yes")[0] == 0
    assert penstock("subscriber", "list", "s/t", "--json")[1] == ""


def test_reclaim_forecast_explain_and_plot_answer(penstock: Run) -> None:
    penstock("stream", "create", "s/t", "--type", "size", "--min", "50B", "--max", "1MB")
    penstock("write", "s/t", stdin=b"abc\n" * 10)
    report = json.loads(penstock("retention", "reclaim", "s/t", "--json")[1])
    assert report["pending_bytes"] == sum(item["bytes"] for item in report["pending"])
    assert "retain.max_bytes 1 MB: 110 B used" in penstock("retention", "forecast", "s/t")[1]
    ranges = json.loads(penstock("retention", "explain", "s/t", "--json")[1])["ranges"]
    assert sum(item["bytes"] for item in ranges) == 110
    status, out, _ = penstock("retention", "explain", "s/t", "--at", "head")
    assert status == 0, out
    assert "released" in out
    penstock("hold", "add", "s/t", "--owner", "legal", "--reason", "court order", "--id", "case-7")
    assert "110 B  hold case-7 of legal: court order" in penstock("retention", "explain", "s/t")[1]
    penstock("hold", "release", "case-7", "--yes")
    drawn = json.loads(penstock("retention", "plot", "s/t", "--json")[1])
    assert drawn["history"][-1][1:] == [110, 0]
    assert "head to tail" in penstock("retention", "plot", "s/t")[1]


def test_a_delete_that_a_hold_refuses_leaves_the_stream_as_it_was(penstock: Run) -> None:
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b"abc\n")
    assert penstock("hold", "add", "s/t", "--owner", "legal", "--reason", "case 7", "--id", "case-7")[0] == 0

    status, _, err = penstock("stream", "delete", "s/t", "--seal", "--yes")
    assert status == 4, err
    assert "case-7" in err
    assert penstock("write", "s/t", stdin=b"def\n")[0] == 0
    assert penstock("read", "s/t")[1] == "abc\ndef\n"

    assert penstock("hold", "release", "case-7", "--owner", "legal", "--yes")[0] == 0
    assert penstock("stream", "delete", "s/t")[0] == 4
    assert penstock("stream", "delete", "s/t", "--seal", "--yes")[0] == 0
    assert penstock("stream", "describe", "s/t")[0] == 3


def test_subscribers_of_the_whole_store_are_listed_by_the_bytes_that_they_hold(penstock: Run, tmp_path: Path) -> None:
    held = {"a/few": 10, "b/many": 30, "b/some": 20}
    for stream, events in held.items():
        penstock("stream", "create", stream, "--type", "size", "--min", "0")
        with api.open(tmp_path / "data") as store:
            store.reader_group(f"{stream}-readers", [stream], retention="manual")
        penstock("write", stream, stdin=b"abc\n" * events)
    assert penstock("stream", "create", "b/unread")[0] == 0
    rows = [json.loads(line) for line in penstock("subscriber", "list", "--json")[1].splitlines()]
    assert [(row["stream"], row["name"], row["held_bytes"]) for row in rows] == [
        ("b/many", "b/many-readers", 330),
        ("b/some", "b/some-readers", 220),
        ("a/few", "a/few-readers", 110),
    ]
    _, *lines = penstock("subscriber", "list")[1].splitlines()
    assert [line.split()[:2] for line in lines] == [[row["stream"], row["name"]] for row in rows]
    assert "330 B" in lines[0]


def test_a_damaged_stream_hides_no_subscriber_of_another(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in ("a/damaged", "b/sound", "c/deleted"):
        penstock("stream", "create", stream)
        with api.open(tmp_path / "data") as store:
            store.reader_group(f"{stream}-readers", [stream], retention="manual")
    subscribers = Stream.subscribers

    def fails(stream: Stream) -> Sequence[SubscriberInfo]:
        if stream.name.stream == "damaged":
            raise CorruptDataError("record of the stream cannot be read")
        if stream.name.stream == "deleted":
            raise StreamNotFoundError("no such stream")
        return subscribers(stream)

    monkeypatch.setattr(Stream, "subscribers", fails)
    status, out, err = penstock("subscriber", "list", "--json")
    assert [json.loads(line)["name"] for line in out.splitlines()] == ["b/sound-readers"]
    assert (status, "a/damaged" in err, "c/deleted" in err) == (7, True, False)
