"""What the controller stores about approvals. Source: docs/formats/metadata.md."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from penstock.codec.control.record import Field, JsonRecord
from penstock.model.answers.approvals import ApprovalRequest
from penstock.model.values.dataclass import dataclass


class ApprovalState(enum.Enum):
    """The state of a request for approval. ``APPROVED``: its execution is decided."""

    REQUESTED = "requested"
    APPROVED = "approved"
    EXECUTED = "executed"
    FAILED = "failed"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRuleRecord(JsonRecord):
    """The actions that need approval at a level."""

    KIND = "approval-rule"
    actions: Annotated[Sequence[str], Field("the actions, sorted")]
    incarnation: Annotated[int, Field("incarnation of the stream; 0 for a scope and the server")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRecord(JsonRecord):
    """A request for approval."""

    KIND = "approval"
    action: Annotated[str, Field("the action")]
    target: Annotated[str, Field("scope/stream, a scope, or empty for the server")]
    arguments: Annotated[Mapping[str, Any], Field("arguments of the action")]
    digest: Annotated[str, Field("SHA-256 of action, target, arguments, and the state that they depend on")]
    state: Annotated[ApprovalState, Field("its state")]
    requested_by: Annotated[str, Field("name of the verified identity")]
    proof: Annotated[str, Field("how that identity was verified")]
    who: Annotated[str, Field("who the requester says to be")]
    why: Annotated[str, Field("the requester's reason")]
    requested_ms: Annotated[int, Field("wall clock, ms")]
    expires_ms: Annotated[int, Field("wall clock, ms: it cannot be approved from then on")]
    decided_by: Annotated[str, Field("the identity that approved, refused or withdrew it")] = ""
    decided_why: Annotated[str, Field("its reason")] = ""
    decided_ms: Annotated[int | None, Field("wall clock, ms: when it was decided or expired")] = None
    failure: Annotated[str, Field("why its execution failed")] = ""

    def info(self, request: str) -> ApprovalRequest:
        """The request as users see it."""
        return ApprovalRequest(
            id=request,
            action=self.action,
            target=self.target,
            arguments=self.arguments,
            digest=self.digest,
            state=self.state.value,
            requested_by=self.requested_by,
            why=self.why,
            requested_ms=self.requested_ms,
            expires_ms=self.expires_ms,
            decided_by=self.decided_by,
            decided_why=self.decided_why,
            decided_ms=self.decided_ms,
            failure=self.failure,
        )
