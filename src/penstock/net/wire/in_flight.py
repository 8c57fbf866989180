"""What a connection knows of appends that are not answered: their writer, and the frame that they came in."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol
from uuid import UUID

from penstock.codec.wire.frames import BlockRun
from penstock.model.errors import PenstockError
from penstock.model.traces.spans import Value, append_attributes
from penstock.ports.data.direct_appends import FrameAppend
from penstock.ports.data.segments import Appended, Pieces
from penstock.ports.files import Buffer

OVERHEAD_BYTES = 128
"""What an append counts besides its data."""
NOT_STORED = -1  # length of an append that is not stored
_FAILURES_BYTES = 8 << 20
_ANSWERED: FrameAppend = ("", UUID(int=0), b"", 0, 0, 0)


class Finisher(Protocol):
    """Takes the outcomes of appends."""

    def finished(self, item: InFlight, outcome: Appended | PenstockError) -> None: ...

    def many_finished(self, many: Many, places: Sequence[int], outcome: Sequence[int] | PenstockError) -> None: ...


class Binding:
    """One writer on one segment. Numbers: received here, given to the store, acknowledged."""

    __slots__ = (
        "acked",
        "failed",
        "gate",
        "handle",
        "held",
        "id",
        "in_flight",
        "knows_full",
        "received",
        "replaced",
        "segment",
        "stalled",
        "submitted",
        "waiting",
        "writer",
    )

    def __init__(
        self, writer: bytes, segment: str, last_number: int, *, knows_full: bool, handle: int | None = None
    ) -> None:
        self.writer = writer
        self.handle = handle
        self.knows_full = knows_full
        self.id = UUID(bytes=writer)
        # Up to 16,000 writers of one connection may share a segment name of 4 KiB.
        self.segment = sys.intern(segment)
        self.received = self.submitted = self.acked = last_number
        self.failed = False
        self.replaced = False
        # All later appends wait for the outcome of this one: it has a condition, or the store had no room for it.
        self.gate: InFlight | None = None
        self.in_flight = 0
        self.held = 0
        self.waiting: deque[InFlight] = deque()
        self.stalled: list[InFlight] = []


class InFlight:
    """An append or a run of them that the store is processing; called with its outcome. ``many``: its AppendMany, and
    its index there. ``pieces`` and ``rids``: the appends of a run, and the ids of their requests."""

    __slots__ = (
        "binding",
        "count",
        "data",
        "expected",
        "index",
        "many",
        "number",
        "pieces",
        "previous",
        "rid",
        "rids",
        "side",
        "size",
    )

    def __init__(
        self,
        side: Finisher,
        binding: Binding,
        data: Buffer,
        count: int,
        number: int,
        rid: int,
        expected: int | None,
        many: Many | None = None,
        index: int = 0,
    ) -> None:
        self.many = many
        self.index = index
        self.side = side
        self.binding = binding
        self.data = data
        self.size = len(data) + OVERHEAD_BYTES
        self.count = count
        self.number = number
        self.rid = rid
        self.expected = expected
        self.previous = 0
        self.pieces: Pieces | None = None
        self.rids: Sequence[int] = ()

    def add(self, run: BlockRun) -> None:
        """Add the appends that follow this one."""
        sizes = [len(self.data), *map(len, run.data)]
        self.pieces = Pieces(sizes, [self.count, *run.counts])
        self.rids = [self.rid, *run.rids]
        self.data = b"".join((self.data, *run.data))
        self.size = len(self.data) + OVERHEAD_BYTES * len(sizes)
        self.count += sum(run.counts)
        self.number, self.rid = run.last_number, run.rids[-1]

    def remove(self, upto: int) -> tuple[int, int, int, int]:
        """The appends of the run up to this number are stored: keep the others. Returns how many those are, their
        events, their bytes, and the id of the last one's request."""
        sizes, counts = self.pieces or ((), ())
        events = upto - (self.number - self.count)
        appends = list(accumulate(counts)).index(events) + 1
        size_bytes, rid = sum(sizes[:appends]), self.rids[appends - 1]
        self.data = memoryview(self.data)[size_bytes:]
        self.size -= size_bytes + OVERHEAD_BYTES * appends
        self.count -= events
        self.previous = upto
        self.rids = self.rids[appends:]
        self.pieces = None
        if len(self.rids) > 1:
            self.pieces = Pieces(sizes[appends:], counts[appends:])
        return appends, events, size_bytes, rid

    @property
    def first(self) -> tuple[int, int]:
        """Event number of the first append, and the id of its request."""
        if self.pieces is None:
            return self.number, self.rid
        return self.number - self.count + self.pieces.counts[0], self.rids[0]

    @property
    def appends(self) -> int:
        return 1 if self.pieces is None else len(self.pieces.sizes)

    def __call__(self, outcome: Appended | PenstockError) -> None:
        self.side.finished(self, outcome)

    def attributes(self) -> Mapping[str, Value]:
        """See ``append_meter.Measured``."""
        binding = self.binding
        return append_attributes(binding.segment, str(binding.id), self.number, self.count, len(self.data))


class Many:
    """Appends that came in one frame. It is the callback for those that were passed on to the store together. One frame
    answers all, once the outcome of each is known.

    ``appends``: those passed on; ``bindings`` and ``indexes``: the writer of each, and its index in the frame. ``size``:
    as of ``InFlight``, for all of them. ``lengths``: lengths of the segments, by index. ``failures``: frames that say why
    an append was not stored. Without such a frame, an append failed because an earlier one did.
    """

    __slots__ = (
        "appends",
        "bindings",
        "failure_bytes",
        "failures",
        "indexes",
        "left",
        "lengths",
        "rid",
        "side",
        "size",
    )

    def __init__(self, side: Finisher, rid: int, count: int) -> None:
        self.side = side
        self.rid = rid
        self.left = count
        self.appends: list[FrameAppend] = []
        self.bindings: list[Binding] = []
        self.indexes: list[int] = []
        self.size = 0
        self.lengths = [NOT_STORED] * count
        self.failures: list[tuple[int, bytes]] = []
        self.failure_bytes = 0

    def add(self, binding: Binding, data: bytes | memoryview, count: int, number: int, index: int) -> None:
        """Add an append that is passed on with the others."""
        self.appends.append((binding.segment, binding.id, data, number, count, binding.submitted))
        self.bindings.append(binding)
        self.indexes.append(index)
        self.size += len(data) + OVERHEAD_BYTES
        binding.received = binding.submitted = number
        binding.in_flight += 1

    def single(self, place: int) -> InFlight:
        """One of the appends that were passed on, as an item of its own."""
        _, _, data, number, count, previous = self.appends[place]
        item = InFlight(self.side, self.bindings[place], data, count, number, self.rid, None, self, self.indexes[place])
        item.previous = previous
        return item

    def __call__(self, places: Sequence[int], outcome: Sequence[int] | PenstockError) -> None:
        self.side.many_finished(self, places, outcome)
        if self.left:
            # Free their data, which is no longer counted: other appends of the frame may wait for long.
            for place in places:
                self.appends[place] = _ANSWERED

    def attributes(self) -> Mapping[str, Value]:
        """See ``append_meter.Measured``: the segment and the writer are those of the first append."""
        segment, writer, _, number, _, _ = self.appends[0]
        events = sum(append[4] for append in self.appends)
        return append_attributes(segment, str(writer), number, events, sum(len(append[2]) for append in self.appends))

    def failed(self, index: int, reply: bytes) -> None:
        # Beyond the bound, the append counts as failed because of an earlier one: the client sets up again and then
        # gets the error.
        self.failure_bytes += len(reply)
        if self.failure_bytes <= _FAILURES_BYTES:
            self.failures.append((index, reply))
