"""Global topic policies: a separate level between a topic and its namespace.

A stream has one policy document. The admin API records the global policies in the topic's record. The document contains
each policy of the topic itself or, if it has none, the global one. Pure functions.

Source: docs/reference/pulsar-admin.md, "Policies".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.codec.control.policy_document import QUOTA_ACTIONS, value_of
from penstock.core.policies.levels import with_value
from penstock.model.retention import EMPTY, INHERIT, Backlog, Idle, PolicyDocument, Retain, Unsubscribed
from penstock.model.values.dataclass import dataclass
from penstock.net.http.pulsar.bodies import (
    Retention,
    backlog_of,
    idle_of,
    inactive_of_body,
    read_quota,
    retain_of,
)
from penstock.net.http.pulsar.records import Record

GLOBAL = "global"
"""The global policies in a topic's record, under the same names as its own."""

BEFORE = "global_before"
"""The global policies that an unfinished change replaces: after a crash the document may still contain them."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One policy: its ``name`` in a record, and for a quota its ``kind``. If the policy is set, the document sets at
    least one of the fields ``keys``; ``rest``: further fields of the policy."""

    name: str
    keys: Sequence[str]
    rest: Sequence[str] = ()
    kind: str = ""

    @property
    def fields(self) -> Sequence[str]:
        return (*self.keys, *self.rest)

    def is_recorded(self, record: Record) -> bool:
        found = record.get(self.name)
        return found is not None and (not self.kind or self.kind in found)

    def is_set(self, document: PolicyDocument) -> bool:
        return any(value_of(document, path) is not INHERIT for path in self.keys)

    def has(self, document: PolicyDocument, given: PolicyDocument) -> bool:
        """Whether the document has this policy as ``given`` sets it."""
        named = [path for path in self.fields if value_of(given, path) is not INHERIT]
        return self.is_set(given) and all(value_of(document, path) == value_of(given, path) for path in named)

    def body(self, record: Record) -> Record:
        """The record of this policy only."""
        if not self.is_recorded(record):
            return {}
        return {self.name: {self.kind: record[self.name][self.kind]} if self.kind else record[self.name]}


_PARTS = (
    _Part(
        "retention",
        ("retain.min_bytes", "retain.min_age_s"),
        ("retain.combine", "retain.measure", "unsubscribed"),
    ),
    _Part("ttl", ("backlog.ttl_s",)),
    _Part("subscription_expiration", ("idle.subscriber_s",)),
    _Part("inactive", ("idle.stream_s", "idle.stream_when")),
    _Part("quotas", ("backlog.max_bytes",), ("backlog.on_exceed_bytes",), "destination_storage"),
    _Part("quotas", ("backlog.max_age_s",), ("backlog.on_exceed_age",), "message_age"),
    _Part("quotas", ("backlog.evict_to",)),
)


def split(document: PolicyDocument, record: Record) -> tuple[PolicyDocument, PolicyDocument, Record]:
    """Split a stream's document, with the topic's record, into the topic's own policies, the global ones, and their record.

    A policy is global if the topic's record has none of its own and the document has the value that was set globally. If
    the document has another value, another interface set it, and it is the topic's own. If the document has none, another
    interface removed the global policy.
    """
    bodies = (record.get(GLOBAL, {}), record.get(BEFORE, {}))
    given = [(global_document(body), body) for body in bodies]
    own, found = document, EMPTY
    kept: Record = {name: item for name, item in bodies[0].items() if name == "persistence"}
    for part in _PARTS:
        source, body = given[0]
        if not part.is_recorded(record):
            same = next((pair for pair in given if part.has(document, pair[0])), None)
            if same is not None:
                own, (source, body) = _with(own, part, EMPTY), same
            elif not part.is_set(document):
                source, body = EMPTY, {}
        found = _with(found, part, source)
        if part.kind:
            quotas = {**kept.get(part.name, {}), **part.body(body).get(part.name, {})}
            kept = {**kept, part.name: quotas} if quotas else kept
        elif part.name != "quotas":
            kept = {**kept, **part.body(body)}
    return own, found, kept


def joined(own: PolicyDocument, beneath: PolicyDocument) -> PolicyDocument:
    """The document of a stream with its own policies, and the policies ``beneath`` that it does not set itself."""
    found = own
    for part in _PARTS:
        if part.is_set(own):
            continue
        for path in part.fields:
            acts = path in QUOTA_ACTIONS and own.backlog.on_exceed is not INHERIT
            if value_of(own, path) is INHERIT and not acts:
                found = with_value(found, path, value_of(beneath, path))
    return found


def _with(document: PolicyDocument, part: _Part, source: PolicyDocument) -> PolicyDocument:
    for path in part.fields:
        document = with_value(document, path, value_of(source, path))
    return document


def global_document(record: Record) -> PolicyDocument:
    """The document that has only the policies in the record."""
    retain, unsubscribed, idle = Retain(), EMPTY.unsubscribed, Idle()
    retention, inactive = record.get("retention"), record.get("inactive")
    if retention is not None:
        kept = Retention(retention["retentionTimeInMinutes"], retention["retentionSizeInMB"])
        retain, unsubscribed = retain_of(kept, retain), Unsubscribed.RELEASE
    if inactive is not None:
        idle = idle_of(inactive_of_body(inactive), idle)
    quotas = {kind: read_quota(body) for kind, body in record.get("quotas", {}).items()}
    document = PolicyDocument(
        retain=retain, unsubscribed=unsubscribed, backlog=backlog_of(quotas, Backlog()), idle=idle
    )
    document = with_value(document, "backlog.ttl_s", _limit(record.get("ttl"), 1))
    return with_value(document, "idle.subscriber_s", _limit(record.get("subscription_expiration"), 60))


def _limit(number: int | None, unit: int) -> Any:
    return INHERIT if number is None else number * unit or None


def with_global(record: Record, changed: Record) -> Record:
    """The topic's record with these global policies instead of the earlier ones."""
    kept = {name: item for name, item in record.items() if name not in (GLOBAL, BEFORE)}
    return {**kept, GLOBAL: changed} if changed else kept
