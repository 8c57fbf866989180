"""The sweeper: aborts transactions whose lease has ended, and finishes incomplete workflows.

The same pass runs once at opening. A failure does not stop the other work; it is logged, and the next pass tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from penstock.codec.control.streams import TransactionRecord, TransactionState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.grace.deleted_streams import DeletedStreams
from penstock.controller.groups.reader_groups import ReaderGroups
from penstock.controller.metadata import PAGE
from penstock.controller.retention.holds import Holds
from penstock.controller.streams.scopes import Scopes
from penstock.controller.streams.workflows import exclusive, settle_alone
from penstock.controller.tasks import each
from penstock.controller.transactions.commits import prune_completed
from penstock.controller.transactions.decisions import abort_if_open
from penstock.core.streams.transactions import TransactionFacts, has_expired
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.ports.data.tables import TableEntry, TableRemoval

log = logging.getLogger(__name__)

AT_ONCE = 16  # streams that a sweep works on at a time
PRUNED_AT_ONCE = 200  # outcomes of one stream that a sweep removes

CLOCK_RECORD_MS = 10_000
"""Maximum age of the clock's record while transactions are open: as long as their shortest lease."""


class Sweeper:
    """One pass at a time; ``run`` is a task of the controller."""

    def __init__(
        self,
        ctx: Context,
        scopes: Scopes,
        groups: ReaderGroups,
        holds: Holds,
        erasures: Erasures,
        deleted: DeletedStreams,
        others: Sequence[Callable[[], Coroutine[Any, Any, object]]],
    ) -> None:
        self._ctx = ctx
        self._scopes = scopes
        self._groups = groups
        self._holds = holds
        self._erasures = erasures
        self._deleted = deleted
        self._others = others
        self._old_from: bytes | None = None

    async def run(self) -> None:
        """Sweep forever."""
        pause_ms = self._ctx.settings.sweep_ms
        while pause_ms is not None:
            await asyncio.sleep(pause_ms / 1000)
            try:
                await self.sweep()
            except PenstockError as error:
                log.warning("sweep ended early", extra={"error": str(error)})
            except Exception:
                log.exception("sweep ended early because of an unexpected error")

    async def sweep(self) -> None:
        """One pass. When it returns, expired transactions are aborted, and decided ones are finished if possible.

        Raises the first error of a part, after all parts have run.
        """
        # One part may fail because the store is unavailable, or because a record is damaged. The others run.
        failed: PenstockError | None = None
        parts = (
            self._ctx.work.flush,
            self._abort_expired,
            self.resume,
            self._holds.sweep,
            self._erasures.resume,
            self._deleted.sweep,
            *self._others,
            self._forget_old,
        )
        for part in parts:
            try:
                await part()
            except PenstockError as error:
                failed = failed or error
            except Exception:
                log.exception("part of a sweep failed with an unexpected error", extra={"part": part.__name__})
        if failed is not None:
            raise failed

    async def _abort_expired(self) -> None:
        ctx = self._ctx
        now_ms = ctx.retention_clock.now_ms()
        is_open = False
        async for entry in ctx.metadata.scan_all(b"txn/"):
            txn = ctx.set_aside.key(entry, keys.txn_of)
            name = ctx.set_aside.stream(entry, b"txn/", last=1)
            record = ctx.set_aside.read(entry, TransactionRecord)
            if txn is None or name is None or record is None:
                continue
            is_open = is_open or record.state is TransactionState.OPEN
            if has_expired(TransactionFacts(txn=txn, record=record), now_ms=now_ms):
                await self._try(self._abort(name, txn, now_ms), str(name))

        if is_open:
            # After a crash the clock continues from its record. An old record would extend leases by its age.
            await ctx.retention_clock.record_within(CLOCK_RECORD_MS)

    async def _abort(self, name: StreamName, txn: UUID, now_ms: int) -> None:
        # Decided from the current record: it may have been renewed, or committed with its batch.
        if await abort_if_open(self._ctx, name, txn, expired_at_ms=now_ms):
            self._ctx.telemetry.add("transactions_expired")

    async def resume(self) -> None:
        """Finish all pending workflows."""
        await self._resume_all(b"scope-work/", self._scopes.resume)
        await self._resume_all(b"group-work/", self._groups.resume)
        streams = await self._streams_with_work()
        await each(streams, lambda text: self._try(self._settle(text), text), limit=AT_ONCE)

    async def _resume_all(self, prefix: bytes, finish: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        found = [self._text(entry, prefix) async for entry in self._ctx.metadata.scan_all(prefix)]
        names = [name for name in found if name is not None]
        await each(names, lambda name: self._try(finish(name), name), limit=AT_ONCE)

    async def _streams_with_work(self) -> list[str]:
        found: dict[str, None] = {}
        for prefix, last in ((b"work/", 0), (b"queue/", 1)):
            async for entry in self._ctx.metadata.scan_all(prefix):
                name = self._ctx.set_aside.stream(entry, prefix, last=last)
                if name is not None:
                    found[str(name)] = None
        return list(found)

    def _text(self, entry: TableEntry, prefix: bytes) -> str | None:
        return self._ctx.set_aside.key(entry, lambda key: key[len(prefix) :].decode())

    async def _settle(self, text: str) -> None:
        ctx, name = self._ctx, StreamName.parse(text)
        marker = (await ctx.metadata.entries([keys.work(name)]))[0]
        ctx.transactions.queues.forget(name)  # a crashed process may have left decisions
        await settle_alone(ctx, name)
        if marker.version >= 0:
            # Settled after the marker was read, so it is stale, unless a workflow has set it again since.
            await ctx.metadata.remove_if_unchanged([TableRemoval(key=marker.key, version=marker.version)])

    async def _try(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await self._ctx.tasks.run(work)
        except PenstockError as error:
            log.warning("workflow could not be finished yet", extra={"name_of": name, "error": str(error)})
            self._ctx.telemetry.add("workflow_failures")
        except Exception:
            # A defect with one stream must not keep the store from starting or stop the sweeps of the others.
            log.exception("workflow could not be finished because of an unexpected error", extra={"name_of": name})
            self._ctx.telemetry.add("workflow_failures")

    async def _forget_old(self) -> None:
        """Read one page of outcomes, and remove the old ones of the streams in it.

        Streams that complete transactions do this on their own; this finds the inactive ones.
        """
        ctx = self._ctx
        page = await ctx.metadata.scan(b"done-at/", after=self._old_from, limit=PAGE)
        self._old_from = page[-1].key if len(page) == PAGE else None
        names = dict.fromkeys(ctx.set_aside.stream(entry, b"done-at/", last=2) for entry in page)
        for name in names:
            if name is not None:
                await self._try(self._forget_old_of(name), str(name))

    async def _forget_old_of(self, name: StreamName) -> None:
        async with exclusive(self._ctx, name):
            await prune_completed(self._ctx, name, limit=PRUNED_AT_ONCE)
