"""Positions in a stream, as people write them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.app.cli.common.words import moment_of, parse_cut
from penstock.model.cuts import ENDS, End, StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError
from penstock.model.names import StreamName

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Stream


EVENTS_BACK = re.compile(r"-(\d{1,18})(?: events?)?", re.ASCII)
"""A number of events to go back."""


def position_of(text: str, stream: str, *, kinds: str = "earliest, latest, or") -> StreamCut | End:
    """The end of the stream, or the cut, that the text names. ``kinds``: what else is allowed, for errors. Raises
    InvalidArgumentError."""
    if EVENTS_BACK.fullmatch(text.strip()):
        raise InvalidArgumentError(
            f"only a reader group can go back by a number of events (group reset); use {kinds} a stream cut",
            value=repr(text[:60]),
        )
    if text in ENDS:
        return ENDS[text]
    try:
        return parse_cut(text, StreamName.parse(stream))
    except InvalidCutError as error:
        raise InvalidArgumentError(
            f"not a position: use {kinds} a stream cut, as `penstock stream describe` prints it",
            value=repr(text[:60]),
        ) from error


def start_of(text: str, stream: str) -> StreamCut | End | datetime:
    """As ``position_of``, or the time that the text names. Raises InvalidArgumentError."""
    try:
        return moment_of(text)
    except ValueError:
        return position_of(text, stream, kinds="earliest, latest, a time such as 2026-01-31T12:00:00Z, or")


def cut_at(stream: Stream, position: StreamCut | End) -> StreamCut:
    """The cut at a position of the stream as it is now."""
    if isinstance(position, StreamCut):
        return position
    return stream.head() if position == "head" else stream.tail()
