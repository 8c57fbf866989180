"""What commands print of answers."""

import pytest

from penstock.app.cli.common.words import span


@pytest.mark.parametrize(
    ("times_ms", "said"),
    [
        ((0, 1000), "1970-01-01 00:00:00Z to 1970-01-01 00:00:01Z"),
        ((None, 1000), "until 1970-01-01 00:00:01Z"),
        ((0, None), "since 1970-01-01 00:00:00Z"),
        ((None, None), "at an unknown time"),
    ],
)
def test_a_time_that_is_not_known_is_left_out(times_ms, said):
    assert span(times_ms) == said
