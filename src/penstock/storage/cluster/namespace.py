"""The root of a cluster in ZooKeeper: created once, then checked by each session before it does anything."""

from __future__ import annotations

import asyncio

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError

from penstock.model.errors import (
    ClusterNotFoundError,
    CoordinatorUnavailableError,
    InvalidArgumentError,
    UnknownOutcomeError,
    WrongClusterError,
)
from penstock.ports.cluster.coordination import check_path
from penstock.ports.offload import Offload
from penstock.storage.cluster.kazoo_line import KazooLine, LostAnswerError, Request, refusal

CLUSTER = "_cluster"
"""Node that holds the id of the cluster. It is created with the root in one step, so a root without it is not ours."""
SESSIONS = "_sessions"
"""Node above one registration per session, which names the session's last change."""


def check_root(root: str) -> None:
    """Raise InvalidArgumentError unless ``root`` is an absolute path, such as ``/penstock/flights``."""
    if not root.startswith("/") or root == "/":
        raise InvalidArgumentError("not the root of a cluster; write a path such as /penstock/NAME", root=root)
    check_path(root[1:])


async def create_namespace(
    address: str, root: str, *, cluster: str, offload: Offload, session_s: float = 4.0, patience_s: float = 15.0
) -> None:
    """Create the root of a cluster with its id, in one step. Nothing happens if it exists with this id.

    Args:
        address: Servers, ``host:port`` separated by commas. root: Absolute path; missing parents are created. cluster:
            Id of the cluster. patience_s: How long the whole may take.
    Raises:
        WrongClusterError: The root belongs to another cluster, or to another program. CoordinatorUnavailableError:
        Nothing was created, except parents. UnknownOutcomeError: Call again. InvalidArgumentError.
    """
    check_root(root)
    line = KazooLine(address, root, session_s=session_s, patience_s=patience_s, offload=offload)
    await line.connect()
    try:
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            await line.until_connected(deadline)
            try:
                if await _created(line, root, cluster, deadline):
                    return
            except LostAnswerError as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise UnknownOutcomeError("ZooKeeper did not confirm the creation", root=root) from error
    finally:
        await line.close()


async def find_namespace(
    address: str, root: str, *, offload: Offload, session_s: float = 4.0, patience_s: float = 15.0
) -> str | None:
    """The id of the cluster at the root; None: there is none, and one can be created. Changes nothing. Raises as
    ``create_namespace``."""
    check_root(root)
    line = KazooLine(address, root, session_s=session_s, patience_s=patience_s, offload=offload)
    await line.connect()
    try:
        deadline = asyncio.get_running_loop().time() + patience_s
        while True:
            await line.until_connected(deadline)
            try:
                found = await cluster_at(line, root, deadline)
                if found is None:
                    await _check_unused(line, root, deadline)
                return found
            except LostAnswerError as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise CoordinatorUnavailableError("ZooKeeper does not answer", root=root) from error
    finally:
        await line.close()


async def _check_unused(line: KazooLine, root: str, deadline: float) -> bool:
    """Whether the root exists, which is then empty. Raises WrongClusterError: it holds nodes of another program."""
    try:
        below = await line.call(lambda client: client.get_children_async(root), deadline)
    except NoNodeError:
        return False
    if below:
        raise WrongClusterError(
            "the root in ZooKeeper holds nodes that belong to no cluster: choose another root, or delete it",
            root=root,
            found=None,
        )
    return True


async def _created(line: KazooLine, root: str, cluster: str, deadline: float) -> bool:
    """Whether the namespace exists now. False: somebody else was faster, look again."""
    found = await cluster_at(line, root, deadline)
    if found is not None:
        if found != cluster:
            raise WrongClusterError(
                "ZooKeeper holds another cluster at this root", root=root, expected=cluster, found=found
            )
        return True
    exists = await _check_unused(line, root, deadline)
    names = [name for name in root.split("/") if name]
    for depth in range(1, len(names)):
        try:
            await line.call(_creation("/" + "/".join(names[:depth])), deadline)
        except NodeExistsError:
            continue

    def everything(client: KazooClient) -> object:
        step = client.transaction()
        if not exists:
            step.create(root)
        step.create(f"{root}/{CLUSTER}", cluster.encode())
        step.create(f"{root}/{SESSIONS}")
        return step.commit_async()

    refused = refusal(await line.call(everything, deadline))
    if refused is not None and not isinstance(refused[1], NodeExistsError):
        raise refused[1]
    return refused is None


def _creation(path: str) -> Request:
    return lambda client: client.create_async(path)


async def cluster_at(line: KazooLine, root: str, deadline: float) -> str | None:
    """The id of the cluster at the root, or None."""
    try:
        data, _ = await line.call(lambda client: client.get_async(f"{root}/{CLUSTER}"), deadline)
    except NoNodeError:
        return None
    return bytes(data).decode()


async def check_namespace(line: KazooLine, root: str, cluster: str | None, deadline: float) -> None:
    """Raise ClusterNotFoundError or WrongClusterError unless the root is that of the cluster; None: of any cluster."""
    found = await cluster_at(line, root, deadline)
    if found is None:
        there = await line.call(lambda client: client.exists_async(root), deadline)
        raise ClusterNotFoundError(
            "ZooKeeper has no node at this root: create the cluster first, or correct the root"
            if there is None
            else "the node at this root in ZooKeeper names no cluster: its creation was not finished, or it is not ours",
            root=root,
        )
    if cluster is not None and found != cluster:
        raise WrongClusterError(
            "ZooKeeper holds another cluster at this root", root=root, expected=cluster, found=found
        )


async def remove_namespace(
    address: str, root: str, *, cluster: str, offload: Offload, session_s: float = 4.0, patience_s: float = 15.0
) -> None:
    """Delete the root of a cluster without nodes and sessions. Nothing happens if it is another one's, or has any. Raises as
    ``create_namespace``."""
    check_root(root)
    line = KazooLine(address, root, session_s=session_s, patience_s=patience_s, offload=offload)
    await line.connect()
    try:
        deadline = asyncio.get_running_loop().time() + patience_s
        if await cluster_at(line, root, deadline) != cluster:
            return

        def everything(client: KazooClient) -> object:
            step = client.transaction()
            # A node that still has others below it fails, and then none is deleted.
            for path in (f"{root}/{SESSIONS}", f"{root}/{CLUSTER}", root):
                step.delete(path)
            return step.commit_async()

        refused = refusal(await line.call(everything, deadline))
        if refused is not None and not isinstance(refused[1], NotEmptyError | NoNodeError):
            raise refused[1]
    except LostAnswerError as error:
        raise UnknownOutcomeError("ZooKeeper did not confirm the change", root=root) from error
    finally:
        await line.close()


async def adopt_namespace(
    address: str, root: str, *, cluster: str, offload: Offload, session_s: float = 4.0, patience_s: float = 15.0
) -> None:
    """As ``create_namespace``, but a root whose creation was not finished becomes that of ``cluster``, whichever id it has.

    Raises as ``create_namespace``; WrongClusterError: the root holds nodes of another cluster.
    """
    try:
        await create_namespace(
            address, root, cluster=cluster, offload=offload, session_s=session_s, patience_s=patience_s
        )
        return
    except WrongClusterError as error:
        if error.fields.get("found") is None:
            raise
        wrong = error
    line = KazooLine(address, root, session_s=session_s, patience_s=patience_s, offload=offload)
    await line.connect()
    try:
        deadline = asyncio.get_running_loop().time() + patience_s
        below = await line.call(lambda client: client.get_children_async(root), deadline)
        sessions = await line.call(lambda client: client.get_children_async(f"{root}/{SESSIONS}"), deadline)
        if set(below) != {CLUSTER, SESSIONS} or sessions:
            raise wrong
        await line.call(lambda client: client.set_async(f"{root}/{CLUSTER}", cluster.encode()), deadline)
    except LostAnswerError as error:
        raise UnknownOutcomeError("ZooKeeper did not confirm the change", root=root) from error
    finally:
        await line.close()
