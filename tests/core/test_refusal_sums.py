"""However many calls are refused, few entries record them, and none is lost from the counts."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.access.refusals import NAMED_MAX, TEXT_MAX, Reason, Refusal, RefusalSums

refusals = st.builds(
    Refusal,
    reason=st.sampled_from(Reason),
    identity=st.text(max_size=300),
    peer=st.sampled_from([f"10.0.0.{n}" for n in range(60)]),
    call=st.text(max_size=300),
)


@given(st.lists(st.tuples(refusals, st.integers(0, 10**6)), max_size=200))
def test_a_flood_makes_few_entries_and_every_refusal_counts(given_refusals):
    sums = RefusalSums()
    for refusal, at_ms in given_refusals:
        sums.add(refusal, at_ms)
    taken = sums.take()
    assert len(taken) <= 2 * NAMED_MAX + 1
    assert sum(one.count for one in taken) == len(given_refusals)
    assert sums.take() == []
    for one in taken:
        fields = one.as_fields()
        assert all(len(text) <= TEXT_MAX for text in fields.values() if isinstance(text, str))
        assert ("others" in fields) != ("reason" in fields)
        if not one.others:
            mine = [
                at_ms
                for refusal, at_ms in given_refusals
                if (refusal.reason, refusal.identity[:TEXT_MAX], refusal.peer)
                == (one.first.reason, one.first.identity[:TEXT_MAX], one.first.peer)
            ]
            assert one.count == len(mine)
            assert (one.first_ms, one.last_ms) == (mine[0], max(mine))


def test_callers_are_kept_apart_until_there_are_too_many():
    sums = RefusalSums()
    for number in range(NAMED_MAX + 5):
        for _ in range(3):
            sums.add(Refusal(reason=Reason.CREDENTIALS, peer=f"10.0.0.{number}"), 1000 + number)
    *named, others = sums.take()
    assert [one.as_fields() for one in named[:2]] == [
        {"reason": "credentials", "peer": "10.0.0.0", "count": 3, "from_ms": 1000, "to_ms": 1000},
        {"reason": "credentials", "peer": "10.0.0.1", "count": 3, "from_ms": 1001, "to_ms": 1001},
    ]
    assert others.as_fields() == {"others": True, "count": 15, "from_ms": 1000 + NAMED_MAX, "to_ms": 1004 + NAMED_MAX}


def test_nobody_hides_an_identity_behind_refusals_from_many_addresses():
    sums = RefusalSums()
    for number in range(NAMED_MAX + 5):
        sums.add(Refusal(reason=Reason.CREDENTIALS, peer=f"fe80::{number}"), 1000)
    sums.add(Refusal(reason=Reason.RIGHT, identity="ann", peer="fe80::1", needs="/=audit"), 1001)
    assert [one.first.needs for one in sums.take() if one.first.identity == "ann" and not one.others] == ["/=audit"]
