"""The retention API: the policy of a level, the planner's answers for a stream, holds, and approvals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from penstock.client.options import check_printable, cut_of
from penstock.codec.control.policy_document import decode_document
from penstock.core.policies.levels import validate, with_pravega
from penstock.model.answers.approvals import ApprovalRequest
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.facts import StreamFacts
from penstock.model.answers.forecast import Forecast
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.answers.reclaim import ReclaimReport
from penstock.model.answers.subscribers import Eviction
from penstock.model.answers.undo import UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy
from penstock.model.retention import EMPTY, EffectivePolicy, HoldInfo, PolicyDocument, PolicyTarget
from penstock.ports.control.plane import ControlPlane
from penstock.ports.rng import Rng

Policy: TypeAlias = PolicyDocument | RetentionPolicy | Mapping[str, Any] | None
"""A policy document, its JSON form, or a Pravega policy; with None the next level decides."""

When: TypeAlias = datetime | int | None
"""A moment: with a time zone, or in milliseconds since the Unix epoch."""


def document_of(given: Policy) -> PolicyDocument:
    """The document for a user's argument. Raises InvalidArgumentError with the path of the field."""
    if given is None:
        return EMPTY
    if isinstance(given, PolicyDocument):
        return given
    if isinstance(given, RetentionPolicy):
        return with_pravega(EMPTY, given)
    if isinstance(given, Mapping):
        return decode_document(dict(given))
    raise InvalidArgumentError(
        "a policy must be a PolicyDocument, its JSON form, a RetentionPolicy or None",
        policy=repr(given)[:60],
        type=type(given).__name__,
    )


def ms_of(when: When, *, name: str) -> int | None:
    """Milliseconds since the Unix epoch. Raises InvalidArgumentError if the value is not a moment."""
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidArgumentError("the time has no time zone; add one, such as UTC", **{name: when.isoformat()})
        return round(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, int) or when < 0:
        raise InvalidArgumentError(
            "a time must be a datetime with a time zone, or milliseconds since the Unix epoch",
            **{name: repr(when)[:60]},
        )
    return when


def _check_text(**given: object) -> None:
    for name, value in given.items():
        check_printable(name, value)


class AsyncLevelPolicy:
    """The policy document of a scope or of the server: streams inherit the fields that they do not set themselves."""

    def __init__(self, target: PolicyTarget, controller: ControlPlane) -> None:
        self._target = target
        self._controller = controller

    async def get(self) -> PolicyDocument:
        """The document of this level alone. Raises ScopeNotFoundError, StreamNotFoundError."""
        return await self._controller.policies.get(self._target)

    async def set(self, policy: Policy) -> None:
        """Replace the document: a ``PolicyDocument``, its JSON form, a ``RetentionPolicy``, or None, which leaves every
        field to the next level. In force when this returns.

        Sizes are in bytes and ages in seconds (their names end in ``_s``). Of ``retain``: ``min_bytes``, ``min_age_s``,
        ``max_bytes``, ``max_age_s``, ``combine``, ``measure``; of ``backlog``: ``ttl_s``, ``max_bytes``, ``max_age_s``,
        ``max_events``, ``on_exceed``, ``on_exceed_bytes``, ``on_exceed_age``, ``on_exceed_events``, ``evict_to``; of
        ``idle``: ``subscriber_s``, ``stream_s``, ``stream_when``; and ``unsubscribed`` and ``grace_s``:
        docs/formats/policy.md. It does not ask for confirmation: the next cycle may delete what the document releases.
        ``plan`` of a stream's retention shows that beforehand.

        Raises InvalidArgumentError, with ``field``, ``value``, ``rule`` and ``level``; the old document stays then.
        """
        await self._controller.policies.set(self._target, validate(document_of(policy), self._target))


class AsyncHolds:
    """Holds on a stream, in a scope, or in the whole store. No rule or call deletes held data."""

    def __init__(self, target: PolicyTarget, controller: ControlPlane, rng: Rng) -> None:
        self._target = target
        self._controller = controller
        self._rng = rng

    async def list(self) -> Sequence[HoldInfo]:
        """Holds in force, those of the stream's scope included, sorted by scope, stream and id."""
        return await self._controller.holds.list(self._target)

    async def add(
        self,
        *,
        owner: str,
        reason: str,
        until: When = None,
        cut: StreamCut | str | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        """Place a hold on the data from ``cut`` on (None: all data), until ``until`` (None: until it is released).

        ``owner`` and ``reason`` are recorded. ``until``: a datetime with a time zone, or milliseconds since the Unix epoch.
        ``hold_id``: None generates one. Repeating a call with the same id and content does nothing. Raises
        AlreadyExistsError, InvalidArgumentError, InvalidCutError.
        """
        if self._target is None:
            raise InvalidArgumentError("a hold must be on a stream or a scope")
        _check_text(owner=owner, reason=reason, hold_id=hold_id or "")
        return await self._controller.holds.add(
            self._target,
            owner=owner,
            reason=reason,
            until_ms=ms_of(until, name="until"),
            cut=None if cut is None else cut_of(cut),
            # Not generated by the server: a call that is repeated because its answer was lost would place another hold.
            hold_id=self._rng.uuid().hex if hold_id is None else hold_id,
        )

    async def extend(self, hold_id: str, *, owner: str, until: When = None) -> HoldInfo:
        """Let the hold ``hold_id`` end later: at ``until``, or (None) when it is released. The data is held without a gap.

        ``owner`` is recorded as the one who extended it. ``until``: as for ``add``. Repeating a call does nothing. Raises
        NotFoundError (no such hold is in force), InvalidArgumentError (the hold would end earlier).
        """
        _check_text(owner=owner, hold_id=hold_id)
        return await self._controller.holds.extend(hold_id, owner=owner, until_ms=ms_of(until, name="until"))

    async def release(self, hold_id: str, *, owner: str) -> HoldInfo:
        """Release the hold ``hold_id``. ``owner`` is recorded as the one who released it. Raises NotFoundError."""
        _check_text(owner=owner, hold_id=hold_id)
        return await self._controller.holds.release(hold_id, owner=owner)


class AsyncRetention(AsyncLevelPolicy):
    """The retention of one stream: its policy, and the planner's decisions about it.

    docs/formats/planner.md has the answers as JSON. All calls raise StreamNotFoundError.
    """

    def __init__(self, stream: StreamName, controller: ControlPlane, rng: Rng) -> None:
        super().__init__(stream, controller)
        self._stream = stream
        self._rng = rng

    async def effective(self) -> EffectivePolicy:
        """What applies to the stream after all levels, with the origin of each value."""
        return await self._controller.policies.effective(self._stream)

    async def plan(self, change: Policy = None, *, at: When = None) -> RetentionPlan:
        """What would be deleted at ``at`` (None: now) until nothing is due, with ``change`` as the stream's policy. Changes
        nothing."""
        document = None if change is None else validate(document_of(change), self._stream)
        return await self._controller.retention.plan(self._stream, change=document, at_ms=ms_of(at, name="at"))

    async def explain(self, position: StreamCut | str | None = None) -> Explanation:
        """What holds each byte from head to tail, or the byte at ``position``, and since when or until when."""
        cut = None if position is None else cut_of(position, name="position")
        return await self._controller.retention.explain(self._stream, position=cut)

    async def run(self) -> RetentionRun:
        """Decide and perform now until nothing is due, and return what was done."""
        return await self._controller.retention.run(self._stream)

    async def facts(self) -> StreamFacts:
        """The planner's input for the stream now: a line for ``penstock retention plan --facts``."""
        return await self._controller.retention.facts(self._stream)

    async def reclaim(self) -> ReclaimReport:
        """The space that was freed, and the space that is pending, with the reason and the time."""
        return await self._controller.retention.reclaim(self._stream)

    async def forecast(self) -> Forecast:
        """When a limit, a quota or the disk is reached at the rates of the last hour."""
        return await self._controller.retention.forecast(self._stream)

    async def undo(self) -> StreamCut:
        """Undo the last truncation whose grace has not ended; returns the head. Raises ConflictError."""
        return await self._controller.retention.undo_last(self._stream)

    async def undo_since(self, since_ms: int | None) -> UndoneTruncations:
        """Undo all truncations since ``since_ms`` (wall clock; None: the last one) whose grace has not ended.

        Raises ConflictError if there is none.
        """
        return await self._controller.retention.undo(self._stream, since_ms=since_ms)

    async def evictions(self) -> Sequence[Eviction]:
        """The latest forced advances of subscribers, oldest first."""
        return await self._controller.retention.list_evictions(self._stream)

    @property
    def holds(self) -> AsyncHolds:
        """Holds on the stream."""
        return AsyncHolds(self._stream, self._controller, self._rng)


class AsyncApprovals:
    """Approvals of a store. A call whose action needs approval raises ApprovalRequiredError, which names the request."""

    def __init__(self, controller: ControlPlane) -> None:
        self._controller = controller

    async def require(self, target: StreamName | str | None, actions: Sequence[str]) -> None:
        """Set which actions need approval on the ``target``: a stream (``scope/stream``), a scope, or (None) the server.

        ``actions``: of ``delete``, ``truncate``, ``release`` (of a hold) and ``shorten`` (of retention); the levels above
        add theirs. To require less needs an approval itself. Raises ApprovalRequiredError, InvalidArgumentError (also
        where callers have no verified identity), ScopeNotFoundError, StreamNotFoundError.
        """
        await self._controller.approvals.require(_target(target), actions)

    async def required(self, target: StreamName | str | None = None) -> Sequence[str]:
        """The actions that need approval on the target, with those of the levels above. Raises as ``require``."""
        return await self._controller.approvals.required(_target(target))

    async def list(self) -> Sequence[ApprovalRequest]:
        """Requests, oldest first; those that ended are listed for 30 days."""
        return await self._controller.approvals.list()

    async def show(self, request: str) -> ApprovalRequest:
        """One request. Raises NotFoundError."""
        return await self._controller.approvals.get(request)

    async def approve(self, request: str, *, why: str = "") -> ApprovalRequest:
        """Approve the request of another identity, perform it, and return it: ``executed``, or ``failed`` with the reason.

        Cancelled: the approval may be recorded, and is then performed. Raises NotFoundError, ConflictError (it has ended,
        or what it depends on has changed), PermissionDeniedError. ``why`` is recorded.
        """
        return await self._controller.approvals.approve(request, why=why)

    async def refuse(self, request: str, *, why: str) -> ApprovalRequest:
        """Refuse the request of another identity. Raises as ``approve``."""
        return await self._controller.approvals.refuse(request, why=why)

    async def withdraw(self, request: str, *, why: str = "") -> ApprovalRequest:
        """Withdraw one's own request; ``why`` is recorded.

        Raises NotFoundError, ConflictError (it has ended), PermissionDeniedError.
        """
        return await self._controller.approvals.withdraw(request, why=why)


def _target(target: StreamName | str | None) -> PolicyTarget:
    return StreamName.parse(target) if isinstance(target, str) and "/" in target else target
