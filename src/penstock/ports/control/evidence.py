"""Evidence: what convinces anyone who trusts neither the store nor its operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.answers.evidence import AuditCheckpoint, AuditExport, AuditLogInfo, EvidenceDocument
from penstock.model.names import StreamName


class Evidence(Protocol):
    """The audit log and signed documents about its entries. docs/formats/evidence.md describes every document.

    All calls raise NotFoundError if the private key is not on this machine, and storage errors.
    """

    async def log(self) -> AuditLogInfo:
        """The audit log and its keys. Makes the key on first use."""
        ...

    async def rotate_key(self) -> AuditLogInfo:
        """Replace the key. The old one signs the new one, in an audit entry, and is deleted. Each call makes a new
        key."""
        ...

    async def checkpoint(self) -> AuditCheckpoint:
        """Append all waiting entries, then sign the size and the root of the log, and store the checkpoint."""
        ...

    async def checkpoints(self) -> Sequence[AuditCheckpoint]:
        """The stored checkpoints of the log, oldest first."""
        ...

    async def consistency(self, before: int) -> EvidenceDocument:
        """The proof that the current log extends the log of the first ``before`` entries. Raises InvalidArgumentError: the
        log is smaller."""
        ...

    async def export(self) -> AuditExport:
        """Where the entries of the log that the store still has are in the audit stream, and the first line of their
        export."""
        ...

    async def erasure(self, erasure: str) -> EvidenceDocument:
        """The receipt of an erasure, signed, with the proof that the log has its entry. Raises NotFoundError: there is no
        such erasure, it is not done, or its entry has left the audit stream."""
        ...

    async def disposal(
        self, target: StreamName | str, *, from_ms: int = 0, to_ms: int | None = None
    ) -> EvidenceDocument:
        """A certificate of disposal: what was removed from a stream or a scope in ``from_ms <= time < to_ms`` (milliseconds
        since the Unix epoch; None, or later than now: now), and by which rule. Raises NotFoundError (no such stream or
        scope), InvalidArgumentError (more than 10,000 removals, or times in the future)."""
        ...

    async def ledger(self, *, exported_ms: int, with_values: bool, sha256: str) -> str:
        """Sign the ledger of erasures that the caller has built, and return the note for its last line. The store
        builds the same ledger from its current records, and compares the digest of the lines (hex). Raises
        ConflictError: something was erased, opened or held meanwhile, or the caller may not see all of it.
        """
        ...

    async def hold(self, hold_id: str) -> EvidenceDocument:
        """All audit entries of a hold: placed, extended, lifted. Raises NotFoundError."""
        ...
