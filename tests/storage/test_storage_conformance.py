"""Every implementation of the storage ports is held to the laws of its port."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from penstock.ports.chunks import ChunkStorage
from penstock.ports.durable_log import DurableLog
from penstock.ports.files import File, Files
from penstock.ports.keyvalue import KeyValueStore
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.files import Placement, RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog, MemoryLogState
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.chunks import ChunkLaws
from penstock.testing.conformance.durable_log import DurableLogLaws
from penstock.testing.conformance.faults import FaultyFiles
from penstock.testing.conformance.files import FilesLaws
from penstock.testing.conformance.keyvalue import KeyValueLaws
from penstock.testing.simulation.machine.files import SimDisk, SimFiles

PLACEMENTS: tuple[Placement, ...] = ("auto", "inline", "thread")


class MemoryLogLaws(DurableLogLaws):
    frame_max = 20_000

    def __init__(self) -> None:
        self.state = MemoryLogState()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[DurableLog]:
        log = MemoryLog(self.state, max_frame_bytes=self.frame_max)
        try:
            yield log
        finally:
            await log.close()


class LocalLogLaws(DurableLogLaws):
    frame_max = 20_000

    def __init__(self, files: Files) -> None:
        self.files = files

    def open(self) -> AbstractAsyncContextManager[DurableLog]:
        return open_local_log(
            self.files, segment_bytes=32_768, budget_bytes=64 * 32_768, max_frame_bytes=self.frame_max
        )


class MemoryKeyValueLaws(KeyValueLaws):
    def __init__(self) -> None:
        self.store = MemoryKeyValue()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[KeyValueStore]:
        yield self.store


class SqliteKeyValueLaws(KeyValueLaws):
    def __init__(self, path: Path, offload: ThreadOffload) -> None:
        self.path, self.offload = path, offload

    @asynccontextmanager
    async def open(self) -> AsyncIterator[KeyValueStore]:
        store = await SqliteKeyValue.open(self.path / "store.db", self.offload)
        try:
            yield store
        finally:
            await store.close()


class MemoryChunkLaws(ChunkLaws):
    def __init__(self) -> None:
        self.chunks = MemoryChunks()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ChunkStorage]:
        yield self.chunks


class FileChunkLaws(ChunkLaws):
    def __init__(self, files: Files) -> None:
        self.files = files

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ChunkStorage]:
        chunks = FileChunks(self.files, handles=3)
        try:
            yield chunks
        finally:
            await chunks.close()


class RealFilesLaws(FilesLaws):
    def __init__(self, files: Files) -> None:
        self.files = files

    async def make(self) -> Files:
        await self.files.make_dir(".")
        return self.files


class DirectFiles(FaultyFiles):
    """Every file is opened for direct writes."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner, lambda operation, path: None)

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        return await super().open(path, create=create, direct=True)


@asynccontextmanager
async def with_threads(make: Callable[[ThreadOffload], object]) -> AsyncIterator[object]:
    """A suite that uses real threads, which end with it."""
    async with ThreadOffload() as offload:
        yield make(offload)


def simulated() -> SimFiles:
    disk = SimDisk(random.Random(1))
    disk.latency_s = 1e-6
    return SimFiles(disk)


@pytest.mark.parametrize("law", laws(DurableLogLaws))
def test_memory_log(law: str) -> None:
    run_conformance(MemoryLogLaws, law=law)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("law", laws(DurableLogLaws))
def test_local_log(law: str, placement: Placement, tmp_path: Path) -> None:
    run_conformance(
        lambda: with_threads(lambda offload: LocalLogLaws(RealFiles(tmp_path, offload, placement=placement))), law=law
    )


@pytest.mark.parametrize("law", laws(DurableLogLaws))
def test_local_log_on_simulated_files(law: str) -> None:
    run_conformance(lambda: LocalLogLaws(simulated()), law=law)


@pytest.mark.parametrize("law", laws(KeyValueLaws))
def test_memory_keyvalue(law: str) -> None:
    run_conformance(MemoryKeyValueLaws, law=law)


@pytest.mark.parametrize("law", laws(KeyValueLaws))
def test_sqlite_keyvalue(law: str, tmp_path: Path) -> None:
    run_conformance(lambda: with_threads(lambda offload: SqliteKeyValueLaws(tmp_path, offload)), law=law)


@pytest.mark.parametrize("law", laws(ChunkLaws))
def test_memory_chunks(law: str) -> None:
    run_conformance(MemoryChunkLaws, law=law)


@pytest.mark.parametrize("law", laws(ChunkLaws))
def test_file_chunks(law: str, tmp_path: Path) -> None:
    run_conformance(lambda: with_threads(lambda offload: FileChunkLaws(RealFiles(tmp_path, offload))), law=law)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("law", laws(FilesLaws))
def test_real_files(law: str, placement: Placement, tmp_path: Path) -> None:
    run_conformance(
        lambda: with_threads(lambda offload: RealFilesLaws(RealFiles(tmp_path / "root", offload, placement=placement))),
        law=law,
    )


@pytest.mark.parametrize("law", laws(FilesLaws))
def test_real_files_written_directly(law: str, tmp_path: Path) -> None:
    run_conformance(
        lambda: with_threads(lambda offload: RealFilesLaws(DirectFiles(RealFiles(tmp_path / "root", offload)))), law=law
    )
