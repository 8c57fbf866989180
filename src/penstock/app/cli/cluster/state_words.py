"""The state of a cluster as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.app.cli.common.output import print_facts, print_rows
from penstock.core.cluster.explanations import alike, container_names
from penstock.core.units import format_duration, format_size

if TYPE_CHECKING:
    from penstock.app.cluster.operations.logs import LogState
    from penstock.app.cluster.operations.reading import DamagedNode
    from penstock.app.cluster.operations.status import ClusterState, ContainerState, StoreState


def print_status(found: ClusterState, *, now_ms: int) -> None:
    """Print the state for people: tables, and then what needs attention, one line each. ``now_ms``: wall clock."""
    unserved = found.unserved
    away = f"{len(unserved)} of {len(found.containers)} are not served"
    config = found.config
    print_facts(
        {
            "cluster": "unknown" if config is None else config.cluster,
            "tier 2": "unknown" if config is None else config.tier2,
            "controller": _leader_of(found),
            "containers": away if unserved else f"all {len(found.containers)} are served",
        },
        as_json=False,
    )
    print_rows(
        ("controller", "role", "gRPC", "HTTP"),
        [(one.controller, "active" if one.active else "standby", one.grpc, one.http) for one in found.controllers],
        as_json=False,
    )
    print_rows(
        ("store", "state", "holds", "clients", "links"),
        [
            (
                one.name,
                _state_of(one),
                one.holds,
                "-" if one.entry is None else one.entry.clients,
                "-" if one.entry is None else one.entry.links,
            )
            for one in found.stores
        ],
        as_json=False,
    )
    print_rows(
        ("container", "assigned to", "held by", "state", "epoch", "not in tier 2", "ledgers"),
        [_container_row(one, now_ms) for one in found.containers],
        as_json=False,
    )
    for line in _notes(found):
        print(line)
    print_damaged(found.damaged)


def _container_row(one: ContainerState, now_ms: int) -> tuple[object, ...]:
    record = one.record
    return (
        one.number,
        one.assigned or "-",
        "-" if one.held is None else one.held.store,
        _container_state(one),
        "?" if record is None else record.epoch,
        _lag(one.log, now_ms),
        "?" if record is None else _ledgers(len(record.ledgers), one.log),
    )


def _container_state(one: ContainerState) -> str:
    if one.disabled is not None:
        words = ["disabled"]
    else:
        words = ["away" if one.held is None else "serving" if one.held.serving else "opening"]
    return "; ".join(words + ([f"pinned to {one.pinned}"] if one.pinned is not None else []))


def _lag(log: LogState | None, now_ms: int) -> str:
    if log is None or log.lag is None:
        return "?"
    if log.lag.since_ms is None:
        return "nothing"
    return f"{format_size(log.lag.size_bytes)}, {format_duration(max(0, now_ms - log.lag.since_ms))}"


def _ledgers(count: int, log: LogState | None) -> str:
    return f"{count}, {len(log.thin)} lack a copy" if log is not None and log.thin else str(count)


def _notes(found: ClusterState) -> Sequence[str]:
    """What waits, fails or is missing, one line each."""
    lines = [
        f"controller {one.controller} accepts no users and tokens: {one.outdated}"
        for one in found.controllers
        if one.outdated
    ]
    for store in found.stores:
        lines += [
            f"store {store.name} cannot be emptied: {reason} ({container_names(numbers)})"
            for reason, numbers in store.blocked.items()
        ]
    lines += [
        f"not served: {container_names(numbers)}: {reason}"
        for reason, numbers in alike((one.number, one.unserved) for one in found.containers if one.unserved is not None)
    ]
    lines += [
        f"could not be opened by {store}: {container_names(numbers)}: {reason}"
        for (store, reason), numbers in alike(
            (one.number, (bad.store, bad.reason))
            for one in found.containers
            if one.unserved is None
            for bad in one.failed
        )
    ]
    for one in found.containers:
        if one.log is not None:
            lines += [
                f"container {one.number}: ledger {thin.ledger} lacks a copy, because {', '.join(thin.absent)}"
                f" {'is' if len(thin.absent) == 1 else 'are'} not available"
                for thin in one.log.thin
            ]
            lines += [f"container {one.number}: its log cannot be read: {problem}" for problem in one.log.problems]
    lines += [f"logs cannot be read: {found.logs_unknown}"] if found.logs_unknown is not None else []
    return lines


def print_damaged(damaged: Sequence[DamagedNode]) -> None:
    """One line for each node, with what to do."""
    for one in damaged:
        print(f"node {one.node} is damaged: {one.reason}. To do: {one.action}")


def _leader_of(found: ClusterState) -> str:
    if found.leader is None:
        return "none is active"
    name = f"{found.leader.controller}, term {found.leader.term}"
    is_active = any(one.active and one.controller == found.leader.controller for one in found.controllers)
    return name if is_active else f"{name}, waits for containers"


def _state_of(store: StoreState) -> str:
    words = ["up" if store.entry is not None else "away"]
    words += ["drained"] if store.drained else []
    words += ["lost too often, gets no containers"] if store.flapping else []
    return ", ".join(words)


def status_json(found: ClusterState, *, now_ms: int) -> dict[str, Any]:
    """The state for programs. ``now_ms``: wall clock."""
    return {
        "cluster": None if found.config is None else asdict(found.config),
        "term": None if found.term is None else asdict(found.term),
        "leader": None if found.leader is None else asdict(found.leader),
        "level": found.level,
        "controllers": [asdict(one) for one in found.controllers],
        "stores": [asdict(one) for one in found.stores],
        "containers": [_container_json(one, now_ms) for one in found.containers],
        "unserved": list(found.unserved),
        "damaged": [asdict(one) for one in found.damaged],
        "logs_unknown": found.logs_unknown,
    }


def _container_json(one: ContainerState, now_ms: int) -> dict[str, Any]:
    log, record = one.log, one.record
    lag = None if log is None else log.lag
    return {
        "container": one.number,
        "assigned": one.assigned,
        "held": None if one.held is None else asdict(one.held),
        "epoch": None if record is None else record.epoch,
        "ledgers": None if record is None else len(record.ledgers),
        "pinned": one.pinned,
        "disabled": one.disabled,
        "unserved": one.unserved,
        "failed": [asdict(failed) for failed in one.failed],
        "lag_bytes": None if lag is None else lag.size_bytes,
        "lag_ms": None if lag is None else 0 if lag.since_ms is None else max(0, now_ms - lag.since_ms),
        "under_replicated": None if log is None else [asdict(thin) for thin in log.thin],
        "log_problems": None if log is None else list(log.problems),
    }
