"""Facts as a line of the planner's JSON, so that random streams can go through its text form, too."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.planner_json.answers import record_of
from penstock.core.planner_json.stream import encode_cut
from penstock.core.policies.levels import seconds
from penstock.core.retention.planner import RetentionFacts
from penstock.model.retention import EffectivePolicy

_OF_FIELD = {
    "retain.min_bytes": "min_bytes",
    "retain.min_age_s": "min_age_ms",
    "retain.combine": "combine",
    "retain.max_bytes": "max_bytes",
    "retain.max_age_s": "max_age_ms",
    "retain.measure": "measure",
    "unsubscribed": "unsubscribed",
    "backlog.ttl_s": "ttl_ms",
    "backlog.max_bytes": "backlog_bytes",
    "backlog.max_age_s": "backlog_age_ms",
    "backlog.max_events": "backlog_events",
    "backlog.on_exceed": "on_exceed",
    "backlog.on_exceed_bytes": "on_exceed_bytes",
    "backlog.on_exceed_age": "on_exceed_age",
    "backlog.on_exceed_events": "on_exceed_events",
    "backlog.evict_to": "evict_to",
    "idle.subscriber_s": "subscriber_idle_ms",
    "idle.stream_s": "stream_idle_ms",
    "idle.stream_when": "stream_idle_when",
}
_ACTIVITY = ("oldest_unacked_ms", "backlog_events", "last_active_ms")


def line_of(facts: RetentionFacts, now_ms: int, **more: Any) -> dict[str, Any]:
    """The line that says the same as these facts. ``more``: further fields, or others in their place."""
    history = facts.history
    epochs = [
        [{**segment_of(item.segment), "low": item.keys.low, "high": item.keys.high} for item in epoch.segments]
        for epoch in history.epochs
    ]
    return {
        "version": 1,
        "id": "seeded",
        "now_ms": now_ms,
        "frequency_ms": facts.frequency_ms,
        "stream": {"scope": "s", "name": "n", "epochs": epochs, "sealed": encode_cut(history.sealed_lengths)},
        "truncated_at": encode_cut(facts.head),
        "truncated_events": facts.head_event_count,
        "truncating": facts.truncating,
        "policy": None if facts.policy is None else document_of(facts.policy),
        "unreadable": facts.unreadable,
        "retention_set": [msgspec.to_builtins(record_of(item)) for item in facts.retention_set],
        "boundaries": [msgspec.to_builtins(record_of(item)) for item in facts.boundaries],
        "subscribers": {name: subscriber_of(facts, name) for name in facts.subscribers},
        "tail": None if facts.tail is None else msgspec.to_builtins(record_of(facts.tail)),
        "last_append_ms": facts.last_append_ms,
        "hold": [
            {"id": item.id, "until_ms": item.until_ms, "cut": encode_cut(item.positions)} for item in facts.holds
        ],
        **more,
    }  # fmt: skip


def segment_of(segment: int) -> Mapping[str, str]:
    return {"segment": f"{segment & 0xFFFFFFFF}#{segment >> 32}"}


def subscriber_of(facts: RetentionFacts, name: str) -> dict[str, Any]:
    activity = facts.activity.get(name)
    known = {} if activity is None else {field: getattr(activity, field) for field in _ACTIVITY}
    return {"cut": encode_cut(facts.subscribers[name]), **known}


def document_of(policy: EffectivePolicy) -> dict[str, Any]:
    """The policy as a document that names what some level has named."""
    body: dict[str, Any] = {}
    for path, name in _OF_FIELD.items():
        if not policy.given(path):
            continue
        value = getattr(policy, name)
        if isinstance(value, enum.Enum):
            value = value.value
        elif path.endswith("_s") and value is not None:
            value = seconds(value)
        section, _, field = path.rpartition(".")
        target = body.setdefault(section, {}) if section else body
        target[field] = value
    return body
