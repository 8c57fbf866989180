"""Facts in Arrow are the facts of the lines, and a row that is settled without the planner is what the planner says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fleet_world import lines_of, read, some_policy, table_of

from penstock.codec.answers import as_json
from penstock.core.planner_json.facts_line import facts_of
from penstock.core.retention.days import DAY_MS, freed_by_day
from penstock.core.retention.facts import SubscriberActivity
from penstock.core.retention.outlook import shape_of
from penstock.core.retention.planner import decide
from penstock.core.retention.settlement import facts_after, settle
from penstock.model.errors import PenstockError
from penstock.spark.fleet.layout import HOLD, RECORD, SCHEMA, SUBSCRIBER, VERSION, VERSION_KEY
from penstock.spark.fleet.rows import FactsRows
from penstock.spark.fleet.screen import RULES, Screen
from penstock.spark.fleet.tally import Tally
from penstock.spark.fleet.verdicts import ADVANCE, DAY, VERDICT, effect_of
from penstock.spark.fleet.verdicts import SCHEMA as DECISIONS
from penstock.spark.fleet.verdicts import VERSION as DECISIONS_VERSION
from penstock.spark.fleet.verdicts import VERSION_KEY as DECISIONS_KEY
from penstock.spark.fleet.work import Task, decided_rows


@cache
def all_lines():
    return lines_of(1200)


@cache
def whole_table():
    return table_of(all_lines())


def changed(place: int, name: str, value: Any) -> FactsRows:
    """The first rows of the table, with another value in one of them."""
    table = whole_table().slice(0, 60)
    column = table.column(name).to_pylist()
    column[place] = value
    at = table.schema.get_field_index(name)
    arrays = [
        *table.columns[:at],
        pa.array(column, table.schema.field(name).type),
        *table.columns[at + 1 :],
    ]
    return FactsRows(pa.RecordBatch.from_arrays(arrays, schema=table.schema))


def test_a_row_is_decided_as_its_line() -> None:
    rows = FactsRows(whole_table())
    for place, text in enumerate(all_lines()):
        line = read(text)
        facts = rows.facts(place)
        assert decide(facts, now_ms=line.now_ms) == decide(line.facts, now_ms=line.now_ms)
        assert (rows.texts("scope")[place], rows.texts("name")[place]) == (line.scope, line.name)
        nothing = SubscriberActivity()
        assert facts.activity == {name: item for name, item in line.facts.activity.items() if item != nothing}
        assert list(facts.holds) == [replace(item, owner="", reason="") for item in line.facts.holds]


def test_a_slice_of_a_table_is_read_as_itself() -> None:
    whole, part = FactsRows(whole_table()), FactsRows(whole_table().slice(500, 40))
    now_ms = int(whole.now_ms[500])
    for place in range(40):
        assert decide(part.facts(place), now_ms=now_ms) == decide(whole.facts(500 + place), now_ms=now_ms)
    assert part.plain.tolist() == whole.plain[500:540].tolist()


def test_what_is_settled_without_the_planner_is_what_the_planner_says() -> None:
    rows = FactsRows(whole_table())
    screen = Screen(rows, rows.now_ms)
    found: Counter[str] = Counter()
    for seed in range(100):
        random = Random(seed)
        policy = some_policy(random, random.choice([50, 500, 5000]), random.choice([50, 500, 5000]))
        codes = screen.settle(shape_of(policy))
        for place in np.flatnonzero(codes >= 0).tolist():
            facts = replace(rows.facts(place), policy=policy)
            decision = decide(facts, now_ms=int(rows.now_ms[place]))
            assert RULES[codes[place]] is decision.rule, (seed, place)
            assert decision.candidate is decision.truncate is decision.prune_through_ms is None, (seed, place)
            assert not decision.writers.exceeded, (seed, place)
            assert not effect_of(facts, now_ms=int(rows.now_ms[place])).is_felt, (seed, place)
            found[decision.rule.word] += 1
    # Each of the ways is taken often, else nothing is shown of it.
    assert min(found[word] for word in ("no-policy", "below-minimum", "unsubscribed")) > 200


def test_a_batch_is_the_same_with_and_without_settling() -> None:
    settled, asked = (
        decided_rows(Task(screen=screen), FactsRows(whole_table()), "f", 1, Tally()) for screen in (True, False)
    )
    assert settled == asked


def test_what_goes_is_told_by_day_and_sums_up() -> None:
    reported = 0
    for text in all_lines():
        line = read(text)
        decision = decide(line.facts, now_ms=line.now_ms)
        days = freed_by_day(decision)
        reported += len(days)
        if decision.deletes_stream:
            continue
        assert sum(item.bytes for item in days) == decision.frees_bytes
        assert all(item.bytes > 0 for item in days)
        counts = [item.events for item in days]
        assert (None if None in counts else sum(counts)) in (decision.summary().events, None)  # type: ignore[arg-type]
    assert reported > 300


def test_what_a_row_says_is_gone_once_nothing_is_due() -> None:
    several = 0
    for text in all_lines():
        line = read(text)
        found, effect = settle(line.facts, now_ms=line.now_ms), effect_of(line.facts, now_ms=line.now_ms)
        several += len(found.steps) > 1
        assert (effect.frees_bytes, effect.truncate) == (found.frees_bytes, found.truncate)
        assert sum(item.bytes for item in effect.days) == effect.gone_bytes
        assert [item.day for item in effect.days] == sorted({item.day for item in effect.days})
        if found.last.deletes_stream:
            continue
        assert effect.gone_bytes == effect.frees_bytes
        after = line.facts
        for decision in found.decisions:
            after = facts_after(after, decision)
        left = effect_of(after, now_ms=line.now_ms)
        assert (left.gone_bytes, left.expire, left.evict, left.drop) == (0, (), (), ())
    assert several > 20


def test_days_are_those_of_the_records_behind_the_data() -> None:
    line = {
        "now_ms": 10 * DAY_MS,
        "stream": {"scope": "s", "name": "n", "epochs": [[{"segment": "0#0", "low": 0.0, "high": 1.0}]]},
        "truncated_at": {"0#0": 5},
        "truncated_events": 1,
        "policy": {"type": "time", "min": DAY_MS},
        "retention_set": [
            {"time_ms": day * DAY_MS + hour, "size_bytes": size, "cut": {"0#0": size}, "event_count": count}
            for day, hour, size, count in ((2, 0, 10, 2), (2, 7, 30, 5), (4, 0, 60, 9), (9, 1, 90, 12))
        ],
        "tail": {"time_ms": 10 * DAY_MS, "size_bytes": 100, "cut": {"0#0": 100}, "event_count": 13},
    }
    found = read(json.dumps(line))
    days = freed_by_day(decide(found.facts, now_ms=found.now_ms))
    assert days == [(2, 25, 4), (4, 30, 4)]


def test_facts_written_as_a_line_are_read_back() -> None:
    for text in all_lines()[:300]:
        line = read(text)
        again = read(json.dumps(as_json(facts_of(line))))
        assert (again.id, again.scope, again.name, again.now_ms) == (line.id, line.scope, line.name, line.now_ms)
        assert decide(again.facts, now_ms=line.now_ms) == decide(line.facts, now_ms=line.now_ms)


def test_tables_of_version_1_are_read_for_ever() -> None:
    here = Path(__file__).parent
    rows = FactsRows(pq.read_table(here / "fleet_facts_v1.parquet").to_batches()[0])
    lines = [read(text) for text in (here / "fleet_facts_v1.jsonl").read_text().splitlines()]
    assert rows.rows == len(lines) == 12
    for place, line in enumerate(lines):
        assert decide(rows.facts(place), now_ms=line.now_ms) == decide(line.facts, now_ms=line.now_ms)


def test_the_document_names_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs/formats/fleet.md").read_text()
    facts, _, decisions = text.partition("## Decisions")
    for part, names in (
        (facts, SCHEMA.names),
        (facts, [field.name for field in (*RECORD, *SUBSCRIBER, *HOLD)]),
        (decisions, [*DECISIONS.names, *(field.name for field in (*VERDICT, *ADVANCE, *DAY))]),
    ):
        assert [name for name in names if f"`{name}`" not in part] == []
    assert f"`{VERSION_KEY.decode()}` = `{VERSION}`" in facts
    assert f"`{DECISIONS_KEY.decode()}` = `{DECISIONS_VERSION}`" in decisions


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("now_ms", None, "now_ms"),
        ("now_ms", -1, "now_ms"),
        ("epochs", None, "epochs"),
        ("epochs", "[[]]", "stream.epochs[0]"),
        ("epochs", "{", None),
        ("policy", '{"type": "size", "min": 2, "max": 1}', "policy.min"),
        ("truncated_at", [{"segment": 99, "offset": 0}], "truncated_at"),
        ("truncated_at", [{"segment": 0, "offset": None}], "truncated_at"),
        ("truncated_at", [{"segment": None, "offset": 5}], "truncated_at"),
        ("tail", {"time_ms": 1, "size_bytes": None, "event_count": None, "cut": []}, "tail"),
        ("subscribers", [{"name": None, "cut": None}], "subscribers.name"),
        ("subscribers", [{"name": "a", "cut": None}, {"name": "a", "cut": None}], "subscribers"),
        ("sealed", [{"segment": 99, "length": 1}], "sealed"),
        ("retention_set", [{"time_ms": -5, "size_bytes": 1, "cut": []}], "retention_set.time_ms"),
        ("retention_set", [{"time_ms": 5, "size_bytes": 1, "cut": None}], "retention_set[0].cut"),
    ],
)
def test_a_row_that_cannot_be_used_names_its_field(name: str, value: Any, field: str | None) -> None:
    rows = changed(3, name, value)
    with pytest.raises(PenstockError) as caught:
        rows.facts(3)
    assert caught.value.fields.get("field") == field
    assert not rows.plain[3]
    # The others go on.
    assert rows.facts(4) is not None
    batch = decided_rows(Task(), rows, "f", 1, Tally())
    assert [place for place, error in enumerate(batch.column("error").to_pylist()) if error] == [3]
    assert batch.column("today")[3].as_py() is None
