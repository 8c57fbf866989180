"""Positions in a stream, as people write them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.app.cli.common.words import moment_of, parse_cut
from penstock.model.cuts import ENDS, End, StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError
from penstock.model.names import StreamName

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Stream


def position_of(text: str, stream: str) -> StreamCut | End:
    """The end of the stream, or the cut, that the text names. Raises InvalidArgumentError."""
    if text in ENDS:
        return ENDS[text]
    try:
        return parse_cut(text, StreamName.parse(stream))
    except InvalidCutError as error:
        raise InvalidArgumentError(
            "not a position: use earliest, latest, or a stream cut, as `penstock stream describe` prints it",
            value=repr(text[:60]),
        ) from error


def start_of(text: str, stream: str) -> StreamCut | End | datetime:
    """As ``position_of``, or the time that the text names. Raises InvalidArgumentError."""
    try:
        return moment_of(text)
    except ValueError:
        return position_of(text, stream)


def cut_at(stream: Stream, position: StreamCut | End) -> StreamCut:
    """The cut at a position of the stream as it is now."""
    if isinstance(position, StreamCut):
        return position
    return stream.head() if position == "head" else stream.tail()
