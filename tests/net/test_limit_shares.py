"""A limit over containers that share no memory: the shares never exceed it, and what is left reaches who needs it."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import NotConnectedError
from penstock.net.workers.limit_shares import LimitShares, raised_shares, wanted_shares
from penstock.net.workers.line import WorkerLine
from penstock.net.workers.worker_segments import WorkerSegments
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import SegmentInfo

sizes = st.dictionaries(st.integers(0, 4), st.integers(0, 50), min_size=1)


@given(total=st.integers(0, 300), used=sizes, favoured=st.none() | st.integers(0, 5))
def test_shares_cover_what_is_used_and_add_up_to_the_limit_at_most(total, used, favoured):
    shares = wanted_shares(total, used, favoured=favoured)
    assert all(shares[number] >= size for number, size in used.items())
    assert sum(shares.values()) <= max(total, sum(used.values()))
    if favoured in used:
        assert sum(shares.values()) == max(total, sum(used.values()))


@given(total=st.integers(0, 300), used=sizes, more=sizes)
def test_raised_shares_leave_room_for_those_in_force(total, used, more):
    wanted = {number: size + more[number] for number, size in used.items() if number in more}
    shares = raised_shares(total, wanted, used)
    assert all(used[number] <= share <= wanted[number] for number, share in shares.items())
    assert sum((used | shares).values()) <= max(total, sum(used.values()))


class Container:
    """Counts what it has accepted, and is durable later. ``link`` is what a ``WorkerLine`` holds: calls are made in the order
    in which they were sent, and those in progress end with the link."""

    is_open = True

    def __init__(self, number, rng):
        self.number = number
        self.rng = rng
        self.used = 0
        self.durable = 0
        self.limit = None
        self.refused = 0
        self.order = asyncio.Lock()
        self.links = 0

    def append(self, size):
        bound = None if self.limit is None else self.limit.total_bytes
        if bound is not None and self.used + size > bound:
            self.refused += 1
            return False
        self.used += size
        return True

    async def call(self, method, *arguments):
        link = self.links
        async with self.order:
            return await self.answer(link, method, *arguments)

    async def answer(self, link, method, *arguments):
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        if not self.is_open or link != self.links:
            raise NotConnectedError("away")
        if method == "infos":
            self.durable = self.rng.randrange(self.durable, self.used + 1)
            name = f"s/t/{self.number}"
            return {name: SegmentInfo(name=name, start_offset=0, length=self.durable, sealed=False, last_modified_ms=0)}
        if method == "lift_others":
            if "s/t" not in arguments[0]:
                self.limit = None
            return None
        assert method == "limit_appends"
        (limit,) = arguments[0]
        self.limit = None if limit.total_bytes is None else limit
        answer = [(self.used, 0)]
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        return answer


def world(count, rng):
    containers = [Container(number, rng) for number in range(count)]
    lines = [WorkerLine(number) for number in range(count)]
    for line, container in zip(lines, containers, strict=True):
        line.attach(container)
    return containers, lines, LimitShares(lines, lambda name: int(name.rpartition("/")[2]))


def limit_of(total, containers, action=LimitAction.HOLD):
    names = [f"s/t/{one.number}" for one in containers]
    return AppendLimit(stream="s/t", segments=names, total_bytes=total, quota_bytes=total, action=action)


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), count=st.integers(1, 4), another=st.booleans())
def test_writers_never_exceed_a_limit_that_grows(seed, count, another):
    """Appends come at every point of every division, containers leave and return, and another controller takes over."""

    async def main():
        rng = random.Random(seed)
        containers, lines, shares = world(count, rng)
        total = 200
        await shares.put(limit_of(total, containers), 1)
        stop = False

        async def write():
            while not stop:
                one = rng.choice(containers)
                if not one.append(rng.randrange(30)):
                    shares.met("s/t", one.number)
                assert sum(one.used for one in containers) <= total
                if rng.random() < 0.02:
                    rng.choice(containers).is_open = False
                await asyncio.sleep(0)

        writing = asyncio.ensure_future(write())
        for generation in range(2, 12):
            total += rng.randrange(100)
            await shares.put(limit_of(total, containers), generation)
            for away in [one for one in containers if not one.is_open]:
                away.is_open = True
                await shares.restore(limit_of(total, containers), away.number, generation)
            if another and generation == 6:
                shares = LimitShares(lines, lambda name: int(name.rpartition("/")[2]))
        stop = True
        await writing

    asyncio.run(main())


@pytest.mark.parametrize("action", list(LimitAction))
def test_a_container_that_waits_gets_all_that_is_left_and_its_true_action(action):
    async def main():
        containers, _, shares = world(3, random.Random(1))
        limit = limit_of(90, containers, action)
        await shares.put(limit, 1)
        assert [one.limit.total_bytes for one in containers] == [30, 30, 30]
        softer = LimitAction.HOLD if action is LimitAction.REJECT else action
        assert [one.limit.action for one in containers] == [softer] * 3, "others may have room"
        assert not containers[0].append(80)
        shares.met("s/t", 0)
        await shares.put(limit, 2)
        await shares.put(limit, 3)  # what was taken from the others is free once they have confirmed it
        assert sum(one.limit.total_bytes for one in containers) <= 90
        shares.met("s/t", 0)
        await shares.put(limit, 4)
        assert [one.limit.total_bytes for one in containers] == [90, 0, 0]
        assert containers[0].limit.action is action
        assert containers[0].limit.quota_bytes == 90
        assert containers[0].append(80)

    asyncio.run(main())


def test_a_stream_in_one_container_keeps_its_limit_as_it_is():
    async def main():
        containers, _, shares = world(2, random.Random(1))
        limit = limit_of(90, containers[:1], LimitAction.REJECT)
        await shares.put(limit, 1)
        assert containers[0].limit == limit
        assert containers[1].limit.total_bytes == 0, "a segment that is created there waits for its share"
        known = containers[1].limit
        await shares.put(limit, 2)
        assert containers[1].limit is known, "it is not sent again"
        await shares.put(limit_of(90, containers), 3)
        await shares.put(limit, 4)
        assert containers[1].limit.total_bytes == 0, "nor has it a share after its segments have ended"

    asyncio.run(main())


def test_while_a_container_with_an_unknown_share_is_away_nobody_gets_more():
    async def main():
        containers, _, shares = world(2, random.Random(1))
        containers[0].used = 20
        containers[1].is_open = False
        limit = limit_of(90, containers)
        await shares.put(limit, 1)
        assert not containers[0].append(1)
        containers[1].is_open = True
        await shares.restore(limit, 1, 1)
        assert containers[1].limit.total_bytes == 0
        await shares.put(limit, 2)
        assert [one.limit.total_bytes for one in containers] == [55, 35]

    asyncio.run(main())


def test_a_lifted_limit_reaches_all_containers():
    async def main():
        containers, lines, _ = world(2, random.Random(1))
        segments = WorkerSegments(lines, containers=2)
        names = [next(f"s/t/{n}" for n in range(99) if segments.worker_of(f"s/t/{n}") == one) for one in range(2)]
        await segments.limit_appends([AppendLimit(stream="s/t", segments=names, total_bytes=10)])
        assert all(one.limit.total_bytes is not None for one in containers)
        await segments.limit_appends([AppendLimit(stream="s/t", segments=())])
        assert all(one.limit is None for one in containers)

    asyncio.run(main())


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 30), totals=st.lists(st.none() | st.integers(0, 90), min_size=1, max_size=6))
def test_the_last_call_decides_whatever_calls_and_lost_links_overlap(seed, totals):
    """Links end and come back while their containers go on, as in a network that breaks."""

    async def main():
        rng = random.Random(seed)
        containers, lines, _ = world(3, rng)
        segments = WorkerSegments(lines, containers=3)
        await segments.lift_unknown_limits()
        names = [next(f"s/t/{n}" for n in range(99) if segments.worker_of(f"s/t/{n}") == one) for one in range(3)]
        calls = []
        for total in totals:
            limited = names if total is not None else ()
            limit = AppendLimit(stream="s/t", segments=limited, total_bytes=total)
            calls.append(asyncio.ensure_future(segments.limit_appends([limit])))
            for _ in range(rng.randrange(20)):
                await asyncio.sleep(0)
            one = rng.choice(containers)
            one.is_open = not one.is_open
            one.links += 1
            if one.is_open:
                await segments.restore_limits(one.number)
        await asyncio.gather(*calls)
        for one in containers:
            if not one.is_open:
                one.is_open = True
                await segments.restore_limits(one.number)
        if totals[-1] is not None:
            # A container that was away may have used what it had. After its return, the limit is set again.
            await segments.limit_appends([AppendLimit(stream="s/t", segments=names, total_bytes=totals[-1])])
        found = [None if one.limit is None else one.limit.total_bytes for one in containers]
        if totals[-1] is None:
            assert found == [None] * 3, "no writer waits for a limit that nobody has set"
        else:
            assert None not in found
            assert sum(found) <= totals[-1]
        assert not segments._shares._turns

    asyncio.run(main())


def test_a_limit_that_an_earlier_controller_could_not_lift_ends_with_its_successor():
    async def main():
        containers, lines, _ = world(3, random.Random(1))
        first, second = (WorkerSegments(lines, containers=3) for _ in range(2))
        names = [next(f"s/t/{n}" for n in range(99) if first.worker_of(f"s/t/{n}") == one) for one in range(3)]
        await first.limit_appends([AppendLimit(stream="s/t", segments=names, total_bytes=0)])
        containers[2].is_open = False
        await second.restore_limits(0)
        assert containers[0].limit is not None, "it may still be set again"
        await second.lift_unknown_limits()
        assert [one.limit is None for one in containers] == [True, True, False]
        containers[2].is_open = True
        await second.restore_limits(2)
        assert containers[2].limit is None

    asyncio.run(main())
