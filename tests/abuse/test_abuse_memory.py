"""What keeps a server within its memory: the rule for caches, the watch, idle segments that leave as others come."""

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.memory_watch import MemoryWatch
from penstock.app.segments import cluster_memory_min_bytes, rest_limits, store_settings, wire_limits
from penstock.app.settings import MEMORY_MIN_BYTES, SERVER_MEMORY_MIN_BYTES, EmbeddedSettings, StandaloneSettings
from penstock.core.segments.throttle import cache_allowance
from penstock.model.errors import InvalidArgumentError
from penstock.ports.data.limits import AppendLimit, LimitAction

sys.path.insert(0, str(Path(__file__).parents[1] / "segmentstore"))
from store_world import World

MIB = 1 << 20
SIZES = st.integers(0, 1 << 40)


@given(resident=SIZES, budget=SIZES, allowed=SIZES, cached=SIZES, most=SIZES, least=SIZES)
def test_caches_are_allowed_what_is_within_their_bounds(resident, budget, allowed, cached, most, least):
    least = min(least, most)
    answer = cache_allowance(
        resident,
        budget_bytes=budget,
        allowed_bytes=allowed,
        cached_bytes=cached,
        most_bytes=most,
        least_bytes=least,
    )
    assert least <= answer <= most
    if resident > budget:
        # All that is too much goes, or all that may go.
        assert answer <= max(least, cached - (resident - budget))


def test_a_process_that_shrinks_gives_its_caches_their_share_back():
    allowed = 10
    for _ in range(40):
        allowed = cache_allowance(
            100, budget_bytes=200, allowed_bytes=allowed, cached_bytes=allowed, most_bytes=90, least_bytes=1
        )
    assert allowed == 90


class CachesOnly:
    """A store, as the watch sees it: so many bytes are in its caches, and all the rest of the process in none."""

    def __init__(self, settings, rest):
        self.settings = settings
        self.cached_bytes = settings.cache_bytes
        self.rest = rest
        self.unflushed_bytes = None

    def allow_memory(self, *, cache_bytes, unflushed_bytes):
        self.cached_bytes = min(self.cached_bytes, cache_bytes)
        self.unflushed_bytes = unflushed_bytes


class Gauges(dict):
    def add(self, name, amount=1, labels=()): ...

    def gauge(self, name, value, labels=()):
        self[name] = value


def watch_of(store, resident, given_back, reported=None):
    reported = [] if reported is None else reported
    return MemoryWatch(
        store,
        budget_bytes=512 * MIB,
        drop=lambda: given_back.append("arenas") or 0,
        report=reported.append,
        telemetry=Gauges(),
        resident_bytes=resident,
        give_back=lambda: given_back.append("heap"),
    )


def test_the_watch_takes_from_the_caches_what_is_too_much_and_tells_when_they_have_no_more(caplog, tmp_path):
    settings = store_settings(EmbeddedSettings(data=tmp_path))
    store = CachesOnly(settings, 400 * MIB)
    given_back, reported = [], []
    watch = watch_of(store, lambda: store.rest + store.cached_bytes, given_back, reported)
    before = store.rest + store.cached_bytes
    assert watch.look(0.0)
    assert store.cached_bytes == settings.cache_bytes - (before - 512 * MIB)
    assert reported == [True]
    assert given_back == ["arenas", "heap"]
    store.rest = 600 * MIB
    caplog.set_level(logging.WARNING)
    watch.look(0.1)
    assert given_back == ["arenas", "heap"], "giving back takes milliseconds: once a second at most"
    watch.look(1.1)
    assert given_back == ["arenas", "heap"] * 2
    assert store.cached_bytes == settings.cache_bytes // 16
    assert store.unflushed_bytes >= settings.max_unflushed_bytes // 16 > 0
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "memory budget is used up by more than caches"
    ]


def test_where_the_system_does_not_tell_the_shares_stay(tmp_path):
    settings = store_settings(EmbeddedSettings(data=tmp_path))
    store = CachesOnly(settings, 0)
    assert not watch_of(store, lambda: None, []).look(0.0)
    assert store.cached_bytes == settings.cache_bytes


@pytest.mark.parametrize(
    ("memory", "containers"),
    [
        *((size, 4) for size in (MEMORY_MIN_BYTES, SERVER_MEMORY_MIN_BYTES, 256 * MIB, 512 * MIB, 4096 * MIB)),
        *((cluster_memory_min_bytes(number), number) for number in (1, 16, 64)),
        *((size, 64) for size in (512 * MIB, 4096 * MIB)),
    ],
)
def test_the_shares_of_a_budget_fit_into_it(tmp_path, memory, containers):
    given = EmbeddedSettings(data=tmp_path, memory_bytes=memory)
    settings, limits, http = store_settings(given, containers=containers), wire_limits(given), rest_limits(given)
    shares = (
        max(settings.cache_bytes, settings.max_unflushed_bytes)
        + settings.containers * (settings.read_cache_bytes + settings.max_loaded_segments * 3072)
        + limits.arena_bytes
        + limits.replies_bytes
        + (http.bodies_bytes if containers == 4 else 0)  # a store of a cluster has no HTTP
    )
    assert shares <= given.working_bytes * 1.1 + 8 * MIB
    # A body of JSON takes thirty times its size while it is parsed, one at a time.
    assert 30 * http.body_bytes <= given.working_bytes
    # All containers may write a snapshot of their catalogue at a time.
    assert settings.containers * settings.catalogue_part_bytes <= max(MIB, given.working_bytes // 16)


def test_less_than_the_least_budget_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="too small"):
        EmbeddedSettings(data=tmp_path, memory_bytes=MEMORY_MIN_BYTES - 1)
    with pytest.raises(InvalidArgumentError, match="too small for a server"):
        StandaloneSettings(store=EmbeddedSettings(data=tmp_path, memory_bytes=SERVER_MEMORY_MIN_BYTES - 1))


def test_segments_that_are_asked_for_leave_memory_before_the_next_checkpoint():
    async def main():
        world = World(max_loaded_segments=40, containers=1)
        store = await world.open()
        for index in range(400):
            await store.create_segment(f"s/t{index}/0.#epoch.0")
        await world.restart()
        store = world.store
        (container,) = store.containers
        most = 0
        for index in range(400):
            assert (await store.info(f"s/t{index}/0.#epoch.0")).length == 0
            most = max(most, len(list(container.segments.loaded())))
        # A quarter above the bound all have a second chance; another quarter above that, those not asked for since leave.
        assert most <= 63
        await store.close()

    asyncio.run(main())


def test_a_stream_with_more_segments_than_stay_in_memory_is_limited():
    async def main():
        world = World(max_loaded_segments=4, containers=1)
        store = await world.open()
        names = [f"s/t/{index}.#epoch.0" for index in range(60)]
        for name in names:
            await store.create_segment(name)
        await world.restart()
        store = world.store
        limit = AppendLimit(
            stream="s/t",
            segments=names,
            total_bytes=10,
            action=LimitAction.REJECT,
        )
        async with asyncio.timeout(10):
            await store.limit_appends([limit])
        for index in range(60):
            await store.info(names[index])
        assert len(list(store.containers[0].segments.loaded())) <= 60
        await store.close()

    asyncio.run(main())


def test_segments_that_are_created_become_idle_and_leave():
    async def main():
        world = World(max_loaded_segments=40, containers=1)
        store = await world.open()
        (container,) = store.containers
        for index in range(400):
            await store.create_segment(f"s/t{index}/0.#epoch.0")
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while len(list(container.segments.loaded())) > 120:
                await store.create_segment(f"s/u{index}/0.#epoch.0")
                index += 1
                await asyncio.sleep(0)
        await store.close()

    asyncio.run(main())
