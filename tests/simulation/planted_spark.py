"""Planted bugs of the exactly-once sink and of the order of readers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from penstock.client.reading import cursor, group_state
from penstock.controller.transactions import batches
from penstock.core.streams import transactions
from penstock.core.streams.query_source import BatchPlace


def a_number_alone_makes_a_repeat() -> Any:
    """The first batches of a new query under a used name count as repeats: their rows are dropped."""

    def classify_batch(known: Any, batch: int, source: Any, *, writer: str) -> BatchPlace:
        return BatchPlace.REPEAT if known is not None and batch <= known.batch else BatchPlace.NEW

    stack = ExitStack()
    stack.enter_context(patch.object(batches, "classify_batch", classify_batch))
    stack.enter_context(patch.object(transactions, "classify_batch", classify_batch))
    return stack


def successors_do_not_wait() -> Any:
    """A segment is read as soon as one of its predecessors is read to its end."""

    def startable(waiting: Any, unfinished: Any, ranges: Any) -> list[Any]:
        return sorted(waiting)

    stack = ExitStack()
    stack.enter_context(patch.object(cursor, "startable", startable))
    stack.enter_context(patch.object(group_state, "startable", startable))
    return stack


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item for item in (a_number_alone_makes_a_repeat, successors_do_not_wait)
}
