"""A call builds only its own command, and that one is what the whole command line has under the name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import typer

from penstock.app.cli.common.late import narrowed
from penstock.app.cli.main import app


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)


def shown(command: Any) -> Any:
    return command.name, command.help, [(item.name, item.opts, item.default, item.metavar) for item in command.params]


def test_the_narrowed_command_is_the_one_of_the_whole_tree() -> None:
    whole = typer.main.get_command(app)
    paths = dict(commands(whole))
    assert len(paths) > 90
    for words, command in paths.items():
        narrow = dict(commands(typer.main.get_command(narrowed(app, [*words, "--help", "x"]))))
        assert shown(narrow[words]) == shown(command), words
        # A group that is called by itself has all its commands, for its help and for suggestions.
        below = {path for path in paths if path[: len(words)] == words}
        above = {words[:length] for length in range(1, len(words))}
        assert set(narrow) == below | above, words


def test_words_that_name_no_command_leave_the_tree_whole() -> None:
    before = copy.copy(app.registered_groups), copy.copy(app.registered_commands)
    for words in ([], ["--version"], ["strem"], ["--help", "stream"]):
        assert narrowed(app, words) is app
    narrow = dict(commands(typer.main.get_command(narrowed(app, ["stream", "lsit"]))))
    assert ("stream", "list") in narrow
    assert ("scope",) not in narrow
    assert (app.registered_groups, app.registered_commands) == before
