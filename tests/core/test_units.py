"""Numbers as people write them."""

from __future__ import annotations

import pytest

from penstock.core.units import counted


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (0, "event", "0 events"),
        (1, "event", "1 event"),
        (1234, "event", "1,234 events"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (2, "key", "2 keys"),
    ],
)
def test_one_is_one_and_others_are_several(count: int, noun: str, said: str) -> None:
    assert counted(count, noun) == said
