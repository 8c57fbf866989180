"""What an operator sees of a cluster, and the request to empty a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.init import read_config
from penstock.app.cluster.keeper import failed_openings, first_of, wake_on_changes
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONTAINERS,
    CONTROLLERS,
    FAILED,
    HELD,
    LEADER,
    STORES,
    TERM,
    WISHES,
    Assignment,
    ClusterConfig,
    ControllerEntry,
    FailedOpening,
    HeldContainer,
    StoreEntry,
    Term,
    Wishes,
    decode_node,
    encode_node,
    failed_path,
)
from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.core.cluster.placement import StoreFacts, flaps
from penstock.model.errors import (
    ConflictError,
    InvalidArgumentError,
    NodeChangedError,
    NodeNotFoundError,
    NotFoundError,
)
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
    """``assigned``: the store that should own it. ``held``: who holds it now; None: nobody. ``pinned``: the store that an
    operator has chosen for it. ``failed``: why stores could not open it."""

    number: int
    assigned: str | None
    held: HeldContainer | None
    record: ContainerRecord
    pinned: str | None = None
    failed: Sequence[FailedOpening] = ()


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


_N = TypeVar("_N", Term, StoreEntry, ControllerEntry, HeldContainer, FailedOpening)


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
    failed = await _failures(coordination)
    containers = [
        replace(
            await _container(coordination, number, assignment),
            pinned=wishes.pinned.get(number),
            failed=[one for one in failed if one.container == number],
        )
        for number in range(config.containers)
    ]
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


async def _failures(coordination: Coordination) -> Sequence[FailedOpening]:
    pairs = sorted(await failed_openings(coordination))
    found = [await _entry(coordination, failed_path(number, store), FailedOpening) for number, store in pairs]
    return [one for one in found if one is not None]


async def wish_pinned(coordination: Coordination, container: int, store: str | None) -> bool:
    """Note that the container should be in this store, and stay there; None: it may be anywhere again. Returns whether this
    changed anything.

    Raises InvalidArgumentError (no such container), NotFoundError (no store of this name is registered), ConflictError (the
    store is drained), NodeChangedError (others change the wishes all the time).
    """
    config = await read_config(coordination)
    if not 0 <= container < config.containers:
        raise InvalidArgumentError("no such container", container=container, containers=f"0 to {config.containers - 1}")

    async def change(wishes: Wishes) -> Wishes:
        pinned = {number: name for number, name in wishes.pinned.items() if number != container}
        if store is None:
            return replace(wishes, pinned=pinned)
        registered = await coordination.members(STORES)
        if store not in registered:
            raise NotFoundError("the cluster has no store of this name", store=store, stores=", ".join(registered))
        if store in wishes.drained:
            raise ConflictError("the store is drained; undrain it first", store=store)
        return replace(wishes, pinned={**pinned, container: store})

    return await _change_wishes(coordination, change)


async def until_moved(coordination: Coordination, container: int, store: str, progress: Callable[[str], None]) -> float:
    """Wait until the store serves the container. Returns for how many seconds no store did, as seen from here. ``progress``
    gets what happens, whenever it changes. Raises NotFoundError (the container is no longer pinned to the store, or the store
    is lost), ConflictError (the store is drained, or could not open the container)."""
    loop = asyncio.get_running_loop()
    wake, away_s, away_since = asyncio.Event(), 0.0, None
    watching = asyncio.ensure_future(
        wake_on_changes(coordination, (WISHES, STORES, FAILED, f"{HELD}/{container}"), wake)
    )
    last = ""
    try:
        while True:
            wake.clear()
            await _check_pinned(coordination, container, store)
            held = await _entry(coordination, f"{HELD}/{container}", HeldContainer)
            is_served = held is not None and held.serving
            if away_since is not None and is_served:
                away_s, away_since = away_s + loop.time() - away_since, None
            elif away_since is None and not is_served:
                away_since = loop.time()
            if held is not None and is_served and held.store == store:
                return away_s
            state = "nobody" if held is None else f"{held.store}, which {'serves' if held.serving else 'opens'} it"
            if state != last:
                progress(f"container {container} is held by {state}")
                last = state
            await first_of(wake, [watching])
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _check_pinned(coordination: Coordination, container: int, store: str) -> None:
    """Raises NotFoundError or ConflictError if the store will not get the container now. The pin stays."""
    wishes = decode_node(Wishes, (await coordination.read(WISHES)).data)
    if wishes.pinned.get(container) != store:
        raise NotFoundError("the container may be anywhere again", container=container, store=store)
    if store not in await coordination.members(STORES):
        raise NotFoundError("the store is lost; it gets the container when it is back", store=store)
    if store in wishes.drained:
        raise ConflictError("the store is drained; it gets the container when it no longer is", store=store)
    for failure in await _failures(coordination):
        if (failure.container, failure.store) == (container, store):
            raise ConflictError("the store cannot open the container", store=store, reason=failure.reason)


async def wish_drained(coordination: Coordination, store: str, *, drained: bool) -> bool:
    """Note that the store should be empty, or not any more. Returns whether this changed anything.

    Raises NotFoundError: no store of this name is registered, or owns a container. NodeChangedError: others change the
    wishes all the time.
    """

    async def change(wishes: Wishes) -> Wishes:
        if drained and store not in wishes.drained:
            await _check_known(coordination, store)
        names = {*wishes.drained, store} if drained else set(wishes.drained) - {store}
        return replace(wishes, drained=tuple(sorted(names)))

    return await _change_wishes(coordination, change)


async def _change_wishes(coordination: Coordination, change: Callable[[Wishes], Awaitable[Wishes]]) -> bool:
    """Replace the wishes by compare-and-set. Returns whether they differ. Raises NodeChangedError, and what ``change``
    raises."""
    for _ in range(_ATTEMPTS):
        await coordination.sync()
        node = await coordination.read(WISHES)
        wishes = decode_node(Wishes, node.data)
        after = await change(wishes)
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
