"""What a store can do now, for each function. It is for clients; it does not show whether a restart would help."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.model.values.dataclass import dataclass

FUNCTIONS = ("appends", "reads", "tiering")
"""``appends`` are acknowledged without delay; ``reads`` of what only tier 2 holds; ``tiering`` moves bytes there."""
_NEARLY = 16  # part of the limit: with less than 1/16 of it free, appends count as delayed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessFacts:
    """``offline``: why no request is accepted; ``full``: why no append is; ``trouble``: how background work failed, until it
    succeeds; ``unreachable``: it failed because tier 2 does not answer; ``held_bytes`` of ``limit_bytes`` wait for tier 2."""

    offline: str | None
    full: str | None
    trouble: str | None
    unreachable: bool
    held_bytes: int
    limit_bytes: int


def not_ready(facts: ReadinessFacts) -> Mapping[str, str]:
    """The functions that do not work now, each with the reason."""
    if facts.offline is not None:
        return dict.fromkeys(FUNCTIONS, facts.offline)
    found: dict[str, str] = {}
    # An append is refused when it does not fit, which is shortly before the limit is reached.
    if facts.full is not None:
        found["appends"] = facts.full
    elif facts.held_bytes >= facts.limit_bytes - facts.limit_bytes // _NEARLY:
        found["appends"] = (
            f"appends wait for tier 2: {facts.held_bytes} of {facts.limit_bytes} bytes in memory are not there yet"
        )
    if facts.unreachable and facts.trouble is not None:
        found["reads"] = facts.trouble
    if facts.trouble is not None:
        found["tiering"] = facts.trouble
    return found
