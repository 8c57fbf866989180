"""Cached facts about transactions, so that a process need not search the table for its own decisions."""

from __future__ import annotations

from penstock.controller.transactions.decision_queues import DecisionQueues
from penstock.controller.transactions.outcomes import Outcomes
from penstock.model.names import StreamName

PRUNE_EVERY = 100
"""Completed transactions between two searches for outcomes that are old enough to be removed."""

PRUNED_STREAMS_MAX = 100_000  # streams with a remembered time of the last removal of outcomes


class LocalTransactions:
    """Commit queues, callers that wait for an outcome, and when to prune old outcomes. All of it is a cache."""

    def __init__(self) -> None:
        self.queues = DecisionQueues()
        self.outcomes = Outcomes()
        self._unpruned: dict[StreamName, int] = {}

    def must_prune(self, name: StreamName, completed: int) -> bool:
        """Count ``completed`` transactions; True at the first ones in this process, and when there may be many."""
        waiting = self._unpruned.get(name)
        if waiting is not None and waiting + completed < PRUNE_EVERY:
            self._unpruned[name] = waiting + completed
            return False
        if len(self._unpruned) >= PRUNED_STREAMS_MAX:
            self._unpruned.clear()
        self._unpruned[name] = 0
        return True

    def forget(self, name: StreamName) -> None:
        """Forget a deleted stream."""
        self.queues.forget(name)
        self._unpruned.pop(name, None)
