"""Where events wait between ``write`` and the segment they go to: lanes, the map from key to lane, and closed blocks.

A lane is filled by the writing thread and emptied by the event loop alone, which may be another thread. No lock is
needed: the writer only adds to one list, key and event in one step, and the loop only removes a counted prefix. Each step is
one call into C. So an exception that a signal handler raises comes before a step or after it, and so does a switch to another
thread. Source: docs/design/0008-client.md, "One list per segment".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.codec.events import HEADER_BYTES, frame_events
from penstock.core.streams.routing import hash_key
from penstock.model.errors import InternalError, InvalidArgumentError, PenstockError
from penstock.model.segments import SegmentRange
from penstock.ports import forks
from penstock.ports.files import Buffer
from penstock.ports.segment_service import Appended

if TYPE_CHECKING:
    from penstock.client.writing.segment_sender import SegmentSender
    from penstock.ports.direct_appends import DirectLine

Keys = Callable[[], Sequence[str | None]]
"""Gives the routing key of each event of a block. Called only if the block has to be routed anew."""

KEYS_CACHED_MAX = 1 << 17


class Lane:
    """Events for one segment that are not in a block yet. ``written`` holds key, event, key, event.

    ``limit`` is the size at which the writer calls for the event loop. 0: the loop is not looking at this lane, the next
    event must wake it.
    """

    __slots__ = ("limit", "sender", "size", "written")

    def __init__(self, sender: SegmentSender) -> None:
        self.written: list[Any] = []
        self.size = 0
        self.limit = 0
        self.sender = sender

    def take(self) -> tuple[list[bytes], list[str | None]]:
        """Remove and return all events, with their keys. Only the event loop calls it. Returns nothing while events before
        them are being sent directly."""
        count = len(self.written)
        taken = self.written[:count]
        if count and isinstance(taken[0], SentDirectly):
            return [], []
        del self.written[:count]
        # The writing thread may add to a stale size; the next block is then closed early, which is harmless.
        self.size = 0
        return taken[1::2], taken[::2]


class SentDirectly:
    """Events that the writing thread has sent and that are not acknowledged yet. They keep their place in their lane."""

    __slots__ = ("block", "line", "sender")

    def __init__(self, sender: SegmentSender, block: WriteBlock, line: DirectLine) -> None:
        self.sender = sender
        self.block = block
        self.line = line


class LaneMap(dict[str | None, Lane]):
    """Routing key to lane, for one layout of the key space; ``None`` is the lane that keyless events go to now.

    Never changed when segments are replaced: a new map takes its place. At most 131072 keys are remembered.
    """

    __slots__ = ("_highs", "_lanes", "_turn", "pieces")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__()
        check_tiling(pieces)
        self.pieces = tuple(pieces)
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

    def lane_at(self, point: float) -> Lane:
        """The lane that takes keys with this hash."""
        return self._lanes[bisect_right(self._highs, point)]

    def rotate(self, lane: Lane) -> None:
        """Send keyless events to the next lane, if it is ``lane`` that takes them now."""
        if self[None] is lane:
            self._turn = (self._turn + 1) % len(self._lanes)
            self[None] = self._lanes[self._turn]


class WriterNotOpenError(InvalidArgumentError):
    """The writer has no segments yet, or no more. Caught by writers, which then open themselves, or say that they are
    closed."""


def check_key(key: object) -> None:
    """Raises InvalidArgumentError for a routing key that is neither text nor None."""
    if key is not None and not isinstance(key, str):
        raise InvalidArgumentError("a routing key is text or None", key=repr(key)[:60], type=type(key).__name__)


class NoLanes(LaneMap):
    """The map of a writer that is not open, or closed: every look-up raises WriterNotOpenError."""

    __slots__ = ()

    def __init__(self) -> None:
        dict.__init__(self)

    def __missing__(self, key: str | None) -> Lane:
        raise WriterNotOpenError("writer is not open: use it in a with block")

    def rotate(self, lane: Lane) -> None:
        """Nothing: what comes late to a closed writer goes nowhere."""


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
    """The pieces with those of ``old`` handed to the successors, each only as far as ``old`` had it.

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


@dataclass(slots=True, eq=False)
class WriteBlock:
    """Framed events that are appended as one. ``keys=None``: none of them has a key.

    ``group`` counts flushes: a flush waits for the blocks of its group and of those before. ``number`` is the event
    number of the last event in its segment. ``large``: one event beyond the size of an append. ``rejected``: written before
    the writer was told that a quota refuses it, so it is not sent again. On its way, it is called with the outcome, and hands
    that to ``answer``: an object less for each of tens of thousands, all of which the garbage collector looks at.
    """

    data: Buffer
    count: int
    keys: Keys | None
    group: int
    large: bool = False
    number: int = 0
    done: bool = False
    rejected: bool = False
    answer: Callable[[WriteBlock, Appended | PenstockError], None] | None = None

    def __call__(self, result: Appended | PenstockError) -> None:
        if self.answer is not None:
            self.answer(self, result)

    @property
    def size(self) -> int:
        return len(self.data)


def close_blocks(
    events: list[bytes], keys: Sequence[str | None] | None, group: int, block_bytes: int
) -> list[WriteBlock]:
    """Frame the events into blocks of about ``block_bytes``, at most twice that unless one event alone is larger."""
    count = len(events)
    limit = 2 * block_bytes
    # Framing tells the size: all lengths are added up only where the first event's makes more than one block likely.
    if count == 1 or count * (HEADER_BYTES + len(events[0])) <= limit or _framed_bytes(events) <= limit:
        data = frame_events(events)
        if count == 1 or len(data) <= limit:
            if keys is not None and all(key is None for key in keys):
                keys = None
            # A method of the list, not a closure over it, which would be three objects.
            return [WriteBlock(data, count, None if keys is None else _given(keys), group)]
    step = -(-count // -(-_framed_bytes(events) // block_bytes))
    blocks: list[WriteBlock] = []
    for start in range(0, count, step):
        part = None if keys is None else keys[start : start + step]
        blocks += close_blocks(events[start : start + step], part, group, block_bytes)
    return blocks


def _given(keys: Sequence[str | None]) -> Keys:
    if type(keys) is list:
        return keys.copy
    return lambda: keys


def _framed_bytes(events: Sequence[bytes]) -> int:
    return sum(map(len, events)) + HEADER_BYTES * len(events)
