"""Segments whose erasure is decided at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller_world import STREAM, seg
from raced_segments import RacedSegments

from penstock.controller.controller import Controller
from penstock.model.ledgers import LogWipe

ONE = seg(0, 0)


class Blanking(RacedSegments):
    """Blanks events as a store does, but keeps no chunks and no log."""

    async def event_ranges(self, name: str, offsets: Sequence[int]) -> list[tuple[int, int]]:
        return [(offset + 8, offset + 10) for offset in offsets]

    async def erase(self, name: str, ranges: Any, *, erasure: str) -> list[Any]:
        return []

    async def wipe_log(self) -> LogWipe:
        return LogWipe()


async def ask_for_erasure(controller: Controller) -> None:
    asked = {"erasure": "e1", "who": "a", "why": "b", "looked_for": {}}
    await controller.erasures.erase(STREAM, asked, {ONE: [0]})
