"""What the command line prints: tables for people, JSON for programs, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import Struct

from penstock.codec.answers import as_json
from penstock.model.errors import (
    AccessError,
    ConflictError,
    CorruptDataError,
    DirectoryInUseError,
    ErasureDeferredError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    TruncatedError,
    UnavailableError,
    VersionTooNewError,
)

if TYPE_CHECKING:
    from rich.live import Live

NOT_TRUE_STATUS = 9
"""Exit status of ``penstock erase verify`` and ``penstock verify`` if something does not hold. It is no error: the command
did its work."""

DEFERRED_STATUS = 10

EXIT_CODES: Sequence[tuple[type[PenstockError], int, str]] = (
    (InvalidArgumentError, 2, "the request is invalid"),
    (NotFoundError, 3, "not found"),
    (TruncatedError, 6, "the requested data has been truncated"),
    (ErasureDeferredError, DEFERRED_STATUS, "a hold defers the erasure, which continues by itself when the hold ends"),
    (ConflictError, 4, "the current state does not allow it (exists already, sealed, changed by another call)"),
    (UnavailableError, 5, "the store cannot be reached or has no space; try again"),
    (FencedError, 5, ""),
    (CorruptDataError, 7, "stored data is damaged or belongs to something else; nothing was changed"),
    (AccessError, 11, "credentials are missing or wrong, or a right is missing"),
    (VersionTooNewError, 7, ""),
    (DirectoryInUseError, 8, "another process uses the data directory"),
    (PenstockError, 1, "other error"),
)


def exit_code(error: PenstockError) -> int:
    """The exit status for the error, by which a script can decide what to do next."""
    return next(code for kind, code, _ in EXIT_CODES if isinstance(error, kind))


def print_error(error: PenstockError, *, as_json: bool) -> None:
    """One line to standard error, or one JSON object."""
    if as_json:
        body = {"error": type(error).__name__, "message": error.message, "fields": error.fields}
        print(json.dumps(body, default=str), file=sys.stderr)
    else:
        print(f"penstock: {error}", file=sys.stderr)


A = TypeVar("A", bound=Struct)

_ENCODER = json.JSONEncoder(
    default=lambda value: as_json(value) if isinstance(value, Struct) else str(value), ensure_ascii=False
)


def print_json(value: Any) -> None:
    """One line with the value."""
    print_text(_ENCODER.encode(value))


def print_text(text: str) -> None:
    """Print one line of encoded JSON."""
    # JSON can escape half of a surrogate pair. Print it as an escape again, because it has no UTF-8.
    print(text if text.isascii() else text.encode("utf-8", "backslashreplace").decode())


_WIDTH_MAX = 1 << 20  # columns; wider than any table, so that the measured width is the needed one
_LINE_WIDTH = 78  # columns; fits a terminal of 80 with room for the cursor


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool, title: str = "") -> None:
    """A table, each row on one line however narrow the terminal is; with ``as_json`` one object per line."""
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(" ".join(str(cell).splitlines())) for cell in row))
    # People copy names from tables. So a long line runs past the edge and is neither cut nor wrapped.
    needed = Console(width=_WIDTH_MAX).measure(table).maximum
    Console(width=max(needed, 1), soft_wrap=True).print(table)


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Names and values, one a line; with ``as_json`` one object."""
    if as_json:
        print_json(facts)
        return
    for line in facts_lines(facts):
        print(line)


def print_answer(answer: A, words: Callable[[A], Mapping[str, object]], *, as_json: bool) -> None:
    """An answer of the store: its JSON, or ``words`` of it, one fact a line."""
    print_json(answer) if as_json else print_facts(words(answer), as_json=False)


def facts_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Names and values as lines. Further lines of a value are aligned below its first line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        text = "\n".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)
        first, *rest = text.split("\n")
        yield f"{name:<{width}}  {first}"
        yield from (" " * (width + 2) + line for line in rest)


class ProgressLine:
    """One line on standard error that shows progress to people at a terminal. The end of the ``with`` block removes it."""

    def __init__(self, *, quiet: bool) -> None:
        self._live: Live | None = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            # The line is drawn by each call, not by a thread, because a command may fork.
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Replace the line; an empty text removes it, as before a question."""
        if self._live is None:
            return
        if text:
            from rich.text import Text

            self._live.start()
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._live.stop()


def say(message: str, *, as_json: bool, **fields: Any) -> None:
    """Print the message that confirms a command, or with ``as_json`` the fields."""
    if as_json:
        print_json({"ok": True, "message": message, **fields})
    else:
        print(message)
