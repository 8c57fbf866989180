"""Why a container is not served, and why a store that is drained is not empty, in words for operators.

The rules are those of ``placement``. Source: docs/how-to/cluster.md, "Watch it".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.core.cluster.placement import Choices, StoreFacts, able_stores, receivers
from penstock.model.values.dataclass import dataclass

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """``stores``: those registered now, by name. ``controllers``: whether one is registered. ``choices``: as in ``place``.
    ``reasons``: why stores could not open containers, by container and store. ``disabled``: the reasons of operators, by
    container."""

    stores: Mapping[str, StoreFacts]
    controllers: bool
    choices: Choices
    reasons: Mapping[tuple[int, str], str]
    disabled: Mapping[int, str]


def why_unserved(number: int, *, assigned: str | None, holder: str | None, facts: ClusterFacts) -> str:
    """Why no store serves the container.

    Args:
        number: The container. assigned: The store that should own it; None: nobody. holder: The store that holds it without
        serving it yet; None: nobody. facts: What is known about the rest.
    """
    if number in facts.disabled:
        closing = "" if holder is None else f"; {holder} still holds it"
        return f"disabled: {facts.disabled[number]}{closing}"
    failures = [f"{store}: {reason}" for (one, store), reason in sorted(facts.reasons.items()) if one == number]
    if failures:
        return f"could not be opened by {'; '.join(failures)}"
    if not facts.stores:
        return "no store is up"
    if assigned not in facts.stores:
        if not facts.controllers:
            return "no controller is up to assign it to another store"
        return (
            "no store is assigned yet" if assigned is None else f"{assigned} is lost; another store is being assigned"
        )
    if holder is None:
        return f"{assigned} has not taken it yet"
    if holder != assigned:
        return f"{assigned} waits until {holder} releases it"
    return f"{holder} is opening it"


def why_not_drained(
    name: str, containers: Collection[int], *, facts: ClusterFacts, now_ms: int
) -> Mapping[str, list[int]]:
    """The reasons for which containers of a drained store cannot leave it now, each with these containers, sorted.
    Containers that will move are not listed. ``now_ms``: wall clock, milliseconds since the Unix epoch."""
    found: dict[str, list[int]] = {}
    targets = receivers(facts.stores, now_ms)
    for number in sorted(set(containers) - set(facts.disabled)):
        reason = None
        if not facts.controllers:
            reason = "no controller is up to move them"
        elif name not in facts.stores:
            reason = None  # it is lost: its containers are placed at once
        elif name in targets:
            others = [one for one in facts.stores if one != name]
            reason = "all other stores are drained too" if others else "there is no other store"
        elif not able_stores(number, targets, facts.choices):
            reason = "no other store could open them"
        if reason is not None:
            found.setdefault(reason, []).append(number)
    return found


def alike(reasons: Iterable[tuple[int, _R]]) -> Sequence[tuple[_R, Sequence[int]]]:
    """Each reason once, with its containers, so that a cause that many share is one line. Order: of first appearance."""
    found: dict[_R, list[int]] = {}
    for number, reason in reasons:
        found.setdefault(reason, []).append(number)
    return list(found.items())


def container_names(numbers: Collection[int]) -> str:
    """``container 3``, or ``containers 0, 2 to 5``. ``numbers``: at least one, all different."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"container{'' if len(numbers) == 1 else 's'} {', '.join(parts)}"
