"""The decision where a ledger ends, against all that three bookies can answer and all that can be behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.bookie import Code
from penstock.core.ledgers.placement import choose_bookies
from penstock.core.ledgers.recovery import Quorum, Reply, Step, confirmed_after_fence, judge_code, judge_entry
from penstock.model.errors import NotEnoughBookiesError
from penstock.model.ledgers import Bookie
from tests.cluster.planted_kit import finds

ANSWERS = {
    "entry": (Code.OK, True),
    "no entry": (Code.NO_ENTRY, False),
    "error": (Code.IO_ERROR, False),
    "silence": (None, False),
    "wrong digest": (Code.OK, False),
    "lost data": (Code.UNKNOWN_STATE, False),
}
COULD_HOLD = {"entry": {True}, "no entry": {False}}
"""Whether the bookie can have the entry, by its answer; every other answer leaves both possible."""
QUORUM = Quorum(copies=3, acks=2)


@cache
def may_be_acknowledged(answers: tuple[str, ...]) -> bool:
    """Brute force: is there a state of the bookies that fits the answers in which a quorum has the entry?"""
    states = product(*(COULD_HOLD.get(answer, {False, True}) for answer in answers))
    return any(sum(state) >= QUORUM.acks for state in states)


@cache
def decide(answers: tuple[str, ...]) -> Step:
    return judge_entry([judge_code(code, undamaged=good) for code, good in map(ANSWERS.__getitem__, answers)], QUORUM)


def walk(entries: Sequence[tuple[str, ...]]) -> int | None:
    """Entries of the closed ledger; None: it cannot be closed now. No bookie has an entry behind the last one."""
    for number, answers in enumerate(entries):
        step = decide(answers)
        if step is Step.WAIT:
            return None
        if step is Step.END:
            return number
    return len(entries)


@pytest.mark.parametrize("length", [1, 2])
def test_nothing_that_may_be_acknowledged_is_cut_off(length: int) -> None:
    rows = list(product(ANSWERS, repeat=3))
    for entries in product(rows, repeat=length):
        end = walk(entries)
        possible = 0
        while possible < length and may_be_acknowledged(entries[possible]):
            possible += 1  # entries are acknowledged in order
        if end is None:
            assert any(set(answers) - {"entry", "no entry"} for answers in entries), "certain answers decide"
        else:
            assert end >= possible, entries
            assert all("entry" in answers for answers in entries[:end]), "what is kept can be added again"


def test_three_entries_by_what_the_answers_prove() -> None:
    """Answers that prove the same are decided alike, so one name for each kind is enough for longer ledgers."""
    kinds = {name: judge_code(*answer[:1], undamaged=answer[1]) for name, answer in ANSWERS.items()}
    assert {name for name, kind in kinds.items() if kind is Reply.UNKNOWN} == set(ANSWERS) - {"entry", "no entry"}
    rows = list(product(("entry", "no entry", "silence"), repeat=3))
    for entries in product(rows, repeat=3):
        end = walk(entries)
        possible = 0
        while possible < 3 and may_be_acknowledged(entries[possible]):
            possible += 1
        assert end is None or end >= possible


@pytest.mark.parametrize("code", [one for one in Code if one not in (Code.OK, Code.NO_LEDGER, Code.NO_ENTRY)])
def test_an_error_proves_nothing(code: Code) -> None:
    assert judge_code(code) is Reply.UNKNOWN
    assert judge_code(code, undamaged=True) is Reply.UNKNOWN


def test_an_unknown_code_proves_nothing() -> None:
    assert judge_code(999, undamaged=True) is Reply.UNKNOWN


@given(
    copies=st.integers(1, 7),
    data=st.data(),
)
def test_a_fence_leaves_no_quorum_of_bookies_to_the_writer(copies: int, data: st.DataObject) -> None:
    quorum = Quorum(copies=copies, acks=data.draw(st.integers(1, copies)))
    entries = data.draw(st.lists(st.integers(-1, 9), max_size=copies))
    nothing = data.draw(st.integers(0, copies - len(entries)))
    with_header = confirmed_after_fence(entries, nothing, quorum, begins_with_header=True)
    without = confirmed_after_fence(entries, nothing, quorum, begins_with_header=False)
    if with_header is not None:
        # Bookies that answered with an entry have the fence on disk.
        assert copies - len(entries) < quorum.acks
        assert with_header == without == max(entries)
    if without is None:
        assert copies - len(entries) - nothing >= quorum.acks


def bookies(*places: tuple[str, str]) -> list[Bookie]:
    return [Bookie(name=f"b{number}", host=host, zone=zone) for number, (host, zone) in enumerate(places)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y", "z"])), min_size=1, max_size=7),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from(["b0", "b1", "b2"]), st.integers(0, 3)),
)
def test_copies_lie_on_different_bookies_and_hosts_where_possible(
    places: list[tuple[str, str]], copies: int, used: dict[str, int]
) -> None:
    known = bookies(*((host, "") for host, _ in places))
    if len(known) < copies:
        with pytest.raises(NotEnoughBookiesError, match="start another bookie"):
            choose_bookies(known, copies=copies, used=used)
        return
    chosen = choose_bookies(known, copies=copies, used=used)
    assert len({one.name for one in chosen}) == copies
    assert len({one.host for one in chosen}) == min(copies, len({one.host for one in known}))
    zoned = bookies(*((f"h{number}", zone) for number, (_, zone) in enumerate(places)))
    zones = {one.zone for one in zoned if one.zone}
    assert len({one.zone for one in choose_bookies(zoned, copies=copies, used=used) if one.zone}) <= len(zones)


def test_different_zones_come_before_different_hosts_and_little_use() -> None:
    known = bookies(("a", "x"), ("b", "x"), ("c", "y"))
    assert [one.name for one in choose_bookies(known, copies=2, used={"b2": 9})] == ["b0", "b2"]
    assert [one.name for one in choose_bookies(known, copies=1, used={"b0": 1})] == ["b1"]


def test_bookies_that_refused_are_left_out() -> None:
    known = bookies(("a", ""), ("b", ""), ("c", ""))
    assert [one.name for one in choose_bookies(known, copies=2, refused={"b0"})] == ["b1", "b2"]
    with pytest.raises(NotEnoughBookiesError, match="2 can be written to"):
        choose_bookies(known, copies=3, refused={"b0"})


@pytest.fixture
def decided_anew() -> Iterator[None]:
    """The brute force remembers decisions."""
    decide.cache_clear()
    yield
    decide.cache_clear()


def test_a_planted_belief_in_a_bookie_that_lost_data_is_found(
    decided_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(code: int | None, *, undamaged: bool = False) -> Reply:
        return Reply.LACKS if code == Code.UNKNOWN_STATE else judge(code, undamaged=undamaged)

    judge = judge_code
    monkeypatch.setitem(globals(), "judge_code", judged)
    finds(lambda: test_nothing_that_may_be_acknowledged_is_cut_off(1), "'lost data'")


def test_a_planted_belief_in_one_bookie_is_found(decided_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quorum, "certain", property(lambda quorum: 1))
    finds(lambda: test_nothing_that_may_be_acknowledged_is_cut_off(1), "assert 0 >= 1")
