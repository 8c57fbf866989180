"""How long a name or an address must wait after wrong credentials."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from penstock.model.values.dataclass import dataclass

FORGET_S = 600.0
DELAY_FIRST_S = 1.0
DELAY_MAX_S = 60.0
KEYS_MAX = 10_000  # keys


@dataclass(slots=True)
class _Count:
    wrong: int
    at_s: float


class Attempts:
    """Counts wrong credentials by key, in bounded memory. ``free`` of them cost nothing; each further one doubles the
    wait, from a second to a minute. Ten quiet minutes, or right credentials, clear a key. Times are seconds of a clock
    that never jumps."""

    def __init__(self, *, free: int, keys_max: int = KEYS_MAX) -> None:
        self._free = free
        self._keys_max = keys_max
        # Oldest failure first: that key is forgotten first if there are too many.
        self._counts: OrderedDict[Hashable, _Count] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def wait_s(self, key: Hashable, now_s: float) -> float:
        """How long the key must wait now; 0: not at all."""
        count = self._counts.get(key)
        if count is None or count.wrong < self._free:
            return 0.0
        if now_s - count.at_s >= FORGET_S:
            return 0.0
        delay_s = min(DELAY_MAX_S, DELAY_FIRST_S * 2.0 ** min(20, count.wrong - self._free))
        return max(0.0, count.at_s + delay_s - now_s)

    def wrong(self, key: Hashable, now_s: float) -> None:
        """Count wrong credentials."""
        count = self._counts.pop(key, None)
        if count is None or now_s - count.at_s >= FORGET_S:
            count = _Count(0, now_s)
        count.wrong, count.at_s = count.wrong + 1, now_s
        self._counts[key] = count
        if len(self._counts) > self._keys_max:
            self._counts.popitem(last=False)

    def right(self, key: Hashable) -> None:
        """Clear the key."""
        self._counts.pop(key, None)
