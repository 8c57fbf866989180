"""Objects as files of HDFS, through hdfs-native (extra ``hdfs``).

The namenode answers a rename at once for all, so an object is written under another name first. Its own name appears with
all of its bytes, or not at all, also if the writer dies. The library waits for a namenode without a limit, so each call
runs in a thread of its own, and is given up after a time.

Source: docs/design/0071-hdfs.md.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from hdfs_native import Client, WriteOptions

from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidArgumentError,
    KeptBySnapshotError,
    PenstockError,
    UnavailableError,
)
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass
from penstock.storage.objects.hdfs_errors import datanode_call, is_without_room, translated

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

T = TypeVar("T")

SCHEME = "hdfs"
UNFINISHED = "unfinished"
"""The directory, below our own, of files that are being written."""

_CHUNKS = "chunks"
"""The prefix of tasks that write chunks beside the store: see ``storage/chunks/imports.py``."""
_OURS: dict[str, None] = {}
"""Unfinished files that this process is writing, through any prefix: a log has objects of its own beside those of chunks."""
_MIB = 1 << 20
_CHOICES = 4
"""How often the namenode chooses datanodes for an object."""
_NO_ROOM_S = 1.0
"""Pause, doubled each time, before it is asked again after it had none: a datanode that has just started has not reported
its room yet, and a busy one is refused for a while."""
_NOTICED_S = 0.03
"""After how long the library knows that a datanode could not reach the next one: a round trip, and much to spare."""

_FILE_MODE, _DIRECTORY_MODE = 0o640, 0o750
"""HDFS gives a new file the group of its directory: that group may read, and the administrator chooses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsSettings:
    """Limits of calls. Times are in seconds.

    call_s: one question to the namenode, 20: a failover takes less. transfer_s: one object written or read, 60: a chunk
        of 16 MiB at 0.3 MB/s. delete_s: a deletion, 10: it can wait, but the checkpoints behind it cannot.
    silence_s: without a byte from a datanode, 15: then the next one is asked.
    calls: at the same time, 8. hanging_max: calls whose threads wait, given up or not, 64: no more are begun then.
        forget_s: one that has waited for so long no longer counts, 1,200: the kernel ends a connection to a dead machine
        after about 15 minutes, so this one waits for nothing.
    """

    call_s: float = 20.0
    transfer_s: float = 60.0
    delete_s: float = 10.0
    silence_s: float = 15.0
    calls: int = 8
    hanging_max: int = 64
    forget_s: float = 1200.0


class HdfsObjects:
    """Implements ``ports.objects.Objects`` below ``url``: ``hdfs://NAMENODE:PORT/path``, or ``hdfs://SERVICE/path`` with a
    name service of ``HADOOP_CONF_DIR``.

    The user is that of the process or of Kerberos, or ``HADOOP_USER_NAME``. An object is durable on all datanodes of its
    pipeline before its name appears. Listings are exact. Deletions bypass the trash. Makes no request before the first
    call. Raises InvalidArgumentError for an invalid URL, and for a name service that is not configured.
    """

    def __init__(self, url: str, *, settings: HdfsSettings | None = None) -> None:
        self._url, self._authority, self._root = _checked(url)
        self._settings = settings or HdfsSettings()
        self._client = _client_of(self._authority, self._settings)
        self._turns = asyncio.Semaphore(self._settings.calls)
        self._waiting: dict[asyncio.Future[Any], float] = {}
        self._left: dict[str, None] = {}

    async def put(self, name: str, data: bytes) -> None:
        await self._put(name, data, replaces=True)

    async def create(self, name: str, data: bytes) -> None:
        """As the port says: HDFS does not rename onto a name that exists."""
        await self._put(name, data, replaces=False)

    async def overwrite(self, name: str, data: bytes) -> None:
        """As the port says. Datanodes free the earlier bytes, unless a snapshot keeps them."""
        await self.size(name)
        await self.put(name, data)

    async def keeps_versions(self, name: str) -> bool:
        """As the port says: whether there is a snapshot of a directory above."""
        await self.size(name)
        return await self._snapshot(name) is not None

    async def _put(self, name: str, data: bytes, *, replaces: bool) -> None:
        part = f"{self._root}/{UNFINISHED}/{uuid4().hex}"
        given_up = threading.Event()
        work = partial(
            _write,
            self._client,
            part,
            self._path(name),
            data=data,
            replaces=replaces,
            left=self._left,
            given_up=given_up,
        )
        try:
            await self._call(work, name, transfers=True)
        except FileNotFoundError as error:
            raise UnavailableError(
                "an object was deleted while it was written, by another process that uses this tier 2",
                tier2=self._url,
                object=name,
            ) from error
        except UnavailableError:
            given_up.set()
            # Perhaps only the answer to the rename was lost.
            if not await self._holds(name, data):
                await self._remove_left(part)
                raise
        except asyncio.CancelledError:
            given_up.set()
            self._left[part] = None
            raise

    async def read(self, name: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        work = partial(_read, client=self._client, path=self._path(name), start=start, length=length)
        return await self._call(work, name, transfers=True)

    async def size(self, name: str) -> int:
        return await self._call(partial(_size, client=self._client, path=self._path(name)), name)

    async def delete(self, name: str) -> None:
        client, path = self._client, self._path(name)
        await self._call(lambda: client.delete(path), name, within_s=self._settings.delete_s)

    async def list(self, directory: str) -> Mapping[str, int]:
        work = partial(_list, client=self._client, root=self._root, directory=directory)
        return await self._call(work, directory, transfers=True)

    def location(self, name: str) -> str | None:
        return f"{self._url}/{name}"

    async def clear_unfinished(self) -> None:
        """Delete what writers left that died while they wrote, also those whose prefix was the directory of chunks. Writers
        of other processes that are alive fail with UnavailableError, so only the owner of the prefix may call this. Raises
        UnavailableError."""
        for directory in (UNFINISHED, f"{_CHUNKS}/{UNFINISHED}"):
            for name in await self.list(directory):
                if name.rpartition("/")[2] not in _OURS:
                    await self.delete(name)

    async def check_write(self) -> None:
        """Raises UnavailableError if this user may not write here."""
        name = f"{UNFINISHED}/{uuid4().hex}"
        await self.put(name, b"")
        await self.delete(name)

    async def check_wipe(self, name: str) -> None:
        """Check that a deletion of the object removes its bytes from HDFS. Also deletes what failed calls of this process
        left. Raises KeptBySnapshotError (a snapshot would keep them), UnavailableError."""
        for part in list(self._left):
            await self._remove(part)
        if self._left:
            raise UnavailableError(
                "a write to HDFS that was given up still waits there, and may hold what is to be erased; the erasure"
                " continues once it has ended",
                tier2=self._url,
                object=name,
                writes=len(self._left),
            )
        found = await self._snapshot(name)
        if found is not None:
            directory, snapshot = found
            raise KeptBySnapshotError(
                "a snapshot of HDFS keeps what is to be erased. Delete all snapshots that were made before the erasure"
                f" (`hdfs dfs -deleteSnapshot {directory} {snapshot}`); the erasure then continues",
                tier2=self._url,
                snapshot=f"{directory}/.snapshot/{snapshot}",
            )

    async def _snapshot(self, name: str) -> tuple[str, str] | None:
        return await self._call(partial(_snapshot_above, client=self._client, path=self._path(name)), name)

    async def _remove_left(self, part: str) -> None:
        """Delete what a failed call left, or note it. Its thread may still wait for a datanode."""
        self._left[part] = None
        with suppress(UnavailableError):
            await self._remove(part)

    async def _remove(self, part: str) -> None:
        """Delete what a failed call left. It stays noted while the thread of the call runs, which may still create it."""
        runs = part.rpartition("/")[2] in _OURS  # before the deletion: what it makes until then is deleted
        await self.delete(part.removeprefix(f"{self._root}/"))
        if not runs:
            self._left.pop(part, None)

    async def _holds(self, name: str, data: bytes) -> bool:
        try:
            return await self.read(name, 0, len(data) + 1) == data
        except (FileNotFoundError, UnavailableError):
            return False

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    async def _call(
        self, work: Callable[[], T], name: str, *, transfers: bool = False, within_s: float | None = None
    ) -> T:
        """The result of ``work``, which runs in a thread. Raises FileNotFoundError, UnavailableError, StorageFullError,
        CorruptDataError."""
        settings = self._settings
        within_s = within_s or (settings.transfer_s if transfers else settings.call_s)
        async with self._turns:
            self._check_waiting()
            done = _started(work)
            self._waiting[done] = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(within_s):
                    return await asyncio.shield(done)
            except TimeoutError as error:
                raise UnavailableError(
                    "HDFS does not answer; check its namenode and datanodes",
                    tier2=self._url,
                    object=name,
                    waited_s=within_s,
                ) from error
            except (asyncio.CancelledError, PenstockError):
                raise
            except BaseException as error:  # the library's panics are no Exceptions
                raise translated(error, tier2=self._url, name=name) from error

    def _check_waiting(self) -> None:
        now_s, settings = asyncio.get_running_loop().time(), self._settings
        for call, begun_s in list(self._waiting.items()):
            if call.done() or now_s - begun_s > settings.forget_s:
                del self._waiting[call]
        if len(self._waiting) >= settings.hanging_max:
            raise UnavailableError(
                "HDFS does not answer, and too many calls wait for it", tier2=self._url, calls=len(self._waiting)
            )


def read_location(location: str, start: int, length: int) -> bytes:
    """Bytes of the object that ``HdfsObjects.location`` named; blocks. For readers that bypass the store.

    Raises: FileNotFoundError, UnavailableError (also for fewer bytes than requested), InvalidArgumentError.
    """
    url, authority, path = _checked(location)
    settings = HdfsSettings()
    client = _reader(authority, os.getpid())
    answers: SimpleQueue[tuple[bytes, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            answers.put((_read(client=client, path=path, start=start, length=length), None))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            answers.put((b"", error))

    threading.Thread(target=work, name="penstock-hdfs", daemon=True).start()
    try:
        data, error = answers.get(timeout=settings.transfer_s)
    except Empty:
        raise UnavailableError("HDFS does not answer", object=location, waited_s=settings.transfer_s) from None
    if error is not None:
        raise translated(error, tier2=url.rpartition("/")[0], name=location) from error
    if len(data) != length:
        raise UnavailableError(
            "tier 2 returned fewer bytes than requested", object=location, start=start, length=length
        )
    return data


@lru_cache(maxsize=16)
def _reader(authority: str, process: int) -> Client:
    # By process: the threads of the library do not survive a fork.
    return _client_of(authority, HdfsSettings())


def _checked(url: str) -> tuple[str, str, str]:
    """The URL without a slash at its end, its ``hdfs://host:port``, and its path. Raises InvalidArgumentError."""
    parts = url_parts(url)
    path = parts.path.rstrip("/")
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidArgumentError("the port of the namenode must be a number up to 65535", url=url) from error
    if "@" in parts.netloc:
        raise InvalidArgumentError("set the user of HDFS with HADOOP_USER_NAME, not in the URL", url=url)
    steps = path.split("/")[1:]
    if parts.scheme != SCHEME or not parts.hostname or port == 0 or parts.query or parts.fragment or not path:
        raise InvalidArgumentError(
            "the URL of a tier 2 in HDFS must be hdfs://NAMENODE:PORT/PATH, or hdfs://SERVICE/PATH with a name service of"
            " HADOOP_CONF_DIR",
            url=url,
        )
    if any(step in ("", ".", "..", ".snapshot", ".reserved", ".Trash") or ":" in step for step in steps):
        raise InvalidArgumentError("this is not the path of a directory of HDFS", url=url, path=path)
    return url.rstrip("/"), f"{SCHEME}://{parts.netloc}", path


def _client_of(authority: str, settings: HdfsSettings) -> Client:
    config = {
        # The library's own patience is minutes long, and silent.
        "dfs.client.failover.max.attempts": "4",
        "dfs.client.failover.sleep.base.millis": "200",
        "dfs.client.failover.sleep.max.millis": "2000",
        "dfs.client.socket-timeout": str(int(settings.silence_s * 1000)),
    }
    try:
        return Client(authority, config)
    except (RuntimeError, OSError, ValueError) as error:
        reason = "HADOOP_CONF_DIR has no namenodes for this name service; or name the port of a namenode"
        if "No NameNode hosts" not in str(error):
            reason = str(error)[:300]
        raise InvalidArgumentError("HDFS cannot be used as tier 2", url=authority, reason=reason) from error


def _started(work: Callable[[], T]) -> asyncio.Future[T]:
    """The outcome of ``work``, which runs in a thread that nothing stops."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if error is None:
            done.set_result(result)  # type: ignore[arg-type] # without an error there is a result
            return
        done.set_exception(error)
        done.exception()  # a call that was given up is nobody's any more

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as failure:  # noqa: BLE001 - the caller gets it
            error = failure
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            if not loop.is_closed():
                raise
            # The loop is closed: no caller waits for the outcome.

    threading.Thread(target=run, name="penstock-hdfs", daemon=True).start()
    return done


def _write(
    client: Client,
    part: str,
    path: str,
    *,
    data: bytes,
    replaces: bool,
    left: dict[str, None],
    given_up: threading.Event,
) -> None:
    """Write the object under the name ``part``, then rename it. After a failure ``part`` is deleted, or noted in ``left``.
    Not renamed any more once the caller has ``given_up``: it may have deleted the object since, as one that may have
    arrived. Raises AlreadyExistsError unless it ``replaces``."""
    own = part.rpartition("/")[2]
    _OURS[own] = None
    try:
        _fill(client, part, data)
        size_bytes = client.get_file_info(part).length
        if size_bytes != len(data):
            raise CorruptDataError("tier 2 stored other bytes than were written", object=path, size=size_bytes)
        if given_up.is_set():
            raise UnavailableError("HDFS took the object too late", object=path)
        try:
            client.rename(part, path, replaces)
        except FileNotFoundError:
            client.mkdirs(path.rpartition("/")[0], _DIRECTORY_MODE, True)
            client.rename(part, path, replaces)
    except BaseException as error:
        left[part] = None
        with suppress(OSError, RuntimeError):
            client.delete(part)
            left.pop(part, None)  # the loop may have been faster
        if isinstance(error, FileExistsError):
            raise AlreadyExistsError("object exists", object=path) from error
        raise
    finally:
        del _OURS[own]


def _fill(client: Client, part: str, data: bytes) -> None:
    """Write a file, durable on all datanodes that the namenode has chosen. It is asked again for others if one of them
    cannot be reached at first, where the library gives up, and if it knows none for the moment.

    Of each file that is begun, the namenode reserves a block on each datanode, after a failure for ten minutes: with blocks
    of 128 MiB for small objects, it would soon take all disks for full.
    """
    for attempt in range(_CHOICES):
        # Not the class around it, whose objects complete their files when they are collected: that takes many seconds
        # after a failure, in any thread.
        writer = _created(client, part, min(-(-len(data) // _MIB), 128) * _MIB or _MIB)
        try:
            with datanode_call():
                writer.write(data)
                # The library waits forever in the next call if a datanode is dead and it has not noticed yet.
                time.sleep(_NOTICED_S)
                # Without this, datanodes answer before the bytes are on their disks.
                writer.hsync()
                writer.close()
        except FileNotFoundError:
            raise
        except (OSError, RuntimeError) as error:
            has_no_room = is_without_room(error)
            if attempt == _CHOICES - 1 or not (has_no_room or isinstance(error, OSError)):
                raise
        else:
            return
        client.delete(part)
        if has_no_room:
            time.sleep(_NO_ROOM_S * 2**attempt)


def _created(client: Client, part: str, block_bytes: int | None) -> RawFileWriter:
    for _ in range(2):
        try:
            return client.inner.create(part, _options(block_bytes))
        except FileNotFoundError:
            client.mkdirs(part.rpartition("/")[0], _DIRECTORY_MODE, True)
        except RuntimeError as error:
            if "is less than configured minimum value" not in str(error):
                raise
            block_bytes = None  # This cluster allows only larger blocks.
    return client.inner.create(part, _options(block_bytes))


def _options(block_bytes: int | None) -> WriteOptions:
    return WriteOptions(block_size=block_bytes, permission=_FILE_MODE, overwrite=False, create_parent=False)


def _read(*, client: Client, path: str, start: int, length: int) -> bytes:
    reader = client.read(path)
    # The library panics behind the end.
    end = min(start + length, len(reader))
    with datanode_call():
        return reader.read_range(start, end - start) if start < end else b""


def _size(*, client: Client, path: str) -> int:
    found = client.get_file_info(path)
    if found.isdir:
        raise FileNotFoundError(path)
    return found.length


def _list(*, client: Client, root: str, directory: str) -> dict[str, int]:
    try:
        found = [item for item in client.list_status(f"{root}/{directory}", True) if not item.isdir]
    except FileNotFoundError:
        return {}
    return {item.path.removeprefix(f"{root}/"): item.length for item in sorted(found, key=lambda item: item.path)}


def _snapshot_above(*, client: Client, path: str) -> tuple[str, str] | None:
    """A directory above the path with a snapshot of it, and the snapshot's name."""
    directory = path
    while directory:
        directory = directory.rpartition("/")[0]
        try:
            for item in client.list_status(f"{directory}/.snapshot", False):
                return directory or "/", item.path.rpartition("/")[2]
        except FileNotFoundError:
            continue
        except RuntimeError as error:
            if "SnapshotException" not in str(error):
                raise
            # Not a directory of which snapshots are allowed.
    return None
