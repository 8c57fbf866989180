"""Create and delete many segments. Each call can be repeated, so that a workflow can continue after a crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.controller.tasks import each
from penstock.model.errors import AlreadyExistsError, SegmentNotFoundError
from penstock.ports.data.service import SegmentService


async def create_fresh(segments: SegmentService, names: Sequence[str]) -> None:
    """Create segments with names that were never used before."""
    create_all = segments.create_fresh
    if create_all is None:
        await create_segments(segments, names)
    else:
        await create_all(names)


async def create_segments(segments: SegmentService, names: Iterable[str], *, rollover_bytes: int = 0) -> None:
    """Create the segments that do not exist yet."""

    async def create(name: str) -> None:
        try:
            await segments.create_segment(name, rollover_bytes=rollover_bytes)
        except AlreadyExistsError:
            # An earlier attempt of the same workflow created it, because names are never reused.
            return

    await each(names, create)


async def delete_segments(segments: SegmentService, names: Iterable[str]) -> None:
    """Delete the segments that still exist."""

    async def delete(name: str) -> None:
        try:
            await segments.delete(name)
        except SegmentNotFoundError:
            return

    await each(names, delete)
