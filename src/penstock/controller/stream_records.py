"""Load the record of a stream, and check that streams and scopes exist."""

from __future__ import annotations

from penstock.codec.control.streams import HIDDEN, HeadRecord, ScopeRecord, StreamRecord
from penstock.controller import keys, retention_keys
from penstock.controller.metadata import Metadata, Stored, stored
from penstock.controller.stream_view import StreamView
from penstock.model.errors import InvalidArgumentError, InvalidNameError, ScopeNotFoundError, StreamNotFoundError
from penstock.model.names import StreamName, parse_segment_name
from penstock.ports.data.tables import KEY_ABSENT

DECODED_MAX = 4096  # records that stay decoded


class StreamRecords:
    """The records of streams. Each call reads the table; only the decoding is cached."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._decoded: dict[StreamName, tuple[bytes, StreamRecord]] = {}
        self.deletions = 0
        """Number of streams that this controller has deleted."""

    async def get(self, name: StreamName) -> StreamView:
        """Return a stream that users can see. Raises ScopeNotFoundError, StreamNotFoundError."""
        view = await self.find(name)
        if view is None or view.record.state in HIDDEN:
            await self.check_scope(name.scope)
            raise StreamNotFoundError("no such stream", stream=str(name))
        return view

    async def find(self, name: StreamName) -> StreamView | None:
        """Return the stream in whatever state, or None if it does not exist."""
        (entry,) = await self._metadata.entries([keys.stream(name)])
        if entry.version == KEY_ABSENT:
            self._decoded.pop(name, None)
            return None
        return StreamView(name=name, record=self._decode(name, entry.value), version=entry.version)

    def _decode(self, name: StreamName, raw: bytes) -> StreamRecord:
        """Decode a record. Each step reads it and few change it, so the last result for equal bytes is returned."""
        known = self._decoded.get(name)
        if known is not None and known[0] == raw:
            return known[1]
        record = StreamRecord.decode(raw)
        if len(self._decoded) >= DECODED_MAX:
            self._decoded.clear()
        self._decoded[name] = raw, record
        return record

    async def get_with_head(self, name: StreamName) -> tuple[StreamView, Stored[HeadRecord]]:
        """As ``get``, with the head as of the same moment."""
        stream_entry, head_entry = await self._metadata.entries([keys.stream(name), keys.head(name)])
        found = stored(stream_entry, StreamRecord)
        record = found.value
        if record is None or record.state in HIDDEN:
            await self.check_scope(name.scope)
            raise StreamNotFoundError("no such stream", stream=str(name))
        return StreamView(name=name, record=record, version=found.version), stored(head_entry, HeadRecord)

    async def check_scope(self, scope: str) -> None:
        """Raises ScopeNotFoundError."""
        found = await self._metadata.get(keys.scope(scope), ScopeRecord)
        if found.value is None or found.value.deleting:
            raise ScopeNotFoundError("no such scope", scope=scope)

    async def check_not_of_a_stream(self, segment: str) -> None:
        """Raises InvalidArgumentError if the segment belongs to a stream that exists or can be restored."""
        try:
            name, _ = parse_segment_name(segment)
        except InvalidNameError:
            return
        if await self.find(name) is not None or await self._has_deleted(name):
            raise InvalidArgumentError(
                "the segment belongs to a stream: truncate, seal or delete the stream",
                segment=segment,
                stream=str(name),
            )

    async def _has_deleted(self, name: StreamName) -> bool:
        return bool(await self._metadata.scan(retention_keys.deleted_in(str(name)), limit=1))
