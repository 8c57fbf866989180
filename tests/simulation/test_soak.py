"""The long forms: one line per promise, and a failure is never lost among them."""

import sys

import pytest

from tests import soak
from tests.soak import CHECKS, PROMISES, Check, Outcome


def check_that(script, name="simulation"):
    return Check(name=name, what="a check", minutes=1, count=8, command=lambda count: ["-c", script, str(count)])


def test_every_promise_is_shown_by_checks_that_there_are():
    names = {check.name for check in CHECKS}
    assert len(names) == len(CHECKS)
    for promise in PROMISES:
        assert promise.shown_by
        assert set(promise.shown_by) <= names
    assert {name for promise in PROMISES for name in promise.shown_by} == names


@pytest.mark.parametrize(("status", "kept"), [(0, True), (1, False), (3, False)])
def test_the_last_line_is_the_figure_and_the_status_the_verdict(status, kept):
    outcome = soak.run(check_that(f"import sys; print('first'); print('7 things'); sys.exit({status})"), 1.0)
    assert (outcome.kept, outcome.figure) == (kept, "7 things")


def test_what_cannot_be_run_here_is_no_failure_and_no_proof():
    outcome = soak.run(check_that("import sys; sys.exit(77)"), 1.0)
    assert outcome.kept is None
    assert soak.verdict_of({"simulation": outcome}) == "not shown"
    # A command that was called wrongly says so, and is a failure.
    assert soak.run(check_that("import sys; sys.exit(2)"), 1.0).kept is False


def test_one_failure_breaks_a_promise():
    good, bad = Outcome(True, "1", 0), Outcome(False, "2", 0)
    assert soak.verdict_of({"a": good, "b": bad}) == "BROKEN"
    line = soak.line_of(PROMISES[0], {"simulation": good, "kills": bad})
    assert "BROKEN" in line
    assert "simulation: 1" in line
    assert "kills: 2" in line
    assert "\n" not in line


def test_all_checks_are_run_whatever_fails(monkeypatch, capsys):
    checks = [check_that("import sys; print('broken here'); sys.exit(1)"), check_that("print('counted 8')", "kills")]
    monkeypatch.setattr(soak, "CHECKS", checks)
    assert soak.main([]) == 1
    out = capsys.readouterr().out
    assert "counted 8" in out
    assert "broken here" in out
    assert len([line for line in out.splitlines() if line.startswith("B1 ")]) == 1


def test_only_what_is_asked_for_is_run(monkeypatch, capsys):
    monkeypatch.setattr(soak, "CHECKS", [check_that("print('sim')"), check_that("print('k')", "kills")])
    assert soak.main(["--only", "kills"]) == 0
    assert "sim" not in capsys.readouterr().out.replace("simulation", "")
    with pytest.raises(SystemExit):
        soak.main(["--only", "nothing like that"])


def test_minutes_scale_the_counts(capsys):
    assert (
        soak.main(
            ["--list", "--only", "flips", "--minutes", str(next(c.minutes for c in CHECKS if c.name == "flips") / 4)]
        )
        == 0
    )
    assert "--flips 500" in capsys.readouterr().out
    assert sys.executable
