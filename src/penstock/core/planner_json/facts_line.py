"""Facts of a stream as a line of the planner's JSON: what ``retention_json.read_facts`` reads back.

Source: docs/formats/planner.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.codec.control.policy_document import encode_document
from penstock.core.planner_json.answers import VERSION, record_of
from penstock.core.planner_json.requests import FactsLine
from penstock.core.planner_json.stream import encode_cut, name_of
from penstock.core.policies.levels import document_of
from penstock.core.retention.facts import Hold, RetentionFacts

_ACTIVITY = ("oldest_unacked_ms", "backlog_events", "last_active_ms")


def encode_facts(line: FactsLine) -> dict[str, Any]:
    """The line as a value for JSON. Its policy is a document of what some level names; what is not known is left out."""
    facts = line.facts
    history = facts.history
    body: dict[str, Any] = {
        "version": VERSION,
        "id": line.id,
        "now_ms": line.now_ms,
        "frequency_ms": facts.frequency_ms,
    }
    body["stream"] = {
        "scope": line.scope,
        "name": line.name,
        "epochs": [
            [
                {"segment": name_of(item.segment), "low": item.keys.low, "high": item.keys.high}
                for item in epoch.segments
            ]
            for epoch in history.epochs
        ],
        "sealed": encode_cut(history.sealed_lengths),
    }
    body["truncated_at"] = encode_cut(facts.head)
    if facts.head_event_count is not None:
        body["truncated_events"] = facts.head_event_count
    body["truncating"] = facts.truncating
    body["policy"] = None if facts.policy is None else encode_document(document_of(facts.policy))
    if facts.unreadable:
        body["unreadable"] = facts.unreadable
    body["retention_set"] = [record_of(item) for item in facts.retention_set]
    if facts.boundaries:
        body["boundaries"] = [record_of(item) for item in facts.boundaries]
    body["subscribers"] = {name: _subscriber(facts, name) for name in facts.subscribers}
    body["tail"] = None if facts.tail is None else record_of(facts.tail)
    if facts.last_append_ms is not None:
        body["last_append_ms"] = facts.last_append_ms
    body["hold"] = [_hold(item) for item in facts.holds] or None
    value: dict[str, Any] = msgspec.to_builtins(body)
    return value


def _subscriber(facts: RetentionFacts, name: str) -> Mapping[str, Any]:
    item = facts.activity.get(name)
    known = {} if item is None else {field: getattr(item, field) for field in _ACTIVITY}
    return {
        "cut": encode_cut(facts.subscribers[name]),
        **{field: value for field, value in known.items() if value is not None},
    }


def _hold(item: Hold) -> Mapping[str, Any]:
    return {
        "id": item.id,
        "owner": item.owner,
        "reason": item.reason,
        "until_ms": item.until_ms,
        "cut": encode_cut(item.positions),
    }
