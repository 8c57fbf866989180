"""A task attempt that sends its rows to the store, as appends to its own transaction."""

from __future__ import annotations

import asyncio
import time
from dataclasses import field
from uuid import uuid4

from penstock.client.retry import RETRYABLE
from penstock.model.errors import WriterFencedError
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.transactions import Transaction
from penstock.ports.data.segments import Append
from penstock.spark.connect import RETRY_S, Services, patiently
from penstock.spark.writing.frames import Framed

_IN_FLIGHT_BYTES = 32 << 20


@dataclass(slots=True)
class _Lane:
    """One segment of the transaction: its last event number, and the appends not yet known to be durable.

    ``sent``: by event number, in order. ``lost_at``: since when the store has been unavailable, with no append stored
    since.
    """

    name: str
    last: int | None = None
    sent: dict[int, Append] = field(default_factory=dict)
    lost_at: float | None = None


class WireAttempt:
    """Appends to the segments of a transaction, several at a time, in order within each.

    Waits up to ``RETRY_S`` for a store that is unavailable. Acknowledged appends are durable; the store reports how
    many of the others it has, and the missing ones are sent again.
    """

    def __init__(self, services: Services, stream: StreamName, transaction: Transaction) -> None:
        self._services = services
        self._lanes = [
            _Lane(transaction_segment_name(segment_name(stream, item.segment), transaction.id))
            for item in transaction.segments
        ]
        self._writer = uuid4()
        self._pending: dict[asyncio.Task[object], tuple[_Lane, Append]] = {}

    async def add(self, part: Framed) -> None:
        """Send a part. Returns once it is in flight and at most 32 MiB are. Raises what an earlier append raised."""
        lane = self._lanes[part.index]
        if lane.last is None:
            lane.last = await self._stored(lane)
        number = max(lane.last, 0) + part.count
        request = Append(
            segment=lane.name,
            writer=self._writer,
            data=part.data,
            event_number=number,
            event_count=part.count,
            previous=lane.last,
        )
        lane.last = number
        lane.sent[number] = request
        self._send(lane, request)
        while self.held_bytes > _IN_FLIGHT_BYTES:
            await self.relieve()
        # Let the bytes leave before the caller blocks on its next rows.
        await asyncio.sleep(0)

    @property
    def held_bytes(self) -> int:
        """Bytes in flight."""
        return sum(len(request.data) for _, request in self._pending.values())

    async def relieve(self) -> None:
        """Return once an append in flight has ended. Raises what it raised."""
        await self._settle(asyncio.FIRST_COMPLETED)

    def _send(self, lane: _Lane, request: Append) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(self._services.segments.append(request))
        self._pending[task] = lane, request

    async def _stored(self, lane: _Lane) -> int:
        return await patiently(lambda: self._services.segments.setup_append(lane.name, self._writer))

    async def finish(self) -> None:
        """Return once everything is durable."""
        while self._pending:
            await self._settle(asyncio.ALL_COMPLETED)

    async def _settle(self, when: str) -> None:
        done, _ = await asyncio.wait(self._pending, return_when=when)
        lost: list[_Lane] = []
        for task in done:
            lane, _ = self._pending[task]
            if self._lost(task) and lane not in lost:
                lost.append(lane)
        for lane in lost:
            await self._resume(lane)

    def _lost(self, task: asyncio.Task[object]) -> bool:
        """Take the outcome of an append. True if the store became unavailable before it answered. Raises any other
        error."""
        lane, request = self._pending.pop(task)
        try:
            task.result()
        except RETRYABLE:
            if lane.lost_at is None:
                lane.lost_at = time.monotonic()
            elif time.monotonic() - lane.lost_at > RETRY_S:
                raise
            return True
        except WriterFencedError:
            # The line was reopened for this append, and the store lacks the appends lost before it.
            if next(iter(lane.sent)) == request.event_number:
                raise
            return True
        del lane.sent[request.event_number]
        lane.lost_at = None
        return False

    async def _resume(self, lane: _Lane) -> None:
        """Ask the store for the last number that it has of a lane, and send later appends again."""
        behind = [task for task, (other, _) in self._pending.items() if other is lane]
        if behind:
            await asyncio.wait(behind)
            for task in behind:
                self._lost(task)
        stored = await self._stored(lane)
        lane.sent = {number: request for number, request in lane.sent.items() if number > stored}
        for request in lane.sent.values():
            self._send(lane, request)

    async def cancel(self) -> None:
        """Cancel the appends in flight, and wait until they end."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        self._pending.clear()
