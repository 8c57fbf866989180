"""Segments that recovery cannot load because one of their rows is damaged. The log's changes to them are kept, not applied.

One flipped bit must affect only its row. So the store starts without the segment, and refuses its calls. The log may be
truncated only because its changes to the segment go into separate rows, in the same checkpoint.
Source: docs/design/0040-damaged-rows.md.
"""

from __future__ import annotations

import logging

from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.state import ContainerState

_log = logging.getLogger(__name__)
_PAGE = 1000  # rows of one scan, which bounds the memory of a page


class SetAside:
    """The segments of one container that are set aside during its recovery."""

    def __init__(self, state: ContainerState, telemetry: Telemetry) -> None:
        self._state = state
        self._telemetry = telemetry
        self._before: dict[int, None] = {}
        self._complete_upto = 0
        self._held: dict[tuple[int, int], tuple[int, list[codec.Operation]]] = {}
        """By segment and address of the frame: its time, and its changes."""

    def __contains__(self, uid: int) -> bool:
        return uid in self._state.segments.aside

    async def recover(self, complete_upto: int) -> None:
        """Find the marks of earlier openings. The rows of those segments hold all frames up to the address."""
        self._complete_upto = complete_upto
        index = self._state.index
        start, end = records.range_of(records.prefix(records.TAG_ASIDE, index))
        while True:
            damaged: list[bytes] = []
            # The mark is the first row of its segment. The rows after it may be large, and are not read.
            page = await self._state.rows.scan((start, end), limit=1, damaged=damaged)
            keys = [*damaged, *(key for key, _ in page)]
            if not keys:
                return
            for key in keys:
                uid = records.parse_number(key[3:11])
                self._before[uid] = self._state.segments.aside[uid] = None
                start = max(start, records.range_of(records.aside_key(index, uid))[1])

    def add(self, uid: int, error: CorruptDataError) -> None:
        """Set the segment aside from now on."""
        self._state.segments.aside[uid] = None
        self._telemetry.add("segments_set_aside")
        _log.error(
            "segment set aside: its metadata is damaged; penstock scrub names the row",
            extra={"container": self._state.index, "uid": f"{uid:x}", **error.fields},
        )

    async def free_name(self, uid: int) -> str | None:
        """Remove the name of a segment that was merged or deleted, so that a repeated call gets the same answer.

        Returns the name, or None if the row of the name is damaged."""
        rows, index = self._state.rows, self._state.index
        start, end = records.range_of(records.prefix(records.TAG_NAME, index))
        damaged: list[bytes] = []
        while page := await rows.scan((start, end), limit=_PAGE, damaged=damaged):
            for key, value in page:
                if records.parse_number(value) == uid:
                    rows.delete(key)
                    rows.delete(records.copy_key(key))
                    return key[3:].decode()
            start = page[-1][0] + b"\0"
        return None

    def hold(self, address: int, time_ms: int, frame: bytes) -> None:
        """Keep the changes of a frame to segments that are set aside."""
        if not self._state.segments.aside:
            return
        is_old = address <= self._complete_upto
        for operation in frames.decode_operations(frame):
            if is_old and isinstance(operation, codec.AppendOperation):
                continue  # ``hold_bytes`` keeps it, unless the rows already hold it.
            if isinstance(operation, codec.LeaseOperation | codec.ReleaseLeaseOperation):
                continue  # Leases have rows of their own, which are not set aside.
            uids = [operation.uid, operation.source] if isinstance(operation, codec.MergeOperation) else [operation.uid]
            for uid in uids:
                if uid in self and not (is_old and uid in self._before):
                    self._hold(uid, address, time_ms, operation)

    def hold_bytes(self, uid: int, offset: int, data: memoryview, count: int, address: int, time_ms: int) -> None:
        """Keep bytes that the segment's rows describe, and that may exist only in the log."""
        if uid not in self._before:
            operation = codec.AppendOperation(
                uid=uid, offset=offset, writer=0, event_number=0, event_count=count, data=data
            )
            self._hold(uid, address, time_ms, operation)

    def _hold(self, uid: int, address: int, time_ms: int, operation: codec.Operation) -> None:
        self._held.setdefault((uid, address), (time_ms, []))[1].append(operation)

    def put_rows(self) -> int | None:
        """Add what is held to the rows of the next checkpoint. Returns the lowest log address of those changes."""
        rows, index = self._state.rows, self._state.index
        for uid in self._state.segments.aside:
            if uid not in self._before:
                rows.put(records.aside_key(index, uid), records.encode_int(self._complete_upto))
        for (uid, address), (time_ms, operations) in self._held.items():
            rows.put(records.aside_key(index, uid, address), frames.encode_frame(index, time_ms, operations))
        lowest = min((address for _, address in self._held), default=None)
        self._held.clear()
        return lowest
