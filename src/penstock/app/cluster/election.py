"""The election of the active controller. It lasts as long as the session, and its number fences earlier ones.

Source: docs/design/0065-cluster.md, "One active controller".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from penstock.app.cluster.keeper import UNREADABLE
from penstock.codec.store.cluster_nodes import LEADER, TERM, Term, decode_node, encode_node
from penstock.model.errors import (
    AlreadyExistsError,
    InternalError,
    NodeChangedError,
    NodeNotFoundError,
    PenstockError,
    SessionEndedError,
    UnavailableError,
    UnknownOutcomeError,
)
from penstock.ports.cluster.coordination import Coordination, Create, Set

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
"""Shortest pause between two looks at the lease."""
_LOOK_MAX_S: Final = 5.0
"""Longest pause, for leases without an end."""
_RESIGN_S: Final = 5.0
"""How long a controller that stops tries to free the place. After that, the end of its session frees it."""
_RETRY_S: Final = 1.0
"""Pause after the coordinator did not answer."""


@asynccontextmanager
async def leading(
    coordination: Coordination, controller: str, *, boot_clock: Callable[[], float]
) -> AsyncIterator[Term]:
    """Wait until this controller is elected, and lead until the block ends.

    The block is cancelled when the session has ended, or may have: its lease has passed on ``boot_clock``, seconds of
    CLOCK_BOOTTIME. Then SessionEndedError is raised. On exit the place is free for others.
    """
    term = await elected(coordination, controller)
    own = asyncio.current_task()
    if own is None:
        raise InternalError("leading must run in a task")
    lost = False

    async def watch() -> None:
        nonlocal lost
        await _until_over(coordination, boot_clock)
        lost = True
        own.cancel()

    watching = asyncio.create_task(watch(), name="lease of the active controller")
    try:
        yield term
    except asyncio.CancelledError:
        if lost and not own.uncancel():
            raise leadership_over(coordination) from None
        raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await _resign(coordination, term)


def leadership_over(coordination: Coordination) -> SessionEndedError:
    """The error of a controller whose session has ended, or may have ended."""
    return SessionEndedError(
        "this controller may no longer be the active one, because ZooKeeper did not answer it in time. Another controller"
        " takes over; restart this one as a standby",
        session=coordination.session().id,
    )


async def elected(coordination: Coordination, controller: str) -> Term:
    """Wait until this controller is elected, and return the new term. It is registered and raised in one step. No other live
    session uses the name ``controller``.

    Raises SessionEndedError. Cancelled: it may be elected; the end of the session undoes that.
    """
    unknown: list[Term] = []  # attempts that may have happened
    failed = ""
    async with aclosing(coordination.notices(LEADER)) as notices:
        async for _ in notices:
            while True:
                try:
                    term = await _attempt(coordination, controller, unknown)
                except NodeChangedError:
                    continue
                except (UnavailableError, *UNREADABLE) as error:
                    if (reason := str(error)) != failed:  # a node that is damaged stays so until it is repaired
                        log.warning("could not stand for election; trying again", extra={"reason": reason})
                    failed = reason
                    await asyncio.sleep(_RETRY_S)
                    continue
                if term is not None:
                    return term
                break
    raise SessionEndedError("the session with the coordinator has ended", session=coordination.session().id)


async def _attempt(coordination: Coordination, controller: str, unknown: list[Term]) -> Term | None:
    """The term, if this controller is elected now; None: another one is. Adds to ``unknown`` before it raises
    UnknownOutcomeError."""
    node = await coordination.read(TERM)
    term = Term(term=decode_node(Term, node.data).term + 1, controller=controller)
    data = encode_node(term)
    try:
        await coordination.multi([Create(LEADER, data, ephemeral=True), Set(TERM, data, node.version)])
    except UnknownOutcomeError:
        unknown.append(term)
        raise
    except AlreadyExistsError:
        try:
            found = decode_node(Term, (await coordination.read(LEADER)).data)
        except NodeNotFoundError as error:
            raise NodeChangedError("the place has just become free", node=LEADER, expected=0) from error
        return found if found in unknown else None
    return term


async def _until_over(coordination: Coordination, boot_clock: Callable[[], float]) -> None:
    """Wait until the session has ended, or its lease has passed."""
    ended = asyncio.ensure_future(coordination.ended())
    try:
        while not ended.done():
            left_s = coordination.session().lease_end_s - boot_clock()
            if left_s <= 0:
                return
            await asyncio.wait({ended}, timeout=max(_LOOK_S, min(left_s, _LOOK_MAX_S)))
    finally:
        ended.cancel()


async def _resign(coordination: Coordination, term: Term) -> None:
    """Free the place, if it is still ours."""
    with suppress(NodeNotFoundError, NodeChangedError):
        try:
            async with asyncio.timeout(_RESIGN_S):
                node = await coordination.read(LEADER)
                if decode_node(Term, node.data) == term:
                    await coordination.delete(LEADER, node.version)
        except (PenstockError, TimeoutError) as error:
            log.info(
                "could not resign; the end of the session frees the place of the active controller",
                extra={"reason": str(error)},
            )
