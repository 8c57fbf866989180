"""The nodes of a ZooKeeper, through kazoo: a session of its own, whose calls run on kazoo's thread."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidArgumentError,
    NotConnectedError,
    NotFoundError,
)

SESSION_S = 10.0
_CALL_S = 10.0  # seconds that one call may take; then its outcome is unknown
_HOSTS = re.compile(r"[^\s,/]+:\d+(,[^\s,/]+:\d+)*")


@asynccontextmanager
async def open_nodes(hosts: str, *, timeout_s: float = _CALL_S) -> AsyncIterator[ZooKeeperNodes]:
    """A session with the ZooKeeper at ``hosts``: ``host:port``, several with commas.

    Raises: InvalidArgumentError, MissingExtraError, NotConnectedError: nobody answers there.
    """
    if not _HOSTS.fullmatch(hosts):
        raise InvalidArgumentError("ZooKeeper's address is not host:port,host:port", address=hosts)
    from penstock.storage.cluster.kazoo_line import new_client  # only here: it needs the extra

    client = new_client(hosts, session_s=SESSION_S)
    loop = asyncio.get_running_loop()
    try:
        if not await loop.run_in_executor(None, client.start_async().wait, timeout_s):
            raise NotConnectedError("ZooKeeper does not answer", address=hosts, waited_s=timeout_s)
        yield ZooKeeperNodes(client, hosts, timeout_s)
    finally:
        await loop.run_in_executor(None, _close, client)


def _close(client: Any) -> None:
    client.stop()
    client.close()


class ZooKeeperNodes:
    """Implements ``ports.cluster.nodes.Nodes``."""

    def __init__(self, client: Any, hosts: str, timeout_s: float) -> None:
        self._client = client
        self._hosts = hosts
        self._timeout_s = timeout_s

    async def read(self, path: str) -> tuple[bytes, int]:
        """As the port says."""
        data, stat = await self._done(path, self._client.get_async(path))
        return bytes(data or b""), stat.version

    async def create(self, path: str, data: bytes) -> None:
        """As the port says."""
        await self._done(path, self._client.create_async(path, data, makepath=True))

    async def next_number(self, prefix: str) -> int:
        """As the port says."""
        made = self._client.create_async(prefix, b"", ephemeral=True, sequence=True, makepath=True)
        path = str(await self._done(prefix, made))
        await self._done(path, self._client.delete_async(path))
        return int(path[-10:])

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        """As the port says."""
        stat = await self._done(path, self._client.set_async(path, data, version))
        return int(stat.version)

    async def delete(self, path: str) -> None:
        """As the port says."""
        await self._done(path, self._client.delete_async(path))

    async def children(self, path: str) -> Sequence[str]:
        """As the port says."""
        return sorted(await self._done(path, self._client.get_children_async(path)))

    async def _done(self, path: str, result: Any) -> Any:
        """What kazoo's result holds once its thread has set it, with its errors as ours."""
        from kazoo import exceptions

        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not answered.done():
                answered.set_result(None)

        def hand_over(_: Any) -> None:  # on kazoo's thread
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                if not loop.is_closed():
                    raise

        result.rawlink(hand_over)
        try:
            async with asyncio.timeout(self._timeout_s):
                await answered
            return result.get_nowait()
        except exceptions.NoNodeError as error:
            raise NotFoundError("node does not exist", path=path) from error
        except exceptions.NodeExistsError as error:
            raise AlreadyExistsError("node exists", path=path) from error
        except exceptions.BadVersionError as error:
            raise ConditionFailedError("node has another version", path=path) from error
        except (exceptions.KazooException, TimeoutError) as error:
            raise NotConnectedError(
                "ZooKeeper did not answer; the call may have happened",
                address=self._hosts,
                path=path,
                cause=repr(error),
            ) from error
