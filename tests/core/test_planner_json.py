from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock.core
from penstock.core.planner_json.answers import ranges_of
from penstock.core.planner_json.policy import decode_policy
from penstock.core.planner_json.requests import (
    FIELDS,
    decode_facts,
    plan_line,
    plan_of,
)
from penstock.core.planner_json.stream import Cuts, take_stream
from penstock.core.retention.planner import explain
from penstock.model.errors import InvalidArgumentError


def line(**changes: Any) -> dict[str, Any]:
    value: dict[str, Any] = {
        "version": 1,
        "id": "flights-1",
        "now_ms": 7000,
        "frequency_ms": 0,
        "stream": {
            "scope": "s",
            "name": "n",
            "epochs": [
                [{"segment": "0#0", "low": 0.0, "high": 1.0}],
                [{"segment": "1#1", "low": 0.0, "high": 0.5}, {"segment": "2#1", "low": 0.5, "high": 1.0}],
            ],
            "sealed": {"0#0": 30},
        },
        "truncated_at": {"0#0": 5},
        "truncating": False,
        "policy": {"type": "size", "min": 10, "max": 50},
        "retention_set": [{"time_ms": 1000, "size_bytes": 10, "cut": {"0#0": 10}}],
        "subscribers": {"delays": {"cut": {"0#0": 10}}},
        "tail": {"time_ms": 7000, "size_bytes": 60, "cut": {"1#1": 12, "2#1": 18}},
        "hold": None,
    }
    value.update(changes)
    return value


OPEN = {
    "state": "open",
    "total_bytes": None,
    "total_events": None,
    "exceeded": False,
    "rule": None,
    "subscriber": "",
}


def answer(**changes: Any) -> dict[str, Any]:
    return plan_line(json.dumps(line(**changes)))


def test_a_line_gives_a_whole_decision() -> None:
    assert answer() == {
        "version": 1,
        "id": "flights-1",
        "candidate": {"0#0": 10},
        "truncate": {"0#0": 10},
        "rule": "subscribers",
        "record": {"time_ms": 7000, "size_bytes": 60, "cut": {"1#1": 12, "2#1": 18}},
        "prune_through_ms": 1000,
        "held_by": [{"kind": "subscriber", "name": "delays", "bytes": 50}],
        "expire": [],
        "evict": [],
        "drop": [],
        "delete_stream": False,
        "writers": OPEN,
        "frees_bytes": 5,
        "next_due_ms": None,
        "why": "Deletes 5 B. All subscribers have acknowledged this data.",
        "events": None,
        "time_range_ms": [None, 1000],
        "subscribers": [],
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"subscribers": {"fast": {"cut": {"0#0": 20}}, "slow": {"cut": {"0#0": 5}}},
             "policy": {"type": "size", "min": 10, "max": 100}},
            "the slowest subscriber, slow, has acknowledged none of the data that is left",
        ),
        (
            {"tail": {"time_ms": 7000, "size_bytes": 10, "cut": {"0#0": 10}}, "truncated_at": {"0#0": 10},
             "policy": {"type": "size", "min": 0, "max": 50}},
            "the stream is empty",
        ),
        (
            {"subscribers": {"{minimum}, a{": {"cut": {"0#0": 5}}}, "policy": {"type": "size", "min": 10, "max": 100}},
            "the slowest subscriber, {minimum}, a{, has acknowledged none of the data that is left",
        ),
        ({"policy": None}, "no retention rule applies"),
    ],
)  # fmt: skip
def test_where_nothing_goes_the_reason_says_so(changes: dict[str, Any], why: str) -> None:
    found = answer(**changes)
    assert found["frees_bytes"] == 0
    assert found["why"] == f"Nothing is deleted: {why}."


def test_an_eviction_names_who_lost_what_by_which_rule() -> None:
    given_ = answer(policy={"type": "size", "min": 0, "max": 49})
    assert given_["evict"] == [
        {
            "subscriber": "delays",
            "from": {"0#0": 10},
            "to": {"1#1": 12, "2#1": 18},
            "bytes": 50,
            "events": None,
            "rule": "subscribers-maximum",
        }
    ]
    assert given_["subscribers"] == ["delays"]


def test_what_may_be_left_out_may_be_left_out() -> None:
    value = line()
    for name in ("version", "id", "frequency_ms", "truncated_at", "truncating", "subscribers", "tail", "hold"):
        del value[name]
    del value["stream"]["scope"], value["stream"]["name"]
    decided = plan_line(json.dumps(value))
    assert (decided["id"], decided["rule"], decided["candidate"]) == (None, "below-minimum", None)


def test_a_stream_without_a_policy_keeps_all() -> None:
    decided = answer(policy=None)
    assert (decided["rule"], decided["truncate"], decided["record"]) == ("no-policy", None, None)
    assert decided["held_by"] == [{"kind": "no-policy", "name": "", "bytes": 55}]


def test_a_subscriber_without_a_cut_has_published_nothing() -> None:
    for silent in ({"cut": {}}, {}, {"cut": None, "backlog_bytes": 7}):
        assert answer(subscribers={"delays": silent})["rule"] == "maximum"


def test_an_unstarted_segment_is_minus_one() -> None:
    epochs = [
        [{"segment": "0#0", "low": 0.0, "high": 0.5}, {"segment": "1#0", "low": 0.5, "high": 1.0}],
        [{"segment": "2#1", "low": 0.0, "high": 1.0}],
    ]
    decided = answer(
        stream={"epochs": epochs, "sealed": {"0#0": 30, "1#0": 0}},
        truncated_at=None,
        retention_set=[],
        tail={"time_ms": 7000, "size_bytes": 60, "cut": {"2#1": 30}},
        subscribers={"a": {"cut": {"0#0": 10, "2#1": -1}}},
    )
    assert decided["truncate"] == {"0#0": 10, "2#1": -1}


@pytest.mark.parametrize(
    ("hold", "holder"),
    [
        (True, "hold"),
        ({"id": "x", "owner": "legal", "reason": "case 7", "until_ms": 7001}, "x"),
        ([{"id": "later", "until_ms": 7000}, {"id": "y"}], "y"),
    ],
)
def test_a_hold_forbids_the_truncation_and_is_named(hold: Any, holder: str) -> None:
    decided = answer(hold=hold)
    assert (decided["candidate"], decided["truncate"]) == ({"0#0": 10}, None)
    assert decided["held_by"] == [{"kind": "hold", "name": holder, "bytes": 55}]


def test_a_hold_from_a_cut_on() -> None:
    assert answer(hold={"id": "x", "cut": {"0#0": 7}})["truncate"] == {"0#0": 7}
    assert answer(hold=False)["truncate"] == {"0#0": 10}


def segment(name: str, low: Any, high: Any) -> dict[str, Any]:
    return {"segment": name, "low": low, "high": high}


WHOLE = segment("0#0", 0.0, 1.0)
ONE = {"epochs": [[WHOLE]]}


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"version": 2}, "version", "version of the facts is not known"),
        ({"surprise": 1}, "surprise", "field is not known"),
        ({"now_ms": None}, "now_ms", "a whole number is missing"),
        ({"now_ms": 1.5}, "now_ms", "not a whole number"),
        ({"now_ms": True}, "now_ms", "not a whole number"),
        ({"now_ms": -1}, "now_ms", "number is negative"),
        ({"now_ms": 1 << 63}, "now_ms", "does not fit into 63 bits"),
        ({"frequency_ms": -5}, "frequency_ms", "number is negative"),
        ({"truncating": 1}, "truncating", "not true or false"),
        ({"stream": None}, "stream", "an object is missing"),
        ({"stream": {}}, "stream.epochs", "a list is missing"),
        ({"stream": {"epochs": []}}, "stream.epochs", "at least one epoch"),
        ({"stream": {**ONE, "colour": 1}}, "stream.colour", "field is not known"),
        ({"stream": {"epochs": [[]]}}, "stream.epochs[0]", "key space has a gap"),
        ({"stream": {"epochs": [[segment("0#0", 0.0, 0.9)]]}}, "stream.epochs[0]", "key space has a gap"),
        (
            {"stream": {"epochs": [[segment("0#0", 0.0, 0.4), segment("1#0", 0.5, 1.0)]]}},
            "stream.epochs[0]",
            "key space has a gap. low=0.4 high=0.5",
        ),
        (
            {"stream": {"epochs": [[segment("0#0", 0.0, 0.6), segment("1#0", 0.5, 1.0)]]}},
            "stream.epochs[0]",
            "key ranges overlap",
        ),
        ({"stream": {"epochs": [[segment("0#0", 0.5, 0.5)]]}}, "stream.epochs[0][0]", "empty or outside"),
        ({"stream": {"epochs": [[segment("0#0", 0.0, "1")]]}}, "stream.epochs[0][0].high", "not a number"),
        ({"stream": {"epochs": [[segment("0", 0.0, 1.0)]]}}, "stream.epochs[0][0].segment", "NUMBER#EPOCH"),
        ({"stream": {"epochs": [[segment("9999999999#0", 0.0, 1.0)]]}}, "stream.epochs[0][0].segment", "31 bits"),
        ({"stream": {"epochs": [[segment("0#1", 0.0, 1.0)]]}}, "stream.epochs[0]", "first appears"),
        (
            {"stream": {"epochs": [[segment("0#0", 0.0, 0.5), segment("0#0", 0.5, 1.0)]]}},
            "stream.epochs[0]",
            "another key range",
        ),
        (
            {"stream": {"epochs": [[WHOLE], [segment("0#0", 0.0, 0.5), segment("1#1", 0.5, 1.0)]]}},
            "stream.epochs[1]",
            "another key range",
        ),
        (
            {"stream": {"epochs": [[WHOLE], [segment("1#1", 0.0, 1.0)], [WHOLE]]}},
            "stream.epochs[2]",
            "comes back after an epoch without it",
        ),
        ({"stream": {**ONE, "sealed": {"5#0": 1}}}, "stream.sealed", "no epoch has"),
        ({"stream": {**ONE, "sealed": {"0#0": -1}}}, "stream.sealed.0#0", "number is negative"),
        ({"truncated_at": {"5#0": 1}}, "truncated_at", "never had"),
        ({"truncated_at": {"0#0": -2}}, "truncated_at.0#0", "offset is less than -1"),
        ({"truncated_at": {"1#1": 0}}, "truncated_at", "a key has no position in the cut"),
        ({"truncated_at": {"0#0": 0, "1#1": 0}}, "truncated_at", "older one of the cut is unfinished"),
        ({"policy": "size"}, "policy", "an object or null"),
        ({"policy": {"type": "consumption"}}, "policy.type", "size or time"),
        ({"policy": {"type": "size", "min": 51, "max": 50}}, "policy.min", "minimum exceeds the maximum"),
        ({"policy": {"type": "size", "min": -1}}, "policy.min", "limit is negative"),
        ({"policy": {"type": "size", "min": 1.5}}, "policy.min", "not a whole number"),
        ({"policy": {"type": "size", "max": "1"}}, "policy.max", "not a number"),
        ({"policy": {"type": "size", "maximum": 1}}, "policy.maximum", "field is not known"),
        ({"policy": {"type": "size", "retain": {}}}, "policy.retain", "field is not known"),
        ({"policy": {"retains": {}}}, "policy.retains", "policy field is not known"),
        ({"policy": {"retain": {"min_byte": 1}}}, "policy.retain.min_byte", "policy field is not known"),
        ({"policy": {"retain": {"min_bytes": -1}}}, "policy.retain.min_bytes", "it is not negative"),
        ({"policy": {"retain": {"combine": "or"}}}, "policy.retain.combine", "one of the accepted words"),
        ({"policy": {"retain": 1}}, "policy.retain", "is an object"),
        ({"policy": {"backlog": {"evict_to": 2}}}, "policy.backlog.evict_to", "up to 1"),
        ({"policy": {"backlog": {"ttl_s": 0}}}, "policy.backlog.ttl_s", "more than 0"),
        (
            {"policy": {"retain": {"min_bytes": 51, "max_bytes": 50}}},
            "policy.retain.min_bytes",
            "the minimum exceeds the maximum",
        ),
        ({"retention_set": {}}, "retention_set", "not a list"),
        ({"retention_set": [{"time_ms": 1}]}, "retention_set[0].size_bytes", "a whole number is missing"),
        ({"retention_set": [{"time_ms": 1, "size_bytes": -1, "cut": {}}]}, "retention_set[0].size_bytes", "negative"),
        ({"retention_set": [{"time_ms": 1, "size_bytes": 1, "cut": {}}]}, "retention_set[0].cut", "no positions"),
        (
            {"retention_set": [{"time_ms": t, "size_bytes": 1, "cut": {"0#0": 1}} for t in (2, 2)]},
            "retention_set[1].time_ms",
            "not in order of time",
        ),
        (
            {"retention_set": [{"time_ms": -t + 9, "size_bytes": -t + 9, "cut": {"0#0": 1}} for t in (-1, -2, 1)]},
            "retention_set[2].time_ms",
            "not in order of time",
        ),
        (
            {"retention_set": [{"time_ms": t, "size_bytes": 9 - t, "cut": {"0#0": 1}} for t in (2, 3)]},
            "retention_set[1].size_bytes",
            "smaller than the one before",
        ),
        ({"subscribers": []}, None, None),
        ({"subscribers": ["a"]}, "subscribers", "not an object"),
        ({"subscribers": {"a": {"cut": {"7#7": 1}}}}, "subscribers.a.cut", "never had"),
        ({"subscribers": {"a": {"cutt": {}}}}, "subscribers.a.cutt", "field is not known"),
        ({"subscribers": {"a": {"backlog_events": -1}}}, "subscribers.a.backlog_events", "number is negative"),
        ({"subscribers": {"a": {"last_active_ms": "x"}}}, "subscribers.a.last_active_ms", "not a whole number"),
        ({"boundaries": {"a": 1}}, "boundaries", "not a list"),
        ({"boundaries": [{"time_ms": 1}]}, "boundaries[0].size_bytes", "a whole number is missing"),
        ({"boundaries": [{"time_ms": 1, "size_bytes": 1, "cut": {"9#0": 1}}]}, "boundaries[0].cut", "never had"),
        ({"last_append_ms": 0.5}, "last_append_ms", "not a whole number"),
        ({"truncated_events": -1}, "truncated_events", "number is negative"),
        ({"unreadable": 5}, "unreadable", "not a text"),
        ({"truncated_at": {"0#0": 1, "00#0": 2}}, "truncated_at", "names a segment twice"),
        (
            {"retention_set": [{"time_ms": 1, "size_bytes": 1, "cut": {"0#0": 1}, "event_count": "x"}]},
            "retention_set[0].event_count",
            "not a whole number",
        ),
        (
            {"retention_set": [{"time_ms": 1, "size_bytes": 1, "cut": {"0#0": 1}, "events": 1}]},
            "retention_set[0].events",
            "field is not known",
        ),
        (
            {"retention_set": [{"time_ms": 1, "size_bytes": 1, "cut": {"0#0": True}}]},
            "retention_set[0].cut.0#0",
            "not a whole number",
        ),
        ({"tail": {"time_ms": 1, "size_bytes": 1, "cut": {"0": 1}}}, "tail.cut", "NUMBER#EPOCH"),
        ({"hold": "yes"}, "hold", "not an object"),
        ({"hold": {"who": 1}}, "hold.who", "field is not known"),
        ({"hold": [{"id": 5}]}, "hold[0].id", "not a text"),
    ],
)
def test_each_bad_input_has_its_own_message(changes: dict[str, Any], field: str | None, message: str | None) -> None:
    given_ = answer(**changes)
    if message is None:
        assert "error" not in given_
        return
    assert given_["id"] == "flights-1"
    assert given_["error"]["kind"] == "invalid"
    assert given_["error"]["field"] == field
    assert message in given_["error"]["message"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line is not JSON"),
        ("[]", "not an object"),
        ("null", "an object is missing"),
        ('{"now_ms": NaN}', "NaN and infinities are not allowed"),
        ('{"now_ms": -Infinity}', "NaN and infinities are not allowed"),
        ('{"id": 1, "id": 2}', "field is given twice"),
        ("[" * 100_000, "line is not JSON"),
    ],
)
def test_a_line_that_is_no_json_object_is_answered(text: str, message: str) -> None:
    given_ = plan_line(text)
    assert given_["id"] is None
    assert message in given_["error"]["message"]


def test_numbers_that_are_no_numbers_are_refused_in_parsed_values_too() -> None:
    with pytest.raises(InvalidArgumentError, match="finite"):
        decode_policy({"retain": {"min_age_s": float("nan")}})
    with pytest.raises(InvalidArgumentError, match="finite"):
        decode_policy({"type": "size", "min": float("inf")})
    epochs = [[segment("0#0", float("nan"), 1.0)]]
    with pytest.raises(InvalidArgumentError, match="outside"):
        decode_facts(line(stream={"epochs": epochs}))


def twice(name: str, value: str) -> str:
    """The line with one more field of that name, deep inside."""
    return json.dumps(line()).replace(f'"{name}":', f'"{name}": {value}, "{name}":', 1)


@pytest.mark.parametrize("name", ["low", "0#0", "time_ms", "cut", "min", "frequency_ms", "retention_set"])
@pytest.mark.parametrize("noise", ["", " : in a text", '\\": x'])
def test_a_field_given_twice_is_found_wherever_it_is_and_whatever_is_beside_it(name: str, noise: str) -> None:
    text = twice(name, "5").replace("flights-1", noise)
    assert "field is given twice" in plan_line(text)["error"]["message"]
    spaced = text.replace(f'"{name}":', f'"{name}" :', 1)
    assert "field is given twice" in plan_line(spaced)["error"]["message"]
    good = json.dumps(line()).replace("flights-1", noise).replace(f'"{name}":', f'"{name}"  :')
    assert "error" not in plan_line(good)


def records(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"time_ms": t, "size_bytes": t, "cut": {"0#0": t}, **more} for t in range(1, count + 1)]


@pytest.mark.parametrize(
    "spoil",
    [
        {"cut": {"0#0": -1}},
        {"cut": {"0#0": 1.0}},
        {"cut": {"0#0": True}},
        {"cut": {"0#0": 1 << 63}},
        {"cut": {"1#1": 0, "2#1": 0}},
        {"cut": {"2#1": 0, "1#1": 0}},
        {"cut": {}},
        {"cut": {"1#1": 0}},
        {"cut": []},
        {"time_ms": True},
        {"time_ms": 5},
        {"size_bytes": None},
        {"size_bytes": -1},
        {"time_ms": -1},
        {"size_bytes": 1},
        {"event_count": 3},
        {"event_count": -3},
        {"more": 1},
    ],
)
@pytest.mark.parametrize("place", [0, 6])
def test_records_checked_together_are_judged_as_records_checked_one_by_one(spoil: dict[str, Any], place: int) -> None:
    given_ = line(retention_set=records(9), truncated_at=None)
    given_["retention_set"][place].update(spoil)
    epochs, history = take_stream(given_["stream"])
    try:
        one_by_one: Any = list(Cuts(epochs, history).records(given_["retention_set"]))
    except InvalidArgumentError as error:
        one_by_one = (type(error), error.message, error.fields)
    try:
        together: Any = list(decode_facts(given_).facts.retention_set)
    except InvalidArgumentError as error:
        together = (type(error), error.message, error.fields)
    assert together == one_by_one


def test_lines_with_the_same_epochs_and_other_lengths_do_not_mix() -> None:
    ahead = {"subscribers": {"a": {"cut": {"1#1": 1, "2#1": 1}}}, "policy": {"type": "size"}}
    longer = {**line()["stream"], "sealed": {"0#0": 40}}
    assert [answer(**ahead)["frees_bytes"], answer(**ahead, stream=longer)["frees_bytes"]] == [27, 37]
    assert answer(**ahead)["frees_bytes"] == 27


def test_the_whole_document_is_applied() -> None:
    decided = answer(
        policy={
            "retain": {"min_bytes": 5, "combine": "any", "measure": "stream"},
            "unsubscribed": "keep",
            "backlog": {"ttl_s": 5, "max_bytes": 45, "max_events": 9, "on_exceed": "reject"},
            "idle": {"subscriber_s": 60, "stream_s": 2.5},
            "grace_s": 600,
        },
        retention_set=[{"time_ms": 1000, "size_bytes": 14, "cut": {"0#0": 14}, "event_count": 3}],
        subscribers={
            "delays": {"cut": {"0#0": 10}, "backlog_events": 8, "last_active_ms": 6000},
            "gone": {"last_active_ms": 0},
        },
        tail={"time_ms": 7000, "size_bytes": 60, "cut": {"1#1": 12, "2#1": 18}, "event_count": 10},
        truncated_events=1,
        last_append_ms=6900,
        now_ms=61_000,
    )
    assert decided["expire"] == [
        {
            "subscriber": "delays",
            "from": {"0#0": 10},
            "to": {"1#1": 12, "2#1": 18},
            "bytes": 50,
            "events": 8,
            "rule": "ttl",
        }
    ]
    assert decided["drop"] == [{"subscriber": "gone", "from": {}, "last_active_ms": 0, "rule": "idle-subscriber"}]
    assert decided["writers"] == {
        "state": "reject",
        "total_bytes": 105,
        "total_events": 19,
        "exceeded": False,
        "rule": "backlog-bytes",
        "subscriber": "delays",
    }
    assert (decided["truncate"], decided["rule"]) == ({"0#0": 14}, "subscribers-minimum")
    assert (decided["events"], decided["time_range_ms"], decided["subscribers"]) == (
        2,
        [None, 1000],
        ["delays", "gone"],
    )
    assert (decided["delete_stream"], decided["next_due_ms"]) == (False, 66_000)


def test_an_unreadable_policy_keeps_all_and_says_so() -> None:
    decided = answer(unreadable="scope document is damaged")
    assert (decided["rule"], decided["truncate"]) == ("unreadable-policy", None)
    assert decided["held_by"] == [{"kind": "unreadable-policy", "name": "", "bytes": 55}]
    assert "scope document is damaged" in decided["why"]


def test_a_boundary_is_where_an_eviction_may_end() -> None:
    quota = {"backlog": {"max_bytes": 40, "on_exceed": "evict"}}
    between = {"time_ms": 900, "size_bytes": 25, "cut": {"0#0": 25}}
    assert answer(policy=quota, boundaries=[between])["evict"][0]["to"] == {"0#0": 25}
    assert answer(policy=quota)["evict"][0]["to"] == {"1#1": 12, "2#1": 18}


# --- what else is public ------------------------------------------------------------------------------------------


def test_explained_ranges_carry_their_cuts() -> None:
    facts = decode_facts(line()).facts
    assert msgspec.to_builtins(ranges_of(explain(facts, now_ms=7000))) == [
        {"kind": "due", "name": "", "bytes": 5, "from": {"0#0": 5}, "to": {"0#0": 10}, "release_ms": 7000},
        {
            "kind": "subscriber",
            "name": "delays",
            "bytes": 50,
            "from": {"0#0": 10},
            "to": {"1#1": 12, "2#1": 18},
            "release_ms": None,
        },
    ]


ABOVE: dict[str, Any] = {
    "policy": {"type": "size", "min": 10, "max": 40},
    "subscribers": {},
    "retention_set": [
        {"time_ms": place * 1000, "size_bytes": place * 10, "cut": {"0#0": place * 10}} for place in (1, 2, 3)
    ],
}
"""Above its maximum: one decision goes to that, the next to the minimum."""


def test_the_schema_in_the_package_names_the_fields_that_are_read_and_written() -> None:
    schema = json.loads((Path(penstock.core.__file__).parent / "planner.schema.json").read_text())
    facts, decision = schema["$defs"]["facts"], schema["$defs"]["decision"]
    assert set(facts["properties"]) == set(FIELDS)
    assert set(facts["required"]) <= set(FIELDS)
    written = msgspec.to_builtins(plan_of(decode_facts(line())))
    assert set(decision["properties"]) == {*written, "settled"}
    assert set(decision["required"]) == set(written)
    settled = msgspec.to_builtins(plan_of(decode_facts(line(**ABOVE))).settled)
    assert set(decision["properties"]["settled"]["required"]) == set(settled)


def test_a_line_says_what_is_due_after_its_decision() -> None:
    decided = answer(**ABOVE)
    assert (decided["rule"], decided["truncate"], decided["frees_bytes"]) == ("maximum", {"0#0": 20}, 15)
    settled = decided["settled"]
    assert (settled["rule"], settled["truncate"], settled["frees_bytes"]) == ("minimum", {"0#0": 30}, 25)
    assert [(step["rule"], step["frees_bytes"]) for step in settled["steps"]] == [("maximum", 15), ("minimum", 10)]
    assert "settled" not in answer()


def test_the_example_of_the_documentation_decides_as_it_says() -> None:
    text = (Path(__file__).parents[2] / "docs/formats/planner.md").read_text()
    blocks = [json.loads(part.split("```")[0]) for part in text.split("```json\n")[1:]]
    facts, decision = blocks[0], blocks[1]
    assert plan_line(json.dumps(facts)) == decision
