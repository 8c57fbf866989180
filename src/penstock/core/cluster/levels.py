"""Levels: which formats the processes of a cluster may write. Source: docs/design/0065-cluster.md, "Upgrades".

A version of Penstock can write all formats up to its level. The level in force of a cluster is raised by an operator once
all processes can write it, so during an upgrade no process writes what another one cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.model.values.dataclass import dataclass

LEVEL: Final = 2
"""The level of this version. Raise it when a format changes that another process of the cluster, or the next owner of a
container, must understand."""

SEALED_LEDGERS: Final = 2
"""From this level on, logs begin encrypted ledgers: version 2 of their format, and format 3 of their records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPlan:
    """``before``: the level in force; None: unknown, because its node is damaged.
    ``after``: the highest one that all can write. ``behind``: names of the processes that
    keep it from rising further, sorted, and ``possible``: how far it would rise without them."""

    before: int | None
    after: int
    possible: int
    behind: Sequence[str]


def plan_level(in_force: int | None, processes: Mapping[str, int], *, own: int) -> LevelPlan:
    """How far the level can rise.

    Args:
        in_force: The current level, which never falls; None: unknown. Each registered process can write it, so their lowest
        level is not below it. processes: The level of each registered process, by name.
        own: The level of the version that asks. It counts too: a store of this version may be started next.
    """
    levels = {"this command": own, **processes}
    least = min(processes.values(), default=own) if in_force is None else in_force
    possible = max(least, *levels.values())
    after = max(least, min(levels.values()))
    behind = [name for name, level in levels.items() if level < possible]
    return LevelPlan(before=in_force, after=after, possible=possible, behind=sorted(behind))
