"""Runs the work of a command in a session of its cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from penstock.ports.cluster.coordination import Coordination

_T = TypeVar("_T")


def with_cluster(cluster: str, work: Callable[[Coordination], Awaitable[_T]]) -> _T:
    """The result of ``work`` in a session of the cluster at this address. Raises what it raises, InvalidArgumentError, and as
    ``open_zookeeper``."""
    from penstock.app.cluster.address import parse_cluster_address
    from penstock.app.cluster.operations.status import open_cluster
    from penstock.storage.machine.offload import ThreadOffload
    from penstock.storage.machine.rng import RealRng

    address = parse_cluster_address(cluster)

    async def main() -> _T:
        async with (
            ThreadOffload(threads=2) as offload,
            open_cluster(address, rng=RealRng(), offload=offload) as session,
        ):
            return await work(session)

    return run(main)


def run(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """The result of ``work`` on an event loop."""
    import asyncio  # only here, so that --help is quick

    return asyncio.run(work())
