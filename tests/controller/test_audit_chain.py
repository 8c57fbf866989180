"""The audit log: each entry has its number and the hash of the one before, despite crashes and several controllers."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace

import pytest
from audit_world import SEGMENT, FlakySegments, decide, numbers, removal, stored
from controller_world import opened
from memory_segments import MemorySegments

from penstock.codec.audit import AuditEntry, AuditKind, encode_entry
from penstock.codec.events import frame_events
from penstock.controller import keys, retention_keys
from penstock.core.evidence.merkle import Edge, leaf_hash
from penstock.model.errors import ContainerOfflineError, InvalidArgumentError, PenstockError, UnavailableError
from penstock.model.names import AUDIT_STREAM
from penstock.model.retention import EMPTY, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock


def logs_of(events):
    """The logs in the stream, each as its list of entries; entries of earlier versions are left out.

    Raises AssertionError where an entry does not continue its log.
    """
    logs, last = [], None
    for event in events:
        entry = json.loads(event)
        if "n" not in entry:
            last = None
        elif entry["n"] == 0:
            assert entry["previous"] is None
            assert entry["log"]["origin"]
            logs.append([event])
            last = event
        else:
            assert "log" not in entry
            assert last is not None
            assert (entry["n"], entry["previous"]) == (len(logs[-1]), leaf_hash(last).hex())
            logs[-1].append(event)
            last = event
    return logs


async def check_log(controller, segments, *, logs=1):
    """The stream holds one unbroken log, and the controller's state is the state that follows from its bytes."""
    await controller.drain_audit()
    found = logs_of(stored(segments))
    assert len(found) == logs
    state = await controller._ctx.audit.log.state()
    assert state.edge == Edge().add(map(leaf_hash, found[-1]))
    assert state.end == len(segments.segments[SEGMENT].data)
    return found[-1]


def test_the_log_continues_across_lives():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        for life in range(4):
            async with opened(segments, clock) as controller:
                for number in range(5):
                    await decide(controller, life * 5 + number)
                assert len(await check_log(controller, segments)) == 5 * (life + 1)

    asyncio.run(run())


@pytest.mark.parametrize("effect_first", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_neither_forks_the_log_nor_leaves_a_hole(effect_first):
    async def run():
        for step in range(1, 60):
            segments, clock = MemorySegments(), FakeClock()
            async with opened(segments, clock) as controller:
                await decide(controller, 0)
            segments.arm(step, effect_first=effect_first)
            with suppress(ContainerOfflineError, UnavailableError):
                async with opened(segments, clock) as controller:
                    for number in (1, 2):
                        await decide(controller, number)
                        await controller.drain_audit()
            met = segments.offline
            segments.heal()
            async with opened(segments, clock) as controller:
                await decide(controller, 3)
                await check_log(controller, segments)
            if not met:
                return
        raise AssertionError("never got through without a fault")

    asyncio.run(run())


def test_two_controllers_append_to_one_log():
    async def run():
        segments = MemorySegments()
        async with opened(segments) as first, opened(segments) as second:
            for _ in range(5):
                await asyncio.gather(*(decide(which, number) for number, which in enumerate([first, second] * 4)))
                with suppress(PenstockError):
                    await asyncio.gather(first.drain_audit(), second.drain_audit())
            assert len(await check_log(first, segments)) == 40
            assert len(await check_log(second, segments)) == 40

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(10))
def test_the_log_is_whole_despite_failures(seed):
    async def run():
        segments = FlakySegments(seed)
        async with opened(segments) as controller:
            for number in range(30):
                segments.failing = True
                with suppress(PenstockError):
                    await decide(controller, number)
                with suppress(PenstockError):
                    await controller.drain_audit()
                segments.failing = False
            await check_log(controller, segments)

    asyncio.run(run())


def plain(number):
    return encode_entry(AuditEntry(kind=AuditKind.POLICY, target="s/t", fields={"after": number}), at_ms=1)


def test_the_entries_of_an_earlier_version_stay_and_the_log_begins_behind_them():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            await controller._ctx.audit._ensure()
        segments.write(SEGMENT, frame_events([plain(0), plain(1)]))
        async with opened(segments, clock) as controller:
            await decide(controller, 2)
            (entry,) = await check_log(controller, segments)
            assert json.loads(entry)["log"]["after"] is None
            assert numbers(map(json.loads, stored(segments))) == [0, 1, 2]

    asyncio.run(run())


def test_entries_that_an_earlier_version_appended_later_show_as_another_log():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            await decide(controller, 0)
            before = await check_log(controller, segments)
        segments.write(SEGMENT, frame_events([plain(1)]))
        async with opened(segments, clock) as controller:
            await decide(controller, 2)
            (entry,) = await check_log(controller, segments, logs=2)
            said = json.loads(entry)["log"]
            old = json.loads(before[0])["log"]["origin"]
            assert said["origin"] != old
            assert said["after"] == {"origin": old, "size": 1, "root": Edge().add(map(leaf_hash, before)).root().hex()}

    asyncio.run(run())


def test_a_lost_state_is_read_from_the_stream():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            for number in range(3):
                await decide(controller, number)
            await controller.drain_audit()
        await segments.table_remove(keys.TABLE, [removal(retention_keys.AUDIT_LOG)])
        async with opened(segments, clock) as controller:
            await decide(controller, 3)
            assert len(await check_log(controller, segments)) == 4

    asyncio.run(run())


def test_the_log_continues_although_its_first_entries_left_the_stream():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            for number in range(300):
                await decide(controller, number)
            await controller.drain_audit()
            events = await check_log(controller, segments)
        end = len(segments.segments[SEGMENT].data)
        await segments.truncate(SEGMENT, end)
        async with opened(segments, clock) as controller:
            await decide(controller, 300)
            await controller.drain_audit()
            state = await controller._ctx.audit.log.state()
            (entry,) = stored(segments)
            assert json.loads(entry)["n"] == 300
            assert state.edge == Edge().add(map(leaf_hash, [*events, entry]))
            (tile,) = [tile async for tile in controller._ctx.audit.log.tiles(state)]
            assert tile.hashes == tuple(map(leaf_hash, events[:256]))

    asyncio.run(run())


def test_a_copy_of_the_store_begins_another_log():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            await decide(controller, 0)
            await controller.drain_audit()
        async with opened(segments, clock) as controller:
            await controller.begin_restored(1 << 20)
        async with opened(segments, clock) as controller:
            await decide(controller, 1)
            (entry,) = await check_log(controller, segments, logs=2)
            assert json.loads(entry)["log"]["after"]["size"] == 1

    asyncio.run(run())


def test_a_lock_forbids_to_shorten_how_long_entries_are_kept():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        years = 365 * 86_400
        locked = Retain(min_age_s=9 * years, max_age_s=9 * years, lock_until="2024-06-01T00:00:00Z")
        async with opened(segments, clock) as controller:
            await decide(controller, 0)
            await controller.drain_audit()
            await controller.policies.set(AUDIT_STREAM, PolicyDocument(retain=locked))
            for shorter in (EMPTY, PolicyDocument(retain=replace(locked, min_age_s=years, max_age_s=years))):
                with pytest.raises(PenstockError):
                    await controller.policies.set(AUDIT_STREAM, shorter)
            longer = PolicyDocument(retain=replace(locked, min_age_s=10 * years, max_age_s=10 * years))
            await controller.policies.set(AUDIT_STREAM, longer)
            assert await controller.policies.get(AUDIT_STREAM) == longer

    asyncio.run(run())


def test_the_operator_decides_how_long_entries_are_kept_and_nothing_else():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        ten_years = PolicyDocument(retain=Retain(min_age_s=315_360_000, max_age_s=315_360_000))
        async with opened(segments, clock) as controller:
            await decide(controller, 0)
            await controller.drain_audit()
            assert (await controller.policies.get(AUDIT_STREAM)).retain.max_age_s == 7 * 365 * 86_400
            await controller.policies.set(AUDIT_STREAM, ten_years)
            for wrong in (Retain(max_bytes=1), Retain(max_age_s=86_399)):
                with pytest.raises(InvalidArgumentError):
                    await controller.policies.set(AUDIT_STREAM, PolicyDocument(retain=wrong))
        async with opened(segments, clock) as controller:
            await decide(controller, 1)
            await controller.drain_audit()
            assert await controller.policies.get(AUDIT_STREAM) == ten_years
            await controller.policies.set(AUDIT_STREAM, EMPTY)
            assert (await controller.policies.get(AUDIT_STREAM)).retain.max_age_s == 7 * 365 * 86_400
            kinds = [json.loads(event)["kind"] for event in await check_log(controller, segments)]
            assert kinds == ["policy"] * 4

    asyncio.run(run())
