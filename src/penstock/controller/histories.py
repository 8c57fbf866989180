"""Histories of streams in memory: read once, then carried on epoch by epoch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from penstock.codec.control.streams import (
    EpochEntry,
    LengthsRecord,
    StreamRecord,
    StreamState,
    WorkKind,
)
from penstock.controller import keys
from penstock.controller.metadata import Metadata
from penstock.controller.stream_view import StreamView
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.errors import CorruptDataError, InternalError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId


class Histories:
    """Histories of streams, read once and then carried on epoch by epoch.

    Active epochs and written lengths never change. So a history in memory can only be too short, and its epoch shows
    that.
    """

    def __init__(self, metadata: Metadata, *, limit: int) -> None:
        self._metadata = metadata
        self._limit = limit
        self._known: OrderedDict[StreamName, tuple[int, bool, StreamHistory]] = OrderedDict()
        self._events: dict[StreamName, dict[SegmentId, int]] = {}

    async def of(self, view: StreamView) -> StreamHistory:
        """The history up to the stream's active epoch.

        During a scale, the lengths of the segments that it seals are missing (``core.missing_lengths``).
        Raises: StreamNotFoundError if the stream was deleted meanwhile; CorruptDataError if the record of an epoch is
        lost: segments that were active only then would seem never to have existed.
        """
        history = await self.remaining(view)
        if history.gap is not None:
            raise CorruptDataError("epoch of a stream is missing", stream=str(view.name), epoch=history.gap)
        return history

    async def remaining(self, view: StreamView) -> StreamHistory:
        """As ``of``, without the epochs whose records are lost: for work that needs only the epochs it names.

        Raises: StreamNotFoundError if the stream was deleted meanwhile; InternalError if its active epoch is missing.
        """
        record = view.record
        sealed = record.state is StreamState.SEALED
        known = self._known.get(view.name)
        if known is not None and known[0] != record.incarnation:
            known = None
        if known is not None and known[2].active.epoch == record.epoch and known[1] == sealed:
            self._known.move_to_end(view.name)
            return known[2]
        if known is not None and known[2].active.epoch > record.epoch:
            known = None
        history = await self._read(view, None if known is None else known[2])
        # A history with a gap is read again: the record may have been restored.
        if history.gap is None and (record.work is None or record.work.kind in (WorkKind.TRUNCATE, WorkKind.UNDO)):
            self._keep(view.name, (record.incarnation, sealed, history))
        return history

    def events_of(self, name: StreamName) -> Mapping[SegmentId, int]:
        """Number of events in each sealed segment of the last requested history. Segments without a count are left
        out."""
        return self._events.get(name, {})

    async def _read(self, view: StreamView, known: StreamHistory | None) -> StreamHistory:
        name, last = view.name, view.record.epoch
        epochs = [] if known is None else list(known.epochs)
        lengths = {} if known is None else dict(known.sealed_lengths)
        events = {} if known is None else dict(self._events.get(name, {}))
        after_epoch = None if known is None else keys.epoch(name, known.active.epoch)
        after_lengths = None if known is None else keys.lengths_sealed_by(name, known.active.epoch)
        async for entry in self._metadata.scan_all(keys.epochs(name), after=after_epoch):
            item = EpochEntry.decode(entry.value)
            # Epochs after the active one belong to a scale that is decided but not visible yet.
            if item.epoch <= last:
                epochs.append(EpochRecord(epoch=item.epoch, segments=item.segments, created_ms=item.created_ms))
        async for entry in self._metadata.scan_all(keys.lengths(name), after=after_lengths):
            sealed = LengthsRecord.decode(entry.value)
            lengths.update(sealed.lengths)
            events.update(sealed.events or {})
        self._events[name] = events
        if not epochs or epochs[-1].epoch != last:
            if await self._was_deleted(view):
                raise StreamNotFoundError("stream was deleted", stream=str(name))
            raise InternalError("epoch of a stream is missing", stream=str(name), epoch=last)
        return StreamHistory(epochs=tuple(epochs), sealed_lengths=lengths)

    def _keep(self, name: StreamName, item: tuple[int, bool, StreamHistory]) -> None:
        self._known[name] = item
        self._known.move_to_end(name)
        if len(self._known) > self._limit:
            self.forget(next(iter(self._known)))

    async def _was_deleted(self, view: StreamView) -> bool:
        """Whether the stream of ``view``, which may be read without its lock, is being deleted or was deleted since."""
        now = (await self._metadata.get(keys.stream(view.name), StreamRecord)).value
        if now is None or now.incarnation != view.record.incarnation:
            return True
        return now.state is StreamState.DELETING and view.record.state is not StreamState.DELETING

    def forget(self, name: StreamName) -> None:
        self._known.pop(name, None)
        self._events.pop(name, None)
