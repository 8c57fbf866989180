"""Whoever has committed a transaction here, waiting until its events are readable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from penstock.codec.control.streams import TransactionState


class Outcomes:
    """Ends of transactions that are performed in this process. One that is performed elsewhere is never told of."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, asyncio.Future[TransactionState]] = {}

    @contextmanager
    def of(self, txn: UUID) -> Iterator[asyncio.Future[TransactionState]]:
        """Done with how the transaction ended, if it does so before the block ends."""
        waiter = self._waiting.get(txn)
        if waiter is None:
            waiter = self._waiting[txn] = asyncio.get_running_loop().create_future()
        try:
            yield waiter
        finally:
            if self._waiting.get(txn) is waiter:
                del self._waiting[txn]

    def ended(self, txn: UUID, state: TransactionState) -> None:
        """The end is durable, and known to all who ask."""
        waiter = self._waiting.pop(txn, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(state)
