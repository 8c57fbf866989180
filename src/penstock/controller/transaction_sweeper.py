"""The sweeper: aborts transactions that have missed their lease, and finishes whatever was left half done.

The same pass runs once at opening. A failure in one place stops no other; it is logged, and tried again by the next pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from penstock.codec.metadata import TransactionRecord
from penstock.controller import keys
from penstock.controller.commits import prune_completed
from penstock.controller.context import Context
from penstock.controller.decisions import abort_if_open
from penstock.controller.holds import Holds
from penstock.controller.metadata import PAGE
from penstock.controller.reader_groups import ReaderGroups
from penstock.controller.scopes import Scopes
from penstock.controller.tasks import each
from penstock.controller.workflows import exclusive, settle_alone
from penstock.core.transactions import TransactionFacts, has_expired
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.ports.segment_service import TableRemoval

log = logging.getLogger(__name__)

AT_ONCE = 16
PRUNED_AT_ONCE = 200


class Sweeper:
    """One pass at a time; ``run`` lives in a task of the controller's."""

    def __init__(self, ctx: Context, scopes: Scopes, groups: ReaderGroups, holds: Holds) -> None:
        self._ctx = ctx
        self._scopes = scopes
        self._groups = groups
        self._holds = holds
        self._old_from: bytes | None = None

    async def run(self) -> None:
        """Sweep, again and again."""
        pause_ms = self._ctx.settings.sweep_ms
        while pause_ms is not None:
            await asyncio.sleep(pause_ms / 1000)
            try:
                await self.sweep()
            except PenstockError as error:
                log.warning("sweep was cut short", extra={"error": str(error)})

    async def sweep(self) -> None:
        """One pass. When it returns, what had expired is aborted, and what could be finished is."""
        await self._ctx.flush_finished()
        await self._abort_expired()
        await self.resume()
        await self._holds.sweep()
        await self._forget_old()

    async def _abort_expired(self) -> None:
        ctx = self._ctx
        now_ms = ctx.clock.now_ms()
        async for entry in ctx.metadata.scan_all(b"txn/"):
            txn = keys.txn_of(entry.key)
            facts = TransactionFacts(txn=txn, record=TransactionRecord.decode(entry.value))
            if has_expired(facts, now_ms=now_ms):
                name = StreamName.parse(entry.key[len(b"txn/") :].rsplit(b"/", 1)[0].decode())
                await self._try(self._abort(name, txn, now_ms), str(name))

    async def _abort(self, name: StreamName, txn: UUID, now_ms: int) -> None:
        # Decided from the record as it is by then: it may have been renewed, or committed with its batch.
        if await abort_if_open(self._ctx, name, txn, expired_at_ms=now_ms):
            self._ctx.telemetry.add("transactions_expired")

    async def resume(self) -> None:
        """Finish all workflows that have begun and not ended."""
        await self._resume_all(b"scope-work/", self._scopes.resume)
        await self._resume_all(b"group-work/", self._groups.resume)
        streams = await self._streams_with_work()
        await each(streams, lambda text: self._try(self._settle(text), text), limit=AT_ONCE)

    async def _resume_all(self, prefix: bytes, finish: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        names = [entry.key[len(prefix) :].decode() async for entry in self._ctx.metadata.scan_all(prefix)]
        await each(names, lambda name: self._try(finish(name), name), limit=AT_ONCE)

    async def _streams_with_work(self) -> list[str]:
        metadata = self._ctx.metadata
        found = {entry.key[len(b"work/") :].decode(): None async for entry in metadata.scan_all(b"work/")}
        async for entry in metadata.scan_all(b"queue/"):
            found[entry.key[len(b"queue/") :].rsplit(b"/", 1)[0].decode()] = None
        return list(found)

    async def _settle(self, text: str) -> None:
        ctx, name = self._ctx, StreamName.parse(text)
        marker = (await ctx.metadata.entries([keys.work(name)]))[0]
        ctx.queues.forget(name)  # there may be decisions of a process that died
        await settle_alone(ctx, name)
        if marker.version >= 0:
            # Settled after the marker was read: it is stale, unless a workflow has set it anew since.
            await ctx.metadata.remove_if_unchanged([TableRemoval(key=marker.key, version=marker.version)])

    async def _try(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await self._ctx.tasks.run(work)
        except PenstockError as error:
            log.warning("workflow could not be finished yet", extra={"name_of": name, "error": str(error)})
            self._ctx.telemetry.add("workflow_failures")

    async def _forget_old(self) -> None:
        """Look at one page of remembered outcomes, and let the streams that hold old ones forget them.

        Streams that complete transactions do so on their own; this finds those that have gone quiet.
        """
        ctx = self._ctx
        page = await ctx.metadata.scan(b"done-at/", after=self._old_from, limit=PAGE)
        self._old_from = page[-1].key if len(page) == PAGE else None
        names = {entry.key[len(b"done-at/") :].rsplit(b"/", 2)[0].decode(): None for entry in page}
        for text in names:
            name = StreamName.parse(text)
            async with exclusive(ctx, name):
                await prune_completed(ctx, name, limit=PRUNED_AT_ONCE)
