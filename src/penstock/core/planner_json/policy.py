"""A retention policy as JSON: Pravega's form, or the whole policy document."""

from __future__ import annotations

import marshal
import math
from collections.abc import Mapping
from typing import Any

from penstock.codec.control.policy_document import decode_document
from penstock.core.planner_json.values import check_known, refuse
from penstock.core.policies.levels import effective_of, resolve, validate
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import LONG_MAX, RetentionPolicy, RetentionType
from penstock.model.retention import EMPTY, EffectivePolicy

_CACHED_MAX = 1024  # policies that stay decoded; fleets have few different ones
_CACHED_BYTES_MAX = 4096

_cached: dict[bytes, EffectivePolicy | None] = {}


def decode_policy(value: Any) -> EffectivePolicy | None:
    """The effective policy for a stream without other levels; None for ``null``.

    Equal policies are the same object while the cache holds them. Raises: InvalidArgumentError with the path in
    ``field``.
    """
    if value is None:
        return None
    try:
        key = marshal.dumps(value, 2)
    except ValueError:
        return _decode(value)
    if key in _cached:
        return _cached[key]
    policy = _decode(value)
    if len(key) <= _CACHED_BYTES_MAX:
        if len(_cached) >= _CACHED_MAX:
            _cached.clear()
        _cached[key] = policy
    return policy


def _decode(value: Any) -> EffectivePolicy | None:
    if not isinstance(value, dict):
        refuse("a policy is an object or null", "policy")
    if "type" in value or "min" in value or "max" in value:
        return effective_of(_pravega(value))
    document = decode_document(value)
    try:
        return resolve(validate(document), EMPTY, EMPTY)
    except InvalidArgumentError as error:
        fields = {name: item for name, item in error.fields.items() if name not in ("field", "level")}
        raise InvalidArgumentError(error.message, field=f"policy.{error.fields.get('field')}", **fields) from error


def _pravega(value: Mapping[str, Any]) -> RetentionPolicy:
    check_known(value, ("type", "min", "max"), "policy.")
    if value.get("type") not in ("size", "time"):
        refuse("type of a policy is size or time", "policy.type", type=repr(value.get("type"))[:60])
    least, most = _limit(value.get("min", 0), "policy.min"), _limit(value.get("max"), "policy.max")
    if least is None:
        # An unlimited minimum: nothing is ever deleted, whatever the maximum is.
        return RetentionPolicy(type=RetentionType(value["type"]), minimum=LONG_MAX)
    if most is not None and most < least:
        refuse("minimum exceeds the maximum", "policy.min", minimum=value.get("min"), maximum=value.get("max"))
    return RetentionPolicy(type=RetentionType(value["type"]), minimum=least, maximum=most)


def _limit(value: Any, field: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse("limit is not a number", field, value=repr(value)[:60])
    if isinstance(value, float) and not math.isfinite(value):
        refuse("limit is not a finite number", field, value=value)
    if isinstance(value, float) and not value.is_integer():
        refuse("limit is not a whole number", field, value=value)
    if value < 0:
        refuse("limit is negative", field, value=value)
    # Pravega writes an absent maximum as the largest long.
    return None if value >= LONG_MAX else int(value)
