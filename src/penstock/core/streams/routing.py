"""Which segment an event goes to: the hash of its routing key, and the range that holds the hash.

The hash is that of Pravega's Java client: the upper 52 of the first 64 bits of MurmurHash3_x64_128 over the key's UTF-16
code units, little-endian, read as the mantissa of a double in [1, 2), minus 1. (Pravega's Rust client hashes keys with
letters outside ASCII differently, so the order of one key's events across both holds for ASCII keys only.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import mmh3

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import KeyRange

EVENT_SEED = 1741865571
"""Java's hash code of the string ``EventRouter``."""

_MANTISSA = float(1 << 52)
_CACHE_MAX = 65_536  # routing keys whose hash is remembered


def hash_key(key: str) -> float:
    """The place of a routing key in [0, 1)."""
    first: int = mmh3.hash64(key.encode("utf-16-le", "surrogatepass"), EVENT_SEED, signed=False)[0]
    # 52 bits are exact in a double, and so is their quotient by a power of two.
    return (first >> 12) / _MANTISSA


class Router:
    """Routes keys to ranges that together tile [0, 1). Remembers up to 65,536 keys, then starts anew."""

    __slots__ = ("_highs", "_known", "_places")

    def __init__(self, ranges: Sequence[KeyRange]) -> None:
        """Take the ranges in any order. Raises InvalidArgumentError where they leave a gap or overlap."""
        order = sorted(range(len(ranges)), key=lambda place: ranges[place].low)
        edge = 0.0
        for place in order:
            if ranges[place].low != edge:
                raise InvalidArgumentError("ranges leave a gap or overlap", low=ranges[place].low, expected=edge)
            edge = ranges[place].high
        if edge != 1.0:
            raise InvalidArgumentError("ranges leave a gap or overlap", high=edge, expected=1.0)
        self._places = order
        self._highs = [ranges[place].high for place in order]
        self._known: dict[str, int] = {}

    def index_of(self, key: str) -> int:
        """The index, into the ranges as given, of the one that takes the key."""
        place = self._known.get(key)
        if place is None:
            place = self.index_of_hash(hash_key(key))
            if len(self._known) >= _CACHE_MAX:
                self._known.clear()
            self._known[key] = place
        return place

    def index_of_hash(self, value: float) -> int:
        """The index of the range that holds ``value``. Raises InvalidArgumentError outside [0, 1)."""
        if not 0.0 <= value < 1.0:
            raise InvalidArgumentError("hash of a key is outside [0, 1)", value=value)
        return self._places[bisect_right(self._highs, value)]
