"""The command that runs seeds keeps its limits in every mode, and reports how many seeds it ran."""

from __future__ import annotations

import pytest

from penstock.testing.simulation.__main__ import main

MODES = [[], ["--rates"], ["--control"], ["--ledgers"], ["--cluster"], ["--retention-days", "0.01"]]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode[0] if mode else "store")
def test_no_seed_starts_after_the_minutes(mode: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*mode, "--seeds", "1", "--seconds", "1", "--minutes", "0"]) == 0
    assert "0 seeds, " in capsys.readouterr().out.splitlines()[-1]


def test_the_summary_counts_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ledgers", "--seeds", "2", "--seconds", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")
