"""Answers of a control plane that has decided nothing, for the fakes of tests: give the fields that matter."""

from __future__ import annotations

from typing import Any

from penstock.core.policies.levels import resolve
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.plan import RetentionPlan, RetentionRun, Writers
from penstock.model.retention import EMPTY

_RUN: dict[str, Any] = {
    "version": 1,
    "id": "s/t",
    "candidate": None,
    "truncate": None,
    "rule": "no-policy",
    "record": None,
    "prune_through_ms": None,
    "held_by": [],
    "expire": [],
    "evict": [],
    "drop": [],
    "delete_stream": False,
    "writers": Writers(
        state="open", total_bytes=None, total_events=None, exceeded=False, rule=None, subscriber=""
    ),
    "frees_bytes": 0,
    "next_due_ms": None,
    "why": "",
    "steps": [],
}  # fmt: skip
_POLICY: dict[str, Any] = {"policy": resolve(EMPTY, EMPTY, EMPTY), "unreadable": "", "sentence": "kept forever"}
_LOSS: dict[str, Any] = {"at_ms": 0, "events": 0, "time_range_ms": None, "subscribers": []}


def run_answer(**fields: Any) -> RetentionRun:
    return RetentionRun(**_RUN | fields)


def plan_answer(**fields: Any) -> RetentionPlan:
    return RetentionPlan(**_RUN | _LOSS | _POLICY | fields)


def explanation(**fields: Any) -> Explanation:
    return Explanation(**_RUN | _POLICY | {"ranges": []} | fields)
