"""An erasure is decided only if its receipt fits into the record."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import STREAM, name_of, seg, with_stream
from lossy_segments import Lossy

from penstock.model.errors import InvalidArgumentError


@pytest.mark.parametrize(("segments_asked", "is_legal"), [(100, True), (10_000, False)])
def test_an_erasure_whose_receipt_does_not_fit_is_refused(segments_asked: int, is_legal: bool) -> None:
    async def work() -> None:
        segments = Lossy()
        async with with_stream(segments, 1) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 100)
            asked = {"erasure": "e1", "who": "a", "why": "b", "looked_for": {}}
            positions = {seg(0, number): [0] for number in range(segments_asked)}
            erase = controller.erasures.erase(STREAM, asked, positions)
            if not is_legal:
                with pytest.raises(InvalidArgumentError):
                    await erase
                assert await controller.erasures.list() == []
                return
            await erase
            async with asyncio.timeout(10):
                while (await controller.erasures.get("e1")).state != "done":
                    await asyncio.sleep(0)

    asyncio.run(work())
