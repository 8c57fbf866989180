"""The rows of the audit log in the data dictionary."""

from __future__ import annotations

from penstock.codec.control.audit_log import (
    AuditCheckpointRecord,
    AuditKeysRecord,
    AuditLogRecord,
    AuditTileRecord,
)
from penstock.codec.control.streams import MarkerRecord
from penstock.codec.dictionary import Entry

AUDIT_LOG_ROWS = (
    Entry(
        key="audit-log",
        value=AuditLogRecord,
        one_for="the store",
        writers=("controller.evidence.audit_log",),
        ends="nothing",
    ),
    Entry(
        key="audit-keys/{log}",
        value=AuditKeysRecord,
        one_for="each audit log that has signed anything",
        writers=("controller.evidence.signing",),
        ends="nothing",
    ),
    Entry(
        key="audit-checkpoint/{log}/{size}",
        value=AuditCheckpointRecord,
        one_for="each checkpoint that was asked for, and one a day while entries are added",
        writers=("controller.evidence.signing",),
        ends="nothing",
    ),
    Entry(
        key="audit-policy",
        value=MarkerRecord,
        one_for="the store, if the operator has set the policy of the audit stream",
        writers=("controller.retention.policies",),
        ends="the operator clears the policy",
    ),
    Entry(
        key="audit-tile/{log}/{tile}",
        value=AuditTileRecord,
        one_for="each 256 entries of an audit log",
        writers=("controller.evidence.audit_log",),
        ends="nothing: old checkpoints and receipts stay verifiable after the entries have left the stream",
    ),
)
