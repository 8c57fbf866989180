"""A long time of hourly jobs, queries, sessions and streams: the metadata of the whole store stops growing."""

from __future__ import annotations

import pytest

from penstock.controller.streams import numbers
from penstock.controller.transactions import batches
from penstock.core.segments import writer_memory
from penstock.core.streams import batch_memory
from tests.growth import grow

DAY_MS = 86_400_000


def test_two_days_with_short_lifetimes_leave_what_the_rules_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_memory, "BORN_KEPT_MS", DAY_MS // 6)
    monkeypatch.setattr(writer_memory, "RANDOM_KEPT_MS", DAY_MS // 3)
    monkeypatch.setattr(batch_memory, "NAME_KEPT_MS", DAY_MS // 2)
    for module, name in ((batches, "JOBS_KEPT"), (batches, "NAMES_KEPT"), (numbers, "NUMBERS_KEPT")):
        monkeypatch.setattr(module, name, 10)
    for module in (batches, numbers):
        monkeypatch.setattr(module, "FORGET_EVERY", 4)
    kinds = grow(44)[-1].kinds
    # Two new names an hour: of twelve hours those of queries, ten of jobs, what came since the last look, and the living one.
    assert kinds["t batch"][0] <= 12 + 10 + 4 + 1
    assert kinds["t forgotten"][0] >= 20
    assert kinds["t number"][0] <= 10 + 3 * 4 + 1
    # Sessions of four hours on two segments, of eight hours on one; a pass every four hours; the audit's writer.
    assert kinds["a"][0] <= 2 * (4 + 4) + (8 + 4) + 2


@pytest.mark.slow
def test_a_year_stays_within_the_stated_size() -> None:
    sizes = grow(365 * 24)
    half, year = sizes[4], sizes[-1]
    assert year.rows < 13_000
    assert year.size_bytes < 1_300_000
    # After the longest lifetime only digests of names grow: eight bytes for each new query, eleven in base64.
    assert year.rows - half.rows < 500
    assert year.size_bytes - half.size_bytes < 11 * (year.hours - half.hours) + 30_000
