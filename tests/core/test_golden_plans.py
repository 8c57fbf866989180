"""The planner's answers to lines of facts, byte for byte: docs/formats/planner.md. The lines are of random streams."""

from __future__ import annotations

import json
import re
from pathlib import Path

from penstock.core.planner_json.lines import plan_text
from penstock.core.planner_json.requests import plan_line

GOLDEN = [json.loads(line) for line in Path(__file__).with_name("golden_plans.jsonl").read_text().splitlines()]


def wordless(text: str) -> str:
    """The answer without its sentence for people, which nobody parses."""
    return re.sub(r'("why": )"(?:[^"\\]|\\.)*"', r'\1""', text)


def test_the_answer_to_each_line_is_as_it_ever_was() -> None:
    for item in GOLDEN:
        assert wordless(plan_text(item["line"]).text) == item["answer"]


def test_the_explaining_way_gives_the_same_fields_in_the_same_order() -> None:
    for item in GOLDEN:
        assert wordless(json.dumps(plan_line(item["line"]), ensure_ascii=False)) == item["answer"]
