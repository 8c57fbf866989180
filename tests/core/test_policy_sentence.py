"""The sentence of a policy: a table of what is said, and the laws that keep it true."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.control.policy_document import decode_document
from penstock.core.policies.levels import floor_of, resolve
from penstock.core.policies.sentence import sentence, soon
from penstock.core.units import exact_duration, exact_size
from penstock.model.retention import (
    EMPTY,
    Combine,
    EffectivePolicy,
    IdleWhen,
    Measure,
    OnExceed,
    Unsubscribed,
)

DAY = 86_400
GB = 10**9


def said(cycle_ms: int = 1000, **parts: Any) -> str:
    return sentence(resolve(decode_document(parts), EMPTY, EMPTY), cycle_ms=cycle_ms)


R7D50 = {"min_age_s": 7 * DAY, "min_bytes": 50 * GB}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "kept forever"),
        ({"retain": {"min_bytes": None}}, "kept forever"),
        ({"retain": {"min_bytes": None, "max_age_s": DAY}}, "kept forever"),
        ({"retain": {"combine": "all", "min_bytes": None, "min_age_s": 5}}, "kept forever"),
        (
            {"retain": {"min_bytes": 0}},
            "kept until consumed; consumed data is deleted within a second, and while nobody subscribes all data counts as "
            "consumed; unread data is kept",
        ),
        (
            {"retain": {"min_bytes": 0}, "unsubscribed": "keep"},
            "kept until consumed; consumed data is deleted within a second, but while nobody subscribes nothing is deleted; "
            "unread data is kept",
        ),
        (
            {"retain": {"min_age_s": 7 * DAY}},
            "kept at least 7 d; consumed data older than that is deleted within 11 min; unread data is kept",
        ),
        (
            {"retain": {"min_bytes": 50 * GB}},
            "kept at least 50 GB; consumed data beyond that is deleted within 3 s; unread data is kept",
        ),
        (
            {"retain": R7D50},
            "kept at least 7 d or 50 GB; consumed data older than that is deleted within 3 s; unread data is kept",
        ),
        (
            {"retain": {**R7D50, "combine": "all"}},
            "kept at least 7 d and 50 GB; consumed data beyond both is deleted within 3 s; unread data is kept",
        ),
        (
            {"retain": {**R7D50, "max_age_s": 30 * DAY}},
            "kept at least 7 d or 50 GB, at most 30 d, even if unread; consumed data older than that is deleted within 3 s",
        ),
        (
            {"retain": {**R7D50, "max_age_s": 30 * DAY, "combine": "all"}},
            "kept at least 7 d and 50 GB, at most 30 d where the minimum allows it, even if unread; "
            "consumed data beyond both is deleted within 3 s",
        ),
        (
            {"retain": {"min_bytes": GB, "max_bytes": 2 * GB, "max_age_s": DAY}},
            "kept at least 1 GB, at most 2 GB, and at most 1 d where the minimum allows it, even if unread; "
            "consumed data beyond that is deleted within 3 s",
        ),
        (
            {"retain": {"max_bytes": 2 * GB, "max_age_s": DAY}, "unsubscribed": "keep"},
            "kept until consumed, at most 1 d and 2 GB, even if unread; consumed data is deleted within 3 s, but while nobody "
            "subscribes only the maximum deletes data",
        ),
        ({"retain": {"max_bytes": 0}}, "not kept: data is deleted within 3 s, even if unread"),
        (
            {"retain": {"max_bytes": 0, "min_age_s": 60}},
            "kept at least 1 min, at most 0 B where the minimum allows it, even if unread; "
            "consumed data older than that is deleted within 3 s",
        ),
        (
            {"retain": {"measure": "segment", "min_bytes": 1 << 30}},
            "kept in each segment at least 1 GiB; consumed data beyond that is deleted within 3 s; unread data is kept",
        ),
        ({"backlog": {"ttl_s": 14 * DAY}}, "kept forever; unread data counts as consumed after 14 d"),
        (
            {"retain": {"min_bytes": GB}, "backlog": {"ttl_s": DAY}},
            "kept at least 1 GB; consumed data beyond that is deleted within 3 s; unread data counts as consumed after 1 d",
        ),
        (
            {"retain": {"max_age_s": DAY}, "backlog": {"ttl_s": 2 * DAY}},
            "kept until consumed, at most 1 d; consumed data is deleted within 2 min, but while nobody subscribes only the "
            "maximum deletes data; the maximum deletes unread data before its time to live of 2 d",
        ),
        ({"backlog": {"max_bytes": 10 * GB}}, "kept forever; writers wait once 10 GB are unread"),
        (
            {"backlog": {"max_events": 1, "max_age_s": 90, "on_exceed": "reject"}},
            "kept forever; writers are refused once 1 event is unread or unread data is 1.5 min old",
        ),
        (
            {"backlog": {"max_bytes": GB, "max_age_s": 60, "max_events": 9, "on_exceed_bytes": "evict"}},
            "kept forever; writers wait once 9 events are unread or unread data is 1 min old; the slowest subscribers "
            "are moved past unread data once 1 GB are unread, down to 90 %",
        ),
        (
            {"retain": {"min_bytes": 5}, "backlog": {"max_bytes": GB, "max_events": 1000, "on_exceed": "evict"}},
            "kept at least 5 B; consumed data beyond that is deleted within 3 s; the slowest subscribers are moved past unread "
            "data once 1 GB are unread or 1,000 events are unread, down to 90 %",
        ),
        (
            {"idle": {"subscriber_s": 7 * DAY, "stream_s": 30 * DAY}},
            "kept as long as the stream exists; a subscriber that acknowledges nothing for 7 d is dropped; "
            "the stream is deleted after 30 d without use and subscribers",
        ),
        (
            {"idle": {"stream_s": 1, "stream_when": "caught_up"}, "grace_s": 3600},
            "kept as long as the stream exists; the stream is deleted after 1 s without use once all is read; "
            "a deletion can be undone for 1 h",
        ),
    ],
)
def test_what_is_said_of_a_policy(parts: dict[str, Any], words: str) -> None:
    assert said(**parts) == words


def test_the_sentence_that_users_ask_for() -> None:
    parts = {"retain": {**R7D50, "max_age_s": 30 * DAY}, "backlog": {"ttl_s": 14 * DAY}}
    assert said(cycle_ms=20_000, **parts) == (
        "kept at least 7 d or 50 GB, at most 30 d; consumed data older than that is deleted within a minute; "
        "unread data is deleted after 14 d"
    )
    assert "is deleted within 3 min" in said(cycle_ms=60_000, **parts)


def test_where_the_cycle_is_not_known_the_sentence_speaks_of_cycles() -> None:
    def of(**retain: Any) -> str:
        return sentence(resolve(decode_document({"retain": retain}), EMPTY, EMPTY), cycle_ms=None)

    assert "consumed data is deleted within a cycle, and" in of(min_bytes=0)
    assert "is deleted within three cycles" in of(min_bytes=5)
    assert "is deleted within 11 min and two cycles" in of(min_age_s=7 * DAY)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1500, "1.5 kB"), (1234567, "1,234,567 B"), (50 * GB, "50 GB"), (50 << 30, "50 GiB"),
        (1536, "1.5 KiB"), (10**15, "1,000 TB"),
    ],
)  # fmt: skip
def test_sizes_are_said_without_loss(size: int, text: str) -> None:
    assert exact_size(size) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0 s"), (1, "1 ms"), (1500, "1.5 s"), (5_400_000, "1.5 h"), (36 * 3_600_000, "1.5 d"), (7 * DAY * 1000, "7 d"),
        (95_400_000, "1 d 2 h 30 min"), (61_001, "1 min 1 s 1 ms"),
    ],
)  # fmt: skip
def test_durations_are_said_without_loss(duration: int, text: str) -> None:
    assert exact_duration(duration) == text


UNITS = {"TB": 10**12, "GB": GB, "MB": 10**6, "kB": 1000, "B": 1}
UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
TIMES = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1}


@given(st.integers(0, 1 << 63))
def test_a_size_can_be_read_back(size: int) -> None:
    number, unit = exact_size(size).replace(",", "").split()
    whole, _, tenth = number.partition(".")
    assert int(whole) * UNITS[unit] + int(tenth or 0) * UNITS[unit] // 10 == size


@given(st.integers(0, 1 << 63))
def test_a_duration_can_be_read_back(duration: int) -> None:
    words = exact_duration(duration).replace(",", "").split()
    total = 0
    for number, unit in zip(words[::2], words[1::2], strict=True):
        whole, _, tenth = number.partition(".")
        total += int(whole) * TIMES[unit] + int(tenth or 0) * TIMES[unit] // 10
    assert total == duration


@pytest.mark.parametrize(
    ("lag", "text"),
    [(0, "a second"), (1000, "a second"), (1001, "2 s"), (60_000, "a minute"), (60_001, "2 min"), (59_001, "a minute"),
     (3_600_000, "an hour"), (3_600_001, "2 h"), (100 * 3_600_000, "100 h")],
)  # fmt: skip
def test_a_lag_is_rounded_up(lag: int, text: str) -> None:
    assert soon(lag) == text


MAYBE = st.none() | st.integers(0, 10**13)


@st.composite
def policies(draw: st.DrawFn) -> EffectivePolicy:
    return EffectivePolicy(
        min_bytes=draw(MAYBE), min_age_ms=draw(MAYBE), combine=draw(st.sampled_from(Combine)), max_bytes=draw(MAYBE),
        max_age_ms=draw(MAYBE), measure=draw(st.sampled_from(Measure)), unsubscribed=draw(st.sampled_from(Unsubscribed)),
        ttl_ms=draw(MAYBE), backlog_bytes=draw(MAYBE), backlog_age_ms=draw(MAYBE), backlog_events=draw(MAYBE),
        on_exceed=draw(st.sampled_from(OnExceed)), on_exceed_bytes=draw(st.none() | st.sampled_from(OnExceed)),
        on_exceed_age=draw(st.none() | st.sampled_from(OnExceed)), evict_to=draw(st.floats(0.01, 1)), subscriber_idle_ms=draw(MAYBE),
        stream_idle_ms=draw(MAYBE), stream_idle_when=draw(st.sampled_from(IdleWhen)),
        grace_ms=draw(st.integers(0, 10**13)), truncates=draw(st.booleans()),
    )  # fmt: skip


@given(policies(), st.integers(0, 10**8))
def test_every_policy_has_one_readable_sentence(policy: EffectivePolicy, cycle_ms: int) -> None:
    text = sentence(policy, cycle_ms=cycle_ms)
    assert re.fullmatch(r"[a-z][^\n]*[^ ;,.]", text)
    assert "  " not in text
    assert "; ;" not in text
    assert "None" not in text


@given(policies())
def test_it_says_that_data_goes_only_where_some_rule_removes_data(policy: EffectivePolicy) -> None:
    text = sentence(policy)
    floor = floor_of(policy)
    assert text.startswith("kept forever") == (floor.unlimited and policy.stream_idle_ms is None)
    if floor.unlimited:
        assert "is deleted within" not in text
        assert "unread data is deleted" not in text
        assert "at most" not in text
    if policy.ttl_ms is not None and "unread data is deleted after" in text:
        # Then the floor lets go of it by its age alone, however little lies behind it.
        assert floor.lets_go_at(age_ms=policy.ttl_ms)
    actions = set(policy.quota_actions)
    assert ("writers wait" in text) == (OnExceed.HOLD in actions)
    assert ("writers are refused" in text) == (OnExceed.REJECT in actions)
    assert ("are moved past unread data" in text) == (OnExceed.EVICT in actions)
    assert ("is dropped" in text) == (policy.subscriber_idle_ms is not None)
    assert ("the stream is deleted" in text) == (policy.stream_idle_ms is not None)
    assert ("undone" in text) == (policy.grace_ms > 0)
