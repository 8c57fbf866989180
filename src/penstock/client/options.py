"""Validation of user input: positions, options, names of options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

from penstock.model.cuts import ENDS, End, StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError

T = TypeVar("T")

Position: TypeAlias = StreamCut | Literal["earliest", "head", "latest", "tail"] | str
"""A position in a stream: its head, its tail, a cut, or the text of a cut (``StreamCut.to_text``)."""
Bound: TypeAlias = Position | None
Start: TypeAlias = Bound | datetime
"""Where to begin: a position, or the events that were appended from a time on."""
Finish: TypeAlias = Bound | datetime
"""Where to end: a position, or the events that were appended before a time."""


def position_of(given: object, *, name: str) -> StreamCut | End:
    """A position, with the text of a cut as a cut, and one word for each end. Raises InvalidArgumentError."""
    if isinstance(given, str) and given in ENDS:
        return ENDS[given]
    accepted = '"earliest", "latest", a StreamCut or its text'
    return given if isinstance(given, StreamCut) else _cut_of(given, name, accepted)


def start_of(given: object, *, name: str = "start") -> StreamCut | End | datetime | None:
    """Where to begin; None is the head. Raises InvalidArgumentError, also for a time without a zone."""
    if given is None or isinstance(given, StreamCut):
        return given
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InvalidArgumentError("the time has no zone", **{name: given.isoformat()})
        return given
    if isinstance(given, str) and given in ENDS:
        return ENDS[given]
    return _cut_of(given, name, '"earliest", "latest", a StreamCut or its text, or a datetime with a zone')


def end_of(given: object, *, name: str = "end") -> StreamCut | Literal["tail"] | datetime | None:
    """Where to end; None is never. Raises InvalidArgumentError for any other value, the head included, and for a time
    without a zone."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InvalidArgumentError("the time has no zone", **{name: given.isoformat()})
        return given
    if isinstance(given, str) and ENDS.get(given) == "tail":
        return "tail"
    accepted = 'None, "latest", a StreamCut or its text, or a datetime with a zone'
    cut = given if isinstance(given, StreamCut) else _cut_of(given, name, accepted)
    return "tail" if cut.is_unbounded else cut


def cut_of(given: object, *, name: str = "cut") -> StreamCut:
    """A cut, from itself or its text. Raises InvalidArgumentError."""
    return given if isinstance(given, StreamCut) else _cut_of(given, name, "a StreamCut or the text of one")


def _cut_of(given: object, name: str, accepted: str) -> StreamCut:
    cause: InvalidCutError | None = None
    if isinstance(given, str):
        try:
            return StreamCut.from_text(given)
        except InvalidCutError as error:
            cause = error
    fields_ = {name: repr(given)[:60], "type": type(given).__name__}
    raise InvalidArgumentError(f"{name} must be {accepted}", **fields_) from cause


def one_of(given: object, name: str, known: tuple[str, ...]) -> None:
    """Raises InvalidArgumentError unless ``given`` is one of the words."""
    if given not in known:
        raise InvalidArgumentError(f"{name} must be {' or '.join(known)}", **{name: repr(given)[:60]})


SECONDS_MAX = 1e9
"""The longest time that an option accepts, about 31 years. It fits every clock and every field of the protocols."""
COUNT_MAX = (1 << 63) - 1  # largest signed 64-bit number: what the protocols carry


def number(
    name: str,
    given: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float = SECONDS_MAX,
) -> float:
    """Return the number if it is more than ``above``, at least ``least``, and in size at most ``most``.

    Raises InvalidArgumentError, which names the option; always for ``nan``.
    """
    shown = {name: repr(given)[:60], "type": type(given).__name__}
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
        raise InvalidArgumentError(f"{name} must be a number", **shown)
    if above is not None and given <= above:
        raise InvalidArgumentError(f"{name} must be more than {above:g}", **shown)
    if least is not None and given < least:
        raise InvalidArgumentError(f"{name} must be at least {least:g}", **shown)
    if abs(given) > most:
        raise InvalidArgumentError(f"{name} must be at most {most:g}", **shown)
    return given


def timeout(given: object) -> None:
    """Raises InvalidArgumentError unless ``given`` is None or a time to wait in seconds (below 0: do not wait)."""
    if given is not None:
        number("timeout_s", given)


def check_printable(name: str, given: object) -> None:
    """Raises InvalidArgumentError unless ``given`` is text that UTF-8 can encode: without half of a surrogate pair."""
    fields_ = {name: ascii(given)[:60], "type": type(given).__name__}
    if not isinstance(given, str):
        raise InvalidArgumentError(f"{name} must be text", **fields_)
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{name} cannot be encoded in UTF-8: it contains half of a surrogate pair", **fields_
        ) from error


def as_bytes(given: object, name: str = "event") -> bytes:
    """The bytes of what a user gives: text as UTF-8, other buffers copied. Raises InvalidArgumentError for any other type."""
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            check_printable(name, given)
            raise
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise InvalidArgumentError(f"{name} must be bytes or text", type=type(given).__name__)


def settings_of(kind: type[T], what: str, options: Mapping[str, Any], **fixed: Any) -> T:
    """``kind(**fixed, **options)``, a dataclass of numbers with defaults.

    Raises InvalidArgumentError for an option that ``kind`` does not have or of another type, by the name the user gave.
    """
    known = {item.name: item for item in fields(kind) if item.name not in fixed}  # type: ignore[arg-type]
    for name, value in options.items():
        if name not in known:
            raise InvalidArgumentError(f"{what} has no such option", option=name, known=", ".join(known))
        default = known[name].default
        if default is MISSING:
            continue
        wanted = (int, float) if isinstance(default, float) else (type(default),)
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise InvalidArgumentError(
                f"option must be a number of type {type(default).__name__}",
                option=name,
                value=repr(value)[:60],
                type=type(value).__name__,
            )
    return kind(**fixed, **options)


def tags_of(tags: object) -> tuple[str, ...]:
    """The tags, as printable texts. Raises InvalidArgumentError."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidArgumentError("tags must be a list of text", tags=repr(tags)[:60])
    given = tuple(tags)
    for tag in given:
        check_printable("tag", tag)
    return given
