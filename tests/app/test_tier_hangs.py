"""Tier 2 in a directory that hangs, such as a network file system whose server is away."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from penstock.app import tier2
from penstock.app.settings import EmbeddedSettings
from penstock.storage.chunks.shared_chunks import SharedChunks
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.testing import SeededRng


def test_a_directory_that_hangs_stops_neither_the_log_nor_the_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier2, "_HANG_S", 0.05)
    back = threading.Event()
    for name in ("data", "tier"):
        (tmp_path / name).mkdir()
    settings = EmbeddedSettings(data=tmp_path / "data", tier2=str(tmp_path / "tier"))

    async def scenario() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(settings.data, offload)
            async with tier2.open_tier(settings, files, offload=offload, rng=SeededRng()) as tier:
                assert isinstance(tier.chunks, SharedChunks)
                await tier.chunks.append("0/1-1-1", 0, [b"data"])
                monkeypatch.setattr("os.stat", lambda *_, **__: back.wait())
                monkeypatch.setattr("os.open", lambda *_, **__: back.wait())
                hanging = [asyncio.ensure_future(tier.chunks.list()) for _ in range(100)]
                await asyncio.sleep(0)
                assert await offload.run(lambda: 7) == 7, "threads for the log are free"
            for one in hanging:
                one.cancel()
            monkeypatch.undo()
            back.set()

    async def in_time() -> None:
        async with asyncio.timeout(20):
            await scenario()

    try:
        asyncio.run(in_time())
    finally:
        back.set()
