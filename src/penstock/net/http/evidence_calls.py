"""Our own calls about evidence (checkpoints of the audit log, and signed documents) and about approvals.

Source: docs/formats/evidence.md, docs/how-to/four-eyes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.model.answers.approvals import ApprovalRequest
from penstock.model.answers.evidence import AuditCheckpoint, AuditLogInfo, EvidenceDocument
from penstock.model.names import StreamName
from penstock.net.http.rest_calls import SCOPE, STREAM, Calls, Given, Kind, Parameter
from penstock.ports.control.plane import ControlPlane

evidence = Calls("Evidence")
approvals = Calls("Approvals")


@evidence.add("GET", "/v1/evidence/log")
async def get_audit_log(control: ControlPlane, given: Given) -> AuditLogInfo:
    """The audit log: its name, its size, and the public key that signs."""
    return await control.evidence.log()


@evidence.add("POST", "/v1/evidence/checkpoint")
async def sign_checkpoint(control: ControlPlane, given: Given) -> AuditCheckpoint:
    """Sign the size and the root of the audit log."""
    return await control.evidence.checkpoint()


@evidence.add("GET", "/v1/evidence/checkpoints", under="checkpoints")
async def list_checkpoints(control: ControlPlane, given: Given) -> Sequence[AuditCheckpoint]:
    """The checkpoints that the store keeps, oldest first."""
    return await control.evidence.checkpoints()


@evidence.add(
    "GET",
    "/v1/evidence/consistency",
    query=[Parameter("before", Kind.WHOLE, "How many entries the earlier checkpoint has", needed=True)],
)
async def prove_consistency(control: ControlPlane, given: Given) -> EvidenceDocument:
    """The proof that the current log extends the log of an earlier checkpoint."""
    return await control.evidence.consistency(given["before"])


@evidence.add("GET", "/v1/evidence/erasures/{id}")
async def get_signed_receipt(control: ControlPlane, given: Given) -> EvidenceDocument:
    """The receipt of an erasure, signed, with the proof that the audit log has it."""
    return await control.evidence.erasure(given.path["id"])


@evidence.add("GET", "/v1/evidence/holds/{id}")
async def get_signed_hold(control: ControlPlane, given: Given) -> EvidenceDocument:
    """Who placed, extended and lifted a hold, and when, signed."""
    return await control.evidence.hold(given.path["id"])


@evidence.add(
    "GET",
    "/v1/evidence/disposal",
    query=[
        Parameter("target", Kind.TEXT, "The stream (`scope/stream`) or the scope", needed=True),
        Parameter("from_ms", Kind.WHOLE, "Only from this time on, in milliseconds since 1970"),
        Parameter("to_ms", Kind.WHOLE, "Only before this time, in milliseconds since 1970; absent: now"),
    ],
)
async def certify_disposal(control: ControlPlane, given: Given) -> EvidenceDocument:
    """A certificate of disposal: what was deleted, when, by which rule, and who did it, signed."""
    text = given["target"]
    target = StreamName.parse(text) if "/" in text else text
    return await control.evidence.disposal(target, from_ms=given["from_ms"] or 0, to_ms=given["to_ms"])


# --- approvals: docs/how-to/four-eyes.md -----------------------------------------------------------------------

_WHY = Parameter("why", Kind.TEXT, "Why; recorded")
_ACTIONS = Parameter("actions", Kind.TEXTS, "Of delete, erase, truncate, release, shorten", needed=True)


@approvals.add("GET", "/v1/required-approvals", name="getServerApprovals", under="actions")
@approvals.add("GET", f"{SCOPE}/required-approvals", name="getScopeApprovals", under="actions")
@approvals.add("GET", f"{STREAM}/required-approvals", name="getStreamApprovals", under="actions")
async def get_required_approvals(control: ControlPlane, given: Given) -> Sequence[str]:
    """The actions that need approval at this level, with those of the levels above."""
    return await control.approvals.required(given.target)


@approvals.add("PUT", "/v1/required-approvals", name="setServerApprovals", body=[_ACTIONS], under="actions")
@approvals.add("PUT", f"{SCOPE}/required-approvals", name="setScopeApprovals", body=[_ACTIONS], under="actions")
@approvals.add("PUT", f"{STREAM}/required-approvals", name="setStreamApprovals", body=[_ACTIONS], under="actions")
async def set_required_approvals(control: ControlPlane, given: Given) -> Sequence[str]:
    """Set which actions need approval at this level. To require less needs an approval itself."""
    await control.approvals.require(given.target, given["actions"])
    return await control.approvals.required(given.target)


@approvals.add("GET", "/v1/approvals", under="approvals")
async def list_approvals(control: ControlPlane, given: Given) -> Sequence[ApprovalRequest]:
    """Requests for the approval of a second identity, oldest first; those that ended are listed for 30 days."""
    return await control.approvals.list()


@approvals.add("GET", "/v1/approvals/{id}")
async def get_approval(control: ControlPlane, given: Given) -> ApprovalRequest:
    """A request: exactly what an approval performs, and its state."""
    return await control.approvals.get(given.path["id"])


@approvals.add("POST", "/v1/approvals/{id}/approve", body=[_WHY])
async def approve_request(control: ControlPlane, given: Given) -> ApprovalRequest:
    """Approve the request of another identity, and perform it. A repeated call does nothing."""
    return await control.approvals.approve(given.path["id"], why=given["why"] or "")


@approvals.add("POST", "/v1/approvals/{id}/refuse", body=[replace(_WHY, needed=True)])
async def refuse_request(control: ControlPlane, given: Given) -> ApprovalRequest:
    """Refuse the request of another identity."""
    return await control.approvals.refuse(given.path["id"], why=given["why"])


@approvals.add("POST", "/v1/approvals/{id}/withdraw", body=[_WHY])
async def withdraw_request(control: ControlPlane, given: Given) -> ApprovalRequest:
    """Withdraw one's own request."""
    return await control.approvals.withdraw(given.path["id"], why=given["why"] or "")
