"""Pure decisions about transactions."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.control.streams import BatchPin, BatchRecord, CompletedRecord, TransactionRecord, TransactionState
from penstock.core.streams.history import EpochRecord
from penstock.core.streams.transactions import (
    BatchVerdict,
    PingVerdict,
    TransactionFacts,
    Verb,
    commit_runs,
    decide_batch,
    decide_ping,
    has_expired,
    make_transaction_id,
    merge_targets,
    must_decide,
    open_record,
    renewed_until,
    transaction_epoch,
)
from penstock.model.errors import InvalidArgumentError, TransactionNotFoundError, TransactionStateError
from penstock.model.segments import KeyRange, SegmentRange, even_ranges, make_segment_id
from penstock.ports.control.transactions import PingStatus

A, B = UUID(int=1), UUID(int=2)


def record(state: TransactionState = TransactionState.OPEN, pin: BatchPin | None = None) -> TransactionRecord:
    return TransactionRecord(state=state, epoch=0, expires_ms=100, deadline_ms=1000, pin=pin)


@given(epoch=st.integers(0, (1 << 31) - 1), counter=st.integers(0, (1 << 95) - 1))
def test_ids_have_two_positive_halves_and_name_their_epoch(epoch: int, counter: int) -> None:
    txn = make_transaction_id(epoch, counter)
    assert transaction_epoch(txn) == epoch
    assert txn.int >> 64 < 1 << 63
    assert txn.int & (1 << 64) - 1 < 1 << 63


@given(counters=st.sets(st.integers(0, 1 << 70), min_size=2), epochs=st.sets(st.integers(0, 5), min_size=1))
def test_ids_never_repeat(counters: set[int], epochs: set[int]) -> None:
    ids = {make_transaction_id(epoch, counter) for epoch in epochs for counter in counters}
    assert len(ids) == len(counters) * len(epochs)


def test_ids_out_of_range_are_refused() -> None:
    for epoch, counter in ((-1, 0), (1 << 31, 0), (0, 1 << 95)):
        with pytest.raises(InvalidArgumentError):
            make_transaction_id(epoch, counter)


@given(
    now_ms=st.integers(0, 1 << 42),
    lease_ms=st.integers(1, 600_000),
    pings=st.lists(st.tuples(st.integers(0, 50_000_000), st.integers(1, 600_000)), max_size=20),
)
def test_no_sequence_of_renewals_outlives_the_lifetime_or_shortens_a_lease(now_ms, lease_ms, pings) -> None:
    current = open_record(
        0, incarnation=0, now_ms=now_ms, lease_ms=lease_ms, lifetime_leases=1000, lifetime_max_ms=86_400_000
    )
    end = now_ms + min(1000 * lease_ms, 86_400_000)
    for pause_ms, wanted_ms in pings:
        now_ms += pause_ms
        until = renewed_until(current, now_ms=now_ms, lease_ms=wanted_ms)
        assert current.expires_ms <= until <= end
        current = TransactionRecord(
            state=current.state, epoch=0, expires_ms=until, deadline_ms=current.deadline_ms, pin=None
        )
    assert current.deadline_ms == end


@pytest.mark.parametrize("verb", Verb)
@pytest.mark.parametrize("state", TransactionState)
def test_a_verb_decides_while_open_repeats_its_own_and_refuses_the_opposite(verb, state) -> None:
    facts = TransactionFacts(txn=A, record=record(state))
    own = {Verb.COMMIT: ("committing", "committed"), Verb.ABORT: ("aborting", "aborted")}[verb]
    if state is TransactionState.OPEN:
        assert must_decide(facts, verb)
    elif state.value in own:
        assert not must_decide(facts, verb)
    else:
        with pytest.raises(TransactionStateError):
            must_decide(facts, verb)


def test_the_outcome_outweighs_the_record() -> None:
    done = CompletedRecord(state=TransactionState.COMMITTED, completed_ms=1)
    facts = TransactionFacts(txn=A, record=record(TransactionState.COMMITTING), completed=done)
    assert facts.state is TransactionState.COMMITTED
    with pytest.raises(TransactionNotFoundError):
        must_decide(TransactionFacts(txn=A), Verb.COMMIT)


def test_a_pin_decides_nothing_until_the_batch_names_the_transaction() -> None:
    pinned = record(pin=BatchPin(writer="w", batch=3))
    decided = BatchRecord(batch=3, transactions=(A,))
    assert TransactionFacts(txn=A, record=pinned).state is TransactionState.OPEN
    assert TransactionFacts(txn=A, record=pinned, batch=decided).state is TransactionState.COMMITTING
    assert TransactionFacts(txn=B, record=pinned, batch=decided).state is TransactionState.OPEN
    later = BatchRecord(batch=4, transactions=(A,))
    assert TransactionFacts(txn=A, record=pinned, batch=later).state is TransactionState.OPEN
    assert not has_expired(TransactionFacts(txn=A, record=pinned, batch=decided), now_ms=10_000)


def test_pings_answer_by_state_lease_and_lifetime() -> None:
    def ping(facts: TransactionFacts, now_ms: int = 50, lease_ms: int = 10) -> PingVerdict:
        return decide_ping(facts, now_ms=now_ms, lease_ms=lease_ms, lease_max_ms=600)

    live = TransactionFacts(txn=A, record=record())
    assert ping(live) is PingVerdict.OK
    # The lease has ended, but nobody has decided anything: it lives.
    assert ping(live, now_ms=500) is PingVerdict.OK
    assert ping(live, lease_ms=601) is PingVerdict.LEASE_TOO_LARGE
    assert ping(live, now_ms=1000) is PingVerdict.MAX_LIFETIME
    assert ping(TransactionFacts(txn=A)) is PingVerdict.UNKNOWN
    assert ping(TransactionFacts(txn=A, record=record(TransactionState.ABORTING))) is PingVerdict.ABORTED
    assert ping(TransactionFacts(txn=A, record=record(TransactionState.COMMITTING))) is PingVerdict.COMMITTED
    assert {item.name for item in PingVerdict} == {item.name for item in PingStatus}


def test_batches_are_decided_by_number_and_set() -> None:
    open_one = TransactionFacts(txn=A, record=record())
    known = BatchRecord(batch=5, transactions=(A, B))
    both = [TransactionFacts(txn=B), open_one]
    assert decide_batch(None, 0, [open_one]) is BatchVerdict.COMMIT
    assert decide_batch(known, 6, [open_one]) is BatchVerdict.COMMIT
    assert decide_batch(known, 5, both) is BatchVerdict.REPEATED
    assert decide_batch(known, 5, [open_one]) is BatchVerdict.SUPERSEDED
    assert decide_batch(known, 4, both) is BatchVerdict.SUPERSEDED
    with pytest.raises(TransactionNotFoundError):
        decide_batch(None, 0, [open_one, TransactionFacts(txn=B)])
    with pytest.raises(TransactionNotFoundError):
        decide_batch(None, 0, [TransactionFacts(txn=B, record=record(TransactionState.ABORTING))])
    with pytest.raises(TransactionStateError):
        decide_batch(None, 0, [TransactionFacts(txn=B, record=record(TransactionState.COMMITTING))])


def epoch(number: int, *segments: tuple[int, int, KeyRange]) -> EpochRecord:
    items = tuple(SegmentRange(segment=make_segment_id(e, n), keys=keys) for e, n, keys in segments)
    return EpochRecord(epoch=number, segments=items)


def test_merges_go_into_duplicates_only() -> None:
    low, high = even_ranges(2)
    begun = epoch(0, (0, 0, low), (0, 1, high))
    assert merge_targets(begun, begun) == {0: 0, 1: 1}
    copy = epoch(4, (4, 0, low), (4, 1, high))
    assert merge_targets(begun, copy) == {0: make_segment_id(4, 0), 1: make_segment_id(4, 1)}
    # The same ranges under other numbers are other segments, in other containers.
    assert merge_targets(begun, epoch(1, (1, 2, low), (1, 3, high))) is None
    assert merge_targets(begun, epoch(1, (0, 0, low), (1, 3, high))) is None
    (whole,) = even_ranges(1)
    assert merge_targets(epoch(0, (0, 0, whole)), epoch(1, (0, 0, low), (1, 1, high))) is None


@given(epochs=st.lists(st.integers(0, 3), max_size=30), longest=st.integers(1, 5))
def test_runs_keep_the_order_and_mix_no_epochs(epochs: list[int], longest: int) -> None:
    order = [(UUID(int=place), number) for place, number in enumerate(epochs)]
    runs = commit_runs(order, longest=longest)
    assert [(txn, number) for number, txns in runs for txn in txns] == order
    assert all(0 < len(txns) <= longest for _, txns in runs)
