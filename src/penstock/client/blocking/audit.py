"""The blocking API of the audit log: the same names as ``penstock.client.audit``, no ``await``."""

from __future__ import annotations

from penstock.client.audit import AsyncAuditLog
from penstock.client.blocking.derived import Blocking, blocking


class AuditLog(Blocking[AsyncAuditLog]):
    """Evidence that can be verified without the store: docs/how-to/prove.md. Calls raise UnavailableError."""

    log = blocking(AsyncAuditLog.log)
    rotate_key = blocking(AsyncAuditLog.rotate_key)
    checkpoint = blocking(AsyncAuditLog.checkpoint)
    checkpoints = blocking(AsyncAuditLog.checkpoints)
    consistency = blocking(AsyncAuditLog.consistency)
    erasure = blocking(AsyncAuditLog.erasure)
    disposal = blocking(AsyncAuditLog.disposal)
    hold = blocking(AsyncAuditLog.hold)
    export = blocking(AsyncAuditLog.export)
