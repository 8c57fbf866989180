"""Why a container is not served, and why a store that is drained is not empty, in words for operators.

The rules are those of ``placement``. Source: docs/how-to/cluster.md, "Watch it".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.core.cluster.placement import Choices, StoreFacts, able_stores, receivers


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
