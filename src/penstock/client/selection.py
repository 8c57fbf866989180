"""Which streams a reader of several streams reads, and from where to where in each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TypeAlias, TypeVar

from penstock.client.moments import past_ms
from penstock.client.options import Finish, Start, end_of, start_of
from penstock.client.reading.cursor import Bounds
from penstock.client.retry import retrying
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, ScopeNotFoundError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.ports.control.plane import ControlPlane
from penstock.ports.rng import Rng

Streams: TypeAlias = Sequence[str | StreamName] | re.Pattern[str]
"""Streams as a list, or all streams of users whose whole name ``scope/stream`` the compiled pattern matches."""
T = TypeVar("T")

# One mapping for each type of its keys: a type checker takes no Mapping[str, ...] where str | StreamName is wanted.
ByStream: TypeAlias = Mapping[str, T] | Mapping[StreamName, T] | Mapping[str | StreamName, T]
GroupStart: TypeAlias = Start | ByStream[Start]
"""Where to begin: in all of the streams, or stream by stream."""
GroupEnd: TypeAlias = Finish | ByStream[Finish]
"""Where to end: in all of the streams, or stream by stream."""


def named(name: str | StreamName) -> StreamName:
    """The stream of the name. Raises InvalidNameError."""
    return name if isinstance(name, StreamName) else StreamName.parse(name)


class Selection:
    """The streams that a user gives, with their bounds: checked here, found when the reader is opened."""

    def __init__(self, streams: Streams, start: GroupStart, end: GroupEnd, *, until_tail: bool, now_ms: int) -> None:
        """Raises InvalidArgumentError, InvalidNameError."""
        self._pattern = streams if isinstance(streams, re.Pattern) else None
        self._names: list[StreamName] = []
        if not isinstance(streams, re.Pattern):
            if isinstance(streams, str | StreamName) or not isinstance(streams, Sequence):
                raise InvalidArgumentError(
                    'streams must be a list, or a pattern such as re.compile("shop/.*")', streams=repr(streams)[:60]
                )
            self._names = list(dict.fromkeys(named(item) for item in streams))
            if not self._names:
                raise InvalidArgumentError("a reader needs at least one stream")
        elif not isinstance(streams.pattern, str):
            raise InvalidArgumentError("a pattern of streams must be text", pattern=repr(streams.pattern)[:60])
        self._starts, self._start = _by_stream(start)
        self._ends, self._end = _by_stream(end)
        self._until_tail = until_tail
        for given in (self._start, *self._starts.values()):
            begin = start_of(given)
            if isinstance(begin, datetime):
                past_ms(begin, now_ms=now_ms)
        for bound in (self._end, *self._ends.values()):
            finish = end_of(bound)
            if isinstance(finish, datetime):
                past_ms(finish, now_ms=now_ms, name="end")
        if self._pattern is None:
            self._bounds(self._names)

    async def find(self, controller: ControlPlane, rng: Rng) -> Mapping[StreamName, Bounds]:
        """The streams with their bounds. Raises StreamNotFoundError (no stream matches), InvalidArgumentError (a bound of a
        stream that is not read)."""
        if self._pattern is None:
            return self._bounds(self._names)
        found = await _matching(controller, rng, self._pattern)
        if not found:
            raise StreamNotFoundError(
                "no stream matches the pattern, which is compared with whole names scope/stream",
                pattern=self._pattern.pattern[:80],
            )
        return self._bounds(found)

    def _bounds(self, names: Sequence[StreamName]) -> dict[StreamName, Bounds]:
        unknown = sorted({*self._starts, *self._ends} - set(names))
        if unknown:
            raise InvalidArgumentError(
                "a start or end is given for a stream that is not read", streams=[str(item) for item in unknown]
            )
        return {
            name: Bounds(
                start=start_of(self._starts.get(name, self._start)),
                end=end_of(self._ends.get(name, "tail" if self._until_tail and self._end is None else self._end)),
            )
            for name in names
        }


def _by_stream(given: T | ByStream[T]) -> tuple[dict[StreamName, T], T | None]:
    """The bounds of single streams, and that of all others. A cut is a bound of its own stream."""
    if isinstance(given, Mapping):
        return {named(stream): bound for stream, bound in given.items()}, None
    if isinstance(given, StreamCut) and not given.is_unbounded:
        return {given.stream: given}, None
    return {}, given


async def _matching(controller: ControlPlane, rng: Rng, pattern: re.Pattern[str]) -> list[StreamName]:
    found: list[StreamName] = []
    after = ""
    while scopes := await retrying(partial(controller.scopes.list, after=after), rng):
        for scope in scopes:
            with suppress(ScopeNotFoundError):  # It was deleted meanwhile.
                found += await _in_scope(controller, rng, scope, pattern)
        after = scopes[-1]
    return found


async def _in_scope(controller: ControlPlane, rng: Rng, scope: str, pattern: re.Pattern[str]) -> list[StreamName]:
    found: list[StreamName] = []
    after = ""
    while page := await retrying(partial(controller.streams.list, scope, tag=None, after=after), rng):
        names = [StreamName(scope, name) for name in page]
        found += [name for name in names if not name.is_internal and pattern.fullmatch(str(name))]
        after = page[-1]
    return found
