"""Laws of ``ports.data.service.LocalSegmentService`` about erasure."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from uuid import UUID

from penstock.codec.events import frame_events
from penstock.model.errors import InvalidArgumentError, PenstockError, SegmentNotFoundError, TruncatedError
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.service import LocalSegmentService
from penstock.testing.conformance import check

SEGMENT = "scope/stream/0.#epoch.0"
EVENTS = [b"event %d " % number * (number % 4) for number in range(60)]
WANTED = [number for number, event in enumerate(EVENTS) if number % 5 == 1 and event]


class ErasureLaws:
    """Subclass and implement ``open``."""

    def open(self) -> AbstractAsyncContextManager[LocalSegmentService]:
        """Reopen the same store. The first call of an instance finds it empty."""
        raise NotImplementedError

    async def law_erased_bytes_are_zeros_for_ever_and_no_others_change(self) -> None:
        async with self.open() as store:
            offsets = await _write(store)
            before = await _text(store)
            ranges = await store.event_ranges(SEGMENT, [offsets[number] for number in WANTED])
            expected = [(offsets[number] + 8, offsets[number] + 8 + len(EVENTS[number])) for number in WANTED]
            check(list(ranges) == expected, "payloads are found by the offsets of their events", ranges=ranges)
            done = await store.erase(SEGMENT, ranges, erasure="one")
            await store.wipe_log()
            blank = bytearray(before)
            for start, end in ranges:
                blank[start:end] = bytes(end - start)
            check(await _text(store) == blank, "erased bytes are zeros, all others are unchanged")
            check(await store.erased_ranges(SEGMENT, 0, len(before)) == expected, "the store knows what was erased")
            check(await store.erased_ranges(SEGMENT, *expected[2]) == [expected[2]], "also of a part")
            check(await store.count_events(SEGMENT, 0, len(before)) == len(EVENTS), "erased events still count")
            total = sum(item.blanked_bytes for item in done)
            check(total == sum(end - start for start, end in ranges), "each byte is reported once", total=total)
            check(await store.erase(SEGMENT, ranges, erasure="one") == done, "a repeated call returns the same")
            check(
                await store.erase(SEGMENT, ranges, erasure="two") == [], "another erasure finds nothing left to erase"
            )
        async with self.open() as store:
            check(await _text(store) == blank, "blanked bytes stay blank")
            check(
                await store.erased_ranges(SEGMENT, 0, len(before)) == expected,
                "the store still returns the erased ranges",
            )
            check(await store.erase(SEGMENT, ranges, erasure="one") == done, "also for a repeat")

    async def law_what_cannot_be_erased_is_refused(self) -> None:
        async with self.open() as store:
            offsets = await _write(store)
            before = await _text(store)
            for bad in (offsets[3] + 1, len(before), len(before) + 5):
                check(
                    await _error(store, [offsets[1], bad]) is InvalidArgumentError,
                    "no event begins at the offset",
                    bad=bad,
                )
            await store.truncate(SEGMENT, offsets[5])
            check(await _error(store, [offsets[1]]) is TruncatedError, "truncated events are refused")
            for call in (
                store.erased_ranges("scope/stream/9.#epoch.0", 0, 5),
                store.event_ranges("scope/stream/9.#epoch.0", [0]),
                store.erase("scope/stream/9.#epoch.0", [(8, 9)], erasure="one"),
            ):
                try:
                    await call
                except SegmentNotFoundError:
                    continue
                check(False, "a segment that is not there has nothing to erase")
            check(await _text(store, offsets[5]) == before[offsets[5] :], "nothing was changed")


async def _write(store: LocalSegmentService) -> list[int]:
    """Offsets of the events."""
    await store.create_segment(SEGMENT)
    writer = UUID(int=7)
    previous, number = await store.setup_append(SEGMENT, writer), 0
    check(previous == NO_EVENT, "the segment is new")
    for start in range(0, len(EVENTS), 7):
        part = EVENTS[start : start + 7]
        number += len(part)
        await store.append(
            Append(
                segment=SEGMENT,
                writer=writer,
                data=frame_events(part),
                event_number=number,
                event_count=len(part),
                previous=previous,
            )
        )
        previous = number
    offsets = [0]
    for event in EVENTS[:-1]:
        offsets.append(offsets[-1] + 8 + len(event))
    return offsets


async def _text(store: LocalSegmentService, start: int = 0) -> bytes:
    text = b""
    while part := b"".join((await store.read(SEGMENT, start + len(text), 1 << 20, wait=False)).parts):
        text += part
    return text


async def _error(store: LocalSegmentService, offsets: list[int]) -> type[PenstockError] | None:
    try:
        await store.event_ranges(SEGMENT, offsets)
    except PenstockError as error:
        return type(error)
    return None
