"""Planted bugs of the ledger client, each found by a scenario that the other modules here run on the right code."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from penstock.codec.bookie import Code
from penstock.core.ledgers.recovery import Quorum, Reply, judge_code
from penstock.model.errors import ContainerOfflineError, NotFoundError
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.ledgers.log_record import HeldRecord
from penstock.storage.ledgers.removals import Removals
from penstock.storage.ledgers.writer import BookKeeperWriter
from tests.cluster import test_ledger_log, test_ledger_log_faults, test_ledger_recovery, test_ledgers

Patch = pytest.MonkeyPatch


class Planted(NamedTuple):
    plant: Callable[[Patch], None]
    found_by: Callable[[], None]
    sign: str
    """What the failure says: another one would find nothing."""


def late_answers_believed(patch: Patch) -> None:
    patch.setattr(BookKeeperWriter, "stop", lambda writer: None)


def lost_data_proves_absence(patch: Patch) -> None:
    def judged(code: int | None, *, undamaged: bool = False) -> Reply:
        return Reply.LACKS if code == Code.UNKNOWN_STATE else judge_code(code, undamaged=undamaged)

    patch.setattr(test_ledger_recovery, "judge_code", judged)


def one_bookie_proves_absence(patch: Patch) -> None:
    patch.setattr(Quorum, "certain", property(lambda quorum: 1))


def every_fence_is_a_deposition(patch: Patch) -> None:
    async def check(held: HeldRecord) -> None:
        raise ContainerOfflineError("log was fenced")

    patch.setattr(HeldRecord, "check", check)


def header_on_a_quorum_is_enough(patch: Patch) -> None:
    async def add_header(writer: BookKeeperWriter, header: bytes) -> None:
        await writer.add([header])

    patch.setattr(BookKeeperWriter, "add_header", add_header)


def a_deposed_owner_deletes_its_ledger(patch: Patch) -> None:
    async def discard(removals: Removals, ledger: int) -> None:
        await removals._ledgers.delete(ledger)

    patch.setattr(Removals, "discard", discard)


def ledgers_follow_without_a_pause(patch: Patch) -> None:
    async def rest(log: LedgerLog) -> None:
        return

    patch.setattr(LedgerLog, "_rest_if_fruitless", rest)


def quorums() -> None:
    test_ledger_recovery.test_nothing_that_may_be_acknowledged_is_cut_off(1)


LATE = test_ledgers.test_an_answer_after_closing_acknowledges_nothing
ROBOT = test_ledger_log.test_a_fence_of_autorecovery_does_not_stop_the_owner
HEADER = test_ledgers.test_no_ledger_is_created_if_a_bookie_refuses_its_header
DEPOSED = test_ledger_log_faults.test_a_deposed_owner_deletes_no_ledger_that_the_record_names
STORM = test_ledger_log_faults.test_bookies_that_refuse_every_frame_cause_no_storm_of_ledgers

PLANTED = [
    Planted(late_answers_believed, LATE, "DID NOT RAISE"),
    Planted(lost_data_proves_absence, quorums, "'lost data'"),
    Planted(one_bookie_proves_absence, quorums, "assert 0 >= 1"),
    Planted(every_fence_is_a_deposition, ROBOT, "log was fenced"),
    Planted(header_on_a_quorum_is_enough, HEADER, "DID NOT RAISE"),
    Planted(a_deposed_owner_deletes_its_ledger, DEPOSED, "ledger does not exist"),
    Planted(ledgers_follow_without_a_pause, STORM, "< 25"),
]


@pytest.fixture(autouse=True)
def decided_anew():
    """The brute force remembers decisions."""
    test_ledger_recovery.decide.cache_clear()
    yield
    test_ledger_recovery.decide.cache_clear()


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.plant.__name__)
def test_the_scenario_finds(bug: Planted, monkeypatch: Patch) -> None:
    bug.plant(monkeypatch)
    # A violated promise: a failed check, an error that was not expected, or none where one was.
    with pytest.raises((AssertionError, ContainerOfflineError, NotFoundError, pytest.fail.Exception)) as found:
        bug.found_by()
    assert bug.sign in str(found.value)
