"""Damage of the audit stream: each entry is still appended exactly once, and the damage is reported once."""

import asyncio
import json
import logging
import random

import pytest
from audit_world import SEGMENT, decide, numbers, removal, stored
from controller_world import opened
from memory_segments import MemorySegments

from penstock.controller import keys, retention_keys
from penstock.core.evidence.audit_log import TILE
from penstock.model.errors import CorruptDataError
from penstock.testing.fakes import FakeClock


class Damaged(MemorySegments):
    """Blocks of the audit stream that fail their checksum; each event is a block. ``tears``: the state of the log is not
    stored any more, as after a crash between an append and the step that stores it."""

    def __init__(self):
        super().__init__()
        self.bad, self.tears = [], False

    async def read(self, name, offset, max_bytes, *, wait=True):
        found = await super().read(name, offset, max_bytes, wait=wait)
        end = offset + sum(map(len, found.parts))
        if name == SEGMENT and any(offset < stop and start < end for start, stop in self.bad):
            raise CorruptDataError("block has a wrong checksum", segment=name, offset=offset)
        return found

    def damage(self, number):
        ends = self.segments[SEGMENT].ends
        self.bad.append((ends[number - 1] if number else 0, ends[number]))

    async def table_change(self, name, changes):
        if self.tears:
            changes = [item for item in changes if item.key != retention_keys.AUDIT_LOG]
        return await super().table_change(name, changes)


def damages(caplog):
    return [item for item in caplog.records if item.message.startswith("audit entries cannot be read")]


async def entries_of(controller, segments, first, count):
    for number in range(first, first + count):
        await decide(controller, number)
        await controller.drain_audit()


@pytest.mark.parametrize("seed", range(20))
def test_no_entry_is_lost_or_doubled_whatever_is_damaged(seed):
    async def run():
        chance = random.Random(seed)
        segments, clock, count = Damaged(), FakeClock(), 0
        for _ in range(5):
            async with opened(segments, clock) as controller:
                segments.tears = chance.random() < 0.5
                more = chance.randrange(1, 6)
                await entries_of(controller, segments, count, more)
                count += more
                assert controller._ctx.audit.waiting == 0
            segments.tears = False
            for _ in range(chance.randrange(3)):
                segments.damage(chance.randrange(count))
            if chance.random() < 0.3:
                await segments.table_remove(keys.TABLE, [removal(retention_keys.AUDIT_LOG)])
        entries = numbers([json.loads(event) for event in stored(segments)])
        assert entries == list(range(count))

    asyncio.run(run())


def test_the_damage_is_reported_once_and_names_the_log_before_it(caplog):
    async def run():
        segments, clock = Damaged(), FakeClock()
        async with opened(segments, clock) as controller:
            await entries_of(controller, segments, 0, 3)
        segments.damage(1)
        await segments.table_remove(keys.TABLE, [removal(retention_keys.AUDIT_LOG)])
        for life in range(3):
            async with opened(segments, clock) as controller:
                await entries_of(controller, segments, 3 + life, 1)
                counted = controller._ctx.telemetry.counts.get("audit_unreadable_bytes", 0)
                assert (counted > 0) == (life == 0)
        assert len(damages(caplog)) == 1
        assert damages(caplog)[0].levelno == logging.ERROR
        events = [json.loads(event) for event in stored(segments)]
        assert [event["n"] for event in events] == [0, 1, 2, 0, 1, 2]
        assert events[3]["log"]["after"]["origin"] == events[0]["log"]["origin"]
        assert events[3]["log"]["after"]["size"] == 1

    asyncio.run(run())


def test_tiles_of_the_log_before_the_damage_are_not_stored_for_the_log_after_it():
    async def run():
        segments, clock = Damaged(), FakeClock()
        async with opened(segments, clock) as controller:
            for number in range(TILE + 5):
                await decide(controller, number)
            await controller.drain_audit()
        segments.damage(TILE + 2)
        await segments.table_remove(keys.TABLE, [removal(retention_keys.AUDIT_LOG)])
        segments.tears = True
        async with opened(segments, clock) as controller:
            await entries_of(controller, segments, TILE + 5, 1)
        segments.tears = False
        async with opened(segments, clock) as controller:
            audit = controller._ctx.audit
            state = await audit.log_state()
            assert state.size == 1
            assert [tile async for tile in audit.log.tiles(state)] == []

    asyncio.run(run())
