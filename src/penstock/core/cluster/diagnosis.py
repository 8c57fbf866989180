"""What is wrong with a cluster, and what to do about it: pure functions of facts. Source: docs/how-to/cluster.md, "Find out
what is wrong"."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from penstock.core.units import counted
from penstock.model.ledgers import Bookie
from penstock.model.values.dataclass import dataclass

CLOCK_MS_MAX: Final = 5_000
"""Clocks that differ by more than this are reported. A registration may take a second while a leader is elected."""
ORPHAN_AGE_MS: Final = 86_400_000
"""A ledger that no record names is reported from this age on: a record may soon name a younger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line for an operator. ``action``: what to do. ``wrong``: something does not work, or is about to fail.
    Otherwise the finding needs no action now."""

    subject: str
    problem: str
    action: str
    wrong: bool = True

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}. To do: {self.action}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """A ledger as BookKeeper's metadata describe it. ``log``: uid of its log; None: the metadata do not contain it.
    ``created_ms``: wall clock, milliseconds since the Unix epoch; None: unknown. ``is_ours``: Penstock has created
    it."""

    ledger: int
    log: str | None
    created_ms: int | None
    is_ours: bool = True


def bookkeeper_findings(expected: str | None, found: str) -> list[Finding]:
    """``expected``: the INSTANCEID when the cluster was created; None: it was not noted."""
    if expected in (None, found):
        return []
    return [
        Finding(
            subject="BookKeeper",
            problem=f"it is not the one of the cluster: its INSTANCEID is {found}, not {expected}",
            action="bring the right BookKeeper back at its root. If its metadata were deleted, the log is lost: stop"
            " all stores and controllers, and see `penstock cluster doctor --rebuild`",
        )
    ]


def tier_findings(
    cluster: str, marks: Collection[str], parts: Mapping[int, tuple[str | None, str | None]]
) -> list[Finding]:
    """Whether tier 2 is the cluster's.

    Args:
        cluster: Its id. marks: Ids of the clusters whose marks tier 2 has. parts: For each container the mark that its part
        of tier 2 must have and the one that it has; None: there need not be one, or there is none.
    """
    if cluster not in marks:
        others = f"; it has that of {', '.join(sorted(marks))}" if marks else ""
        return [
            Finding(
                subject="tier 2",
                problem=f"it lacks the mark of this cluster{others}",
                action="check that the bucket or the mounted directory is the right one",
            )
        ]
    found = [
        Finding(
            subject="tier 2",
            problem=f"cluster {other} uses it too, and would delete objects that it does not know",
            action="stop one of the two clusters, and move its data elsewhere",
        )
        for other in sorted(marks)
        if other != cluster
    ]
    for number, (expected, mark) in sorted(parts.items()):
        if expected is not None and mark != expected:
            found.append(
                Finding(
                    subject=f"container {number}",
                    problem="its part of tier 2 has no mark"
                    if mark is None
                    else "its part of tier 2 belongs to another log",
                    action="check whether tier 2 was restored from a copy, or partly deleted",
                )
            )
    return found


def bookie_findings(
    writable: Sequence[Bookie], read_only: Collection[str], silent: Collection[str], *, copies: int, least: int
) -> list[Finding]:
    """``silent``: names of registered bookies that accept no connection. ``copies``: of each ledger; ``least``: the number
    below which nothing is written."""
    usable = [one.name for one in writable if one.name not in silent]
    found = []
    if len(usable) < least:
        found.append(
            Finding(
                subject="bookies",
                problem=f"{counted(len(usable), 'bookie')} can be written to, but appends need {least}, so they wait",
                action=f"start bookies until {copies} can be written to",
            )
        )
    elif len(usable) < copies:
        found.append(
            Finding(
                subject="bookies",
                problem=f"{counted(len(usable), 'bookie')} can be written to, so new ledgers have {len(usable)} copies, not"
                f" {copies}",
                action=f"start bookies until {copies} can be written to",
            )
        )
    found += [
        Finding(
            subject=f"bookie {name}",
            problem="it is read-only: its disk is full, or an operator has set this",
            action="free space on its disk, or add one; a bookie that has space takes entries again by itself",
        )
        for name in sorted(read_only)
    ]
    found += [
        Finding(
            subject=f"bookie {name}",
            problem="it is registered, but accepts no connections from here",
            action="check its process, its address and the network",
        )
        for name in sorted(silent)
    ]
    return found


def level_findings(in_force: int | None, processes: Mapping[str, int], *, own: int) -> list[Finding]:
    """``in_force``: None if its node is damaged. ``processes``: the level of each registered process, by name. ``own``: of
    this version."""
    found = []
    if in_force is not None and in_force > own:
        found.append(
            Finding(
                subject="this command",
                problem=f"its version writes formats up to level {own}, but the cluster has level {in_force}",
                action="install the version that the other machines run here",
            )
        )
    for name, level in sorted(processes.items()):
        if in_force is not None and level < in_force:
            found.append(
                Finding(
                    subject=name,
                    problem=f"it is too old: it writes formats up to level {level}, but the cluster has level {in_force}",
                    action="install the version that the other machines run there",
                )
            )
    levels = set(processes.values())
    if len(levels) > 1 or (in_force is not None and levels and min(levels) > in_force):
        behind = sorted(name for name, level in processes.items() if level < max(levels))
        found.append(
            Finding(
                subject="versions",
                problem="an upgrade is not finished"
                + (f": {', '.join(behind)} run an earlier version" if behind else ""),
                action="upgrade the other processes, and then run `penstock cluster upgrade`",
                wrong=False,
            )
        )
    return found


def address_findings(addresses: Mapping[str, str]) -> list[Finding]:
    """``addresses``: for each registered process and port its ``HOST:PORT``. Clients and controllers reach only one of
    two processes with the same address."""
    users: dict[str, list[str]] = {}
    for name, address in sorted(addresses.items()):
        users.setdefault(address, []).append(name)
    return [
        Finding(
            subject=" and ".join(names),
            problem=f"they show the same address {address}",
            action="give each process an address of its own, with --advertise and the options for ports",
        )
        for address, names in users.items()
        if len(names) > 1
    ]


def clock_findings(ahead_ms: Mapping[str, int]) -> list[Finding]:
    """``ahead_ms``: for each process how far its wall clock was ahead of ZooKeeper's when it registered."""
    return [
        Finding(
            subject=name,
            problem=f"its clock was {abs(ahead) / 1000:.0f} s {'ahead of' if ahead > 0 else 'behind'} ZooKeeper's when it"
            " registered",
            action="set the clocks of all machines by NTP, and restart it",
        )
        for name, ahead in sorted(ahead_ms.items())
        if abs(ahead) > CLOCK_MS_MAX
    ]


def orphan_findings(
    ledgers: Sequence[LedgerFacts], *, named: Collection[int], logs: Collection[str], now_ms: int
) -> list[Finding]:
    """Ledgers of the cluster's own logs that no record names, because their owner died between two steps. ``named``:
    those that records name. ``logs``: uids of the logs."""
    orphans = [
        one.ledger
        for one in ledgers
        if one.log in logs
        and one.ledger not in named
        and one.created_ms is not None
        and now_ms - one.created_ms >= ORPHAN_AGE_MS
    ]
    return [
        Finding(
            subject=f"ledger {ledger}",
            problem="it is older than a day, and no record names it; it only takes up space on bookies",
            action=f"delete it: bin/bookkeeper shell deleteledger -ledgerid {ledger}",
            wrong=False,
        )
        for ledger in sorted(orphans)
    ]
