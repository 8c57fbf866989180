"""The nodes of a ZooKeeper as BookKeeper uses them: by absolute paths, and across sessions.

Unlike ``zookeeper``, nothing here depends on a session: after an expiry kazoo begins another one, and calls go on. So a
log outlives an absence of ZooKeeper. A lost answer is the caller's to resolve.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient, TransactionRequest

from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidArgumentError,
    NotConnectedError,
    NotFoundError,
    PenstockError,
)
from penstock.storage.cluster.kazoo_line import answer_of, close_client, new_client, refusal

SESSION_S = 10.0
_CALL_S = 10.0  # seconds that one call may take; then its outcome is unknown
_HOSTS = re.compile(r"[^\s,/]+:\d+(,[^\s,/]+:\d+)*")


@asynccontextmanager
async def open_nodes(
    hosts: str, *, timeout_s: float = _CALL_S, guard: str | None = None
) -> AsyncIterator[ZooKeeperNodes]:
    """The nodes of the ZooKeeper at ``hosts``: ``host:port``, several with commas. ``guard``: a node without which nothing is
    created and set; None: there is none.

    Raises: InvalidArgumentError, NotConnectedError: nobody answers there. MissingExtraError, at import: ``kazoo`` is not
    installed.
    """
    if not _HOSTS.fullmatch(hosts):
        raise InvalidArgumentError("ZooKeeper's address is not host:port,host:port", address=hosts)
    client = new_client(hosts, session_s=SESSION_S)
    loop = asyncio.get_running_loop()
    try:
        if not await loop.run_in_executor(None, client.start_async().wait, timeout_s):
            raise NotConnectedError("ZooKeeper does not answer", address=hosts, waited_s=timeout_s)
        yield ZooKeeperNodes(client, hosts, timeout_s, guard)
    finally:
        await loop.run_in_executor(None, close_client, client)


class ZooKeeperNodes:
    """Implements ``ports.cluster.nodes.Nodes``.

    A connection outlives its session, so it may come back to a ZooKeeper whose data were created again. A node there can
    have the version that a caller knows from before. With a ``guard``, whose name is never used twice, such a change is
    refused: ``create`` and ``set`` raise ConditionFailedError.
    """

    def __init__(self, client: KazooClient, hosts: str, timeout_s: float, guard: str | None = None) -> None:
        self._guard = guard
        self._client = client
        self._hosts = hosts
        self._timeout_s = timeout_s

    async def read(self, path: str) -> tuple[bytes, int]:
        """As the port says."""
        data, stat = await self._done(path, self._client.get_async(path))
        return bytes(data or b""), stat.version

    async def create(self, path: str, data: bytes) -> None:
        """As the port says."""
        if self._guard is not None:
            try:
                await self.read(self._guard)
            except NotFoundError as error:
                raise _guard_is_missing(self._guard) from error
            above = path.rpartition("/")[0]
            await self._done(above, self._client.ensure_path_async(above))
            await self._guarded(self._guard, path, lambda step: step.create(path, data))
            return
        await self._done(path, self._client.create_async(path, data, makepath=True))

    async def next_number(self, prefix: str) -> int:
        """As the port says."""
        made = self._client.create_async(prefix, b"", ephemeral=True, sequence=True, makepath=True)
        path = str(await self._done(prefix, made))
        await self._done(path, self._client.delete_async(path))
        return int(path[-10:])

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        """As the port says."""
        if self._guard is not None:
            await self._guarded(self._guard, path, lambda step: step.set_data(path, data, version))
            return version + 1
        stat = await self._done(path, self._client.set_async(path, data, version))
        return int(stat.version)

    async def delete(self, path: str) -> None:
        """As the port says."""
        await self._done(path, self._client.delete_async(path))

    async def children(self, path: str) -> Sequence[str]:
        """As the port says."""
        return sorted(await self._done(path, self._client.get_children_async(path)))

    async def created_ms(self, path: str) -> int:
        """When the node was created, by the clock of ZooKeeper's leader, in milliseconds since the Unix epoch. Sees a node
        that another connection has just created. Raises as ``read``."""
        await self._done(path, self._client.sync_async(path))  # a follower that lags does not have it yet
        _, stat = await self._done(path, self._client.get_async(path))
        return int(stat.ctime)

    async def _guarded(self, guard: str, path: str, change: Callable[[TransactionRequest], object]) -> None:
        """Make the change if the guard exists."""
        step = self._client.transaction()
        step.check(guard, -1)
        change(step)
        refused = refusal(await self._done(path, step.commit_async()))
        if refused is not None:
            number, error = refused
            raise _guard_is_missing(guard) if number == 0 else self._as_ours(path, error)

    async def _done(self, path: str, result: Any) -> Any:
        """What kazoo answers, with its errors as ours."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer_of(result)
        except (exceptions.KazooException, TimeoutError) as error:
            raise self._as_ours(path, error) from error

    def _as_ours(self, path: str, error: Exception) -> PenstockError:
        match error:
            case exceptions.NoNodeError():
                return NotFoundError("node does not exist", path=path)
            case exceptions.NodeExistsError():
                return AlreadyExistsError("node exists", path=path)
            case exceptions.BadVersionError():
                return ConditionFailedError("node has another version", path=path)
        return NotConnectedError(
            "ZooKeeper did not answer; the call may have happened",
            address=self._hosts,
            path=path,
            cause=repr(error),
        )


def _guard_is_missing(guard: str) -> ConditionFailedError:
    return ConditionFailedError("ZooKeeper's data were created again since this process started", path=guard)
