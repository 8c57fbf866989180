"""Deleting a scope or a stream leaves no row of it, but those that docs/formats/metadata.md names."""

from __future__ import annotations

import asyncio

from controller_world import opened, table_keys
from memory_segments import MemorySegments

from penstock.codec.control.policies import HoldPlaceRecord
from penstock.controller import keys
from penstock.controller.metadata import overwrite
from penstock.testing.fakes import FakeClock


def test_a_scope_takes_the_ids_of_its_ended_holds_with_it() -> None:
    """An interrupted release leaves the ended hold for the next sweep. The scope may be deleted before that sweep."""

    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            await controller.scopes.create("s")
            await controller.scopes.create("other")
            await controller.holds.add("s", owner="o", reason="r", hold_id="h", until_ms=clock.ms + 1000)
            await controller.holds.add("other", owner="o", reason="r", hold_id="theirs")
            clock.ms += 2000
            await controller.scopes.delete("s")
            assert [key for key in table_keys(segments) if key.startswith("hold")] == [
                "hold-id/theirs",
                "hold/other/theirs",
            ]
            # The id is free again, in whatever scope.
            assert (await controller.holds.add("other", owner="o", reason="r", hold_id="h")).id == "h"

    asyncio.run(work())


def test_an_id_that_an_earlier_version_left_is_free() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            await controller.scopes.create("s")
            await controller._ctx.metadata.put(overwrite(keys.hold_place("h"), HoldPlaceRecord(scope="gone")))
            await controller.holds.add("s", owner="o", reason="r", hold_id="h")
            await controller.holds.release("h", owner="o")
            assert not [key for key in table_keys(segments) if key.startswith("hold")]

    asyncio.run(work())


def test_an_ended_hold_does_not_take_the_id_of_a_hold_of_another_scope_with_it() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            for scope in ("s", "other"):
                await controller.scopes.create(scope)
            await controller.holds.add("s", owner="o", reason="r", hold_id="h", until_ms=clock.ms + 1000)
            clock.ms += 2000
            entries = segments.tables[keys.TABLE].entries
            left = entries[keys.hold("s", "h")]
            await controller.sweep()
            await controller.holds.add("other", owner="o", reason="r", hold_id="h")
            entries[keys.hold("s", "h")] = left
            await controller.sweep()
            entries[keys.hold("s", "h")] = left
            await controller.scopes.delete("s")
            assert [key for key in table_keys(segments) if key.startswith("hold")] == ["hold-id/h", "hold/other/h"]
            await controller.holds.release("h", owner="o")

    asyncio.run(work())
