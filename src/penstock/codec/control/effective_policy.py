"""The effective policy of a stream as JSON: the fields of the policy document, each with its value and its level.

``{"retain": {"min_bytes": {"value": 10, "from": "stream"}, …}, …, "truncates": true}``; seconds and bytes as in the
document, ``null`` for unlimited. The action of each quota is shown with the level that decides it, even if
``on_exceed`` decides it. Source: docs/formats/policy.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from penstock.codec.control.policy_document import LOCK, QUOTA_ACTIONS, text_of_ms, time_ms
from penstock.model.errors import CorruptDataError
from penstock.model.retention import Combine, EffectivePolicy, IdleWhen, Level, Measure, OnExceed, Unsubscribed

_FIELDS: Mapping[str, tuple[str, type[enum.Enum] | None]] = {
    # path in the document: (field of the effective policy, its enumeration)
    "retain.min_bytes": ("min_bytes", None),
    "retain.min_age_s": ("min_age_ms", None),
    "retain.combine": ("combine", Combine),
    "retain.max_bytes": ("max_bytes", None),
    "retain.max_age_s": ("max_age_ms", None),
    "retain.measure": ("measure", Measure),
    "retain.lock_until": ("lock_until_ms", None),
    "unsubscribed": ("unsubscribed", Unsubscribed),
    "backlog.ttl_s": ("ttl_ms", None),
    "backlog.max_bytes": ("backlog_bytes", None),
    "backlog.max_age_s": ("backlog_age_ms", None),
    "backlog.max_events": ("backlog_events", None),
    "backlog.on_exceed": ("on_exceed", OnExceed),
    "backlog.on_exceed_bytes": ("on_exceed_bytes", OnExceed),
    "backlog.on_exceed_age": ("on_exceed_age", OnExceed),
    "backlog.on_exceed_events": ("on_exceed_events", OnExceed),
    "backlog.evict_to": ("evict_to", None),
    "idle.subscriber_s": ("subscriber_idle_ms", None),
    "idle.stream_s": ("stream_idle_ms", None),
    "idle.stream_when": ("stream_idle_when", IdleWhen),
    "grace_s": ("grace_ms", None),
}
PATHS = tuple(_FIELDS)
"""All fields of the document, as ``retain.min_bytes``."""


def value_at(policy: EffectivePolicy, path: str) -> Any:
    """The effective value of a field of the document, in the document's units."""
    name, kind = _FIELDS[path]
    value = getattr(policy, name)
    if kind is not None:
        return (policy.on_exceed if value is None else value).value
    if path == LOCK and value is not None:
        return text_of_ms(value)
    return _seconds(value) if path.endswith("_s") else value


def origin_at(policy: EffectivePolicy, path: str) -> Level:
    """The level that the value comes from."""
    name, _ = _FIELDS[path]
    by_default = path in QUOTA_ACTIONS and getattr(policy, name) is None
    return policy.origins.get("backlog.on_exceed" if by_default else path, Level.DEFAULT)


def encode_effective(policy: EffectivePolicy) -> dict[str, Any]:
    """The policy with the origin of each value."""
    found: dict[str, Any] = {}
    for path in PATHS:
        group, _, leaf = path.rpartition(".")
        holder = found.setdefault(group, {}) if group else found
        holder[leaf] = {"value": value_at(policy, path), "from": origin_at(policy, path).value}
    found["truncates"] = policy.truncates
    return found


def decode_effective(fields: Mapping[str, Any]) -> EffectivePolicy:
    """Inverse of ``encode_effective``. A quota without its own action has ``on_exceed``. Raises CorruptDataError."""
    values: dict[str, Any] = {}
    origins: dict[str, Level] = {}
    try:
        for path, (name, kind) in _FIELDS.items():
            group, _, leaf = path.rpartition(".")
            holder = fields[group] if group else fields
            if path in QUOTA_ACTIONS and holder.get(leaf, holder["on_exceed"]) == holder["on_exceed"]:
                # From an older server, or decided by ``on_exceed``.
                origins[path] = Level.DEFAULT
                continue
            if path == LOCK and leaf not in holder:
                # From an older server.
                origins[path] = Level.DEFAULT
                continue
            item = holder[leaf]
            value = item["value"]
            if kind is not None:
                value = kind(value)
            elif path.endswith("_s") and value is not None:
                value = round(value * 1000)
            elif path == LOCK and value is not None:
                value = time_ms(value)
            values[name] = value
            origins[path] = Level(item["from"])
        return EffectivePolicy(**values, truncates=bool(fields["truncates"]), origins=origins)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError("effective policy cannot be read", policy=repr(fields)[:80]) from error


def _seconds(value: int | None) -> int | float | None:
    if value is None:
        return None
    return value // 1000 if value % 1000 == 0 else value / 1000
