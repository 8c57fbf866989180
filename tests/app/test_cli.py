"""The command line, end to end on a data directory without a server, and its exit statuses."""

import io
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from penstock import open as open_store
from penstock.app.cli.main import main
from penstock.app.cli.upkeep import data
from penstock.controller import keys
from penstock.model.cuts import ENDS
from penstock.model.names import StreamName
from penstock.ports.data.tables import TablePut
from penstock.storage.machine.data_directory import DataDirectory


@pytest.fixture
def penstock(tmp_path, capfdbinary, monkeypatch):
    """Runs one command on a directory of its own; gives (status, stdout, stderr)."""

    def run(*words, stdin=b"", data=True):
        target = ["--data", str(tmp_path / "data")] if data else []
        monkeypatch.setattr(sys, "argv", ["penstock", *words, *target])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfdbinary.readouterr()
        return ended.value.code, out.decode(), err.decode()

    return run


def test_no_arguments_teach(penstock):
    status, out, _ = penstock(data=False)
    assert status == 0
    assert "penstock standalone --data ./store" in out
    assert "retention" in out


def test_what_is_written_is_read_back_in_order_per_key(penstock):
    assert penstock("stream", "create", "s/t", "--segments", "4")[0] == 0
    lines = [json.dumps({"user": number % 5, "n": number}) for number in range(200)]
    status, _, err = penstock("write", "s/t", "--key", ".user", stdin="\n".join(lines).encode())
    assert status == 0
    assert "wrote 200 events" in err
    status, out, _ = penstock("read", "s/t")
    found = [json.loads(line) for line in out.splitlines()]
    assert sorted(event["n"] for event in found) == list(range(200))
    for user in range(5):
        assert [event["n"] for event in found if event["user"] == user] == list(range(user, 200, 5))


def test_streams_of_all_scopes_are_listed(penstock):
    for name in ("web/b", "app/c", "web/a"):
        assert penstock("stream", "create", name)[0] == 0
    assert [line.strip() for line in penstock("stream", "list")[1].splitlines()] == [
        "stream",
        "app/c",
        "web/a",
        "web/b",
    ]
    found = [json.loads(line) for line in penstock("stream", "list", "--json")[1].splitlines()]
    assert found == [{"stream": name} for name in ("app/c", "web/a", "web/b")]
    assert "web/_MARKa" in penstock("stream", "list", "--all")[1]
    assert penstock("stream", "list", "no-scope")[0] == 3


def test_a_time_without_a_zone_is_in_utc(penstock):
    assert penstock("stream", "create", "s/t")[0] == 0
    assert penstock("write", "s/t", stdin=b"one\n")[0] == 0
    for since in ("2020-01-31T12:00", "2020-01-31", "2020-01-31T12:00:00+05:00"):
        assert penstock("read", "s/t", "--from", since)[1] == "one\n"
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    status, _, err = penstock("read", "s/t", "--from", in_an_hour)
    assert (status, "the time is in the future" in err) == (2, True)


def test_events_are_printed_with_their_append_times(penstock):
    began = datetime.now(UTC).replace(microsecond=0)
    assert penstock("stream", "create", "s/t")[0] == 0
    assert penstock("write", "s/t", stdin=b"one\n")[0] == 0
    time, event = penstock("read", "s/t", "--times")[1].strip().split("\t")
    assert event == "one"
    assert began <= datetime.fromisoformat(time) <= datetime.now(UTC)
    assert json.loads(penstock("read", "s/t", "--times", "--json")[1])["appended_at"] == time


def test_a_table_is_made_changed_read_and_scanned(penstock):
    create = ("table", "create", "s/k", "--primary-bytes", "2", "--secondary-bytes", "1", "--partitions", "3")
    assert penstock(*create)[:2] == (0, "created table s/k with 3 partitions\n")
    assert penstock(*create)[0] == 4
    first = json.loads(penstock("table", "put", "s/k", "aa", "one", "--secondary", "0", "--json")[1])
    assert penstock("table", "put", "s/k", "zz", "two", "--secondary", "0")[0] == 0
    replace = ("table", "put", "s/k", "aa", "new", "--secondary", "0", "--if-version", str(first["version"]))
    assert penstock(*replace)[0] == 0
    status, _, reported = penstock(*replace)
    assert status == 4
    assert "another version" in reported
    assert "value new" in " ".join(penstock("table", "get", "s/k", "aa", "--secondary", "0")[1].split())
    assert penstock("table", "get", "s/k", "bb", "--secondary", "0")[0] == 3
    assert penstock("table", "get", "s/k", "b", "--secondary", "0")[0] == 2
    found = [json.loads(line) for line in penstock("table", "scan", "s/k", "--json")[1].splitlines()]
    assert [(item["key"], item["secondary"], item["value"]) for item in found] == [
        ("aa", "0", "new"),
        ("zz", "0", "two"),
    ]
    assert "zz" not in penstock("table", "scan", "s/k", "--last-key", "ab")[1]
    described = json.loads(penstock("table", "describe", "s/k", "--json")[1])
    assert (described["entries"], described["partitions"]) == (2, 3)
    assert penstock("table", "list", "s", "--json")[1] == '{"table": "s/k"}\n'
    assert penstock("table", "delete", "s/k", "--yes")[0] == 0
    assert penstock("table", "describe", "s/k")[0] == 3


def test_the_repair_command_fixes_a_stuck_stream(penstock, tmp_path):
    penstock("stream", "create", "s/t")
    assert penstock("stream", "repair", "s/t")[:2] == (0, "s/t needs no repair\n")
    entry = keys.queue_entry(StreamName("s", "t"), 0)
    with open_store(tmp_path / "data") as store:
        store.call(lambda inner: inner.segments.table_update(keys.TABLE, [TablePut(key=entry, value=b"rot")]))
    status, _, err = penstock("stream", "seal", "s/t")
    assert status != 0
    assert "metadata record cannot be read" in err
    status, out, _ = penstock("stream", "repair", "s/t")
    assert status == 0
    assert out == f"removed {entry.decode()}: a decision that cannot be read: metadata record cannot be read\n"
    assert penstock("stream", "seal", "s/t")[:2] == (0, "sealed s/t\n")


@pytest.mark.parametrize("position", ["latest", "tail", "as printed"])
def test_a_position_is_an_end_by_either_word_or_a_cut_as_it_is_printed(penstock, tmp_path, position):
    penstock("stream", "create", "s/t", "--segments", "2")
    penstock("write", "s/t", "--key", ".n", stdin=b"".join(b'{"n": %d}\n' % number for number in range(20)))
    with open_store(tmp_path / "data") as store:
        store.reader_group("s/g", ["s/t"], retention="manual")
    tail = next(line for line in penstock("stream", "describe", "s/t")[1].splitlines() if line.startswith("tail"))
    printed = tail.removeprefix("tail").strip()
    assert printed.count("#") == 2
    printed = position if position in ENDS else printed
    assert penstock("read", "s/t", "--from", printed)[:2] == (0, "")
    assert penstock("hold", "add", "s/t", "--reason", "r", "--from", printed)[0] == 0
    assert penstock("retention", "explain", "s/t", "--at", printed)[0] == 0
    for words in (
        ("subscriber", "move", "s/t", "s/g"),
        ("subscriber", "move", "s/t", "s/g", "--acknowledged-only"),
        ("group", "reset", "s/g", "--stream", "s/t"),
    ):
        status, out, err = penstock(*words, "--to", printed, "--dry-run")
        assert status == 0, err
        assert "20 events" in out
    assert penstock("stream", "truncate", "s/t", "--at", printed, "--yes")[0] == 0
    assert penstock("read", "s/t", "--from", "earliest")[:2] == penstock("read", "s/t", "--from", "head")[:2] == (0, "")


def test_the_age_of_unread_events_is_shown_as_a_lower_bound(penstock, tmp_path):
    penstock("stream", "create", "s/t")
    with open_store(tmp_path / "data") as store:
        store.reader_group("s/g", ["s/t"], retention="manual")
    assert "at least" not in penstock("subscriber", "list", "s/t")[1]
    penstock("write", "s/t", stdin=b"a\n")
    for words in (("subscriber", "list", "s/t"), ("subscriber", "describe", "s/t", "s/g")):
        assert "at least" in penstock(*words)[1]


def test_groups_are_listed_and_described_without_a_subscription(penstock, tmp_path):
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b"a\nb\n")
    with open_store(tmp_path / "data") as store:
        store.reader_group("s/g", ["s/t"])
        store.create_scope("other")
        store.reader_group("other/g", ["s/t"], start="tail").reader("dead").open()
    assert penstock("group", "list")[1].split() == ["group", "other/g", "s/g"]
    assert penstock("group", "list", "s", "--json")[1] == '{"group": "s/g"}\n'
    _, out, _ = penstock("group", "describe", "s/g")
    assert "18 B, 2 events behind, oldest unread" in out
    assert "readers none" in " ".join(out.split())
    found = json.loads(penstock("group", "describe", "other/g", "--json")[1])
    assert [item["lag_events"] for item in found["streams"]] == [0]
    assert [item["name"] for item in found["members"]] == ["dead"]
    (row,) = map(json.loads, penstock("group", "members", "other/g", "--json")[1].splitlines())
    assert row == {"reader": "dead", "stream": "s/t", "processed": {"0#0": 18}}
    assert "dead" in penstock("group", "members", "other/g")[1]
    assert penstock("group", "members", "s/none")[0] == 3


def test_a_group_goes_back_by_events_and_shows_first_what_it_would_do(penstock, tmp_path):
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b"a\nb\nc\n")
    with open_store(tmp_path / "data") as store:
        store.reader_group("s/g", ["s/t"], start="tail")
    for words in ("-2 events", "-2"):
        status, out, err = penstock("group", "reset", "s/g", "--to", words, "--dry-run")
        assert (status, out) == (0, "s/g reads again 18 B, 2 events of s/t; nothing was changed\n"), err
    _, out, err = penstock("group", "reset", "s/g", "--to", "-1 event")
    assert [*err.splitlines(), *out.splitlines()] == [
        "would do: s/g reads again 9 B, 1 event of s/t, from 0#0:27 to 0#0:18",
        "s/g reads again 9 B, 1 event of s/t",
    ]
    assert penstock("group", "reset", "s/g", "--to", "-0 events")[0] == 2
    assert penstock("group", "reset", "s/g", "--to", "+1 event")[0] == 2


def test_a_time_is_a_place_to_read_from(penstock):
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b"a\nb\n")
    assert penstock("read", "s/t", "--from", "2026-01-31T12:00:00Z")[:2] == (0, "a\nb\n")
    assert penstock("read", "s/t", "--from", "2026-01-31")[:2] == (0, "a\nb\n")
    for wrong, word in (("2126-01-31T12:00", "future"), ("2126-01-31", "future"), ("yesterday", "position")):
        status, out, err = penstock("read", "s/t", "--from", wrong)
        assert (status, out) == (2, "")
        assert word in err


def test_the_help_names_every_exit_status(penstock):
    _, out, _ = penstock("--help", data=False)
    text = " ".join(out.split("Exit status:")[1].split())
    assert [status for status in range(11) if f" {status} " in f" {text}"] == list(range(11))


def test_reading_stops_at_max_and_tells_places_as_json(penstock):
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b"a\nb\nc\n")
    status, out, _ = penstock("read", "s/t", "--limit", "2", "--json")
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"event": "a", "segment": 0, "offset": 0},
        {"event": "b", "segment": 0, "offset": 9},
    ]
    assert penstock("read", "s/t", "--from", "tail")[1] == ""


def test_a_line_without_its_key_stops_the_write_and_says_how_far_it_came(penstock):
    penstock("stream", "create", "s/t")
    status, _, err = penstock("write", "s/t", "--key", ".user", stdin=b'{"user": 1}\n{"nobody": 2}\n')
    assert status == 2
    assert "written_before=0" in err
    assert "nobody" in err


def test_streams_are_described_scaled_truncated_sealed_and_deleted(penstock):
    penstock("stream", "create", "s/t", "--type", "size", "--min", "1MB", "--max", "2MB", "--tag", "x")
    penstock("write", "s/t", stdin=b"a\nb\n")
    found = json.loads(penstock("stream", "describe", "s/t", "--json")[1])
    assert found["size_bytes"] == 18
    assert found["retention"] == {"type": "size", "min": 10**6, "max": 2 * 10**6, "unit": "bytes"}
    assert found["tags"] == ["x"]
    assert penstock("stream", "scale", "s/t", "--segments", "3")[0] == 0
    assert len(json.loads(penstock("stream", "describe", "s/t", "--json")[1])["segments"]) == 3
    assert penstock("read", "s/t")[1] == "a\nb\n"
    assert penstock("stream", "truncate", "s/t", "--at", "tail", "--yes")[0] == 0
    assert penstock("read", "s/t")[1] == ""
    assert json.loads(penstock("stream", "describe", "s/t", "--json")[1])["size_bytes"] == 0
    assert "s/t" in penstock("stream", "list", "s")[1]
    assert penstock("stream", "delete", "s/t")[0] == 4, "not sealed"
    assert penstock("stream", "seal", "s/t")[0] == 0
    assert penstock("stream", "delete", "s/t", "--yes")[0] == 0
    assert penstock("stream", "describe", "s/t")[0] == 3


def test_a_deleted_stream_is_listed_and_restored(penstock):
    penstock("stream", "create", "s/t", "--tag", "x")
    penstock("write", "s/t", stdin=b"a\nb\n")
    status, out, _ = penstock("stream", "delete", "s/t", "--seal", "--yes")
    assert (status, "`penstock stream restore s/t`, until 20" in out) == (0, True), out
    (listed,) = map(json.loads, penstock("stream", "deleted", "s", "--json")[1].splitlines())
    assert (listed["stream"], listed["rule"]) == ("s/t", "manual")
    assert listed["restorable_until_ms"] - listed["deleted_ms"] > 3_000_000
    assert "s/t" in penstock("stream", "deleted")[1]
    penstock("stream", "create", "s/t")
    status, _, err = penstock("stream", "restore", "s/t")
    assert (status, "a stream of this name exists" in err) == (4, True)
    penstock("stream", "delete", "s/t", "--seal", "--yes")
    status, out, _ = penstock("stream", "restore", "s/t", "--incarnation", "0")
    assert (status, "restored s/t" in out) == (0, True)
    assert penstock("read", "s/t")[1] == "a\nb\n"
    assert json.loads(penstock("stream", "describe", "s/t", "--json")[1])["tags"] == ["x"]
    assert penstock("stream", "restore", "s/other")[0] == 3


def test_retention_is_set_shown_explained_and_run(penstock):
    penstock("stream", "create", "s/t")
    assert "kept forever" in penstock("retention", "show", "s/t")[1]
    assert penstock("retention", "set", "s/t", "--type", "size", "--min", "0")[0] == 0
    penstock("write", "s/t", stdin=b"abc\n" * 100)
    decision = json.loads(penstock("retention", "explain", "s/t", "--json")[1])
    assert decision["why"]
    before = json.loads(penstock("stream", "describe", "s/t", "--json")[1])["size_bytes"]
    assert before == 1100, "explaining removes nothing"
    assert penstock("retention", "run", "s/t", "--json")[0] == 0
    assert json.loads(penstock("stream", "describe", "s/t", "--json")[1])["size_bytes"] == 0
    assert penstock("retention", "set", "s/t", "--none")[0] == 0
    assert "kept forever" in penstock("retention", "show", "s/t")[1]


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["stream", "create", "nonsense"], 2, "SCOPE/STREAM"),
        (["stream", "create", "s/../x"], 2, "SCOPE/STREAM"),
        (["stream", "create", "s/a_b"], 2, "letters, digits"),
        (["stream", "create", "s/t", "--segments", "0"], 2, "segments"),
        (["stream", "create", "s/t", "--min", "1MB"], 2, "--type"),
        (["stream", "create", "s/t", "--type", "size", "--min", "2MB", "--max", "1MB"], 2, "exceeds"),
        (["stream", "create", "s/t", "--type", "size", "--min", "-5"], 2, ""),
        (["stream", "create", "s/t", "--type", "weight"], 2, "size or time"),
        (["stream", "create", "s/t", "--type", "time", "--min", "30"], 2, "not a duration"),
        (["read", "s/none"], 3, "scope"),
        (["write", "s/none"], 3, "scope"),
        (["read", "s/none", "--limit", "0"], 2, "--limit"),
        (["read", "s/none", "--from", "garbage"], 2, "stream cut"),
        (["scope", "delete", "none"], 3, "scope"),
        (["group", "describe", "none"], 2, "SCOPE/GROUP"),
        (["group", "describe", "s/none"], 3, ""),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_reason(penstock, words, status, says):
    penstock("scope", "create", "other")
    got, out, err = penstock(*words)
    assert got == status, (out, err)
    assert says in err
    assert "Traceback" not in err


def test_an_unreachable_store_is_named(penstock):
    status, _, err = penstock("scope", "list", "--controller", "127.0.0.1:1", data=False)
    assert status == 5
    assert "127.0.0.1:1" in err


def test_a_directory_in_use_is_refused_by_the_second_process(penstock, tmp_path):
    from penstock.testing.server import ServerProcess

    with ServerProcess(tmp_path / "data") as server:
        status, _, err = penstock("scope", "list")
        assert status == 8, err
        assert penstock("scope", "create", "x", "--controller", server.address, data=False)[0] == 0


def test_a_directory_that_cannot_be_used_is_one_line_and_no_traceback(penstock, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "LOCK").mkdir()
    status, _, err = penstock("scope", "create", "x")
    assert status != 0
    assert len(err.strip().splitlines()) == 1
    assert "LOCK" in err


def test_reading_makes_no_store_where_none_is(penstock, tmp_path):
    status, _, err = penstock("scope", "list")
    assert status == 2
    assert "no store" in err
    assert not (tmp_path / "data").exists()


def test_if_absent_tells_what_is_there(penstock):
    penstock("stream", "create", "s/t", "--segments", "4", "--type", "size", "--min", "1MB")
    said = penstock("stream", "create", "s/t", "--segments", "2", "--if-absent")[1]
    assert "exists already" in said
    assert "4 segments" in said
    assert "at least 1 MB" in said


def test_a_stream_is_described_with_the_policy_in_force_whatever_level_it_is_from(penstock):
    penstock("scope", "create", "s")
    penstock("retention", "set", "--scope", "s", "--max-age", "30d")
    created = penstock("stream", "create", "s/t")[1]
    shown = penstock("retention", "show", "s/t")[1].splitlines()[0].removeprefix("s/t: ")
    assert "at most 30 d" in shown
    assert created.rstrip().endswith(shown)
    assert penstock("stream", "create", "s/t", "--if-absent")[1].rstrip().endswith(shown)
    assert shown in penstock("stream", "describe", "s/t")[1]
    assert json.loads(penstock("stream", "describe", "s/t", "--json")[1])["sentence"] == shown


def test_an_option_wins_over_the_environment(penstock, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CONTROLLER", "127.0.0.1:1")
    assert penstock("scope", "create", "s")[0] == 0
    status, _, err = penstock("scope", "list", data=False)
    assert (status, "address=127.0.0.1:1" in err) == (5, True)
    assert penstock("scope", "list", "--controller", "127.0.0.1:1")[0] == 2, "two options contradict each other"


def test_a_truncation_of_nothing_says_so(penstock):
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b"a\n")
    out = penstock("stream", "truncate", "s/t", "--at", "tail", "--yes")[1]
    assert out == "truncated s/t at 0#0:9\n  data  9 B, 1 event\n  undo  not possible\n"
    assert penstock("stream", "truncate", "s/t", "--at", "tail")[1] == "s/t begins at 0#0:9: nothing changed\n"


def test_output_that_nobody_reads_any_more_is_no_error(tmp_path):
    command = f"{sys.executable} -m penstock"
    script = (
        f"{command} stream create s/t --data {tmp_path}/d && seq 100000 | {command} write s/t --data {tmp_path}/d"
        f" && {command} read s/t --data {tmp_path}/d | head -1"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "1"
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['penstock', '--help']\n"
        "from penstock.app.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'asyncio', 'grpc', 'pyarrow', 'numpy', 'pyspark', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_server_is_started_with_neither_numpy_nor_arrow():
    code = (
        "import sys\nimport penstock.app.standalone\n"
        "heavy = {'pyarrow', 'numpy', 'pyspark', 'pandas', 'rich', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_planner_decides_on_paper_and_names_lines_that_cannot_be_used(penstock):
    line = {
        "version": 1,
        "id": "one",
        "now_ms": 7000,
        "frequency_ms": 0,
        "stream": {"scope": "s", "name": "n", "epochs": [[{"segment": "0#0", "low": 0.0, "high": 1.0}]], "sealed": {}},
        "truncated_at": None,
        "truncating": False,
        "policy": {"type": "size", "min": 10, "max": None},
        "retention_set": [{"time_ms": 1000, "size_bytes": 10, "cut": {"0#0": 10}}],
        "subscribers": {},
        "tail": {"time_ms": 7000, "size_bytes": 60, "cut": {"0#0": 60}},
        "hold": None,
    }
    good, bad = json.dumps(line), json.dumps(line | {"id": "two", "policy": {"type": "size", "min": 5, "max": 1}})
    status, out, _ = penstock("retention", "plan", "--facts", "-", stdin=f"{good}\n{bad}\n".encode(), data=False)
    decisions = [json.loads(item) for item in out.splitlines()]
    assert status == 1
    assert decisions[0]["id"] == "one"
    assert decisions[0]["truncate"] == {"0#0": 10}
    assert decisions[1]["id"] == "two"
    assert decisions[1]["error"]["field"]
    assert json.loads(penstock("retention", "schema", data=False)[1])["$schema"]


def test_a_command_of_a_room_above_is_listed_without_being_imported(penstock):
    status, out, _ = penstock("--help", data=False)
    assert status == 0
    assert "  spark  " in out
    code = (
        "import sys; sys.argv = ['penstock', '--help']\n"
        "from penstock.app.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'penstock.spark' not in sys.modules and 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_wrong_job_is_refused_by_name(penstock):
    status, _, err = penstock("spark", "laod", data=False)
    assert status == 2
    assert "laod" in err


def test_a_directory_that_a_server_has_tells_how_to_reach_the_server(penstock, tmp_path):
    penstock("stream", "create", "s/t")
    with DataDirectory.open(tmp_path / "data"):
        status, _, err = penstock("read", "s/t")
    assert status == 8
    assert "leave --data out, or name its --controller" in err


def test_a_key_may_lie_deeper_in_the_event(penstock):
    """A name at the top comes first, so that fields with a dot in their name stay what they are."""
    penstock("stream", "create", "s/t", "--segments", "4")
    events = b'{"user": {"id": 1, "tags": ["x"]}}\n{"user": {"id": 2}}\n{"user.id": 3, "user": {"id": 4}}\n'
    assert penstock("write", "s/t", "--key", ".user.id", stdin=events)[0] == 0
    chosen = data._key_chooser(".user.id")
    assert [chosen(line) for line in events.splitlines()] == ["1", "2", "3"]
    assert data._key_chooser(".user.tags.0,.user.id")(events.splitlines()[0]) == "x/1"
    for key, why in (
        (".user.name", "has no such field"),
        (".user", "is an object or a list"),
        (".user.tags", "is an ob"),
    ):
        status, _, err = penstock("write", "s/t", "--key", key, stdin=events)
        assert status == 2, key
        assert f"--key {key}" in err, err
        assert why in err, err
    assert penstock("write", "s/t", "--key", ".user..id", stdin=events)[0] == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_commands_run_with_closed_standard_streams(tmp_path, closed):
    with open_store(tmp_path / "store") as store, store.create_stream("s/t", create_scope=True).writer() as writer:
        writer.write("event")
    script = f"{sys.executable} -m penstock read s/t --data {tmp_path / 'store'} {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_records_pass_through_a_pipe_as_they_were(penstock):
    penstock("stream", "create", "s/t")
    penstock("stream", "create", "s/copy")
    lines = [
        '{"key": "user-7", "value": "{\\"order\\": 1}", "headers": {"lang": "en"}, "timestamp_ms": 5}',
        '{"value_base64": "/w==", "key_base64": "/w==", "headers": [{"name": "h", "value": null}]}',
        '{"key": "user-7", "value": null}',
    ]
    assert penstock("write", "s/t", "--record", stdin="\n".join(lines).encode())[0] == 0
    status, out, _ = penstock("read", "s/t", "--record")
    assert status == 0
    assert penstock("write", "s/copy", "--record", stdin=out.encode())[0] == 0
    assert penstock("read", "s/copy", "--record")[1] == out
    shown = [json.loads(line) for line in out.splitlines()]
    assert [(one["segment"], one.pop("offset") >= 0, one.pop("segment")) for one in shown] == [(0, True, 0)] * 3
    assert shown == [
        {
            "key": "user-7",
            "value": '{"order": 1}',
            "headers": [{"name": "lang", "value": "en"}],
            "timestamp_ms": 5,
        },
        {"key_base64": "/w==", "value_base64": "/w==", "headers": [{"name": "h", "value": None}]},
        {"key": "user-7", "value": None},
    ]


@pytest.mark.parametrize(
    "line", ["plain", "[1]", '{"key": "k"}', '{"value": 1}', '{"value": "x", "keys": "k"}', '{"value_base64": "?"}']
)
def test_a_line_that_is_no_record_is_refused_and_names_what_was_written(penstock, line):
    penstock("stream", "create", "s/t")
    status, _, err = penstock("write", "s/t", "--record", stdin=f'{{"value": "a"}}\n{line}\n'.encode())
    assert status == 2
    assert "record" in err or "base64" in err
    assert penstock("write", "s/t", "--record", "--key", "k", stdin=b"")[0] == 2


def test_plain_events_among_records_are_shown_as_events(penstock):
    penstock("stream", "create", "s/t")
    penstock("write", "s/t", stdin=b'{"plain": 1}\n')
    _, out, _ = penstock("read", "s/t", "--record")
    assert json.loads(out) == {"event": {"plain": 1}, "segment": 0, "offset": 0}
