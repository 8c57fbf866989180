"""How a command reaches its store: a server, or a data directory in this process."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.app.cli.common.address import DEFAULT_CONTROLLER, ENVIRONMENT
from penstock.app.cli.common.address import default_controller as default_controller  # for commands beside open_target
from penstock.app.cli.common.completion import group_names, scope_names, stream_names
from penstock.app.cli.common.options import DATA
from penstock.model.callers import Caller, calling
from penstock.model.errors import DirectoryInUseError, InvalidArgumentError, PenstockError, StreamNotFoundError
from penstock.model.names import StreamName, check_name

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store
    from penstock.ports.control.streams import DeletedStream

_DIAL_S = 2.0
ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="HOST:PORT",
        help="The store to reach; tls://HOST:PORT with TLS. Separate the controllers of a cluster by commas."
        f"  [env var: {ENVIRONMENT}; default: {DEFAULT_CONTROLLER}]",
        show_default=False,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help=f"{DATA} Opened without a server.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON: one object, or one per line for lists.")]


def _stream(text: str) -> str:
    name = StreamName.parse(text)
    check_name("scope", name.scope, internal=True)
    check_name("stream", name.stream, internal=True)
    return text


def _stream_or_all(text: str | None) -> str | None:
    return None if text is None else _stream(text)


def _scope(text: str) -> str:
    return check_name("scope", text, internal=True)


def _scope_or_all(text: str | None) -> str | None:
    return None if text is None else _scope(text)


def _group(text: str) -> str:
    scope, slash, name = text.partition("/")
    if not slash or not scope or not name or "/" in name:
        raise InvalidArgumentError("not a reader group; write SCOPE/GROUP", group=repr(text[:80]))
    return text


# What no store could know is refused before one is looked for.
StreamArgument = Annotated[
    str,
    typer.Argument(metavar="SCOPE/STREAM", show_default=False, callback=_stream, autocompletion=stream_names),
]
StreamFilterArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SCOPE/STREAM",
        show_default=False,
        help="Only this one.  [default: the whole store]",
        callback=_stream_or_all,
        autocompletion=stream_names,
    ),
]
ScopeArgument = Annotated[
    str, typer.Argument(metavar="SCOPE", show_default=False, callback=_scope, autocompletion=scope_names)
]
ScopeFilterArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCOPE]",
        show_default=False,
        help="Only this one.  [default: the whole store]",
        callback=_scope_or_all,
        autocompletion=scope_names,
    ),
]
GroupArgument = Annotated[
    str, typer.Argument(metavar="SCOPE/GROUP", show_default=False, callback=_group, autocompletion=group_names)
]


def _user() -> str | None:
    """The operating system's user; None if it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None


def owner_of(given: str | None) -> str:
    """The name in ``--owner``, or the user. Raises InvalidArgumentError if the user has no name."""
    owner = given if given is not None else _user()
    if owner is None:
        raise InvalidArgumentError("this user has no name; give one with --owner NAME")
    return owner


@contextmanager
def _restore_hint(store: Store) -> Iterator[None]:
    """Add to the error for a stream that does not exist how to restore it, if it was deleted a short time ago."""
    try:
        yield
    except StreamNotFoundError as error:
        name = str(error.fields.get("stream", ""))
        deleted: Sequence[DeletedStream] = ()
        with suppress(PenstockError):  # An older server, or one that went away: the first error counts.
            deleted = store.deleted_streams(name.partition("/")[0])
        if all(str(item.stream) != name for item in deleted):
            raise
        raise StreamNotFoundError(
            f"no such stream; it was deleted, and `penstock stream restore {name}` restores it", **error.fields
        ) from error


@contextmanager
def open_target(
    controller: str | None, data: Path | None, *, create: bool = False, who: str | None = None, why: str = ""
) -> Iterator[Store]:
    """The store that the options name. Its audit entries name ``who`` (default: the user, or the number of a user without
    a name) and ``why``.

    Raises InvalidArgumentError if both options are given, or if the directory holds no store and ``create`` is false;
    DirectoryInUseError, which explains how to reach a server.
    """
    # Never empty: the abort of another writer's transaction is audited only if its caller states something.
    by = Caller(who=(_user() or f"uid {os.getuid()}") if who is None else who, why=why, via="cli")
    if controller is not None and data is not None:
        raise InvalidArgumentError("give --controller or --data, not both")
    import penstock

    if data is not None:
        if not create and not (data / "VERSION").exists():
            raise InvalidArgumentError("there is no store in this directory", data=str(data))
        try:
            opened = penstock.open(data)
        except DirectoryInUseError as error:
            raise DirectoryInUseError(
                f"{error.message}: leave --data out, or name its --controller", **error.fields
            ) from error
        with opened as store, calling(by), _restore_hint(store):
            yield store
    else:
        with (
            penstock.connect(controller or default_controller(), dial_s=_DIAL_S) as store,
            calling(by),
            _restore_hint(store),
        ):
            yield store
