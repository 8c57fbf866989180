"""Warns while other machines can reach ports without TLS or authentication: at the start, and every hour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from penstock.ports.clock import Clock

log = logging.getLogger(__name__)

EVERY_S = 3600.0
"""Time between two warnings. Logs are kept for days and read in parts: each part shows the warning."""

_HOUR_MS = 3_600_000


class OpenPorts:
    """Logs the warnings of one server while the block runs. If nothing is missing, there are no warnings.

    ``missing``: what protects the ports and is missing. ``show_warning``: shows a line to the person at the console.
    """

    def __init__(self, host: str, missing: Sequence[str], *, clock: Clock, show_warning: Callable[[str], None]) -> None:
        self._host = host
        self._missing = tuple(missing)
        self._clock = clock
        self._show_warning = show_warning
        self._since_ms = clock.now_ms()
        self._task: asyncio.Task[None] | None = None

    def text(self) -> str | None:
        """The state for the details of the server's health; None: nothing is missing."""
        if not self._missing:
            return None
        hours = max(0, self._clock.now_ms() - self._since_ms) // _HOUR_MS
        since = f", for {hours} hour{'' if hours == 1 else 's'} now" if hours else ""
        return f"other machines can reach {self._host}, and {' and '.join(self._missing)}{since}"

    def _warn(self) -> None:
        text = self.text()
        if text is None:
            return
        log.warning(
            "the ports are not protected: anyone who reaches them can read, change and delete all data",
            extra={"host": self._host, "missing": "; ".join(self._missing)},
        )
        self._show_warning(f"WARNING: {text}. Anyone there can read, change and delete all data.")

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._warn()

    async def __aenter__(self) -> Self:
        self._warn()
        if self._missing:
            self._task = asyncio.create_task(self._remind(), name="warnings of open ports")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
