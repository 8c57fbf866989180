"""How far writers may append when several quotas apply, each with its own action.

Source: docs/design/0007-retention.md, "Before truncation". Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.retention.facts import OPEN, RetentionRule, WriterState, WriterVerdict
from penstock.model.retention import OnExceed
from penstock.model.values.dataclass import dataclass

_STATES = {OnExceed.HOLD: WriterState.HOLD, OnExceed.REJECT: WriterState.REJECT, OnExceed.EVICT: WriterState.NOTIFY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The append limit of one quota: ``total`` bytes of the whole history, or events if the quota counts events.

    ``reached``: the quota is already reached. ``subscriber``: the one furthest behind, as this quota measures it.
    """

    rule: RetentionRule
    action: OnExceed
    total: int
    reached: bool
    subscriber: str

    @property
    def stops(self) -> bool:
        """Whether appends wait, or are refused, at the bound."""
        return self.action is not OnExceed.EVICT


def verdict_of(bounds: Sequence[Bound]) -> WriterVerdict:
    """The verdict for writers. ``bounds``: those of the byte, event and age quotas, in that order; empty: no limit.

    Of two bounds in bytes, a bound that stops writers has priority; of two such bounds, the nearer one. So a quota that
    evicts never lets writers pass another quota that stops them.
    """
    if not bounds:
        return OPEN
    by_bytes = _nearest([item for item in bounds if item.rule is not RetentionRule.BACKLOG_EVENTS])
    by_events = _nearest([item for item in bounds if item.rule is RetentionRule.BACKLOG_EVENTS])
    reached = [item for item in bounds if item.reached]
    main = next((item for item in reached if item.stops), (reached or bounds)[0])
    return WriterVerdict(
        state=_STATES[main.action],
        total_bytes=None if by_bytes is None else by_bytes.total,
        total_events=None if by_events is None else by_events.total,
        bytes_state=WriterState.OPEN if by_bytes is None else _STATES[by_bytes.action],
        events_state=WriterState.OPEN if by_events is None else _STATES[by_events.action],
        exceeded=main.reached,
        rule=main.rule,
        subscriber=main.subscriber,
    )


def _nearest(bounds: Sequence[Bound]) -> Bound | None:
    stopping = [item for item in bounds if item.stops]
    return min(stopping or bounds, key=lambda item: item.total, default=None)
