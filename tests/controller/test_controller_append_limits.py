"""Quotas that stop writers: exact, in force at once, over scales and restarts, with who is to blame."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import STREAM, join, name_of, opened, publish, quota, scale_to, seg, table_keys, with_stream
from memory_segments import MemorySegments

from penstock.codec.control.streams import LengthsRecord
from penstock.controller import keys
from penstock.model.errors import QuotaExceededError, QuotaHeldError
from penstock.model.retention import OnExceed, PolicyDocument
from penstock.ports.data.limits import LimitAction
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)


def run(work) -> None:
    asyncio.run(work())


@pytest.mark.parametrize(
    ("on_exceed", "action", "error"),
    [
        (OnExceed.HOLD, LimitAction.HOLD, QuotaHeldError),
        (OnExceed.REJECT, LimitAction.REJECT, QuotaExceededError),
    ],
)
def test_writers_meet_the_quota_to_the_byte_and_are_told_who_is_to_blame(on_exceed, action, error) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await join(controller, "slow", {SEGMENT: 0})
            await join(controller, "fast", {SEGMENT: 0})
            segments.write(NAME, b"x" * 60)
            await publish(controller, "fast", {SEGMENT: 60})
            # In force when the call returns.
            await controller.policies.set(STREAM, quota(on_exceed, max_bytes=100))
            assert segments.limits["s/t"].action is action
            segments.write(NAME, b"x" * 40)
            with pytest.raises(error) as caught:
                segments.write(NAME, b"x")
            fields = caught.value.fields
            assert (fields["stream"], fields["rule"], fields["subscriber"]) == ("s/t", "backlog-bytes", "s/slow")
            assert fields["limit"] == 100
            await publish(controller, "slow", {SEGMENT: 30})
            await controller.retention.run(STREAM)
            segments.write(NAME, b"x" * 30)
            with pytest.raises(error):
                segments.write(NAME, b"x")
            # Without subscribers there is no backlog.
            await controller.groups.delete("s", "slow")
            await controller.groups.delete("s", "fast")
            await controller.retention.run(STREAM)
            segments.write(NAME, b"x" * 1000)

    run(work)


def test_a_limit_follows_the_stream_over_a_scale_and_counts_what_was_sealed() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.REJECT, max_events=10))
            await join(controller, "g", {SEGMENT: 0})
            segments.write(NAME, b"x" * 12, event_bytes=2)
            await scale_to(controller, 2)
            await controller.retention.run(STREAM)
            segments.write(name_of(seg(1, 1)), b"x" * 9, event_bytes=3)
            segments.write(name_of(seg(1, 2)), b"x" * 3, event_bytes=3)
            with pytest.raises(QuotaExceededError) as caught:
                segments.write(name_of(seg(1, 2)), b"x")
            assert (caught.value.fields["rule"], caught.value.fields["limit"]) == ("backlog-events", 10)
            await publish(controller, "g", {seg(1, 1): 3, seg(1, 2): 0})
            await controller.retention.run(STREAM)
            segments.write(name_of(seg(1, 2)), b"x" * 7)
            with pytest.raises(QuotaExceededError):
                segments.write(name_of(seg(1, 1)), b"x")

    run(work)


def test_a_quota_that_evicts_lets_writers_go_on_and_says_when_it_is_reached() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.EVICT, max_bytes=10))
            await join(controller, "g", {SEGMENT: 0})
            await controller.retention.run(STREAM)
            segments.write(NAME, b"x" * 15)
            assert await asyncio.wait_for(segments.limits_reached(), 5) == ["s/t"]

    run(work)


def test_limits_are_back_before_a_store_that_opens_takes_appends() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set("s", quota(OnExceed.REJECT, max_bytes=10))
            await join(controller, "g", {SEGMENT: 0})
            await controller.retention.run(STREAM)
            assert keys.quota(STREAM).decode() in table_keys(segments)
        segments.limits.clear()
        async with opened(segments, clock) as controller:
            with pytest.raises(QuotaExceededError):
                segments.write(NAME, b"x" * 11)
            await controller.policies.set("s", PolicyDocument())
            await controller.retention.run(STREAM)
            segments.write(NAME, b"x" * 11)
            assert keys.quota(STREAM).decode() not in table_keys(segments)

    run(work)


def test_a_word_of_a_subscriber_lets_waiting_writers_go_on_without_a_cycle() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.HOLD, max_bytes=10))
            await join(controller, "g", {SEGMENT: 0})
            await controller.retention.run(STREAM)
            segments.write(NAME, b"x" * 10)
            with pytest.raises(QuotaHeldError):
                segments.write(NAME, b"x")
            await publish(controller, "g", {SEGMENT: 10})
            async with asyncio.timeout(10):
                while segments.limits["s/t"].total_bytes != 20:
                    await asyncio.sleep(0)
            segments.write(NAME, b"x" * 10)

    run(work)


def test_segments_that_the_first_release_has_sealed_are_counted_where_they_are() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(NAME, b"x" * 40, event_bytes=4)
            await join(controller, "g", {SEGMENT: 8})
            await scale_to(controller, 2)
            table = segments.tables[keys.TABLE]
            key = keys.lengths_sealed_by(STREAM, 1)
            plain = LengthsRecord(lengths=LengthsRecord.decode(table.entries[key][0]).lengths)
            table.entries[key] = (plain.encode(), table.entries[key][1])
        async with opened(segments, clock) as controller:
            (found,) = await controller.subscribers.describe(STREAM)
            assert found.lag_events == 8
            await controller.policies.set(STREAM, quota(OnExceed.HOLD, max_events=8))
            await controller.retention.run(STREAM)
            with pytest.raises(QuotaHeldError):
                segments.write(name_of(seg(1, 1)), b"x")
            await publish(controller, "g", {SEGMENT: 12})
            await controller.retention.run(STREAM)
            segments.write(name_of(seg(1, 1)), b"x")
            with pytest.raises(QuotaHeldError):
                segments.write(name_of(seg(1, 2)), b"x")

    run(work)
