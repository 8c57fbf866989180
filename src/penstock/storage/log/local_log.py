"""Tier 1 on local files, written once with zeros and then recycled. Source: docs/design/0004-log.md."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

from penstock.codec.store.wal import BLOCK_BYTES, MARK, FileHeader, encode_frame, frame_bytes, make_incarnation
from penstock.model.errors import (
    ContainerOfflineError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    StorageFullError,
)
from penstock.model.ledgers import LogWipe
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Buffer, Files, InPlaceFile
from penstock.ports.integrity import FrameCheck
from penstock.ports.rng import Rng
from penstock.storage.log.check import check_file
from penstock.storage.log.entries import ActiveFile, ClosedFile, Entry, Frame, encode_group, finished
from penstock.storage.log.epoch import Epoch
from penstock.storage.log.limits import BUDGET_BYTES, FRAME_MAX_BYTES, QUEUE_BYTES, SEGMENT_BYTES, LogLimits
from penstock.storage.log.pool import FilePool, Retired
from penstock.storage.log.queue import AppendQueue
from penstock.storage.log.scan import LogImage, frames_of, read_log
from penstock.storage.log.tail import rewrite, sync_all

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_local_log(
    files: Files,
    *,
    directory: str = "wal",
    segment_bytes: int = SEGMENT_BYTES,
    budget_bytes: int = BUDGET_BYTES,
    max_frame_bytes: int = FRAME_MAX_BYTES,
    queue_bytes: int = QUEUE_BYTES,
    rng: Rng | None = None,
) -> AsyncIterator[LocalLog]:
    """Open the log of ``directory`` for the duration of the block; see ``LocalLog.open``."""
    limits = LogLimits(
        segment_bytes=segment_bytes,
        budget_bytes=budget_bytes,
        max_frame_bytes=max_frame_bytes,
        queue_bytes=queue_bytes,
    )
    opened = await LocalLog.open(files, directory=directory, limits=limits, rng=rng)
    try:
        yield opened
    finally:
        await opened.close()


class LocalLog:
    """Implements ``ports.durable_log.DurableLog``. Opened by ``open``, closed by ``close``.

    One task writes everything that waits with one write and one sync. After the first failed write or sync it
    acknowledges nothing more (the kernel may have dropped the pages); open the log again. While all files of the budget
    hold frames that are still needed, appends wait for ``truncate``. While ``queue_bytes`` are queued, further callers
    wait outside the queue, in call order.
    """

    def __init__(self, files: Files, directory: str, limits: LogLimits, epoch: Epoch) -> None:
        self._files = files
        self._directory = directory
        self._limits = limits
        self._epoch = epoch
        self._seed = epoch.record.seed
        self._pool = FilePool(
            files,
            directory,
            file_bytes=limits.segment_bytes,
            files_max=limits.budget_bytes // limits.segment_bytes,
            may_write=epoch.check,
            on_failure=self._fail,
        )
        self._uses = 0
        self._last = 0
        self._marked = 0
        self._active: ActiveFile | None = None
        self._closed_files: deque[ClosedFile] = deque()
        self._queue = AppendQueue(limits.queue_bytes)
        self._wake: asyncio.Future[None] | None = None
        self._committer: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._replaying = False
        self._anew: asyncio.Future[LogAddress] | None = None
        self._wiped_before: int | None = None
        """While bytes of old frames are being wiped: the incarnation of the first file that never held any."""

    @classmethod
    async def open(
        cls, files: Files, *, directory: str = "wal", limits: LogLimits | None = None, rng: Rng | None = None
    ) -> LocalLog:
        """Fence every earlier opening and begin a new epoch; nothing else is written before ``replay``.

        ``rng`` draws the seed of a new log, so that users' bytes cannot pass for frames.
        Raises: CorruptDataError, VersionTooNewError, StorageFullError, OSError.
        """
        limits = limits or LogLimits()
        await files.make_dir(directory)
        await files.sync_dir(directory.rpartition("/")[0] or ".")
        return cls(files, directory, limits, await Epoch.begin(files, directory, rng=rng))

    @property
    def epoch(self) -> int:
        return self._epoch.record.epoch

    @property
    def last(self) -> LogAddress:
        return LogAddress(self._last)

    async def replay(self) -> AsyncIterator[tuple[LogAddress, bytes]]:
        """All frames not truncated, in order.

        The whole log is validated and its uncertain tail made durable before the first frame is returned, so that every
        later opening replays the same frames. Raises CorruptDataError, having changed no log file.
        """
        if self._replaying:
            raise InternalError("log was already replayed by this opening", directory=self._directory)
        self._replaying = True
        await self._epoch.check()
        image = await read_log(self._files, self._directory, epoch=self.epoch, seed=self._seed)
        await sync_all(self._files, image)
        await self._recover(image)
        for index, accepted in enumerate(image.chain):
            upto = image.last_of(index)
            async for sequence, payload in frames_of(self._files, accepted, seed=self._seed, upto=upto):
                yield LogAddress(sequence), payload
        # Only now: until here, replay may have read from a file that recovery replaced.
        for closed in [item for item in self._closed_files if item.last < 0]:
            self._closed_files.remove(closed)
            self._pool.retire(Retired(path=closed.path, incarnation=closed.incarnation))
        self._pool.start()
        self._committer = asyncio.create_task(self._commit_all())

    @property
    def max_frame_bytes(self) -> int:
        return self._limits.max_frame_bytes

    async def append(self, parts: Sequence[Buffer], *, vital: bool = False) -> LogAddress:
        """As the port says; ``parts`` are bytes or views of bytes."""
        size = sum(map(len, parts))
        if size > self._limits.max_frame_bytes:
            raise InvalidArgumentError(
                "frame is larger than the limit of the log", size_bytes=size, limit_bytes=self._limits.max_frame_bytes
            )
        if self._queue.is_full(size):
            await self._queue.room(size)
        if self._failure is not None or self._closing:
            raise self._offline()
        if self._committer is None:
            raise InternalError("log was not replayed before an append", directory=self._directory)
        self._pool.serve()
        entry = Entry(parts, size, asyncio.get_running_loop().create_future(), vital)
        self._queue.add(entry)
        self._wake_up()
        try:
            return await entry.done
        except asyncio.CancelledError:
            while entry.flight is not None and not entry.flight.done():
                # The parts are being written: the caller must not change them after the checksum was computed.
                await finished(entry.flight)
            raise

    def append_in_place(self, frames: Sequence[Sequence[Buffer]]) -> Sequence[LogAddress] | None:
        """As the port says: only while nothing is queued or in flight, and the active file has room and syncs fast."""
        active, idle = self._active, self._wake is not None and not self._wake.done()
        if not idle or not self._queue.is_idle or self._closing or self._failure is not None or active is None:
            return None
        takes = getattr(active.file, "takes_in_place", None)
        sizes = [sum(map(len, parts)) for parts in frames]
        needed = sum(map(frame_bytes, sizes))
        fits = active.offset + needed <= self._limits.segment_bytes and max(sizes) <= self._limits.max_frame_bytes
        # Check before the frames are made: their checksums are the main cost.
        if takes is None or not fits or not takes(needed):
            return None
        file = cast("InPlaceFile", active.file)
        self._pool.serve()
        try:
            # Another opening may have taken over meanwhile, and our file may be its own by now.
            if not self._epoch.check_in_place():
                return None
            if not file.commit_in_place(*self._encoded(active, list(zip(frames, sizes, strict=True)))):
                return None
            # The frames are written. A disk that has become slow meanwhile must not end the log.
            self._epoch.check_in_place(wait=True)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            raise self._offline() from error
        return self._appended(active, len(frames), needed)

    def _appended(self, active: ActiveFile, count: int, size_bytes: int) -> Sequence[LogAddress]:
        active.offset += size_bytes
        active.header_written = True
        first = self._last + 1
        self._last += count
        return [LogAddress(address) for address in range(first, self._last + 1)]

    def refuse_waits(self, error: StorageFullError | None) -> None:
        """As the port says."""
        self._pool.refuse_waits(error)

    async def truncate(self, upto: LogAddress) -> None:
        """As the port says. Returns once the files freed are durably marked so."""
        if self._failure is not None or self._closing:
            raise self._offline()
        try:
            await self._epoch.check()
        except ContainerOfflineError as error:
            self._fail(error)
            raise
        self._pool.serve()
        while self._closed_files and self._closed_files[0].last <= upto and self._may_retire_one():
            closed = self._closed_files.popleft()
            self._pool.retire(Retired(path=closed.path, incarnation=closed.incarnation))
        await self._pool.settled()

    async def begin_wipe(self) -> LogAddress:
        """As the port says."""
        if self._failure is not None or self._closing or self._committer is None:
            raise self._offline()
        self._pool.serve()
        # Before the roll: otherwise bytes of the new file's earlier use would remain after its frames.
        await self._pool.wipe_spares(go_on=True)
        if self._failure is not None or self._closing:
            raise self._offline()
        if self._anew is None:
            self._anew = asyncio.get_running_loop().create_future()
            self._wake_up()
        return await asyncio.shield(self._anew)

    async def end_wipe(self) -> LogWipe | None:
        """As the port says."""
        if self._failure is not None or self._closing:
            raise self._offline()
        first = self._wiped_before
        if first is not None and any(item.incarnation < first for item in self._closed_files):
            return None
        await self._pool.settled()
        await self._pool.wipe_spares(go_on=False)
        self._wiped_before = None
        return LogWipe()

    async def wipes_from_ms(self) -> int:
        """As the port says: all files can be overwritten."""
        return 0

    async def _begin_file(self, asked: asyncio.Future[LogAddress]) -> None:
        """Continue in another file, for the appends that wait."""
        refused: PenstockError | None = None
        try:
            first = make_incarnation(self.epoch, self._uses + 1)
            if self._active is not None:
                await self._roll(vital=True)
            self._wiped_before = first
        except StorageFullError as error:
            refused = StorageFullError(error.message, **error.fields)
        except BaseException:
            refused = self._offline()
            raise
        finally:
            self._anew = None
            if refused is not None and not asked.done():
                asked.set_exception(refused)
        if not asked.done():
            asked.set_result(LogAddress(self._last))

    def _may_retire_one(self) -> bool:
        """Whether a durable file would remain. Only the newest file knows the last address. A log without files starts
        again at 1, and a caller that remembers a higher address would take the new frames for old ones."""
        active = self._active
        return len(self._closed_files) > 1 or (active is not None and active.header_written)

    async def check_frames(self, after: int) -> FrameCheck:
        """As ``ports.integrity.CheckedLog`` says. A file that is freed meanwhile is no damage."""
        closed = next((item for item in self._closed_files if item.last > after), None)
        if closed is not None:
            found = await check_file(self._files, closed.path, closed.incarnation, seed=self._seed, upto=closed.last)
            if found.damage and closed not in self._closed_files:
                return FrameCheck(upto=closed.last, frames=0, size_bytes=0, damage=())
            return replace(found, upto=closed.last)
        active, last = self._active, self._last
        if active is None or not active.header_written or last <= after:
            return FrameCheck(upto=None, frames=0, size_bytes=0, damage=())
        incarnation = active.header.incarnation
        found = await check_file(self._files, active.path, incarnation, seed=self._seed, upto=last)
        gone = active is not self._active and not any(item.path == active.path for item in self._closed_files)
        return FrameCheck(upto=None, frames=0, size_bytes=0, damage=()) if gone else found

    async def close(self) -> None:
        """Write what is queued, then record how far the log is durable, so that later damage is detected.

        Appends for which there is no file are refused.
        """
        if self._closing:
            return
        self._closing = self._queue.over = True
        self._wake_up()
        self._queue.wake_outside()
        self._pool.end_waits()
        if self._committer is not None:
            # A failure is already in ``_failure``, and every affected append has received it.
            await asyncio.gather(self._committer, return_exceptions=True)
        await self._pool.stop()
        try:
            if self._failure is None:
                await self._write_mark()
        finally:
            if self._active is not None:
                await self._active.file.close()
            await self._epoch.close()

    # --- recovery

    async def _recover(self, image: LogImage) -> None:
        """Make the accepted tail durable in a new file, whose syncs are all known, and never touch the old one
        again."""
        await self._pool.adopt(used=[item.path for item in image.chain], free=image.free, torn=image.torn)
        self._last = image.last
        for index, item in enumerate(image.chain):
            last = image.last_of(index)
            superseded = last < item.header.first_sequence and index + 1 < len(image.chain)
            self._closed_files.append(
                ClosedFile(path=item.path, incarnation=item.header.incarnation, last=-1 if superseded else last)
            )
        if not image.chain:
            return
        newest = image.chain[-1]
        # Rewrite a nearly empty file whole and continue in it: otherwise every restart would use up a file.
        small = newest.end <= self._limits.segment_bytes // 4 and newest.last >= newest.header.first_sequence
        first = newest.header.first_sequence if small else image.proven + 1
        if first > image.last:
            return
        spare = await self._pool.prepare_one()
        header = self._new_header(first=first, durable=image.last)
        active = await rewrite(self._files, spare, header, newest, image=image, seed=self._seed)
        self._active = active
        # This proves to the next recovery that the syncs above succeeded; without it, recovery does all this again.
        await self._append_mark(active)
        self._closed_files[-1] = ClosedFile(
            path=newest.path, incarnation=newest.header.incarnation, last=-1 if small else first - 1
        )

    # --- the writer

    async def _commit_all(self) -> None:
        try:
            while True:
                self._queue.drop_cancelled()
                if self._failure is not None:
                    return
                if self._anew is not None:
                    await self._begin_file(self._anew)
                elif (first := self._queue.first) is not None:
                    await self._commit_some(first)
                elif self._closing:
                    return
                else:
                    self._wake = asyncio.get_running_loop().create_future()
                    await self._wake
                    if self._queue.first is not None or self._anew is not None:
                        # After a rest, another opening may have taken over, and our file may be its own by now.
                        await self._epoch.check()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._refuse_queued()

    async def _commit_some(self, first: Entry) -> None:
        active = self._active
        if active is None or active.offset + frame_bytes(first.payload_bytes) > self._limits.segment_bytes:
            try:
                await self._roll(vital=first.vital)
            except StorageFullError as error:
                # Refuse all of them, even those that would fit: appends resolve in call order.
                self._refuse_queued(error)
            return
        flight: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group, size = self._queue.take(self._limits.segment_bytes - active.offset, flight)
        try:
            frames = [(entry.parts, entry.payload_bytes) for entry in group]
            await active.file.write_at(*self._encoded(active, frames))
            await active.file.sync()
            await self._epoch.check()
        except BaseException as error:
            self._fail(error)
            for entry in group:
                if not entry.done.done():
                    entry.done.set_exception(self._offline())
            raise
        finally:
            flight.set_result(None)
        for entry, address in zip(group, self._appended(active, len(group), size), strict=True):
            if not entry.done.done():
                entry.done.set_result(address)
        self._queue.wake_outside()

    def _encoded(self, active: ActiveFile, frames: Sequence[Frame]) -> tuple[int, Sequence[Buffer]]:
        return encode_group(active, frames, last=self._last, seed=self._seed)

    async def _roll(self, *, vital: bool = False) -> None:
        spare = await self._pool.take(vital=vital)
        old = self._active
        if old is not None:
            self._closed_files.append(ClosedFile(path=old.path, incarnation=old.header.incarnation, last=self._last))
        self._active = ActiveFile(spare.path, spare.file, self._new_header(first=self._last + 1, durable=self._last))
        if old is not None:
            await old.file.close()
        # The wait may have been long: by now, both files may belong to another opening.
        await self._epoch.check()

    def _new_header(self, *, first: int, durable: int) -> FileHeader:
        self._uses += 1
        return FileHeader(
            epoch=self.epoch,
            incarnation=make_incarnation(self.epoch, self._uses),
            first_sequence=first,
            durable_sequence=durable,
            file_bytes=self._limits.segment_bytes,
        )

    async def _write_mark(self) -> None:
        active = self._active
        if active is not None and active.header_written and self._marked < self._last:
            try:
                await self._epoch.check()
            except ContainerOfflineError:
                # A later opening took over, and has made everything acknowledged durable.
                return
            if await self._append_mark(active):
                await active.file.sync()

    async def _append_mark(self, active: ActiveFile) -> bool:
        if active.offset + BLOCK_BYTES > self._limits.segment_bytes:
            return False
        mark = encode_frame(
            [],
            payload_bytes=0,
            incarnation=active.header.incarnation,
            sequence=self._last,
            durable_sequence=self._last,
            seed=self._seed,
            flags=MARK,
        )
        await active.file.write_at(active.offset, mark)
        active.offset += BLOCK_BYTES
        self._marked = self._last
        return True

    # --- its end

    def _refuse_queued(self, full: StorageFullError | None = None) -> None:
        if full is not None:
            self._queue.refuse(lambda: StorageFullError(full.message, **full.fields))
            return
        if self._anew is not None and not self._anew.done():
            self._anew.set_exception(self._offline())
        self._queue.refuse(self._offline)

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._queue.over = True
            log.error("log is offline", extra={"directory": self._directory, "epoch": self.epoch, "error": repr(error)})
        self._wake_up()

    def _offline(self) -> ContainerOfflineError:
        reason = str(self._failure) if self._failure is not None else "closed"
        error = ContainerOfflineError(
            "log is offline; open it again", directory=self._directory, epoch=self.epoch, reason=reason
        )
        error.__cause__ = self._failure
        return error
