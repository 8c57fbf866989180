"""The map of a cluster: the store of each container. Every controller that sees a change computes the next map and
writes it by compare-and-set. Equal facts give equal maps, so it does not matter which one succeeds. Source:
docs/design/0061-coordination.md, "The map".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from itertools import pairwise

from penstock.model.values.dataclass import dataclass

MOVE_PAUSE_MS = 10_000
"""Pause between moves that only balance: each one costs the container a pause of some 0.3 s."""
REQUESTED_PAUSE_MS = 1_000
"""Pause before a move that an operator wants, because somebody is waiting for it."""
FLAP_WINDOW_MS = 600_000
"""Losses of a store are counted over this time. After too many of them, the store must stay up for this time."""
FLAP_LOSSES = 3
"""Losses within the window after which a store gets no containers: each loss is a takeover of all that it owns."""

Owners = Mapping[int, str]
"""The store of each container that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store that is registered now.

    ``draining``: the operator wants its containers elsewhere. ``losses_ms``: earlier losses of its registration, in
    milliseconds since the Unix epoch, oldest first.
    """

    name: str
    draining: bool = False
    losses_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What limits the choice of a store. ``pinned``: containers that an operator wants in a certain store; the balance leaves
    them there. ``failed``: containers and stores that could not open them. ``disabled``: containers that no store may open.
    """

    pinned: Mapping[int, str] = field(default_factory=dict)
    failed: Collection[tuple[int, str]] = frozenset()
    disabled: Collection[int] = frozenset()


NO_CHOICES = Choices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The current map, and when to decide again if nothing changes. None: only after a change."""

    owners: Owners
    moved: bool
    """Whether a container of a live store moved. If so, the pause before the next move begins."""
    again_at_ms: int | None


def place(
    before: Owners,
    stores: Sequence[StoreFacts],
    *,
    containers: int,
    now_ms: int,
    moved_at_ms: int,
    choices: Choices = NO_CHOICES,
) -> Placement:
    """The next map.

    Containers without a live owner are placed at once, each with the store that has the fewest; no other container
    moves in that step. The same holds for containers that their owner cannot open, unless no other store can. Otherwise
    one container moves: first to the store that an operator has chosen for it, then away from a draining store, both if
    the last such move is ``REQUESTED_PAUSE_MS`` ago; else, after ``MOVE_PAUSE_MS``, from the store with the most to that
    with the fewest if they differ by more than one. A store that flaps or drains receives a container only if no other
    store is alive, and one that could not open a container only if all others could not either. A disabled container
    has no owner, whatever else holds. Ties: the first name, the lowest container. Without stores, the map stays as it
    is, except that disabled containers lose their owner.

    Args:
        before: The last map. stores: Those registered now, in any order. containers: Their fixed number, from 0 on.
        now_ms: Wall clock. moved_at_ms: When the last container of a live store moved. choices: See ``Choices``.
    """
    alive = {store.name: store for store in sorted(stores, key=lambda store: store.name)}
    targets = receivers(alive, now_ms)
    before = {number: owner for number, owner in before.items() if number not in choices.disabled}
    if not targets:
        return Placement(owners=before, moved=False, again_at_ms=None)
    enabled = [number for number in range(containers) if number not in choices.disabled]
    kept = {}
    for number in enabled:
        owner = before.get(number)
        if (
            owner is not None
            and owner in alive
            and not ((number, owner) in choices.failed and able_stores(number, targets, choices))
        ):
            kept[number] = owner
    orphans = [number for number in enabled if number not in kept]
    for number in orphans:
        able, pinned = able_stores(number, targets, choices), choices.pinned.get(number)
        kept[number] = pinned if pinned is not None and pinned in able else _fewest(kept, able or targets)
    move = None if orphans else _move(kept, alive, targets, choices)
    quiet_at_ms = min((end for store in alive.values() if (end := _flaps_until_ms(store, now_ms))), default=None)
    if move is None:
        # The containers of lost stores were placed first. Balancing moves may still be needed, after their pause.
        again = _next_move_ms(moved_at_ms, _move(kept, alive, targets, choices)) if orphans else []
    elif now_ms - moved_at_ms < move.pause_ms:
        again, move = _next_move_ms(moved_at_ms, move), None
    else:
        kept[move.number] = move.target
        again = _next_move_ms(now_ms, _move(kept, alive, targets, choices))
    again += [quiet_at_ms] if quiet_at_ms is not None else []
    owners = dict(sorted(kept.items()))
    return Placement(owners=owners, moved=move is not None, again_at_ms=max(now_ms, min(again)) if again else None)


def flaps(store: StoreFacts, *, now_ms: int) -> bool:
    """Whether the store was lost so often that it must first stay for a whole window."""
    return _flaps_until_ms(store, now_ms) is not None


def _flaps_until_ms(store: StoreFacts, now_ms: int) -> int | None:
    """When the store has been without a loss for long enough. None: it does not flap."""
    losses = store.losses_ms
    if not losses or now_ms - losses[-1] >= FLAP_WINDOW_MS:
        return None
    # Three losses within one window, and no quiet window since the third.
    for start, last in enumerate(losses[FLAP_LOSSES - 1 :]):
        after = losses[start + FLAP_LOSSES - 1 :]
        is_quiet = any(later - earlier >= FLAP_WINDOW_MS for earlier, later in pairwise(after))
        if last - losses[start] < FLAP_WINDOW_MS and not is_quiet:
            return losses[-1] + FLAP_WINDOW_MS
    return None


def receivers(alive: Mapping[str, StoreFacts], now_ms: int) -> Sequence[str]:
    """Stores that may receive containers, sorted. Draining or flapping stores are among them only if there is no
    other."""
    steady = [name for name, store in alive.items() if not store.draining and not flaps(store, now_ms=now_ms)]
    return steady or [name for name, store in alive.items() if not store.draining] or list(alive)


def able_stores(number: int, targets: Sequence[str], choices: Choices) -> Sequence[str]:
    """The targets that have not failed to open the container."""
    return [name for name in targets if (number, name) not in choices.failed]


@dataclass(frozen=True, slots=True)
class _Move:
    """A container that should move, where to, and the pause after the move before."""

    number: int
    target: str
    pause_ms: int


def _next_move_ms(moved_at_ms: int, move: _Move | None) -> list[int]:
    """When the move may be made, if there is one."""
    return [] if move is None else [moved_at_ms + move.pause_ms]


def _move(kept: Owners, alive: Mapping[str, StoreFacts], targets: Sequence[str], choices: Choices) -> _Move | None:
    """The move that should be made next."""
    for number, name in sorted(choices.pinned.items()):
        if number in kept and kept[number] != name and name in able_stores(number, targets, choices):
            return _Move(number, name, REQUESTED_PAUSE_MS)
    for number, name in sorted(kept.items()):
        able = able_stores(number, targets, choices)
        if alive[name].draining and name not in targets and able:
            return _Move(number, _fewest(kept, able), REQUESTED_PAUSE_MS)
    counts = _counts(kept, list(alive))
    free = [(number, name) for number, name in sorted(kept.items()) if choices.pinned.get(number) != name]
    for number, name in sorted(free, key=lambda item: (-counts[item[1]], item[1], item[0])):
        able = able_stores(number, targets, choices)
        if able and counts[name] - counts[least := _fewest(kept, able)] > 1:
            return _Move(number, least, MOVE_PAUSE_MS)
    return None


def _fewest(kept: Owners, names: Sequence[str]) -> str:
    counts = _counts(kept, names)
    return min(names, key=lambda name: (counts[name], name))


def _counts(kept: Owners, names: Sequence[str]) -> dict[str, int]:
    counts = dict.fromkeys(names, 0)
    for name in kept.values():
        if name in counts:
            counts[name] += 1
    return counts
