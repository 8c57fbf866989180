"""A lease that was answered holds after a takeover: it is in the log, and then in the catalogue of tier 2."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from penstock.app.embedded import LocalRuntime
from penstock.app.replicated.log_place import read_mark
from penstock.codec.store import rows as records
from penstock.segmentstore.tiering.leases import Leases
from tests.cluster.machines_kit import STREAM, Image, Machines, write

LEASE = UUID(int=7)
HOUR_MS = 3_600_000


def chunks(tier: Path) -> set[Path]:
    """The files of events. Each has an index beside it."""
    return {one.relative_to(tier) for one in tier.glob("chunks/*/*") if not one.suffix}


async def leased_and_lost(machines: Machines, *, published: bool, leased: bool = True) -> Image:
    """What is left of a machine that vanished after the lease was answered."""
    machines.tier.mkdir()
    async with machines.opened("first") as (runtime, store):
        await store.create_stream(STREAM, segments=2, create_scope=True)
        await store.create_table("shop/prices", primary_key_bytes=2)
        await write(store, machines.acknowledged, 0)
        await runtime.segments.flush()
        if leased:
            names = segments_of(runtime)
            until_ms = runtime.clock.now_ms() + HOUR_MS
            granted = await runtime.segments.lease_chunks(names, LEASE, until_ms=until_ms, holder="job")
            assert sorted(granted.granted) == sorted(names)
        if published:
            await runtime.segments.flush()
        machines.records = True
        machines.moment("lost")
        machines.records = False
    return machines.images[-1]


def segments_of(runtime: LocalRuntime) -> list[str]:
    loaded = [segment.name for one in runtime.segments.containers for segment in one.segments.loaded()]
    return [name for name in loaded if name.startswith(STREAM)]


def delete_elsewhere(tmp_path: Path, *, published: bool, leased: bool = True) -> list[set[Path]]:
    """The files that are left after the stream is deleted on another machine, and after the lease is released there."""

    async def scenario() -> list[set[Path]]:
        first = Machines(tmp_path)
        with pytest.MonkeyPatch.context() as monkeypatch:
            first.install(monkeypatch)
            image = await leased_and_lost(first, published=published, leased=leased)
        second = Machines(tmp_path / "elsewhere", image.bookkeeper, image.acknowledged)
        second.path.mkdir()
        image.tier.rename(second.tier)
        with pytest.MonkeyPatch.context() as monkeypatch:
            second.install(monkeypatch)
            async with second.opened("second", take_over=True) as (runtime, store):
                seen = [chunks(second.tier)]
                mark = read_mark(second.path / "second")
                assert mark is not None
                assert mark.hold_s is None, "a day without freeing is not needed"
                await store.stream(STREAM).seal()
                await store.stream(STREAM).delete()
                await settle(runtime)
                seen.append(chunks(second.tier))
                await runtime.segments.release_lease(LEASE)
                await settle(runtime)
                seen.append(chunks(second.tier))
        return seen

    return asyncio.run(scenario())


async def settle(runtime: LocalRuntime) -> None:
    for container in runtime.segments.containers:
        await container.reclaimer.scanned()
    for _ in range(2):
        await runtime.segments.flush()


@pytest.mark.parametrize("published", [False, True], ids=["in the log", "in the catalogue"])
def test_a_lease_holds_on_another_machine_until_it_is_released(tmp_path: Path, published: bool) -> None:
    before, leased, released = delete_elsewhere(tmp_path, published=published)
    assert leased >= before
    assert not released & before


def test_without_a_lease_space_is_freed_at_once(tmp_path: Path) -> None:
    before, deleted, _ = delete_elsewhere(tmp_path, published=True, leased=False)
    assert not deleted & before


# --- planted bugs


def in_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def logged(self: Leases, operation: object) -> asyncio.Future[None]:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    monkeypatch.setattr(Leases, "_logged", logged)


def not_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "CATALOGUED", records.CATALOGUED - set(records.TAG_LEASE))


@pytest.mark.parametrize(("bug", "published"), [(in_rows_only, False), (not_in_the_catalogue, True)])
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None], published: bool
) -> None:
    bug(monkeypatch)
    before, leased, _ = delete_elsewhere(tmp_path, published=published)
    assert not leased & before, "it was freed beneath its reader"
