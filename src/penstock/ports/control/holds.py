"""Holds: data that no rule or call may delete; and approvals: what only two identities together may remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.answers.approvals import ApprovalRequest
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import HoldInfo, PolicyTarget


class Holds(Protocol):
    """Holds on streams and scopes."""

    async def add(
        self,
        target: StreamName | str,
        *,
        owner: str,
        reason: str,
        until_ms: int | None = None,
        cut: StreamCut | None = None,
        hold_id: str | None = None,
    ) -> HoldInfo:
        """Place a hold on a stream or a whole scope. In force when this returns. Repeating the same id and content does
        nothing. Raises AlreadyExistsError, InvalidArgumentError, InvalidCutError."""
        ...

    async def list(self, target: PolicyTarget = None) -> Sequence[HoldInfo]:
        """Holds in force on a stream (its scope's included), in a scope, or all; sorted by scope, stream, id."""
        ...

    async def release(self, hold_id: str, *, owner: str) -> HoldInfo:
        """Lift a hold; the audit records who did. Raises NotFoundError."""
        ...

    async def extend(self, hold_id: str, *, owner: str, until_ms: int | None = None) -> HoldInfo:
        """Let a hold end later, or (None) only when it is released. No moment passes in which the data is not held. The
        audit records the new end and ``owner``. Repeating the call does nothing. Raises NotFoundError (no such hold is
        in force), InvalidArgumentError (the hold would end earlier)."""
        ...


class Approvals(Protocol):
    """Which actions need approval, and the requests for it.

    A call whose action needs approval raises ApprovalRequiredError and changes nothing: it records a request. Once another
    identity approves it, the store performs exactly that action, once. Source: docs/design/0055-four-eyes.md.
    """

    async def require(self, target: PolicyTarget, actions: Sequence[str]) -> None:
        """Set which actions need approval at this level: of ``delete``, ``truncate``, ``release`` and ``shorten``.

        The levels above add theirs. To require less needs an approval itself. Raises ApprovalRequiredError,
        InvalidArgumentError (an unknown action, or the caller has no verified identity), ScopeNotFoundError,
        StreamNotFoundError.
        """
        ...

    async def required(self, target: PolicyTarget) -> Sequence[str]:
        """The actions that need approval at this level, with those of the levels above. Raises as ``require``."""
        ...

    async def list(self) -> Sequence[ApprovalRequest]:
        """All requests, oldest first; those that ended are listed for 30 days."""
        ...

    async def get(self, request: str) -> ApprovalRequest:
        """The request. Raises NotFoundError."""
        ...

    async def approve(self, request: str, *, why: str = "") -> ApprovalRequest:
        """Approve the request of another identity, and perform it. Returns its state: ``executed``, or ``failed`` with the
        reason. ``approved``: it could not be performed yet, and will be.

        Needs the right to approve on the target. Repeating the call does nothing. Raises NotFoundError, ConflictError (it
        has ended, what it depends on has changed since, or the requester has lost its right), PermissionDeniedError (the
        requester, or no right).
        """
        ...

    async def refuse(self, request: str, *, why: str) -> ApprovalRequest:
        """Refuse the request of another identity. Raises as ``approve``."""
        ...

    async def withdraw(self, request: str, *, why: str = "") -> ApprovalRequest:
        """Withdraw one's own request. Raises NotFoundError, ConflictError (it has ended), PermissionDeniedError."""
        ...
