"""Refused calls, summed so that a flood of them makes few entries of the audit stream. No I/O and no time of its own."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from penstock.model.values.dataclass import dataclass

MINUTE_MS = 60_000
NAMED_MAX = 20
"""Sums of one minute that name an identity, and as many that name only an address, which anyone may have many of. All
others of that minute are one sum."""
TEXT_MAX = 200  # characters of each text: callers choose some of them


class Reason(enum.StrEnum):
    """Why a call was refused."""

    CREDENTIALS = "credentials"
    """The credentials are wrong, or cannot be read."""
    EXPIRED = "expired"
    """The token has expired."""
    RIGHT = "right"
    """The caller is known, but has no right to this call."""
    ATTEMPTS = "attempts"
    """After too many wrong passwords, the caller must wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One refused call. ``identity``: the verified name, empty if there is none. ``peer``: the caller's address. ``call`` and
    ``needs``: what it wanted, and which right it lacks."""

    reason: Reason
    identity: str = ""
    peer: str = ""
    via: str = ""
    call: str = ""
    needs: str = ""


@dataclass(slots=True)
class RefusalSum:
    """Refusals of one minute. ``first``: the first of them. ``others``: whether they belong to callers without their
    own sum."""

    first: Refusal
    first_ms: int
    last_ms: int
    count: int = 1
    others: bool = False

    def as_fields(self) -> dict[str, object]:
        """The fields of an entry of the audit stream."""
        shared = {"reason": self.first.reason.value} if not self.others else {"others": True}
        counted = {"count": self.count, "from_ms": self.first_ms, "to_ms": self.last_ms}
        if self.others:
            return {**shared, **counted}
        named = {name: getattr(self.first, name)[:TEXT_MAX] for name in ("identity", "peer", "via", "call", "needs")}
        return {**shared, **{name: text for name, text in named.items() if text}, **counted}


class RefusalSums:
    """The refusals since the last ``take``, by reason, identity, address and door. Never more than 2 * ``NAMED_MAX`` + 1
    sums."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Reason, str, str, str] | None, RefusalSum] = {}

    def add(self, refusal: Refusal, now_ms: int) -> None:
        key: tuple[Reason, str, str, str] | None = (
            refusal.reason,
            refusal.identity[:TEXT_MAX],
            refusal.peer[:TEXT_MAX],
            refusal.via[:TEXT_MAX],
        )
        if key not in self._sums and self._known(is_named=bool(refusal.identity)) >= NAMED_MAX:
            key = None
        found = self._sums.get(key)
        if found is None:
            self._sums[key] = RefusalSum(refusal, now_ms, now_ms, others=key is None)
        else:
            found.count += 1
            found.last_ms = max(found.last_ms, now_ms)

    def _known(self, *, is_named: bool) -> int:
        return sum(key is not None and bool(key[1]) == is_named for key in self._sums)

    def take(self) -> Sequence[RefusalSum]:
        """Return the sums, in order of their first refusals, and start again with none."""
        taken, self._sums = list(self._sums.values()), {}
        return taken
