"""Secrets of ledgers as small objects in tier 2. Source: docs/design/0067-encrypted-ledgers.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

from penstock.codec.store.ledger_keys import (
    DIRECTORY,
    KEY,
    DestroyedSecret,
    decode_key_object,
    encode_marker,
    encode_secret,
)
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from penstock.model.ledgers import LedgerKey, LogWipe
from penstock.ports.clock import Clock
from penstock.ports.objects import Objects

_log = logging.getLogger(__name__)

MARKER_MS = 24 * 3600 * 1000
"""How long a marker keeps the name of a destroyed secret taken. A request arrives later than that only in theory."""
LATE_S = 300.0
"""How late a request of a client that gave up can arrive at a storage without conditional writes: two attempts."""
_T = TypeVar("_T")
_PARALLEL = 16  # requests at a time


class ObjectLedgerKeys:
    """Implements ``ports.cluster.ledger_keys.LedgerKeys``: ``log-keys/<uid>/<key>`` of ``objects``. ``uid``: of the log."""

    def __init__(self, objects: Objects, *, uid: str, clock: Clock, late_s: float = LATE_S) -> None:
        self._objects = objects
        self._directory = f"{DIRECTORY}/{uid}"
        self._clock = clock
        self._late_s = late_s
        self._is_conditional: bool | None = None
        """Whether the storage refuses to create a name twice; None: not tried yet."""

    async def write(self, key: LedgerKey, secret: bytes) -> None:
        """As the port says."""
        name, data = self._name(key), encode_secret(secret)
        try:
            await self._objects.create(name, data)
        except AlreadyExistsError as error:
            raise UnavailableError("name of a ledger's key is taken; another one is tried", object=name) from error
        except OSError as error:
            raise UnavailableError("tier 2 cannot be written", object=name, cause=repr(error)) from error
        if self._is_conditional is None:
            await self._try_condition(name, data)

    async def _try_condition(self, name: str, data: bytes) -> None:
        try:
            await self._objects.create(name, data)
        except AlreadyExistsError:
            self._is_conditional = True
        except (UnavailableError, OSError):
            return
        else:
            self._is_conditional = False
            _log.warning(
                "tier 2 has no conditional writes, so erasures wait for late requests", extra={"wait_s": self._late_s}
            )

    async def read(self, key: LedgerKey) -> bytes:
        """As the port says."""
        name = self._name(key)
        found = await self._read(name)
        if found is None:
            raise NotFoundError("key of a ledger is missing", object=name)
        if isinstance(found, DestroyedSecret):
            raise NotFoundError("key of a ledger was destroyed", object=name, destroyed_ms=found.at_ms)
        return found

    async def destroy(self, keys: Collection[LedgerKey]) -> None:
        """As the port says."""
        await _each(self._destroy, map(self._name, keys))

    async def destroy_others(self, kept: Collection[LedgerKey], *, epoch: int) -> LogWipe | None:
        """As the port says. Names of later epochs are those of a later owner."""
        for _ in range(2):
            names = await self._others(kept, epoch)
            marked = dict(zip(names, await _each(self._marked, names), strict=True))
            left = [name for name, at_ms in marked.items() if at_ms is None]
            if not left:
                break
            await _each(self._destroy, left)
        else:
            return None
        times = [at_ms for at_ms in marked.values() if at_ms is not None]
        if not self._is_conditional and any(self._clock.now_ms() - at_ms < self._late_s * 1000 for at_ms in times):
            return None
        keys = sorted(name.removeprefix(f"{self._directory}/") for name in marked)
        return LogWipe(keys=tuple(keys), at_ms=max(times, default=self._clock.now_ms()))

    async def forget_markers(self) -> None:
        """As the port says."""
        oldest_ms = self._clock.now_ms() - MARKER_MS
        for name in await self._others((), None):
            at_ms = await self._marked(name)
            # A bucket with versions shows the latest one only: the marker is what reveals that there are others.
            if at_ms is not None and at_ms < oldest_ms and not await self._keeps_versions(name):
                await self._delete(name)

    async def check(self, key: LedgerKey) -> None:
        """As the port says."""
        await self._refuse_versions(self._name(key))

    # --- objects

    def _name(self, key: LedgerKey) -> str:
        return f"{self._directory}/{key}"

    async def _others(self, kept: Collection[LedgerKey], epoch: int | None) -> list[str]:
        """Names of objects below the directory of the log, sorted, without those kept and those of later epochs."""
        found = []
        for name in await self._list():
            key = LedgerKey.parse(name.removeprefix(f"{self._directory}/"))
            if key is not None and key not in kept and (epoch is None or key.epoch <= epoch):
                found.append(name)
        return found

    async def _destroy(self, name: str) -> None:
        if await self._marked(name) is not None:
            return
        await self._refuse_versions(name)
        try:
            await self._objects.overwrite(name, encode_marker(self._clock.now_ms()))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnavailableError("key of a ledger cannot be destroyed now", object=name, cause=repr(error)) from error
        await self._refuse_versions(name)  # versioning may have been switched on in between

    async def _refuse_versions(self, name: str) -> None:
        if await self._keeps_versions(name):
            raise UnsupportedError(
                "erasure is not possible: tier 2 keeps earlier versions of objects, so keys of the log cannot be destroyed."
                " Switch versioning off, and delete the keys that have versions once their ledgers have ended",
                object=self._objects.location(name) or name,
            )

    async def _keeps_versions(self, name: str) -> bool:
        try:
            return await self._objects.keeps_versions(name)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UnavailableError("tier 2 cannot be read", object=name, cause=repr(error)) from error

    async def _marked(self, name: str) -> int | None:
        """When the secret was destroyed; None: it may still be there. A missing object counts as a marker of now."""
        try:
            found = await self._read(name)
        except CorruptDataError:
            return None  # a crash during the write, or during the destruction
        if found is None:
            return self._clock.now_ms()
        return found.at_ms if isinstance(found, DestroyedSecret) else None

    async def _read(self, name: str) -> bytes | DestroyedSecret | None:
        try:
            data = await self._objects.read(name, 0, KEY.size + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError("tier 2 cannot be read", object=name, cause=repr(error)) from error
        return decode_key_object(data, name=name)

    async def _list(self) -> list[str]:
        try:
            return list(await self._objects.list(self._directory))
        except OSError as error:
            raise UnavailableError("tier 2 cannot be read", object=self._directory, cause=repr(error)) from error

    async def _delete(self, name: str) -> None:
        try:
            await self._objects.delete(name)
        except OSError as error:
            raise UnavailableError("tier 2 cannot be written", object=name, cause=repr(error)) from error


async def _each(work: Callable[[str], Awaitable[_T]], names: Iterable[str]) -> list[_T]:
    """The results in order. Raises the first failure, once none of the calls runs any more."""
    places = asyncio.Semaphore(_PARALLEL)

    async def one(name: str) -> _T:
        async with places:
            return await work(name)

    found = await asyncio.gather(*map(one, names), return_exceptions=True)
    for failure in found:
        if isinstance(failure, BaseException):
            raise failure
    return [result for result in found if not isinstance(result, BaseException)]
