"""The audit stream: one entry for each decision, in order, exactly once, whatever crashes; and nobody's but the store's."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from audit_world import SEGMENT, FlakySegments, FullSegments, decide, numbers
from controller_world import QUIET, STREAM, audit_entries, config, cut_at, name_of, opened, seg, with_stream
from memory_segments import MemorySegments

from penstock.codec.audit import ENTRY_MAX_BYTES, AuditEntry, AuditKind, decode_entry, encode_entry
from penstock.controller import keys, retention_keys
from penstock.controller.evidence.record_streams import record_policy
from penstock.controller.settings import DAY_MS, ControllerSettings
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    ContainerOfflineError,
    InvalidArgumentError,
    NotEmptyError,
    PenstockError,
    StorageFullError,
    ThrottledError,
    UnavailableError,
)
from penstock.model.names import AUDIT_STREAM
from penstock.model.retention import PolicyDocument, Retain
from penstock.model.segments import even_ranges
from penstock.ports.data.tables import TablePut
from penstock.testing.fakes import FakeClock


def outbox(segments):
    return [key for key in segments.tables[keys.TABLE].entries if key.startswith(retention_keys.OUTBOX)]


def test_every_decision_is_told_once_in_order_across_lives():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        for life in range(4):
            async with opened(segments, clock) as controller:
                for number in range(5):
                    await decide(controller, life * 5 + number)
        async with opened(segments, clock) as controller:
            assert numbers(await audit_entries(controller, segments)) == list(range(20))
            assert outbox(segments) == []

    asyncio.run(run())


def test_decisions_that_overtake_each_other_are_told_in_the_order_in_which_they_became_durable():
    async def run():
        segments = MemorySegments()
        async with opened(segments) as controller:
            ctx = controller._ctx
            early = ctx.audit.puts([AuditEntry(kind=AuditKind.POLICY, target="s/t", fields={"after": "early"})])
            await decide(controller, "late")
            assert numbers(await audit_entries(controller, segments)) == ["late"]
            await ctx.metadata.put(*early)
            assert numbers(await audit_entries(controller, segments)) == ["late", "early"]

    asyncio.run(run())


def test_a_closed_store_has_all_entries_in_its_audit_stream():
    async def run():
        segments = MemorySegments()
        async with opened(segments) as controller:
            await decide(controller, 1)
        assert outbox(segments) == []

    asyncio.run(run())


@pytest.mark.parametrize("effect_first", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_of_telling_loses_and_doubles_nothing(effect_first):
    async def run():
        for step in range(1, 60):
            segments, clock = MemorySegments(), FakeClock()
            async with opened(segments, clock) as controller:
                await decide(controller, 0)
            segments.arm(step, effect_first=effect_first)
            decided = []
            with suppress(ContainerOfflineError, UnavailableError):
                async with opened(segments, clock) as controller:
                    for number in (1, 2):
                        await decide(controller, number)
                        decided.append(number)
                        await controller.drain_audit()
            met = segments.offline
            segments.heal()
            async with opened(segments, clock) as controller:
                reported = numbers(await audit_entries(controller, segments))
            # One whose answer was lost may have been decided.
            assert reported in ([0, *decided], [0, *decided, len(decided) + 1])
            if not met:
                return
        raise AssertionError("never got through without a fault")

    asyncio.run(run())


def test_two_controllers_tell_each_decision_once():
    async def run():
        segments = MemorySegments()
        async with opened(segments) as first, opened(segments) as second:
            await asyncio.gather(*(decide(which, number) for number, which in enumerate([first, second] * 20)))
            await asyncio.gather(first.drain_audit(), second.drain_audit())
            assert sorted(numbers(await audit_entries(first, segments))) == list(range(40))

    asyncio.run(run())


def test_a_full_disk_stops_no_decision_and_what_has_no_room_is_counted():
    async def run():
        segments, clock = FullSegments(), FakeClock()
        async with opened(segments, clock, replace(QUIET, audit_outbox_max=10)) as controller:
            await decide(controller, 0)
            await controller.drain_audit()
            segments.full = True
            for number in range(1, 26):
                clock.ms += 1
                await decide(controller, number)
            assert len(outbox(segments)) == 10
            with pytest.raises(StorageFullError):
                await controller.drain_audit()
            segments.full = False
            entries = await audit_entries(controller, segments)
            assert numbers(entries) == list(range(11))
            (gap,) = [entry for entry in entries if entry["kind"] == "gap"]
            assert (gap["entries"], gap["to_ms"]) == (15, clock.ms)
            await decide(controller, 26)
            entries = await audit_entries(controller, segments)
            assert numbers(entries) == [*range(11), 26]
            assert [entry["entries"] for entry in entries if entry["kind"] == "gap"] == [15]

    asyncio.run(run())


def test_a_gap_is_told_by_the_next_life_and_only_once():
    async def run():
        segments, clock = FullSegments(), FakeClock()
        segments.full = True
        async with opened(segments, clock, replace(QUIET, audit_outbox_max=1)) as controller:
            for number in range(4):
                await decide(controller, number)
        segments.full = False
        for _ in range(2):
            async with opened(segments, clock) as controller:
                entries = await audit_entries(controller, segments)
                assert [entry["entries"] for entry in entries if entry["kind"] == "gap"] == [3]

    asyncio.run(run())


def test_only_what_became_durable_is_counted():
    """After any number of failed decisions, the next one has its entry, and no gap is reported for the failed ones."""

    async def run():
        segments = MemorySegments()
        async with opened(segments, settings=replace(QUIET, audit_outbox_max=2)) as controller:
            audit = controller._ctx.audit
            entry = AuditEntry(kind=AuditKind.TRUNCATE, target="s/t", fields={"after": {"0": 5}})
            for _ in range(10):
                audit.puts([entry])
            assert audit.waiting == 0
            for _ in range(4):
                await controller._ctx.metadata.put(*audit.puts([entry]))
            for _ in range(10):
                # There is no room for these, so they are never written.
                audit.puts([entry])
            assert audit.waiting == 2
            entries = await audit_entries(controller, segments)
            assert [item["kind"] for item in entries] == ["truncate", "truncate", "gap"]
            assert entries[2]["entries"] == 2

    asyncio.run(run())


class ThrottledAudit(MemorySegments):
    """While ``throttled``, it takes no step that holds an audit entry."""

    throttled = False

    async def table_update(self, name, puts):
        if self.throttled and any(put.key.startswith(retention_keys.OUTBOX) for put in puts):
            raise ThrottledError("store is behind", resource="metadata", limit=1)
        return await super().table_update(name, puts)


def test_a_truncation_after_many_failed_ones_has_its_entry_and_no_gap():
    async def run():
        segments = ThrottledAudit()
        async with with_stream(segments, settings=replace(QUIET, audit_outbox_max=4)) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 50, event_bytes=10)
            segments.throttled = True
            for _ in range(20):
                with pytest.raises(ThrottledError):
                    await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 30}))
            segments.throttled = False
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 30}))
            entries = await audit_entries(controller, segments)
            assert [(item["kind"], item.get("bytes")) for item in entries] == [("truncate", 30)]

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(30))
def test_every_durable_decision_is_reported_or_counted_despite_failures(seed):
    async def run():
        segments, rng = FlakySegments(seed), random.Random(seed)
        async with opened(segments, settings=replace(QUIET, audit_outbox_max=3)) as controller:
            metadata, audit = controller._ctx.metadata, controller._ctx.audit
            uncertain = 0

            async def one(number):
                nonlocal uncertain
                entry = AuditEntry(kind=AuditKind.TRUNCATE, target="s/t", fields={"after": {"0": number}})
                key = f"decided/{number}".encode()
                try:
                    await metadata.put(TablePut(key=key, value=b"{}"), *audit.puts([entry]))
                except ThrottledError:
                    return
                except UnavailableError:
                    uncertain += 1

            for number in range(60):
                segments.full, segments.failing = rng.random() < 0.6, rng.random() < 0.7
                await asyncio.gather(*(one(3 * number + more) for more in range(rng.randrange(1, 4))))
                if rng.random() < 0.3:
                    segments.failing = False
                    with suppress(StorageFullError):
                        await controller.drain_audit()
            segments.full = segments.failing = False
            entries = await audit_entries(controller, segments)
            durable = sum(key.startswith(b"decided/") for key in segments.tables[keys.TABLE].entries)
            reported = [entry for entry in entries if entry["kind"] == "truncate"]
            assert len({entry["after"]["0"] for entry in reported}) == len(reported), "each once"
            counted = sum(entry["entries"] for entry in entries if entry["kind"] == "gap")
            assert durable <= len(reported) + counted <= durable + uncertain
            assert audit.waiting == 0

    asyncio.run(run())


def test_it_is_there_from_the_first_start_of_a_store_that_serves():
    async def run():
        segments = MemorySegments()
        async with opened(segments, settings=ControllerSettings()) as controller:
            assert await controller.streams.exists(AUDIT_STREAM)
            assert SEGMENT in segments.segments
            written = segments.mutations
            assert await controller.scopes.list() == []
        async with opened(segments, settings=ControllerSettings()):
            # The next start writes who owns the buckets, and nothing for the audit stream.
            assert segments.mutations - written <= 3

    asyncio.run(run())


def test_nobody_writes_changes_or_removes_it():
    async def run():
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await decide(controller, 1)
            await controller.drain_audit()
            size = len(segments.segments[SEGMENT].data)
            for refused in (
                controller.streams.truncate(AUDIT_STREAM, StreamCut(AUDIT_STREAM, {seg(0, 0): size})),
                controller.streams.seal(AUDIT_STREAM),
                controller.streams.delete(AUDIT_STREAM),
                controller.streams.update(AUDIT_STREAM, config(2)),
                controller.layout.scale(AUDIT_STREAM, sealed=[seg(0, 0)], new_ranges=even_ranges(2)),
                controller.policies.set(AUDIT_STREAM, PolicyDocument(retain=Retain(max_bytes=1))),
                controller.transactions.create(AUDIT_STREAM, lease_ms=10_000),
            ):
                with pytest.raises(InvalidArgumentError):
                    await refused
            with pytest.raises((InvalidArgumentError, NotEmptyError)):
                await controller.scopes.delete("_system")
            assert numbers(await audit_entries(controller, segments)) == [1]

    asyncio.run(run())


def test_its_own_retention_is_the_settings_and_no_level_speaks_for_it():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        settings = replace(QUIET, audit_max_age_ms=2 * DAY_MS)
        async with with_stream(segments, clock=clock, settings=settings) as controller:
            with suppress(PenstockError):
                await controller.policies.set(None, PolicyDocument(retain=Retain(min_bytes=1 << 40, min_age_s=None)))
            await decide(controller, 1)
            await controller.drain_audit()
            policy = await controller.policies.effective(AUDIT_STREAM)
            assert (policy.min_age_ms, policy.max_age_ms) == (2 * DAY_MS, 2 * DAY_MS)
            assert record_policy(settings).maximum == 2 * DAY_MS
            await controller.retention.run(AUDIT_STREAM)
            clock.ms += 2 * DAY_MS - 1
            await controller.retention.run(AUDIT_STREAM)
            assert segments.segments[SEGMENT].start == 0
            clock.ms += 1
            await controller.retention.run(AUDIT_STREAM)
            assert segments.segments[SEGMENT].start > 0

    asyncio.run(run())


def test_another_setting_applies_from_the_next_start_on():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock, ControllerSettings()):
            pass
        async with opened(segments, clock, ControllerSettings(audit_max_age_ms=3 * DAY_MS)) as controller:
            assert (await controller.policies.effective(AUDIT_STREAM)).max_age_ms == 3 * DAY_MS

    asyncio.run(run())


def test_a_setting_of_less_than_a_day_is_refused():
    with pytest.raises(InvalidArgumentError):
        ControllerSettings(audit_max_age_ms=DAY_MS - 1)


def test_a_truncation_by_hand_says_what_it_took():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, clock=clock) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 50, event_bytes=10)
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 30}))
            (entry,) = await audit_entries(controller, segments, "truncate")
            assert (entry["target"], entry["bytes"], entry["events"]) == ("s/t", 30, 3)
            assert (entry["before"], entry["after"]) == ({"0": 0}, {"0": 30})
            assert entry["at_ms"] == clock.ms

    asyncio.run(run())


def test_an_entry_that_is_too_large_says_what_it_leaves_out():
    entry = AuditEntry(kind=AuditKind.TRUNCATE, target="s/t", fields={"after": "x" * ENTRY_MAX_BYTES, "bytes": 5})
    data = encode_entry(entry, at_ms=7)
    assert len(data) <= ENTRY_MAX_BYTES
    assert decode_entry(data) == {
        "v": 1,
        "at_ms": 7,
        "kind": "truncate",
        "target": "s/t",
        "bytes": 5,
        "left_out": ["after"],
    }
