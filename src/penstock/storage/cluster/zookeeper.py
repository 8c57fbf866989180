"""Coordination by ZooKeeper.

Every change is a transaction that also writes a number into a registration of this session. So the outcome of a change
is known even if its answer was lost: after the session has connected again, the number says whether the change was
made. ZooKeeper makes no change of a session after a later one of the same session was answered. And a change cannot be
made in another session, because the registration is then deleted.

The same write, without other changes, renews the lease. A read would not be enough: a server that is cut off from its
leader still answers reads for some ticks, while the leader ends the session. A write is answered by a leader with a
quorum.

Source: docs/design/0061-coordination.md.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionMovedError,
)

from penstock.core.cluster.leases import lease_end_s, renewal_pause_s
from penstock.model import errors
from penstock.ports.cluster.coordination import (
    Change,
    Check,
    Create,
    Delete,
    Node,
    Session,
    Set,
    check_change,
    check_path,
)
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.cluster.kazoo_line import KazooLine, LostAnswerError, Request, refusal
from penstock.storage.cluster.namespace import SESSIONS, check_namespace, check_root
from penstock.storage.memory.memory_coordination import SingleChanges


@asynccontextmanager
async def open_zookeeper(
    address: str,
    root: str,
    *,
    cluster: str | None,
    boot_clock: Callable[[], float],
    rng: Rng,
    offload: Offload,
    session_s: float = 4.0,
    patience_s: float = 10.0,
) -> AsyncIterator[ZooKeeperCoordination]:
    """Open a session in the namespace of a cluster, and end it on exit.

    Args:
        address: Servers, ``host:port`` separated by commas. root: Absolute path that ``create_namespace`` has made.
        cluster: Id of the cluster; None: the root decides. boot_clock: Seconds on a clock that also counts while the
        machine sleeps (CLOCK_BOOTTIME). session_s: What to ask for; the server bounds it to 2 to 20 of its ticks.
        patience_s: How long a call waits for a server.
    Raises:
        CoordinatorUnavailableError: No server answers. ClusterNotFoundError, WrongClusterError: Another root is meant.
        InvalidArgumentError. MissingExtraError, at import: ``kazoo`` is not installed.
    """
    check_root(root)
    name = str(rng.uuid())
    line = KazooLine(address, name, session_s=session_s, patience_s=patience_s, offload=offload)
    await line.connect()
    session = ZooKeeperCoordination(line, root, name, boot_clock=boot_clock, patience_s=patience_s)
    try:
        await session.begin(cluster)
        keeper = asyncio.create_task(session.keep(), name="zookeeper lease")
        try:
            yield session
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})
    finally:
        await session.close()
    if not keeper.cancelled() and (error := keeper.exception()) is not None:
        raise error


class ZooKeeperCoordination(SingleChanges):
    """Implements ``ports.cluster.coordination.Coordination``; opened by ``open_zookeeper``."""

    def __init__(
        self, line: KazooLine, root: str, name: str, *, boot_clock: Callable[[], float], patience_s: float
    ) -> None:
        self._line = line
        self._root = root
        self._name = name
        self._own = f"{root}/{SESSIONS}/{name}"
        self._boot_clock = boot_clock
        self._patience_s = patience_s
        self._lease_end_s = -math.inf
        self._number = 0
        self._writing = asyncio.Lock()  # one change at a time: the number names the last one
        self._closed = False

    def session(self) -> Session:
        ended = self._line.is_ended
        return Session(id=self._name, lease_end_s=-math.inf if ended else self._lease_end_s, ended=ended)

    async def ended(self) -> None:
        await self._line.ended()

    async def begin(self, cluster: str | None) -> None:
        """Check the namespace, register the session, and begin its lease. Called once, first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            await self._line.until_connected(deadline)
            sent_s = self._boot_clock()
            try:
                await check_namespace(self._line, self._root, cluster, deadline)
                await self._line.call(lambda client: client.create_async(self._own, b"0", ephemeral=True), deadline)
            except NodeExistsError:
                break  # by our own earlier request, whose answer was lost: the name is unique
            except NoNodeError:
                raise errors.ClusterNotFoundError("the cluster at this root was deleted", root=self._root) from None
            except LostAnswerError as error:
                if loop.time() >= deadline:
                    raise errors.CoordinatorUnavailableError("ZooKeeper does not answer") from error
                continue
            self._renew(sent_s)
            break
        await self.sync()

    async def keep(self) -> None:
        """Renew the lease until the session ends. What fails otherwise ends the session: without a lease, its owner would
        hold all that it has registered and answer nobody."""
        try:
            await self._renew_always()
        except Exception:
            self._line.end()
            raise

    async def _renew_always(self) -> None:
        while not self._line.is_ended:
            await asyncio.sleep(renewal_pause_s(self._line.session_s))
            try:
                await self.sync()
            except (errors.CoordinatorUnavailableError, errors.UnknownOutcomeError):
                continue  # the lease has not grown, which is all that it means
            except errors.SessionEndedError:
                return

    async def read(self, path: str) -> Node:
        check_path(path)
        where = self._path(path)
        data, stat = await self._ask(path, lambda client: client.get_async(where))
        return Node(data=bytes(data), version=stat.version)

    async def members(self, path: str) -> Sequence[str]:
        check_path(path)
        where = self._path(path)
        names = await self._ask(path, lambda client: client.get_children_async(where))
        return sorted(name for name in names if not name.startswith("_"))

    async def multi(self, changes: Sequence[Change]) -> Sequence[int]:
        for change in changes:
            check_change(change)
        async with self._writing:
            await self._write(changes)
        return [_version_after(change) for change in changes]

    async def sync(self) -> None:
        """By a write, which only a leader with a quorum answers. ZooKeeper's own ``sync`` asks no quorum."""
        await self.multi(())

    async def notices(self, path: str) -> AsyncGenerator[None, None]:
        check_path(path)
        where = self._path(path)
        changed = asyncio.Event()
        # One for all rounds: of the two watches only one fires, and kazoo keeps each callable until its watch does.
        watch = self._line.watcher(changed)
        while True:
            changed.clear()
            if not await self._watched(where, watch):
                continue
            yield None
            await self._either(changed)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._line.close()

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _renew(self, sent_s: float) -> None:
        self._lease_end_s = max(self._lease_end_s, lease_end_s(sent_s, self._line.session_s))

    async def _ask(self, path: str, request: Request) -> Any:
        """The answer to a read, which may be sent again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            await self._line.until_connected(deadline)
            try:
                return await self._line.call(request, deadline)
            except NoNodeError:
                raise errors.NodeNotFoundError("ZooKeeper has no such node", node=path) from None
            except LostAnswerError as error:
                if loop.time() >= deadline:
                    raise errors.CoordinatorUnavailableError("ZooKeeper does not answer") from error

    async def _write(self, changes: Sequence[Change]) -> None:
        """Make the changes, once. What was found not to have been made is sent again until the time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        self._number += 1
        number = b"%d" % self._number
        while True:
            await self._line.until_connected(deadline)
            sent_s = self._boot_clock()
            try:
                results = await self._line.call(lambda client: self._transaction(client, changes, number), deadline)
            except (LostAnswerError, SessionMovedError):
                # A second timeout, because waiting in vain for the answer has used up the first.
                if await self._was_made(number, loop.time() + self._patience_s):
                    return
                if loop.time() >= deadline:
                    raise errors.CoordinatorUnavailableError("ZooKeeper does not answer") from None
                continue
            self._check(results, changes)
            self._renew(sent_s)
            return

    def _transaction(self, client: KazooClient, changes: Sequence[Change], number: bytes) -> Any:
        step = client.transaction()
        step.set_data(self._own, number)
        for change in changes:
            self._add(step, change)
        return step.commit_async()

    def _add(self, step: TransactionRequest, change: Change) -> None:
        path = self._path(change.path)
        match change:
            case Create():
                step.create(path, bytes(change.data), ephemeral=change.ephemeral)
            case Set():
                step.set_data(path, bytes(change.data), version=change.version)
            case Delete():
                step.delete(path, version=change.version)
            case Check():
                step.check(path, change.version)

    async def _was_made(self, number: bytes, deadline: float) -> bool:
        """Whether the change with the number was made. Raises UnknownOutcomeError if no server answers."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._line.until_connected(deadline)
                data, _ = await self._line.call(self._read_number, deadline)
                return bytes(data) == number
            except NoNodeError:
                self._line.end()
            except (LostAnswerError, errors.CoordinatorUnavailableError) as error:
                if loop.time() >= deadline:
                    raise errors.UnknownOutcomeError("ZooKeeper was lost during a change") from error

    def _read_number(self, client: KazooClient) -> Any:
        client.sync_async(self._own)  # queued before the read: the server first catches up with the leader
        return client.get_async(self._own)

    def _check(self, results: Sequence[object], changes: Sequence[Change]) -> None:
        """Raise what refused the changes, in our words."""
        refused = refusal(results)
        if refused is None:
            return
        number, error = refused
        if number == 0:  # our own registration
            self._line.end()
            self._line.check_open()
        change = changes[number - 1]
        raise _translated(error, change) from None

    async def _watched(self, where: str, watch: Callable[[Any], None]) -> bool:
        """Set watches for the node and for the names below it. False: the connection was lost, try again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        try:
            await self._line.until_connected(deadline)
            there = await self._line.call(lambda client: client.exists_async(where, watch), deadline)
            if there is not None:
                await self._line.call(lambda client: client.get_children_async(where, watch), deadline)
        except NoNodeError:
            return False  # deleted in between
        except (LostAnswerError, errors.CoordinatorUnavailableError):
            return False
        return True

    async def _either(self, changed: asyncio.Event) -> None:
        """Wait for a change or for the end of the session."""
        waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(self._line.ended())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._line.check_open()


def _version_after(change: Change) -> int:
    match change:
        case Create():
            return 0
        case Set():
            return change.version + 1
        case Delete() | Check():
            return change.version


def _translated(error: Exception, change: Change) -> Exception:
    node = change.path
    match error:
        case NoNodeError():
            return errors.NodeNotFoundError("ZooKeeper has no such node, or none above it", node=node)
        case NodeExistsError():
            return errors.AlreadyExistsError("the node exists", node=node)
        case BadVersionError() if not isinstance(change, Create):
            return errors.NodeChangedError("the node has another version", node=node, expected=change.version)
        case NotEmptyError():
            return errors.NotEmptyError("the node has nodes below it", node=node)
        case NoChildrenForEphemeralsError():
            return errors.ConflictError("no node can be below a registration", node=node)
    return error
