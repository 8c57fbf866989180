"""A tier 2 that hangs, is slow, or refuses: appends go on into the log up to its budget, then writers wait and get the reason;
reads and truncation go on; all drains by itself afterwards."""

import asyncio
import contextlib
import errno
import logging
from dataclasses import replace
from functools import partial

import pytest

import penstock
from penstock.app import segments, standalone
from penstock.app.memory_watch import MemoryWatch
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.app.tier2 import open_tier
from penstock.model.errors import DeadlineExceededError

EVENT = bytes(65536)


class FaultyChunks:
    """Chunk storage whose writes wait for ``flows``, or fail while ``failing``."""

    def __init__(self, inner):
        self._inner = inner
        self.flows = asyncio.Event()
        self.failing = False

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def append(self, name, offset, parts):
        if self.failing:
            raise OSError(errno.EIO, "tier 2 is broken")
        await self.flows.wait()
        await self._inner.append(name, offset, parts)


def run(tmp_path, monkeypatch, scene):
    made = []

    @contextlib.asynccontextmanager
    async def faulty(*given, **named):
        async with open_tier(*given, **named) as tier:
            made.append(FaultyChunks(tier.chunks))
            yield replace(tier, chunks=made[0])

    monkeypatch.setattr(segments, "open_tier", faulty)
    # The process of the tests holds more than a server's, for reasons of its own.
    monkeypatch.setattr(standalone, "MemoryWatch", partial(MemoryWatch, resident_bytes=lambda: None))

    async def whole():
        settings = StandaloneSettings(
            store=EmbeddedSettings(data=tmp_path / "store", memory_bytes=96 << 20),
            controller_port=0,
            store_port=0,
            http_port=0,
        )
        async with asyncio.timeout(60), open_standalone(settings) as server:
            address = f"127.0.0.1:{server.controller.port}"
            async with penstock.connect_async(address) as store:
                stream = await store.create_stream("s/t", segments=1, create_scope=True)
                await scene(stream, made[0], server.runtime)

    asyncio.run(whole())


async def write(stream, count, *, deadline_s):
    """Write until the deadline refuses; how many were acknowledged, and the refusal."""
    written = 0
    try:
        async with stream.writer(deadline_s=deadline_s) as writer:
            for _ in range(count):
                await writer.write(EVENT, key="k")
                await writer.flush()
                written += 1
    except DeadlineExceededError as error:
        return written, error
    return written, None


async def count_events(stream):
    async with stream.reader(until_tail=True) as reader:
        return len([event async for event in reader])


@pytest.mark.parametrize("fault", ["hangs", "fails"])
def test_writers_wait_for_a_stuck_tier_2_while_reads_and_truncation_go_on(tmp_path, monkeypatch, caplog, fault):
    async def scene(stream, chunks, runtime):
        chunks.failing = fault == "fails"
        limit = runtime.segments.settings.max_unflushed_bytes
        written, refused = await write(stream, 400, deadline_s=1.5)
        assert limit // len(EVENT) - 2 <= written <= limit // len(EVENT)
        assert refused is not None
        assert "overloaded" in refused.fields["hint"]
        waits = [record for record in caplog.records if "appends wait: tier 2" in record.message]
        assert waits[0].resource == "unflushed_bytes"
        assert len(waits) <= 2

        # The refused one may be durable as well: whether it is was not known when its deadline passed.
        assert written <= await count_events(stream) <= written + 1
        await stream.truncate(await stream.tail())
        # What is truncated needs no tier 2: there is room again.
        assert await write(stream, 10, deadline_s=20) == (10, None)

        chunks.failing = False
        chunks.flows.set()
        assert (await write(stream, 200, deadline_s=30))[1] is None
        await runtime.segments.flush()
        assert 210 <= await count_events(stream) <= 211

    caplog.set_level(logging.WARNING)
    run(tmp_path, monkeypatch, scene)
