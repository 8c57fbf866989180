"""What a case of erasure may concern."""

from __future__ import annotations

import pytest

from penstock.core.cases.case import checked_targets
from penstock.model.errors import InvalidArgumentError


@pytest.mark.parametrize("target", ["s/*", "*/*", "*/t", "s*", "s/t*", "s/a b", "./t", "s/..", "s/", "/", "s/t/0", ""])
def test_a_target_that_no_stream_or_scope_can_match_is_refused(target: str) -> None:
    """Such a case would search nothing, and then state that nothing is left."""
    with pytest.raises(InvalidArgumentError):
        checked_targets(["s/t", target])


def test_streams_scopes_and_everything_are_targets() -> None:
    assert checked_targets(["s/t", "s", "*", "s/t"]) == ["*", "s", "s/t"]
