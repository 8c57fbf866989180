"""Pravega Stream Retention, up to and with size and time: each rule by its place in the document."""

from __future__ import annotations

import asyncio
import json

import pytest
from documents_world import DAY_S, FIRST, HOUR_S, STREAM, World, by_size, by_time, play

from penstock.controller.settings import ControllerSettings
from penstock.core.planner_json.requests import plan_line
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, TruncatedError
from penstock.model.policies import RetentionPolicy
from penstock.model.segments import make_segment_id

GB = 10**9


def cut(offset: int) -> StreamCut:
    return StreamCut(STREAM, {FIRST: offset})


# --- the introduction ---------------------------------------------------------------------------------------------


def test_manual_truncation_at_a_cut() -> None:
    """Introduction: a client call truncates a stream at a given cut."""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 10)
        middle = await stream.tail()
        await w.append(10)
        await stream.truncate(middle)
        assert await stream.head() == middle
        assert len(await w.read()) == 1

    play(story)


def test_a_cut_is_opaque_and_maps_segments_to_offsets() -> None:
    """Introduction: a stream cut is an opaque object that holds a mapping of segments to offsets."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        await w.append(10, segment=FIRST)
        await w.append(24, segment=FIRST + 1)
        middle = await stream.tail()
        assert middle.positions == {FIRST: 10, FIRST + 1: 24}
        # Kept as text, and given back as text, it is the same place.
        text = middle.to_text()
        await w.append(10, segment=FIRST)
        await stream.truncate(text)
        assert await stream.head() == middle == StreamCut.from_text(text)

    play(story)


@pytest.mark.parametrize("policy", [by_size(10), by_time(1)])
def test_automatic_truncation_by_size_or_time(policy: RetentionPolicy) -> None:
    """Introduction: a stream can be configured to be truncated by itself, by time or by size."""

    async def story(w: World) -> None:
        await w.stream(policy)
        await w.grow(10, 10)
        await asyncio.sleep(120)
        assert await w.head() != {FIRST: 0}

    play(story, cycle_s=60)


def test_whoever_reads_before_the_head_is_told_where_it_is() -> None:
    """Introduction: truncated data can no longer be read.
    Differs: read past truncated data"""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 12)
        await stream.truncate(cut(10))
        with pytest.raises(TruncatedError) as caught:
            await w.read(start=cut(0))
        assert caught.value.fields["start_offset"] == 10
        assert len(await w.read(start=cut(0), on_truncated="skip")) == 1

    play(story)


def test_truncation_gives_storage_back_and_leaves_nothing_to_read() -> None:
    """Introduction: data must be removable to reclaim storage, and to comply with law and with requests of users."""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(*[100] * 50)
        await w.segments.flush()
        before = (await stream.describe()).disk_bytes
        await stream.truncate(await stream.tail())
        await w.segments.flush()
        assert (before, (await stream.describe()).disk_bytes) == (5000, 0)
        assert await w.read() == []

    play(story, chunk_bytes=1000, flush_bytes=500)


# --- size and time ------------------------------------------------------------------------------------------------


def test_the_example_of_20_gb_and_100_gb() -> None:
    """Retention Policy: with a minimum of 20 GB and a maximum of 100 GB there are at least 20 GB and no more than 100 GB."""
    head, records, seen = 0, [], []
    for number in range(1, 40):
        tail = {"time_ms": number * 1000, "size_bytes": number * 7 * GB, "cut": {"0#0": number * 7 * GB}}
        facts = {
            "now_ms": number * 1000,
            "stream": {"scope": "s", "name": "t", "epochs": [[{"segment": "0#0", "low": 0.0, "high": 1.0}]]},
            "truncated_at": {"0#0": head},
            "policy": {"type": "size", "min": 20 * GB, "max": 100 * GB},
            "retention_set": records,
            "tail": tail,
        }
        decision = plan_line(json.dumps(facts))
        records = [*records, tail]
        if decision["truncate"] is not None:
            head = decision["truncate"]["0#0"]
            records = [item for item in records if item["time_ms"] > decision["prune_through_ms"]]
        seen.append(number * 7 * GB - head)
        assert seen[-1] <= 100 * GB
        assert seen[-1] >= min(20 * GB, number * 7 * GB)
    assert seen[-1] < 28 * GB  # One record above the minimum at most.


@pytest.mark.parametrize("burst", [1, 9, 30])
def test_the_same_example_with_real_bytes(burst: int) -> None:
    """Retention Policy: the example of 20 and 100, in bytes a hundred million times fewer, through store and controller."""

    async def story(w: World) -> None:
        await w.stream(by_size(200, 1000))
        written = 0
        for _ in range(25):
            await w.append(*[10] * burst)
            written += 10 * burst
            await w.cycle()
            assert min(written, 200) <= await w.size() <= 1000

    play(story)


def test_limits_by_time_are_kept_likewise() -> None:
    """Retention Policy: limits may be of time; what is younger than the minimum stays, what is older than the maximum goes."""

    async def story(w: World) -> None:
        await w.stream(by_time(HOUR_S, DAY_S))
        await w.append(10)
        await w.cycle(after_s=0)
        assert (await w.cycle(after_s=HOUR_S - 0.001)).truncate is None
        await w.cycle(after_s=0.001)
        assert await w.head() == {FIRST: 10}
        # The maximum takes also what somebody has not read, and as exactly.
        await w.subscribe("slow", {FIRST: 10})
        await w.append(10)
        await w.cycle(after_s=0)
        assert (await w.cycle(after_s=DAY_S - 0.001)).frees_bytes == 0
        await w.cycle(after_s=0.001)
        assert await w.head() == {FIRST: 20}

    play(story, days=2)


def test_a_minimum_above_the_maximum_is_refused() -> None:
    """Retention Policy: both limits are respected, so that they must not contradict each other."""
    with pytest.raises(InvalidArgumentError, match="minimum exceeds the maximum") as caught:
        by_size(100, 20)
    assert caught.value.fields == {"minimum": 100, "maximum": 20}


# --- the retention set --------------------------------------------------------------------------------------------


def test_each_cycle_adds_a_cut_at_the_tail_to_the_ordered_set() -> None:
    """Retention Set: every cycle puts a cut at the tail into an ordered set in the stream's metadata.
    Differs: records of positions"""

    async def story(w: World) -> None:
        await w.stream(by_size(1000))
        await w.grow(10, 20, 30)
        assert [dict(item.positions) for item in await w.records()] == [{FIRST: 10}, {FIRST: 30}, {FIRST: 60}]
        # A stream that stands still needs no second record of the same place.
        await w.cycle()
        assert len(await w.records()) == 3

    play(story)


def test_the_cut_of_a_truncation_is_one_of_the_set() -> None:
    """Retention Set: the cut at which a stream is truncated is chosen from the set."""

    async def story(w: World) -> None:
        await w.stream(by_size(25))
        for size in (10, 12, 14, 16, 18):
            await w.append(size)
            before = [dict(item.positions) for item in await w.records()]
            await w.cycle()
            head = await w.head()
            assert head == {FIRST: 0} or head in before
        assert head == {FIRST: 36}

    play(story)


# --- the retention service ----------------------------------------------------------------------------------------


def test_the_job_runs_periodically() -> None:
    """Retention Service: a job runs periodically, by default every 30 minutes, and looks whether streams must be truncated.
    Differs: period"""
    assert ControllerSettings().retention_cycle_ms == 60_000

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await asyncio.sleep(1)
        await w.append(10)
        await asyncio.sleep(600)
        assert await w.head() == {FIRST: 0}
        await asyncio.sleep(1800)
        assert await w.head() == {FIRST: 10}

    play(story, cycle_s=1800)


def test_the_new_head_is_the_chosen_cut() -> None:
    """Retention Service: after the truncation the head of the stream is the chosen cut."""

    async def story(w: World) -> None:
        await w.stream(by_size(15))
        decision = await w.grow(10, 10, 10)
        assert decision.candidate == decision.truncate == {"0#0": 10}
        assert await w.head() == {FIRST: 10}

    play(story)


def test_workflow_a_stream_without_a_policy_is_not_considered() -> None:
    """Retention Service, workflow: a stream is considered if it has a retention policy."""

    async def story(w: World) -> None:
        await w.stream()
        decision = await w.grow(10, 10)
        assert (decision.rule, decision.truncate, await w.records()) == ("no-policy", None, [])

    play(story)


def test_workflow_the_tail_cut_is_made_while_writers_append() -> None:
    """Retention Service, workflow: the tail cut is made near the end, where writers may still be appending."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(200), segments=3)
        async with asyncio.TaskGroup() as tasks:

            async def write() -> None:
                async with stream.writer(block_bytes=1024) as writer:
                    for number in range(600):
                        await writer.write(f"k{number % 7}:{number:04}", f"k{number % 7}")
                        await asyncio.sleep(0.001)

            writing = tasks.create_task(write())
            while not writing.done():
                await asyncio.sleep(0.05)
                await w.controller.retention.run(STREAM)
        heads = await w.head()
        assert max(heads.values()) > 0
        # Each cut lay between two events: what is left is whole, and for each key it is what was written last.
        left = await w.read()
        assert await w.size() == sum(len(event) + 8 for event in left) >= 200
        for key in range(7):
            own = [int(event[-4:]) for event in left if event.startswith(b"k%d:" % key)]
            assert own == list(range(600))[key::7][-len(own) :] if own else True

    play(story)


def test_workflow_the_size_is_that_from_the_head_to_the_tail() -> None:
    """Retention Service, workflow: the size of a stream is what lies between its head and the tail cut."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(30, 60))
        await w.grow(20, 20)
        await stream.truncate(cut(20))
        # 80 bytes were ever written, but only 60 are there: that is not more than the maximum.
        await w.append(40)
        decision = await w.cycle()
        assert (decision.rule, decision.truncate) == ("minimum", {"0#0": 40})
        assert await w.size() == 40

    play(story)


def test_workflow_below_the_minimum_nothing_is_done() -> None:
    """Retention Service, workflow: if the size is less than the minimum, nothing is done."""

    async def story(w: World) -> None:
        await w.stream(by_size(50, 100))
        decision = await w.grow(20, 29)
        assert (decision.rule, decision.truncate, await w.size()) == ("below-minimum", None, 49)

    play(story)


def test_workflow_without_a_maximum_the_cut_closest_above_the_minimum() -> None:
    """Retention Service, workflow: without a maximum, the cut closest to the minimum that leaves more than the minimum."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(1000))
        await w.grow(20, 20, 20, 20)
        await stream.update(retention=by_size(35))
        decision = await w.cycle()
        # Truncating at 60 would leave 20, at 40 it leaves 40, at 20 it would leave 60.
        assert (decision.rule, decision.truncate) == ("minimum", {"0#0": 40})

    play(story)


def test_workflow_above_the_maximum_the_cut_closest_below_it() -> None:
    """Retention Service, workflow: above the maximum, the cut closest to it that leaves less, but more than the minimum.
    Differs: size above the maximum, no subscriber"""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(1000))
        await w.grow(20, 20, 20, 20, 20)
        await stream.update(retention=by_size(10, 70))
        decision = (await w.cycle()).steps[0]
        # 40 leaves 60: the largest that is below 70. 60 and 80 would leave more than the minimum too.
        assert (decision.rule, decision.truncate) == ("maximum", {"0#0": 40})

    play(story)


def test_workflow_between_the_limits_the_cut_closest_to_the_minimum() -> None:
    """Retention Service, workflow: between minimum and maximum, the cut closest to the minimum."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(1000))
        await w.grow(20, 20, 20, 20, 20)
        await stream.update(retention=by_size(10, 70))
        # The decision between the limits follows the one above the maximum at once.
        decision = (await w.cycle()).steps[1]
        assert (decision.rule, decision.truncate) == ("minimum", {"0#0": 80})
        assert await w.size() == 20

    play(story)


def test_limits_that_are_met_exactly_are_met() -> None:
    """Retention Service, workflow: "at least" and "not more than" include the limits themselves.
    Differs: bound leaves exactly the minimum"""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(1000))
        await w.grow(20, 20, 20, 20, 20)
        await stream.update(retention=by_size(40, 60))
        assert [step.truncate for step in (await w.cycle()).steps] == [{"0#0": 40}, {"0#0": 60}]
        assert await w.size() == 40
        assert (await w.cycle()).truncate is None

    play(story)


def test_figure_a_stream_of_twelve_segments_and_six_cuts() -> None:
    """Retention Service, figure: a stream of segments S1 to S12 and cuts SC1 to SC6; truncating at one keeps what it names and
    what follows."""

    async def story(w: World) -> None:
        stream = await w.stream()
        cuts = [await stream.tail()]
        for count in (2, 3, 2, 4):
            for item in await w.controller.layout.current(STREAM):
                await w.append(10, segment=item.segment)
            cuts.append(await stream.tail())
            await stream.scale(count)
        await w.append(10)
        cuts.append(await stream.tail())
        assert len(cuts) == 6
        everything = await w.controller.cuts.segments_between(STREAM, cuts[0], cuts[-1])
        assert [item & 0xFFFFFFFF for item in everything] == list(range(12))
        left = await w.size()
        for position in cuts[1:]:
            await stream.truncate(position)
            assert await stream.head() == position
            smaller = await w.size()
            assert smaller < left
            left = smaller
            live = await w.controller.cuts.segments_between(STREAM, position, StreamCut(STREAM, {}))
            assert set(position.positions) <= set(live)
            assert max(everything) in live
        assert left == 0
        with pytest.raises(InvalidCutError):
            await stream.truncate(cuts[2])
        assert make_segment_id(4, 11) in cuts[-1].positions

    play(story)
