"""A new directory is durable with all that had to be made above it: each name lies in the directory above it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories that were synced."""
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_all_parents_of_a_new_data_directory_are_synced(tmp_path: Path, synced: list[Path]) -> None:
    DataDirectory.open(tmp_path / "one" / "two" / "data").close()
    for made in (tmp_path / "one", tmp_path / "one" / "two", tmp_path / "one" / "two" / "data"):
        assert made.parent in synced


def test_all_parents_of_a_new_root_of_files_are_synced(tmp_path: Path, synced: list[Path]) -> None:
    async def main() -> None:
        offload = ThreadOffload()
        try:
            await RealFiles(tmp_path / "one" / "two", offload).make_dir("chunks")
        finally:
            await offload.close()

    asyncio.run(main())
    for made in (tmp_path / "one", tmp_path / "one" / "two"):
        assert made.parent in synced


def test_an_existing_directory_is_not_changed(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "data").mkdir()
    DataDirectory.open(tmp_path / "data").close()
    assert tmp_path not in synced
