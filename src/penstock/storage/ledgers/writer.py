"""An open ledger: its entries in flight to bookies, and the acknowledged ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from penstock.codec.bookie import (
    Answer,
    Bytes,
    Code,
    Entry,
    Operation,
    encode_add,
    encode_entry,
)
from penstock.codec.ledger_metadata import LedgerMetadata, LedgerState
from penstock.model.errors import (
    FencedError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    ThrottledError,
    UnavailableError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Buffer
from penstock.storage.ledgers.connections import BookieConnection
from penstock.storage.ledgers.limits import LedgerLimits
from penstock.storage.ledgers.metadata import LedgerNodes, closed_at, names_of

_BUSY_S = 0.05
"""Pause before an add is repeated that a busy bookie refused."""


@dataclass(slots=True, eq=False)
class _Lane:
    """One bookie of the ledger. ``unanswered``: deadline of each entry in flight, oldest first."""

    name: str
    connection: BookieConnection
    unanswered: dict[int, float] = field(default_factory=dict)
    size_bytes: int = 0
    failed: bool = False


@dataclass(slots=True, eq=False)
class _Pending:
    entry: int
    size_bytes: int
    length_bytes: int
    acknowledged: asyncio.Future[int]
    lanes: set[str] = field(default_factory=set)
    """Bookies that have it."""


class BookKeeperWriter:
    """Implements ``ports.cluster.ledgers.LedgerWriter``. The ensemble never changes: a bookie that fails is left out of
    the rest of this ledger."""

    def __init__(
        self,
        ledger: int,
        metadata: LedgerMetadata,
        connections: Sequence[BookieConnection],
        *,
        key: bytes,
        nodes: LedgerNodes,
        limits: LedgerLimits,
        on_failure: Callable[[str], None],
    ) -> None:
        """``on_failure`` is called with the name of each bookie that is left out, so that it rests."""
        self._ledger = ledger
        self._key = key
        self._nodes = nodes
        self._limits = limits
        self._on_failure = on_failure
        self._acks = metadata.ack_quorum
        self._lanes = [_Lane(*pair) for pair in zip(names_of(metadata), connections, strict=True)]
        self._next = 0
        self._length_bytes = 0
        self._confirmed = -1
        self._confirmed_bytes = 0
        self._pending: deque[_Pending] = deque()
        self._by_entry: dict[int, _Pending] = {}
        self._in_flight_bytes = 0
        self._failure: PenstockError | None = None
        self._closing = False
        self._on_all: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ledger(self) -> int:
        return self._ledger

    @property
    def confirmed(self) -> int:
        return self._confirmed

    @property
    def failed(self) -> Sequence[str]:
        return [lane.name for lane in self._lanes if lane.failed]

    def add(self, parts: Sequence[Buffer]) -> Awaitable[int]:
        """As the port says."""
        size = sum(map(len, parts))
        if size > self._limits.entry_max_bytes:
            raise InvalidArgumentError(
                "entry is over the limit", size_bytes=size, limit_bytes=self._limits.entry_max_bytes
            )
        if self._pending and self._in_flight_bytes + size > self._limits.in_flight_bytes:
            raise ThrottledError(
                "ledger has too many bytes in flight", resource="ledger", limit=self._limits.in_flight_bytes
            )
        loop = asyncio.get_running_loop()
        acknowledged: asyncio.Future[int] = loop.create_future()
        if self._failure is not None or self._closing:
            _refuse(acknowledged, self._failure or UnavailableError("ledger is closed", ledger=self._ledger))
            return acknowledged
        number, self._next = self._next, self._next + 1
        self._length_bytes += size
        pending = _Pending(number, size, self._length_bytes, acknowledged)
        self._pending.append(pending)
        self._by_entry[number] = pending
        self._in_flight_bytes += size
        entry = Entry(
            ledger=self._ledger,
            entry=number,
            confirmed=self._confirmed,
            length_bytes=self._length_bytes,
            payload=b"".join(parts),
        )
        frame = encode_add(encode_entry(entry), key=self._key)
        deadline = loop.time() + self._limits.timeout_s
        for lane in self._lanes:
            if not lane.failed:
                lane.unanswered[number] = deadline
                lane.size_bytes += size
                self._send(lane, number, frame, size)
        self._watch()
        return acknowledged

    async def add_header(self, header: bytes) -> None:
        """Entry 0, on all bookies. Raises UnavailableError if one of them does not take it, FencedError."""
        self._on_all = asyncio.get_running_loop().create_future()
        acknowledged = self.add([header])
        try:
            await self._on_all
            await acknowledged
        finally:
            self._on_all = None

    async def close(self) -> int:
        """As the port says."""
        # From here on no answer acknowledges anything, because entries after the end are lost.
        self._closing = True
        self.stop()
        while True:
            metadata, version = await self._nodes.read(self._ledger)
            if metadata.state is LedgerState.CLOSED and metadata.last_entry == self._confirmed:
                return self._confirmed  # by an earlier attempt of ours whose answer was lost, or by one that agrees
            if metadata.state is not LedgerState.OPEN:
                raise FencedError("ledger was taken over", ledger=self._ledger, confirmed=self._confirmed)
            closed = closed_at(metadata, last=self._confirmed, length_bytes=self._confirmed_bytes)
            if await self._nodes.replace(self._ledger, closed, version) is not None:
                return self._confirmed

    def stop(self) -> None:
        """Acknowledge nothing more; what is in flight fails. The ledger stays open."""
        self._fail(UnavailableError("ledger is closed", ledger=self._ledger))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- answers

    def _send(self, lane: _Lane, number: int, frame: Sequence[Bytes], size: int) -> None:
        def answered(answer: Answer | None) -> None:
            self._answered(lane, number, frame, size, answer)

        if self._failure is not None:
            return
        sent = not lane.failed and lane.connection.send((Operation.ADD, self._ledger, number), frame, answered)
        if not sent or lane.size_bytes > self._limits.lag_bytes:
            self._fail_lane(lane)

    def _answered(self, lane: _Lane, number: int, frame: Sequence[Bytes], size: int, answer: Answer | None) -> None:
        if lane.failed or self._failure is not None:
            return
        if answer is None:
            self._fail_lane(lane)
            return
        if answer.code == Code.TOO_MANY_REQUESTS:
            # The entry's deadline stays: a bookie that is busy for longer is left out.
            asyncio.get_running_loop().call_later(_BUSY_S, self._send, lane, number, frame, size)
            return
        if answer.code == Code.FENCED:
            self._fail(FencedError("ledger was fenced by another client", ledger=self._ledger, bookie=lane.name))
            return
        if answer.code != Code.OK:
            self._fail_lane(lane)
            return
        if lane.unanswered.pop(number, None) is not None:
            lane.size_bytes -= size
        pending = self._by_entry.get(number)
        if pending is not None:
            pending.lanes.add(lane.name)
            self._confirm()
        if number == 0 and self._on_all is not None and not any(0 in one.unanswered for one in self._lanes):
            _finish(self._on_all)

    def _confirm(self) -> None:
        while self._pending and len(self._pending[0].lanes) >= self._acks:
            pending = self._pending.popleft()
            del self._by_entry[pending.entry]
            self._in_flight_bytes -= pending.size_bytes
            self._confirmed, self._confirmed_bytes = pending.entry, pending.length_bytes
            if not pending.acknowledged.done():
                pending.acknowledged.set_result(pending.entry)

    # --- failures

    def _fail_lane(self, lane: _Lane) -> None:
        if lane.failed:
            return
        lane.failed = True
        self._on_failure(lane.name)
        lane.unanswered.clear()
        lane.size_bytes = 0
        if self._on_all is not None and not self._on_all.done():
            self._on_all.set_exception(NotConnectedError("bookie did not take the header", bookie=lane.name))
        alive = {one.name for one in self._lanes if not one.failed}
        if len(alive) < self._acks or any(len(one.lanes | alive) < self._acks for one in self._pending):
            self._fail(
                UnavailableError(
                    "too few bookies are left for the ledger",
                    ledger=self._ledger,
                    failed=tuple(self.failed),
                    acks=self._acks,
                )
            )

    def _fail(self, error: PenstockError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        for pending in self._pending:
            _refuse(pending.acknowledged, error)
        if self._on_all is not None and not self._on_all.done():
            self._on_all.set_exception(error)
        self._pending.clear()
        self._by_entry.clear()

    def _watch(self) -> None:
        """Give up bookies that are silent for too long."""
        if self._timer is None and self._failure is None and any(lane.unanswered for lane in self._lanes):
            self._timer = asyncio.get_running_loop().call_later(self._limits.timeout_s / 4, self._check)

    def _check(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for lane in self._lanes:
            oldest = next(iter(lane.unanswered.values()), now)
            if oldest < now:
                lane.connection.abort()
                self._fail_lane(lane)
        self._watch()


def _refuse(future: asyncio.Future[int], error: PenstockError) -> None:
    if not future.done():
        future.set_exception(type(error)(error.message, **error.fields))
        future.exception()  # a caller that has left is no reason for a warning


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
