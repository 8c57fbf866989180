"""Scopes: created in one step; deleted only while empty. A refused deletion changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.control.streams import MarkerRecord, ScopeRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing, create, overwrite
from penstock.controller.retention.holds import forget_ended, holds_of_scope
from penstock.controller.retention.policies import scope_document, shown_scope_policy
from penstock.controller.retention.removals import scope_deletion
from penstock.core.policies.locks import Documents, promises
from penstock.model.callers import unattributed
from penstock.model.errors import AlreadyExistsError, NotEmptyError, ScopeNotFoundError, SegmentNotFoundError
from penstock.model.names import KEY_VALUE_TABLES, StreamName, check_name
from penstock.ports.control.scopes import PAGE_MAX, ScopeContents
from penstock.ports.data.tables import TableEntry, TableRemoval


class Scopes:
    """Scopes of the store."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def create(self, scope: str) -> None:
        """Raises AlreadyExistsError, InvalidNameError."""
        check_name("scope", scope)
        async with self._ctx.locks.hold(f"scope/{scope}"):
            await changing(lambda: self._create(scope))

    async def _create(self, scope: str) -> None:
        found = await self._ctx.metadata.get(keys.scope(scope), ScopeRecord)
        if found.value is not None and found.value.deleting:
            with unattributed():  # Another call deletes the scope.
                await self._finish_deletion(scope)
            found = await self._ctx.metadata.get(keys.scope(scope), ScopeRecord)
        if found.value is not None:
            raise AlreadyExistsError("scope exists", scope=scope)
        await self._ctx.metadata.put(create(keys.scope(scope), ScopeRecord()))

    async def delete(self, scope: str) -> None:
        """Raises ScopeNotFoundError, RetentionHoldError, RetentionLockError (its policy has a lock), NotEmptyError."""
        async with self._ctx.locks.hold(f"scope/{scope}"):
            await changing(lambda: self._delete(scope))

    async def _delete(self, scope: str) -> None:
        ctx = self._ctx
        found = await ctx.metadata.get(keys.scope(scope), ScopeRecord)
        if found.value is None:
            raise ScopeNotFoundError("no such scope", scope=scope)
        if not found.value.deleting:
            for hold in await holds_of_scope(ctx, scope):
                raise hold.refuse("the deletion of the scope")
            document, policy = await scope_document(ctx, scope)
            for lock in promises(Documents(scope=document), now_ms=ctx.retention_clock.certain_ms()):
                raise lock.refuse("the deletion of the scope", scope=scope)
            gate = await ctx.gate.puts("delete", scope, {})
            if await self._holds_anything(scope):
                raise NotEmptyError("scope still holds streams, reader groups or key-value tables", scope=scope)
            await ctx.metadata.put(
                found.put(ScopeRecord(deleting=True)), overwrite(keys.scope_work(scope), MarkerRecord()), policy, *gate
            )
        if not await self._finish_deletion(scope):
            raise NotEmptyError("scope still holds streams, reader groups or key-value tables", scope=scope)

    async def _holds_anything(self, scope: str) -> bool:
        for prefix in (f"stream/{scope}/", f"group/{scope}/"):
            if await self._ctx.metadata.scan(prefix.encode(), limit=1):
                return True
        return await self._holds_table(scope)

    async def _holds_table(self, scope: str) -> bool:
        return bool(await self._tables(scope, after=None, limit=1))

    async def _tables(self, scope: str, *, after: bytes | None, limit: int) -> Sequence[TableEntry]:
        """Key-value tables, including those being created. A record is written before its creator checks the scope."""
        first, last = f"{scope}/".encode(), f"{scope}/\x7f".encode()
        try:
            return await self._ctx.segments.table_scan(
                KEY_VALUE_TABLES, after=after, limit=limit, first=first, last=last
            )
        except SegmentNotFoundError:
            return ()

    async def describe(self, scope: str) -> ScopeContents:
        """See ``ControlPlane.scopes.describe``. Records that cannot be read count too."""
        ctx = self._ctx
        await ctx.streams.check_scope(scope)
        prefix = f"stream/{scope}/".encode()
        names = [ctx.set_aside.text(entry, prefix) async for entry in ctx.metadata.scan_all(prefix)]
        internal = sum(name is not None and StreamName(scope, name).is_internal for name in names)
        groups = [entry async for entry in ctx.metadata.scan_all(f"group/{scope}/".encode())]
        tables, after = 0, None
        while page := await self._tables(scope, after=after, limit=PAGE_MAX):
            tables, after = tables + len(page), page[-1].key
        return ScopeContents(
            streams=len(names) - internal, internal_streams=internal, reader_groups=len(groups), tables=tables
        )

    async def _finish_deletion(self, scope: str) -> bool:
        """Remove the scope, or restore it if a stream was created first; returns whether it was removed.

        A deletion lists streams after its mark is durable. A creation checks the mark after its stream's record is
        durable. So one of them sees the other.
        """
        ctx = self._ctx
        found = await ctx.metadata.get(keys.scope(scope), ScopeRecord)
        empty = not await self._holds_anything(scope)
        if found.value is not None and found.value.deleting:
            if empty:
                # Remove its policy and the remains of ended holds first, so that a later scope of the name starts
                # empty.
                await forget_ended(ctx, scope)
                puts = ctx.audit.puts([scope_deletion(scope, await shown_scope_policy(ctx, scope))])
                await ctx.metadata.change(puts, [TableRemoval(key=keys.scope_policy(scope)), found.remove()])
                ctx.audit.soon()
            else:
                await ctx.metadata.put(found.put(ScopeRecord()))
        await ctx.metadata.remove_keys([keys.scope_work(scope)])
        return empty

    async def resume(self, scope: str) -> None:
        """Finish an interrupted deletion."""
        async with self._ctx.locks.hold(f"scope/{scope}"):
            await changing(lambda: self._finish_deletion(scope))

    async def exists(self, scope: str) -> bool:
        found = await self._ctx.metadata.get(keys.scope(scope), ScopeRecord)
        return found.value is not None and not found.value.deleting

    async def list(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        """Names after ``after``, sorted; internal scopes are left out."""
        prefix = b"scope/"
        limit = min(limit, PAGE_MAX)
        page: list[str] = []
        position = keys.scope(after) if after else None
        while len(page) < limit:
            entries = await self._ctx.metadata.scan(prefix, after=position, limit=limit - len(page))
            if not entries:
                break
            position = entries[-1].key
            page += [
                name
                for entry in entries
                if (name := self._ctx.set_aside.text(entry, prefix)) is not None
                and not (self._ctx.set_aside.read(entry, ScopeRecord) or ScopeRecord()).deleting
                and not name.startswith("_")
            ]
        return page
