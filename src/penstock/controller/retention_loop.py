"""When cycles run: all streams with a policy once in a while, one stream soon after its data was acknowledged."""

from __future__ import annotations

import asyncio
import logging

from penstock.codec.metadata import StreamRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import PAGE
from penstock.controller.retention_cycle import RetentionCycle
from penstock.controller.tasks import each
from penstock.model.errors import NotFoundError, PenstockError
from penstock.model.names import StreamName

log = logging.getLogger(__name__)

CYCLES_AT_ONCE = 8
"""Streams looked at together: enough to share syncs, few enough that appends do not wait behind retention."""

_WAITING_MAX = 100_000


class RetentionLoop:
    """Both triggers. ``run`` lives in a task of the controller's."""

    def __init__(self, ctx: Context, cycle: RetentionCycle) -> None:
        self._ctx = ctx
        self._cycle = cycle
        self._waiting: dict[StreamName, None] = {}
        self._wake = asyncio.Event()

    def soon(self, name: StreamName) -> None:
        """Look at the stream after ``retention_pause_ms``. A burst of calls is one look."""
        if self._ctx.settings.retention_cycle_ms is None or len(self._waiting) >= _WAITING_MAX:
            return
        self._waiting[name] = None
        self._wake.set()

    async def run_cycles(self) -> None:
        """Look at all streams with a policy, again and again."""
        pause_ms = self._ctx.settings.retention_cycle_ms
        while pause_ms is not None:
            await asyncio.sleep(pause_ms / 1000)
            try:
                await self.run_once()
            except PenstockError as error:
                log.warning("retention cycle could not list its streams", extra={"error": str(error)})

    async def run_acknowledged(self) -> None:
        """Look at streams that ``soon`` was called for."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._ctx.settings.retention_pause_ms / 1000)
            self._wake.clear()
            names, self._waiting = list(self._waiting), {}
            await each(names, self._look, limit=CYCLES_AT_ONCE)

    async def run_once(self) -> int:
        """One cycle of every stream with a policy; returns how many. A failure of one stops no other."""
        count = 0
        after: bytes | None = None
        prefix = b"policy/"
        while page := await self._ctx.metadata.scan(prefix, after=after):
            after = page[-1].key
            names = [StreamName.parse(entry.key[len(prefix) :].decode()) for entry in page]
            await each(names, self._look, limit=CYCLES_AT_ONCE)
            count += len(names)
            if len(page) < PAGE:
                break
        self._ctx.telemetry.gauge("retention_streams", count)
        return count

    async def _look(self, name: StreamName) -> None:
        try:
            if await self._has_policy(name):
                await self._cycle.run(name, frequency_ms=self._ctx.settings.tail_record_ms)
        except NotFoundError:
            # Deleted since it was listed.
            return
        except PenstockError as error:
            log.warning("retention of a stream failed", extra={"stream": str(name), "error": str(error)})
            self._ctx.telemetry.add("retention_failures")

    async def _has_policy(self, name: StreamName) -> bool:
        found = await self._ctx.metadata.get(keys.stream(name), StreamRecord)
        return found.value is not None and found.value.config.retention is not None
