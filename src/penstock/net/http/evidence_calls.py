"""Our own calls about evidence: checkpoints of the audit log, and signed documents. Source: docs/formats/evidence.md."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.answers.evidence import AuditCheckpoint, AuditLogInfo, EvidenceDocument
from penstock.model.names import StreamName
from penstock.net.http.rest_calls import Calls, Given, Kind, Parameter
from penstock.ports.control.plane import ControlPlane

evidence = Calls("Evidence")


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
    """The proof that the log of now continues that of an earlier checkpoint."""
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
