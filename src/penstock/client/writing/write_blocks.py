"""Closed blocks of a writer: framed events that are appended as one. Source: docs/design/0030-writing.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from penstock.codec.events import HEADER_BYTES, event_bounds, frame_events
from penstock.model.errors import InternalError, PenstockError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.traces.spans import ROOT, Kind, Span, SpanContext, active, append_attributes
from penstock.ports.data.segments import Append, Appended
from penstock.ports.files import Buffer


class Place(NamedTuple):
    """Where a durable event is. ``offset`` is where its header begins in the segment, as ``Event.offset``.

    None: the event is stored, but the answer with its place was lost with a connection, and the store only confirms that
    it has the event.
    """

    stream: StreamName
    segment: SegmentId
    offset: int | None


class Receipt:
    """Settled once, in the event loop: by the place of an event, or the error that kept it from being stored.

    Only events for which the program asks have one. ``tell`` is called when it is settled.
    """

    __slots__ = ("_error", "_place", "_tell")

    def __init__(self, tell: Callable[[], None]) -> None:
        self._place: Place | None = None
        self._error: BaseException | None = None
        self._tell = tell

    @property
    def done(self) -> bool:
        return self._place is not None or self._error is not None

    def settle(self, place: Place) -> None:
        if not self.done:
            self._place = place
            self._tell()

    def fail(self, error: BaseException) -> None:
        if not self.done:
            self._error = error
            self._tell()

    def outcome(self) -> Place:
        """The place, or the error raised. Only once it is ``done``."""
        if self._error is not None:
            raise self._error
        if self._place is None:
            raise InternalError("an event is not acknowledged yet")
        return self._place


class TrackedEvent(bytes):
    """An event with a receipt. It waits in its lane like any other."""

    receipt: Receipt

    @classmethod
    def of(cls, event: bytes, receipt: Receipt) -> TrackedEvent:
        found = cls(event)
        found.receipt = receipt
        return found


Receipts: TypeAlias = Sequence[tuple[int, Receipt]]
"""Receipts with the numbers of their events, from 0, in order."""


class Answered(Protocol):
    """Where the outcome of a block's append goes."""

    def answered(self, block: WriteBlock, result: Appended | PenstockError) -> None: ...


class SharedKeys(Protocol):
    """The routing keys of the events of many blocks. A block needs its keys only if it must be routed again."""

    def of(self, lane: object, first: int, count: int) -> Sequence[str | None]:
        """The keys of ``count`` events of the lane, from the lane's event at index ``first`` on."""
        ...


Keys: TypeAlias = tuple[str | None, ...] | SharedKeys | None
"""The routing key of each event, or where to get them; None: no event has a key. The garbage collector looks at a tuple of
strings once, but at a list in each collection."""


class WriteBlock(Append):
    """Framed events that are appended as one. ``keys``, with ``first`` for shared ones: see ``keys_in``.

    ``group`` counts flushes: a flush waits for the blocks of its group and of those before. ``event_number`` is the number
    of the last event in its segment. ``large``: one event beyond the size of an append. ``rejected``: written before a
    refusal by a quota was reported, so it is not sent again. ``end_offset``: where the block ends in its segment, once it
    is acknowledged. ``receipts``: those that the program asked for. ``span``: of its append in flight, if tracing is on.

    The block is also the request for its append, and the callback, which passes the outcome to ``sender``: this saves the
    garbage collector two objects for each of tens of thousands of blocks. It is sent once: ``again`` makes a copy.
    ``segment``, ``writer`` and ``previous`` are known once it is sent.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__
    __slots__ = ("done", "end_offset", "first", "group", "keys", "large", "receipts", "rejected", "sender", "span")

    def __init__(
        self,
        data: Buffer,
        event_count: int,
        keys: Keys,
        group: int,
        *,
        first: int = 0,
        large: bool = False,
        receipts: Receipts = (),
    ) -> None:
        self.data = data
        self.event_count = event_count
        self.event_number = 0
        self.expected_offset = None
        self.trace: SpanContext | None = None
        self.pieces = None
        self.keys = keys
        self.first = first
        self.group = group
        self.large = large
        self.receipts = receipts
        self.done = False
        self.rejected = False
        self.end_offset: int | None = None
        self.sender: Answered | None = None
        self.span: Span | None = None

    def __call__(self, result: Appended | PenstockError) -> None:
        if self.span is not None:
            self.span.end(result if isinstance(result, PenstockError) else None)
            self.span = None
        if self.sender is not None:
            self.sender.answered(self, result)

    @property
    def size(self) -> int:
        return len(self.data)

    def keys_in(self, lane: object) -> Sequence[str | None] | None:
        """The routing key of each event of this block, which belongs to ``lane``; None: no event has a key."""
        keys = self.keys
        return keys if keys is None or isinstance(keys, tuple) else keys.of(lane, self.first, self.event_count)

    def again(self) -> WriteBlock:
        """A copy that was not sent: the same events with the same number."""
        found = WriteBlock(
            self.data,
            self.event_count,
            self.keys,
            self.group,
            first=self.first,
            large=self.large,
            receipts=self.receipts,
        )
        found.event_number = self.event_number
        return found

    def settle(self, stream: StreamName, segment: SegmentId) -> None:
        """The block is durable, and ends at ``end_offset`` of the segment; None: its place is not known."""
        receipts, self.receipts = self.receipts, ()
        if not receipts:
            return
        start = None if self.end_offset is None else self.end_offset - self.size
        bounds: Sequence[int] = range(1) if self.large or start is None else event_bounds(bytes(self.data))
        for number, receipt in receipts:
            receipt.settle(Place(stream, segment, None if start is None else start + bounds[number]))

    def fail(self, error: BaseException) -> None:
        """The block is not stored, or it will never be known whether it is."""
        receipts, self.receipts = self.receipts, ()
        for _, receipt in receipts:
            receipt.fail(error)


def trace(block: WriteBlock, stream: StreamName, around: SpanContext | None) -> None:
    """Begin a span over the block's append if tracing is on. ``around``: the span in which the program wrote."""
    tracer = active()
    if tracer is None:
        return
    attributes = append_attributes(block.segment, str(block.writer), block.event_number, block.event_count, block.size)
    block.span = tracer.start(f"append {stream}", Kind.PRODUCER, attributes, parent=around or ROOT)
    if block.span.context.sampled:
        block.trace = block.span.context


def receipts_of(events: Sequence[bytes]) -> list[tuple[int, Receipt]]:
    """The receipts of the events that have one."""
    return [(number, event.receipt) for number, event in enumerate(events) if isinstance(event, TrackedEvent)]


def attach(blocks: Sequence[WriteBlock], receipts: Receipts) -> None:
    """Give the blocks their receipts, which are numbered over the events of all of them."""
    first = 0
    for block in blocks:
        end = first + block.event_count
        block.receipts = [(number - first, receipt) for number, receipt in receipts if first <= number < end]
        first = end


def close_blocks(
    events: list[bytes], keys: Sequence[str | None] | None, group: int, block_bytes: int
) -> list[WriteBlock]:
    """Frame the events into blocks of about ``block_bytes``, at most twice that unless one event alone is larger."""
    count = len(events)
    limit = 2 * block_bytes
    # Framing yields the size: all lengths are added up only where the first event's makes more than one block likely.
    if count == 1 or count * (HEADER_BYTES + len(events[0])) <= limit or _framed_bytes(events) <= limit:
        data = frame_events(events)
        if count == 1 or len(data) <= limit:
            if keys is not None and keys[0] is None and keys.count(None) == count:
                keys = None
            return [WriteBlock(data, count, None if keys is None else tuple(keys), group)]
    step = -(-count // -(-_framed_bytes(events) // block_bytes))
    blocks: list[WriteBlock] = []
    for start in range(0, count, step):
        part = None if keys is None else keys[start : start + step]
        blocks += close_blocks(events[start : start + step], part, group, block_bytes)
    return blocks


def _framed_bytes(events: Sequence[bytes]) -> int:
    return sum(map(len, events)) + HEADER_BYTES * len(events)
