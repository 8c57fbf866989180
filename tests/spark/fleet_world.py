"""Fleets for the tests: small random streams that scale, as facts, as lines of JSON, and as the table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))

from planner_lines import line_of
from retention_facts import apart_facts, some_facts, some_policy

from penstock.core.planner_json.lines import read_line
from penstock.core.planner_json.requests import FactsLine
from penstock.spark.fleet.layout import encode

__all__ = ["lines_of", "read", "some_policy", "table_of"]


def lines_of(count: int, *, seed: int = 0, scopes: int = 7) -> list[str]:
    """Lines of facts of streams of any kind, each with its own policy."""
    return list(_lines(count, seed, scopes))


def _lines(count: int, seed: int, scopes: int) -> Iterator[str]:
    for number in range(seed, seed + count):
        random = Random(number)
        facts, _, now_ms = (some_facts if number % 4 else apart_facts)(random)
        value = line_of(facts, now_ms, id=f"id-{number}")
        value["stream"].update(scope=f"scope-{number % scopes}", name=f"stream-{number}")
        yield json.dumps(value)


def read(line: str) -> FactsLine:
    found = read_line(line)
    assert found is not None
    return found


def table_of(lines: Sequence[str]) -> Any:
    return encode([(json.loads(line), read(line)) for line in lines])
