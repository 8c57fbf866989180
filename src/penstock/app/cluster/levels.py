"""The level in force of a cluster: read, obeyed and raised. Rules: ``core.cluster.levels``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final, NoReturn, TypeVar

from penstock.app.cluster.operations.reading import DamagedNode, NodeReader
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
from penstock.core.cluster.levels import LEVEL, SEALED_LEDGERS, LevelPlan, plan_level
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NodeChangedError,
    NodeNotFoundError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import Coordination

log = logging.getLogger(__name__)

_Entry = TypeVar("_Entry", StoreEntry, ControllerEntry)
_RETRY_S: Final = 1.0
_ATTEMPTS: Final = 16
"""How often raising the level is repeated because others changed it; operators are few."""


async def check_level(coordination: Coordination) -> int:
    """The level in force. Raises VersionTooNewError: this version cannot write it."""
    level, _ = await _read(coordination)
    if level > LEVEL:
        raise VersionTooNewError(
            "the cluster was upgraded to formats that this version cannot write: install the version that other machines run",
            level=level,
            supported=LEVEL,
        )
    return level


@dataclass(slots=True)
class LevelInForce:
    """The level that this process has seen last, which may be lower than the one in force. It never falls."""

    level: int = LEVEL

    def note(self, level: int) -> None:
        self.level = max(self.level, level)

    @property
    def seals_ledgers(self) -> bool:
        """Whether logs may begin encrypted ledgers."""
        return self.level >= SEALED_LEDGERS


async def obey_level(coordination: Coordination, in_force: LevelInForce | None = None) -> NoReturn:
    """Watch the level, and note it in ``in_force``. Raises VersionTooNewError: it has become too high for this version.
    Raises SessionEndedError."""
    async with aclosing(coordination.notices(FEATURES)) as notices:
        async for _ in notices:
            while True:
                try:
                    await coordination.sync()
                    level = await check_level(coordination)
                    if in_force is not None:
                        in_force.note(level)
                except UnavailableError:
                    await asyncio.sleep(_RETRY_S)
                    continue
                except CorruptDataError as error:
                    log.error("level of the cluster cannot be decoded", extra={"reason": str(error)})
                break
    raise AssertionError("notices end only with an error")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedLevel:
    """``plan``: what was decided. ``damaged``: nodes that could not be read. The level of a process whose registration is
    damaged is unknown, so it keeps the level from rising."""

    plan: LevelPlan
    damaged: Sequence[DamagedNode]


async def raise_level(coordination: Coordination, *, dry_run: bool = False) -> RaisedLevel:
    """Raise the level as far as all registered processes can write it. Never lowers it. Writes it again if its node is
    damaged.

    A process that registers meanwhile and cannot write the new level ends as soon as it sees it, and writes nothing
    above its own level until then. Raises NodeChangedError: others keep changing the level. VersionTooNewError: the
    node of the level was written by a newer version; use that one.
    """
    for _ in range(_ATTEMPTS):
        await coordination.sync()
        reader = NodeReader(coordination)
        level, version = await _read_or_note(coordination, reader)
        known = level is not None
        processes = {
            **await _levels(reader, STORES, "store", StoreEntry, known=known),
            **await _levels(reader, CONTROLLERS, "controller", ControllerEntry, known=known),
        }
        raised = RaisedLevel(plan=plan_level(level, processes, own=LEVEL), damaged=reader.damaged)
        if dry_run or raised.plan.after == level:
            return raised
        data = encode_node(Features(level=raised.plan.after))
        try:
            if version is None:
                await coordination.create(FEATURES, data)
            else:
                await coordination.set(FEATURES, data, version)
        except (NodeChangedError, AlreadyExistsError):
            continue
        return raised
    raise NodeChangedError("the level of the cluster keeps changing; try again", node=FEATURES)


async def _read(coordination: Coordination) -> tuple[int, int | None]:
    """The level, and the version of its node. Clusters of the first version have no such node."""
    try:
        node = await coordination.read(FEATURES)
    except NodeNotFoundError:
        return 1, None
    return decode_node(Features, node.data).level, node.version


async def _read_or_note(coordination: Coordination, reader: NodeReader) -> tuple[int | None, int | None]:
    """As ``_read``; the level is None if the node is damaged."""
    try:
        return await _read(coordination)
    except CorruptDataError:
        node = await coordination.read(FEATURES)
        await reader.registration(FEATURES, Features)
        return None, node.version


async def _levels(reader: NodeReader, folder: str, role: str, kind: type[_Entry], *, known: bool) -> dict[str, int]:
    """The level of each process. One whose registration is damaged may be of the first version; without a ``known`` level
    in force it is left out, because it would lower the level."""
    found = {}
    for name in await reader.members(folder):
        noted = len(reader.damaged)
        entry = await reader.registration(f"{folder}/{name}", kind)
        if entry is not None:
            found[f"{role} {name}"] = entry.level
        elif known and len(reader.damaged) > noted:  # else it has just ended
            found[f"{role} {name}"] = 1
    return found
