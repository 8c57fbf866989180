"""Nodes of a cluster that are damaged in every way, and an operator who replaces them by hand."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.model.errors import NodeNotFoundError
from penstock.storage.memory.memory_coordination import MemoryCoordinator

DAMAGES = {
    "empty": b"",
    "not JSON": b"\xff{",
    "another kind of JSON": b"[1]",
    "no fields": b'{"format": 1}',
    "fields of other types": (
        b'{"format": 1, "owners": 7, "known": 7, "drained": 7, "term": "x", "controller": 7, "store": 7,'
        b' "clients": 7, "links": 7, "serving": 7}'
    ),
    "a newer format": b'{"format": 99}',
    "missing": None,
}
damages = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


async def put(coordinator: MemoryCoordinator, path: str, data: bytes | None) -> bytes | None:
    """Replace a node by hand, as an operator would; None deletes it. Returns what it held."""
    async with operator(coordinator) as session:
        try:
            node = await session.read(path)
        except NodeNotFoundError:
            if data is not None:
                await session.create(path, data)
            return None
        if data is None:
            await session.delete(path, node.version)
        else:
            await session.set(path, data, node.version)
        return node.data


@asynccontextmanager
async def operator(coordinator: MemoryCoordinator) -> Any:
    session = coordinator.open()
    try:
        yield session
    finally:
        await session.close()
