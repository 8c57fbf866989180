"""A tier 2 that is full takes nothing from readers: the store starts, serves, truncates, and makes its writers wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from integrity_world import WRITER, content

from penstock.app import tier2 as module
from penstock.app.embedded import open_runtime
from penstock.app.settings import EmbeddedSettings
from penstock.client.store import AsyncStore
from penstock.model.cuts import StreamCut
from penstock.model.errors import StorageFullError, ThrottledError
from penstock.model.names import StreamName
from penstock.ports.data.segments import Append
from penstock.ports.files import File, FileWrite
from penstock.storage.machine.files import RealFiles

SEGMENT = "s/t/0.#epoch.0"
BLOCK = b"0123456789abcdef" * 4096


class FullFiles(RealFiles):
    """Files of a disk that can be full: then no file is created and none grows."""

    full = False

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        if self.full and create:
            raise StorageFullError("disk is full", file=path)
        return await super().open(path, create=create, direct=direct)

    async def write_together(self, writes: Sequence[FileWrite]) -> Sequence[Exception | None]:
        if self.full:
            return [StorageFullError("disk is full", file=write.path) for write in writes]
        return await super().write_together(writes)


async def append(runtime, count: int) -> int:
    """How many appends were acknowledged before the store asked to wait."""
    for number in range(count):
        last = await runtime.segments.setup_append(SEGMENT, WRITER)
        try:
            async with asyncio.timeout(5):
                await runtime.segments.append(
                    Append(
                        segment=SEGMENT,
                        writer=WRITER,
                        data=BLOCK,
                        event_number=max(last, -1) + 1,
                        event_count=1,
                        previous=last,
                    )
                )
        except (StorageFullError, ThrottledError):
            return number
    return count


def test_a_store_starts_on_a_full_tier_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RealFiles", FullFiles)
    tier2 = tmp_path / "tier2"
    tier2.mkdir()
    settings = EmbeddedSettings(
        data=tmp_path / "data", tier2=str(tier2), memory_bytes=64 << 20, log_bytes=80 << 20, retention_cycle_ms=60_000
    )

    async def main() -> None:
        async with open_runtime(settings) as runtime:
            store = AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)
            await store.create_stream("s/t", segments=1, create_scope=True)
            assert await append(runtime, 8) == 8
            await runtime.segments.flush()
        FullFiles.full = True
        for _ in range(3):
            async with open_runtime(settings) as runtime:
                info = await runtime.segments.info(SEGMENT)
                assert await content(runtime, SEGMENT, info.start_offset, info.length)
        async with open_runtime(settings) as runtime:
            taken = await append(runtime, 1000)
            assert taken < 1000
            reported = runtime.not_ready()
            assert set(reported) == {"appends", "tiering"}
            assert "disk is full" in reported["appends"]
            stream = StreamName("s", "t")
            await runtime.controller.streams.truncate(stream, StreamCut(stream, {0: 4 * len(BLOCK)}))
            assert (await runtime.segments.info(SEGMENT)).start_offset == 4 * len(BLOCK)
        FullFiles.full = False
        async with open_runtime(settings) as runtime:
            await runtime.segments.flush()
            info = await runtime.segments.info(SEGMENT)
            assert await content(runtime, SEGMENT, info.start_offset, info.length) == BLOCK * (4 + taken)
            assert await append(runtime, 3) == 3
            assert runtime.not_ready() == {}

    try:
        asyncio.run(main())
    finally:
        FullFiles.full = False
