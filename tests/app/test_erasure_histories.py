"""A receipt that verifies means that no file holds what was asked for, whatever happened meanwhile."""

from __future__ import annotations

import pytest
from erasure_histories import problems_of


@pytest.mark.parametrize("seed", range(2))
def test_a_verified_receipt_matches_all_files(seed):
    problems, receipts = problems_of(seed)
    assert problems == []
    assert receipts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_verified_receipts_match_all_files(seed):
    problems, _ = problems_of(seed)
    assert problems == []
