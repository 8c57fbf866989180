"""A policy on the planner's lines, in either form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.planner_json import policy as retention_policy_json
from penstock.core.planner_json import stream as retention_json_stream
from penstock.core.planner_json.policy import decode_policy
from penstock.core.planner_json.requests import plan_line
from penstock.core.retention import outlook as retention_outlook
from penstock.model.policies import LONG_MAX
from penstock.model.retention import EffectivePolicy


def limits(policy: EffectivePolicy | None) -> tuple[Any, ...] | None:
    if policy is None:
        return None
    return policy.truncates, policy.min_bytes, policy.max_bytes, policy.min_age_ms, policy.max_age_ms


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"type": "size"}, (True, 0, None, 0, None)),
        ({"type": "time", "min": 5, "max": None}, (True, 0, None, 5, None)),
        ({"type": "size", "min": 5, "max": LONG_MAX}, (True, 5, None, 0, None)),
        ({"type": "size", "min": 5, "max": 0.0 + 5}, (True, 5, 5, 0, None)),
        ({"type": "size", "min": None, "max": 5}, (True, None, None, 0, None)),
        ({"retain": None}, (False, 0, None, 0, None)),
        ({"retain": {}}, (False, 0, None, 0, None)),
        ({"retain": {"min_bytes": 3, "max_bytes": 9}, "backlog": None}, (True, 3, 9, 0, None)),
        ({"retain": {"min_age_s": 1.5, "max_age_s": 9}}, (True, 0, None, 1500, 9000)),
        ({"retain": {"min_bytes": 3, "min_age_s": 2, "combine": "all"}}, (True, 3, None, 2000, None)),
    ],
)
def test_policies_are_read_in_both_forms(value: Any, expected: tuple[Any, ...] | None) -> None:
    assert limits(decode_policy(value)) == expected


def test_what_is_kept_between_lines_is_bounded() -> None:
    def facts(number: int) -> str:
        low = [
            {"segment": "0#0", "low": 0.0, "high": number / 1000},
            {"segment": "1#0", "low": number / 1000, "high": 1.0},
        ]
        policy = {"type": "size", "min": number}
        return json.dumps({"now_ms": 1, "stream": {"epochs": [low]}, "policy": policy, "retention_set": []})

    for number in range(1, 900):
        assert "error" not in plan_line(facts(number))
    for number in range(1, 1500):
        decode_policy({"type": "time", "min": number})
    assert len(retention_json_stream._cached) <= retention_json_stream._CACHED_MAX
    assert len(retention_policy_json._cached) <= retention_policy_json._CACHED_MAX
    assert (retention_outlook.shape_of.cache_info().maxsize or 0) <= retention_outlook._SHAPES_MAX
