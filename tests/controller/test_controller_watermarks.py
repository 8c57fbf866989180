"""Watermarks of the controller: what writers note, what readers at a position learn, what truncation and deletion leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from controller_world import STREAM, config, cut_at, name_of, opened, scale_to, seg, write_transaction
from memory_segments import MemorySegments

from penstock.codec.events import split_events
from penstock.codec.watermarks import decode_mark
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.watermarks import advancing
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, StreamNotFoundError, TimeGoesBackError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange
from penstock.ports.control.transactions import NotedTime
from penstock.testing.fakes import FakeClock

MARKS = StreamName("s", "_MARKt")
TIMEOUT_MS = 5000


@asynccontextmanager
async def world(segments: MemorySegments, clock: FakeClock, count: int = 1) -> AsyncIterator[Controller]:
    async with opened(segments, clock) as controller:
        await controller.scopes.create("s")
        await controller.streams.create(STREAM, replace(config(count), timestamp_aggregation_ms=TIMEOUT_MS))
        yield controller


async def stored(controller: Controller, segments: MemorySegments) -> list[tuple[int, int, dict[int, int]]]:
    """Lower bound, upper bound and cut of each watermark, as a reader of the mark stream finds them."""
    (item,) = await controller.layout.current(MARKS)
    name = name_of(item.segment, MARKS)
    info = await segments.info(name)
    data = b""
    if info.length > info.start_offset:
        found = await segments.read(name, info.start_offset, info.length - info.start_offset, wait=False)
        data = b"".join(bytes(part) for part in found.parts)
    return [(mark.lower_ms, mark.upper_ms, mark.positions) for mark in map(decode_mark, split_events(data))]


async def write(segments: MemorySegments, size: int, *, segment: int = 0) -> None:
    segments.write(name_of(seg(0, segment)), bytes(size))


def test_one_writer_moves_both_bounds() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            for time_ms in (10, 20, 30):
                await write(segments, 100)
                await controller.cuts.note_time(STREAM, "w", time_ms)
                assert await controller.advance_watermarks() == 1
            assert await controller.advance_watermarks() == 0
            assert await stored(controller, segments) == [
                (10, 10, {seg(0, 0): 100}),
                (20, 20, {seg(0, 0): 200}),
                (30, 30, {seg(0, 0): 300}),
            ]
            place = 0
            for at, lower, upper in ((0, None, 10), (100, 10, 20), (199, 10, 20), (200, 20, 30), (300, 30, None)):
                window = await controller.cuts.time_window(cut_at({seg(0, 0): at}))
                assert (window.lower_ms, window.upper_ms) == (lower, upper)
                assert await controller.cuts.time_window(cut_at({seg(0, 0): at}), place=place) == window
                place = window.place

    asyncio.run(run())


def test_two_writers_follow_the_slower_until_it_leaves_or_times_out() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with world(segments, clock, 2) as controller:
            cuts = controller.cuts
            await write(segments, 10)
            await write(segments, 20, segment=1)
            await cuts.note_time(STREAM, "slow", 1, position=cut_at({seg(0, 0): 5, seg(0, 1): -1}))
            await cuts.note_time(STREAM, "fast", 50, position=cut_at({seg(0, 0): -1, seg(0, 1): 7}))
            await controller.advance_watermarks()
            assert await stored(controller, segments) == [(1, 50, {seg(0, 0): 5, seg(0, 1): 7})]
            for time_ms in (60, 70):
                await cuts.note_time(STREAM, "fast", time_ms, position=cut_at({seg(0, 0): -1, seg(0, 1): 8}))
                assert await controller.advance_watermarks() == 0
            await cuts.note_time(STREAM, "slow", 2, position=cut_at({seg(0, 0): 6, seg(0, 1): -1}))
            await controller.advance_watermarks()
            assert (await stored(controller, segments))[1:] == [(2, 70, {seg(0, 0): 6, seg(0, 1): 8})]
            clock.ms += TIMEOUT_MS - 1
            await cuts.note_time(STREAM, "fast", 80)
            assert await controller.advance_watermarks() == 0
            clock.ms += 1
            assert await controller.advance_watermarks() == 1
            assert (await stored(controller, segments))[2:] == [(80, 80, {seg(0, 0): 10, seg(0, 1): 20})]
            # One that comes back late holds the watermark, which never goes back; and no longer once it leaves.
            await cuts.note_time(STREAM, "slow", 3)
            await cuts.note_time(STREAM, "fast", 90)
            assert await controller.advance_watermarks() == 0
            await cuts.remove_writer(STREAM, "slow")
            assert await controller.advance_watermarks() == 1
            await cuts.remove_writer(STREAM, "fast")
            await cuts.remove_writer(STREAM, "never was")
            await controller.advance_watermarks()
            assert [item[0] for item in await stored(controller, segments)] == [1, 2, 80, 90]
            assert not [key for key in segments.tables[keys.TABLE].entries if key.startswith(keys.WRITER_MARKS)]

    asyncio.run(run())


def test_what_goes_back_or_names_nothing_is_refused_and_changes_nothing() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            cuts = controller.cuts
            await write(segments, 100)
            await cuts.note_time(STREAM, "a/b", 10, position=cut_at({seg(0, 0): 50}))
            before = dict(segments.tables[keys.TABLE].entries)
            for wrong, time_ms, position, error in (
                ("a/b", 9, cut_at({seg(0, 0): 60}), TimeGoesBackError),
                ("a/b", 11, cut_at({seg(0, 0): 49}), InvalidCutError),
                ("a/b", 11, cut_at({seg(0, 0): 101}), InvalidCutError),
                ("a/b", 11, cut_at({seg(3, 9): 1}), InvalidCutError),
                ("a/b", 11, cut_at({seg(0, 0): 60}, MARKS), InvalidCutError),
                ("", 11, None, InvalidArgumentError),
                ("x" * 256, 11, None, InvalidArgumentError),
                ("a/b", 1 << 63, None, InvalidArgumentError),
            ):
                with pytest.raises(error):
                    await cuts.note_time(STREAM, wrong, time_ms, position=position)
            with pytest.raises(StreamNotFoundError):
                await cuts.note_time(StreamName("s", "absent"), "w", 1)
            assert dict(segments.tables[keys.TABLE].entries) == before
            await cuts.note_time(STREAM, "a/b", 10, position=cut_at({seg(0, 0): 50}))
            assert await controller.advance_watermarks() == 1

    asyncio.run(run())


def test_watermarks_continue_across_a_scale_and_a_new_controller() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with world(segments, clock) as controller:
            await write(segments, 100)
            await controller.cuts.note_time(STREAM, "w", 10)
            await controller.advance_watermarks()
            await scale_to(controller, 2)
            await controller.cuts.note_time(STREAM, "w", 20)
        async with opened(segments, clock) as controller:
            # What was noted before the end is looked at after the next start.
            assert await controller.advance_watermarks() == 1
            assert [item[0] for item in await stored(controller, segments)] == [10, 20]
            tail = await controller.cuts.tail(STREAM)
            assert (await controller.cuts.time_window(tail)).lower_ms == 20
            # At the end of the sealed segment its successors are not begun: that is one step short of their start.
            assert (await controller.cuts.time_window(cut_at({seg(0, 0): 100}))).lower_ms == 10
            assert (await controller.cuts.time_window(cut_at({seg(0, 0): 99}))).lower_ms is None

    asyncio.run(run())


def test_a_crash_between_append_and_record_appends_nothing_twice() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with world(segments, clock) as controller:
            table = segments.tables[keys.TABLE].entries
            await controller.cuts.note_time(STREAM, "w", 10)
            await controller.advance_watermarks()
            remembered = table[keys.watermark(STREAM)]
            await controller.cuts.note_time(STREAM, "w", 20)
            await controller.advance_watermarks()
            table[keys.watermark(STREAM)] = remembered
        async with opened(segments, clock) as controller:
            assert await controller.advance_watermarks() == 0
            await controller.cuts.note_time(STREAM, "w", 30)
            assert await controller.advance_watermarks() == 1
            assert [item[0] for item in await stored(controller, segments)] == [10, 20, 30]

    asyncio.run(run())


def test_truncating_the_stream_frees_watermarks_but_the_last_one_before_the_head(monkeypatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(advancing, "KEPT_BYTES", 0)
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            for time_ms in range(1, 6):
                await write(segments, 100)
                await controller.cuts.note_time(STREAM, "w", time_ms)
                await controller.advance_watermarks()
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 320}))
            await controller.advance_watermarks()
            assert [item[0] for item in await stored(controller, segments)] == [3, 4, 5]
            head = await controller.cuts.time_window(cut_at({seg(0, 0): 320}))
            assert (head.lower_ms, head.upper_ms) == (3, 4)
            # A place from before the truncation is no place any longer, and does no harm.
            assert (await controller.cuts.time_window(cut_at({seg(0, 0): 500}), place=1)).lower_ms == 5

    asyncio.run(run())


def test_a_stream_made_again_knows_nothing_of_its_predecessor() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            await write(segments, 100)
            await controller.cuts.note_time(STREAM, "w", 1000)
            await controller.advance_watermarks()
            await controller.cuts.note_time(STREAM, "w", 2000)
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            assert await controller.advance_watermarks() == 0
            assert not [key for key in segments.tables[keys.TABLE].entries if b"mark/" in key]
            await controller.streams.create(STREAM, config())
            (item,) = await controller.layout.current(STREAM)
            window = await controller.cuts.time_window(cut_at({item.segment: 0}))
            assert (window.lower_ms, window.upper_ms) == (None, None)
            await controller.cuts.note_time(STREAM, "w", 1)
            await controller.advance_watermarks()
            assert (await controller.cuts.time_window(cut_at({item.segment: 0}))).lower_ms == 1

    asyncio.run(run())


def test_a_transaction_notes_its_time_once_its_events_are_readable() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            for time_ms in (10, 5, 20):
                txn = await write_transaction(controller, segments, bytes(50))
                await controller.transactions.commit(STREAM, txn, noted=NotedTime(writer="w", time_ms=time_ms))
                await controller.sweep()
                await controller.advance_watermarks()
            aborted = await write_transaction(controller, segments, bytes(50))
            await controller.transactions.abort(STREAM, aborted)
            # The time that goes back was not noted, and its transaction is there.
            assert await stored(controller, segments) == [(10, 10, {seg(0, 0): 50}), (20, 20, {seg(0, 0): 150})]

    asyncio.run(run())


def test_a_transaction_that_a_scale_overtook_notes_its_time_too() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            txn = await write_transaction(controller, segments, bytes(50))
            await scale_to(controller, 2)
            await controller.transactions.commit(STREAM, txn, noted=NotedTime(writer="w", time_ms=10))
            await controller.sweep()
            await controller.advance_watermarks()
            tail = await controller.cuts.tail(STREAM)
            assert (await controller.cuts.time_window(tail)).lower_ms == 10

    asyncio.run(run())


class Interrupted(MemorySegments):
    """Runs ``meanwhile`` once, after a segment of the stream was asked for its length."""

    meanwhile = None

    async def info(self, name):
        found = await super().info(name)
        if self.meanwhile is not None and name.startswith("s/t/"):
            hook, self.meanwhile = self.meanwhile, None
            await hook()
        return found


def test_a_note_about_a_stream_that_was_created_again_is_refused() -> None:
    async def run() -> None:
        segments = Interrupted()
        async with world(segments, FakeClock()) as controller:
            await write(segments, 100)

            async def again() -> None:
                await controller.streams.delete(STREAM, seal=True)
                await controller.streams.create(STREAM, config(1))

            segments.meanwhile = again
            with pytest.raises(StreamNotFoundError):
                await controller.cuts.note_time(STREAM, "w", 10)
            await controller.cuts.note_time(STREAM, "v", 10)
            assert await controller.advance_watermarks() == 1

    asyncio.run(run())


@pytest.mark.parametrize("rotten", ["the mark of the writer", "an old epoch"])
def test_a_note_that_cannot_be_taken_stops_no_commit(rotten: str) -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with world(segments, clock) as controller:
            await controller.cuts.note_time(STREAM, "w", 1)
            await scale_to(controller, 2)
            await scale_to(controller, 3)
            table = segments.tables[keys.TABLE].entries
            if rotten == "an old epoch":
                del table[keys.epoch(STREAM, 1)]
            else:
                key = keys.writer_mark(STREAM, "w")
                table[key] = (b"\xff\xff", table[key][1])
        async with opened(segments, clock) as controller:
            note = NotedTime(writer="w", time_ms=5)
            transactions = [await write_transaction(controller, segments, bytes(50)) for _ in range(2)]
            for txn in transactions:
                await controller.transactions.commit(STREAM, txn, noted=note)
            await controller.sweep()
            states = [(await controller.transactions.status(STREAM, txn)).name for txn in transactions]
            assert states == ["COMMITTED", "COMMITTED"]

    asyncio.run(run())


def test_a_clock_that_was_a_day_ahead_holds_the_bound_back_no_longer_than_the_timeout() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with world(segments, clock) as controller:
            clock.jump(86_400_000)
            await controller.cuts.note_time(STREAM, "gone", 1)
            await controller.advance_watermarks()
            clock.jump(-86_400_000)
            for time_ms in (2, 3, 4):
                await controller.cuts.note_time(STREAM, "w", time_ms)
                await controller.advance_watermarks()
                clock.ms += TIMEOUT_MS
            assert (await stored(controller, segments))[-1][0] == 4

    asyncio.run(run())


def test_any_place_that_is_not_negative_gives_the_window_of_the_position() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            await write(segments, 100)
            for time_ms in (1, 2, 3):
                await controller.cuts.note_time(STREAM, "w", time_ms)
                await controller.advance_watermarks()
            cut = cut_at({seg(0, 0): 100})
            expected = await controller.cuts.time_window(cut)
            for place in (*range(250), 1 << 70):
                found = await controller.cuts.time_window(cut, place=place)
                assert found.lower_ms == expected.lower_ms, place
            with pytest.raises(InvalidArgumentError):
                await controller.cuts.time_window(cut, place=-1)

    asyncio.run(run())


def test_the_stream_of_watermarks_is_changed_by_nobody_and_has_none_itself() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with world(segments, FakeClock()) as controller:
            streams = controller.streams
            (item,) = await controller.layout.current(MARKS)
            halves = [KeyRange(low=0.0, high=0.5), KeyRange(low=0.5, high=1.0)]
            for change in (
                lambda: streams.scale(MARKS, sealed=[item.segment], new_ranges=halves),
                lambda: streams.update(MARKS, config(2)),
                lambda: streams.truncate(MARKS, StreamCut(MARKS, {item.segment: 0})),
                lambda: streams.seal(MARKS),
                lambda: streams.delete(MARKS, seal=True),
                lambda: controller.cuts.note_time(MARKS, "w", 1),
                lambda: controller.cuts.remove_writer(MARKS, "w"),
            ):
                with pytest.raises(InvalidArgumentError):
                    await change()
            await controller.cuts.note_time(STREAM, "w", 1)
            assert await controller.advance_watermarks() == 1

    asyncio.run(run())


def test_a_look_that_fails_unexpectedly_is_repeated(monkeypatch) -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with world(segments, clock) as controller:
            await write(segments, 100)
            await controller.cuts.note_time(STREAM, "w", 10)
            with monkeypatch.context() as broken:
                broken.setattr(advancing, "advance", lambda *given, **named: 1 / 0)
                assert await controller.advance_watermarks() == 0
            clock.ms += 5000
            assert await controller.advance_watermarks() == 1

    asyncio.run(run())
