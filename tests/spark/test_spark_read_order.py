"""Readers of all kinds keep one order per key. More histories: ``python tests/spark/read_order_model.py --histories 10000``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from read_order_model import histories

from penstock.core.cuts import read_order

GATE = 300


def test_all_kinds_of_readers_keep_the_order_of_javas_rule() -> None:
    asyncio.run(histories(0, GATE))


@pytest.mark.slow
def test_ten_thousand_histories_have_one_order() -> None:
    asyncio.run(histories(1_000_000, 10_000))


@pytest.mark.parametrize("taken_for_passed", ["absent", "waiting"])
def test_the_model_detects_a_segment_started_too_early(monkeypatch: pytest.MonkeyPatch, taken_for_passed: str) -> None:
    """The defects of earlier versions: what is not among the positions, or only waits, counts as passed."""
    if taken_for_passed == "absent":
        monkeypatch.setattr(read_order, "is_reached", lambda segment, unfinished, ranges: True)
    else:
        rule = read_order.startable

        def startable(waiting: Any, unfinished: Any, ranges: Any) -> list[Any]:
            return sorted({item for each in waiting for item in rule([each], unfinished, ranges)})

        for user in ("penstock.client.reading.cursor", "penstock.client.reading.group_state"):
            monkeypatch.setattr(f"{user}.startable", startable)
    with pytest.raises(
        (AssertionError, Exception), match=r"out of order|not the order|not a position|started although"
    ):
        asyncio.run(histories(0, GATE))
