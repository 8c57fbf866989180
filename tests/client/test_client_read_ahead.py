"""What a fetcher asks for ahead: every byte once, in order, whatever answers when; never beyond what is there."""

from __future__ import annotations

import asyncio
import random

import pytest
from client_world import SimLoop

from penstock.client.reading.blocks import Block
from penstock.client.reading.fetching import AHEAD_READS, READ_BYTES, SegmentEnd, SegmentFailure, SegmentFetcher
from penstock.codec.events import frame_events
from penstock.model.errors import NotConnectedError, SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName
from penstock.ports.data.segments import SegmentInfo, SegmentRead
from penstock.testing.fakes import SeededRng

STREAM = StreamName("a", "s")


class OneSegment:
    """A segment whose answers come when they like, short as they like, or not at all."""

    def __init__(self, data, rng, *, loss=0.0, short=0.0, sealed=False):
        self.data, self.rng, self.loss, self.short, self.sealed = data, rng, loss, short, sealed
        self.start = 0
        self.erased = []
        self.gone = False
        self.under_way = self.most_under_way = self.asked_bytes = 0
        self.grown = asyncio.Event()

    async def read(self, name, offset, max_bytes, *, wait=True):
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.rng.random() / 100)
            while offset == len(self.data) and not self.sealed:
                assert self.under_way == 1, "only the read that is waited for may wait at the tail"
                await self.grown.wait()
            assert offset <= len(self.data), "nothing is asked for beyond the tail"
            if self.gone:
                raise SegmentNotFoundError("no such segment", segment=name)
            if offset < self.start:
                raise TruncatedError("truncated", segment=name, start_offset=self.start)
            if self.rng.random() < self.loss:
                raise NotConnectedError("lost")
            if self.rng.random() < self.short:
                max_bytes = self.rng.randint(1, max_bytes)
            part = memoryview(self.data)[offset : offset + max_bytes]
            self.asked_bytes += len(part)
            end = offset + len(part)
            at_tail = end == len(self.data)
            return SegmentRead(offset=offset, parts=(part,), at_tail=at_tail, end_of_segment=at_tail and self.sealed)
        finally:
            self.under_way -= 1

    def erase(self, start, end):
        """From now on the payload is zeros; a read that is under way may bring what was there, or zeros."""
        self.erased.append((start, end))
        self.data = self.data[:start] + bytes(end - start) + self.data[end:]

    async def erased_ranges(self, name, start, end):
        await asyncio.sleep(self.rng.random() / 100)
        return sorted(item for item in self.erased if item[0] < end and start < item[1])

    async def info(self, name):
        await asyncio.sleep(self.rng.random() / 100)
        if self.rng.random() < self.loss:
            raise NotConnectedError("lost")
        return SegmentInfo(
            name=name, start_offset=self.start, length=len(self.data), sealed=self.sealed, last_modified_ms=0
        )


def events_of(seed, count, size):
    rng = random.Random(seed)
    return [rng.randbytes(rng.randint(0, size)) for _ in range(count)]


def simulate(seed, test):
    loop = SimLoop(seed)

    async def main():
        return await test(SeededRng(loop.fork("client")))

    return loop.run(main(), max_seconds=3600)


async def next_of(fetcher):
    while (item := fetcher.take()) is None:
        await fetcher.arrived()
    return item


async def drained(fetcher, *, holes=0):
    """All blocks to the end, and what the end was. They lie back to back, but for so many holes."""
    found, offset, met = [], None, 0
    while isinstance(item := await next_of(fetcher), Block):
        met += offset is not None and item.offset != offset
        offset = item.end_offset
        found += item.events()
    assert met <= holes
    return found, item


@pytest.mark.parametrize("seed", range(8))
def test_every_event_comes_once_and_in_order_whatever_answers_when(seed):
    async def test(rng):
        events = events_of(seed, 300, 60_000)
        loss, short = (0.0, 0.15)[seed % 2], (0.0, 0.3, 0.9)[seed % 3]
        segment = OneSegment(frame_events(events), random.Random(seed), loss=loss, short=short, sealed=True)
        fetcher = SegmentFetcher(segment, rng, skip_truncated=False)
        fetcher.add(STREAM, 0, 0)
        found, end = await drained(fetcher)
        assert found == events
        assert end == SegmentEnd(STREAM, 0, len(segment.data))
        assert segment.most_under_way > 1, "reads are under way at the same time"
        assert segment.most_under_way <= AHEAD_READS + 1
        if not loss and not short:
            assert segment.asked_bytes == len(segment.data), "nothing is read twice"
        await fetcher.close()

    simulate(seed, test)


@pytest.mark.parametrize("seed", range(12))
def test_an_event_that_is_erased_while_it_is_read_in_pieces_comes_whole_or_not_at_all(seed):
    async def test(rng):
        chance = random.Random(seed)
        size = (70_000, 900_000, 5_000_000)[seed % 3]
        events = [chance.randbytes(chance.randint(1000, size)) for _ in range(8_000_000 // size + 2)]
        segment = OneSegment(frame_events(events), chance, short=0.3 if seed % 2 else 0.0, sealed=True)
        places = {}
        at = 0
        for event in events:
            places[event] = (at + 8, at + 8 + len(event))
            at += 8 + len(event)

        async def erase():
            for event in chance.sample(events, len(events) // 2):
                await asyncio.sleep(chance.random() / 200)
                segment.erase(*places[event])

        erasing = asyncio.get_running_loop().create_task(erase())
        fetcher = SegmentFetcher(segment, rng, skip_truncated=False)
        fetcher.add(STREAM, 0, 0)
        found, _ = await drained(fetcher, holes=len(events))
        await erasing
        await fetcher.close()
        known = iter(events)
        assert all(event in known for event in found), "whole, and in order"
        missing = {places[event] for event in set(events) - set(found)}
        assert missing <= set(segment.erased)
        assert missing or size > 70_000

    simulate(seed, test)


class TruncatedWhenAsked(OneSegment):
    """The head moves between a read and the question what was erased in it; of what is gone nobody knows."""

    def __init__(self, data, rng, start):
        super().__init__(data, rng, sealed=True)
        self.start_when_asked = start

    async def erased_ranges(self, name, start, end):
        self.start = self.start_when_asked
        self.gone = self.start > len(self.data)
        if self.gone:
            raise SegmentNotFoundError("no such segment", segment=name)
        return [item for item in await super().erased_ranges(name, start, end) if item[0] >= self.start]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("kept", [2, 5, 6])
def test_zeros_of_an_event_that_is_truncated_before_anybody_can_say_what_they_were_are_not_shown(kept, skip):
    async def test(rng):
        events = [b"first", b"second", b"third", b"fourth", b"fifth"]
        heads = [len(frame_events(events[:index])) for index in range(6)]
        start = heads[kept] if kept < 6 else 1 << 20
        segment = TruncatedWhenAsked(frame_events(events), random.Random(1), start)
        segment.erase(heads[1] + 8, heads[2])
        fetcher = SegmentFetcher(segment, rng, skip_truncated=skip)
        fetcher.add(STREAM, 0, 0)
        found, end = await drained(fetcher)
        assert found == (events[kept:] if skip else [])
        assert isinstance(end, SegmentEnd) if skip else isinstance(end.error, TruncatedError)
        await fetcher.close()

    simulate(1, test)


def test_a_limit_is_not_read_beyond():
    async def test(rng):
        events = events_of(1, 200, 60_000)
        data = frame_events(events)
        limit = len(frame_events(events[:150]))
        segment = OneSegment(data, random.Random(1))
        fetcher = SegmentFetcher(segment, rng, skip_truncated=False)
        fetcher.add(STREAM, 0, 0, limit)
        found, end = await drained(fetcher)
        assert (found, end) == (events[:150], SegmentEnd(STREAM, 0, limit, at_limit=True))
        assert segment.asked_bytes == limit
        await fetcher.close()

    simulate(1, test)


def test_at_the_tail_one_read_waits_and_what_comes_is_read():
    async def test(rng):
        events = events_of(2, 120, 60_000)
        segment = OneSegment(frame_events(events[:60]), random.Random(2))
        fetcher = SegmentFetcher(segment, rng, skip_truncated=False)
        fetcher.add(STREAM, 0, 0)
        found = []
        while len(found) < 60:
            found += (await next_of(fetcher)).events()
        await asyncio.sleep(1)
        assert segment.under_way == 1
        segment.data += frame_events(events[60:])
        segment.grown.set()
        while len(found) < 120:
            found += (await next_of(fetcher)).events()
        assert found == events
        await fetcher.close()
        assert segment.under_way == 0, "a closed fetcher asks for nothing"

    simulate(2, test)


@pytest.mark.parametrize("skip", [False, True])
def test_a_truncation_throws_away_what_was_asked_for_ahead(skip):
    async def test(rng):
        events = events_of(3, 300, 60_000)
        data = frame_events(events)
        segment = OneSegment(data, random.Random(3), sealed=True)
        fetcher = SegmentFetcher(segment, rng, skip_truncated=skip)
        fetcher.add(STREAM, 0, 0)
        first = await next_of(fetcher)
        segment.start = len(frame_events(events[:250]))
        found, end = await drained(fetcher, holes=1)
        if skip:
            # What was on its way may still come; then the head, and all from there.
            assert found[-50:] == events[250:]
            assert len(first) + len(found) < len(events)
        else:
            assert isinstance(end, SegmentFailure)
            assert isinstance(end.error, TruncatedError)
        await fetcher.close()

    simulate(3, test)


def test_a_segment_that_goes_loses_nothing_that_was_read():
    async def test(rng):
        events = events_of(4, 100, 60_000)
        segment = OneSegment(frame_events(events), random.Random(4))
        fetcher = SegmentFetcher(segment, rng, skip_truncated=True)
        fetcher.add(STREAM, 0, 0)
        first = await next_of(fetcher)
        assert first.events() == events[: len(first)]
        segment.gone = True
        _, end = await drained(fetcher)
        assert end.truncated
        await fetcher.close()

    simulate(4, test)


def test_many_segments_share_one_bound_of_memory():
    async def test(rng):
        data = frame_events(events_of(5, 40, 60_000))
        segments = [OneSegment(data, random.Random(number)) for number in range(64)]

        class Many:
            async def read(self, name, offset, size, *, wait=True):
                return await segments[int(name.split("/")[-1].split(".")[0])].read(name, offset, size)

            async def info(self, name):
                return await segments[0].info(name)

        fetcher = SegmentFetcher(Many(), rng, skip_truncated=False)
        for number in range(64):
            fetcher.add(STREAM, number, 0)
        await asyncio.sleep(5)
        # A block each, taken by nobody, and what is ahead of it.
        held = sum(min(one.asked_bytes, 4 * READ_BYTES) for one in segments)
        assert held <= 64 << 20
        await fetcher.close()

    simulate(5, test)
