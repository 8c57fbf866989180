"""Nodes of a cluster for an operator, who must see the others if one of them is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from penstock.codec.store.cluster_nodes import (
    CONTAINERS,
    Assignment,
    ClusterConfig,
    ControllerEntry,
    FailedOpening,
    Features,
    HeldContainer,
    Requests,
    SecretDigests,
    StoreEntry,
    Term,
    decode_node,
)
from penstock.codec.store.container_record import ContainerRecord, decode_record
from penstock.core.cluster.remedies import remedy
from penstock.model.errors import CorruptDataError, NodeNotFoundError, VersionTooNewError
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import Coordination


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedNode:
    """``node``: path below the root of the cluster. ``reason``: what is wrong with it. ``action``: what to do. ``is_newer``:
    a newer version wrote it, so it is not damaged, and must not be replaced."""

    node: str
    reason: str
    action: str
    is_newer: bool = False


_N = TypeVar(
    "_N",
    Assignment,
    ClusterConfig,
    ControllerEntry,
    FailedOpening,
    Features,
    HeldContainer,
    SecretDigests,
    StoreEntry,
    Term,
    Requests,
)


class NodeReader:
    """Reads nodes one by one. One that is damaged, too new, or wrongly missing is noted in ``damaged``, and read as None.

    Every call may raise CoordinatorUnavailableError and SessionEndedError.
    """

    def __init__(self, coordination: Coordination) -> None:
        self.damaged: list[DamagedNode] = []
        self._coordination = coordination

    async def registration(self, path: str, kind: type[_N]) -> _N | None:
        """The node, or None if there is none."""
        return await self._read(path, kind, needed=False)

    async def needed(self, path: str, kind: type[_N]) -> _N | None:
        """The node, which each cluster has."""
        return await self._read(path, kind, needed=True)

    async def record(self, container: int) -> ContainerRecord | None:
        """The record of a container."""
        path = f"{CONTAINERS}/{container}"
        try:
            return decode_record((await self._coordination.read(path)).data)
        except (CorruptDataError, VersionTooNewError, NodeNotFoundError) as error:
            self._note(path, error)
            return None

    async def members(self, path: str, *, needed: bool = True) -> Sequence[str]:
        """Names below the path; none if the node is missing."""
        try:
            return await self._coordination.members(path)
        except NodeNotFoundError as error:
            if needed:
                self._note(path, error)
            return ()

    async def _read(self, path: str, kind: type[_N], *, needed: bool) -> _N | None:
        try:
            return decode_node(kind, (await self._coordination.read(path)).data)
        except NodeNotFoundError as error:
            if needed:
                self._note(path, error)
        except (CorruptDataError, VersionTooNewError) as error:
            self._note(path, error)
        return None

    def _note(self, path: str, error: CorruptDataError | VersionTooNewError | NodeNotFoundError) -> None:
        match error:
            case NodeNotFoundError():
                reason, action = "it is missing", remedy(path)
            case VersionTooNewError():
                reason, action = "a newer version of Penstock wrote it", "use that version"
            case _:
                reason, action = str(error.fields.get("reason") or error.fields.get("cause") or error), remedy(path)
        is_newer = isinstance(error, VersionTooNewError)
        self.damaged.append(DamagedNode(node=path, reason=reason, action=action, is_newer=is_newer))
