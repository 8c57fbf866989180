"""Opens what a rebuild needs, from what the operator still knows: the addresses of ZooKeeper and of tier 2."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.init import MARKS, ClusterPlan
from penstock.app.cluster.operations.rebuild import RebuildReport, Sources, rebuild_nodes
from penstock.app.tier2 import shared_objects
from penstock.codec.store.cluster_nodes import ClusterConfig
from penstock.model.errors import CorruptDataError, InvalidArgumentError, NotFoundError
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.cluster.namespace import adopt_namespace, find_namespace, remove_namespace
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.cluster.zookeeper import open_zookeeper
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.inspection import open_inspection
from penstock.storage.machine.clock import boot_seconds

_MARK_MAX_BYTES = 4096
_QUIET_S = 10.0
"""How long to wait between two looks for running processes. One that lost its session comes back within a second, and one
that is cut off stops answering after two thirds of its session, which lasts four seconds unless ZooKeeper makes it longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """``tier2``, ``endpoint`` and ``ledgers``: as at ``cluster init``. ``insecure``: tier 2 may be reached over plain HTTP.
    ``accept_loss``: continue without what is lost. ``reason``: of the operator, recorded if something is lost."""

    tier2: str
    endpoint: str | None
    ledgers: str
    insecure: bool
    accept_loss: bool
    reason: str


async def rebuild_cluster(
    address: ClusterAddress, plan: RebuildPlan, *, clock: Clock, rng: Rng, offload: Offload
) -> RebuildReport:
    """Rebuild the nodes of the cluster that tier 2 names. Raises as ``rebuild_nodes`` and ``adopt_namespace``;
    NotFoundError: tier 2 has no mark of a cluster, or no BookKeeper is there."""
    config = await _config_of(plan, offload)
    async with (
        open_nodes(address.hosts) as nodes,
        open_ledgers(nodes, root=config.ledgers, clock=clock, rng=rng) as ledgers,
        open_inspection(nodes, root=config.ledgers) as inspection,
    ):
        instance = await inspection.nodes.check_layout()
        sources = Sources(ledgers=ledgers, inspection=inspection, part=partial(_part, plan, offload))
        async with _root(address, config.cluster, rng=rng, offload=offload) as (coordination, applied):
            await asyncio.sleep(_QUIET_S)
            report = await rebuild_nodes(
                coordination,
                replace(config, bookkeeper=instance),
                sources,
                accept_loss=plan.accept_loss,
                reason=plan.reason,
                clock=clock,
                rng=rng,
            )
            if report.applied:
                applied()
            return report


@asynccontextmanager
async def _root(
    address: ClusterAddress, cluster: str, *, rng: Rng, offload: Offload
) -> AsyncIterator[tuple[Coordination, Callable[[], None]]]:
    """A session at the root, which is created if it is missing; unless ``applied`` is called, it is then deleted again."""
    is_new = await find_namespace(address.hosts, address.root, offload=offload) is None
    is_applied = False

    def applied() -> None:
        nonlocal is_applied
        is_applied = True

    await adopt_namespace(address.hosts, address.root, cluster=cluster, offload=offload)
    try:
        async with open_zookeeper(
            address.hosts, address.root, cluster=cluster, boot_clock=boot_seconds, rng=rng, offload=offload
        ) as coordination:
            yield coordination, applied
    finally:
        if is_new and not is_applied:
            await remove_namespace(address.hosts, address.root, cluster=cluster, offload=offload)


async def _config_of(plan: RebuildPlan, offload: Offload) -> ClusterConfig:
    """The settings of the cluster, as its mark in tier 2 and the plan have them."""
    objects = shared_objects(plan.tier2, plan.endpoint, insecure=plan.insecure, offload=offload)
    names = list(await objects.list(MARKS))
    if not names:
        raise NotFoundError("tier 2 has no mark of a cluster: check --tier2", tier2=plan.tier2)
    if len(names) > 1:
        raise InvalidArgumentError(
            "tier 2 has the marks of several clusters: delete those that were never used", marks=", ".join(names)
        )
    try:
        fields = json.loads(await objects.read(names[0], 0, _MARK_MAX_BYTES))
        cluster, containers = str(fields["cluster"]), int(fields["containers"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("mark of the cluster in tier 2 cannot be read", object=names[0]) from error
    wanted = ClusterPlan(
        tier2=plan.tier2, endpoint=plan.endpoint, containers=containers, ledgers=plan.ledgers, insecure=plan.insecure
    )
    return wanted.config(cluster)


async def _part(plan: RebuildPlan, offload: Offload, number: int) -> Objects:
    """The part of tier 2 of a container. Its directory is created if it is missing."""
    part = f"container-{number}"
    if url_parts(plan.tier2).scheme:
        place = f"{plan.tier2.rstrip('/')}/{part}"
    else:
        place = await offload.run(lambda: _made(Path(plan.tier2) / part))
    return shared_objects(place, plan.endpoint, insecure=plan.insecure, offload=offload)


def _made(directory: Path) -> str:
    directory.mkdir(mode=0o700, exist_ok=True)
    return str(directory.absolute())
