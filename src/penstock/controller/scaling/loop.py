"""Checks streams that scale by rate: when their store reports a segment, when they change, and regularly.

A report may be lost, with a store or a controller. The regular look derives it again, because it asks for the rates
themselves. It also makes a store that has restarted measure again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from penstock.codec.control.streams import StreamRecord, StreamState
from penstock.controller.buckets import Buckets
from penstock.controller.context import Context
from penstock.controller.metadata import PAGE
from penstock.controller.scaling.scaler import Scaler
from penstock.controller.tasks import each
from penstock.model.errors import NotFoundError, PenstockError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.policies import ScaleType

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Streams looked at together."""

LOOK_MINUTES = 2
"""Pause between two regular looks."""

SEARCH_LOOKS = 30
"""After so many regular looks, all streams are searched again for those that another controller or a restoration made."""


class ScalingLoop:
    """``context.ScalingAttention``. The controller runs each ``run_*`` in a task."""

    def __init__(self, ctx: Context, scaler: Scaler, buckets: Buckets) -> None:
        self._ctx = ctx
        self._scaler = scaler
        self._buckets = buckets
        self._streams: dict[StreamName, None] = {}
        self._changed: dict[StreamName, None] = {}
        self._looking: dict[StreamName, bool] = {}
        """Streams that are looked at now, and whether to look again when that ends."""
        self._wake = asyncio.Event()

    def changed(self, name: StreamName) -> None:
        """Look at the stream soon: its policy or its segments have changed."""
        if self._ctx.settings.scaling_minute_ms is not None:
            self._changed[name] = None
            self._wake.set()

    async def run_reports(self) -> None:
        """Look at once at streams with a segment that is hot or cold."""
        while True:
            try:
                reported = await self._ctx.segments.rates_reported()
            except UnsupportedError:
                return
            except PenstockError as error:
                log.warning("rates cannot be watched", extra={"error": str(error)})
                await asyncio.sleep(1.0)
                continue
            await self._look_at(StreamName.parse(name) for name in reported)

    async def run_looks(self) -> None:
        """Look at streams that have changed, and at all that scale by rate every two minutes."""
        pause_s = LOOK_MINUTES * (self._ctx.settings.scaling_minute_ms or 0) / 1000
        loop = asyncio.get_running_loop()
        looks, next_s = 0, loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._wake.wait()
            self._wake.clear()
            names, self._changed = self._changed, {}
            if loop.time() >= next_s:
                next_s = loop.time() + pause_s
                # A search that failed is repeated with the next look.
                if looks % SEARCH_LOOKS or await self._search():
                    looks += 1
                names = {**names, **self._streams}
            await self._look_at(names)

    async def _search(self) -> bool:
        """Find the streams that scale by rate among all, a page at a time. Returns whether all pages could be read."""
        prefix, after = b"stream/", None
        try:
            while page := await self._ctx.metadata.scan(prefix, after=after):
                after = page[-1].key
                for entry in page:
                    name = self._ctx.set_aside.stream(entry, prefix)
                    record = self._ctx.set_aside.read(entry, StreamRecord)
                    if name is not None and record is not None and _scales_by_rate(record):
                        self._streams[name] = None
                if len(page) < PAGE:
                    break
        except PenstockError as error:
            log.warning("streams that scale by rate could not be listed", extra={"error": str(error)})
            return False
        return True

    async def _look_at(self, names: Iterable[StreamName]) -> None:
        await each([name for name in names if self._buckets.owns(name)], self._look, limit=AT_ONCE)

    async def _look(self, name: StreamName) -> None:
        """A failure of one stops no other: the next regular look tries again."""
        if name in self._looking:
            # A look that began earlier would undo what this one does: it knows the policy and the segments of before.
            self._looking[name] = True
            return
        self._looking[name] = False
        try:
            self._streams[name] = None
            if not await self._scaler.look(name):
                self._streams.pop(name, None)
        except NotFoundError:
            self._streams.pop(name, None)
            with suppress(PenstockError):
                await self._scaler.forget(name)
        except Exception as error:
            shown = None if isinstance(error, PenstockError) else error
            log.warning("stream could not be scaled", extra={"stream": str(name), "error": str(error)}, exc_info=shown)
            self._ctx.telemetry.add("scaling_failures")
        finally:
            if self._looking.pop(name):
                self.changed(name)


def _scales_by_rate(record: StreamRecord) -> bool:
    return record.state is StreamState.ACTIVE and record.config.scaling.type is not ScaleType.FIXED
