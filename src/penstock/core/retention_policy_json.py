"""A retention policy as JSON: Pravega's form, and the part of the policy document that says the same thing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from penstock.model.errors import InvalidArgumentError, UnsupportedError
from penstock.model.policies import LONG_MAX, RetentionPolicy, RetentionType

_DOCUMENT = ("retain", "unsubscribed", "backlog", "idle", "grace_s")
_RETAIN = ("min_bytes", "min_age_s", "combine", "max_bytes", "max_age_s", "measure")


def decode_policy(value: Any) -> RetentionPolicy | None:
    """The policy, or None for ``null``.

    Raises: InvalidArgumentError (not a policy), UnsupportedError (a rule that this planner does not apply: bytes and age
    together, and everything about backlog, idleness and grace), both with the path in ``field``.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        refuse("a policy is an object or null", "policy")
    if any(name in value for name in _DOCUMENT):
        return _from_document(value)
    check_known(value, ("type", "min", "max"), "policy.")
    if value.get("type") not in ("size", "time"):
        refuse("type of a policy is size or time", "policy.type", type=repr(value.get("type"))[:60])
    return _policy(RetentionType(value["type"]), value, "min", "max", "policy.", scale=1)


def encode_policy(policy: RetentionPolicy | None) -> dict[str, Any] | None:
    """Pravega's form; ``max`` is null where unlimited."""
    if policy is None:
        return None
    return {"type": policy.type.value, "min": policy.minimum, "max": policy.maximum}


def _from_document(value: Mapping[str, Any]) -> RetentionPolicy | None:
    check_known(value, _DOCUMENT, "policy.")
    for name in ("backlog", "idle", "grace_s"):
        if value.get(name):
            _decline("rule is not part of truncation planning", f"policy.{name}")
    if value.get("unsubscribed", "release") != "release":
        _decline("a stream without subscribers is always released to its limits", "policy.unsubscribed")
    retain = value.get("retain")
    if retain is None:
        return None
    if not isinstance(retain, dict):
        refuse("retain is an object or null", "policy.retain")
    check_known(retain, _RETAIN, "policy.retain.")
    if retain.get("measure", "stream") != "stream":
        _decline("limits are those of the whole stream", "policy.retain.measure")
    sizes = [name for name in ("min_bytes", "max_bytes") if name in retain]
    ages = [name for name in ("min_age_s", "max_age_s") if name in retain]
    if sizes and ages:
        _decline("limits are bytes or age, not both", f"policy.retain.{ages[0]}")
    if ages:
        return _policy(RetentionType.TIME, retain, "min_age_s", "max_age_s", "policy.retain.", scale=1000)
    return _policy(RetentionType.SIZE, retain, "min_bytes", "max_bytes", "policy.retain.", scale=1)


def _policy(
    kind: RetentionType, value: Mapping[str, Any], low: str, high: str, prefix: str, *, scale: int
) -> RetentionPolicy | None:
    least = _limit(value.get(low, 0), prefix + low, scale)
    most = _limit(value.get(high), prefix + high, scale)
    if least is None:
        # An unlimited minimum: nothing ever goes, whatever the maximum is.
        return None
    if most is not None and most < least:
        refuse("minimum exceeds the maximum", prefix + low, minimum=value.get(low), maximum=value.get(high))
    return RetentionPolicy(type=kind, minimum=least, maximum=most)


def _limit(value: Any, field: str, scale: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse("limit is not a number", field, value=repr(value)[:60])
    if isinstance(value, float) and scale == 1 and not value.is_integer():
        refuse("limit is not a whole number", field, value=value)
    if not math.isfinite(value):
        refuse("limit is not a finite number", field, value=value)
    if value < 0:
        refuse("limit is negative", field, value=value)
    # Pravega writes an absent maximum as the largest long.
    return None if value * scale >= LONG_MAX else round(value * scale)


def check_known(value: Mapping[str, Any], names: Sequence[str], prefix: str) -> None:
    """Refuse a field that is not one of the names: a misspelt field must not pass for an absent one."""
    for name in value:
        if name not in names:
            refuse("field is not known", f"{prefix}{name}")


def refuse(message: str, field: str | None, **fields: Any) -> NoReturn:
    """Raise InvalidArgumentError with the path of the field."""
    raise InvalidArgumentError(message, field=field, **fields)


def _decline(message: str, field: str) -> NoReturn:
    raise UnsupportedError(message, field=field)
