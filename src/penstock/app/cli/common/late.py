"""Import and build only what a call needs: the module of the command that is called, and the parameters of that command."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

import typer
import typer.core
from typer.models import CommandInfo

from penstock.app.cli.common.security import add_options
from penstock.model.errors import MissingExtraError, missing_extra

_SPARK_PACKAGES = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})
"""What the commands of ``penstock spark`` import while they run; no other command does."""


class LateGroup(typer.core.TyperGroup):
    """A group that imports a command when it is called. Help, completion and suggestions use only its name and help text."""

    late: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """By name: ``module:attribute``, a ``typer.Typer`` or a function; and the first sentence of its help. Entry points of
    the distribution would do the same, and cost each command 10 ms for reading them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: typer.core.TyperCommand(name, help=text) for name, (_, text) in self.late.items()}

    # Contexts and commands are Click's, which some releases of Typer bring along under a name of their own.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else imported(name, self.late[name][0], rest), rest


def imported(name: str, place: str, words: Sequence[str] = ()) -> Any:
    """Import the command at ``place``, which is ``module:attribute``, and build what ``words`` call of it."""
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        app.add_typer(narrowed(found, words), name=name)
    else:
        app.command(name)(found)
    command = typer.main.get_group(app).commands[name]
    add_options(command)
    return command


def narrowed(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return the app with only the command that the first of ``words`` name; without a known name, the whole app.

    Typer reads the signature of every command before it looks at the words: 2 ms for each command.
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
