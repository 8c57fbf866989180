"""Forgets the numbers of writers that were silent for long, and refuses writers that may have come back too late.

The rule is in ``core.segments``. Silence is counted in the container's age: the total time for which it was open, which
no clock change affects. A restart continues from the age of the last commit that holds it, so silence is never counted
too long.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.codec.store import rows as records
from penstock.core.segments.writer_memory import born_ms, is_refused, may_forget
from penstock.model.errors import CorruptDataError, DamagedRowError, WriterForgottenError
from penstock.ports.clock import Clock
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.segment import AttributeState
from penstock.segmentstore.state import ContainerState

_log = logging.getLogger(__name__)

_PAGE = 1000  # rows of one scan, which bounds the memory of a page
_PUT_EVERY_S = 60
_UID_END = 11  # bytes of a row's key up to the end of the uid: tag, container, uid
_KEY_BYTES = _UID_END + 16
_UID_BITS = 63
"""Segments are counted from 1: none comes near it."""
LOOK_EVERY_S = 3600
"""Seconds of age between two passes over the rows; at rest the age is written as often."""


class WriterMemory:
    """The age and the floor of one container. ``recover`` comes before replay; ``forget_some`` after each checkpoint."""

    def __init__(self, state: ContainerState, clock: Clock, telemetry: Telemetry) -> None:
        self._state = state
        self._clock = clock
        self._telemetry = telemetry
        self._before_s = 0
        self._opened = 0.0
        self.floor_ms = 0
        """Ids of writers born before, milliseconds since the Unix epoch, are refused where they are not known."""
        self._written_s = 0
        self._next_look_s = 0
        self._at: bytes | None = None
        """Where the pass under way continues."""
        self._limit = _PAGE
        self._reported = False
        """Damage was reported since the start."""

    @property
    def age_s(self) -> int:
        """Total seconds for which the container was open; never overestimated."""
        return self._before_s + int(asyncio.get_running_loop().time() - self._opened)

    async def recover(self) -> None:
        """Load what earlier openings wrote: the higher values of both copies of the row.

        If neither can be read, the floor may have been anywhere below now. Then each unknown id created before now is
        refused, unless no row of a writer holds an age: the first commit of such a row also writes this one.
        """
        state = self._state
        self._opened = asyncio.get_running_loop().time()
        key = records.prefix(records.TAG_WRITERS, state.index)
        found: list[records.WritersRecord] = []
        damaged = False
        places = (key, records.copy_key(key))
        for place in places:
            try:
                row = await state.rows.get(place)
                if row is not None:
                    found.append(records.decode_writers(row))
            except CorruptDataError as error:
                damaged = True
                _log.error("row of the writers' floor is damaged", extra={"container": state.index, **error.fields})
        if found:
            self._before_s = max(row.age_s for row in found)
            self.floor_ms = max(row.floor_ms for row in found)
        else:
            seen = await self._age_in_rows()
            self._before_s = seen or 0
            if damaged or seen is not None:
                _log.error("the writers' floor is lost: it is set to now", extra={"container": state.index})
                self.floor_ms = self._clock.now_ms()
        # With a copy missing, the next commit writes both.
        self._written_s = self._before_s if len(found) == len(places) else self._before_s - _PUT_EVERY_S
        self._next_look_s = self._before_s + LOOK_EVERY_S

    async def _age_in_rows(self) -> int | None:
        """The highest age that a row of a writer holds. None: no row holds one. Rows that cannot be read count as age 0."""
        state = self._state
        start, end = records.range_of(records.prefix(records.TAG_ATTRIBUTE, state.index))
        highest: int | None = None
        while True:
            damaged: list[bytes] = []
            try:
                page = await state.rows.scan((start, end), limit=_PAGE, damaged=damaged)
            except CorruptDataError as error:
                self._report(error)
                return highest or 0
            for _, value in page:
                used_s = self._used_s(value)
                highest = highest if used_s is None else max(highest or 0, used_s)
            if damaged:
                highest = highest or 0
            if len(page) < _PAGE:
                return highest
            start = page[-1][0] + b"\0"

    def is_refused(self, state: AttributeState, writer: int) -> bool:
        """Whether the writer has no number, but may have had one."""
        return state.pending == NO_EVENT and is_refused(writer, self.floor_ms)

    def check(self, segment: str, state: AttributeState, writer: int) -> None:
        """Raises WriterForgottenError if the writer has no number, but may have had one."""
        if self.is_refused(state, writer):
            raise WriterForgottenError(
                "writer was silent for so long that its last event number was forgotten; use a new writer",
                segment=segment,
                writer=f"{writer:032x}",
                floor_ms=self.floor_ms,
            )

    def put_if_old(self) -> None:
        """As ``put``, if the age in the rows is a minute old."""
        if self.age_s >= self._written_s + _PUT_EVERY_S:
            self.put()

    def put(self) -> None:
        """Add the age and the floor to the rows of the next commit."""
        rows, index = self._state.rows, self._state.index
        self._written_s = self.age_s
        row = records.encode_writers(records.WritersRecord(age_s=self._written_s, floor_ms=self.floor_ms))
        key = records.prefix(records.TAG_WRITERS, index)
        rows.put(key, row)
        rows.put(records.copy_key(key), row)

    async def forget_some(self) -> None:
        """Check the next thousand rows of a pass, if one is due, and forget the numbers that have expired.

        The rows are deleted in one commit with the floor. Damaged rows stay, and are reported once. Raises what the
        key-value store raises, except CorruptDataError; then the page is checked again.
        """
        state = self._state
        start, end = records.range_of(records.prefix(records.TAG_ATTRIBUTE, state.index))
        if self._at is None:
            if self.age_s < self._next_look_s:
                return
            self._next_look_s = self.age_s + LOOK_EVERY_S
            self.put()
            self._at = start
        generation = state.rows.generation
        damaged: list[bytes] = []
        try:
            page = await state.rows.scan((self._at, end), limit=self._limit, damaged=damaged)
        except CorruptDataError as error:
            # Not a single row that fails its checksum: a page of the file, with any number of rows.
            self._report(error)
            if self._limit > 1:
                self._limit //= 2  # As close to the damage as possible.
            else:
                self._at, self._limit = await self._behind(self._at, end), _PAGE
            return
        if damaged:
            self._report(DamagedRowError("value fails its checksum", key=damaged[0].hex(), rows=len(damaged)))
        # No await from here on: each row below is unchanged since it was read, or its change is detected.
        if state.rows.generation == generation:
            self._forget([(key, value) for key, value in page if not state.rows.peek(key)[0]])
            self._at = page[-1][0] + b"\0" if len(page) >= self._limit else None

    async def _behind(self, start: bytes, end: bytes) -> bytes | None:
        """The key where reading succeeds again behind a damaged page: at the next segment or a later one. None:
        nowhere."""
        index, uid = self._state.index, records.parse_number(start[3:_UID_END].ljust(8, b"\0"))
        for ahead in range(_UID_BITS):
            if uid + (1 << ahead) >= 1 << _UID_BITS:
                break
            at = records.uid_key(records.TAG_ATTRIBUTE, index, uid + (1 << ahead))
            try:
                await self._state.rows.scan((at, end), limit=1, damaged=[])
            except CorruptDataError:
                continue
            return at
        return None

    def _report(self, error: CorruptDataError) -> None:
        if not self._reported:
            self._reported = True
            _log.error(
                "rows of writers' numbers are damaged: they are not forgotten; run penstock doctor",
                extra={"container": self._state.index, **error.fields},
            )

    def _used_s(self, value: bytes) -> int | None:
        """The age that a row of a writer or an attribute holds. None: it holds none, or cannot be read."""
        try:
            return records.decode_writer(value)[1]
        except CorruptDataError as error:
            self._report(error)
            return None

    def _forget(self, page: list[tuple[bytes, bytes]]) -> None:
        state = self._state
        age_s, now_ms = self.age_s, self._clock.now_ms()
        count, floor_ms = 0, self.floor_ms
        for key, value in page:
            used_s = self._used_s(value)
            if used_s is None or len(key) != _KEY_BYTES:
                continue
            uid, writer = records.parse_number(key[3:_UID_END]), int.from_bytes(key[_UID_END:], "big")
            if not may_forget(writer, silent_ms=(age_s - used_s) * 1000, now_ms=now_ms):
                continue
            if uid in state.segments.aside or not self._release(uid, writer):
                continue
            state.rows.delete(key)
            floor_ms = max(floor_ms, (born_ms(writer) or -1) + 1)
            count += 1
        if count:
            self.floor_ms = floor_ms
            self.put()
            self._telemetry.add("writers_forgotten", count)

    def _release(self, uid: int, writer: int) -> bool:
        """Evict the writer's state. False: an operation or untiered bytes still need the number."""
        segments = self._state.segments
        segment = segments.by_uid.get(uid)
        return segment is None or segments.forget_attribute(segment, writer)
