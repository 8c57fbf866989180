"""Bugs planted in the product, each a patch of one method. A simulation that misses one proves nothing.

Each is what somebody could write in good faith; the comment says what it breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from penstock.codec.store.chunk_index import SUFFIX
from penstock.controller.streams import epochs, workflows
from penstock.controller.streams import updates as streams
from penstock.controller.transactions import commits
from penstock.model.errors import SegmentNotFoundError
from penstock.segmentstore import container
from penstock.segmentstore.calls import appends, tables
from penstock.segmentstore.calls import segments as segment_calls
from penstock.segmentstore.tiering import catalogue, leases
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.log import scan as log_scan
from penstock.storage.log.local_log import LocalLog


class _Unsynced:
    """A file whose sync does not, or swallows its failure."""

    def __init__(self, file: Any, *, swallow: bool) -> None:
        self._file = file
        self._swallow = swallow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def sync(self) -> None:
        if self._swallow:
            try:
                await self._file.sync()
            except OSError:
                return


def _with_unsynced_log(*, swallow: bool) -> Any:
    original = LocalLog._commit_some

    async def commit_some(self: LocalLog, first: Any) -> None:
        active = self._active
        if active is not None and not isinstance(active.file, _Unsynced):
            active.file = _Unsynced(active.file, swallow=swallow)
        await original(self, first)

    return patch.object(LocalLog, "_commit_some", commit_some)


def acknowledge_before_sync() -> Any:
    """The log answers once its bytes are written: a power loss takes what was acknowledged."""
    return _with_unsynced_log(swallow=False)


def sync_failure_is_ignored() -> Any:
    """As if a failed sync could be tried again later: the kernel has forgotten the pages."""
    return _with_unsynced_log(swallow=True)


def dedupe_from_pending() -> Any:
    """A writer learns what is queued, not what is durable."""

    async def setup_append(owner: Any, name: str, writer: Any) -> int:
        segment = await segment_calls.find(owner, name)
        found = await owner.state.segments.attribute(segment, writer.int)
        return int(found.pending)

    return patch.object(segment_calls, "setup_append", setup_append)


def no_check_of_frames() -> Any:
    """A torn frame at the end of the log is replayed."""

    def frame_payload(header: Any, frame: bytes) -> bytes:
        return bytes(frame[-header.size_bytes :][log_scan.FRAME_HEADER.size :][: header.payload_bytes])

    return patch.object(log_scan, "frame_payload", frame_payload)


def log_truncated_too_early() -> Any:
    """The log forgets what is committed as metadata, though its bytes are not tiered."""

    def log_free_upto(self: container.Container) -> int:
        return self.state.applied_address

    return patch.object(container.Container, "log_free_upto", log_free_upto)


def _with_unsynced_chunks(skipped: Callable[[str], bool]) -> Any:
    original = FileChunks.sync

    async def sync(self: FileChunks, name: str) -> None:
        if not skipped(name):
            await original(self, name)

    return patch.object(FileChunks, "sync", sync)


def chunk_named_before_sync() -> Any:
    """Metadata names a block, and the log forgets it, before the block is durable."""
    return _with_unsynced_chunks(lambda name: not name.endswith(SUFFIX))


def sidecar_is_not_synced() -> Any:
    """Who reads the files alone finds blocks that nothing vouches for."""
    return _with_unsynced_chunks(lambda name: name.endswith(SUFFIX))


def chunk_name_is_not_synced() -> Any:
    """The file is synced, the directory is not: the name may be gone after a power loss."""
    original = FileChunks.sync

    async def sync(self: FileChunks, name: str) -> None:
        self._unnamed.discard(name)
        await original(self, name)

    return patch.object(FileChunks, "sync", sync)


@contextmanager
def seal_before_epoch() -> Iterator[None]:
    """A scale seals the old segments before the epoch that names their successors is recorded."""
    original = epochs.finish_scale

    async def finish_scale(ctx: Any, view: Any) -> Any:
        before = await epochs.load_epoch(ctx, view.name, view.record.work.base_epoch)
        after = await epochs.load_epoch(ctx, view.name, view.record.work.base_epoch + 1)
        kept = {item.segment for item in after.segments}
        await epochs.seal_segments(
            ctx, view.name, [item.segment for item in before.segments if item.segment not in kept]
        )
        return await original(ctx, view)

    with patch.object(streams, "finish_scale", finish_scale), patch.object(workflows, "finish_scale", finish_scale):
        yield


def committed_before_merged() -> Any:
    """A transaction is remembered as committed before its segments are merged: a crash between tears it."""
    original = commits._merge

    async def merge(ctx: Any, name: Any, targets: Any, txns: Any) -> None:
        await commits._remember(ctx, name, txns, commits.TransactionState.COMMITTED)
        await original(ctx, name, targets, txns)

    return patch.object(commits, "_merge", merge)


def leases_are_ignored() -> Any:
    """Truncation deletes chunks that somebody still reads."""
    return patch.object(leases.Leases, "segments", lambda self: {})


def merge_is_not_idempotent() -> Any:
    """A repeated merge says that there is no such segment."""

    async def again(owner: Any, target: Any, source: str, *, known: bool) -> int:
        raise SegmentNotFoundError("no such segment", segment=source)

    return patch.object(segment_calls, "_merge_again", again)


def appends_are_not_deduplicated() -> Any:
    """What the writer says was stored last is believed."""
    original = appends.append_refusal

    def append_refusal(name: str, **facts: Any) -> Any:
        return original(name, **(facts | {"stored": facts["previous"]}))

    return patch.object(appends, "append_refusal", append_refusal)


def catalogue_forgets_removals() -> Any:
    """Tier 2 gets what was written, and not what was deleted."""
    original = catalogue.codec.encode_batch
    return patch.object(catalogue.codec, "encode_batch", lambda batch: original(replace(batch, deletes=())))


def versions_ignore_what_is_queued() -> Any:
    """Two changes of one key are decided against the same version."""
    original = tables._foresee

    def foresee(segment: Any, table: Any, operation: Any) -> None:
        original(segment, table, operation)
        table.next_versions.clear()

    return patch.object(tables, "_foresee", foresee)


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        acknowledge_before_sync,
        sync_failure_is_ignored,
        dedupe_from_pending,
        no_check_of_frames,
        log_truncated_too_early,
        chunk_named_before_sync,
        sidecar_is_not_synced,
        chunk_name_is_not_synced,
        seal_before_epoch,
        committed_before_merged,
        leases_are_ignored,
        merge_is_not_idempotent,
        appends_are_not_deduplicated,
        versions_ignore_what_is_queued,
        catalogue_forgets_removals,
    )
}
