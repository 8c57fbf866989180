"""A stream's history in points, for plots and forecasts: a few hundred for each stream, coarser the older they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from penstock.codec.metadata import HeadRecord
from penstock.codec.retention_records import PointRecord
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.metadata import overwrite
from penstock.core.buckets import java_hash
from penstock.core.forecast import POINTS_MAX, thin
from penstock.model.names import StreamName
from penstock.ports.segment_service import TablePut

_KNOWN_MAX = 100_000
_THIN_EVERY = 64


class Points:
    """Writes the points; many streams' together, since none of them is worth a sync."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: OrderedDict[StreamName, int] = OrderedDict()
        self._puts: list[TablePut] = []
        self._thin: list[StreamName] = []

    async def note(self, name: StreamName, record: Mapping[str, Any]) -> None:
        """Note where the stream stands by a record of its tail (``time_ms``, ``size_bytes``)."""
        ctx, time_ms = self._ctx, int(record["time_ms"])
        last_ms = self._known.get(name)
        if last_ms is not None and time_ms - last_ms < ctx.settings.history_ms:
            return
        head = (await ctx.metadata.get(keys.head(name), HeadRecord)).value or HeadRecord()
        point = PointRecord(time_ms=time_ms, size_bytes=int(record["size_bytes"]), head_bytes=head.truncated_bytes)
        self._puts.append(overwrite(retention_keys.point(name, time_ms), point))
        # Every so often by the clock, which outlives the process: one that starts again and again must thin out too.
        if time_ms // max(ctx.settings.history_ms, 1) % _THIN_EVERY == java_hash(str(name)) % _THIN_EVERY:
            self._thin.append(name)
        self._known[name] = time_ms
        self._known.move_to_end(name)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def flush(self) -> None:
        """Write what was noted, and forget what is too much."""
        puts, self._puts = self._puts, []
        names, self._thin = self._thin, []
        await self._ctx.metadata.put_many(puts)
        for name in names:
            prefix = retention_keys.points(name)
            times = [int(entry.key[len(prefix) :], 16) async for entry in self._ctx.metadata.scan_all(prefix)]
            # Room is made for what comes until the next look, so that never more than that many are there.
            gone = thin(times, limit=POINTS_MAX - _THIN_EVERY)
            await self._ctx.metadata.remove_keys([retention_keys.point(name, time_ms) for time_ms in gone])


async def load_points(ctx: Context, name: StreamName) -> list[PointRecord]:
    """The stream's points, oldest first."""
    return [PointRecord.decode(entry.value) async for entry in ctx.metadata.scan_all(retention_keys.points(name))]
