"""A stream's history as points, for plots and forecasts: a few hundred for each stream, sparser for older times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock.codec.control.streams import HeadRecord, StreamRecord
from penstock.codec.control.truncations import PointRecord
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.metadata import overwrite
from penstock.core.retention.forecast import POINTS_MAX, thin
from penstock.core.streams.buckets import java_hash
from penstock.model.errors import BadKeyVersionError, KeyNotFoundError
from penstock.model.names import StreamName
from penstock.ports.data.tables import KEY_ABSENT, TableCheck, TablePut

_KNOWN_MAX = 100_000  # streams whose last point is remembered
_AT_ONCE = 100  # points of one batch; each also brings a check, and a batch has at most 256 items
_THIN_EVERY = 64  # points of a stream between two thinnings of its old points


class Points:
    """Writes the points of many streams together, because one point is not worth a sync."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: OrderedDict[StreamName, int] = OrderedDict()
        self._puts: list[tuple[StreamName, int, TablePut]] = []
        self._thin: list[StreamName] = []

    async def note(self, name: StreamName, *, time_ms: int, size_bytes: int) -> None:
        """Note where the stream's tail was at that time, in bytes since the beginning of history."""
        ctx = self._ctx
        last_ms = self._known.get(name)
        if last_ms is not None and time_ms - last_ms < ctx.settings.history_ms:
            return
        view = await ctx.streams.find(name)
        if view is None:
            return
        head = (await ctx.metadata.get(keys.head(name), HeadRecord)).value or HeadRecord()
        point = PointRecord(time_ms=time_ms, size_bytes=size_bytes, head_bytes=head.truncated_bytes)
        put = overwrite(retention_keys.point(name, time_ms), point)
        self._puts.append((name, view.record.incarnation, put))
        # Decided by the clock, not by a counter: a process that restarts often must thin out too.
        if time_ms // max(ctx.settings.history_ms, 1) % _THIN_EVERY == java_hash(str(name)) % _THIN_EVERY:
            self._thin.append(name)
        self._known[name] = time_ms
        self._known.move_to_end(name)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def flush(self) -> None:
        """Write the new points, and delete excess old ones."""
        puts, self._puts = self._puts, []
        names, self._thin = self._thin, []
        for start in range(0, len(puts), _AT_ONCE):
            await self._put(puts[start : start + _AT_ONCE])
        for name in names:
            prefix = retention_keys.points(name)
            found = [
                self._ctx.set_aside.key(entry, retention_keys.point_ms)
                async for entry in self._ctx.metadata.scan_all(prefix)
            ]
            times = [time_ms for time_ms in found if time_ms is not None]
            # Leaves room for the points until the next thinning, so that the maximum is never exceeded.
            gone = thin(times, limit=POINTS_MAX - _THIN_EVERY)
            await self._ctx.metadata.remove_keys([retention_keys.point(name, time_ms) for time_ms in gone])

    async def _put(self, puts: Sequence[tuple[StreamName, int, TablePut]]) -> None:
        """Write the points, except those of streams that were deleted since: nothing must remain of a deleted
        stream."""
        metadata = self._ctx.metadata
        entries = await metadata.entries([keys.stream(name) for name, _, _ in puts])
        found: list[TablePut | TableCheck] = []
        for (_, incarnation, put), entry in zip(puts, entries, strict=True):
            record = None if entry.version == KEY_ABSENT else self._ctx.set_aside.read(entry, StreamRecord)
            if record is not None and record.incarnation == incarnation:
                found += [put, TableCheck(key=entry.key, version=entry.version)]
        if not found:
            return
        try:
            await metadata.put(*found)
        except (BadKeyVersionError, KeyNotFoundError):
            if len(puts) > 1:
                # One of the streams has changed in between. A point that fails twice is dropped.
                for item in puts:
                    await self._put([item])


async def load_points(ctx: Context, name: StreamName) -> list[PointRecord]:
    """The stream's points, oldest first, without unreadable ones."""
    found = [
        ctx.set_aside.read(entry, PointRecord) async for entry in ctx.metadata.scan_all(retention_keys.points(name))
    ]
    return [item for item in found if item is not None]
