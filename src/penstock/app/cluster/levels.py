"""The level in force of a cluster: read, obeyed and raised. Rules: ``core.cluster.levels``."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Final, NoReturn

from penstock.codec.store.cluster_nodes import (
    CONTROLLERS,
    FEATURES,
    STORES,
    ControllerEntry,
    Features,
    StoreEntry,
    decode_node,
    encode_node,
)
from penstock.core.cluster.levels import LEVEL, LevelPlan, plan_level
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NodeChangedError,
    NodeNotFoundError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.ports.cluster.coordination import Coordination

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_ATTEMPTS: Final = 16
"""Changes by others that are followed while the level is raised; operators are few."""


async def check_level(coordination: Coordination) -> int:
    """The level in force. Raises VersionTooNewError: this version cannot write it."""
    level, _ = await _read(coordination)
    if level > LEVEL:
        raise VersionTooNewError(
            "the cluster was upgraded to formats that this version cannot write: install the version of the other machines",
            level=level,
            supported=LEVEL,
        )
    return level


async def obey_level(coordination: Coordination) -> NoReturn:
    """Watch the level. Raises VersionTooNewError: it has become too high for this version. Raises SessionEndedError."""
    async with aclosing(coordination.notices(FEATURES)) as notices:
        async for _ in notices:
            while True:
                try:
                    await coordination.sync()
                    await check_level(coordination)
                except UnavailableError:
                    await asyncio.sleep(_RETRY_S)
                    continue
                except CorruptDataError as error:
                    log.error("level of the cluster cannot be understood", extra={"reason": str(error)})
                break
    raise AssertionError("notices end only with an error")


async def raise_level(coordination: Coordination, *, dry_run: bool = False) -> LevelPlan:
    """Raise the level as far as all registered processes can write it. Never lowers it. Returns what was decided.

    A process that registers meanwhile and cannot write the new level ends as soon as it sees it, and writes nothing above
    its own level until then. Raises NodeChangedError: others change the level all the time.
    """
    for _ in range(_ATTEMPTS):
        await coordination.sync()
        level, version = await _read(coordination)
        processes = {
            **await _levels(coordination, STORES, "store", StoreEntry),
            **await _levels(coordination, CONTROLLERS, "controller", ControllerEntry),
        }
        plan = plan_level(level, processes, own=LEVEL)
        if dry_run or plan.after == level:
            return plan
        data = encode_node(Features(level=plan.after))
        try:
            if version is None:
                await coordination.create(FEATURES, data)
            else:
                await coordination.set(FEATURES, data, version)
        except (NodeChangedError, AlreadyExistsError):
            continue
        return plan
    raise NodeChangedError("the level of the cluster changes all the time", node=FEATURES)


async def _read(coordination: Coordination) -> tuple[int, int | None]:
    """The level, and the version of its node. Clusters of the first version have no such node."""
    try:
        node = await coordination.read(FEATURES)
    except NodeNotFoundError:
        return 1, None
    return decode_node(Features, node.data).level, node.version


async def _levels(
    coordination: Coordination, folder: str, role: str, kind: type[StoreEntry | ControllerEntry]
) -> dict[str, int]:
    found = {}
    for name in await coordination.members(folder):
        try:
            node = await coordination.read(f"{folder}/{name}")
        except NodeNotFoundError:
            continue  # it has just ended
        found[f"{role} {name}"] = decode_node(kind, node.data).level
    return found
