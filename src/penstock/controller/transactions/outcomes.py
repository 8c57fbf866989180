"""Lets callers that have committed a transaction wait until its events are readable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from penstock.codec.control.streams import TransactionState


class Outcomes:
    """Ends of transactions that this process performs. Those that another process performs are not reported."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, asyncio.Future[TransactionState]] = {}

    @contextmanager
    def of(self, txn: UUID) -> Iterator[asyncio.Future[TransactionState]]:
        """A future that gets the outcome if the transaction ends before the block does."""
        waiter = self._waiting.get(txn)
        if waiter is None:
            waiter = self._waiting[txn] = asyncio.get_running_loop().create_future()
        try:
            yield waiter
        finally:
            if self._waiting.get(txn) is waiter:
                del self._waiting[txn]

    def ended(self, txn: UUID, state: TransactionState) -> None:
        """Report an end that is durable to all waiting callers."""
        waiter = self._waiting.pop(txn, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(state)
