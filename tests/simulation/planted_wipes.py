"""Planted bugs in wipes of an encrypted log: after each, somebody can read what was wiped, or nobody what must stay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from penstock.model.ledgers import LogWipe
from penstock.storage.ledgers.keyring import Keyring
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys


@contextmanager
def secrets_are_never_destroyed() -> Iterator[None]:
    """A wipe lets the record forget the ledgers, and their keys stay."""

    async def destroy_others(self: Keyring, ledgers: Any) -> LogWipe:
        return LogWipe(at_ms=1)

    with patch.object(Keyring, "destroy_others", destroy_others), patch.object(Keyring, "retire", lambda *_: None):
        yield


@contextmanager
def keys_before_the_record() -> Iterator[None]:
    """A wipe destroys the keys of ledgers that the record still names."""
    original = LedgerLog.begin_wipe

    async def begin_wipe(self: LedgerLog) -> Any:
        upto = await original(self)
        newest = self._current.writer.ledger if self._current is not None else 0
        await self._wiping.keyring.destroy_others(lambda: [newest])
        return upto

    with patch.object(LedgerLog, "begin_wipe", begin_wipe):
        yield


@contextmanager
def secrets_are_deleted_without_a_marker() -> Iterator[None]:
    """A request that arrives late writes the secret again."""

    async def destroy(self: ObjectLedgerKeys, name: str) -> None:
        if await self._marked(name) is None:
            await self._delete(name)

    with patch.object(ObjectLedgerKeys, "_destroy", destroy):
        yield


def orphans_keep_their_keys() -> Any:
    """A wipe destroys only the keys that its owner knows."""

    async def destroy_others(self: ObjectLedgerKeys, kept: Any, *, epoch: int) -> LogWipe:
        return LogWipe(at_ms=1)

    return patch.object(ObjectLedgerKeys, "destroy_others", destroy_others)


@contextmanager
def a_wipe_does_not_roll() -> Iterator[None]:
    """Frames of the current ledger stay readable, because its key is needed."""

    async def begin_wipe(self: LedgerLog) -> Any:
        self._wiping.upto = 0
        return self._next - 1

    with patch.object(LedgerLog, "begin_wipe", begin_wipe):
        yield


@contextmanager
def one_roll_is_always_enough() -> Iterator[None]:
    """A wipe rolls while frames are not acknowledged: the next ledger gets them again."""

    async def begin_wipe(self: LedgerLog) -> Any:
        upto = self._next - 1
        self._start_roll()
        if self._rolling is not None:
            await asyncio.wait([self._rolling])
        self._check_online()
        self._wiping.upto = min(upto, self._ledger_first - 1)
        return upto

    with patch.object(LedgerLog, "begin_wipe", begin_wipe):
        yield


PLANTED_WIPES: dict[str, Callable[[], Any]] = {
    one.__name__: one
    for one in (
        secrets_are_never_destroyed,
        keys_before_the_record,
        secrets_are_deleted_without_a_marker,
        orphans_keep_their_keys,
        a_wipe_does_not_roll,
        one_roll_is_always_enough,
    )
}
