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
from penstock.ports.data.segments import Appended, Pieces
from penstock.ports.files import Buffer

OVERHEAD_BYTES = 128
"""What an append counts besides its data."""
NOT_STORED = -1  # length of an append that is not stored
_FAILURES_BYTES = 8 << 20


class Finisher(Protocol):
    """Takes the outcomes of appends."""

    def finished(self, item: InFlight, outcome: Appended | PenstockError) -> None: ...


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
    """Appends that came in one frame. One frame answers them, once the outcome of each is known.

    ``lengths``: lengths of their segments. ``failures``: frames that say why an append was not stored. An append that
    was not stored and has no frame failed because one before it did.
    """

    __slots__ = ("failure_bytes", "failures", "left", "lengths", "rid")

    def __init__(self, rid: int, count: int) -> None:
        self.rid = rid
        self.left = count
        self.lengths = [NOT_STORED] * count
        self.failures: list[tuple[int, bytes]] = []
        self.failure_bytes = 0

    def failed(self, index: int, reply: bytes) -> None:
        # Beyond the bound, the append counts as failed because of an earlier one: the client sets up again and then
        # gets the error.
        self.failure_bytes += len(reply)
        if self.failure_bytes <= _FAILURES_BYTES:
            self.failures.append((index, reply))
