"""Erasures that run at the same time: they rewrite a chunk in one order, and get their receipts in another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.erasure_proof import chunks_of, is_later, may_be_later, rewritten

HOUR_MS = 3_600_000


def entry(before: str, after: str, *, start: int = 0, end: int = 100) -> dict[str, object]:
    return {"segment": 1, "start": start, "end": end, "sha256_before": before, "sha256_after": after}


@given(steps=st.integers(1, 6), at=st.data())
def test_a_chunk_is_followed_in_whatever_order_receipts_came(steps: int, at: st.DataObject) -> None:
    chain = [entry(f"state-{number}", f"state-{number + 1}") for number in range(steps)]
    own = at.draw(st.integers(0, steps - 1))
    others = at.draw(st.permutations([item for number, item in enumerate(chain) if number != own]))
    assert rewritten(chain[own], others) == f"state-{steps}"


def test_a_step_that_is_missing_or_has_other_bounds_explains_nothing() -> None:
    own = entry("a", "b")
    assert rewritten(own, [entry("c", "d")]) == "b"
    assert rewritten(own, [entry("b", "c", end=120)]) == "b"
    assert rewritten(own, [entry("b", "b"), entry("b", "c")]) == "c", "an erasure that found everything blank"


def test_only_erasures_that_were_not_over_yet_may_be_later() -> None:
    own = {"sequence": 7, "asked_ms": 10 * HOUR_MS, "finished_ms": 11 * HOUR_MS}
    after = {"sequence": 8, "asked_ms": 0, "finished_ms": 0}
    beside = {"sequence": 6, "asked_ms": 0, "finished_ms": 10 * HOUR_MS + 1}
    just_before = {"sequence": 6, "asked_ms": 0, "finished_ms": 10 * HOUR_MS - 1}
    long_before = {"sequence": 6, "asked_ms": 0, "finished_ms": 8 * HOUR_MS}
    assert [is_later(own, one) for one in (after, beside, just_before, long_before)] == [True, True, False, False]
    assert [may_be_later(own, one) for one in (after, beside, just_before, long_before)] == [True, True, True, False]


def test_entries_name_the_erasure_that_made_them() -> None:
    (found,) = chunks_of("e-1", [entry("a", "b")], later=True)
    assert (found["erasure"], found["is_later"], found["sha256_after"]) == ("e-1", True, "b")
