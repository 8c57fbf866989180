"""What the log must keep for a container, whatever frames, commits and failures come between."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.model.errors import UnavailableError
from penstock.segmentstore.durability.checkpointer import Checkpointer


class ModelContainer:
    """A container of which a checkpointer sees nothing but addresses; a model of what is needed beside it.

    Frames are needed above the address that the newest rows in tier 2 are complete up to, and from the lowest one on that was
    not tiered when those rows were taken.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.frames: list[int] = []
        self.untiered: list[int] = []
        self.last = 0
        self.state = SimpleNamespace(applied_address=0, dirty={}, index=0, log=SimpleNamespace(epoch=1))
        self.committed: dict[int, tuple[int, int | None]] = {0: (0, None)}
        self.taken = (0, cast("int | None", None))
        self.catalogue = SimpleNamespace(sequence=0, safe=0, is_due=lambda: False, write=self.write)
        self.rows = self.state.rows = SimpleNamespace(changed=False, put=lambda key, value: None, commit=self.commit)
        reclaimer = SimpleNamespace(released_by_now=lambda: ({}, {}), committed=lambda released: None)
        parts = SimpleNamespace(telemetry=SimpleNamespace(add=lambda name: None))
        writers = SimpleNamespace(age_s=0, put_if_old=lambda: None)
        self.checkpointer = Checkpointer(
            cast("Any", self.state),
            cast("Any", parts),
            catalogue=cast("Any", self.catalogue),
            reclaimer=cast("Any", reclaimer),
            writers=cast("Any", writers),
            lowest_untiered=self.lowest_address,
        )
        self.checkpointer.recovered(0, None)

    def lowest_address(self) -> int | None:
        lowest = min(self.untiered, default=None)
        self.taken = self.state.applied_address, lowest
        return lowest

    def disturb(self) -> None:
        """What others and this container do at any moment."""
        for _ in range(self.random.choice((0, 0, 1, 3))):
            self.last += 1
            if self.random.random() < 0.6:
                self.checkpointer.framed(self.last)
                self.state.applied_address = self.last
                self.frames.append(self.last)
                self.untiered.append(self.last)
        if self.random.random() < 0.4:
            del self.untiered[: self.random.randrange(1 + len(self.untiered))]
        self.check()

    async def commit(self) -> None:
        taken = self.taken
        self.disturb()
        if self.random.random() < 0.3:
            self.rows.changed = True
            raise UnavailableError("disk fails")
        self.rows.changed = False
        self.catalogue.sequence += 1
        self.committed[self.catalogue.sequence] = taken
        self.disturb()

    async def write(self) -> None:
        self.disturb()
        if self.random.random() < 0.3:
            raise UnavailableError("tier 2 is away")
        self.catalogue.safe = self.random.randint(self.catalogue.safe, self.catalogue.sequence)
        self.disturb()

    def check(self) -> None:
        # What the checkpointer has not heard of yet it goes by later: never is less than the truth kept.
        upto, lowest = self.committed[self.catalogue.safe]
        needed = [address for address in self.frames if address > upto]
        needed += [] if lowest is None else [lowest]
        kept_from = self.checkpointer.needed_from()
        assert not needed or (kept_from is not None and kept_from <= min(needed))


@pytest.mark.parametrize("seed", range(60))
def test_no_frame_is_let_go_that_the_newest_rows_in_tier_2_do_not_hold(seed: int) -> None:
    world = ModelContainer(seed)

    async def run() -> None:
        for _ in range(60):
            world.disturb()
            try:
                await world.checkpointer._checkpoint(everything=world.random.random() < 0.7)
            except UnavailableError:
                continue
            world.check()

    asyncio.run(run())


def test_what_others_write_is_not_kept_for_a_container_at_rest() -> None:
    world = ModelContainer(0)
    world.random = cast(
        "Any", SimpleNamespace(choice=lambda given: 0, random=lambda: 0.9, randint=lambda low, high: high)
    )

    async def run() -> None:
        world.checkpointer.framed(7)
        world.state.applied_address = 7
        await world.checkpointer._checkpoint(everything=True)
        assert world.checkpointer.needed_from() is None
        world.checkpointer.framed(5000)
        world.state.applied_address = 5000
        assert world.checkpointer.needed_from() == 5000
        await world.checkpointer._checkpoint(everything=False)
        assert world.checkpointer.needed_from() == 5000, "tier 2 has not got those rows yet"
        await world.checkpointer._checkpoint(everything=True)
        assert world.checkpointer.needed_from() is None

    asyncio.run(run())
