"""Heartbeats over a link: whether the other process answers, and which of its functions do not work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.net.workers.link import WorkerLink

_MISSED: Final = 3
"""Missed heartbeats after which a process is reported as silent."""


class Heartbeats:
    """What the last heartbeats to one process showed. ``pulse_s``: seconds between two. ``silent_s``: after which the
    process counts as hung."""

    def __init__(self, *, pulse_s: float, silent_s: float) -> None:
        self.not_ready: Mapping[str, str] = {}
        """The functions that did not work at the last heartbeat, each with the reason."""
        self._pulse_s = pulse_s
        self._silent_s = silent_s
        self._missed = 0

    @property
    def silent(self) -> bool:
        """Whether the process has missed several heartbeats."""
        return self._missed >= _MISSED

    def reset(self) -> None:
        """Forget what the last process answered."""
        self._missed, self.not_ready = 0, {}

    async def until_silent(self, link: WorkerLink, *, first_s: float) -> bool:
        """Send heartbeats until the link ends (False), or the process has not answered for too long (True). The first answer
        may take ``first_s``.

        Counts turns of its own loop, not time: a process that was itself stopped finds the answers waiting.
        """
        owed = self._missed = 0
        most_s = first_s

        def answered(answer: object) -> None:
            nonlocal owed, most_s
            self.not_ready = answer if isinstance(answer, dict) else {}
            owed, most_s, self._missed = 0, self._silent_s, 0

        while link.is_open:
            if not owed:
                owed = 1
                link.start(answered, "pulse")
            await asyncio.sleep(self._pulse_s)
            self._missed = self._missed + 1 if owed else 0
            if self._missed * self._pulse_s >= most_s:
                return True
        return False
