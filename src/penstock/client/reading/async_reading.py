"""The base of the asynchronous readers: returns events, blocks or record batches one at a time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.options import timeout
from penstock.client.reading.blocks import Block, Event

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncBlockReader(ABC):
    """A reader of blocks of whole events. Not for several tasks at once.

    After a timeout or a cancellation, the next call of any kind continues: no event is lost or returned twice.
    """

    _events: Iterator[Event] = iter(())
    """Events of the last block that were not returned to the user yet."""

    @abstractmethod
    async def take_block(self) -> Block | None:
        """The next block, or None at the end. The caller records on the block what it returns to the user: the block, or
        its events. Cancelled: nothing is lost."""

    @abstractmethod
    def usable(self, block: Block) -> Iterator[Event]:
        """The events of the block, as long as it is this reader's. Raises ForkedError in a forked child."""

    async def next_block(self, timeout_s: float | None = None) -> Block | None:
        """The next block of whole events, or None at the end. The previous block counts as read.

        Raises TimeoutError after ``timeout_s`` seconds; the next call continues to wait. Otherwise as ``take_block``.
        """
        block = await _within(timeout_s, self.take_block)
        if block is not None:
            block.hand_out()
        return block

    async def read(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None at the end or after ``timeout_s`` seconds. Raises as ``take_block``."""
        try:
            return await _within(timeout_s, self._next_event)
        except TimeoutError:
            return None

    def read_blocks(self) -> AsyncIterator[Block]:
        """Blocks of whole framed events, as they arrive."""
        return _Iterator(self.next_block)

    def read_arrow(self) -> AsyncIterator[pa.RecordBatch]:
        """A record batch per block: ``event`` (binary), ``segment_id`` and ``offset`` (int64).

        The iterator raises MissingExtraError where pyarrow or numpy is not installed; no event is taken then.
        """
        return _Iterator(self._next_batch)

    def __aiter__(self) -> AsyncIterator[Event]:
        """Events one by one. After a ``break``, the next loop or ``read`` continues with the next event."""
        return _Iterator(self._next_event)

    async def _next_event(self) -> Event | None:
        while True:
            for event in self._events:
                return event
            block = await self.take_block()
            if block is None:
                return None
            self._events = self.usable(block)

    async def _next_batch(self) -> pa.RecordBatch | None:
        from penstock.client.writing.arrow import block_to_batch

        block = await self.take_block()
        if block is None:
            return None
        batch = block_to_batch(block)
        block.hand_out()
        return batch


class _Iterator(AsyncIterator[T], Generic[T]):
    """Iterator over the results of ``ask``, up to its first None.

    Unlike an async generator, which ends for good when it is cancelled, it can be asked again:
    ``asyncio.wait_for(anext(events), 1)``.
    """

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[], Awaitable[T | None]]) -> None:
        self._ask = ask

    async def __anext__(self) -> T:
        found = await self._ask()
        if found is None:
            raise StopAsyncIteration
        return found


async def _within(timeout_s: float | None, ask: Callable[[], Awaitable[T]]) -> T:
    """Return an answer that is ready, even with a timeout of 0. Raises TimeoutError after cancelling ``ask``."""
    timeout(timeout_s)
    if timeout_s is None:
        return await ask()
    async with asyncio.timeout(timeout_s):
        return await ask()
