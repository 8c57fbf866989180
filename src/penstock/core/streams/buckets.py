"""Assign streams to buckets, and buckets to controllers.

Source: docs/design/0012-retention-clock.md, "Buckets". Hash and rule of distribution are Pravega's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.model.errors import InvalidArgumentError

Assignment = Mapping[str, tuple[int, ...]]
"""Buckets of each controller, both sorted."""


def java_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 units, as a signed 32-bit number."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def bucket_of(stream: str, count: int) -> int:
    """The bucket of ``scope/stream`` among ``count``."""
    return (java_hash(stream) & 0x7FFFFFFF) % count


def distribute(before: Assignment, controllers: Sequence[str], count: int) -> dict[str, tuple[int, ...]]:
    """The owner of each of ``count`` buckets among the live ``controllers``. Every bucket has exactly one owner.

    If the controllers are unchanged, so are the owners. If no live controller has a bucket, or there is only one,
    buckets are assigned in turns. Otherwise each bucket of a dead controller goes to the controller with the fewest.
    Then buckets move one at a time from the controller with the most to that with the fewest, until their numbers
    differ by at most one. Ties: the first name, the lowest bucket. Raises: InvalidArgumentError (no controller).
    """
    alive = sorted(set(controllers))
    if not alive:
        raise InvalidArgumentError("buckets need a controller", count=count)
    kept, orphans = _kept(before, alive, count)
    if len(alive) == 1 or len(orphans) == count:
        return {name: tuple(range(place, count, len(alive))) for place, name in enumerate(alive)}
    if not orphans and set(before) == set(alive):
        return {name: tuple(sorted(kept[name])) for name in alive}
    for bucket in orphans:
        kept[min(alive, key=lambda name: (len(kept[name]), name))].append(bucket)
    while True:
        most = max(alive, key=lambda name: len(kept[name]))
        least = min(alive, key=lambda name: len(kept[name]))
        if len(kept[most]) - len(kept[least]) <= 1:
            return {name: tuple(sorted(kept[name])) for name in alive}
        moved = min(kept[most])
        kept[most].remove(moved)
        kept[least].append(moved)


def _kept(before: Assignment, alive: Sequence[str], count: int) -> tuple[dict[str, list[int]], list[int]]:
    """The buckets that live controllers keep, each once, and the buckets without an owner."""
    kept: dict[str, list[int]] = {name: [] for name in alive}
    taken: set[int] = set()
    for name in alive:
        for bucket in before.get(name, ()):
            if 0 <= bucket < count and bucket not in taken:
                taken.add(bucket)
                kept[name].append(bucket)
    return kept, [bucket for bucket in range(count) if bucket not in taken]
