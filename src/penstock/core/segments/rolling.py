"""Layout of tier 2: which appends form a block, and which blocks share a chunk."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS_MAX = 4096
"""Blocks in one chunk. Keeps the list that a reader loads to find its block below 100 kB."""


def block_cut(sizes: Sequence[int], limit_bytes: int) -> int:
    """How many of the runs of whole appends (``sizes``, bytes, oldest first) go into the next block.

    At least one where there is any: a run larger than the limit is a block of its own, for a block never begins or
    ends inside an append.
    """
    total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > limit_bytes and index:
            return index
    return len(sizes)


def continues_chunk(*, chunk_bytes: int, block_count: int, block_bytes: int, limit_bytes: int) -> bool:
    """Whether a block is added to a chunk of that size. If not, it begins a new chunk."""
    return chunk_bytes + block_bytes <= limit_bytes and block_count < BLOCKS_MAX
