"""Levels: the first that names a field decides it; Pravega's policy is a view; contradictions name where they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.codec.control.effective_policy import decode_effective, encode_effective
from penstock.codec.control.policy_document import BY_PATH, FIELDS, decode_document, time_ms, value_of
from penstock.core.policies import levels
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX, RetentionPolicy, RetentionType
from penstock.model.retention import (
    EMPTY,
    INHERIT,
    Backlog,
    Combine,
    EffectivePolicy,
    Idle,
    Level,
    Measure,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)

DAY_MS = 86_400_000


def document(**parts: Any) -> PolicyDocument:
    return decode_document(parts)


def effective(**parts: Any) -> EffectivePolicy:
    return levels.resolve(document(**parts), EMPTY, EMPTY)


SAMPLES: Mapping[str, tuple[Any, Any, Any]] = {
    "retain.combine": (Combine.ALL, Combine.ANY, Combine.ALL),
    "retain.measure": (Measure.SEGMENT, Measure.STREAM, Measure.SEGMENT),
    "unsubscribed": (Unsubscribed.RELEASE, Unsubscribed.KEEP, Unsubscribed.RELEASE),
    "backlog.on_exceed": (OnExceed.EVICT, OnExceed.REJECT, OnExceed.HOLD),
    "backlog.evict_to": (0.1, 0.2, 0.3),
    "retain.lock_until": ("2033-01-01T00:00:00Z", "2032-01-01T00:00:00Z", "2031-01-01T00:00:00Z"),
}


def put(path: str, value: Any) -> PolicyDocument:
    return levels.with_value(EMPTY, path, value)


def samples(path: str) -> tuple[Any, Any, Any]:
    choices = BY_PATH[path].choices
    return SAMPLES.get(path) or (tuple(choices)[:2] * 2)[:3] if choices else SAMPLES.get(path, (1, 2, 3))


@pytest.mark.parametrize("path", [item.path for item in FIELDS])
def test_the_first_level_that_names_a_field_decides_it(path: str) -> None:
    at_stream, at_scope, at_server = (put(path, value) for value in samples(path))
    for documents, level, value in (
        ((at_stream, at_scope, at_server), Level.STREAM, samples(path)[0]),
        ((EMPTY, at_scope, at_server), Level.SCOPE, samples(path)[1]),
        ((EMPTY, EMPTY, at_server), Level.SERVER, samples(path)[2]),
    ):
        found = levels.resolve(*documents)
        wanted = value * 1000 if path.endswith("_s") else time_ms(value) if path == "retain.lock_until" else value
        assert getattr(found, levels._NAMES[path]) == wanted
        assert found.origins[path] is level
        others = {name for name, origin in found.origins.items() if origin is not Level.DEFAULT}
        assert others == {path}


@pytest.mark.parametrize("path", [item.path for item in FIELDS if item.null])
def test_null_lifts_what_the_levels_above_say(path: str) -> None:
    found = levels.resolve(put(path, None), put(path, 5), EMPTY)
    assert getattr(found, levels._NAMES[path]) is None
    assert found.origins[path] is Level.STREAM


def test_nothing_said_anywhere_is_the_default_and_keeps_everything() -> None:
    found = levels.resolve(EMPTY, EMPTY, EMPTY)
    assert replace(found, origins={}) == EffectivePolicy()
    assert set(found.origins) == {item.path for item in FIELDS}
    assert not found.truncates
    assert levels.floor_of(found).unlimited


def test_a_limit_at_any_level_truncates_and_a_minimum_releases_by_default() -> None:
    for path in levels.LIMITS:
        for value in (0, 5, None):
            for documents in ((put(path, value), EMPTY, EMPTY), (EMPTY, EMPTY, put(path, value))):
                found = levels.resolve(*documents)
                assert found.truncates
                named = path in levels.MINIMUMS and value is not None
                assert found.unsubscribed is (Unsubscribed.RELEASE if named else Unsubscribed.KEEP), (path, value)
    both = levels.resolve(put("retain.max_bytes", 9), EMPTY, put("retain.min_age_s", 5))
    assert both.unsubscribed is Unsubscribed.RELEASE
    only_words = effective(retain={"combine": "all", "measure": "segment"})
    assert (only_words.truncates, only_words.unsubscribed) == (False, Unsubscribed.KEEP)
    assert effective(retain={"min_bytes": 1}, unsubscribed="keep").unsubscribed is Unsubscribed.KEEP


@pytest.mark.parametrize(
    ("seconds", "value_ms"), [(0.1, 100), (1.005, 1005), (4.35, 4350), (0.0001, 1), (30, 30_000), (0.0010001, 2)]
)
def test_seconds_become_milliseconds_rounded_up_as_they_were_written(seconds: float, value_ms: int) -> None:
    assert levels.milliseconds(seconds) == value_ms


@given(st.integers(0, LONG_MAX))
def test_milliseconds_in_seconds_are_never_shortened(value_ms: int) -> None:
    back = levels.milliseconds(levels.seconds(value_ms))
    assert back == value_ms if value_ms < 10**15 else value_ms <= back < value_ms + 1000


@pytest.mark.parametrize(
    ("combine", "least", "floor"),
    [
        ("any", {}, levels.Floor()),
        ("any", {"min_bytes": 0}, levels.Floor()),
        ("any", {"min_bytes": 5}, levels.Floor(size_bytes=5)),
        ("any", {"min_bytes": 5, "min_age_s": 1}, levels.Floor(size_bytes=5, age_ms=1000)),
        ("any", {"min_bytes": 5, "min_age_s": 0}, levels.Floor()),
        ("any", {"min_bytes": None, "min_age_s": 0}, levels.Floor()),
        ("any", {"min_bytes": None, "min_age_s": 1}, levels.Floor(age_ms=1000)),
        ("any", {"min_bytes": None}, levels.Floor(unlimited=True)),
        ("all", {}, levels.Floor(combine=Combine.ALL)),
        ("all", {"min_bytes": 5, "min_age_s": 0}, levels.Floor(size_bytes=5, combine=Combine.ALL)),
        ("all", {"min_bytes": 5, "min_age_s": 1}, levels.Floor(size_bytes=5, age_ms=1000, combine=Combine.ALL)),
        ("all", {"min_bytes": None, "min_age_s": 1}, levels.Floor(unlimited=True)),
    ],
)
def test_the_floor_of_two_minimums(combine: str, least: dict[str, Any], floor: levels.Floor) -> None:
    assert levels.floor_of(effective(retain={"combine": combine, "max_bytes": 9, **least})) == floor


@pytest.mark.parametrize(
    ("bad", "field", "rule"),
    [
        (PolicyDocument(retain=Retain(min_bytes=math.nan)), "retain.min_bytes", "it is a finite number"),
        (PolicyDocument(retain=Retain(min_bytes=True)), "retain.min_bytes", "it is a number"),
        (PolicyDocument(backlog=Backlog(evict_to=0)), "backlog.evict_to", "it is a share above 0 and up to 1"),
        (PolicyDocument(idle=Idle(stream_s=-1)), "idle.stream_s", "it is not negative; null is unlimited"),
        (PolicyDocument(retain=Retain(min_bytes=2, max_bytes=1)), "retain.min_bytes", "retain.min_bytes is at most retain.max_bytes"),
        (PolicyDocument(retain=Retain(min_age_s=None, max_age_s=1)), "retain.min_age_s", "retain.min_age_s is at most retain.max_age_s"),
        (PolicyDocument(retain={"min_bytes": 1}), "retain", "it is a Retain"),  # type: ignore[arg-type]
        ({"retain": {}}, "policy", "it is a PolicyDocument"),
    ],
)  # fmt: skip
def test_a_contradiction_names_field_value_rule_level_and_what_would_do(bad: Any, field: str, rule: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        levels.validate(bad, Level.SCOPE)
    fields = caught.value.fields
    assert (fields["field"], fields["rule"], fields["level"]) == (field, rule, "scope")
    assert fields["accepted"]
    assert "value" in fields


def test_a_valid_document_comes_back_with_its_words_as_members() -> None:
    loose = PolicyDocument(retain=Retain(combine="all", min_bytes=5.0), grace_s=1)  # type: ignore[arg-type]
    checked = levels.validate(loose, StreamName("s", "a"))
    assert checked.retain.combine is Combine.ALL
    assert checked.retain.min_bytes == 5
    assert isinstance(checked.retain.min_bytes, int)
    assert checked.retain.max_bytes is INHERIT


@pytest.mark.parametrize("target", [None, "s", StreamName("s", "a")])
def test_a_target_names_its_level(target: Any) -> None:
    assert levels.level_of(target).value == {None: "server", "s": "scope"}.get(target, "stream")


def test_on_exceed_without_a_limit_and_null_maximums_are_fine() -> None:
    levels.validate(document(backlog={"on_exceed": "evict"}, retain={"min_bytes": 5, "max_bytes": None}))


def test_two_levels_that_contradict_each_other_are_both_named() -> None:
    found = levels.resolve(document(retain={"min_age_s": 60}), EMPTY, document(retain={"max_age_s": 30}))
    with pytest.raises(InvalidArgumentError) as caught:
        levels.check_effective(found, StreamName("s", "a"))
    assert caught.value.fields == {
        "field": "retain.min_age_s",
        "value": "60",
        "rule": "retain.min_age_s is at most retain.max_age_s",
        "level": "stream",
        "accepted": "0 to 30, the retain.max_age_s of level server, or another retain.max_age_s",
        "stream": "s/a",
    }
    levels.check_effective(levels.resolve(EMPTY, EMPTY, document(retain={"max_age_s": 0, "max_bytes": 0})))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"retain": {"min_bytes": 10}, "backlog": {"max_bytes": 10}}, "not above retain.min_bytes"),
        ({"retain": {"min_age_s": 10}, "backlog": {"max_age_s": 9}}, "not above retain.min_age_s"),
        ({"retain": {"min_bytes": None, "max_age_s": 9}}, "never acts"),
        ({"retain": {"min_bytes": 10, "max_age_s": 9}}, "minimum wins over max_age_s"),
        ({"retain": {"min_age_s": 10, "max_bytes": 9}}, "minimum wins over max_bytes"),
        ({"retain": {"max_bytes": 0}}, "before anybody can read"),
        ({"backlog": {"max_events": 0}}, "always exceeded"),
        ({"backlog": {"on_exceed": "hold"}}, "no effect"),
        ({"backlog": {"max_age_s": 5, "on_exceed_bytes": "evict"}}, "no effect without backlog.max_bytes"),
        ({"retain": {"max_age_s": 9}, "backlog": {"ttl_s": 9}}, "ttl_s is never reached"),
        ({"backlog": {"ttl_s": 9, "max_age_s": 9}}, "max_age_s is never reached"),
        ({"backlog": {"ttl_s": 9}}, "frees nothing"),
    ],
)
def test_what_may_not_be_meant_is_remarked_and_not_refused(parts: dict[str, Any], words: str) -> None:
    found = effective(**parts)
    levels.check_effective(found)
    assert any(words in remark for remark in levels.remarks(found))


def test_a_plain_policy_draws_no_remark() -> None:
    plain = effective(retain={"min_age_s": 9, "max_age_s": 99}, backlog={"ttl_s": 50, "max_bytes": 7})
    assert list(levels.remarks(plain)) == []
    assert list(levels.remarks(EffectivePolicy())) == []


LIMITS = st.none() | st.integers(0, 10**9)


@st.composite
def pravega_policies(draw: st.DrawFn) -> RetentionPolicy:
    least = draw(st.integers(0, 10**14))
    most = draw(st.none() | st.integers(least, 2 * 10**14))
    return RetentionPolicy(type=draw(st.sampled_from(RetentionType)), minimum=least, maximum=most)


@given(st.none() | pravega_policies(), st.none() | pravega_policies())
def test_what_a_pravega_client_writes_it_reads_back_and_a_repeat_changes_nothing(
    first: RetentionPolicy | None, second: RetentionPolicy | None
) -> None:
    base = document(backlog={"ttl_s": 5}, idle={"stream_s": 7}, grace_s=9)
    once = levels.with_pravega(base, first)
    assert levels.pravega_view(once) == first
    assert levels.with_pravega(once, first) is once
    twice = levels.with_pravega(once, second)
    assert levels.pravega_view(twice) == second
    assert (twice.backlog, twice.idle, twice.grace_s) == (base.backlog, base.idle, base.grace_s)
    levels.validate(twice)


def test_writing_what_was_shown_keeps_what_the_view_cannot_show() -> None:
    rich = document(retain={"max_age_s": 9, "combine": "all"}, unsubscribed="keep")
    assert levels.pravega_view(rich) == RetentionPolicy(type=RetentionType.TIME, minimum=0, maximum=9000)
    assert levels.with_pravega(rich, RetentionPolicy(type=RetentionType.TIME, minimum=0, maximum=9000)) is rich
    both = document(retain={"max_age_s": 9, "max_bytes": 9})
    assert levels.pravega_view(both) is None
    assert levels.with_pravega(both, None) is both


def test_an_unlimited_minimum_is_the_largest_long_to_pravega() -> None:
    for_ever = document(retain={"min_age_s": None})
    view = levels.pravega_view(for_ever)
    assert view == RetentionPolicy(type=RetentionType.TIME, minimum=LONG_MAX)
    assert levels.with_pravega(EMPTY, view).retain.min_age_s is None
    assert levels.pravega_view(document(retain={"min_bytes": 5, "measure": "segment"})) is None


def test_a_dropped_pravega_policy_leaves_the_stream_to_the_next_level() -> None:
    limited = levels.with_pravega(EMPTY, RetentionPolicy(type=RetentionType.SIZE, minimum=5))
    assert limited.unsubscribed is Unsubscribed.RELEASE
    assert limited.retain.max_bytes is None, "an absent maximum is unlimited, whatever the scope says"
    assert levels.with_pravega(limited, None) == EMPTY


def test_a_pravega_policy_by_itself() -> None:
    assert not levels.effective_of(None).truncates
    found = levels.effective_of(RetentionPolicy(type=RetentionType.TIME, minimum=10, maximum=20))
    assert (found.min_age_ms, found.max_age_ms, found.truncates) == (10, 20, True)
    assert found.given("retain.min_age_s")
    assert not found.given("retain.min_bytes")


@pytest.mark.parametrize(
    ("parts", "interval"),
    [
        ({}, None),
        ({"retain": {"min_bytes": None}}, None),
        ({"backlog": {"max_bytes": 5}}, None),
        ({"retain": {"min_bytes": 5}}, 1000),
        ({"retain": {"min_bytes": 0}}, 1000),
        ({"retain": {"min_age_s": 86_400}}, 86_400),
        ({"retain": {"min_age_s": 86_400, "max_bytes": 9}}, 1000),
        ({"retain": {"min_age_s": 86_400, "max_age_s": 864_000}, "backlog": {"ttl_s": 43_200}}, 43_200),
        ({"retain": {"min_age_s": 5}}, 1000),
        ({"backlog": {"max_age_s": 3600}}, 3600),
        ({"backlog": {"ttl_s": 7200.0004}}, 7201),
    ],
)
def test_records_are_no_denser_than_a_thousandth_of_the_smallest_age_nor_than_the_loop(
    parts: dict[str, Any], interval: int | None
) -> None:
    assert levels.record_interval_ms(effective(**parts), cycle_ms=1000) == interval


def test_the_lag_of_a_policy() -> None:
    assert levels.lag_ms(effective(retain={"min_bytes": 0}), cycle_ms=1000) == 1000
    assert levels.lag_ms(effective(retain={"min_bytes": 5}), cycle_ms=1000) == 3000
    assert levels.lag_ms(effective(retain={"min_age_s": 86_400}), cycle_ms=1000) == 88_400


def test_every_field_has_a_place_in_what_applies() -> None:
    assert set(levels._NAMES) == {item.path for item in FIELDS}
    assert all(value_of(EMPTY, path) is INHERIT for path in levels._NAMES)


@st.composite
def policy_documents(draw: st.DrawFn) -> PolicyDocument:
    found = EMPTY
    for path in draw(st.lists(st.sampled_from([item.path for item in FIELDS]), unique=True)):
        found = levels.with_value(found, path, draw(st.sampled_from(samples(path))))
    return found


@given(policy_documents(), policy_documents())
@example(
    document(retain={"lock_until": "2032-01-01T00:00:00Z"}), document(retain={"lock_until": "2033-01-01T00:00:00Z"})
)
@example(
    document(retain={"lock_until": "2033-01-01T00:00:00Z"}), document(retain={"lock_until": "2032-01-01T00:00:00Z"})
)
def test_two_levels_in_one_document_apply_as_the_two_do(stream: PolicyDocument, scope: PolicyDocument) -> None:
    both = levels.resolve(levels.merged(stream, scope), EMPTY, EMPTY)
    assert _decided(both) == _decided(levels.resolve(stream, scope, EMPTY))
    assert levels.merged(stream, EMPTY) == stream


def _decided(policy: EffectivePolicy) -> EffectivePolicy:
    """The policy with what each quota does, wherever that is said."""
    return replace(
        policy,
        origins={},
        on_exceed_bytes=policy.bytes_action,
        on_exceed_age=policy.age_action,
        on_exceed_events=policy.events_action,
    )


@given(policy_documents(), policy_documents(), policy_documents())
def test_each_quota_acts_as_the_first_level_says_that_names_its_action(
    stream: PolicyDocument, scope: PolicyDocument, server: PolicyDocument
) -> None:
    found = levels.resolve(stream, scope, server)
    named = {"on_exceed_bytes": found.bytes_action, "on_exceed_age": found.age_action}
    for name, action in {**named, "on_exceed_events": found.events_action}.items():
        said = [
            value
            for document in (stream, scope, server)
            for value in (getattr(document.backlog, name), document.backlog.on_exceed)
            if value is not INHERIT
        ]
        assert action is (said[0] if said else OnExceed.HOLD)


@given(policy_documents(), policy_documents())
def test_an_effective_policy_survives_its_document_and_its_json(stream: PolicyDocument, scope: PolicyDocument) -> None:
    found = levels.resolve(stream, scope, EMPTY)
    again = levels.resolve(levels.document_of(found), EMPTY, EMPTY)
    assert (again.bytes_action, again.age_action) == (found.bytes_action, found.age_action)
    assert again.events_action is found.events_action
    shown = encode_effective(found)
    assert decode_effective(json.loads(json.dumps(shown))) == found
    for name in ("on_exceed_bytes", "on_exceed_age", "on_exceed_events"):
        del shown["backlog"][name]
    # An older server shows one action.
    assert decode_effective(shown).bytes_action is found.on_exceed
