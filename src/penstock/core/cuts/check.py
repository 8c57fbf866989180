"""Checks that a cut is a position of a stream. They decide for every call that takes a cut from a caller.

A cut that no reader can have reached is always refused: as an acknowledgement it would release unread events, as a
start it would skip them.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.cuts.order import Positions, at_or_after, check_cut, check_within
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, positions_text, segment_text


def check_position(stream: StreamName, history: StreamHistory, cut: StreamCut) -> None:
    """Check that the cut belongs to this stream, as far as its history shows. ``check_lengths`` checks the rest.

    Segment ids are never used twice under one name, so a cut belongs to a deleted stream of that name names unknown segments.

    Raises: InvalidCutError (of another stream; a segment that the stream never had; a key without a position; a segment that
    is passed on part of its range only; an offset below -1, or beyond the end of a sealed segment).
    """
    check_same_stream(stream, cut)
    check_cut(history, cut.positions)
    check_within(history, cut.positions)


def check_same_stream(stream: StreamName, cut: StreamCut) -> None:
    """Raises InvalidCutError for a cut of another stream. An unbounded cut needs no other check."""
    if cut.stream != stream:
        raise InvalidCutError("cut belongs to another stream", stream=str(stream), cut_of=str(cut.stream))


def lengths_needed(history: StreamHistory, positions: Positions, reached: Positions | None = None) -> list[SegmentId]:
    """The segments whose length ``check_lengths`` needs: those with an offset that the history cannot check.

    ``reached``: a position that is known to be within the stream. Segments never become shorter.
    """
    known = reached or {}
    return [
        segment
        for segment, offset in positions.items()
        if offset > max(0, known.get(segment, 0)) and segment not in history.sealed_lengths
    ]


def check_lengths(stream: StreamName, positions: Positions, lengths: Mapping[SegmentId, int]) -> None:
    """Raises InvalidCutError if an offset lies beyond the length of its segment."""
    for segment, length in lengths.items():
        if positions[segment] > length:
            raise InvalidCutError(
                "cut lies beyond the tail of the stream",
                stream=str(stream),
                segment=segment_text(segment),
                offset=positions[segment],
                tail=length,
            )


def check_not_before_head(stream: StreamName, history: StreamHistory, positions: Positions, head: Positions) -> None:
    """Raises InvalidCutError if the cut lies before the head at some key. Only for calls that need the data there."""
    if not at_or_after(history, positions, head):
        raise InvalidCutError(
            "cut lies before the head of the stream",
            stream=str(stream),
            head=positions_text(head),
            cut=positions_text(positions),
        )


def check_range(stream: StreamName, history: StreamHistory, start: Positions, end: Positions) -> None:
    """Raises InvalidCutError if a range ends before its start at some key."""
    if not at_or_after(history, end, start):
        raise InvalidCutError(
            "end of a range lies before its start",
            stream=str(stream),
            start=positions_text(start),
            end=positions_text(end),
        )
