"""Retention sets: the recorded cuts of each stream, read once and then carried on record by record.

Every change of a set changes one small record in the same step. Its version shows whether a copy in memory is current.
So a cycle reads one entry instead of thousands. Source: docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock.codec.control.readers import RetentionSetRecord, TailRecord
from penstock.controller import keys
from penstock.controller.metadata import Metadata, Stored, overwrite
from penstock.controller.set_aside import SetAside
from penstock.core.retention.facts import StreamCutRecord
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import TablePut

RECORDS_MAX = 2000
"""Maximum members of one set. Beyond it every second one of the older half is dropped. Byte limits are then met less
exactly far behind the tail, where it does not matter. Age limits have sparser sets from the start."""

_REMEMBERED_MAX = 300_000  # members of all sets in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSet:
    """A stream's recorded cuts, oldest first, and the record that every change of them is conditional on."""

    state: Stored[RetentionSetRecord]
    records: Sequence[StreamCutRecord]

    @property
    def pruned_ms(self) -> int:
        return -1 if self.state.value is None else self.state.value.pruned_ms

    def puts(
        self, name: StreamName, *, record: StreamCutRecord | None = None, prune_ms: int | None = None
    ) -> list[TablePut]:
        """The puts that add a record and drop those up to ``prune_ms``. The first one returns the new version."""
        pruned = max(self.pruned_ms, -1 if prune_ms is None else prune_ms)
        found = [self.state.put(RetentionSetRecord(pruned_ms=pruned))]
        if record is not None and record.time_ms > pruned:
            found.append(overwrite(keys.tail(name, record.time_ms), to_stored(record)))
        return found


class RetentionSets:
    """Sets of all streams; as many as fit are cached in memory."""

    def __init__(self, metadata: Metadata, set_aside: SetAside, *, limit: int) -> None:
        self._metadata = metadata
        self._set_aside = set_aside
        self._limit = limit
        self._known: OrderedDict[StreamName, tuple[int, list[StreamCutRecord]]] = OrderedDict()
        self._size = 0

    async def of(self, name: StreamName, state: Stored[RetentionSetRecord]) -> RetentionSet:
        """The set as of ``state``, which the caller has just read. Records are read only if the cached version
        differs."""
        known = self._known.get(name)
        if known is not None and known[0] == state.version:
            self._known.move_to_end(name)
            return RetentionSet(state=state, records=known[1])
        pruned = -1 if state.value is None else state.value.pruned_ms
        records: list[StreamCutRecord] = []
        async for entry in self._metadata.scan_all(keys.tails(name)):
            item = self._set_aside.read(entry, TailRecord)
            # A missing member keeps data longer, never shorter.
            if item is not None and item.time_ms > pruned:
                records.append(
                    StreamCutRecord(
                        time_ms=item.time_ms, size_bytes=item.size_bytes, positions=item.cut, event_count=item.events
                    )
                )
        self._keep(name, state.version, records)
        return RetentionSet(state=state, records=records)

    async def changed(
        self,
        name: StreamName,
        before: RetentionSet,
        version: int,
        *,
        record: StreamCutRecord | None,
        prune_ms: int | None,
    ) -> None:
        """Record that the puts of ``before`` were written, the state with ``version``. Removes the keys of dropped
        members. A key that cannot be removed now is removed later."""
        pruned = max(before.pruned_ms, -1 if prune_ms is None else prune_ms)
        records = [item for item in before.records if item.time_ms > pruned]
        gone = [item.time_ms for item in before.records if item.time_ms <= pruned]
        if record is not None and record.time_ms > pruned:
            records.append(record)
        if len(records) > RECORDS_MAX:
            half = len(records) // 2
            gone += [item.time_ms for item in records[1:half:2]]
            records = [*records[0:half:2], *records[half:]]
        self._keep(name, version, records)
        if gone:
            try:
                await self._metadata.remove_keys([keys.tail(name, time_ms) for time_ms in gone])
            except PenstockError:
                # A leftover member changes no decision: it is before the head, or between two that stay.
                self.forget(name)

    def forget(self, name: StreamName) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._size -= len(known[1])

    def _keep(self, name: StreamName, version: int, records: list[StreamCutRecord]) -> None:
        self.forget(name)
        self._known[name] = (version, records)
        self._size += len(records)
        while len(self._known) > 1 and (len(self._known) > self._limit or self._size > _REMEMBERED_MAX):
            self.forget(next(iter(self._known)))


def to_stored(record: StreamCutRecord) -> TailRecord:
    return TailRecord(
        time_ms=record.time_ms, size_bytes=record.size_bytes, cut=record.positions, events=record.event_count
    )
