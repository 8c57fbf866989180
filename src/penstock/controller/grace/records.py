"""The grace records of a stream: truncations whose bytes are kept for a while.

Source: docs/design/0012-retention-clock.md, "Grace".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.control.truncations import GraceRecord, GraceState
from penstock.controller import retention_keys
from penstock.controller.metadata import Metadata, Stored, stored
from penstock.core.retention.facts import Hold
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, OnExceed
from penstock.model.values.dataclass import dataclass

UNDONE = "undone"
"""Id prefix of the holds that protect restored data from rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """The grace records of a stream, oldest first, with the versions that changes of them are conditional on."""

    records: Sequence[Stored[GraceRecord]]

    @property
    def values(self) -> list[GraceRecord]:
        return [item.value for item in self.records if item.value is not None]

    @property
    def next_due_ms(self) -> int | None:
        """When the next record is due (retention clock). Records are released in order, oldest first."""
        kept = [item.due_ms for item in self.values if item.state is not GraceState.UNDONE]
        undone = [item.due_ms for item in self.values if item.state is GraceState.UNDONE]
        return min([*kept[:1], *undone], default=None)


async def load_grace(metadata: Metadata, name: StreamName) -> Grace:
    """The stream's grace records."""
    found = [stored(entry, GraceRecord) async for entry in metadata.scan_all(retention_keys.graces(name))]
    return Grace(records=found)


def undo_holds(records: Sequence[GraceRecord]) -> list[Hold]:
    """Holds for the planner: restored data stays until its grace would have ended, so that there is time to place a
    hold."""
    return [
        Hold(
            id=f"{UNDONE}-{item.at_ms}",
            owner="undo",
            reason="the truncation was undone",
            until_ms=item.due_ms,
            positions=item.before or None,
        )
        for item in records
        if item.state is GraceState.UNDONE
    ]


def without_moves(policy: EffectivePolicy) -> EffectivePolicy:
    """The policy without the rules that move or drop subscribers: an undo gives people time to correct them. A cycle that
    applied them meanwhile would delete the restored data again. Quotas that stop writers stay."""
    changed = replace(policy, ttl_ms=None, subscriber_idle_ms=None)
    if policy.bytes_action is OnExceed.EVICT:
        changed = replace(changed, backlog_bytes=None)
    if policy.age_action is OnExceed.EVICT:
        changed = replace(changed, backlog_age_ms=None)
    if policy.events_action is OnExceed.EVICT:
        changed = replace(changed, backlog_events=None)
    return changed
