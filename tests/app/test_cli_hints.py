"""What commands and errors suggest to do next is there when it helps, and works when it is followed."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock as api
from penstock.app.cli.main import app
from penstock.model.errors import DirectoryInUseError, StreamNotFoundError

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def command(*words: str, stdin: str = "") -> str:
        done = CliRunner().invoke(app, [*words, "--data", str(tmp_path / "data")], input=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.output

    command("stream", "create", "s/t")
    return command


def undo(output: str) -> str:
    return next(line.removeprefix("undo: ") for line in output.splitlines() if line.startswith("undo: "))


@pytest.mark.parametrize(
    "level", [("s/t",), *(pytest.param(level, marks=pytest.mark.slow) for level in (("--scope", "s"), ("--server",)))]
)
def test_a_change_of_a_policy_is_undone_by_the_command_that_it_prints(run: Run, level: tuple[str, ...]) -> None:
    shown = [json.loads(run("retention", "show", *level, "--json"))["document"]]
    commands = []
    for change in (("--max-age", "30d", "--grace", "1h"), ("--max-bytes", "10MB"), ("--none",)):
        commands.append(undo(run("retention", "set", *level, *change)))
        shown.append(json.loads(run("retention", "show", *level, "--json"))["document"])
    assert "undo:" not in run("retention", "set", *level, "--none"), "nothing has changed"
    for command in reversed(commands):
        shown.pop()
        before, _, words = command.rpartition("penstock ")
        run(*shlex.split(words), stdin=shlex.split(before)[1] if before else "")
        assert json.loads(run("retention", "show", *level, "--json"))["document"] == shown[-1]


def test_a_missing_stream_that_can_be_restored_is_restored_by_the_command_in_the_error(run: Run) -> None:
    with pytest.raises(StreamNotFoundError) as never:
        run("stream", "describe", "s/never")
    assert "restore" not in str(never.value)
    run("stream", "delete", "s/t", "--seal", "--yes")
    with pytest.raises(StreamNotFoundError) as deleted:
        run("stream", "describe", "s/t")
    assert "`penstock stream restore s/t`" in str(deleted.value)
    run("stream", "restore", "s/t")
    run("stream", "describe", "s/t")


def test_deleted_streams_are_listed_by_scope_or_by_name(run: Run) -> None:
    for name in ("s/t", "s/u", "other/t"):
        run("stream", "create", name, "--if-absent")
        run("stream", "delete", name, "--seal", "--yes")

    def listed(*target: str) -> set[str]:
        return {json.loads(line)["stream"] for line in run("stream", "deleted", *target, "--json").splitlines()}

    assert listed() == {"s/t", "s/u", "other/t"}
    assert listed("s") == {"s/t", "s/u"}
    assert listed("s/t") == {"s/t"}


def test_a_directory_in_use_says_what_to_do(tmp_path: Path) -> None:
    with api.open(tmp_path / "data"):
        script = f"import penstock; penstock.open({str(tmp_path / 'data')!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert DirectoryInUseError.__name__ in done.stderr
    assert "stop it, or connect to it if it is a server" in done.stderr


def test_ctrl_c_while_the_command_line_is_loaded_prints_no_traceback() -> None:
    script = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "penstock.app.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from penstock.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
