"""The decisions about a container's record: equal to the exhaustive model in each step, and safe where it is blind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ownership_model import Listed, Model, Record, Rules, State, begin

from penstock.codec.store.container_record import CataloguePosition, ContainerRecord, ListedLedger
from penstock.core.cluster import ownership
from penstock.core.cluster.ownership import Standing
from penstock.model.errors import InternalError


def to_core(record: Record) -> ContainerRecord:
    """One value of the model is one frame, and its objects are batches."""
    listed = tuple(
        ListedLedger(ledger=one.ledger, first=one.base + 1, last=None if one.last < 0 else one.last)
        for one in record.listed
    )
    at = CataloguePosition(batch=record.published + 1, begins=((0, 0),)) if record.published >= 0 else None
    return ContainerRecord(
        uid="u", owner=str(record.epoch), epoch=record.epoch, ledgers=listed, catalogues=((0, at),) if at else ()
    )


def to_model(record: ContainerRecord, version: int) -> Record:
    listed = tuple(Listed(one.ledger, -1 if one.last is None else one.last, one.first - 1) for one in record.ledgers)
    return Record(version, record.epoch, listed, -1 if not record.catalogues else record.catalogues[0][1].batch - 1)


class Decided(Model):
    """The model, with each decision about the record made by ``core.cluster.ownership``."""

    def frozen(self, record: Record) -> Record:
        return to_model(ownership.frozen(to_core(record), owner="new"), record.version)

    def unfenced(self, record: Record) -> list[int]:
        return ownership.unfenced(to_core(record))

    def ended(self, record: Record, ledger: int, last: int) -> Record:
        return to_model(ownership.ended(to_core(record), ledger, last), record.version)

    def extended(self, record: Record, ledger: int) -> Record:
        newest = record.listed[-1]
        listed = ListedLedger(ledger=ledger, first=newest.base + newest.last + 1)
        return to_model(ownership.extended(to_core(record), listed), record.version)

    def published(self, record: Record, place: int, values: int) -> Record:
        at = CataloguePosition(batch=place + 1)
        return to_model(ownership.published(to_core(record), truncated=values, catalogue=at), record.version)

    def kept(self, sent: int, confirmed: int, last: int) -> int:
        waiting = [(entry, entry) for entry in range(confirmed + 1, sent + 1)]
        return ownership.acknowledged_upto(waiting, last) or confirmed

    def is_owner(self, mine: Record, found: Record) -> bool:
        return ownership.is_owner(to_core(found), to_core(mine).owner)

    def is_deposed(self, wanted: Record, found: Record) -> bool:
        return ownership.judge_change(to_core(found), to_core(wanted)) is Standing.DEPOSED


def difference(first: State, *, most: int = 10_000_000) -> tuple[State, list[State], list[State]] | None:
    """A state that can be reached, and what the two find after it, where they differ. None: they agree in every step of
    every history, or in the first ``most`` states of a search that goes deep first."""
    model, decided = Model(Rules()), Decided(Rules())
    seen, waiting = {first}, [first]
    for _ in range(most):
        if not waiting:
            break
        state = waiting.pop()
        after = list(model.steps(state))
        also = list(decided.steps(state))
        if after != also:
            return state, after, also
        new = [one for one in dict.fromkeys(after) if one not in seen]  # in order: a set's differs in each run
        waiting += new
        seen.update(new)
    return None


ROLL = {"rolls": 2, "publications": 1, "rival": False}
RECOVERY = {"robot": True, "rival": False, "publications": 1}
TAKEOVER = {"again": True, "publications": 1}
WORLDS: dict[str, dict[str, Any]] = {"two rolls": ROLL, "a recovery by BookKeeper": RECOVERY, "takeovers": TAKEOVER}
LARGE_WORLDS: dict[str, dict[str, Any]] = {
    "two rolls": ROLL,
    "a takeover": {},
    "a recovery by BookKeeper itself": {"robot": True, "rival": False},
    "a takeover of an owner that publishes": {"publications": 2},
    "a takeover during a roll": {"rolls": 1},
    "a takeover during a recovery by BookKeeper itself": {"robot": True},
    "a takeover and one back": {"again": True},
}
SAMPLE = 2_000
"""States of a world in the default run. Each planted decision below is found in them."""


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_decisions_are_those_of_the_model(world: dict[str, Any]) -> None:
    assert difference(begin(**world), most=SAMPLE) is None


@pytest.mark.slow
@pytest.mark.parametrize("world", LARGE_WORLDS.values(), ids=LARGE_WORLDS)
def test_decisions_are_those_of_the_model_in_every_step_of_large_worlds(world: dict[str, Any]) -> None:
    assert difference(begin(**world)) is None


def forgetful(record: ContainerRecord, **_: object) -> ContainerRecord:
    return record


PLANTED: dict[str, tuple[str, Callable[..., object], dict[str, Any]]] = {
    "an epoch that stays": ("frozen", forgetful, TAKEOVER),
    "extending before fencing": ("unfenced", lambda record: [], TAKEOVER),
    "an end that is not noted": ("ended", lambda record, ledger, last: record, ROLL),
    "a ledger that is not listed": ("extended", lambda record, listed: record, ROLL),
    "a position that is not noted": ("published", forgetful, ROLL),
    "everything sent again": ("acknowledged_upto", lambda sent, last: 0, RECOVERY),
    "nothing sent again": ("acknowledged_upto", lambda sent, last: max((one for one, _ in sent), default=0), ROLL),
    "each fence taken for a deposition": ("is_owner", lambda found, owner: False, RECOVERY),
    "no fence taken for a deposition": ("is_owner", lambda found, owner: True, {}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_decision_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decision, planted, world = PLANTED[name]
    monkeypatch.setattr(ownership, decision, planted)
    found = difference(begin(**world), most=SAMPLE)
    assert found is not None
    assert found[1] != found[2]


# --- what the model does not have: lost answers, and batches of the catalogue

RECORD = ContainerRecord(uid="u", owner="me", epoch=3, ledgers=(ListedLedger(ledger=7, first=1, last=4),))


def test_a_refused_change_is_made_repeated_or_lost() -> None:
    wanted = ownership.extended(RECORD, ListedLedger(ledger=8, first=5))
    assert ownership.judge_change(wanted, wanted) is Standing.MADE
    assert ownership.judge_change(RECORD, wanted) is Standing.BEHIND
    assert ownership.judge_change(replace(wanted, owner="other", epoch=4), wanted) is Standing.DEPOSED
    assert ownership.judge_change(None, wanted) is Standing.DEPOSED


def test_a_change_that_is_repeated_adds_nothing_twice() -> None:
    listed = ListedLedger(ledger=8, first=5)
    once = ownership.extended(RECORD, listed)
    assert ownership.extended(ownership.ended(once, 7, 4), listed) == once


def test_no_ledger_follows_one_that_may_be_open() -> None:
    open_ = replace(RECORD, ledgers=(ListedLedger(ledger=7, first=1),))
    assert ownership.unfenced(open_) == [7]
    with pytest.raises(InternalError, match="may be open"):
        ownership.extended(open_, ListedLedger(ledger=8, first=5))


def test_a_ledger_without_frames_is_dropped_and_deleted_afterwards() -> None:
    empty = replace(RECORD, ledgers=(*RECORD.ledgers, ListedLedger(ledger=8, first=5, last=0)))
    after = ownership.extended(empty, ListedLedger(ledger=9, first=5))
    assert [one.ledger for one in after.ledgers] == [7, 9]
    assert ownership.unnamed(empty, after) == [8]


def test_a_published_position_never_goes_back() -> None:
    at = CataloguePosition(run=1, included=2, batch=6)
    record = ownership.published(RECORD, truncated=0, catalogue=at)
    for earlier in (replace(at, batch=5), replace(at, included=1)):
        with pytest.raises(InternalError, match="goes back"):
            ownership.published(record, truncated=0, catalogue=earlier)
    assert ownership.published(record, truncated=0).catalogues == record.catalogues


@given(st.lists(st.tuples(st.sampled_from(["open", "write", "publish"]), st.integers(0, 9)), max_size=40))
def test_batches_of_a_deposed_owner_never_count(steps: list[tuple[str, int]]) -> None:
    """Each epoch continues behind the batch that was published before it. What an earlier one wrote there is void."""
    record = ownership.frozen(ContainerRecord(uid="u"), owner="0")
    at, newest, included = 0, 0, 0
    mine: list[tuple[int, int]] = []
    written: set[tuple[int, int]] = set()
    valid: list[tuple[int, int]] = []
    for number, (step, share) in enumerate(steps):
        if step == "open":
            record = ownership.frozen(record, owner=str(number))
            newest, mine = at, []
        elif step == "write":
            newest += 1
            mine.append((record.epoch, newest))
            written.add(mine[-1])
        else:
            at, included = newest, max(included, newest * share // 9)
            valid, mine = [*valid, *mine], []
            position = CataloguePosition(run=number, included=included, batch=at)
            record = ownership.published(record, truncated=0, catalogue=position)
    at_last = record.catalogue(0)
    if at_last is not None:
        found = {one for one in written if ownership.counts(at_last, epoch=one[0], batch=one[1])}
        assert found == {one for one in valid if one[1] > included}
        assert len(at_last.begins) <= len(found) + 2, "what the snapshot includes is forgotten"
