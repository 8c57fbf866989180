"""What an operator sees of a cluster, and the request to empty a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.init import read_config
from penstock.app.cluster.keeper import first_of, wake_on_changes
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONTAINERS,
    CONTROLLERS,
    HELD,
    LEADER,
    STORES,
    TERM,
    WISHES,
    Assignment,
    ClusterConfig,
    ControllerEntry,
    HeldContainer,
    StoreEntry,
    Term,
    Wishes,
    decode_node,
    encode_node,
)
from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.core.cluster.placement import StoreFacts, flaps
from penstock.model.errors import NodeChangedError, NodeNotFoundError, NotFoundError
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.cluster.zookeeper import open_zookeeper
from penstock.storage.machine.clock import boot_seconds

_ATTEMPTS: Final = 16
"""Changes of the wishes by others that are followed; operators are few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState:
    """``entry``: None if the store is not registered. ``flaps``: it was lost so often that it gets no containers for now.
    ``holds``: containers that it holds."""

    name: str
    entry: StoreEntry | None
    drained: bool
    flaps: bool
    holds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """``assigned``: the store that should own it. ``held``: who holds it now; None: nobody."""

    number: int
    assigned: str | None
    held: HeldContainer | None
    record: ContainerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster as its nodes show it; they are read one after another. All lists are sorted. ``leader``: the election that is
    in force; its controller is active once it reaches the containers. None: there is none."""

    config: ClusterConfig
    term: Term
    leader: Term | None
    stores: Sequence[StoreState]
    controllers: Sequence[ControllerEntry]
    containers: Sequence[ContainerState]

    @property
    def unserved(self) -> Sequence[int]:
        """Containers that no store serves now."""
        return [one.number for one in self.containers if one.held is None or not one.held.serving]


@asynccontextmanager
async def open_cluster(address: ClusterAddress, *, rng: Rng, offload: Offload) -> AsyncIterator[Coordination]:
    """A session of an operator. Raises as ``open_zookeeper``."""
    async with open_zookeeper(
        address.hosts, address.root, cluster=None, boot_clock=boot_seconds, rng=rng, offload=offload
    ) as coordination:
        yield coordination


_N = TypeVar("_N", Term, StoreEntry, ControllerEntry, HeldContainer)


async def cluster_state(coordination: Coordination, *, now_ms: int) -> ClusterState:
    """The state of the cluster. ``now_ms``: wall clock. Raises NotFoundError: its creation was not finished."""
    config = await read_config(coordination)
    await coordination.sync()
    wishes = decode_node(Wishes, (await coordination.read(WISHES)).data)
    assignment = decode_node(Assignment, (await coordination.read(ASSIGNMENT)).data)
    stores = {
        name: await _entry(coordination, f"{STORES}/{name}", StoreEntry) for name in await coordination.members(STORES)
    }
    controllers = [
        await _entry(coordination, f"{CONTROLLERS}/{name}", ControllerEntry)
        for name in await coordination.members(CONTROLLERS)
    ]
    containers = [await _container(coordination, number, assignment) for number in range(config.containers)]
    # A store may have left, and still own containers on paper.
    names = sorted(
        {*stores, *wishes.drained, *assignment.owners.values(), *(one.held.store for one in containers if one.held)}
    )
    return ClusterState(
        config=config,
        term=decode_node(Term, (await coordination.read(TERM)).data),
        leader=await _entry(coordination, LEADER, Term),
        stores=[
            StoreState(
                name=name,
                entry=stores.get(name),
                drained=name in wishes.drained,
                flaps=flaps(StoreFacts(name=name, losses_ms=assignment.losses_ms.get(name, ())), now_ms=now_ms),
                holds=sum(one.held is not None and one.held.store == name for one in containers),
            )
            for name in names
        ],
        controllers=[one for one in controllers if one is not None],
        containers=containers,
    )


async def _entry(coordination: Coordination, path: str, kind: type[_N]) -> _N | None:
    try:
        return decode_node(kind, (await coordination.read(path)).data)
    except NodeNotFoundError:
        return None


async def _container(coordination: Coordination, number: int, assignment: Assignment) -> ContainerState:
    node = await coordination.read(f"{CONTAINERS}/{number}")
    return ContainerState(
        number=number,
        assigned=assignment.owners.get(number),
        held=await _entry(coordination, f"{HELD}/{number}", HeldContainer),
        record=decode_record(node.data),
    )


async def wish_drained(coordination: Coordination, store: str, *, drained: bool) -> bool:
    """Note that the store should be empty, or not any more. Returns whether this changed anything.

    Raises NotFoundError: no store of this name is registered, or owns a container. NodeChangedError: others change the
    wishes all the time.
    """
    for _ in range(_ATTEMPTS):
        await coordination.sync()
        node = await coordination.read(WISHES)
        wishes = decode_node(Wishes, node.data)
        if drained and store not in wishes.drained:
            await _check_known(coordination, store)
        names = {*wishes.drained, store} if drained else set(wishes.drained) - {store}
        after = Wishes(drained=tuple(sorted(names)))
        if after == wishes:
            return False
        try:
            await coordination.set(WISHES, encode_node(after), node.version)
        except NodeChangedError:
            continue
        return True
    raise NodeChangedError("the wishes of the cluster change all the time", node=WISHES, expected=node.version)


async def _check_known(coordination: Coordination, store: str) -> None:
    registered = await coordination.members(STORES)
    assignment = decode_node(Assignment, (await coordination.read(ASSIGNMENT)).data)
    if store not in registered and store not in assignment.owners.values():
        raise NotFoundError("the cluster has no store of this name", store=store, stores=", ".join(registered))


async def until_drained(coordination: Coordination, store: str, progress: Callable[[int], None]) -> None:
    """Wait until the store holds no container, and none is assigned to it. ``progress`` gets the number of those that are
    left, whenever it changes. Raises NotFoundError: the store is no longer drained."""
    containers = (await read_config(coordination)).containers
    wake = asyncio.Event()
    watching = asyncio.ensure_future(wake_on_changes(coordination, (ASSIGNMENT, WISHES, HELD), wake))
    last: int | None = None
    try:
        while True:
            wake.clear()
            left = await _left(coordination, store, containers)
            if left != last:
                progress(left)
                last = left
            if not left:
                return
            await first_of(wake, [watching])
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _left(coordination: Coordination, store: str, containers: int) -> int:
    wishes = decode_node(Wishes, (await coordination.read(WISHES)).data)
    if store not in wishes.drained:
        raise NotFoundError("the store is no longer drained", store=store)
    assignment = decode_node(Assignment, (await coordination.read(ASSIGNMENT)).data)
    left = {number for number, owner in assignment.owners.items() if owner == store}
    for number in range(containers):
        held = await _entry(coordination, f"{HELD}/{number}", HeldContainer)
        if held is not None and held.store == store:
            left.add(number)
    return len(left)
