"""Build only what a call needs: commands of a room above this one are imported when they are called, and of all other
commands only the one that is called gets its parameters."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from copy import copy
from typing import Any

import typer
import typer.core
from typer.models import CommandInfo

from penstock.app.cli.common.security import add_options
from penstock.model.errors import MissingExtraError, missing_extra

# name -> (module, what `penstock --help` says). The module has a `typer.Typer` named `app`.
# Entry points of the distribution would do the same, and cost each command 10 ms for reading them.
LATE: dict[str, tuple[str, str]] = {
    "spark": ("penstock.spark.cli", "Jobs that run on Spark: penstock spark --help lists them."),
}
_SPARK_PACKAGES = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})
"""What the commands of ``LATE`` import while they run; no other command does."""


class LateGroup(typer.core.TyperGroup):
    """A group that also has the commands of ``LATE``, and imports none of them to list them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        add_options(self)

    # Contexts and commands are Click's, which some releases of Typer bring along under a name of their own.
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *LATE]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in LATE:
            return typer.core.TyperCommand(cmd_name, help=LATE[cmd_name][1])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in LATE:
            return args[0], _load(LATE[args[0]][0]), args[1:]
        return super().resolve_command(ctx, args)


def _load(module: str) -> Any:
    command = typer.main.get_command(importlib.import_module(module).app)
    add_options(command)
    return command


def narrowed(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return the app with only the command that the first of ``words`` name; without a known name, the whole app.

    Typer reads the signature of every command before it looks at the words: 0.2 s for a hundred commands.
    """
    commands = [item for item in app.registered_commands if words and _name(item) == words[0]]
    groups = [copy(item) for item in app.registered_groups if words and item.name == words[0]]
    if not commands and not groups:
        return app
    for group in groups:
        if group.typer_instance is not None:
            group.typer_instance = narrowed(group.typer_instance, words[1:])
    found = copy(app)
    found.registered_commands, found.registered_groups = commands, groups
    return found


def _name(command: CommandInfo) -> str | None:
    if command.name is None and command.callback is not None:
        return typer.main.get_command_name(command.callback.__name__)
    return command.name


def missing_package(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error for a package of the extra ``spark`` that a command did not find, None for any other module."""
    package = (error.name or "").partition(".")[0]
    return missing_extra(package, "spark") if package in _SPARK_PACKAGES else None
