"""What the controller remembers after a long time: bounded by rules that never let anything happen twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from controller_world import STREAM, config, opened, scale_to, with_stream, write_transaction
from memory_segments import MemorySegments

from penstock.codec.control.streams import BatchRecord
from penstock.codec.control.truncations import GapRecord
from penstock.controller import keys, retention_keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import overwrite
from penstock.controller.streams import numbers
from penstock.controller.transactions import batches
from penstock.core.streams.batch_memory import JOBS_KEPT, is_forgettable, jobs_to_forget
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import FakeClock

HOUR_MS = 3_600_000
HASH_BYTES_MAX = 48  # bytes of metadata for each audit entry: a hash of 32 bytes in base64, and its share of a key


def job(rng: random.Random) -> str:
    return f"spark-job-{UUID(int=rng.getrandbits(128))}/s/t"


def kinds(segments: MemorySegments) -> Counter[str]:
    return Counter(key.split(b"/")[0].decode() for key in segments.tables[keys.TABLE].entries)


def size_bytes(segments: MemorySegments) -> int:
    """Of all rows but the hashes of the audit log."""
    return sum(
        len(key) + len(value)
        for key, (value, _) in segments.tables[keys.TABLE].entries.items()
        if not key.startswith(b"audit-tile/")
    )


def hashes_bytes(segments: MemorySegments) -> int:
    rows = segments.tables[keys.TABLE].entries.items()
    return sum(len(key) + len(value) for key, (value, _) in rows if key.startswith(b"audit-tile/"))


async def _hour(
    controller: Controller, segments: MemorySegments, clock: FakeClock, rng: random.Random, hour: int
) -> None:
    """One plain job, one batch of a query, and a stream with a reader group made and deleted."""
    await controller.batches.commit(
        STREAM,
        writer=job(rng),
        batch=0,
        transactions=[await write_transaction(controller, segments, b"job")],
        one_job=True,
    )
    query = await write_transaction(controller, segments, b"query")
    await controller.batches.commit(STREAM, writer="query/s/t", batch=hour, transactions=[query])
    name = StreamName("s", f"made-{hour}")
    await controller.streams.create(name, config(2))
    group = ReaderGroupConfig(
        scope="s",
        name=f"group-{hour}",
        id=UUID(int=hour + 1),
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={name: StreamCut(name, {})},
    )
    await controller.groups.create(group)
    await controller.groups.delete("s", group.name)
    await controller.streams.seal(name)
    await controller.streams.delete(name)
    clock.ms += HOUR_MS
    await controller.sweep()
    await controller.drain_audit()


async def _long_time(hours: int) -> tuple[MemorySegments, list[int]]:
    """Simulate that many hours. Returns the records that are left, and ten sizes of the table during that time."""
    segments, clock, rng = MemorySegments(), FakeClock(), random.Random(1)
    sizes: list[int] = []
    async with with_stream(segments, 2, clock) as controller:
        for hour in range(hours):
            await _hour(controller, segments, clock, rng, hour)
            if (hour + 1) % (hours // 10) == 0:
                sizes.append(size_bytes(segments))
        await controller.sweep()
    return segments, sizes


def _check(segments: MemorySegments, sizes: list[int], *, kept: int, every: int) -> None:
    found = kinds(segments)
    # A stream of users', its mark stream and a stream of a group's for each hour.
    assert found["number"] <= kept + 3 * every
    assert found["batch"] <= kept + every + 1
    # Outcomes of a day: one of a job, one of a query for each hour.
    assert found["done"] == found["done-at"] <= 2 * 25
    assert max(sizes[4:]) < 1.1 * max(sizes[:4]), "it does not grow any more"
    # Each entry of the audit log keeps its hash: a row for 256 of them.
    assert found["audit-tile"]
    assert hashes_bytes(segments) <= HASH_BYTES_MAX * 256 * found["audit-tile"]


def test_metadata_growth_at_a_fortieth_of_a_year_stays_within_the_stated_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, limit in ((numbers, "NUMBERS_KEPT"), (batches, "JOBS_KEPT")):
        monkeypatch.setattr(module, limit, 25)
        monkeypatch.setattr(module, "FORGET_EVERY", 5)
    segments, sizes = asyncio.run(_long_time(220))
    _check(segments, sizes, kept=25, every=5)
    assert sum(kinds(segments).values()) < 300
    assert size_bytes(segments) < 40_000


def test_a_repeated_batch_changes_nothing_while_its_job_can_be_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "JOBS_KEPT", 10)
    monkeypatch.setattr(batches, "FORGET_EVERY", 1)

    async def work() -> None:
        segments, rng = MemorySegments(), random.Random(2)
        async with with_stream(segments, 1) as controller:
            done: list[tuple[str, bool, UUID]] = []
            for number in range(60):
                named = number % 3 == 0
                writer = f"query-{number}/s/t" if named else job(rng)
                txn = await write_transaction(controller, segments, b"x")
                commit = partial(controller.batches.commit, STREAM, batch=0)
                assert await commit(writer=writer, transactions=[txn], one_job=not named)
                done.append((writer, named, txn))
                # Names that may come back: those of queries at any time, and those of the last ten jobs.
                jobs = [item for item in done if not item[1]][-10:]
                writer, named, first = rng.choice([*jobs, *(item for item in done if item[1])])
                assert await commit(writer=writer, transactions=[first], one_job=not named)
                again = await write_transaction(controller, segments, b"twice")
                assert not await commit(writer=writer, transactions=[again], one_job=not named)
            await controller.sweep()
            data = b"".join(bytes(item.data) for item in segments.segments.values())
            assert (data.count(b"x"), data.count(b"twice")) == (60, 0)
            assert kinds(segments)["batch"] <= 20 + 11

    asyncio.run(work())


def test_only_the_oldest_names_of_plain_jobs_are_forgotten() -> None:
    rng = random.Random(3)
    jobs = [(job(rng), version) for version in range(JOBS_KEPT + 7)]
    records = list(jobs)
    rng.shuffle(records)
    assert sorted(jobs_to_forget(records)) == sorted(writer for writer, _ in jobs[:7])
    assert jobs_to_forget(records[:100]) == []


def test_a_name_is_forgettable_only_while_nothing_but_its_job_has_used_it() -> None:
    unused = BatchRecord(batch=-1, transactions=())
    used = BatchRecord(batch=0, transactions=())
    assert is_forgettable(None, one_job=True)
    assert is_forgettable(unused, one_job=True)
    assert is_forgettable(replace(used, one_job=True), one_job=True)
    assert not is_forgettable(used, one_job=True)
    assert not is_forgettable(replace(unused, query="q"), one_job=True)
    for known in (None, unused, used, replace(used, one_job=True)):
        assert not is_forgettable(known, one_job=False)


def test_a_persons_name_that_looks_like_a_jobs_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "JOBS_KEPT", 2)
    monkeypatch.setattr(batches, "FORGET_EVERY", 1)

    async def work() -> None:
        segments, rng = MemorySegments(), random.Random(4)
        async with with_stream(segments, 1) as controller:
            names = [job(rng) for _ in range(6)]
            for name in names:
                txn = await write_transaction(controller, segments, b"x")
                assert await controller.batches.commit(STREAM, writer=name, batch=7, transactions=[txn])
            for name in names:
                assert await controller.batches.last(STREAM, writer=name) == 7
                again = await write_transaction(controller, segments, b"twice")
                assert not await controller.batches.commit(STREAM, writer=name, batch=7, transactions=[again])

    asyncio.run(work())


class Named(MemorySegments):
    """Fails if a segment's name is used a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: set[str] = set()

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        known = name in self.segments
        await super().create_segment(name, rollover_bytes=rollover_bytes)
        assert known or name not in self.ever, f"{name} was used before"
        self.ever.add(name)


@pytest.mark.parametrize("seed", range(10))
def test_no_two_segments_ever_have_the_same_name_whatever_is_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "NUMBERS_KEPT", seed % 3)
    monkeypatch.setattr(numbers, "FORGET_EVERY", 1 + seed % 2 * 3)

    async def work() -> None:
        segments, rng = Named(), random.Random(seed)
        lives = 0
        while lives < 3:
            lives += 1
            async with opened(segments) as controller:
                if lives == 1:
                    await controller.scopes.create("s")
                for _ in range(25):
                    name = StreamName("s", f"n{rng.randrange(6)}")
                    if not await controller.streams.exists(name):
                        await controller.streams.create(name, config(rng.randrange(1, 4)))
                        continue
                    if rng.random() < 0.5:
                        await scale_to(controller, rng.randrange(3, 6), name)
                        continue
                    await controller.streams.seal(name)
                    await controller.streams.delete(name)
        assert kinds(segments)["number"] <= seed % 3 + 2 * 4 + 12

    asyncio.run(work())


def test_reported_gaps_are_deleted_with_the_next_drain() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            for number in range(5):
                gap = GapRecord(count=2, first_ms=1, last_ms=2)
                await controller._ctx.metadata.put(overwrite(retention_keys.gap(f"life-{number}"), gap))
            await controller.drain_audit()
            await controller.drain_audit()
            assert kinds(segments)["audit-gap"] == kinds(segments)["audit-told"] == 0
            assert kinds(segments)["audit"] == 0

    asyncio.run(work())
