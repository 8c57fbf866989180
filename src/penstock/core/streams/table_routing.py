"""Which partition of a key-value table holds a primary key.

The hash is that of Pravega's Java client: the upper 52 of the first 64 bits of MurmurHash3_x64_128 over the key's bytes,
divided by 2**52. Java starts both halves of the hash with its negative 32-bit seed, extended to 64 bits with its sign. The
library ``mmh3``, which hashes routing keys, extends seeds with zeros and gives another result, so the hash is written here.
"""

from __future__ import annotations

import struct

_SEED = -2020233499 & (1 << 64) - 1
"""Java's hash code of the string ``KeyValueTableRouter``, as 64 bits."""

_ALL = (1 << 64) - 1
"""Mask of 64 bits."""
_C1 = 0x87C37B91114253D5
"""The hash's first constant."""
_C2 = 0x4CF5AD432745937F
"""The hash's second constant."""
_BLOCK = struct.Struct("<QQ")
_MANTISSA = float(1 << 52)


def hash_primary_key(key: bytes) -> float:
    """The place of a primary key in [0, 1). Partition ``n`` of a table holds the ``n``-th of equal ranges."""
    return (_murmur(key, _SEED) >> 12) / _MANTISSA


def partition_of(key: bytes, partitions: int) -> int:
    """The number of the partition that holds the primary key."""
    # The bounds of partitions are those of even_ranges: n / partitions, rounded as a double.
    place = hash_primary_key(key)
    found = int(place * partitions)
    while place < found / partitions:
        found -= 1
    while found + 1 < partitions and place >= (found + 1) / partitions:
        found += 1
    return found


def _murmur(data: bytes, seed: int) -> int:
    """The first 64 bits of MurmurHash3_x64_128, whose two halves start with ``seed``."""
    first = second = seed
    whole = len(data) & ~15
    for offset in range(0, whole, 16):
        low, high = _BLOCK.unpack_from(data, offset)
        first = _rotated(first ^ _mixed_low(low), 27) + second & _ALL
        first = first * 5 + 0x52DCE729 & _ALL
        second = _rotated(second ^ _mixed_high(high), 31) + first & _ALL
        second = second * 5 + 0x38495AB5 & _ALL
    if len(data) > whole:
        low, high = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
        first ^= _mixed_low(low)
        second ^= _mixed_high(high)
    first ^= len(data)
    second ^= len(data)
    first = first + second & _ALL
    second = second + first & _ALL
    return _final(first) + _final(second) & _ALL


def _mixed_low(value: int) -> int:
    return _rotated(value * _C1 & _ALL, 31) * _C2 & _ALL


def _mixed_high(value: int) -> int:
    return _rotated(value * _C2 & _ALL, 33) * _C1 & _ALL


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _ALL


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _ALL
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _ALL
    return value ^ value >> 33
