"""What operators want of a cluster: stores that are drained, and containers that are pinned or disabled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from penstock.app.cluster.init import read_config
from penstock.app.cluster.keeper import failed_openings, first_of, wake_on_changes
from penstock.app.cluster.operations.status import cluster_state
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONTROLLERS,
    FAILED,
    HOLDERS,
    REQUESTS,
    STORES,
    Assignment,
    FailedOpening,
    HeldContainer,
    Requests,
    decode_node,
    encode_node,
    failed_path,
)
from penstock.model.errors import (
    ConflictError,
    InvalidArgumentError,
    NodeChangedError,
    NodeNotFoundError,
    NotFoundError,
)
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Coordination

_ATTEMPTS: Final = 16
"""How often a change is repeated because others changed the requests; operators are few."""
REASON_CHARS_MAX: Final = 200
"""Of a disabled container: all of them share one node of the coordinator."""


async def request_pinned(coordination: Coordination, container: int, store: str | None) -> bool:
    """Note that the container should be in this store, and stay there; None: it may be anywhere again. Returns whether this
    changed anything.

    Raises InvalidArgumentError (no such container), NotFoundError (no store of this name is registered), ConflictError
    (the store is drained), NodeChangedError (others keep changing the requests).
    """
    await _check_container(coordination, container)

    async def change(requests: Requests) -> Requests:
        pinned = {number: name for number, name in requests.pinned.items() if number != container}
        if store is None:
            return replace(requests, pinned=pinned)
        registered = await coordination.members(STORES)
        if store not in registered:
            raise NotFoundError("the cluster has no store of this name", store=store, stores=", ".join(registered))
        if store in requests.drained:
            raise ConflictError("the store is drained; undrain it first", store=store)
        return replace(requests, pinned={**pinned, container: store})

    return await _change_requests(coordination, change)


async def until_moved(coordination: Coordination, container: int, store: str, progress: Callable[[str], None]) -> float:
    """Wait until the store serves the container. Returns for how many seconds no store did, as seen from here. ``progress``
    gets what happens, whenever it changes. Raises NotFoundError (the container is no longer pinned to the store, or the store
    is lost), ConflictError (the store is drained, or could not open the container)."""
    loop = asyncio.get_running_loop()
    wake, unserved_s, unserved_since = asyncio.Event(), 0.0, None
    watching = asyncio.ensure_future(
        wake_on_changes(coordination, (REQUESTS, STORES, FAILED, f"{HOLDERS}/{container}"), wake)
    )
    last = ""
    try:
        while True:
            wake.clear()
            await _check_pinned(coordination, container, store)
            held = await _holder(coordination, container)
            is_served = held is not None and held.serving
            if unserved_since is not None and is_served:
                unserved_s, unserved_since = unserved_s + loop.time() - unserved_since, None
            elif unserved_since is None and not is_served:
                unserved_since = loop.time()
            if held is not None and is_served and held.store == store:
                return unserved_s
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
    requests = decode_node(Requests, (await coordination.read(REQUESTS)).data)
    if requests.pinned.get(container) != store:
        raise NotFoundError("the container is no longer pinned to the store", container=container, store=store)
    if store not in await coordination.members(STORES):
        raise NotFoundError("the store is lost; it gets the container once it is back", store=store)
    if store in requests.drained:
        raise ConflictError("the store is drained; undrain it to let it have the container", store=store)
    if (container, store) in await failed_openings(coordination):
        try:
            failure = decode_node(FailedOpening, (await coordination.read(failed_path(container, store))).data)
        except NodeNotFoundError:
            return  # it has just been deleted, so the store is asked again
        raise ConflictError("the store cannot open the container", store=store, reason=failure.reason)


async def request_disabled(coordination: Coordination, container: int, reason: str | None) -> bool:
    """Note that no store may open the container, and why; None: stores may. Returns whether this changed anything.

    Raises InvalidArgumentError (no such container; the reason is empty or too long), NodeChangedError (others keep
    changing the requests).
    """
    await _check_container(coordination, container)
    if reason is not None and not 1 <= len(reason) <= REASON_CHARS_MAX:
        raise InvalidArgumentError("a reason needs 1 to 200 characters", characters=len(reason))

    async def change(requests: Requests) -> Requests:
        disabled = {number: why for number, why in requests.disabled.items() if number != container}
        return replace(requests, disabled=disabled if reason is None else {**disabled, container: reason})

    return await _change_requests(coordination, change)


async def until_closed(coordination: Coordination, container: int, progress: Callable[[str], None]) -> None:
    """Wait until no store holds the disabled container; none can open it then, until it is enabled. ``progress`` gets the
    name of the store that holds it, whenever it changes. Raises NotFoundError: it is enabled again."""
    wake, last = asyncio.Event(), ""
    watching = asyncio.ensure_future(wake_on_changes(coordination, (REQUESTS, f"{HOLDERS}/{container}"), wake))
    try:
        while True:
            wake.clear()
            # A store registers before it reads the requests. So a store that is not seen here will see them.
            await coordination.sync()
            requests = decode_node(Requests, (await coordination.read(REQUESTS)).data)
            if container not in requests.disabled:
                raise NotFoundError("the container is no longer disabled", container=container)
            held = await _holder(coordination, container)
            if held is None:
                return
            if held.store != last:
                progress(held.store)
                last = held.store
            await first_of(wake, [watching])
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def request_drained(coordination: Coordination, store: str, *, drained: bool) -> bool:
    """Note that the store should be empty, or not any more. Returns whether this changed anything.

    Raises NotFoundError: no store of this name is registered, or owns a container. NodeChangedError: others keep
    changing the requests.
    """

    async def change(requests: Requests) -> Requests:
        if drained and store not in requests.drained:
            await _check_known(coordination, store)
        names = {*requests.drained, store} if drained else set(requests.drained) - {store}
        return replace(requests, drained=tuple(sorted(names)))

    return await _change_requests(coordination, change)


async def _change_requests(coordination: Coordination, change: Callable[[Requests], Awaitable[Requests]]) -> bool:
    """Replace the requests by compare-and-set. Returns whether they differ. Raises NodeChangedError, and what ``change``
    raises."""
    for _ in range(_ATTEMPTS):
        await coordination.sync()
        node = await coordination.read(REQUESTS)
        requests = decode_node(Requests, node.data)
        after = await change(requests)
        if after == requests:
            return False
        try:
            await coordination.set(REQUESTS, encode_node(after), node.version)
        except NodeChangedError:
            continue
        return True
    raise NodeChangedError(
        "the requests of operators (node requests) keep changing; try again", node=REQUESTS, expected=node.version
    )


async def _check_known(coordination: Coordination, store: str) -> None:
    registered = await coordination.members(STORES)
    assignment = decode_node(Assignment, (await coordination.read(ASSIGNMENT)).data)
    if store not in registered and store not in assignment.owners.values():
        raise NotFoundError("the cluster has no store of this name", store=store, stores=", ".join(registered))


async def until_drained(
    coordination: Coordination,
    store: str,
    progress: Callable[[int], None],
    *,
    clock: Clock,
    blocked: Callable[[str], None] = lambda _: None,
) -> None:
    """Wait until the store holds no container, and none is assigned to it. ``progress`` gets the number of those that are
    left, whenever it changes. ``blocked`` gets why some of them cannot leave now, whenever that changes. Raises
    NotFoundError: the store is no longer drained."""
    containers = (await read_config(coordination)).containers
    wake = asyncio.Event()
    paths = (ASSIGNMENT, REQUESTS, HOLDERS, STORES, CONTROLLERS)
    watching = asyncio.ensure_future(wake_on_changes(coordination, paths, wake))
    last: int | None = None
    last_reason = ""
    try:
        while True:
            wake.clear()
            left = await _left(coordination, store, containers)
            if left != last:
                progress(left)
                last = left
            if not left:
                return
            reason = await _blocked(coordination, store, clock)
            if reason != last_reason and reason:
                blocked(reason)
            last_reason = reason
            await first_of(wake, [watching])
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _blocked(coordination: Coordination, store: str, clock: Clock) -> str:
    """Why containers cannot leave the store now; empty: they can."""
    state = await cluster_state(coordination, now_ms=clock.now_ms())
    reasons = next((one.blocked for one in state.stores if one.name == store), {})
    return "; ".join(f"{reason} (container {', '.join(map(str, numbers))})" for reason, numbers in reasons.items())


async def _left(coordination: Coordination, store: str, containers: int) -> int:
    requests = decode_node(Requests, (await coordination.read(REQUESTS)).data)
    if store not in requests.drained:
        raise NotFoundError("the store is no longer drained", store=store)
    assignment = decode_node(Assignment, (await coordination.read(ASSIGNMENT)).data)
    left = {number for number, owner in assignment.owners.items() if owner == store}
    for number in range(containers):
        held = await _holder(coordination, number)
        if held is not None and held.store == store:
            left.add(number)
    return len(left)


async def _holder(coordination: Coordination, container: int) -> HeldContainer | None:
    try:
        return decode_node(HeldContainer, (await coordination.read(f"{HOLDERS}/{container}")).data)
    except NodeNotFoundError:
        return None


async def _check_container(coordination: Coordination, container: int) -> None:
    config = await read_config(coordination)
    if not 0 <= container < config.containers:
        raise InvalidArgumentError("no such container", container=container, containers=f"0 to {config.containers - 1}")
