"""A call imports and builds only its own command. Help, completion and suggestions know the others by name and first
sentence, and what they show is what the command itself has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from penstock.app.cli.common.late import imported
from penstock.app.cli.main import app
from tests.command_line import whole_tree

ROOT: Any = typer.main.get_command(app)
LATE = ROOT.late
MODULES = {place.partition(":")[0] for place, _ in LATE.values()}


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)


def shown(command: Any) -> Any:
    return command.name, command.help, [(item.name, item.opts, item.default, item.metavar) for item in command.params]


def loaded_by(*words: str) -> set[str]:
    """The modules of commands that a call imports."""
    code = (
        "import sys; from penstock.app.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return MODULES & set(done.stderr.split())


def completed(*words: str) -> set[str]:
    environment = {
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["penstock", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return set(CliRunner().invoke(app, [], env=environment, prog_name="penstock").output.split())


@pytest.mark.parametrize("name", LATE)
def test_the_listed_sentence_is_the_first_one_of_the_command(name: str) -> None:
    command = imported(name, LATE[name][0])
    for width in (30, 55, 100, 1000):
        assert ROOT.commands[name].get_short_help_str(width) == command.get_short_help_str(width)
    assert command.name == name
    assert not command.hidden


def test_the_narrowed_command_is_the_one_of_the_whole_tree() -> None:
    paths = dict(commands(whole_tree()))
    assert len(paths) > 110
    for words, command in paths.items():
        first, *rest = words
        found = imported(first, LATE[first][0], [*rest, "--help", "x"])
        narrow = {(first,): found, **dict(commands(found, first))} if rest else {words: found}
        assert shown(narrow[words]) == shown(command), words
        if rest:
            # A group that is called by itself has all its commands, for its help and for suggestions.
            below = {path for path in paths if path[: len(words)] == words}
            above = {words[:length] for length in range(1, len(words))}
            assert set(narrow) == below | above, words


def test_words_that_name_no_command_leave_a_group_whole() -> None:
    for words in ([], ["--help"], ["lsit"], ["--help", "list"]):
        assert {"list", "create"} <= set(imported("stream", LATE["stream"][0], words).commands)
    narrow = imported("stream", LATE["stream"][0], ["scaling", "shwo"])
    assert set(narrow.commands) == {"scaling"}
    assert {"set", "explain"} == set(narrow.commands["scaling"].commands)


def test_a_call_imports_only_its_own_command() -> None:
    assert loaded_by("--help") == set()
    assert loaded_by("nonsense") == set()
    assert loaded_by("standalone", "--help") == {"penstock.app.cli.upkeep.servers"}
    assert loaded_by("scope", "--help") == {"penstock.app.cli.scopes"}


def test_all_commands_are_listed_completed_and_suggested() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    assert [line.split()[0] for line in output.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()] == [*LATE]
    assert completed("") == set(LATE)
    assert completed("st") == {"standalone", "store", "stream"}
    assert "describe" in completed("stream", "de")
    assert "--data" in completed("standalone", "--da")
    for wrong, meant in (("strem", "'stream'"), ("sparc", "'spark'"), ("standalon", "'standalone'")):
        refused = CliRunner().invoke(app, [wrong])
        assert refused.exit_code == 2
        assert f"No such command '{wrong}'" in refused.output
        assert meant in refused.output.partition("Did you mean")[2]
    refused = CliRunner().invoke(app, ["stream", "lsit"])
    assert "'list'" in refused.output.partition("Did you mean")[2]
