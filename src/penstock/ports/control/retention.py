"""What retention does, would do and has done to a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.answers.explanation import Explanation
from penstock.model.answers.facts import StreamFacts
from penstock.model.answers.forecast import Forecast
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.answers.reclaim import ReclaimReport
from penstock.model.answers.subscribers import Eviction
from penstock.model.answers.undo import UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import PolicyDocument


class Retention(Protocol):
    """Retention of a stream. All calls may raise ScopeNotFoundError and StreamNotFoundError.

    docs/formats/planner.md has the answers as JSON.
    """

    async def run(self, stream: StreamName) -> RetentionRun:
        """Decide and perform now until nothing is due, and return what was done."""
        ...

    async def plan(
        self, stream: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        """What would be done at ``at_ms`` (now), until nothing is due, with ``change`` as the stream's document.

        Changes nothing.
        """
        ...

    async def explain(self, stream: StreamName, *, position: StreamCut | None = None) -> Explanation:
        """What holds each byte from head to tail, and what a cycle would decide now. Changes nothing.

        ``position``: only the range that begins there, and until when it stays; for one before the head, when and by
        which rule it was deleted.
        """
        ...

    async def facts(self, stream: StreamName, *, change: PolicyDocument | None = None) -> StreamFacts:
        """The planner's current input for the stream: a line of facts, with ``change`` as its document.

        It contains the effective policy of all levels. Raises as ``plan``. Changes nothing.
        """
        ...

    async def reclaim(self, stream: StreamName) -> ReclaimReport:
        """What was freed, and what is pending, why and until when. Adds up to the size of the stream's files."""
        ...

    async def forecast(self, stream: StreamName) -> Forecast:
        """When a limit, a quota or the disk is reached at the rates of the last hour."""
        ...

    async def undo_last(self, stream: StreamName) -> StreamCut:
        """Undo the last truncation whose grace has not ended, and return the new head. Raises ConflictError if there is
        none."""
        ...

    async def undo(self, stream: StreamName, *, since_ms: int | None = None) -> UndoneTruncations:
        """Undo all truncations at or after ``since_ms`` (wall clock) whose grace has not ended; None: the last one.
        Raises ConflictError if there is none to undo.
        """
        ...

    async def list_evictions(self, stream: StreamName) -> Sequence[Eviction]:
        """The latest forced advances of the stream's subscribers, oldest first."""
        ...
