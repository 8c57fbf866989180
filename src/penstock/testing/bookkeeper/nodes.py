"""The coordinator's nodes in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import field

from penstock.model.errors import AlreadyExistsError, ConditionFailedError, NotConnectedError, NotFoundError
from penstock.model.values.dataclass import dataclass


@dataclass(slots=True, eq=False)
class MemoryNodes:
    """Implements ``ports.cluster.nodes.Nodes``. ``loses``: called with the name of each call; True: the call happens, and
    its answer is lost. ``is_down``: each call fails, after ``silent_s`` seconds."""

    nodes: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    loses: Callable[[str], bool] | None = None
    is_down: bool = False
    silent_s: float = 0.0
    _numbers: dict[str, int] = field(default_factory=dict)

    async def read(self, path: str) -> tuple[bytes, int]:
        """As the port says."""
        await self._reach()
        return self._found(path)

    async def create(self, path: str, data: bytes) -> None:
        """As the port says."""
        await self._reach()
        if path in self.nodes:
            raise AlreadyExistsError("node exists", path=path)
        self.nodes[path] = (data, 0)
        self._answer("create")

    async def next_number(self, prefix: str) -> int:
        """As the port says."""
        await self._reach()
        number = self._numbers.get(prefix, 0)
        self._numbers[prefix] = number + 1
        self._answer("next_number")
        return number

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        """As the port says."""
        await self._reach()
        _, found = self._found(path)
        if found != version:
            raise ConditionFailedError("node has another version", path=path, version=found)
        self.nodes[path] = (data, version + 1)
        self._answer("set")
        return version + 1

    async def delete(self, path: str) -> None:
        """As the port says."""
        await self._reach()
        self._found(path)
        del self.nodes[path]
        self._answer("delete")

    async def children(self, path: str) -> Sequence[str]:
        """As the port says."""
        await self._reach()
        below = f"{path.rstrip('/')}/"
        return sorted({one[len(below) :].split("/")[0] for one in self.nodes if one.startswith(below)})

    def copy_from(self, other: MemoryNodes) -> None:
        """Hold the same nodes, and continue after the same numbers."""
        self.nodes, self._numbers = dict(other.nodes), dict(other._numbers)

    def used(self, prefix: str) -> int:
        """How many numbers with this prefix were drawn."""
        return self._numbers.get(prefix, 0)

    def _found(self, path: str) -> tuple[bytes, int]:
        if path not in self.nodes:
            raise NotFoundError("node does not exist", path=path)
        return self.nodes[path]

    async def _reach(self) -> None:
        if self.is_down:
            await asyncio.sleep(self.silent_s)
            raise NotConnectedError("coordinator does not answer")

    def _answer(self, call: str) -> None:
        if self.loses is not None and self.loses(call):
            raise NotConnectedError("answer was lost; the call may have happened", call=call)
