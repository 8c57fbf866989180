"""More planted bugs: each mirrors one that stores of this kind have had, or that was found here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from penstock.segmentstore.calls import segments as segment_calls
from penstock.segmentstore.container import Container
from penstock.segmentstore.durability import recovery
from penstock.segmentstore.durability.checkpointer import Checkpointer
from penstock.segmentstore.tiering.leases import Leases
from penstock.storage.log.local_log import LocalLog
from penstock.storage.log.pool import FilePool, Spare


class _Lazy:
    """A file of which only every other sync is one: as if a commit could be carried by the next."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._turn = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def sync(self) -> None:
        self._turn += 1
        if self._turn % 2 == 0:
            await self._file.sync()


def every_other_group_is_synced() -> Any:
    """A group is acknowledged on the promise that the next one will be synced."""
    original = LocalLog._commit_some

    async def commit_some(self: LocalLog, first: Any) -> None:
        active = self._active
        if active is not None and active.header_written and not isinstance(active.file, _Lazy):
            active.file = _Lazy(active.file)
        await original(self, first)

    return patch.object(LocalLog, "_commit_some", commit_some)


class _NamesUnsynced:
    """Files whose directory is never synced."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def sync_dir(self, directory: str) -> None:
        """Nothing."""


def log_names_are_not_synced() -> Any:
    """A new log file is filled, synced and used; after a power loss nobody knows its name."""
    original = FilePool._prepare

    async def prepare(self: FilePool) -> None:
        files = self._files
        self._files = _NamesUnsynced(files)
        try:
            await original(self)
        finally:
            self._files = files

    return patch.object(FilePool, "_prepare", prepare)


def free_marks_are_believed() -> Any:
    """A file that says it is free is used again, though its mark may be in the page cache alone."""
    original = FilePool.adopt

    async def adopt(self: FilePool, *, used: Any, free: Any, torn: Any) -> None:
        kept = [item for item in free if item.freed and not item.damaged and item.size_bytes == self._file_bytes]
        await original(self, used=used, free=[item for item in free if item not in kept], torn=torn)
        for item in kept:
            self._spares.append(Spare(item.path, await self._files.open(item.path)))
            self._total += 1

    return patch.object(FilePool, "adopt", adopt)


def leases_end_with_the_process() -> Any:
    """A lease is kept in memory: after a restart chunks are deleted beneath their reader."""
    original = Leases.recover

    async def recover(self: Leases) -> Any:
        damaged = await original(self)
        self._held.clear()
        self._old.clear()
        return damaged

    return patch.object(Leases, "recover", recover)


def answers_come_from_memory() -> Any:
    """What is asked again is answered from what is queued, before that is durable."""

    async def agree(container: Any, segment: Any, result: object) -> Any:
        return result

    return patch.object(segment_calls, "agree", agree)


def log_forgets_what_no_row_names() -> Any:
    """Bytes are tiered, so the log forgets them; the rows that name their blocks are not committed yet."""

    def log_free_upto(self: Container) -> int | None:
        lowest = self.tiering.lowest_address()
        return self.state.applied_address if lowest is None else lowest - 1

    return patch.object(Container, "log_free_upto", log_free_upto)


def writers_are_not_checkpointed() -> Any:
    """A checkpoint holds segments, not what their writers have sent: after it, a repeated append is stored again."""
    original = Checkpointer._write_rows

    def write_rows(self: Checkpointer, upto: int) -> None:
        for segment in self._state.dirty:
            segment.dirty_attributes.clear()
        original(self, upto)

    return patch.object(Checkpointer, "_write_rows", write_rows)


def truncation_is_not_logged() -> Any:
    """A truncation changes the segment in memory, and is durable with the next checkpoint."""

    async def truncate(owner: Any, name: str, offset: int, *, keep: bool = False) -> None:
        found = (await segment_calls.find(owner, name)).require_plain()
        if found.start_offset < offset <= found.length:
            found.next_start = found.next_kept = offset
            owner.steps.truncate(found, offset)

    return patch.object(segment_calls, "truncate", truncate)


async def _assume_complete(self: Any, segment: Any) -> None:
    """The check that would refuse to serve is written by the same hand."""


@contextmanager
def merged_bytes_are_taken_for_tiered() -> Iterator[None]:
    """Recovery leaves out what a merge has moved: half of a transaction may be in the log alone."""
    original = recovery.Recovery._collect

    async def collect(self: Any, operation: Any, time_ms: int) -> None:
        if isinstance(operation, recovery.codec.MergeOperation):
            self._pieces.pop(operation.source, None)
            return
        await original(self, operation, time_ms)

    with (
        patch.object(recovery.Recovery, "_collect", collect),
        patch.object(recovery.Recovery, "_check_complete", _assume_complete),
    ):
        yield


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        every_other_group_is_synced,
        log_names_are_not_synced,
        free_marks_are_believed,
        leases_end_with_the_process,
        answers_come_from_memory,
        log_forgets_what_no_row_names,
        writers_are_not_checkpointed,
        truncation_is_not_logged,
        merged_bytes_are_taken_for_tiered,
    )
}
