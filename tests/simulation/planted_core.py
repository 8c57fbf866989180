"""Planted bugs of what is in memory: segments that were replaced while somebody waited, leases that the log does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from penstock.segmentstore.segment import Segment
from penstock.segmentstore.tiering.leases import Leases


def segments_in_use_leave_memory() -> Any:
    """Nothing pins a segment: reads, tiering, erasures and freeing use the object that they found first."""
    return patch.object(Segment, "pinned", lambda _: nullcontext())


def a_lease_is_in_its_row_only() -> Any:
    """A lease is answered before it is in the log: until the next checkpoint, a crash ends it beneath its reader."""

    def logged(self: Leases, operation: object) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    return patch.object(Leases, "_logged", logged)


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        segments_in_use_leave_memory,
        a_lease_is_in_its_row_only,
    )
}
