"""The map from key to lane: where events wait between ``write`` and their segment.

A lane is filled by the writing thread and emptied by the event loop alone, which may be another thread. No lock is
needed: the writer only adds to one list, key and event in one step, and the loop only removes a counted prefix. Each step is
one call into C. So an exception that a signal handler raises comes before a step or after it, and so does a switch to another
thread. Source: docs/design/0030-writing.md, "One list per segment".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from penstock.client.writing.segment_sender import Lane
from penstock.core.streams.routing import hash_key
from penstock.model.errors import InternalError, InvalidArgumentError
from penstock.model.segments import SegmentRange
from penstock.model.values.dataclass import dataclass
from penstock.ports import forks

KEYS_CACHED_MAX = 1 << 17  # routing keys whose segment is remembered


class LaneMap(dict[str | None, Lane]):
    """Routing key to lane, for one layout of the key space; ``None`` is the lane that keyless events go to now.

    Never changed when segments are replaced: a new map takes its place. At most 131072 keys are remembered.
    """

    __slots__ = ("_highs", "_lanes", "_turn")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__()
        check_tiling(pieces)
        self._highs = [piece.high for piece in pieces]
        self._lanes = [piece.lane for piece in pieces]
        self._turn = 0
        self[None] = self._lanes[0]

    def __missing__(self, key: str) -> Lane:
        check_key(key)
        lane = self._lanes[bisect_right(self._highs, hash_key(key))]
        if len(self) < KEYS_CACHED_MAX:
            self[key] = lane
        return lane

    @property
    def pieces(self) -> list[Piece]:
        """Which keys go to which lane."""
        lows = [0.0, *self._highs]
        return [Piece(low, high, lane) for low, high, lane in zip(lows, self._highs, self._lanes, strict=False)]

    @property
    def width(self) -> int:
        """The number of pieces."""
        return len(self._lanes)

    def lane_at(self, point: float) -> Lane:
        """The lane that takes keys with this hash."""
        return self._lanes[bisect_right(self._highs, point)]

    def rotate(self, lane: Lane) -> None:
        """Send keyless events to the next lane, if it is ``lane`` that takes them now."""
        if self[None] is lane:
            self._turn = (self._turn + 1) % len(self._lanes)
            self[None] = self._lanes[self._turn]


class WriterNotOpenError(InvalidArgumentError):
    """The writer has no segments yet, or no longer. Writers catch this and open themselves, or report that they are
    closed."""


def check_key(key: object) -> None:
    """Raises InvalidArgumentError for a routing key that is neither text nor None."""
    if key is not None and not isinstance(key, str):
        raise InvalidArgumentError("a routing key must be text or None", key=repr(key)[:60], type=type(key).__name__)


class NoLanes(LaneMap):
    """The map of a writer that is not open, or closed: every look-up raises WriterNotOpenError."""

    __slots__ = ()

    def __init__(self) -> None:
        dict.__init__(self)

    def __missing__(self, key: str | None) -> Lane:
        raise WriterNotOpenError("writer is not open: use it in a with block")

    def rotate(self, lane: Lane) -> None:
        """No lanes: a closed writer accepts no late event."""


class ForkedLanes(NoLanes):
    """The map of a writer in a forked child: every lookup raises ForkedError."""

    __slots__ = ()

    def __missing__(self, key: str | None) -> Lane:
        raise forks.refusal()


@dataclass(frozen=True, slots=True)
class Piece:
    """``low <= hash(key) < high`` goes to ``lane``. Pieces of a map are in order and tile [0, 1)."""

    low: float
    high: float
    lane: Lane


def check_tiling(pieces: Sequence[Piece]) -> None:
    """Raises InternalError unless the pieces tile [0, 1) in order."""
    bounds = [0.0, *(piece.high for piece in pieces)]
    if bounds[-1] != 1.0 or any(piece.low != low for piece, low in zip(pieces, bounds, strict=False)):
        raise InternalError("segments do not tile the key space", pieces=[(p.low, p.high) for p in pieces])


def replace_pieces(
    pieces: Sequence[Piece], old: Lane, successors: Sequence[SegmentRange], lane_of: Callable[[SegmentRange], Lane]
) -> list[Piece]:
    """The pieces, with those of ``old`` given to its successors, each limited to the keys of ``old``.

    A successor of several segments takes over the keys of the others when those are replaced in turn: until then their
    events go on to them, so that none overtakes an older one of its key.
    """
    result: list[Piece] = []
    ordered = sorted(successors, key=lambda item: item.keys.low)
    for piece in pieces:
        if piece.lane is not old:
            result.append(piece)
            continue
        for item in ordered:
            low, high = max(piece.low, item.keys.low), min(piece.high, item.keys.high)
            if low < high:
                result.append(Piece(low, high, lane_of(item)))
    return result
