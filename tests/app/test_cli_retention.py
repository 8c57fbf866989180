"""Retention, holds and subscribers on the command line, over a controller in memory: what is said, asked and refused."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from retention_fakes import FIRST, NOW_MS, FakeController, FakeStream

from penstock.app.cli import audit, holds, planned_facts, retention, subscribers
from penstock.app.cli.common.words import decision_words, moment, parse_moment, range_words, value_words
from penstock.app.cli.main import main
from penstock.codec.control.policy_document import decode_document, encode_document
from penstock.model.answers.explanation import ExplainedRange
from penstock.model.answers.plan import Writers
from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, INHERIT
from tests.example_answers import run_answer

S = StreamName("s", "t")
Run = Callable[..., tuple[int, str, str]]


class Terminal(io.TextIOWrapper):
    """Standard input that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def world() -> FakeController:
    return FakeController(
        {
            "s/t": FakeStream(tail=1000, subscribers={"s/g": 400, "s/silent": None}),
            "s/u": FakeStream(tail=5000),
            "other/v": FakeStream(tail=100),
        }
    )


@pytest.fixture
def penstock(world: FakeController, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command; gives (status, stdout, stderr). ``answer``: what a user at a terminal types."""

    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Any]:
        with world.store() as store:
            yield store

    for module in (retention, holds, subscribers, audit):
        monkeypatch.setattr(module, "open_target", opened)

    def run(*words: str, stdin: str = "", answer: str | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *words])
        given = io.BytesIO((answer or stdin).encode())
        monkeypatch.setattr(sys, "stdin", Terminal(given) if answer is not None else io.TextIOWrapper(given))
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_a_change_that_removes_nothing_is_set_without_a_question(penstock: Run, world: FakeController) -> None:
    status, out, _ = penstock("retention", "set", "s/t", "--min-age", "7d", "--min-bytes", "50GB", "--max-age", "30d")
    assert status == 0
    assert out.startswith(
        "s/t: kept at least 7 d or 50 GB, at most 30 d, even if unread; consumed data older than that"
    )
    assert "retain.max_age_s: inherited -> 30 d" in out
    assert encode_document(world.documents[S]) == {
        "retain": {"min_bytes": 50_000_000_000, "min_age_s": 604_800, "max_age_s": 2_592_000}
    }


def test_without_a_terminal_data_goes_only_with_yes(penstock: Run, world: FakeController) -> None:
    status, out, err = penstock("retention", "set", "s/t", "--max-bytes", "600B")
    assert (status, out) == (2, "")
    assert "--yes" in err
    assert "frees_bytes=400" in err
    assert "events=40" in err
    assert world.set_calls == 0
    status, out, _ = penstock("retention", "set", "s/t", "--max-bytes", "600B", "--yes")
    assert status == 0
    assert world.documents[S].retain.max_bytes == 600


def test_the_plan_is_shown_before_the_question(penstock: Run, world: FakeController) -> None:
    status, _, err = penstock("retention", "set", "s/t", "--max-bytes", "500B", answer="n\n")
    assert status == 1
    for words in (
        "500 B, 50 events",
        "written",
        "2027-01-15 07:59:55Z to 2027-01-15 08:00:00Z",
        "s/g: loses unread data, 100 B",
    ):
        assert words in err, err
    assert "nothing was changed" in err
    assert world.set_calls == 0
    status, out, _ = penstock("retention", "set", "s/t", "--max-bytes", "500B", answer="y\n")
    assert status == 0
    assert world.documents[S].retain.max_bytes == 500
    assert "at most 500 B" in out


def test_as_json_the_answer_holds_the_plan_and_the_refusal_is_an_object(penstock: Run) -> None:
    status, out, err = penstock("retention", "set", "s/t", "--max-bytes", "600B", "--json")
    assert (status, out) == (2, "")
    assert json.loads(err)["fields"]["frees_bytes"] == 400
    status, out, _ = penstock("retention", "set", "s/t", "--max-bytes", "600B", "--json", "--yes")
    found = json.loads(out)
    assert found["plan"]["frees_bytes"] == 400
    assert found["document"] == {"retain": {"max_bytes": 600}}
    assert found["retention"] == {"type": "size", "min": 0, "max": 600, "unit": "bytes"}


def test_fields_that_are_not_given_stay_and_inherit_takes_one_away(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "s/t", "--ttl", "14d", "--grace", "0", "--evict-to", "80%", "--idle-when", "caught_up")
    penstock(
        "retention", "set", "s/t", "--backlog-events", "5000", "--on-exceed", "reject", "--backlog-bytes", "unlimited"
    )
    assert encode_document(world.documents[S]) == {
        "backlog": {"ttl_s": 1_209_600, "max_bytes": None, "max_events": 5000, "on_exceed": "reject", "evict_to": 0.8},
        "idle": {"stream_when": "caught_up"},
        "grace_s": 0,
    }
    penstock("retention", "set", "s/t", "--ttl", "inherit")
    assert world.documents[S].backlog.ttl_s is INHERIT
    penstock("retention", "unset", "s/t", "--field", "grace_s", "--field", "backlog.evict_to")
    assert encode_document(world.documents[S]) == {
        "backlog": {"max_bytes": None, "max_events": 5000, "on_exceed": "reject"},
        "idle": {"stream_when": "caught_up"},
    }
    penstock("retention", "unset", "s/t")
    assert world.documents[S] == EMPTY


def test_pravegas_form_replaces_limits_and_leaves_the_rest(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "s/t", "--ttl", "1d", "--max-age", "9d")
    assert penstock("retention", "set", "s/t", "--type", "size", "--min", "1MB", "--max", "2MB")[0] == 0
    assert encode_document(world.documents[S]) == {
        "retain": {"min_bytes": 1_000_000, "max_bytes": 2_000_000},
        "unsubscribed": "release",
        "backlog": {"ttl_s": 86_400},
    }
    assert penstock("retention", "set", "s/t", "--none")[0] == 0
    assert encode_document(world.documents[S]) == {"backlog": {"ttl_s": 86_400}}


def test_a_whole_document_comes_from_a_file_or_a_pipe(penstock: Run, world: FakeController, tmp_path: Path) -> None:
    body = {"retain": {"max_age_s": 60}, "unsubscribed": "keep"}
    (tmp_path / "policy.json").write_text(json.dumps(body))
    penstock("retention", "set", "s/t", "--ttl", "1d")
    assert penstock("retention", "set", "s/t", "--policy", str(tmp_path / "policy.json"))[0] == 0
    assert encode_document(world.documents[S]) == body
    assert penstock("retention", "set", "s/t", "--policy", "-", "--grace", "5s", stdin=json.dumps(body))[0] == 0
    assert encode_document(world.documents[S]) == {**body, "grace_s": 5}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["set", "s/t"], "name the change"),
        (["set", "--max-age", "1d"], "name one level"),
        (["set", "s/t", "--server", "--max-age", "1d"], "name one level"),
        (["set", "s/t", "--max-age", "1"], "--max-age cannot be used: not a duration"),
        (["set", "s/t", "--max-bytes", "-1"], "--max-bytes cannot be used: not a size"),
        (["set", "s/t", "--max-bytes", "-1"], 'for no limit write "unlimited"'),
        (["set", "s/t", "--ttl", "none"], 'for no limit write "unlimited"'),
        (["set", "s/t", "--backlog-events", "none"], 'for no limit write "unlimited"'),
        (["set", "s/t", "--max-age", "5M"], "m is minutes, and months are not a unit"),
        (["set", "s", "--max-age", "1d"], "write --scope s"),
        (["set", "s/t", "--none", "--max-age", "1d"], "given=--max-age"),
        (["set", "s/t", "--none", "--unsubscribed", "keep"], "given=--unsubscribed"),
        (["plot", "s/t", "--png", "p.txt"], ".png, .svg or .pdf"),
        (["plot", "s/t", "--png", "/no/such/p.png"], "no such directory"),
        (
            ["set", "s/t", "--ttl", "0"],
            "rule=it is more than 0; unlimited lifts the limit accepted=seconds, more than 0, or unlimited",
        ),
        (["set", "s/t", "--evict-to", "1.5"], "rule=it is a share above 0 and up to 1"),
        (["set", "s/t", "--evict-to", "nan"], "rule=it is a finite number"),
        (["set", "s/t", "--backlog-events", "many"], "--backlog-events must be a number"),
        (["set", "s/t", "--on-exceed", "drop"], 'accepted="hold", "reject", "evict"'),
        (["set", "s/t", "--combine", "unlimited"], "it cannot be unlimited"),
        (["set", "s/t", "--min-age", "2d", "--max-age", "1d"], "the minimum exceeds the maximum"),
        (["set", "s/t", "--policy", "/no/such"], "no such policy file"),
        (["set", "s/t", "--type", "size", "--min", "1", "--none"], "--type or --none"),
        (["unset", "s/t", "--field", "ttl"], "no such field"),
        (["plan", "--scope", "s"], "give the change to plan"),
        (["plan", "s/t", "--facts", "-"], "cannot be combined"),
        (["plan", "--facts", "/no/such"], "no such file of facts"),
        (["plan", "s/t", "--as-of", "soon"], "not a time"),
        (["explain", "s/t", "--at", "garbage"], "stream cut"),
        (["audit", "--kind", "nothing"], "no such kind"),
        (["audit", "--last", "0"], "--last must be at least 1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason_and_nothing_is_set(
    penstock: Run, world: FakeController, words: list[str], says: str
) -> None:
    status, _, err = penstock("retention", *words)
    assert status == 2, err
    assert says in err
    assert "Traceback" not in err
    assert world.set_calls == 0


@pytest.mark.parametrize("text", ["{", '"x"', '{"retain": {"min": 1}}', "[" * 99_999])
def test_a_document_that_is_none_is_refused(penstock: Run, world: FakeController, text: str) -> None:
    status, _, err = penstock("retention", "set", "s/t", "--policy", "-", stdin=text)
    assert status == 2, err
    assert "Traceback" not in err
    assert world.set_calls == 0


def test_two_levels_that_contradict_each_other_are_named(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "--server", "--max-age", "1d")
    status, _, err = penstock("retention", "set", "s/t", "--min-age", "2d")
    assert status == 2
    assert "level server" in err
    assert S not in world.documents


def test_a_scope_is_planned_stream_by_stream_and_asked_for_once(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "s/u", "--max-bytes", "unlimited")
    status, out, err = penstock("retention", "set", "--scope", "s", "--max-bytes", "600B")
    assert (status, out) == (2, "")
    assert "1 stream; 1 would lose data: 400 B, 40 events" in err
    assert "s/t: 400 B, 40 events" in err
    assert "s" not in world.documents
    found = json.loads(penstock("retention", "plan", "--scope", "s", "--max-bytes", "600B", "--json")[1])
    assert (found["streams"], found["removing"], found["frees_bytes"]) == (1, 1, 400)
    assert list(found["decisions"]) == ["s/t"]
    assert penstock("retention", "set", "--scope", "s", "--max-bytes", "600B", "--yes")[0] == 0
    assert world.documents["s"].retain.max_bytes == 600


def test_the_server_reaches_all_scopes_but_what_other_levels_say(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "--scope", "other", "--max-bytes", "unlimited")
    found = json.loads(penstock("retention", "plan", "--server", "--max-bytes", "1B", "--json")[1])
    assert (found["streams"], found["frees_bytes"]) == (2, 999 + 4999)
    assert list(found["decisions"]) == ["s/u", "s/t"], "the largest first"


def test_show_names_each_value_with_its_level(penstock: Run) -> None:
    penstock("retention", "set", "--server", "--grace", "1h")
    penstock("retention", "set", "--scope", "s", "--max-age", "30d")
    penstock("retention", "set", "s/t", "--min-bytes", "50GB", "--max-bytes", "unlimited")
    status, out, _ = penstock("retention", "show", "s/t")
    assert status == 0
    assert out.startswith("s/t: kept at least 50 GB, at most 30 d where the minimum allows it")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(("retain.", "grace"))}
    assert rows["retain.min_bytes"] == ["50", "GB", "stream"]
    assert rows["retain.min_age_s"] == ["none", "default"]
    assert rows["retain.max_bytes"] == ["unlimited", "stream"]
    assert rows["retain.max_age_s"] == ["30", "d", "scope"]
    assert rows["grace_s"] == ["1", "h", "server"]
    assert rows["retain.combine"] == ["any", "default"]
    assert "note: the minimum wins over max_age_s" in out
    found = json.loads(penstock("retention", "show", "s/t", "--json")[1])
    assert found["effective"]["retain"]["max_age_s"] == {"value": 2_592_000, "from": "scope"}
    assert found["document"] == {"retain": {"min_bytes": 50_000_000_000, "max_bytes": None}}
    assert penstock("retention", "show", "--scope", "s")[1].startswith(
        "scope s: streams without a policy of their own are kept"
    )
    assert penstock("retention", "show", "--scope", "none")[0] == 3
    assert penstock("retention", "show", "s/none")[0] == 3


def test_plan_says_what_goes_later_or_with_a_change_and_changes_nothing(penstock: Run, world: FakeController) -> None:
    status, out, _ = penstock("retention", "plan", "s/t", "--max-bytes", "300B", "--as-of", "2030-01-01")
    assert status == 0
    assert "700 B, 70 events" in out
    assert "2030-01-01 00:00:00Z" in out
    assert "s/g: loses unread data, 300 B, 30 events, by maximum" in out
    assert json.loads(penstock("retention", "plan", "s/t", "--json")[1])["frees_bytes"] == 0
    assert world.set_calls == 0


def test_data_that_is_due_has_no_time_until_which_it_is_kept() -> None:
    held = ExplainedRange(kind="hold", name="case-7", bytes=1, start=None, end=None, release_ms=NOW_MS)
    assert range_words(held).endswith("at the earliest")
    assert range_words(replace(held, kind="due", name="")).endswith("the next cycle deletes it")


def test_explain_run_undo_reclaim_and_forecast_speak(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "s/t", "--max-bytes", "600B", "--yes")
    out = penstock("retention", "explain", "s/t")[1]
    assert "until 2027-01-15 08:00:00Z at the earliest" in out
    assert "released" in penstock("retention", "explain", "s/t", "--at", "head")[1]
    first = StreamCut(S, {FIRST: 0}).to_text()
    assert "400 B" in penstock("retention", "run", "s/t")[1]
    assert world.made[S].head == 400
    out = penstock("retention", "explain", "s/t", "--at", first)[1]
    assert "2027-01-15 08:00:00Z or earlier, by maximum, with 400 B" in out
    assert "begins again" in penstock("retention", "undo", "s/t")[1]
    assert world.made[S].head == 0
    status, _, err = penstock("retention", "undo", "s/t")
    assert status == 4
    assert "taken back" in err
    out = penstock("retention", "reclaim", "s/t")[1]
    assert "3 MB" in out
    assert "2 kB kept for an undo, by the grace of the policy, until 2027-01-15 08:00:01Z" in out
    assert "leases" not in out
    assert json.loads(penstock("retention", "reclaim", "s/t", "--json")[1])["disk_bytes"] == 3_000_000
    out = penstock("retention", "forecast", "s/t")[1]
    assert "retain.max_bytes 1 kB: 400 B used, reached in 12 s, 2027-01-15 08:00:12Z" in out
    assert "backlog.max_bytes 500 B of s/g: 500 B used, reached now" in out
    assert "disk 9 kB: 500 B used, not reached at this rate" in out
    assert "50 B/s" in out


def test_holds_are_added_listed_and_released(penstock: Run, world: FakeController) -> None:
    status, out, _ = penstock("hold", "add", "s/t", "--reason", "case 7", "--owner", "legal", "--until", "2030-01-01")
    (made,) = world.held
    assert (status, out) == (0, f"hold {made} keeps s/t until 2030-01-01 00:00:00Z\n")
    assert penstock("hold", "add", "s", "--reason", "audit", "--owner", "legal", "--id", "mine")[0] == 0
    assert (
        penstock("hold", "add", "s/t", "--reason", "from here", "--owner", "o", "--from", "tail", "--id", "tail")[0]
        == 0
    )
    held = world.held["tail"]
    assert held.cut is not None
    assert list(held.cut.positions.values()) == [1000]
    out = penstock("hold", "list")[1]
    assert all(word in out for word in ("case 7", "legal", "s/*", "from a cut on", "until released"))
    lines = [json.loads(line) for line in penstock("hold", "list", "s/t", "--json")[1].splitlines()]
    assert [line["id"] for line in lines] == sorted([made, "mine", "tail"])
    assert len(out.splitlines()) == 1 + len(lines)
    assert penstock("hold", "list", "other", "--json")[1] == ""
    assert json.loads(penstock("hold", "release", "mine", "--owner", "o", "--json", "--yes")[1])["scope"] == "s"
    assert penstock("hold", "release", "mine", "--yes")[0] == 3
    assert penstock("hold", "add", "s", "--reason", "r", "--from", "head")[0] == 2
    assert penstock("hold", "add", "s/t", "--owner", "o")[0] == 2, "a hold has a reason"


def test_a_hold_is_one_line_with_its_whole_id_however_narrow_the_terminal(
    penstock: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name, reason = "case-" + "7" * 50, "[bold] a long story\n" * 10
    penstock("hold", "add", "s/t", "--reason", reason, "--owner", "legal", "--id", name)
    _, line = penstock("hold", "list")[1].splitlines()
    assert line.startswith(f"{name}  s/t")
    assert " ".join(reason.splitlines()) in line


def test_none_takes_all_limits_away_also_those_that_pravega_cannot_say(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "s/t", "--min-age", "7d", "--min-bytes", "200KB", "--unsubscribed", "release")
    penstock("retention", "set", "s/t", "--ttl", "1d")
    assert penstock("retention", "set", "s/t", "--none")[0] == 0
    assert encode_document(world.documents[S]) == {"backlog": {"ttl_s": 86_400}}


def test_subscribers_are_listed_described_moved_and_removed(penstock: Run, world: FakeController) -> None:
    out = penstock("subscriber", "list", "s/t")[1]
    assert "600 B" in out
    assert "silent" in out
    rows = [json.loads(line) for line in penstock("subscriber", "list", "s/t", "--json")[1].splitlines()]
    assert {row["name"]: row["lag_events"] for row in rows} == {"s/g": 60, "s/silent": 100}
    assert "600 B, 60 events" in penstock("subscriber", "describe", "s/t", "s/g")[1]
    assert "has published nothing" in penstock("subscriber", "describe", "s/t", "s/silent")[1]
    assert penstock("subscriber", "describe", "s/t", "s/nobody")[0] == 3

    move = ("subscriber", "move", "s/t", "s/g", "--acknowledged-only", "--to")
    out = penstock(*move, "tail", "--dry-run")[1]
    assert out == "s/g acknowledges 600 B, 60 events of s/t; its readers stay where they are; nothing was changed\n"
    status, _, err = penstock(*move, "latest")
    assert status == 2
    assert "--yes" in err
    assert world.made[S].subscribers["s/g"] == 400
    assert penstock(*move, "latest", answer="n\n")[0] == 1
    assert world.made[S].subscribers["s/g"] == 400
    assert penstock(*move, "latest", answer="y\n")[0] == 0
    assert world.made[S].subscribers["s/g"] == 1000
    # Backwards nothing can be lost, so nothing is asked.
    assert "no longer acknowledges 1 kB, 100 events" in penstock(*move, "head")[1]

    assert penstock("subscriber", "remove", "s/t", "s/g")[0] == 2
    assert penstock("subscriber", "remove", "s/t", "s/g", "--yes")[0] == 0
    assert penstock("subscriber", "remove", "s/t", "s/silent")[0] == 0, "it held nothing"
    assert penstock("subscriber", "remove", "s/t", "s/silent")[0] == 3
    assert world.made[S].subscribers == {}


def test_a_move_that_passes_data_at_one_key_only_is_asked_for() -> None:
    moved = SubscriberMove(
        stream="s/t", subscriber="s/g", start={"0#0": 50, "1#0": 90}, end={"0#0": 100, "1#0": 0}, from_cut="", lower_cut="",
        bytes=-40, events=-4, passed_bytes=50, passed_events=5,
    )  # fmt: skip
    loss = subscribers.skipped("s/t", "s/g", moved)
    assert loss is not None
    assert loss.fields == {"subscriber": "s/g", "bytes": 50, "events": 5}
    assert subscribers.skipped("s/t", "s/g", replace(moved, passed_bytes=0, passed_events=0)) is None


def test_moments_are_read_as_people_write_them() -> None:
    assert parse_moment("7d", now_ms=NOW_MS) == NOW_MS + 7 * 86_400_000
    assert parse_moment("+12h", now_ms=0) == 12 * 3_600_000
    assert parse_moment("1970-01-02", now_ms=0) == 86_400_000
    assert parse_moment("1970-01-01T01:00:00+01:00", now_ms=5) == 0
    assert parse_moment("1234567890123", now_ms=0) == 1_234_567_890_123
    assert moment(0) == "1970-01-01 00:00:00Z"
    assert moment(1 << 62).endswith(" ms")
    for text in ("", "yesterday", "2026-13-01", "7"):
        if text != "7":
            with pytest.raises(InvalidArgumentError):
                parse_moment(text, now_ms=0)


def test_writers_that_wait_are_told_with_rule_and_culprit() -> None:
    verdict = Writers(
        state="hold", exceeded=True, rule="backlog-bytes", subscriber="s/g", total_bytes=5, total_events=None
    )
    assert decision_words(run_answer(writers=verdict))["writers"] == "wait, by backlog-bytes, until s/g has read"
    assert "writers" not in decision_words(run_answer(writers=replace(verdict, exceeded=False)))


def test_values_that_are_not_known_here_are_shown_as_they_came() -> None:
    assert value_words("lost_bytes", 1500) == "1.5 kB"
    assert value_words("window_ms", 60_000) == "1 min"
    assert value_words("at_ms", NOW_MS) == "2027-01-15 08:00:00Z"
    assert value_words("sealed", True) == "yes"
    assert value_words("items", [{"bytes": 5, "name": ""}]) == ["bytes 5 B"]
    assert value_words("what", "text") == "text"


@pytest.mark.parametrize(
    ("about", "target", "concerns"),
    [("s/t", "s/t", True), ("s", "s/t", True), ("", "s/t", True), ("s/u", "s/t", False), ("s/t", "s", True),
     ("st/t", "s", False), ("s/t", None, True), ("other", "s/t", False)],
)  # fmt: skip
def test_an_entry_concerns_its_target_and_the_levels_below(about: str, target: str | None, concerns: bool) -> None:
    assert audit._concerns({"target": about}, target) is concerns


def test_an_unreadable_audit_entry_hides_no_other() -> None:
    events = [b'{"v":1,"kind":"truncate","target":"s/t","at_ms":5}', b"rubbish", b'{"v":99}']
    assert [entry["kind"] for entry in audit._entries(iter(events))] == ["truncate", "unreadable", "unreadable"]


def test_help_teaches_with_examples(penstock: Run) -> None:
    for words in (["retention"], ["hold"], ["subscriber"], ["retention", "set"], ["retention", "plan"]):
        out = penstock(*words, "--help")[1]
        assert "penstock " + words[0] in out
    assert "inherit" in penstock("retention", "--help")[1]


def test_a_document_read_back_from_show_can_be_set_again(penstock: Run, world: FakeController) -> None:
    penstock("retention", "set", "s/t", "--min-age", "36h", "--ttl", "500ms", "--combine", "all")
    shown = json.loads(penstock("retention", "show", "s/t", "--json")[1])["document"]
    before = world.documents[S]
    penstock("retention", "set", "s/t", "--policy", "-", stdin=json.dumps(shown))
    assert world.documents[S] == before == decode_document(shown)


def test_lines_of_facts_that_are_no_text_or_too_long_are_answered_and_the_others_go_on(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_facts, "LINE_MAX_BYTES", 1000)
    (tmp_path / "facts").write_bytes(b"\xff\n" + b" " * 5000 + b"\n\n{}\n" + b"x" * 1001)
    status, out, _ = penstock("retention", "plan", "--facts", str(tmp_path / "facts"))
    assert status == 1
    messages = [json.loads(line)["error"]["message"] for line in out.splitlines()]
    assert messages[0] == "line is not UTF-8"
    assert messages[1].startswith("line is longer")
    assert "longer" not in messages[2]
    assert messages[3].startswith("line is longer")
    assert len(messages) == 4
