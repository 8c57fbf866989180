"""What a status shows of logs: how much is not published, which ledgers lack a copy, and what it says about damage."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.cli.cluster.state_words import status_json
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.operations.logs import lag_of, log_states
from penstock.app.cluster.operations.requests import request_drained, until_drained
from penstock.app.cluster.operations.status import cluster_state
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONFIG,
    CONTAINERS,
    FEATURES,
    HOLDERS,
    LEADER,
    REQUESTS,
    STORES,
    TERM,
    Requests,
    encode_node,
    failed_path,
)
from penstock.codec.store.ledger_cipher import OVERHEAD_BYTES
from penstock.codec.store.ledger_entries import PART
from penstock.codec.store.operation_frames import FrameHeader, encode_frame_header
from penstock.core.ledgers.replicas import absent_bookies
from penstock.model.errors import NotFoundError
from penstock.storage.ledgers.inspection import open_inspection
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.fakes import START_MS
from tests.cluster.cluster_kit import CONTAINERS as COUNT
from tests.cluster.cluster_kit import LoopClock, join, new_cluster, until
from tests.cluster.damage_kit import DAMAGES, damages, put
from tests.cluster.ledger_log_kit import BOOKIE_LIMITS, CLOCK, LIMITS, append_all, open_log, record_of
from tests.cluster.virtual_time import run_virtually


def frame(number: int, size: int) -> bytes:
    """A frame of the store that was written so many seconds after the start."""
    return encode_frame_header(FrameHeader(container=0, count=0, time_ms=START_MS + 1000 * number)) + bytes(size)


@asynccontextmanager
async def inspecting(world: SimBookKeeper):
    async with open_inspection(world.nodes, root=ROOT, limits=BOOKIE_LIMITS, connect=world.connect) as inspection:
        yield inspection


def size_of(data: bytes, beside: int) -> int:
    """What the entries that the log makes of a frame have. ``beside``: bytes of an entry that are not the frame's."""
    return len(data) + beside * -(-len(data) // (LIMITS.entry_max_bytes - beside))


@pytest.mark.parametrize("encrypts", [False, True])
@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 15_000), max_size=12), published=st.integers(0, 12), is_open=st.booleans())
def test_the_lag_is_what_lies_behind_the_published_position(
    encrypts: bool, sizes: list[int], published: int, is_open: bool
) -> None:
    """For frames of one and of several entries, in one ledger and in several, of a live and of a closed log."""
    frames = [frame(number, size) for number, size in enumerate(sizes)]
    published = min(published, len(frames))
    left = frames[published:]

    async def main() -> None:
        world = SimBookKeeper()

        async def check() -> None:
            record = replace(record_of(world), truncated=published)
            async with inspecting(world) as inspection:
                found = await lag_of(record, inspection)
            beside = OVERHEAD_BYTES if encrypts else PART.size
            assert found.size_bytes == sum(size_of(one, beside) for one in left)
            # Without the key, only the time at which an encrypted entry was written is known.
            since_ms = CLOCK.now_ms() if encrypts else START_MS + 1000 * published
            assert found.since_ms == (since_ms if left else None)

        async with open_log(world, encrypts=encrypts) as log:
            async for _ in log.replay():
                pass
            await append_all(log, frames)
            if is_open:
                await check()
        await check()

    run_virtually(main())


def test_looking_into_a_live_log_fences_nobody() -> None:
    async def main() -> None:
        world = SimBookKeeper()
        async with open_log(world) as log, inspecting(world) as inspection:
            async for _ in log.replay():
                pass
            for number in range(5):
                await log.append([frame(number, 100)])
                assert (await lag_of(record_of(world), inspection)).since_ms == CLOCK.now_ms()
            assert len(record_of(world).ledgers) == 1

    run_virtually(main())


@given(st.lists(st.frozensets(st.sampled_from("abcdef"))), st.frozensets(st.sampled_from("abcdef")))
def test_a_ledger_lacks_a_copy_on_each_bookie_that_is_not_registered(
    ensembles: list[frozenset[str]], available: frozenset[str]
) -> None:
    absent = absent_bookies(ensembles, available)
    assert set(absent) == set().union(*ensembles) - available


def test_a_ledger_with_a_dead_bookie_is_listed_and_one_on_a_read_only_bookie_is_not() -> None:
    async def main() -> None:
        world = SimBookKeeper()
        async with open_log(world) as log:
            async for _ in log.replay():
                pass
            await log.append([frame(0, 10)])
        names = sorted(world.bookies)
        nodes = world.nodes.nodes
        nodes[f"{ROOT}/available/readonly/{names[0]}"] = nodes.pop(f"{ROOT}/available/{names[0]}")
        async with inspecting(world) as inspection:
            (state,) = (await log_states({0: record_of(world)}, inspection)).values()
            assert (state.thin, state.problems) == ([], [])
            del nodes[f"{ROOT}/available/{names[1]}"]
            world.bookies[names[1]].stop()
            (state,) = (await log_states({0: record_of(world)}, inspection)).values()
            assert [list(one.absent) for one in state.thin] == [[names[1]]]
            assert state.lag is not None, "another bookie has the entries"
            for name in names:
                world.bookies[name].stop()
            (state,) = (await log_states({0: record_of(world)}, inspection)).values()
            assert state.lag is None
            assert len(state.problems) == 1

    run_virtually(main())


@damages
@pytest.mark.parametrize(
    "path",
    [
        *(CONFIG, FEATURES, REQUESTS, ASSIGNMENT, TERM, LEADER),
        *(f"{CONTAINERS}/2", f"{STORES}/a", f"{HOLDERS}/1", failed_path(1, "a"), "controllers/c"),
    ],
)
def test_one_damaged_node_is_shown_with_what_to_do_and_hides_nothing_else(path: str, damage: bytes | None) -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        await join(coordinator, "a")
        await put(coordinator, path, b"x")
        await put(coordinator, path, damage)
        session = coordinator.open()
        found = await cluster_state(session, now_ms=START_MS)
        assert [one.number for one in found.containers] == list(range(COUNT))
        shown = status_json(found, now_ms=START_MS)["damaged"]
        is_optional = damage is None and path.partition("/")[0] in (
            STORES,
            HOLDERS,
            "failed",
            "controllers",
            LEADER,
            FEATURES,
        )
        is_valid = damage == DAMAGES["no fields"] and path in (REQUESTS, ASSIGNMENT, FEATURES)
        is_valid |= damage == DAMAGES["fields of other types"] and path == FEATURES  # it has no such field
        assert [one["node"] for one in shown] == ([] if is_optional or is_valid else [path])
        assert all(one["action"] and one["reason"] for one in shown)

    run_virtually(main())


def test_a_cluster_whose_creation_was_not_finished_is_not_called_damaged() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        for path in (*(f"{CONTAINERS}/{number}" for number in range(COUNT)), CONTAINERS, CONFIG):
            await put(coordinator, path, None)
        with pytest.raises(NotFoundError, match="repeat `penstock cluster init`"):
            await cluster_state(coordinator.open(), now_ms=START_MS)

    run_virtually(main())


def test_a_drain_that_cannot_proceed_says_why() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        await join(coordinator, "a")
        await put(coordinator, "controllers/c", b'{"format": 1}')
        owners = b'{"format": 1, "owners": {"0": "a", "1": "a"}}'
        await put(coordinator, ASSIGNMENT, owners)
        await put(coordinator, REQUESTS, encode_node(Requests(drained=("a",))))

        async def blocked() -> object:
            (one,) = [one for one in (await cluster_state(session, now_ms=START_MS)).stores if one.name == "a"]
            return one.blocked

        assert await blocked() == {"there is no other store": [0, 1]}
        await join(coordinator, "b")
        assert await blocked() == {}
        await put(coordinator, failed_path(1, "b"), b'{"format": 1, "store": "b", "container": 1, "reason": "full"}')
        assert await blocked() == {"no other store could open them": [1]}
        await put(coordinator, REQUESTS, encode_node(Requests(drained=("a", "b"))))
        assert await blocked() == {"all other stores are drained too": [0, 1]}
        await put(coordinator, "controllers/c", None)
        assert await blocked() == {"no controller is up to move them": [0, 1]}

    asyncio.run(main())


def test_who_waits_for_a_drain_is_told_why_it_does_not_proceed() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        await join(coordinator, "a")
        keeping = asyncio.ensure_future(keep_assignment(coordinator.open(), containers=COUNT, clock=LoopClock()))
        await put(coordinator, "controllers/c", b'{"format": 1}')
        await until(session, lambda found: len(found.owners) == COUNT)
        await request_drained(session, "a", drained=True)
        reasons: list[str] = []
        waiting = asyncio.ensure_future(
            until_drained(session, "a", lambda _: None, clock=LoopClock(), blocked=reasons.append)
        )
        await asyncio.sleep(1)
        assert reasons == ["there is no other store (container 0, 1, 2, 3)"]
        await join(coordinator, "b")
        await waiting
        assert len(reasons) == 1
        keeping.cancel()
        await asyncio.wait({keeping})

    run_virtually(main())
