"""Spare files of a local log: prepared ahead of need, and returned after truncation."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from penstock.codec.store.wal import HEADER_AT, encode_free_mark
from penstock.model.errors import ContainerOfflineError, StorageFullError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import File, Files
from penstock.storage.log.scan import LOG_SUFFIX, LogFile

log = logging.getLogger(__name__)

SPARES_KEPT = 2
"""Not given to a common roll. Recovery writes the tail of the log anew, and must be able to on a full disk, more than once
where it is killed again; frames that lead to space being given back may take one of the two."""

SPARES_AHEAD = 2 + SPARES_KEPT
"""One for the next roll, and one more, so that a roll still works once on a disk that has become full."""

_STEP_BYTES = 1 << 20
_STEPS_PER_SYNC = 4  # steps of writing between two syncs
_ZEROS = bytes(_STEP_BYTES)


@dataclass(frozen=True, slots=True)
class Spare:
    """A file full of zeros, or with bytes of an earlier use that is durably marked as ended."""

    path: str
    file: File
    clean: bool = False
    """It is known to hold nothing of an earlier use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A file whose frames are no longer needed; ``incarnation`` is the use that ends."""

    path: str
    incarnation: int


class FilePool:
    """Keeps spare files ready, with its own task from ``start`` to ``stop``.

    Retired files are marked free strictly in order, each durably before the next, so that a crash leaves a log without
    gaps. ``may_write`` is awaited before each change, and raises once the log is fenced: then the files belong to a
    later opening. ``on_failure`` is called once, with the first disk error; a full disk does not count as one.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        file_bytes: int,
        files_max: int,
        may_write: Callable[[], Awaitable[None]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self._file_bytes = file_bytes
        self._files_max = files_max
        self._may_write = may_write
        self._on_failure = on_failure
        self._spares: deque[Spare] = deque()
        self._retired: deque[Retired] = deque()
        self._total = 0
        self._slot = 0
        self._leftover: list[str] = []
        self._unwanted: list[str] = []
        self._serving = False
        self._full: StorageFullError | None = None
        self._hopeless: StorageFullError | None = None
        self._told_full = False
        self._failure: BaseException | None = None
        self._stopping = False
        self._wiping = False
        self._change = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def adopt(self, *, used: Sequence[str], free: Sequence[LogFile], torn: Sequence[LogFile]) -> None:
        """Take over what recovery found: count the used, keep files never used and of the right size, remove the others.

        Files of another size without a header are removed only by ``serve``: an empty file may be the rest of a
        truncated one, and replay may still fail because of what is missing.

        A file marked free is removed too, by the task, before it marks another. If the writer of the mark died before
        the sync, or the sync failed, the mark may be only in the page cache. A power loss would then revive the old
        use, over frames of the next one or behind a gap. Writing the mark again could tear a durable one. There may be
        a whole budget of such files, and a start would wait 5 ms for each.
        """
        names = [*used, *(item.path for item in (*free, *torn))]
        self._slot = max((_slot_of(name) for name in names), default=0)
        self._total = len(used)
        removed = False
        for item in (*free, *torn):
            if item.damaged:
                await self._files.unlink(item.path)
                removed = True
            elif item.freed:
                self._leftover.append(item.path)
            elif item.size_bytes != self._file_bytes:
                self._unwanted.append(item.path)
            else:
                self._spares.append(Spare(item.path, await self._files.open(item.path)))
                self._total += 1
        if removed:
            await self._files.sync_dir(self._directory)

    async def _remove_one(self, paths: list[str]) -> None:
        await self._files.unlink(paths[0])
        await self._files.sync_dir(self._directory)
        # Only now: who waits for the removal needs it to be durable.
        del paths[0]

    def serve(self) -> None:
        """The log is in use: replay has accepted what recovery found."""
        if not self._serving:
            self._serving = True
            self._changed()

    def refuse_waits(self, error: StorageFullError | None) -> None:
        """While an error is set, ``take`` raises it instead of waiting for truncation."""
        self._hopeless = error
        self._changed()

    def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    def end_waits(self) -> None:
        """Prepare no more files, and refuse waiting callers; existing spares can still be taken."""
        self._stopping = True
        self._changed()

    async def stop(self) -> None:
        """End the task after its current step, and close the spares."""
        self.end_waits()
        if self._task is not None:
            # ``on_failure`` has already received its failure, if any.
            await asyncio.gather(self._task, return_exceptions=True)
        while self._spares:
            await self._spares.popleft().file.close()

    async def take(self, *, vital: bool = False) -> Spare:
        """Take a spare file beyond the kept ones. While the budget is used up, waits until truncation retires a file.

        ``vital`` may take a kept one. Raises: StorageFullError (the disk has no room for a new file, or for what must
        leave the log first), ContainerOfflineError (stopped or failed).
        """
        kept = SPARES_KEPT - 1 if vital else SPARES_KEPT
        # Space may have become free since the last attempt: try once more.
        self._full = None
        self._changed()
        while len(self._spares) <= kept:
            full = self._full or (self._hopeless if self._total >= self._files_max and not self._retired else None)
            if full is not None:
                raise StorageFullError(full.message, **full.fields)
            if self._stopping or self._failure is not None:
                raise ContainerOfflineError("log is closed or has failed", directory=self._directory)
            await self._change.wait()
        spare = self._spares.popleft()
        self._changed()
        return spare

    async def prepare_one(self) -> Spare:
        """As ``take``, but without the task and the budget: for recovery, which must not wait."""
        while not self._spares:
            try:
                await self._prepare()
            except StorageFullError:
                # Room before evidence: without it there is no way back from a full disk.
                removable = self._leftover or self._unwanted
                if not removable:
                    raise
                await self._remove_one(removable)
        return self._spares.popleft()

    async def wipe_spares(self, *, go_on: bool) -> None:
        """Overwrite the spares that may hold bytes of an earlier use and, while ``go_on``, each retired file before it
        becomes a spare. When it returns, no removed file can reappear. Raises OSError: the failed spare is removed, the
        others are unchanged."""
        self._wiping = True
        while True:
            spare = next((item for item in self._spares if not item.clean), None)
            if spare is None:
                break
            # Nobody else can take it meanwhile; other callers may have to wait.
            self._spares.remove(spare)
            try:
                await self._may_write()
                await self._wipe(spare.file)
            except BaseException:
                await spare.file.close()
                await self._files.unlink(spare.path)
                self._total -= 1
                self._changed()
                raise
            self._spares.append(Spare(spare.path, spare.file, clean=True))
            self._changed()
        if not go_on:
            # Surplus files were removed without overwriting: their names must not reappear with their old content.
            await self._files.sync_dir(self._directory)
        self._wiping = go_on

    async def _wipe(self, file: File) -> None:
        """Overwrite everything after the free mark, from the end backwards. The mark is valid while the header exists,
        so a file left half overwritten by a crash is not mistaken for a never used one."""
        size = await file.size()
        for step, end in enumerate(range(size, HEADER_AT, -_STEP_BYTES), 1):
            start = max(HEADER_AT, end - _STEP_BYTES)
            await file.write_at(start, [memoryview(_ZEROS)[: end - start]])
            if step % _STEPS_PER_SYNC == 0:
                await file.sync()
        await file.sync()

    def retire(self, retired: Retired) -> None:
        self._retired.append(retired)
        self._changed()

    async def settled(self) -> None:
        """Return once no file waits to be marked free, or to be removed because an earlier opening had marked it.
        Raises ContainerOfflineError."""
        while self._retired or self._leftover:
            if self._stopping or self._failure is not None:
                raise ContainerOfflineError("log is closed or has failed", directory=self._directory)
            await self._change.wait()

    def _changed(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _work(self) -> None:
        try:
            while not self._stopping:
                change = self._change
                if (self._leftover or self._unwanted) and self._may_prepare and len(self._spares) <= SPARES_KEPT:
                    # Prepare a spare first: otherwise a roll of the log would wait for all those removals.
                    await self._may_write()
                    await self._try_to_prepare()
                elif self._leftover:
                    await self._may_write()
                    await self._remove_one(self._leftover)
                    self._full = None
                elif self._unwanted and self._serving:
                    await self._may_write()
                    await self._remove_one(self._unwanted)
                    self._full = None
                elif self._retired:
                    await self._may_write()
                    await self._free(self._retired[0])
                    self._retired.popleft()
                    self._full = None
                elif self._may_prepare:
                    await self._may_write()
                    await self._try_to_prepare()
                else:
                    await change.wait()
                    continue
                self._changed()
        except BaseException as error:
            self._failure = error
            self._changed()
            self._on_failure(error)
            if not isinstance(error, Exception):
                raise

    @property
    def _may_prepare(self) -> bool:
        return len(self._spares) < SPARES_AHEAD and self._total < self._files_max and self._full is None

    async def _try_to_prepare(self) -> None:
        try:
            await self._prepare()
            self._told_full = False
        except StorageFullError as error:
            self._full = error
            self._log_full()

    def _log_full(self) -> None:
        # Every append that needs a file tries again: log it only once.
        if not self._told_full:
            self._told_full = True
            log.warning("disk has no room for another log file", extra={"directory": self._directory})

    async def _prepare(self) -> None:
        free_bytes = await self._files.free_bytes()
        if free_bytes < self._file_bytes:
            # The attempt would take the last bytes from work that frees space.
            raise StorageFullError(
                "disk has no room for another log file", needed_bytes=self._file_bytes, free_bytes=free_bytes
            )
        self._slot += 1
        path = f"{self._directory}/{self._slot:08d}{LOG_SUFFIX}"
        file = await self._files.open(path, create=True)
        self._total += 1
        try:
            for step, offset in enumerate(range(0, self._file_bytes, _STEP_BYTES), 1):
                size = min(_STEP_BYTES, self._file_bytes - offset)
                await file.write_at(offset, [_ZEROS if size == _STEP_BYTES else _ZEROS[:size]])
                if step % _STEPS_PER_SYNC == 0:
                    # In portions, so that a sync of the log never queues behind a whole file of zeros.
                    await file.sync()
            await file.sync()
        except (StorageFullError, OSError):
            # Not kept: after a failed sync the page cache shows zeros that the disk does not have, and recovery would
            # mistake the file for a complete, never used one.
            await file.close()
            await self._files.unlink(path)
            self._total -= 1
            raise
        await self._files.sync_dir(self._directory)
        self._spares.append(Spare(path, file, clean=True))

    async def _free(self, retired: Retired) -> None:
        file = await self._files.open(retired.path)
        await file.write_at(0, [encode_free_mark(retired.incarnation)])
        await file.sync()
        wiped = self._wiping
        if wiped:
            await self._wipe(file)
        # An earlier opening may have had a larger budget. Its surplus is removed, but not what a roll may wait for.
        wanted = self._total <= self._files_max or len(self._spares) <= SPARES_KEPT
        if wanted and await file.size() == self._file_bytes:
            self._spares.append(Spare(retired.path, file, clean=wiped))
            return
        await file.close()
        await self._files.unlink(retired.path)
        self._total -= 1


def _slot_of(path: str) -> int:
    stem = path.rpartition("/")[2].removesuffix(LOG_SUFFIX)
    return int(stem) if stem.isdecimal() else 0
