"""The audit stream: every decision that removes data, or would have, as an event that any client can read.

Each entry is written to an outbox in the step that decides, so neither exists without the other. From there entries are
appended in the order of their decisions, each exactly once despite crashes: the event number is the table version of
the outbox entry, which only grows.
Source: docs/formats/audit.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from penstock.codec.audit import AuditEntry, AuditKind, encode_entry
from penstock.codec.control.truncations import GapRecord, OutboxRecord
from penstock.codec.events import frame_events
from penstock.controller import retention_keys
from penstock.controller.evidence.audit_log import AuditLog
from penstock.controller.evidence.record_streams import CreateStream, ensure_record_stream
from penstock.controller.metadata import Metadata, changing, create, overwrite, stored
from penstock.controller.set_aside import UNREADABLE, SetAside
from penstock.controller.settings import ControllerSettings
from penstock.controller.tasks import OwnedTasks
from penstock.core.evidence.audit_log import LogState, chained
from penstock.core.segments.writer_memory import FIXED_IDS
from penstock.model.callers import current_caller
from penstock.model.errors import ConditionFailedError, InvalidArgumentError, PenstockError, WriterFencedError
from penstock.model.names import AUDIT_STREAM, MARK_PREFIX, RECORD_STREAMS, StreamName, segment_name
from penstock.model.segments import make_segment_id
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.data.segments import Append, Segments
from penstock.ports.data.tables import TablePut, TableRemoval
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

WRITER = UUID(int=FIXED_IDS << 64 | 0x61_75_64_69_74_00_00_01)

_SEGMENT = segment_name(AUDIT_STREAM, make_segment_id(0, 0))
_BATCH_ENTRIES = 200  # entries of one append
_BATCH_BYTES = 512 << 10
_FENCED_TRIES = 8  # appends lost to other controllers before the drain gives up


def check_not_own(name: StreamName) -> None:
    """Raises InvalidArgumentError for records of the store's decisions and streams of watermarks: they belong to the
    store."""
    if name in RECORD_STREAMS:
        raise InvalidArgumentError("the store writes this stream itself; it can only be read", stream=str(name))
    if name.stream.startswith(MARK_PREFIX):
        raise InvalidArgumentError(
            "the store writes the stream of watermarks itself; it can only be read", stream=str(name)
        )


def _with_caller(entry: AuditEntry) -> AuditEntry:
    caller = current_caller()
    if caller is None:
        return entry
    return replace(entry, fields={**entry.fields, "caller": caller.as_fields()})


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: bytes
    version: int
    event: bytes


class Audit:
    """Writes the audit stream. All parts are borrowed.

    A full disk stops the appends, never the decisions: entries wait in the outbox. If ``audit_outbox_max`` entries
    wait, further ones are only counted. A ``gap`` entry reports their number once there is room.
    """

    def __init__(
        self,
        *,
        metadata: Metadata,
        segments: Segments,
        clock: Clock,
        rng: Rng,
        tasks: OwnedTasks,
        telemetry: Telemetry,
        settings: ControllerSettings,
        set_aside: SetAside,
    ) -> None:
        self._metadata = metadata
        self._segments = segments
        self._clock = clock
        self.log = AuditLog(metadata, segments, rng, set_aside, telemetry, segment=_SEGMENT)
        self._tasks = tasks
        self._telemetry = telemetry
        self._settings = settings
        self._set_aside = set_aside
        self._life = rng.uuid().hex
        self._next = 0
        self._waiting: dict[bytes, None] = {}
        """Known keys of the outbox. An entry may be seen there before its decision returns."""
        self._appended = -1
        """Version up to which all entries were appended and removed from the outbox."""
        self._is_certain = True
        self._without_room: GapRecord | None = None
        """The durable number of entries of this process that the audit stream will never get."""
        metadata.watch(self._written)
        self._create: CreateStream | None = None
        self._draining = asyncio.Lock()
        self._asked = False

    @property
    def waiting(self) -> int:
        """About how many entries wait for their append; at least one if the number is not known."""
        return len(self._waiting) if self._is_certain else max(1, len(self._waiting))

    async def start(self, create_stream: CreateStream, *, now: bool) -> None:
        """Start, and append what an earlier process has left in the outbox.

        ``create_stream`` creates a stream unless it exists. ``now``: create the audit stream at once, so that readers
        can wait for its first entry; else with the first entry.
        """
        self._create = create_stream
        self._waiting = {entry.key: None async for entry in self._metadata.scan_all(retention_keys.OUTBOX)}
        try:
            if now:
                await self._ensure()
            # Before anything can be removed from the stream: see ``AuditLog.settle``.
            await self.log.settle()
        except PenstockError as error:
            # The audit stream cannot be created now: space is short, or its record is damaged. The store must start
            # anyway. Entries wait, and each drain tries again.
            log.warning("audit stream cannot be used yet", extra={"error": str(error)})
        if self._waiting:
            self.soon()

    async def log_state(self) -> LogState:
        """The log up to the end of the stream, which is created unless it exists. Raises storage errors."""
        await self._ensure()
        # Alone with the log: catching up forgets tiles that a drain has completed and not stored yet.
        async with self._draining:
            return await self.log.state()

    async def _ensure(self) -> None:
        if self._create is None:
            return
        create_stream, self._create = self._create, None
        try:
            await ensure_record_stream(self._metadata, AUDIT_STREAM, create_stream, self._settings)
        except BaseException:
            self._create = create_stream
            raise

    # --- in ------------------------------------------------------------------------------------------------------

    def puts(self, entries: Sequence[AuditEntry]) -> list[TablePut]:
        """The puts that record the entries in the same step as the decision. Call it again for each attempt.

        Each entry names the caller of the decision, if one is known.
        """
        found: list[TablePut] = []
        now_ms = self._clock.now_ms()
        room = max(0, self._settings.audit_outbox_max - len(self._waiting))
        for entry in entries[:room]:
            self._next += 1
            event = encode_entry(_with_caller(entry), at_ms=now_ms).decode()
            found.append(create(retention_keys.outbox(self._life, self._next), OutboxRecord(event=event)))
        if len(entries) > room:
            found.append(self._counting(len(entries) - room, now_ms))
        return found

    def _counting(self, count: int, now_ms: int) -> TablePut:
        """Count entries that have no room. If two such decisions overlap, or one fails, the record is wrong until a gap is
        reported. ``_without_room`` has the right count; the record is used after a crash."""
        known = self._without_room or GapRecord(count=0, first_ms=now_ms, last_ms=now_ms)
        record = GapRecord(count=known.count + count, first_ms=known.first_ms, last_ms=now_ms, added=count)
        return overwrite(retention_keys.gap(self._life), record)

    def _written(self, put: TablePut, version: int | None) -> None:
        """Count what became durable. If that is unknown, the next drain counts an entry; an entry without room counts
        now. So the report may be one too high, but never too low."""
        if put.key.startswith(retention_keys.OUTBOX):
            if version is None:
                self._is_certain = False
            elif version > self._appended:
                self._waiting[put.key] = None
        elif put.key == retention_keys.gap(self._life):
            record = GapRecord.decode(put.value)
            known = self._without_room or GapRecord(count=0, first_ms=record.first_ms, last_ms=record.last_ms)
            total = known.count + record.added
            self._without_room = GapRecord(count=total, first_ms=known.first_ms, last_ms=record.last_ms)
            self._telemetry.add("audit_entries_without_room", record.added)

    # --- out -----------------------------------------------------------------------------------------------------

    def soon(self) -> None:
        """Append waiting entries in the background. Many calls cause at most one further run after the current one."""
        if self._asked:
            return
        self._asked = True
        self._tasks.start(self._drain_quietly())

    async def _drain_quietly(self) -> None:
        try:
            await self.drain()
        except PenstockError as error:
            # The entries stay in the outbox; the next drain tries again.
            log.warning("audit entries wait for their append", extra={"waiting": self.waiting, "error": str(error)})

    async def drain(self) -> int:
        """Append the waiting entries now; returns how many. Raises StorageFullError and other storage errors; the
        entries stay then."""
        count = 0
        async with self._draining:
            # From here on this run may miss new entries of the outbox.
            self._asked = False
            while True:
                found = await self._oldest()
                if not found and not await self._report_gaps():
                    return count
                if found:
                    await self._append(found)
                    await self._forget(found)
                    self._appended = found[-1].version
                    for item in found:
                        self._waiting.pop(item.key, None)
                    count += len(found)

    async def _forget(self, found: Sequence[_Waiting]) -> None:
        """Remove appended entries from the outbox, and store the state of the log in the same step."""
        puts = self.log.puts()
        await self._metadata.change(puts, [TableRemoval(key=item.key) for item in found])
        self.log.stored(puts)

    async def _oldest(self) -> list[_Waiting]:
        """The first entries in order of decision, as many as fit into one append."""
        seen = await self._scan()
        self._waiting, self._is_certain = {item.key: None for item in seen}, True
        if not seen:
            return []
        # A scan takes time: it may miss an entry decided before one that it sees. A second scan finds all of those.
        newest = max(item.version for item in seen)
        certain = [item for item in await self._scan() if item.version <= newest]
        certain.sort(key=lambda item: item.version)
        size, end = 0, 0
        while end < min(len(certain), _BATCH_ENTRIES) and (not end or size + len(certain[end].event) <= _BATCH_BYTES):
            size += len(certain[end].event)
            end += 1
        return certain[:end]

    async def _scan(self) -> list[_Waiting]:
        found: list[_Waiting] = []
        async for entry in self._metadata.scan_all(retention_keys.OUTBOX):
            record = self._set_aside.read(entry, OutboxRecord)
            if record is not None:
                found.append(_Waiting(entry.key, entry.version, record.event.encode()))
        return found

    async def _append(self, found: Sequence[_Waiting]) -> None:
        await self._ensure()
        for left in range(_FENCED_TRIES, 0, -1):
            last = await self._segments.setup_append(_SEGMENT, WRITER)
            # Entries that are not newer were appended earlier, by a controller that did not remove them from the
            # outbox.
            fresh = [item for item in found if item.version > last]
            if not fresh:
                return
            state = await self.log.state()
            entries, state_after, tiles = chained(state, [item.event for item in fresh])
            request = Append(
                segment=_SEGMENT,
                writer=WRITER,
                data=frame_events(entries),
                event_number=fresh[-1].version,
                event_count=len(fresh),
                previous=last,
                expected_offset=state.end,
            )
            try:
                await self._segments.append(request)
                self.log.advanced(state_after, tiles)
                self._telemetry.add("audit_entries", len(fresh))
                return
            except (WriterFencedError, ConditionFailedError):
                # Another controller has appended meanwhile.
                if left == 1:
                    raise

    async def _report_gaps(self) -> bool:
        """Put gap entries into the outbox, which is empty; returns whether there were any."""
        reported = False
        async for entry in self._metadata.scan_all(retention_keys.GAPS):
            life = entry.key[len(retention_keys.GAPS) :].decode("utf-8", "replace")
            try:
                reported = await changing(partial(self._report_gap, life)) or reported
            except UNREADABLE as error:
                self._set_aside.note(entry, error)
        return reported

    async def _report_gap(self, life: str) -> bool:
        entries = await self._metadata.entries([retention_keys.gap(life), retention_keys.gap_reported(life)])
        gap, reported = stored(entries[0], GapRecord).value, stored(entries[1], GapRecord)
        if life == self._life:
            gap = self._without_room
        if gap is None:
            return False
        before = reported.value or GapRecord(count=0, first_ms=gap.first_ms, last_ms=gap.first_ms)
        if gap.count == before.count:
            if life != self._life and self._settings.bucket_lease_ms is None:
                # All entries of an ended life are reported. A life that runs at the same time continues from its record.
                await self._metadata.remove_keys([retention_keys.gap(life), retention_keys.gap_reported(life)])
            return False
        fields = {"entries": gap.count - before.count, "from_ms": before.last_ms, "to_ms": gap.last_ms}
        entry = AuditEntry(kind=AuditKind.GAP, target="", fields=fields)
        self._next += 1
        event = encode_entry(entry, at_ms=self._clock.now_ms()).decode()
        outbox = create(retention_keys.outbox(self._life, self._next), OutboxRecord(event=event))
        await self._metadata.put(outbox, reported.put(gap))
        return True
