"""The contents of Pulsar's admin requests: numbers as its brokers read them, limits and their rules, errors with
reasons.

Plain functions of text and numbers. Source: docs/reference/pulsar-admin.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.model.errors import PenstockError
from penstock.model.retention import (
    INHERIT,
    Backlog,
    Combine,
    EffectivePolicy,
    Idle,
    IdleWhen,
    Limit,
    Measure,
    OnExceed,
    Retain,
)
from penstock.model.values.dataclass import dataclass

MIB = 1 << 20
INT_MAX = (1 << 31) - 1  # largest Java int
LONG_MAX = (1 << 63) - 1  # largest Java long
QUOTA_TYPES = ("destination_storage", "message_age")

_WHOLE = re.compile(r"\s*[+-]?\d{1,40}\s*\Z")
_INVALID_RETENTION = "Invalid retention policy"
_ONE_IS_ZERO = (
    f"{_INVALID_RETENTION}: Setting a single time or size limit to 0 is invalid "
    "when one of the limits has a non-zero value"
)
_ON_EXCEED = {
    "producer_request_hold": OnExceed.HOLD,
    "producer_exception": OnExceed.REJECT,
    "consumer_backlog_eviction": OnExceed.EVICT,
}
POLICY_NAMES = {action: name for name, action in _ON_EXCEED.items()}
_IDLE_WHEN = {
    "delete_when_no_subscriptions": IdleWhen.NO_SUBSCRIBERS,
    "delete_when_subscriptions_caught_up": IdleWhen.CAUGHT_UP,
}
_IDLE_NAMES = {when: name for name, when in _IDLE_WHEN.items()}


class AdminError(PenstockError):
    """A request refused as Pulsar's broker refuses it. Fields: ``status``; ``reason`` is the message."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason, status=status)
        self.status = status

    @property
    def reason(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return AdminError, (self.status, self.message)


class NoBody(AdminError):
    """A body is required but missing."""

    def __init__(self) -> None:
        super().__init__(400, "The request entity cannot be empty.")


def parse_json(body: bytes) -> Any:
    """The value. Raises AdminError 400."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AdminError(400, "The request body is not JSON") from error


def parse_object(body: bytes) -> dict[str, Any] | None:
    """The object; None for ``null`` and for no body. Raises AdminError 400."""
    if not body.strip():
        return None
    value = parse_json(body)
    if value is not None and not isinstance(value, dict):
        raise AdminError(400, "The request body is not a JSON object")
    return value


def whole(value: Any, name: str, *, limit: int = INT_MAX) -> int:
    """A number as the broker reads one: null is 0, fractions are truncated, quoted digits are accepted. Raises
    AdminError 400."""
    if value is None:
        return 0
    if isinstance(value, str) and _WHOLE.match(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise AdminError(400, f"{name} is not a number")
    # An integer may be larger than any float.
    if isinstance(value, float) and not math.isfinite(value):
        raise AdminError(400, f"{name} is not a number")
    if not -limit - 1 <= value <= limit:
        raise AdminError(400, f"{name} is out of range")
    return int(value)


def whole_body(body: bytes, name: str) -> int:
    """A body that is one bare number. Raises AdminError 400."""
    if not body.strip():
        raise NoBody
    return whole(parse_json(body), name)


def whole_query(text: str) -> int:
    """A number in the query or the path. Raises AdminError 404 if it is not a number, as the broker does."""
    if not _WHOLE.match(text) or not -LONG_MAX - 1 <= int(text) <= LONG_MAX:
        raise AdminError(404, "HTTP 404 Not Found")
    return int(text)


# --- retention ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retention:
    """Minutes and MiB; -1 means no limit."""

    minutes: int
    mib: int

    def to_json(self) -> dict[str, int]:
        return {"retentionTimeInMinutes": self.minutes, "retentionSizeInMB": self.mib}


def read_retention(value: Mapping[str, Any]) -> Retention:
    """Validated. A missing field is 0. Raises AdminError 400."""
    retention = Retention(
        whole(value.get("retentionTimeInMinutes"), "retentionTimeInMinutes"),
        whole(value.get("retentionSizeInMB"), "retentionSizeInMB", limit=LONG_MAX),
    )
    if retention.minutes < -1 or retention.mib < -1:
        raise AdminError(400, f"{_INVALID_RETENTION}: Invalid retention policy limits, -1 is the least")
    if (retention.minutes == 0) != (retention.mib == 0):
        raise AdminError(400, _ONE_IS_ZERO)
    if retention.mib > LONG_MAX // MIB:
        raise AdminError(400, f"{_INVALID_RETENTION}: retentionSizeInMB is out of range")
    return retention


def retain_of(retention: Retention, before: Retain) -> Retain:
    """The equivalent minimum; a maximum, which Pulsar does not have, is kept."""
    return Retain(
        min_bytes=None if retention.mib < 0 else retention.mib * MIB,
        min_age_s=None if retention.minutes < 0 else retention.minutes * 60,
        combine=Combine.ANY,
        max_bytes=before.max_bytes,
        max_age_s=before.max_age_s,
        measure=Measure.SEGMENT,
    )


def no_retain(before: Retain) -> Retain:
    """``before`` without a minimum at this level."""
    return Retain(max_bytes=before.max_bytes, max_age_s=before.max_age_s)


def retention_of(retain: Retain) -> Retention | None:
    """The minimum in minutes and MiB, rounded up; None if this level does not set it. A dimension that is not set has
    no effect, like one without a limit."""
    if retain.min_bytes is INHERIT and retain.min_age_s is INHERIT:
        return None
    return Retention(_rounded_up(retain.min_age_s, 60), _rounded_up(retain.min_bytes, MIB))


def _rounded_up(limit: Limit, unit: int) -> int:
    return math.ceil(limit / unit) if isinstance(limit, (int, float)) else -1


# --- backlog quotas -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes and seconds. A negative size, or a time of 0 or less, means no limit; a size of 0 is always exceeded."""

    size: int
    time: int
    policy: str

    def to_json(self) -> dict[str, Any]:
        # ``limit`` is the older name of ``limitSize``, which older tools use.
        return {"limit": self.size, "limitSize": self.size, "limitTime": self.time, "policy": self.policy}


def read_quota(value: Mapping[str, Any]) -> Quota:
    """Raises AdminError 400."""
    size = value.get("limitSize", value.get("limit"))
    policy = value.get("policy")
    if not isinstance(policy, str) or policy not in _ON_EXCEED:
        raise AdminError(400, "attribute policy cannot be null")
    return Quota(whole(size, "limitSize", limit=LONG_MAX), whole(value.get("limitTime"), "limitTime"), policy)


def read_quotas(value: Any) -> dict[str, Quota]:
    """A map of quotas by type. Raises AdminError 400."""
    if not isinstance(value, dict):
        raise AdminError(400, "backlog_quota_map is not an object")
    found: dict[str, Quota] = {}
    for kind, quota in value.items():
        if kind not in QUOTA_TYPES or not isinstance(quota, dict):
            raise AdminError(400, "backlog_quota_map holds no quotas by type")
        found[kind] = read_quota(quota)
    return found


def quota_type(text: str | None) -> str:
    """The type, or the default. Raises AdminError 404 for an unknown type, as the broker does."""
    if text is not None and text not in QUOTA_TYPES:
        raise AdminError(404, "HTTP 404 Not Found")
    return text or QUOTA_TYPES[0]


def backlog_of(own: Mapping[str, Quota], before: Backlog) -> Backlog:
    """``before`` with the limits and actions of the quotas ``own`` of a level. The time to live, the quota of events
    and ``on_exceed`` are kept."""
    size, time = own.get("destination_storage"), own.get("message_age")
    return replace(
        before,
        max_bytes=INHERIT if size is None else None if size.size < 0 else size.size,
        max_age_s=INHERIT if time is None else None if time.time <= 0 else time.time,
        on_exceed_bytes=INHERIT if size is None else _ON_EXCEED[size.policy],
        on_exceed_age=INHERIT if time is None else _ON_EXCEED[time.policy],
        evict_to=0.9 if own else INHERIT,
    )


def quotas_of(backlog: Backlog, applied: EffectivePolicy) -> dict[str, Quota]:
    """The limits as Pulsar quotas, if they were not set through this API. Seconds are rounded up. ``applied``: the
    policy that results from this level and those above it, which may decide the action of a quota."""
    found: dict[str, Quota] = {}
    if isinstance(backlog.max_bytes, (int, float)):
        found["destination_storage"] = Quota(math.ceil(backlog.max_bytes), -1, POLICY_NAMES[applied.bytes_action])
    if isinstance(backlog.max_age_s, (int, float)):
        found["message_age"] = Quota(-1, math.ceil(backlog.max_age_s), POLICY_NAMES[applied.age_action])
    return found


def with_action(kind: str, quota: Quota, applied: EffectivePolicy) -> Quota:
    """The quota with the action that is in force."""
    action = applied.bytes_action if kind == "destination_storage" else applied.age_action
    return replace(quota, policy=POLICY_NAMES[action])


def conflicts(retention: Retention | None, quota: Quota | None) -> bool:
    """Whether the quota is not strictly below the retention. Exact at the boundary: equal is a conflict."""
    if retention is None or quota is None:
        return False
    over_size = retention.mib > 0 and quota.size >= retention.mib * MIB
    return over_size or (retention.minutes > 0 and quota.time >= retention.minutes * 60)


def refuse_quota(level: str) -> AdminError:
    """A quota at or above the retention of the level."""
    return AdminError(
        412, f"Backlog Quota exceeds configured retention quota for {level}. Please increase retention quota and retry"
    )


def refuse_retention(level: str) -> AdminError:
    """A retention at or below the quota of the level."""
    return AdminError(
        412,
        f"Retention Quota must exceed configured backlog quota for {level}. Please increase retention quota and retry",
    )


# --- idleness -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inactive:
    """When an unused topic is deleted."""

    mode: str
    seconds: int
    delete: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "inactiveTopicDeleteMode": self.mode,
            "maxInactiveDurationSeconds": self.seconds,
            "deleteWhileInactive": self.delete,
        }


INACTIVE_DEFAULT = Inactive("delete_when_no_subscriptions", 60, False)
"""As in a broker with ``brokerDeleteInactiveTopicsEnabled=false``: topics are only deleted explicitly."""


def read_inactive(value: Mapping[str, Any]) -> Inactive:
    """Raises AdminError 400 and 412."""
    mode = value.get("inactiveTopicDeleteMode")
    if not isinstance(mode, str) or mode not in _IDLE_WHEN:
        raise AdminError(400, "inactiveTopicDeleteMode is not known")
    seconds = whole(value.get("maxInactiveDurationSeconds"), "maxInactiveDurationSeconds")
    if seconds <= 0:
        raise AdminError(412, "maxInactiveDurationSeconds should be greater than 0")
    return Inactive(mode, seconds, value.get("deleteWhileInactive") is True)


def idle_of(inactive: Inactive | None, before: Idle) -> Idle:
    """The equivalent idle limits; the limit for subscribers is kept."""
    if inactive is None:
        return Idle(subscriber_s=before.subscriber_s)
    return Idle(
        subscriber_s=before.subscriber_s,
        stream_s=inactive.seconds if inactive.delete else None,
        stream_when=_IDLE_WHEN[inactive.mode],
    )


def inactive_of_body(body: Mapping[str, Any]) -> Inactive:
    """Inverse of ``Inactive.to_json``."""
    return Inactive(body["inactiveTopicDeleteMode"], body["maxInactiveDurationSeconds"], body["deleteWhileInactive"])


def inactive_of(idle: Idle) -> Inactive | None:
    """Limits that were not set through this API, in Pulsar's form; None if this level does not set them."""
    if idle.stream_s is INHERIT and idle.stream_when is INHERIT:
        return None
    when = idle.stream_when if isinstance(idle.stream_when, IdleWhen) else IdleWhen.NO_SUBSCRIBERS
    limited = isinstance(idle.stream_s, (int, float))
    seconds = max(1, _rounded_up(idle.stream_s, 1)) if limited else INACTIVE_DEFAULT.seconds
    return Inactive(_IDLE_NAMES[when], seconds, limited)


def number_of_limit(limit: Limit, unit: int) -> int | None:
    """A limit in whole units, rounded up; 0 if lifted, None if this level does not set it."""
    if limit is INHERIT:
        return None
    return 0 if limit is None else math.ceil(limit / unit)
