"""Subscribers of a stream: reader groups and queries whose progress retention waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.queries import QuerySource
from penstock.model.values.dataclass import dataclass

__all__ = ["SubscriberInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberInfo:
    """A subscriber of a stream, as ``scope/group``. ``cut=None``: it has published no position, so it holds nothing.

    ``updated_ms``: when it last made progress or confirmed that nothing is unread. Lags are from its cut to the tail:
    bytes and events are exact; ``lag_ms`` is the age of the oldest unread event, exact to one recording period, None if
    nothing is unread. ``held_bytes``: data that only it keeps. ``holes``: ranges acknowledged out of order; Pravega's
    protocol has none. Events, age and held bytes are -1 or None if they were not requested. ``query``: the query that
    owns it, empty if none is known. ``owner``: a description of the reader: a Spark query, a table, a reader group, or
    a group of the Java client; empty if it was not requested.
    """

    name: str
    generation: int
    cut: StreamCut | None
    updated_ms: int
    lag_bytes: int
    lag_events: int = -1
    lag_ms: int | None = None
    held_bytes: int = -1
    holes: int = 0
    query: str = ""
    owner: str = ""


class Subscribers(Protocol):
    """Subscribers of a stream, as ``scope/group``. All calls may raise StreamNotFoundError."""

    async def list(self, stream: StreamName) -> Sequence[str]: ...

    async def publish(
        self,
        subscriber: str,
        *,
        group_id: UUID | None,
        generation: int | None,
        cut: StreamCut,
        source: QuerySource | None = None,
    ) -> None:
        """Publish what the subscriber has consumed. Raises, in this order: StreamNotFoundError, SubscriberNotFoundError,
        GenerationMismatchError, WriterInUseError (the subscriber belongs to another query than ``source``, or a later run),
        InvalidCutError (not a cut, or before the last one)."""
        ...

    async def describe(self, stream: StreamName) -> Sequence[SubscriberInfo]:
        """All subscribers, with exact events, ages and what each holds."""
        ...

    async def move(
        self, stream: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> SubscriberMove:
        """Set the acknowledged cut, forwards or backwards: the primitive behind skip, clear, expire and reset.

        Running readers do not move. Unbounded ``cut``: the tail. Raises SubscriberNotFoundError, InvalidCutError,
        TruncatedError (before the head).
        """
        ...

    async def remove(self, stream: StreamName, subscriber: str) -> None:
        """Remove the subscription: it holds nothing from now on. Raises SubscriberNotFoundError."""
        ...
