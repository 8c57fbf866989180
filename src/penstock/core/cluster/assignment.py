"""The next assignment of a cluster: its map, and the losses of stores, which all controllers share.

Source: docs/design/0065-cluster.md, "Moving a container".
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from penstock.codec.store.cluster_nodes import Assignment
from penstock.core.cluster.placement import FLAP_WINDOW_MS, MOVE_PAUSE_MS, NO_CHOICES, Choices, StoreFacts, place
from penstock.model.values.dataclass import dataclass

LOSSES_MAX = 16
"""How many losses of one store are kept. More than three add no information, and the node stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAssignment:
    """``assignment``: to be written if it differs from the one before. ``again_at_ms``: when to decide again if nothing
    changes; None: only after a change."""

    assignment: Assignment
    again_at_ms: int | None


def next_assignment(
    before: Assignment,
    *,
    registered: Collection[str],
    drained: Collection[str],
    containers: int,
    now_ms: int,
    choices: Choices = NO_CHOICES,
) -> NextAssignment:
    """The assignment that follows from the stores that are registered now.

    Equal facts give equal results. A store that was registered before, owned a container and is no longer registered has
    been lost. One without containers costs nothing when it ends: an operator empties a store before its restart. While no
    store is registered, containers keep their owners. Times far ahead, from another controller's clock, are ignored: they
    would stop all moves until then.

    Args:
        before: The last assignment. registered: Names of stores, in any order. drained: Names of stores that the
        operator wants to be empty. containers: Their fixed number. now_ms: Wall clock, milliseconds since the Unix
        epoch. choices: See ``Choices``.
    """
    known = tuple(sorted(registered))
    losses = _losses(before, known, now_ms)
    stores = [
        StoreFacts(name=name, draining=name in drained, losses_ms=tuple(min(at, now_ms) for at in losses.get(name, ())))
        for name in known
    ]
    moved_at_ms = before.moved_at_ms if before.moved_at_ms <= now_ms + MOVE_PAUSE_MS else 0
    placed = place(
        before.owners, stores, containers=containers, now_ms=now_ms, moved_at_ms=moved_at_ms, choices=choices
    )
    after = Assignment(
        owners=placed.owners,
        moved_at_ms=now_ms if placed.moved else before.moved_at_ms,
        losses_ms=losses,
        known=known,
    )
    return NextAssignment(assignment=after, again_at_ms=placed.again_at_ms)


def _losses(before: Assignment, known: Collection[str], now_ms: int) -> dict[str, tuple[int, ...]]:
    """Losses that still count, by store."""
    found = {name: list(losses) for name, losses in before.losses_ms.items()}
    owners = set(before.owners.values())
    for name in before.known:
        if name not in known and name in owners:
            found.setdefault(name, []).append(now_ms)
    kept = {name: _counting(sorted(losses), now_ms) for name, losses in sorted(found.items())}
    return {name: losses for name, losses in kept.items() if losses}


def _counting(losses: list[int], now_ms: int) -> tuple[int, ...]:
    """The losses since the last window without one."""
    losses = [at for at in losses if at <= now_ms + FLAP_WINDOW_MS]
    if not losses or now_ms - losses[-1] >= FLAP_WINDOW_MS:
        return ()
    quiet = [index + 1 for index, (one, other) in enumerate(pairwise(losses)) if other - one >= FLAP_WINDOW_MS]
    return tuple(losses[max(quiet, default=0) :][-LOSSES_MAX:])
