"""Forgetting the numbers of writers that have been silent for long, and refusing those that may come back too late.

The rule is ``core.writer_memory``. Silence is counted in the container's age: the time for which it was open in all, which
nobody can set. A restart continues from the age of the last commit that holds it, so silence is never counted too long.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.codec import records
from penstock.core.writer_memory import born_ms, is_refused, may_forget
from penstock.model.errors import CorruptDataError, WriterForgottenError
from penstock.ports.segment_service import NO_EVENT

if TYPE_CHECKING:
    from penstock.segmentstore.container import Container
    from penstock.segmentstore.segment import AttributeState

_log = logging.getLogger(__name__)

_PAGE = 1000
_PUT_EVERY_S = 60
LOOK_EVERY_S = 3600
"""Seconds of age between two passes over the rows; at rest the age is written as often."""


class WriterMemory:
    """The age and the floor of one container. ``recover`` comes before replay; ``forget_some`` after each checkpoint."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._before_s = 0
        self._opened = 0.0
        self.floor_ms = 0
        """Ids of writers born before, milliseconds since the Unix epoch, are refused where they are not known."""
        self._written_s = 0
        self._next_look_s = 0
        self._at: bytes | None = None
        """Where the pass under way continues."""

    @property
    def age_s(self) -> int:
        """Seconds for which the container was open in all; never more than that."""
        return self._before_s + int(asyncio.get_running_loop().time() - self._opened)

    async def recover(self) -> None:
        """Load what earlier openings wrote. If both copies are damaged, each id that is not known and was born before now is
        refused: the floor may be anywhere below."""
        container = self._container
        self._opened = asyncio.get_running_loop().time()
        key = records.prefix(records.TAG_WRITERS, container.index)
        found: records.WritersRecord | None = None
        for place in (key, records.copy_key(key)):
            try:
                row = await container.rows.get(place)
                found = found if row is None else records.decode_writers(row)
                break
            except CorruptDataError as error:
                _log.error("row of the writers' floor is damaged", extra={"container": container.index, **error.fields})
                found = records.WritersRecord(age_s=0, floor_ms=container.clock.now_ms())
        if found is not None:
            self._before_s, self.floor_ms = found.age_s, found.floor_ms
        self._written_s = self._before_s
        self._next_look_s = self._before_s + LOOK_EVERY_S

    def is_refused(self, state: AttributeState, writer: int) -> bool:
        """Whether the writer has no number, and may have had one."""
        return state.pending == NO_EVENT and is_refused(writer, self.floor_ms)

    def check(self, segment: str, state: AttributeState, writer: int) -> None:
        """Raises WriterForgottenError if the writer has no number, and may have had one."""
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
        rows, index = self._container.rows, self._container.index
        self._written_s = self.age_s
        row = records.encode_writers(records.WritersRecord(age_s=self._written_s, floor_ms=self.floor_ms))
        key = records.prefix(records.TAG_WRITERS, index)
        rows.put(key, row)
        rows.put(records.copy_key(key), row)

    async def forget_some(self) -> None:
        """Look at the next thousand rows of a pass, if one is due, and forget what may be forgotten.

        The rows leave in one commit with the floor. Raises what the key-value store raises; then the page is looked at again.
        """
        container = self._container
        if self._at is None:
            if self.age_s < self._next_look_s:
                return
            self._next_look_s = self.age_s + LOOK_EVERY_S
            self.put()
        start, end = records.range_of(records.prefix(records.TAG_ATTRIBUTE, container.index))
        start = start if self._at is None else self._at
        generation = container.rows.generation
        damaged: list[bytes] = []
        page = await container.rows.scan((start, end), limit=_PAGE, damaged=damaged)
        # No await from here on: each row below is as it was read, or is seen to have changed.
        if container.rows.generation == generation:
            self._forget([(key, value) for key, value in page if not container.rows.peek(key)[0]])
            self._at = page[-1][0] + b"\0" if len(page) + len(damaged) >= _PAGE else None

    def _forget(self, page: list[tuple[bytes, bytes]]) -> None:
        container = self._container
        age_s, now_ms = self.age_s, container.clock.now_ms()
        count, floor_ms = 0, self.floor_ms
        for key, value in page:
            _, used_s = records.decode_writer(value)
            uid, writer = records.parse_number(key[3:11]), int.from_bytes(key[11:], "big")
            if used_s is None or not may_forget(writer, silent_ms=(age_s - used_s) * 1000, now_ms=now_ms):
                continue
            if uid in container.segments.aside or not self._release(uid, writer):
                continue
            container.rows.delete(key)
            floor_ms = max(floor_ms, (born_ms(writer) or -1) + 1)
            count += 1
        if count:
            self.floor_ms = floor_ms
            self.put()
            container.telemetry.add("writers_forgotten", count)

    def _release(self, uid: int, writer: int) -> bool:
        """Let the writer's state leave memory. False: an operation or bytes that are not tiered still need the number."""
        segments = self._container.segments
        segment = segments.by_uid.get(uid)
        return segment is None or segments.forget_attribute(segment, writer)
