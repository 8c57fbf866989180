"""What the operator may set for the records of the store's decisions, the audit stream and the erasure feed: for how long
their entries are kept, and nothing else."""

from __future__ import annotations

from typing import Final

from penstock.codec.control.policy_document import FIELDS, value_of
from penstock.model.errors import InvalidArgumentError
from penstock.model.retention import Inherit, PolicyDocument, Unsubscribed

DAY_S = 86_400
_AGES: Final = ("retain.min_age_s", "retain.max_age_s")
_OTHERS: Final = ("retain.lock_until", "grace_s")


def check_audit_policy(document: PolicyDocument) -> None:
    """Raises InvalidArgumentError: a field is set that is no age, or an age is under a day. An empty document is
    accepted."""
    for item in FIELDS:
        value = value_of(document, item.path)
        if isinstance(value, Inherit) or item.path in _OTHERS:
            continue
        if value is Unsubscribed.RELEASE:  # the audit stream is made with it, and changes keep it
            continue
        accepted = ", ".join(_AGES)
        if item.path not in _AGES:
            raise InvalidArgumentError(
                "the audit stream can only be kept by age",
                field=item.path,
                value=str(value)[:60],
                rule="no size, quota or idle time removes audit entries",
                level="stream",
                accepted=accepted,
            )
        if value is not None and not (isinstance(value, int | float) and value >= DAY_S):
            raise InvalidArgumentError(
                "audit entries must be kept for at least 1 day",
                field=item.path,
                value=str(value)[:60],
                rule=f"at least {DAY_S}",
                level="stream",
                accepted=accepted,
            )
