"""The Merkle tree of a log: its root from a small state, and proofs that others can verify.

A tree of ``n`` leaves is determined by its right edge: the roots of the complete subtrees that ``n`` splits into, the
largest first. Source: RFC 6962, section 2.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

HASH_BYTES = 32


def leaf_hash(entry: bytes) -> bytes:
    """The hash of an entry of the log."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Edge:
    """The right edge of a tree with ``size`` leaves: all that is needed to add leaves and to compute the root.

    Raises InvalidArgumentError: the number of hashes does not fit the size.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.hashes) != self.size.bit_count():
            raise InvalidArgumentError("hashes do not fit the size", size=self.size, hashes=len(self.hashes))

    def add(self, leaves: Iterable[bytes]) -> Edge:
        """The edge with further leaf hashes."""
        size, hashes = self.size, list(self.hashes)
        for leaf in leaves:
            found, height = leaf, size
            while height & 1:
                found = node_hash(hashes.pop(), found)
                height >>= 1
            hashes.append(found)
            size += 1
        return Edge(size, tuple(hashes))

    def root(self) -> bytes:
        """The root of the tree; of an empty one, the hash of nothing."""
        if not self.hashes:
            return hashlib.sha256(b"").digest()
        found = self.hashes[-1]
        for left in reversed(self.hashes[:-1]):
            found = node_hash(left, found)
        return found

    def subtrees(self) -> dict[tuple[int, int], bytes]:
        """The complete subtrees of the edge, by their first leaf and the leaf after their last."""
        found, start = {}, 0
        for height, value in zip(_heights(self.size), self.hashes, strict=True):
            found[start, start + (1 << height)] = value
            start += 1 << height
        return found


def _heights(size: int) -> list[int]:
    return [bit for bit in range(size.bit_length() - 1, -1, -1) if size >> bit & 1]


def _split(size: int) -> int:
    """The largest power of two below ``size``."""
    return 1 << ((size - 1).bit_length() - 1)


class Nodes:
    """Subtrees of a tree, computed from leaf hashes and known subtrees. Leaves need not all be known.

    ``known``: hashes of complete subtrees; ``leaves``: leaf hashes by number.
    """

    def __init__(self, known: Mapping[tuple[int, int], bytes], leaves: Mapping[int, bytes]) -> None:
        self._known = dict(known)
        self._leaves = leaves

    def edge(self, size: int) -> Edge:
        """The right edge of the tree of the first ``size`` leaves. Raises InvalidArgumentError."""
        hashes, start = [], 0
        for height in _heights(size):
            hashes.append(self.root(start, start + (1 << height)))
            start += 1 << height
        return Edge(size, tuple(hashes))

    def root(self, start: int, end: int) -> bytes:
        """The root of the leaves ``start <= number < end``. Raises InvalidArgumentError: a leaf of them is not known."""
        found = self._known.get((start, end))
        if found is None and end - start == 1:
            found = self._leaves.get(start)
            if found is None:
                raise InvalidArgumentError("this entry of the log is not known any more", number=start)
        elif found is None:
            middle = start + _split(end - start)
            found = node_hash(self.root(start, middle), self.root(middle, end))
            self._known[start, end] = found
        return found

    def inclusion(self, number: int, size: int) -> list[bytes]:
        """The proof that leaf ``number`` is in the tree of the first ``size`` leaves. Raises InvalidArgumentError."""
        if not 0 <= number < size:
            raise InvalidArgumentError("the log has no such entry", number=number, size=size)
        return [self.root(*subtree) for subtree in inclusion_path(number, size)]

    def consistency(self, before: int, size: int) -> list[bytes]:
        """The proof that the first ``before`` leaves of the tree of ``size`` leaves are the whole tree of that time.

        Raises InvalidArgumentError.
        """
        if not 0 <= before <= size:
            raise InvalidArgumentError("the log is smaller", before=before, size=size)
        return [self.root(*subtree) for subtree in consistency_path(before, size)]


def inclusion_path(number: int, size: int) -> list[tuple[int, int]]:
    """The subtrees whose hashes prove that leaf ``number`` is in the tree, from the leaf up."""
    found, start, end = [], 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if number < middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start = middle
    return found[::-1]


def consistency_path(before: int, size: int) -> list[tuple[int, int]]:
    """The subtrees whose hashes prove that a tree of ``before`` leaves was extended to ``size``."""
    if before in (0, size):
        return []
    found, start, end = [], 0, size
    while before != end:
        middle = start + _split(end - start)
        if before <= middle:
            found.append((middle, end))
            end = middle
        else:
            found.append((start, middle))
            start = middle
    if start:
        found.append((start, end))
    return found[::-1]


def root_of_inclusion(leaf: bytes, number: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """The root that the proof leads to; None if the proof has the wrong length for the tree."""
    if not 0 <= number < size:
        return None
    path = inclusion_path(number, size)
    if len(path) != len(proof):
        return None
    found, start = leaf, number
    for (first, _), sibling in zip(path, proof, strict=True):
        found = node_hash(sibling, found) if first < start else node_hash(found, sibling)
        start = min(start, first)
    return found


def roots_of_consistency(before: int, size: int, old_root: bytes, proof: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """The roots of the old and the new tree that the proof leads to; None if it has the wrong length.

    ``before`` must be at least 1 and at most ``size``.
    """
    if not 0 < before <= size:
        return None
    path = consistency_path(before, size)
    if len(path) != len(proof):
        return None
    if before == size:
        return old_root, old_root
    rest = list(zip(path, proof, strict=True))
    # The old tree is a complete subtree of the new one, or the proof begins with the last subtree that both share.
    is_whole = path[0][0] >= before
    if is_whole:
        old = new = old_root
        start = 0
    else:
        (start, _), old = rest.pop(0)
        new = old
    for (first, _), sibling in rest:
        if first < start:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            start = first
        else:
            new = node_hash(new, sibling)
    return old, new
