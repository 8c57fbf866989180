"""What an operator sees of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import field

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.operations.logs import LogState, log_states
from penstock.app.cluster.operations.reading import DamagedNode, NodeReader
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONFIG,
    CONTAINERS,
    CONTROLLERS,
    FAILED,
    FEATURES,
    HOLDERS,
    LEADER,
    REQUESTS,
    SECRET,
    STORES,
    TERM,
    Assignment,
    ClusterConfig,
    ControllerEntry,
    FailedOpening,
    Features,
    HeldContainer,
    Requests,
    SecretDigests,
    StoreEntry,
    Term,
    failed_pairs,
    failed_path,
)
from penstock.codec.store.container_record import ContainerRecord
from penstock.core.cluster.explanations import ClusterFacts, why_not_drained, why_unserved
from penstock.core.cluster.placement import Choices, StoreFacts, flaps
from penstock.model.errors import NodeNotFoundError, NotFoundError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.cluster.zookeeper import open_zookeeper
from penstock.storage.ledgers.inspection import LedgerInspection, open_inspection
from penstock.storage.machine.clock import boot_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """``entry``: None if the store is not registered, or its registration is damaged. ``flapping``: it was lost so often that
    it gets no containers for now. ``holds``: containers that it holds. ``blocked``: if it is drained, why containers cannot
    leave it now, each reason with the containers."""

    name: str
    entry: StoreEntry | None
    drained: bool
    flapping: bool
    holds: int
    blocked: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """``assigned``: the store that should own it. ``held``: who holds it now; None: nobody. ``record``: None if it is
    damaged. ``pinned``: the store that an operator has chosen for it. ``disabled``: why no store may open it; None: it is
    enabled. ``failed``: why stores could not open it. ``unserved``: why no store serves it; None: one does. ``log``: None if
    BookKeeper was not asked, or does not answer."""

    number: int
    assigned: str | None
    held: HeldContainer | None
    record: ContainerRecord | None
    pinned: str | None = None
    disabled: str | None = None
    failed: Sequence[FailedOpening] = ()
    unserved: str | None = None
    log: LogState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster as its nodes show it; they are read one after another. All lists are sorted. ``config``: None if it is
    damaged. ``leader``: the election that is in force; its controller is active once it reaches the containers. None: there
    is none. ``secret``: which secrets are valid; None: the cluster records none. ``damaged``: nodes that cannot be read; they
    count as missing. ``logs_unknown``: why no log was looked at; None: all were."""

    config: ClusterConfig | None
    leader: Term | None
    stores: Sequence[StoreState]
    controllers: Sequence[ControllerEntry]
    containers: Sequence[ContainerState]
    term: Term | None = None
    level: int | None = None
    secret: SecretDigests | None = None
    damaged: Sequence[DamagedNode] = ()
    logs_unknown: str | None = None

    @property
    def unserved(self) -> Sequence[int]:
        """Containers that no store serves now."""
        return [one.number for one in self.containers if one.held is None or not one.held.serving]


Inspect = Callable[[ClusterConfig], AbstractAsyncContextManager[LedgerInspection]]
"""Opens a look into the ledgers of a cluster. Raises PenstockError."""


@asynccontextmanager
async def open_cluster(address: ClusterAddress, *, rng: Rng, offload: Offload) -> AsyncIterator[Coordination]:
    """A session of an operator. Raises as ``open_zookeeper``."""
    async with open_zookeeper(
        address.hosts, address.root, cluster=None, boot_clock=boot_seconds, rng=rng, offload=offload
    ) as coordination:
        yield coordination


def inspect_at(address: ClusterAddress) -> Inspect:
    """A look into the ledgers of the cluster at this address."""

    @asynccontextmanager
    async def inspect(config: ClusterConfig) -> AsyncIterator[LedgerInspection]:
        async with open_nodes(address.hosts) as nodes, open_inspection(nodes, root=config.ledgers) as inspection:
            yield inspection

    return inspect


async def cluster_state(coordination: Coordination, *, now_ms: int, inspect: Inspect | None = None) -> ClusterState:
    """The state of the cluster. ``now_ms``: wall clock. ``inspect``: None if logs are not looked at.

    A node that is damaged is listed as such, and hides nothing else. Raises NotFoundError: the creation of the cluster was
    not finished.
    """
    await coordination.sync()
    reader = NodeReader(coordination)
    config = await _config(coordination, reader)
    nodes = await _nodes(reader, config)
    logs: Mapping[int, LogState] = {}
    logs_unknown = None
    if inspect is not None and config is not None:
        try:
            async with inspect(config) as inspection:
                logs = await log_states({n: one for n, one in nodes.records.items() if one is not None}, inspection)
        except PenstockError as error:
            logs_unknown = str(error)
    return ClusterState(
        config=config,
        term=await reader.needed(TERM, Term),
        leader=await reader.registration(LEADER, Term),
        level=await _level(reader),
        secret=await reader.registration(SECRET, SecretDigests),
        stores=_store_states(nodes, now_ms),
        controllers=nodes.controllers,
        containers=[_container_state(number, nodes, logs.get(number)) for number in nodes.records],
        damaged=sorted(reader.damaged, key=lambda one: one.node),
        logs_unknown=logs_unknown,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """What was read. ``names``: of the stores that are registered, damaged or not."""

    requests: Requests
    assignment: Assignment
    names: Sequence[str]
    stores: Mapping[str, StoreEntry]
    controllers: Sequence[ControllerEntry]
    failed: Sequence[FailedOpening]
    held: Mapping[int, HeldContainer]
    records: Mapping[int, ContainerRecord | None]
    facts: ClusterFacts


async def _config(coordination: Coordination, reader: NodeReader) -> ClusterConfig | None:
    try:
        await coordination.read(CONFIG)
    except NodeNotFoundError as error:
        if not await reader.members(CONTAINERS, needed=False):
            raise NotFoundError(
                "the creation of the cluster was not finished: repeat `penstock cluster init`. If the cluster was in use"
                " before, see `penstock cluster doctor`"
            ) from error
    return await reader.needed(CONFIG, ClusterConfig)


async def _nodes(reader: NodeReader, config: ClusterConfig | None) -> _Nodes:
    requests = await reader.needed(REQUESTS, Requests) or Requests()
    assignment = await reader.needed(ASSIGNMENT, Assignment) or Assignment()
    names = await reader.members(STORES)
    stores = {name: await reader.registration(f"{STORES}/{name}", StoreEntry) for name in names}
    controller_names = await reader.members(CONTROLLERS)
    controllers = [await reader.registration(f"{CONTROLLERS}/{name}", ControllerEntry) for name in controller_names]
    pairs = sorted(failed_pairs(await reader.members(FAILED, needed=False)))
    failed = [await reader.registration(failed_path(number, store), FailedOpening) for number, store in pairs]
    numbers = range(config.containers) if config is not None else _numbers(await reader.members(CONTAINERS))
    held = {number: await reader.registration(f"{HOLDERS}/{number}", HeldContainer) for number in numbers}
    known_failures = [one for one in failed if one is not None]
    facts = ClusterFacts(
        stores={
            name: StoreFacts(name=name, draining=name in requests.drained, losses_ms=assignment.losses_ms.get(name, ()))
            for name in names
        },
        controllers=bool(controller_names),
        choices=Choices(pinned=requests.pinned, failed=frozenset(pairs), disabled=frozenset(requests.disabled)),
        reasons={(one.container, one.store): one.reason for one in known_failures},
        disabled=requests.disabled,
    )
    return _Nodes(
        requests=requests,
        assignment=assignment,
        names=names,
        stores={name: one for name, one in stores.items() if one is not None},
        controllers=[one for one in controllers if one is not None],
        failed=known_failures,
        held={number: one for number, one in held.items() if one is not None},
        records={number: await reader.record(number) for number in numbers},
        facts=facts,
    )


def _numbers(names: Sequence[str]) -> Sequence[int]:
    """The containers with these names of nodes."""
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


async def _level(reader: NodeReader) -> int | None:
    """The level in force; None: its node is damaged. Clusters of the first version have no such node."""
    noted = len(reader.damaged)
    features = await reader.registration(FEATURES, Features)
    if features is not None:
        return features.level
    return None if len(reader.damaged) > noted else 1


def _store_states(nodes: _Nodes, now_ms: int) -> Sequence[StoreState]:
    owners = nodes.assignment.owners
    # Containers may still be assigned to a store that has left.
    names = sorted(
        {*nodes.names, *nodes.requests.drained, *owners.values(), *(one.store for one in nodes.held.values())}
    )
    found = []
    for name in names:
        held = {number for number, one in nodes.held.items() if one.store == name}
        left = held | {number for number, store in owners.items() if store == name}
        drained = name in nodes.requests.drained
        losses = StoreFacts(name=name, losses_ms=nodes.assignment.losses_ms.get(name, ()))
        found.append(
            StoreState(
                name=name,
                entry=nodes.stores.get(name),
                drained=drained,
                flapping=flaps(losses, now_ms=now_ms),
                holds=len(held),
                blocked=why_not_drained(name, left, facts=nodes.facts, now_ms=now_ms) if drained else {},
            )
        )
    return found


def _container_state(number: int, nodes: _Nodes, log: LogState | None) -> ContainerState:
    held, assigned = nodes.held.get(number), nodes.assignment.owners.get(number)
    unserved = None
    if held is None or not held.serving:
        holder = None if held is None else held.store
        unserved = why_unserved(number, assigned=assigned, holder=holder, facts=nodes.facts)
    return ContainerState(
        number=number,
        assigned=assigned,
        held=held,
        record=nodes.records[number],
        pinned=nodes.requests.pinned.get(number),
        disabled=nodes.requests.disabled.get(number),
        failed=[one for one in nodes.failed if one.container == number],
        unserved=unserved,
        log=log,
    )
