"""Facts of a stream as a line of the planner's JSON, which ``requests.read_facts`` can read.

Source: docs/formats/planner.md.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import UNSET, UnsetType

from penstock.codec.control.policy_document import encode_document
from penstock.core.planner_json.answers import VERSION, record_of
from penstock.core.planner_json.requests import FactsLine
from penstock.core.planner_json.stream import encode_cut, name_of
from penstock.core.policies.levels import document_of
from penstock.core.retention.facts import Hold, RetentionFacts
from penstock.core.streams.history import EpochRecord
from penstock.model.answers.facts import FactsHistory, FactsHold, FactsSegment, FactsSubscriber, StreamFacts

V = TypeVar("V")


def facts_of(line: FactsLine) -> StreamFacts:
    """The line. Its policy is a document of all fields that some level sets; unknown values are left out."""
    facts = line.facts
    history = facts.history
    return StreamFacts(
        version=VERSION,
        id=line.id,
        now_ms=line.now_ms,
        frequency_ms=facts.frequency_ms,
        stream=FactsHistory(
            scope=line.scope,
            name=line.name,
            epochs=[_epoch(epoch) for epoch in history.epochs],
            sealed=encode_cut(history.sealed_lengths),
        ),
        truncated_at=encode_cut(facts.head),
        truncated_events=_known(facts.head_event_count),
        truncating=facts.truncating,
        policy=None if facts.policy is None else encode_document(document_of(facts.policy)),
        unreadable=facts.unreadable or UNSET,
        retention_set=[record_of(item) for item in facts.retention_set],
        boundaries=[record_of(item) for item in facts.boundaries] or UNSET,
        subscribers={name: _subscriber(facts, name) for name in facts.subscribers},
        tail=None if facts.tail is None else record_of(facts.tail),
        last_append_ms=_known(facts.last_append_ms),
        hold=[_hold(item) for item in facts.holds] or None,
    )


def _epoch(epoch: EpochRecord) -> list[FactsSegment]:
    return [
        FactsSegment(segment=name_of(item.segment), low=item.keys.low, high=item.keys.high) for item in epoch.segments
    ]


def _known(value: V | None) -> V | UnsetType:
    return UNSET if value is None else value


def _subscriber(facts: RetentionFacts, name: str) -> FactsSubscriber:
    cut, item = encode_cut(facts.subscribers[name]), facts.activity.get(name)
    if item is None:
        return FactsSubscriber(cut=cut)
    return FactsSubscriber(
        cut=cut,
        oldest_unacked_ms=_known(item.oldest_unacked_ms),
        backlog_events=_known(item.backlog_events),
        last_active_ms=_known(item.last_active_ms),
    )


def _hold(item: Hold) -> FactsHold:
    return FactsHold(
        id=item.id, owner=item.owner, reason=item.reason, until_ms=item.until_ms, cut=encode_cut(item.positions)
    )
