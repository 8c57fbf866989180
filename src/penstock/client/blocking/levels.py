"""The blocking face of retention: the same names as ``penstock.client.retention``, no ``await``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.client.blocking.loop_thread import LoopThread
from penstock.client.retention import AsyncHolds, AsyncLevelPolicy, AsyncRetention, Policy, When
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.cuts import StreamCut
from penstock.model.retention import EffectivePolicy, HoldInfo, PolicyDocument


class LevelPolicy:
    """The policy document of a scope or of the server: what streams inherit that do not say otherwise themselves."""

    def __init__(self, thread: LoopThread, inner: AsyncLevelPolicy) -> None:
        self._thread = thread
        self._level = inner

    def get(self) -> PolicyDocument:
        """The document of this very level. Raises ScopeNotFoundError, StreamNotFoundError."""
        return self._thread.call(self._level.get())

    def set(self, policy: Policy) -> None:
        """Replace the document: a ``PolicyDocument``, its JSON form, a ``RetentionPolicy``, or None, which says nothing and
        leaves all to the next level. In force when this returns.

        Sizes are in bytes and ages in seconds (their names end in ``_s``). Of ``retain``: ``min_bytes``, ``min_age_s``,
        ``max_bytes``, ``max_age_s``, ``combine``, ``measure``; of ``backlog``: ``ttl_s``, ``max_bytes``, ``max_age_s``,
        ``max_events``, ``on_exceed``, ``on_exceed_bytes``, ``on_exceed_age``, ``on_exceed_events``, ``evict_to``; of
        ``idle``: ``subscriber_s``, ``stream_s``, ``stream_when``; and ``unsubscribed`` and ``grace_s``:
        docs/formats/policy.md. It does not ask for confirmation: the next cycle may delete what the document releases.
        ``plan`` of a stream's retention shows that beforehand.

        Raises InvalidArgumentError, with ``field``, ``value``, ``rule`` and ``level``; the old document stays then.
        """
        self._thread.call(self._level.set(policy))


class Holds:
    """Holds on a stream, in a scope, or all: data that stays, whatever any rule or call says. Iterating lists them."""

    def __init__(self, thread: LoopThread, inner: AsyncHolds) -> None:
        self._thread = thread
        self._inner = inner

    def list(self) -> Sequence[HoldInfo]:
        """Holds in force, those of the stream's scope included, sorted by scope, stream and id."""
        return self._thread.call(self._inner.list())

    def __iter__(self) -> Iterator[HoldInfo]:
        return iter(self.list())

    def add(
        self,
        *,
        owner: str,
        reason: str,
        until: When = None,
        cut: StreamCut | str | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        """Place a hold: from ``cut`` on (None: on all data), until then (None: until it is released).

        ``until``: a datetime with a time zone, or milliseconds since the Unix epoch. The same id and content again: nothing
        happens. Raises AlreadyExistsError, InvalidArgumentError, InvalidCutError.
        """
        return self._thread.call(self._inner.add(owner=owner, reason=reason, until=until, cut=cut, hold_id=hold_id))

    def release(self, hold_id: str, *, owner: str) -> HoldInfo:
        """Lift a hold; it is recorded who did. Raises NotFoundError."""
        return self._thread.call(self._inner.release(hold_id, owner=owner))


class Retention(LevelPolicy):
    """The retention of one stream: its policy, and what the planner says of it. Calls raise StreamNotFoundError,
    UnavailableError. Answers of the planner are mappings as docs/formats/planner.md has them."""

    def __init__(self, thread: LoopThread, inner: AsyncRetention) -> None:
        super().__init__(thread, inner)
        self._inner = inner

    def effective(self) -> EffectivePolicy:
        """What applies to the stream after all levels, with the origin of each value."""
        return self._thread.call(self._inner.effective())

    def plan(self, change: Policy = None, *, at: When = None) -> RetentionPlan:
        """What is deleted until nothing is due, now or later, with ``change`` as the stream's policy. Changes nothing."""
        return self._thread.call(self._inner.plan(change, at=at))

    def explain(self, position: StreamCut | str | None = None) -> Explanation:
        """Who holds each byte from head to tail, or the one at ``position``, and since when or until when."""
        return self._thread.call(self._inner.explain(position))

    def run(self) -> RetentionRun:
        """Decide and perform now until nothing is due, and return what was done."""
        return self._thread.call(self._inner.run())

    def facts(self) -> Mapping[str, Any]:
        """What the planner is told of the stream now: a line for ``penstock retention plan --facts``."""
        return self._thread.call(self._inner.facts())

    def reclaim(self) -> Mapping[str, Any]:
        """What was given back to the disk, what is pending, why and until when."""
        return self._thread.call(self._inner.reclaim())

    def forecast(self) -> Mapping[str, Any]:
        """When a limit, a quota or the disk is reached at the rates of late."""
        return self._thread.call(self._inner.forecast())

    def undo(self) -> StreamCut:
        """Take back the last truncation whose grace has not ended; returns the head. Raises ConflictError."""
        return self._thread.call(self._inner.undo())

    def undo_since(self, since_ms: int | None) -> Mapping[str, Any]:
        """Take back all truncations since that time (wall clock; None: the last one) whose grace has not ended.

        See ``ControllerService.undo_truncations`` for the answer. Raises ConflictError.
        """
        return self._thread.call(self._inner.undo_since(since_ms))

    def evictions(self) -> Sequence[Mapping[str, Any]]:
        """The latest forced advances of subscribers, oldest first."""
        return self._thread.call(self._inner.evictions())

    @property
    def holds(self) -> Holds:
        """Holds on the stream."""
        return Holds(self._thread, self._inner.holds)
