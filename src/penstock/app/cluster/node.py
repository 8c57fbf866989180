"""A store of a cluster: registered by its name, it holds the containers that the assignment gives it.

Source: docs/design/0065-cluster.md, "Moving a container".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import field, replace

from penstock.app.cluster.access.secret import SecretInForce, obey_secret
from penstock.app.cluster.holding import Holding, HoldingLimits, HoldingState, UnitHost
from penstock.app.cluster.keeper import UNREADABLE, wake_on_changes
from penstock.app.cluster.levels import LevelInForce, obey_level
from penstock.app.cluster.registration import FailedOpenings, Registration
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    HOLDERS,
    REQUESTS,
    STORES,
    Assignment,
    HeldContainer,
    Requests,
    StoreEntry,
    decode_node,
    encode_node,
)
from penstock.model.errors import (
    InvalidArgumentError,
    NodeNotFoundError,
    SessionEndedError,
    UnavailableError,
    VersionTooNewError,
    WrongClusterError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Coordination

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """Seconds. ``claim_s``: how long an earlier registration with our name may stay: a session lasts 4 s, and one that
    ZooKeeper's settings make longer rarely more than twice that. ``session_pause_s``: between attempts to open a session.
    ``retry_s``: after the assignment could not be read. ``leave_s``: for deleting the registration at the end."""

    claim_s: float = 15.0
    session_pause_s: float = 1.0
    retry_s: float = 1.0
    leave_s: float = 5.0
    holding: HoldingLimits = field(default_factory=HoldingLimits)


class StoreNode:
    """The life of a store in its cluster. ``open_session`` opens a session with the coordinator. ``boot_clock``: seconds of
    CLOCK_BOOTTIME. ``clock``: wall clock, which the registration shows; None: it does not.
    """

    def __init__(
        self,
        host: UnitHost,
        *,
        open_session: Callable[[], AbstractAsyncContextManager[Coordination]],
        boot_clock: Callable[[], float],
        limits: NodeLimits | None = None,
        clock: Clock | None = None,
        in_force: LevelInForce | None = None,
        secrets: SecretInForce | None = None,
    ) -> None:
        """``in_force``: where the level of the cluster is noted, as the store sees it. ``secrets``: which ones are valid;
        None: this is not watched."""
        self._secrets = secrets
        self.registered = asyncio.Event()
        """Set once the store has been registered."""
        self._entry = StoreEntry(store="", clients="", links="", pid=0)
        self._host = host
        self._open_session = open_session
        self._boot_clock = boot_clock
        self._limits = limits or NodeLimits()
        self._clock = clock
        self._in_force = in_force
        self._session: Coordination | None = None
        self._holdings: dict[int, Holding] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._disabled: frozenset[int] = frozenset()
        self._wake = asyncio.Event()
        self._stopping = False

    def answer_check(self) -> Callable[[], bool]:
        """For a connection that is accepted now: a check that it may be answered. It stays true while no other store can
        have taken over the containers of the current session, and is never true again after that session's lease."""
        session = self._session
        if session is None:
            return lambda: False
        return lambda: self._boot_clock() < session.session().lease_end_s

    async def client_address(self, container: int) -> str:
        """``HOST:PORT`` at which clients reach the store that serves the container. Raises UnavailableError: no store
        serves it now, or the coordinator cannot be asked."""
        session = self._session
        if session is None:
            raise UnavailableError("this store has no session with the coordinator now")
        path = f"{HOLDERS}/{container}"
        try:
            held = decode_node(HeldContainer, (await session.read(path)).data)
        except NodeNotFoundError:
            held = None
        except UNREADABLE as error:
            raise UnavailableError("the node of a container cannot be read", node=path, reason=str(error)) from error
        if held is None or not held.serving:
            raise UnavailableError("no store serves the container now", container=container)
        return held.clients

    def states(self) -> Mapping[int, HoldingState]:
        """The containers that the store holds or waits for, by number."""
        return {number: one.state for number, one in sorted(self._holdings.items())}

    def failures(self) -> Mapping[int, str]:
        """Why containers cannot be served now, by number."""
        return {number: one.failure for number, one in sorted(self._holdings.items()) if one.failure is not None}

    def stop(self) -> None:
        """Close all containers, with checkpoints, and then delete the registration. ``run`` returns then."""
        self._stopping = True
        self._wake.set()

    async def run(self, entry: StoreEntry) -> None:
        """Serve until ``stop``. When a session ends, all containers are dropped, and another session begins. ``entry``: name
        and addresses of the store; its ports are open until this returns.

        Raises InvalidArgumentError (another process is registered with our name), VersionTooNewError (the level of the
        cluster was raised above ours), WrongClusterError (our secret is not valid any more), and what the first session
        raises when it is opened.
        Cancelled: containers are dropped without checkpoints.
        """
        self._entry = entry
        while not self._stopping:
            try:
                async with self._open_session() as session:
                    self._session = session
                    try:
                        await self._serve(session)
                    finally:
                        self._session = None
            except SessionEndedError as error:
                log.warning("session has ended, so all containers are dropped", extra={"reason": str(error)})
            except UnavailableError as error:
                if not self.registered.is_set():
                    raise
                log.warning("session cannot be opened; trying again", extra={"reason": str(error)})
                await self._pause(self._limits.session_pause_s)

    async def _pause(self, pause_s: float) -> None:
        """Wait for that time, or until ``stop``."""
        if not self._stopping:
            self._wake.clear()
            waiting = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait({waiting}, timeout=pause_s)
            waiting.cancel()

    async def _serve(self, session: Coordination) -> None:
        """Serve for one session. Raises SessionEndedError."""
        registration = Registration(session, f"{STORES}/{self._entry.store}", StoreEntry)
        await self._register(registration, session)
        self.registered.set()
        ended, over = False, None
        try:
            async with asyncio.TaskGroup() as group:
                ending = group.create_task(_until_ended(session))
                watching = group.create_task(wake_on_changes(session, (ASSIGNMENT, REQUESTS), self._wake))
                others = [group.create_task(obey_level(session, self._in_force))]
                if self._secrets is not None:
                    others.append(group.create_task(obey_secret(session, self._secrets)))
                holding = self._limits.holding
                failures = FailedOpenings(session, again_s=holding.again_s, again_max_s=holding.again_max_s)
                forgetting = group.create_task(failures.forget())
                await self._follow(session, group, failures)
                for task in (ending, watching, forgetting, *others):
                    task.cancel()
        except* SessionEndedError:
            ended = True
        except* (VersionTooNewError, WrongClusterError) as errors:
            over = errors.exceptions[0]
        finally:
            self._holdings.clear()
            self._tasks.clear()
        own = asyncio.current_task()
        if own is not None and own.cancelling():
            # Python 3.11 and 3.12 lose a cancellation that arrives together with an error in the group.
            raise asyncio.CancelledError
        if over is not None:
            raise over
        if ended:
            raise SessionEndedError("the session with the coordinator has ended", session=session.session().id)
        try:
            async with asyncio.timeout(self._limits.leave_s):
                await registration.drop()
        except TimeoutError:
            log.warning("store stays registered until its session ends", extra={"store": self._entry.store})

    def _registered_entry(self, session: Coordination) -> bytes:
        at_ms = 0 if self._clock is None else self._clock.now_ms()
        return encode_node(replace(self._entry, session=session.session().id, at_ms=at_ms))

    async def _register(self, registration: Registration, session: Coordination) -> None:
        """Register the store. Raises InvalidArgumentError: another process has the name, and does not end."""
        other: HeldContainer | StoreEntry | None = None

        def found(entry: HeldContainer | StoreEntry) -> None:
            nonlocal other
            if other is None:
                log.info(
                    "another process is registered with this name; waiting for it to end", extra={"store": entry.store}
                )
            other = entry

        try:
            async with asyncio.timeout(self._limits.claim_s):
                await registration.take(lambda: self._registered_entry(session), found)
        except TimeoutError:
            if other is None:
                raise UnavailableError("the store could not be registered in time", store=self._entry.store) from None
            raise InvalidArgumentError(
                "another process of the cluster has this name: give each store its own --name",
                store=self._entry.store,
                clients=other.clients,
                waited_s=self._limits.claim_s,
            ) from None

    async def _follow(self, session: Coordination, group: asyncio.TaskGroup, failures: FailedOpenings) -> None:
        """Hold what the assignment gives us; after ``stop``, nothing. Returns when nothing is held after ``stop``."""
        slots = asyncio.Semaphore(self._limits.holding.openings)
        entry = HeldContainer(
            store=self._entry.store,
            clients=self._entry.clients,
            links=self._entry.links,
            serving=False,
            session=session.session().id,
        )
        wanted: frozenset[int] = frozenset()
        while True:
            self._wake.clear()
            found = frozenset[int]() if self._stopping else await self._assigned(session)
            wanted = wanted if found is None else found
            for number in sorted(wanted - self._holdings.keys()):
                holding = Holding(
                    number, session, entry, self._host, slots=slots, failures=failures, limits=self._limits.holding
                )
                task = group.create_task(holding.run(), name=f"container-{number}")
                self._holdings[number], self._tasks[number] = holding, task
                task.add_done_callback(lambda _, number=number: self._ended(number))  # type: ignore[misc]
            for number in sorted(self._holdings.keys() - wanted):
                self._holdings[number].release()
            if self._stopping and not self._holdings:
                return
            waiting = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait({waiting}, timeout=self._limits.retry_s if found is None else None)
            finally:
                waiting.cancel()

    def _ended(self, number: int) -> None:
        """The container was released. If it is wanted again meanwhile, it is taken again."""
        self._holdings.pop(number, None)
        self._tasks.pop(number, None)
        self._wake.set()

    async def _assigned(self, session: Coordination) -> frozenset[int] | None:
        """The containers that should be ours; None: not known now."""
        try:
            assignment = decode_node(Assignment, (await session.read(ASSIGNMENT)).data)
            await self._read_disabled(session)
        except UnavailableError as error:
            log.warning("assignment cannot be read", extra={"reason": str(error)})
            return None
        except UNREADABLE as error:
            log.error("assignment cannot be decoded, so the store keeps its containers", extra={"reason": str(error)})
            return None
        return frozenset(number for number, store in assignment.owners.items() if store == self._entry.store) - (
            self._disabled
        )

    async def _read_disabled(self, session: Coordination) -> None:
        """Which containers no store may open. A store obeys this even while no controller is up to change the assignment.
        While the requests are damaged, those count that were known last."""
        try:
            self._disabled = frozenset(decode_node(Requests, (await session.read(REQUESTS)).data).disabled)
        except UNREADABLE as error:
            log.error("requests of operators (node requests) cannot be decoded", extra={"reason": str(error)})


async def _until_ended(session: Coordination) -> None:
    """Raises SessionEndedError once the session has ended."""
    await session.ended()
    raise SessionEndedError("the session with the coordinator has ended", session=session.session().id)
