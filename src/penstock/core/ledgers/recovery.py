"""Decides where a ledger without a live writer ends, from the answers of its bookies.

An entry is acknowledged once ``acks`` of the ledger's ``copies`` bookies have it. So it was not acknowledged if more
than ``copies - acks`` bookies answer that they lack it. Silence, an error, a damaged entry and a bookie that has lost
data prove nothing. Source: docs/design/0062-log-on-bookkeeper.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from penstock.codec.bookie import Code
from penstock.model.values.dataclass import dataclass


class Reply(Enum):
    """What one bookie's answer proves."""

    HAS = "has"
    """It has the entry, undamaged."""
    LACKS = "lacks"
    """It answered that it does not have the entry. A bookie that has lost data does not answer this."""
    UNKNOWN = "unknown"


class Step(Enum):
    KEEP = "keep"
    """The entry may have been acknowledged: add it again, until ``acks`` bookies have it."""
    END = "end"
    """The entry was not acknowledged, and never will be: the ledger ends before it."""
    WAIT = "wait"
    """Too few bookies answered. Try later; never guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """``copies`` bookies hold each entry; ``acks`` of them acknowledge it."""

    copies: int
    acks: int

    @property
    def certain(self) -> int:
        """If this many bookies refuse or lack an entry, it cannot be acknowledged."""
        return self.copies - self.acks + 1


def judge_code(code: int | None, *, undamaged: bool = False) -> Reply:
    """What an answer to a read proves. ``code``: None if there is no answer. ``undamaged``: it brought an entry whose
    checksum is right."""
    if code == Code.OK and undamaged:
        return Reply.HAS
    return Reply.LACKS if code in (Code.NO_LEDGER, Code.NO_ENTRY) else Reply.UNKNOWN


def confirmed_after_fence(
    confirmed: Sequence[int], nothing: int, quorum: Quorum, *, begins_with_header: bool
) -> int | None:
    """The last entry that is known to be acknowledged, once no later add can be; None: too few bookies are fenced.

    ``confirmed``: for each bookie that answered the fencing read with an entry, what that entry names as acknowledged.
    ``nothing``: bookies that answered that they have no entry. They count only for a ledger that does not begin with a
    header on all bookies. A bookie sends such an answer before the fence is synced, so a restart may lose the fence.
    The writer could then reach enough bookies in a ledger that was closed as empty.
    """
    fenced = len(confirmed) + (0 if begins_with_header else nothing)
    if fenced < quorum.certain:
        return None
    return max(confirmed, default=-1)


def judge_entry(replies: Sequence[Reply], quorum: Quorum) -> Step:
    """What to do about the entry after the last one that is known to be in the ledger. All bookies were asked with the
    fence."""
    if Reply.HAS in replies:
        return Step.KEEP
    return Step.END if replies.count(Reply.LACKS) >= quorum.certain else Step.WAIT
