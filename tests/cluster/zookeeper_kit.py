"""What tests of coordination on a real ZooKeeper share."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kazoo.client import KazooClient

from penstock.ports.cluster.coordination import Coordination
from penstock.storage.cluster.namespace import create_namespace
from penstock.storage.cluster.zookeeper import ZooKeeperCoordination, open_zookeeper
from penstock.storage.machine.clock import boot_seconds
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.testing.conformance.coordination import CoordinationLaws

SESSION_S = 2.0
_roots = itertools.count()


def new_root() -> str:
    """A root that no other test uses."""
    return f"/penstock-tests/{os.getpid()}-{next(_roots)}"


@asynccontextmanager
async def session(
    address: str, root: str, *, cluster: str | None = "ours", session_s: float = SESSION_S, patience_s: float = 10.0
) -> AsyncIterator[ZooKeeperCoordination]:
    async with (
        ThreadOffload(threads=2) as offload,
        open_zookeeper(
            address,
            root,
            cluster=cluster,
            boot_clock=boot_seconds,
            rng=RealRng(),
            offload=offload,
            session_s=session_s,
            patience_s=patience_s,
        ) as opened,
    ):
        yield opened


async def make_root(address: str, root: str, cluster: str = "ours") -> None:
    async with ThreadOffload(threads=1) as offload:
        await create_namespace(address, root, cluster=cluster, offload=offload)


class ZooKeeperLaws(CoordinationLaws):
    def __init__(self, address: str) -> None:
        self.address = address
        self.root: str | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Coordination]:
        if self.root is None:
            self.root = new_root()
            await make_root(self.address, self.root)
        async with session(self.address, self.root) as opened:
            yield opened

    async def expire(self, session: Coordination) -> None:
        assert isinstance(session, ZooKeeperCoordination)
        await expire(self.address, session)


async def expire(address: str, session: ZooKeeperCoordination) -> None:
    """End a session from outside: any client that knows its id and password may close it."""
    identity = session._line._client.client_id

    def close() -> None:
        other = KazooClient(address, client_id=identity)
        other.start()
        other.stop()
        other.close()

    await asyncio.to_thread(close)
