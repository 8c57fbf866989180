"""Keeps the assignment of a cluster up to date. It runs in each controller process, active or standby."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final

from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    FAILED,
    REQUESTS,
    STORES,
    Assignment,
    Requests,
    decode_node,
    encode_node,
    failed_pairs,
)
from penstock.core.cluster.assignment import next_assignment
from penstock.core.cluster.placement import Choices
from penstock.model.errors import (
    CorruptDataError,
    NodeChangedError,
    NodeNotFoundError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Coordination

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Pause after the coordinator did not answer: it elects a leader in about a second."""
UNREADABLE: Final = (CorruptDataError, VersionTooNewError, NodeNotFoundError)
"""A node is damaged, of a later version, or missing. What needs it waits until it changes; nothing else may stop."""


async def wake_on_changes(coordination: Coordination, paths: Sequence[str], wake: asyncio.Event) -> None:
    """Set ``wake`` at the start and after each change of one of the nodes. Runs until it is cancelled. Raises
    SessionEndedError."""

    async def watch(path: str) -> None:
        async with aclosing(coordination.notices(path)) as notices:
            async for _ in notices:
                wake.set()

    watching = [asyncio.ensure_future(watch(path)) for path in paths]
    try:
        done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for one in watching:
            one.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


async def first_of(wake: asyncio.Event, others: Iterable[asyncio.Future[Any]], timeout_s: float | None = None) -> None:
    """Wait for the event, for one of the others, or for the time. Raises what ended one of them."""
    waiting = asyncio.ensure_future(wake.wait())
    others = list(others)
    try:
        done, _ = await asyncio.wait({waiting, *others}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    for one in done - {waiting}:
        one.result()


async def keep_assignment(coordination: Coordination, *, containers: int, clock: Clock) -> None:
    """Write the next assignment whenever it differs from the current one. Runs until it is cancelled, which leaves the last
    assignment in force. Raises SessionEndedError."""
    wake = asyncio.Event()
    watching = asyncio.ensure_future(wake_on_changes(coordination, (STORES, REQUESTS, ASSIGNMENT, FAILED), wake))
    try:
        while True:
            wake.clear()
            pause_s = await _decide(coordination, containers=containers, clock=clock)
            await first_of(wake, [watching], timeout_s=pause_s)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _decide(coordination: Coordination, *, containers: int, clock: Clock) -> float | None:
    """Decide once. Returns the seconds until the next decision; None: decide after the next change."""
    try:
        # A read that lags would show a store that has just registered as lost.
        await coordination.sync()
        node = await coordination.read(ASSIGNMENT)
        before = decode_node(Assignment, node.data)
        registered = await coordination.members(STORES)
        requests = decode_node(Requests, (await coordination.read(REQUESTS)).data)
        now_ms = clock.now_ms()
        found = next_assignment(
            before,
            registered=registered,
            drained=requests.drained,
            containers=containers,
            now_ms=now_ms,
            choices=Choices(
                pinned=requests.pinned,
                failed=await failed_openings(coordination),
                disabled=frozenset(requests.disabled),
            ),
        )
        if found.assignment != before:
            await coordination.set(ASSIGNMENT, encode_node(found.assignment), node.version)
            _log_changes(before, found.assignment)
    except NodeChangedError:
        return 0.0  # by another controller: look again
    except UnavailableError as error:
        log.warning("assignment could not be updated; trying again", extra={"reason": str(error)})
        return RETRY_S
    except UNREADABLE as error:
        # An error here would end every controller, again after each restart, and cut off the clients of the active one.
        log.error("assignment cannot be updated until its nodes are repaired", extra={"reason": str(error)})
        return None
    return None if found.again_at_ms is None else max(0, found.again_at_ms - now_ms) / 1000


async def failed_openings(coordination: Coordination) -> frozenset[tuple[int, str]]:
    """Containers, and stores that could not open them."""
    try:
        return failed_pairs(await coordination.members(FAILED))
    except NodeNotFoundError:
        return frozenset()  # clusters of the first version have this node only once an opening has failed


def _log_changes(before: Assignment, after: Assignment) -> None:
    lost, joined = sorted(set(before.known) - set(after.known)), sorted(set(after.known) - set(before.known))
    moved = sum(before.owners.get(number) != store for number, store in after.owners.items())
    taken = sorted(before.owners.keys() - after.owners.keys())  # disabled
    if lost or joined or moved or taken:
        log.info(
            "assignment changed",
            extra={"lost": lost, "joined": joined, "containers_moved": moved, "containers_disabled": taken},
        )
