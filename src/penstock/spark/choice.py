"""Which streams a read takes: some by name, all that match a pattern, or all of a scope."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from penstock.model.errors import InvalidArgumentError, InvalidNameError, StreamNotFoundError
from penstock.model.names import RECORD_STREAMS, StreamName
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Services

WHICH_STREAM = (
    "which stream? give options scope and stream, or load('SCOPE/STREAM'). Spark keeps the options of a "
    "catalog's table from sources in Python: use a temporary view, or "
    "SELECT ... FROM table WITH ('path' = 'SCOPE/STREAM')"
)


@dataclass(frozen=True, slots=True)
class Named:
    """Streams given by name, each once, in the order given."""

    streams: tuple[StreamName, ...]

    def holds(self, stream: StreamName) -> bool:
        return stream in self.streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """The users' streams of ``scope`` (None: of all scopes) whose full name ``SCOPE/STREAM`` the pattern matches as a whole
    (None: all of them)."""

    scope: str | None
    pattern: str | None

    def holds(self, stream: StreamName) -> bool:
        if stream.is_internal or (self.scope is not None and stream.scope != self.scope):
            return False
        return self.pattern is None or re.fullmatch(self.pattern, str(stream)) is not None


StreamChoice: TypeAlias = Named | Matching


def name_of(full: str, scope: str | None, *, own: bool) -> StreamName:
    """The stream of a full name, which must be in ``scope`` where that is given. ``own``: it may be one of the store's
    records of its decisions."""
    try:
        name = StreamName.parse(full)
        if not (own and name in RECORD_STREAMS):
            name.checked()
    except InvalidNameError as error:
        raise InvalidNameError(f"option stream: {error.message}", **error.fields) from None
    if scope is not None and scope != name.scope:
        raise InvalidArgumentError("options name two scopes", scope=scope, stream=name)
    return name


def all_named(names: str, scope: str | None) -> tuple[StreamName, ...]:
    """Streams separated by commas: ``SCOPE/STREAM``, or ``STREAM`` where ``scope`` is given; then all are of that
    scope."""
    found: list[StreamName] = []
    for text in (item.strip() for item in names.split(",")):
        if not text:
            raise InvalidArgumentError("option stream has an empty name between its commas", stream=names[:80])
        name = name_of(f"{scope}/{text}" if scope is not None and "/" not in text else text, scope, own=True)
        if name in found:
            raise InvalidArgumentError("option stream names a stream twice", stream=name)
        found.append(name)
    return tuple(found)


def checked_pattern(text: str) -> str:
    """The text, if it is a regular expression. Raises InvalidArgumentError."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(
            "option stream_pattern must be a regular expression in Python's syntax",
            stream_pattern=text[:80],
            problem=str(error),
        ) from None
    return text


async def chosen(services: Services, choice: StreamChoice) -> tuple[StreamName, ...]:
    """The streams of the choice: as named, or those that exist now, sorted.

    Raises: ScopeNotFoundError, for a scope that was named.
    """
    if isinstance(choice, Named):
        return choice.streams
    scopes = await _scopes(services) if choice.scope is None else [choice.scope]
    found = [stream for scope in scopes for stream in await _streams(services, scope)]
    return tuple(stream for stream in found if choice.holds(stream))


async def chosen_at_start(services: Services, choice: StreamChoice) -> tuple[StreamName, ...]:
    """As ``chosen``, where a read begins. Raises StreamNotFoundError if there is none, and ScopeNotFoundError."""
    found = await chosen(services, choice)
    if not found and isinstance(choice, Matching):
        if choice.pattern is None:
            raise StreamNotFoundError("the scope has no stream to read; create one first", scope=choice.scope)
        raise StreamNotFoundError(
            "no stream matches option stream_pattern, which is compared with whole names SCOPE/STREAM, as plant/.*",
            stream_pattern=choice.pattern,
            **({} if choice.scope is None else {"scope": choice.scope}),
        )
    return found


async def _scopes(services: Services) -> Sequence[str]:
    found: list[str] = []
    while page := await services.controller.scopes.list(after=found[-1] if found else ""):
        found += page
    return [scope for scope in found if not scope.startswith("_")]


async def _streams(services: Services, scope: str) -> Sequence[StreamName]:
    found: list[str] = []
    while page := await services.controller.streams.list(scope, after=found[-1] if found else ""):
        found += page
    return [StreamName(scope, name) for name in found]
