"""Removals by segment beside holds and creations: what was checked stays true until the removal has ended."""

from __future__ import annotations

import asyncio
import random

import pytest
from controller_world import STREAM, config, cut_at, name_of, opened, seg, with_stream
from memory_segments import MemorySegments

from penstock.model.errors import RetentionHoldError
from penstock.model.names import StreamName

OTHER = StreamName("s", "u")
WHOLE = name_of(seg(0, 0))


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("target", [STREAM, "s"])
def test_a_hold_is_placed_once_removals_that_began_before_it_have_ended(target: StreamName | str) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            segments.write(WHOLE, b"x" * 10)
            async with controller.client_removal(WHOLE, 5), controller.client_removal(WHOLE, 6):
                placing = asyncio.ensure_future(controller.holds.add(target, owner="o", reason="r", hold_id="h"))
                await turns()
                assert not placing.done()
                # Those that begin now meet the hold, and do not keep it waiting.
                with pytest.raises(RetentionHoldError):
                    async with controller.client_removal(WHOLE, 5):
                        pytest.fail("it was let in")
                again = asyncio.ensure_future(controller.holds.add(target, owner="o", reason="r", hold_id="h"))
                await turns()
                assert not again.done()
                await segments.truncate(WHOLE, 6)
            assert (await placing).id == (await again).id == "h"

    asyncio.run(work())


def test_a_hold_does_not_wait_for_removals_elsewhere() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.streams.create(OTHER, config())
            async with (
                controller.client_removal(name_of(seg(0, 0), OTHER), 0),
                controller.client_removal("no/one", None),
            ):
                await controller.holds.add(STREAM, owner="o", reason="r")

    asyncio.run(work())


def test_a_stream_is_created_once_removals_of_its_segments_have_ended() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with opened(segments) as controller:
            await controller.scopes.create("s")
            async with controller.client_removal(WHOLE, None):
                creating = asyncio.ensure_future(controller.streams.create(STREAM, config()))
                await turns()
                assert not creating.done()
                assert WHOLE not in segments.segments
            await creating
            assert WHOLE in segments.segments

    asyncio.run(work())


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_a_hold_covers_goes_after_it_was_placed(seed: int) -> None:
    rng = random.Random(seed)

    async def pause() -> None:
        await turns(rng.randrange(12))

    async def work() -> None:
        segments = MemorySegments()
        held: list[int] = []
        removed: list[int] = []
        async with with_stream(segments) as controller:
            segments.write(WHOLE, b"x" * 100)

            async def remover(offset: int) -> None:
                await pause()
                try:
                    async with controller.client_removal(WHOLE, offset):
                        await pause()
                        assert not held or offset <= held[0]
                        await segments.truncate(WHOLE, offset)
                        removed.append(offset)
                except RetentionHoldError:
                    return

            async def holder() -> None:
                await pause()
                where = rng.choice((STREAM, "s"))
                cut = cut_at({seg(0, 0): 40}) if where == STREAM else None
                await controller.holds.add(where, owner="o", reason="r", cut=cut)
                held.append(0 if cut is None else 40)

            await asyncio.gather(holder(), *(remover(rng.randrange(1, 100)) for _ in range(8)))

    asyncio.run(work())
