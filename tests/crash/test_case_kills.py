"""Cases of erasure in a server that is killed: nothing of the person is left, there and in an older backup with the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.app.backup.restore import restore_backup
from tests.crash import case_lives
from tests.crash.case_lives import run


@pytest.mark.server
def test_a_case_in_a_server_that_is_killed_leaves_nothing_of_the_person() -> None:
    found = run([1], kills=1)
    assert found.anomalies == []
    assert found.erased > 0


@pytest.mark.slow
@pytest.mark.server
def test_many_cases_in_servers_that_are_killed_leave_nothing_of_the_person() -> None:
    found = run(range(100, 140))
    assert found.anomalies == []
    assert found.early > 5
    assert found.late > 20


@pytest.mark.slow
@pytest.mark.server
def test_a_restore_that_forgets_the_ledger_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgetful(backup: Path, data: Path, *, ledger: Path) -> None:
        await restore_backup(backup, data)

    monkeypatch.setattr(case_lives, "restore_backup", forgetful)
    assert any("shows erased events" in line for line in run([1], kills=0).anomalies)
