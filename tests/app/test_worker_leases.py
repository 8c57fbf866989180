"""A call that leases chunks in several workers takes all of a new lease or nothing, whichever worker refuses or fails."""

from __future__ import annotations

from uuid import UUID

import pytest
from workers_world import LAYOUT, OneWorker, WorkersWorld, by_worker, run_in_world

from penstock.model.errors import InvalidArgumentError, PenstockError, StorageFullError, UnavailableError
from penstock.ports.data.chunks import Leased
from penstock.ports.data.tables import TableKind
from penstock.spark.reading import segment_reads
from penstock.spark.reading.segment_reads import lease_segments
from penstock.storage.machine.clock import RealClock

NEW, OLD = UUID(int=8), UUID(int=7)
WORKERS = range(LAYOUT.workers)


def until_ms(ahead_ms: int = 60_000) -> int:
    return RealClock().now_ms() + ahead_ms


def leased(world: WorkersWorld, lease: UUID) -> list[set[int]]:
    """By worker, the segments that the lease holds."""
    return [
        {uid for container in worker.store.containers for key, uid in container.leases if key == lease.int}
        for worker in world.workers
    ]


def fail_after_taking(worker: OneWorker, patch: pytest.MonkeyPatch, error: PenstockError) -> None:
    async def durable(_: object) -> None:
        raise error

    for container in worker.store.containers:
        patch.setattr(container.leases, "durable", durable)


@pytest.mark.parametrize("bad", WORKERS)
@pytest.mark.parametrize("error", [StorageFullError("no space"), UnavailableError("broken")], ids=["full", "away"])
def test_a_failing_worker_leaves_a_new_lease_in_no_worker(monkeypatch, bad, error):
    async def body(world: WorkersWorld) -> None:
        names = [name for own in by_worker(world.segments).values() for name in own[:2]]
        for name in names:
            await world.segments.create_segment(name)
        await world.segments.lease_chunks(names[:1], OLD, until_ms=until_ms())
        before = leased(world, OLD)
        with monkeypatch.context() as patch:
            fail_after_taking(world.workers[bad], patch, error)
            for lease in (NEW, OLD):
                with pytest.raises(type(error)):
                    await world.segments.lease_chunks(names, lease, until_ms=until_ms())
        assert leased(world, NEW) == [set(), set()]
        assert all(now >= held for now, held in zip(leased(world, OLD), before, strict=True)), "others rely on it"
        assert await world.segments.lease_chunks(names, NEW, until_ms=until_ms()) == Leased(granted=tuple(names))
        assert (await world.segments.lease_chunks(names, NEW, until_ms=until_ms())).renewed
        assert [len(held) for held in leased(world, NEW)] == [2, 2]

    run_in_world(body)


@pytest.mark.parametrize("bad", WORKERS)
def test_a_refusing_worker_leaves_a_new_lease_in_no_worker(bad):
    async def body(world: WorkersWorld) -> None:
        segments = world.segments
        names = [own[0] for own in by_worker(segments).values()]
        for number, name in enumerate(names):
            if number == bad:
                await segments.create_table(name, kind=TableKind.HASH, key_bytes=0)
            else:
                await segments.create_segment(name)
        with pytest.raises(InvalidArgumentError):
            await segments.lease_chunks(names, NEW, until_ms=until_ms())
        with pytest.raises(InvalidArgumentError):
            await segments.lease_chunks(names, NEW, until_ms=until_ms(10**12))
        assert leased(world, NEW) == [set(), set()]

    run_in_world(body)


@pytest.mark.parametrize("bad", WORKERS)
def test_a_later_page_that_fails_leaves_a_new_lease_nowhere(monkeypatch, bad):
    monkeypatch.setattr(segment_reads, "NAMES_AT_ONCE_SEGMENTS", 1)

    async def body(world: WorkersWorld) -> None:
        names = [own[0] for own in by_worker(world.segments).values()]
        for name in names:
            await world.segments.create_segment(name)
        pages = [*(name for number, name in enumerate(names) if number != bad), names[bad]]
        with monkeypatch.context() as patch:
            fail_after_taking(world.workers[bad], patch, StorageFullError("no space"))
            with pytest.raises(StorageFullError):
                await lease_segments(world.segments, pages, NEW, until_ms=until_ms())
        assert leased(world, NEW) == [set(), set()]

    run_in_world(body)
