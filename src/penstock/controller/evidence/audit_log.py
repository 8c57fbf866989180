"""The state of the audit log at the end of the audit stream, and what is stored to continue from it.

Source: docs/design/0060-evidence.md.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

from penstock.codec.control.audit_log import AuditLogRecord, AuditTileRecord
from penstock.codec.events import cut_events, event_bounds
from penstock.controller import retention_keys
from penstock.controller.metadata import Metadata, overwrite
from penstock.controller.set_aside import SetAside
from penstock.core.evidence.audit_log import ORIGIN_PREFIX, LogState, Tile, Walk, new_log
from penstock.core.evidence.merkle import Edge
from penstock.model.errors import CorruptDataError, InvalidArgumentError, SegmentNotFoundError
from penstock.ports.data.segments import SegmentInfo, Segments
from penstock.ports.data.tables import KEY_ABSENT, TablePut
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20


class AuditLog:
    """The log in ``segment``, the only segment of the audit stream. All parts are borrowed."""

    def __init__(
        self,
        metadata: Metadata,
        segments: Segments,
        rng: Rng,
        set_aside: SetAside,
        telemetry: Telemetry,
        *,
        segment: str,
    ) -> None:
        self._metadata = metadata
        self._telemetry = telemetry
        self._segments = segments
        self._rng = rng
        self._set_aside = set_aside
        self.segment = segment
        self._state: LogState | None = None
        self._tiles: dict[int, Tile] = {}
        """Tiles that are complete and not stored yet."""

    async def state(self) -> LogState:
        """The log up to the end of the stream, as it is now. Raises SegmentNotFoundError and storage errors.

        An append that is conditional on ``end`` can neither fork the log nor leave a gap in it.
        """
        info = await self._segments.info(self.segment)
        if self._state is None or self._state.end != info.length:
            self._state = await self._caught_up(info)
        return self._state

    def advanced(self, state: LogState, tiles: Sequence[Tile]) -> None:
        """Entries up to ``state`` are in the stream."""
        self._state = state
        self._tiles.update((tile.number, tile) for tile in tiles)

    def puts(self) -> list[TablePut]:
        """The puts that store the state, with at most 50 of the tiles that were completed since. See ``stored``."""
        state = self._state
        if state is None or not state.size:
            return []
        found = [
            overwrite(
                retention_keys.audit_tile(_identifier(state.origin), tile.number),
                AuditTileRecord(offset=tile.offset, hashes=tile.hashes, root=tile.root),
            )
            for tile in list(self._tiles.values())[:50]
        ]
        if len(found) == len(self._tiles):
            # Without all tiles, a later start must complete them again.
            found.append(overwrite(retention_keys.AUDIT_LOG, _record(state)))
        return found

    def stored(self, puts: Sequence[TablePut]) -> None:
        """The puts are durable: forget their tiles."""
        for put in puts:
            if put.key != retention_keys.AUDIT_LOG:
                self._tiles.pop(int(put.key.rsplit(b"/", 1)[1], 16), None)

    async def settle(self) -> None:
        """Store the state at the end of the stream, if the stream exists. Entries leave the stream a day after they were
        written at the earliest: a start that calls this finds all entries that the stored state lacks."""
        try:
            await self.state()
        except SegmentNotFoundError:
            return
        while puts := self.puts():
            await self._metadata.put(*puts)
            self.stored(puts)
            if puts[-1].key == retention_keys.AUDIT_LOG:
                return

    async def end(self) -> None:
        """Let the next entry begin another log: this store is a copy, and the original continues the log."""
        try:
            state = await self.state()
        except SegmentNotFoundError:
            return
        if state.size:
            await self.settle()
            await self._metadata.put(overwrite(retention_keys.AUDIT_LOG, _record(state, ended=True)))
        self._state = None

    async def tiles(self, state: LogState) -> AsyncIterator[Tile]:
        """The whole tiles of the log, in order; those that cannot be read are left out."""
        async for entry in self._metadata.scan_all(retention_keys.audit_tiles(_identifier(state.origin))):
            record = self._set_aside.read(entry, AuditTileRecord)
            number = self._set_aside.key(entry, lambda key: int(key.rsplit(b"/", 1)[1], 16))
            if record is not None and number is not None:
                yield Tile(number=number, offset=record.offset, hashes=record.hashes, root=record.root)

    # --- recovery ------------------------------------------------------------------------------------------------

    async def _caught_up(self, info: SegmentInfo) -> LogState:
        """Follow the stream from the stored state to its end. If an entry does not continue the log, another log
        begins. The same holds after damage: nobody can prove that later entries continue the log, but they must still
        be appended.
        """
        self._tiles.clear()
        start, ended = await self._stored()
        walk = Walk(at=info.start_offset)
        if start is not None and info.start_offset <= start.end <= info.length:
            walk = Walk(at=start.end, state=start)
        elif start is not None:
            # Entries that the stored state lacks were removed, or entries that it has are lost.
            walk.lost = start
        if start is not None and ended and walk.state is not None:
            walk.state, walk.lost = None, start
        async for entry in self._readable(walk, info.length):
            before = walk.state
            full = walk.passed(entry)
            if before is None or walk.state is None or before.origin != walk.state.origin:
                # Tiles are stored under the name of the log at the end.
                self._tiles.clear()
            if full is not None:
                self._tiles[full.number] = full
        if walk.state is not None:
            return walk.state
        self._tiles.clear()
        if walk.lost is not None:
            log.warning("another audit log begins", extra={"after": walk.lost.origin, "size": walk.lost.size})
        return new_log(self._rng.uuid().hex, at=info.length, after=walk.lost)

    async def _readable(self, walk: Walk, end: int) -> AsyncIterator[bytes]:
        """The entries from ``walk.at`` on, which the caller must pass to ``walk``, without those that cannot be read."""
        limit = end
        while walk.at < end:
            try:
                async for entry in self.entries(walk.at, limit):
                    yield entry
                damage = CorruptDataError("audit stream has an incomplete entry", segment=self.segment, offset=walk.at)
            except CorruptDataError as error:
                damage = error
            behind = min(end, await self._segments.next_event_boundary(self.segment, walk.at + 1))
            if walk.at < limit and limit <= behind:
                self._telemetry.add("audit_unreadable_bytes", limit - walk.at)
                log.error(
                    "audit entries cannot be read; another audit log begins behind them",
                    extra={"segment": self.segment, "offset": walk.at, "end": limit, "error": str(damage)},
                )
                walk.skipped(limit)
                behind = min(end, await self._segments.next_event_boundary(self.segment, walk.at + 1))
            # Block by block: a large read fails as a whole.
            limit = behind

    async def _stored(self) -> tuple[LogState | None, bool]:
        (entry,) = await self._metadata.entries([retention_keys.AUDIT_LOG])
        record = None if entry.version == KEY_ABSENT else self._set_aside.read(entry, AuditLogRecord)
        try:
            return (None, False) if record is None else (_state(record), record.ended)
        except InvalidArgumentError as error:
            self._set_aside.note(entry, error)
            return None, False

    async def entries(self, start: int, end: int) -> AsyncIterator[bytes]:
        """The entries of the stream between two event boundaries. Raises TruncatedError and storage errors."""
        rest, at = b"", start
        while at < end:
            read = await self._segments.read(self.segment, at, min(_READ_BYTES, end - at), wait=False)
            block = rest + b"".join(read.parts)
            at += len(block) - len(rest)
            if len(block) == len(rest):
                return
            bounds = event_bounds(block, segment=self.segment, offset=at - len(block))
            for entry in cut_events(block, bounds):
                yield entry
            rest = block[bounds[-1] :]


def _identifier(origin: str) -> str:
    return origin.removeprefix(ORIGIN_PREFIX)


def _record(state: LogState, *, ended: bool = False) -> AuditLogRecord:
    return AuditLogRecord(
        origin=state.origin,
        size=state.size,
        end=state.end,
        edge=state.edge.hashes,
        last=state.last,
        open=state.open,
        open_offset=state.open_offset,
        after=state.after,
        ended=ended,
    )


def _state(record: AuditLogRecord) -> LogState:
    return LogState(
        origin=record.origin,
        end=record.end,
        open_offset=record.open_offset,
        edge=Edge(record.size, record.edge),
        last=record.last,
        open=record.open,
        after=record.after,
    )
