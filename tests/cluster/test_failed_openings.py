"""A store that could not open a container is not given it again at once, and not excluded forever."""

from __future__ import annotations

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.app.cluster.registration import FailedOpenings
from penstock.codec.store.cluster_nodes import failed_path
from penstock.model.errors import UnavailableError
from penstock.storage.memory.memory_coordination import MemoryCoordination, MemoryCoordinator
from tests.cluster.virtual_time import run_virtually

AGAIN_S, AGAIN_MAX_S = 60.0, 300.0


class Unreliable(MemoryCoordination):
    """A session that loses requests while ``away``, and the answers to them while ``mute``."""

    away = mute = False

    async def multi(self, changes):
        if self.away:
            raise UnavailableError("planted: no answer")
        versions = await super().multi(changes)
        if self.mute:
            raise UnavailableError("planted: no answer")
        return versions


def opened() -> tuple[MemoryCoordinator, Unreliable, FailedOpenings]:
    coordinator = MemoryCoordinator()
    session = Unreliable(coordinator, "s")
    return coordinator, session, FailedOpenings(session, again_s=AGAIN_S, again_max_s=AGAIN_MAX_S)


def test_a_store_is_asked_again_after_a_time_that_doubles_until_it_succeeds() -> None:
    coordinator, _, failures = opened()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        forgetting = asyncio.ensure_future(failures.forget())

        async def excluded_s() -> float:
            since_s = loop.time()
            await failures.add(3, "a", "full")
            while failed_path(3, "a") in coordinator.tree:
                await asyncio.sleep(1)
            return round(loop.time() - since_s, -1)

        assert [await excluded_s() for _ in range(5)] == [60, 120, 240, 300, 300]
        await failures.add(3, "a", "full")
        await failures.clear(3, "a")
        assert failed_path(3, "a") not in coordinator.tree
        assert await excluded_s() == 60
        forgetting.cancel()

    run_virtually(main())


def test_a_failure_that_is_lifted_comes_back_for_longer() -> None:
    coordinator, _, failures = opened()

    async def main() -> None:
        await failures.add(3, "a", "away")
        assert failures.on_trial() == []
        await asyncio.sleep(AGAIN_S / 40)
        assert failures.on_trial() == [(3, "a")]
        await failures.lift(3, "a")
        assert failed_path(3, "a") not in coordinator.tree
        assert failures.on_trial() == []
        await failures.add(3, "a", "away")
        await asyncio.sleep(AGAIN_S / 40)
        assert failures.on_trial() == []
        await asyncio.sleep(AGAIN_S / 40)
        assert failures.on_trial() == [(3, "a")]

    run_virtually(main())


steps = st.lists(
    st.tuples(st.sampled_from(["add", "clear", "away", "mute", "back", "wait"]), st.integers(0, 1), st.floats(0, 100)),
    max_size=20,
)


@given(steps=steps)
@example(steps=[("add", 0, 0), ("away", 0, 0), ("clear", 0, 0), ("add", 0, 0)])
def test_no_failure_stays_registered_whatever_the_coordinator_loses(steps) -> None:
    coordinator, session, failures = opened()

    async def main() -> None:
        forgetting = asyncio.ensure_future(failures.forget())
        for verb, number, time_s in steps:
            if verb == "add":
                await failures.add(number, "a", "full")
            elif verb == "clear":
                await failures.clear(number, "a")
            elif verb == "wait":
                await asyncio.sleep(time_s)
            else:
                session.away, session.mute = verb == "away", verb == "mute"
        session.away = session.mute = False
        await asyncio.sleep(AGAIN_MAX_S + 10)
        assert not any(path.startswith("failed/") for path in coordinator.tree)
        assert not forgetting.done()
        forgetting.cancel()

    run_virtually(main())
