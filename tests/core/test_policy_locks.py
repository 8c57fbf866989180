"""Locks: what one promises is kept by every document that is accepted until its date."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.control.policy_document import decode_document, encode_document, text_of_ms, time_ms, time_text
from penstock.core.policies.levels import pravega_view, with_pravega
from penstock.core.policies.locks import (
    Documents,
    Promise,
    check_change,
    check_new,
    keeps,
    promised,
    promises,
    with_lock_of,
)
from penstock.model.errors import InvalidArgumentError, RetentionHoldError, RetentionLockError
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import EMPTY, INHERIT, Combine, EffectivePolicy, Level, Measure, PolicyDocument, Retain

NOW_MS = 1_900_000_000_000
YEAR_MS = 365 * 86_400_000
LATER, LATEST = text_of_ms(NOW_MS + YEAR_MS), text_of_ms(NOW_MS + 2 * YEAR_MS)
LIMITS = st.sampled_from([INHERIT, None, 0, 1, 2, 3])


def locked(until: str = LATER, **retain: Any) -> PolicyDocument:
    return PolicyDocument(retain=Retain(lock_until=until, **retain))


@st.composite
def documents(draw: st.DrawFn) -> PolicyDocument:
    retain = Retain(
        min_bytes=draw(LIMITS),
        min_age_s=draw(LIMITS),
        combine=draw(st.sampled_from([INHERIT, *Combine])),
        max_bytes=draw(st.sampled_from([INHERIT, INHERIT, None, 3])),
        measure=draw(st.sampled_from([INHERIT, INHERIT, INHERIT, *Measure])),
        lock_until=draw(st.sampled_from([INHERIT, INHERIT, text_of_ms(NOW_MS - 1), LATER, LATEST])),
    )
    return PolicyDocument(retain=retain)


def kept(policy: EffectivePolicy, size_bytes: int, age_ms: int) -> bool:
    """Whether the policy keeps data of this age with so many bytes behind it, from its words alone."""
    if not policy.truncates:
        return True
    named = [
        limit is None or have < limit
        for path, limit, have in (
            ("retain.min_bytes", policy.min_bytes, size_bytes),
            ("retain.min_age_s", policy.min_age_ms, age_ms),
        )
        if policy.given(path)
    ]
    if not named:
        return False
    return all(named) if policy.combine is Combine.ANY else any(named)


POINTS = [(size, age) for size in range(5) for age in range(0, 5000, 500)]


@given(documents(), documents())
@settings(max_examples=400)
def test_a_policy_keeps_a_promise_exactly_if_it_keeps_each_byte_of_it(
    first: PolicyDocument, other: PolicyDocument
) -> None:
    before, after = Documents(stream=first).effective, Documents(stream=other).effective
    promise = Promise(level=Level.STREAM, until=LATER, floor=promised(before), measure=before.measure)
    missing = [point for point in POINTS if kept(before, *point) and not kept(after, *point)]
    if keeps(after, promise):
        assert not missing
        assert (
            before.measure is after.measure
            or promised(after).unlimited
            or promise.floor.is_none
            or (promised(after).size_bytes is None and promise.floor.size_bytes is None)
        )
    else:
        assert missing or before.measure is not after.measure


LEVELS = st.sampled_from(["stream", "scope", "server"])
STEPS = st.lists(
    st.tuples(LEVELS, documents())
    | st.tuples(st.just("pravega"), st.sampled_from([None, (0, None), (1, 2), (3, None)]))
    | st.tuples(st.just("time"), st.sampled_from([1, YEAR_MS // 2, YEAR_MS])),
    max_size=12,
)


@given(STEPS)
@settings(max_examples=300)
def test_no_sequence_of_accepted_changes_keeps_less_than_a_lock_promised(steps: list[tuple[str, Any]]) -> None:
    """Each promise ever made for the stream is kept until its date, whatever is set afterwards, at any level."""
    now_ms, at = NOW_MS, Documents()
    made: list[tuple[int, EffectivePolicy]] = []
    for what, value in steps:
        if what == "time":
            now_ms += value
            continue
        if what == "pravega":
            policy = (
                None if value is None else RetentionPolicy(type=RetentionType.SIZE, minimum=value[0], maximum=value[1])
            )
            after = replace(at, stream=with_pravega(at.stream, policy))
        else:
            after = replace(at, **{what: value})
        try:
            check_change(at, after, now_ms=now_ms)
        except RetentionLockError:
            continue
        at = after
        for level in ("stream", "scope", "server"):
            until = getattr(at, level).retain.lock_until
            if isinstance(until, str):
                below = {"scope": {"stream": EMPTY}, "server": {"stream": EMPTY, "scope": EMPTY}}.get(level, {})
                made.append((time_ms(until), replace(at, **below).effective))
        for until_ms, policy in made:
            if now_ms < until_ms:
                assert all(kept(at.effective, *point) for point in POINTS if kept(policy, *point))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (locked(min_age_s=10), PolicyDocument(retain=Retain(min_age_s=10))),  # the lock is removed
        (locked(LATEST, min_age_s=10), locked(LATER, min_age_s=10)),  # it ends earlier
        (locked(min_age_s=10), locked(min_age_s=9)),  # a lower minimum
        (locked(min_age_s=10), locked(max_age_s=20)),  # no minimum
        (locked(), locked(max_age_s=20)),  # a limit where there was none
        (locked(min_age_s=10, min_bytes=5, combine=Combine.ALL), locked(min_age_s=10, min_bytes=5)),  # either suffices
        (locked(min_bytes=5), locked(min_bytes=5, measure=Measure.SEGMENT)),
    ],
)
@pytest.mark.parametrize("level", ["stream", "scope", "server"])
def test_less_is_refused_with_the_lock_and_its_date(before: PolicyDocument, after: PolicyDocument, level: str) -> None:
    with pytest.raises(RetentionLockError, match="retention lock forbids") as caught:
        check_change(Documents(**{level: before}), Documents(**{level: after}), now_ms=NOW_MS)
    assert caught.value.fields["lock_until"] == before.retain.lock_until
    assert caught.value.fields["level"] == level
    assert isinstance(caught.value, RetentionHoldError)  # every door knows what to answer
    check_change(Documents(**{level: before}), Documents(**{level: after}), now_ms=NOW_MS + 3 * YEAR_MS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (locked(min_age_s=10), locked(LATEST, min_age_s=10)),
        (locked(min_age_s=10), locked(min_age_s=11, max_age_s=12)),
        (locked(min_age_s=10), locked(min_age_s=None)),
        (locked(min_age_s=10), locked()),  # without any limit everything is kept
        (locked(min_age_s=10, min_bytes=5), locked(min_age_s=10, min_bytes=5, combine=Combine.ALL)),
        (locked(min_age_s=10, max_age_s=20), locked(min_age_s=10, max_age_s=10)),  # the maximum is no promise
    ],
)
def test_more_is_allowed(before: PolicyDocument, after: PolicyDocument) -> None:
    check_change(Documents(stream=before), Documents(stream=after), now_ms=NOW_MS)


def test_a_lower_level_cannot_undercut_a_lock_above_nor_a_lock_be_set_above_one_that_does() -> None:
    short = PolicyDocument(retain=Retain(min_age_s=1))
    for before in (Documents(server=locked(min_age_s=10)), Documents(stream=short)):
        with pytest.raises(RetentionLockError) as caught:
            check_change(before, Documents(stream=short, server=locked(min_age_s=10)), now_ms=NOW_MS)
        assert caught.value.fields["level"] == "server"


def test_a_minimum_of_a_level_above_is_promised_by_a_lock_below() -> None:
    before = Documents(stream=locked(), scope=PolicyDocument(retain=Retain(min_age_s=10)))
    with pytest.raises(RetentionLockError):
        check_change(before, replace(before, scope=PolicyDocument(retain=Retain(min_age_s=9))), now_ms=NOW_MS)


def test_a_lock_is_over_at_its_date() -> None:
    at = Documents(stream=locked(min_age_s=10))
    assert [item.until for item in promises(at, now_ms=NOW_MS + YEAR_MS - 1)] == [LATER]
    assert promises(at, now_ms=NOW_MS + YEAR_MS) == []


@pytest.mark.parametrize(
    "document", [locked(text_of_ms(NOW_MS), min_age_s=1), locked(max_age_s=5), locked(min_bytes=0)], ids=repr
)
def test_a_new_lock_ends_in_the_future_and_protects_something(document: PolicyDocument) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_new(EMPTY, Documents(scope=document), Level.SCOPE, now_ms=NOW_MS)
    assert caught.value.fields["field"] == "retain.lock_until"
    check_new(document, Documents(scope=document), Level.SCOPE, now_ms=NOW_MS)  # the same again is no new lock


def test_pravegas_clients_keep_the_lock_that_they_do_not_see() -> None:
    before = locked(min_bytes=5, max_bytes=9)
    assert pravega_view(before) == RetentionPolicy(type=RetentionType.SIZE, minimum=5, maximum=9)
    for policy in (None, RetentionPolicy(type=RetentionType.TIME, minimum=1)):
        assert with_pravega(before, policy).retain.lock_until == LATER
    assert with_lock_of(EMPTY, before).retain == Retain(lock_until=LATER)


@pytest.mark.parametrize(
    ("given_text", "stored"),
    [
        ("2031-01-01", "2031-01-01T00:00:00Z"),
        ("2031-01-01T02:00:00+02:00", "2031-01-01T00:00:00Z"),
        ("2031-01-01T00:00:00.0001Z", "2031-01-01T00:00:00.001Z"),
        ("2031-01-01T00:00:00", None),
        ("20310101", None),
        ("soon", None),
        ("9999-12-31T23:59:59.9999Z", None),
        (5, None),
    ],
)
def test_a_time_has_its_zone_and_is_stored_in_utc(given_text: object, stored: str | None) -> None:
    assert time_text(given_text) == stored
    body = {"retain": {"lock_until": given_text}}
    if stored is None:
        with pytest.raises(InvalidArgumentError):
            decode_document(body)
    else:
        assert encode_document(decode_document(body)) == {"retain": {"lock_until": stored}}


@given(st.integers(-(10**12), 10**14))
def test_a_time_comes_back_to_the_millisecond(at_ms: int) -> None:
    assert time_ms(text_of_ms(at_ms)) == at_ms
