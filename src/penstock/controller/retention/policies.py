"""Retention policies at three levels: stored, checked for contradictions with other levels, and resolved for one
stream.

Source: docs/design/0011-retention-policies.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.effective_policy import encode_effective
from penstock.codec.control.policies import PolicyRecord, policy_fields, read_policy
from penstock.codec.control.policy_document import encode_document, value_of
from penstock.codec.control.streams import MarkerRecord, StreamRecord
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.evidence.record_streams import record_policy
from penstock.controller.metadata import CHUNK, Stored, changing, overwrite, stored
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.workflows import exclusive, settled
from penstock.core.policies.approvals import shortens
from penstock.core.policies.audit_policy import check_audit_policy
from penstock.core.policies.levels import (
    LIMITS,
    check_effective,
    level_of,
    pravega_view,
    resolve,
    validate,
    with_pravega,
)
from penstock.core.policies.locks import Documents, check_change, check_new, lock_of
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    RetentionLockError,
    VersionTooNewError,
)
from penstock.model.names import RECORD_STREAMS, StreamName
from penstock.model.policies import RetentionPolicy
from penstock.model.retention import EMPTY, EffectivePolicy, Inherit, Level, PolicyDocument, PolicyTarget, Retain
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import KEY_ABSENT, TableCheck, TableEntry, TablePut

POLICIES = "policies"
"""The lock under which policies change: each change is checked against the current state of all others."""

UNREADABLE = (CorruptDataError, VersionTooNewError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The documents that form a stream's policy. ``faults``: levels whose document cannot be read; they count as empty.

    ``checks`` go into every batch that this policy decides. The batch is refused if a document above the stream has changed
    since it was read, or if the scope got a hold. The stream's own document is in its record, and such a batch is
    conditional on that record too.
    """

    stream: PolicyDocument = EMPTY
    scope: PolicyDocument = EMPTY
    server: PolicyDocument = EMPTY
    faults: Mapping[Level, PenstockError] | None = None
    checks: tuple[TableCheck, ...] = ()

    @property
    def unreadable(self) -> str:
        """Which levels cannot be read and why, for people; empty where all can."""
        return "; ".join(f"{level.value}: {error}" for level, error in (self.faults or {}).items())

    @property
    def documents(self) -> Documents:
        """The documents alone, with those that cannot be read as empty."""
        return Documents(stream=self.stream, scope=self.scope, server=self.server)

    @property
    def effective(self) -> EffectivePolicy:
        """The policy that applies. If a level cannot be read: a policy that keeps everything."""
        return EffectivePolicy() if self.faults else _resolved(self.stream, self.scope, self.server)

    def check(self) -> EffectivePolicy:
        """As ``effective``. Raises CorruptDataError, VersionTooNewError where a level cannot be read."""
        for error in (self.faults or {}).values():
            raise error
        return self.effective

    def with_stream(self, document: PolicyDocument) -> Levels:
        """The same levels with another document for the stream, even if its own cannot be read."""
        faults = dict(self.faults or {})
        faults.pop(Level.STREAM, None)
        return replace(self, stream=document, faults=faults or None)


@lru_cache(maxsize=1024)
def _resolved(stream: PolicyDocument, scope: PolicyDocument, server: PolicyDocument) -> EffectivePolicy:
    """As ``resolve``. A store has few different policies, and the planner works each object out once."""
    return resolve(stream, scope, server)


def level_keys(name: StreamName) -> tuple[bytes, bytes, bytes]:
    """Keys of the documents above the stream, and of the record of its scope, which every hold on the scope changes."""
    return keys.scope_policy(name.scope), keys.SERVER_POLICY, keys.scope(name.scope)


def read_levels(name: StreamName, record: StreamRecord, above_it: Sequence[TableEntry]) -> Levels:
    """Read the levels from the stream's record and the entries of ``level_keys``. The caller reads the holds after these.

    Only its own level applies to an internal stream: a default for users' data must not truncate the store's own state.
    """
    scope, server, _ = above_it
    faults: dict[Level, PenstockError] = {}
    own = above = server_wide = EMPTY
    try:
        own = document_of(record)
    except UNREADABLE as error:
        faults[Level.STREAM] = error
    if not name.is_internal:
        try:
            above = _document(scope)
        except UNREADABLE as error:
            faults[Level.SCOPE] = error
        try:
            server_wide = _document(server)
        except UNREADABLE as error:
            faults[Level.SERVER] = error
    checks: tuple[TableCheck, ...] = ()
    if not name.is_internal:
        checks = tuple(TableCheck(key=entry.key, version=entry.version) for entry in above_it)
    return Levels(stream=own, scope=above, server=server_wide, faults=faults or None, checks=checks)


def _document(entry: TableEntry) -> PolicyDocument:
    found: Stored[PolicyRecord] = stored(entry, PolicyRecord)
    return EMPTY if found.value is None else found.value.document


async def load_levels(ctx: Context, view: StreamView) -> Levels:
    """The documents that apply to the stream."""
    return read_levels(view.name, view.record, await ctx.metadata.entries(level_keys(view.name)))


def document_of(record: StreamRecord) -> PolicyDocument:
    """The stream's own document. Raises CorruptDataError, VersionTooNewError."""
    if record.policy is None:
        return with_pravega(EMPTY, record.config.retention)
    return read_policy(record.policy)


def with_document(record: StreamRecord, document: PolicyDocument) -> StreamRecord:
    """The record with another document, and the view of it that Pravega's clients see."""
    view = pravega_view(document)
    plain = document == with_pravega(EMPTY, view)
    return replace(
        record, config=replace(record.config, retention=view), policy=None if plain else policy_fields(document)
    )


def with_retention(record: StreamRecord, retention: RetentionPolicy | None) -> StreamRecord:
    """The record after a Pravega client has written its part of the policy; the rest of the document stays.

    Raises CorruptDataError, VersionTooNewError: the document cannot be read, and so its rest could not be kept.
    """
    if retention == record.config.retention:
        return record
    return with_document(record, with_pravega(document_of(record), retention))


def own_policy_puts(name: StreamName, record: StreamRecord) -> list[TablePut]:
    """The mark of a stream with its own document. Write it in the batch that sets the document."""
    has_own = record.policy is not None or record.config.retention is not None
    return [overwrite(keys.policy(name), MarkerRecord())] if has_own else []


async def check_own_policy(ctx: Context, view: StreamView, before: Documents | None = None) -> Sequence[TableCheck]:
    """Check the document of a stream's changed record against the locks of all levels. ``before``: the documents so far.

    Returns what the batch of the change is conditional on. Raises RetentionLockError.
    """
    if view.name.is_internal:
        return ()
    levels = await load_levels(ctx, view)
    had = replace(levels.documents, stream=EMPTY) if before is None else before
    check_change(had, levels.documents, now_ms=ctx.retention_clock.certain_ms(), stream=view.name)
    return levels.checks


async def gate_puts(
    ctx: Context, target: PolicyTarget, before: Documents, after: Documents
) -> Sequence[TablePut | TableCheck]:
    """What the batch of a policy's change must contain where shorter retention needs approval. Raises
    ApprovalRequiredError."""
    if not shortens(before.effective, after.effective):
        return ()
    own = after.stream if isinstance(target, StreamName) else after.server if target is None else after.scope
    return await ctx.gate.puts("shorten", target, {"document": encode_document(own)})


async def restorable(ctx: Context, view: StreamView) -> tuple[StreamRecord, Sequence[TableCheck]]:
    """The record of a deleted stream, without the limits that a lock above it forbids since, and what its restoration
    is conditional on. Raises RetentionLockError."""
    try:
        return view.record, await check_own_policy(ctx, view)
    except RetentionLockError:
        own = document_of(view.record)
        retain = Retain(lock_until=own.retain.lock_until)
        record = with_document(view.record, replace(own, retain=retain, unsubscribed=EMPTY.unsubscribed))
        return record, await check_own_policy(ctx, replace(view, record=record))


class Limits(Protocol):
    """Append limits that the store enforces."""

    async def refresh(self, stream: StreamName) -> None:
        """Adjust the stream's limit to its policy as it is now."""


class Policies:
    """Documents of all levels. Retention looks at a stream soon after its policy changes."""

    def __init__(self, ctx: Context, limits: Limits) -> None:
        self._ctx = ctx
        self._limits = limits

    async def get(self, target: PolicyTarget) -> PolicyDocument:
        """The document of this level alone.

        Raises: ScopeNotFoundError, StreamNotFoundError; CorruptDataError, VersionTooNewError (it cannot be read).
        """
        if isinstance(target, StreamName):
            return document_of((await self._ctx.streams.get(target)).record)
        if target is not None:
            await self._ctx.streams.check_scope(target)
        (entry,) = await self._ctx.metadata.entries([_key(target)])
        return _document(entry)

    async def effective(self, stream: StreamName) -> EffectivePolicy:
        """The policy that applies to the stream. Raises as ``get``."""
        return (await load_levels(self._ctx, await self._ctx.streams.get(stream))).check()

    async def set(self, target: PolicyTarget, document: PolicyDocument) -> None:
        """Replace the document of a level, also one that cannot be read. Raises as ``get`` otherwise;
        InvalidArgumentError with ``field``, ``value``, ``rule``, ``level`` and ``accepted``."""
        checked = validate(document, target)
        async with self._ctx.locks.hold(POLICIES):
            if isinstance(target, StreamName):
                await self._ctx.tasks.run(self._set_stream(target, checked))
            else:
                await self._set_level(target, checked)
        if isinstance(target, StreamName):
            await self._limits.refresh(target)

    async def _set_stream(self, name: StreamName, document: PolicyDocument) -> None:
        ctx = self._ctx
        is_record = name in RECORD_STREAMS
        if name.is_internal and not is_record:
            raise _internal("stream", str(name), Level.STREAM)
        own = not document.is_empty
        if is_record:
            check_audit_policy(document)
            document = document if own else with_pravega(EMPTY, record_policy(ctx.settings))

        async def attempt() -> None:
            view = await settled(ctx, name)
            before = await load_levels(ctx, view)
            levels = before.with_stream(document)
            check_effective(resolve(levels.stream, levels.scope, levels.server), name)
            check_change(before.documents, levels.documents, now_ms=ctx.retention_clock.certain_ms(), stream=name)
            check_new(before.stream, levels.documents, Level.STREAM, now_ms=ctx.clock.now_ms())
            changed = with_document(view.record, document)
            gate = await gate_puts(ctx, name, before.documents, levels.documents)
            await ctx.metadata.put(
                view.put(changed),
                *levels.checks,
                *gate,
                *own_policy_puts(name, changed),
                *([overwrite(retention_keys.record_policy(name), MarkerRecord())] if is_record and own else []),
                *ctx.audit.puts([_entry(name, _shown(view.record), document, levels.effective)]),
            )
            if is_record and not own:
                await ctx.metadata.remove_keys([retention_keys.record_policy(name)])
            if document.is_empty:
                # Remove the mark last: a stale mark costs one read, a missing one would hide the stream from its
                # scope's changes.
                await ctx.metadata.remove_keys([keys.policy(name)])

        async with exclusive(ctx, name):
            await changing(attempt)
        try:
            if lock_of(document) is not None:
                # When this returns, client removals that were checked before the lock have ended.
                await ctx.every_removal_passed(name)
        finally:
            ctx.audit.soon()
            ctx.attention.dirty(name)

    async def _set_level(self, target: str | None, document: PolicyDocument) -> None:
        ctx = self._ctx
        if target is not None and target.startswith("_"):
            raise _internal("scope", target, Level.SCOPE)
        if target is not None:
            # Check before anything is marked dirty: a refused name must not reach the sweeps.
            await ctx.streams.check_scope(target)

        async def attempt() -> None:
            if target is not None:
                await ctx.streams.check_scope(target)
            (entry,) = await ctx.metadata.entries([_key(target)])
            try:
                before, shown = _document(entry), None
            except UNREADABLE as error:
                before, shown = EMPTY, str(error)
            if _limits(before) or _limits(document) or lock_of(document) is not None or lock_of(before) is not None:
                await self._check_below(target, before, document)
            put = TablePut(key=entry.key, value=PolicyRecord(document=document).encode(), version=entry.version)
            was = encode_document(before) if shown is None else {"unreadable": shown}
            gate = await self._gate_level(target, before, document)
            await ctx.metadata.put(put, *gate, *ctx.audit.puts([_entry(target, was, document, None)]))

        try:
            await changing(attempt)
            if lock_of(document) is not None:
                await self._removals_passed(target)
        finally:
            # Also after a failure: the policy can be durable although its answer was lost.
            ctx.audit.soon()
            ctx.attention.dirty_all(target)

    async def _gate_level(
        self, target: str | None, before: PolicyDocument, document: PolicyDocument
    ) -> Sequence[TablePut | TableCheck]:
        if target is None:
            return await gate_puts(self._ctx, None, Documents(server=before), Documents(server=document))
        (entry,) = await self._ctx.metadata.entries([keys.SERVER_POLICY])
        had = Documents(scope=before, server=_or_empty(entry))
        return await gate_puts(self._ctx, target, had, replace(had, scope=document))

    async def _removals_passed(self, target: str | None) -> None:
        """Wait until everything that was decided before the lock is complete."""
        await self._ctx.locks.passed("stream/" if target is None else f"stream/{target}/")
        await self._ctx.every_removal_passed(target)

    async def _check_below(self, target: str | None, before: PolicyDocument, document: PolicyDocument) -> None:
        """Raises InvalidArgumentError if the document makes a stream's policy contradict itself; RetentionLockError if a
        lock forbids the change for some stream."""
        ctx = self._ctx
        now_ms = ctx.retention_clock.certain_ms()
        server = EMPTY
        scopes: dict[str, PolicyDocument] = {}
        if target is None:
            server = document
            async for entry in ctx.metadata.scan_all(keys.SCOPE_POLICIES):
                scope_name = ctx.set_aside.text(entry, keys.SCOPE_POLICIES)
                if scope_name is not None:
                    scopes[scope_name] = _or_empty(entry)
        else:
            (entry,) = await ctx.metadata.entries([keys.SERVER_POLICY])
            server = _or_empty(entry)
            scopes[target] = document

        def check(scope: str, own: PolicyDocument, name: StreamName | None = None) -> None:
            after = Documents(stream=own, scope=scopes.get(scope, EMPTY), server=server)
            had = replace(after, server=before) if target is None else replace(after, scope=before)
            check_effective(after.effective, name)
            check_change(had, after, now_ms=now_ms, stream=name)

        for scope in ("", *scopes) if target is None else (target,):
            check(scope, EMPTY)
        at = Documents(scope=document, server=server) if target is not None else Documents(server=document)
        check_new(before, at, level_of(target), now_ms=ctx.clock.now_ms())
        async for name, record in self._with_own(target):
            try:
                own = document_of(record)
            except UNREADABLE:
                # None of it is applied, whatever the other levels set.
                continue
            check(name.scope, own, name)

    async def _with_own(self, scope: str | None) -> AsyncIterator[tuple[StreamName, StreamRecord]]:
        """Streams of the scope, or all, with their own document."""
        ctx, prefix = self._ctx, b"policy/"
        names: list[StreamName] = []
        async for entry in ctx.metadata.scan_all(keys.policies_of(scope)):
            name = ctx.set_aside.stream(entry, prefix)
            if name is not None and not name.is_internal:
                names.append(name)
        for start in range(0, len(names), CHUNK):
            part = names[start : start + CHUNK]
            found = await ctx.metadata.entries([keys.stream(name) for name in part])
            for name, entry in zip(part, found, strict=True):
                record = None if entry.version == KEY_ABSENT else ctx.set_aside.read(entry, StreamRecord)
                # A stream whose record cannot be read has no policy: nothing can be decided about it.
                if record is not None:
                    yield name, record


def _key(target: str | None) -> bytes:
    return keys.SERVER_POLICY if target is None else keys.scope_policy(target)


def policy_change(name: StreamName, before: StreamRecord, after: StreamRecord) -> list[AuditEntry]:
    """The audit entry of a policy change that is part of a change of the stream's configuration; empty if the policy
    stays the same, and for internal streams. Raises what ``document_of`` raises for ``after``."""
    if name.is_internal or (before.policy, before.config.retention) == (after.policy, after.config.retention):
        return []
    return [_entry(name, _shown(before), document_of(after), None)]


async def shown_scope_policy(ctx: Context, scope: str) -> Mapping[str, Any]:
    """The document of a scope as JSON, even if it cannot be read."""
    (entry,) = await ctx.metadata.entries([keys.scope_policy(scope)])
    try:
        return encode_document(_document(entry))
    except UNREADABLE as error:
        return {"unreadable": str(error)}


async def server_document(ctx: Context) -> PolicyDocument:
    """The document of the server, empty if it cannot be read."""
    (entry,) = await ctx.metadata.entries([keys.SERVER_POLICY])
    return _or_empty(entry)


async def scope_document(ctx: Context, scope: str) -> tuple[PolicyDocument, TableCheck]:
    """The document of a scope, empty if it cannot be read, and the check that refuses a batch once it has changed."""
    (entry,) = await ctx.metadata.entries([keys.scope_policy(scope)])
    return _or_empty(entry), TableCheck(key=entry.key, version=entry.version)


def _or_empty(entry: TableEntry) -> PolicyDocument:
    try:
        return _document(entry)
    except UNREADABLE:
        return EMPTY


def _limits(document: PolicyDocument) -> bool:
    """Whether the document sets a limit that another level could contradict."""
    return any(not isinstance(value_of(document, path), Inherit) for path in LIMITS)


def _shown(record: StreamRecord) -> Mapping[str, Any]:
    try:
        return encode_document(document_of(record))
    except UNREADABLE as error:
        return {"unreadable": str(error), "stored": record.policy}


def _entry(
    target: PolicyTarget, before: Mapping[str, Any], document: PolicyDocument, effective: EffectivePolicy | None
) -> AuditEntry:
    """The audit entry of a policy change."""
    fields = {"level": level_of(target).value, "before": before, "after": encode_document(document)}
    if effective is not None:
        fields["policy"] = shown_policy(effective)
    return AuditEntry(kind=AuditKind.POLICY, target="" if target is None else str(target), fields=fields)


def shown_policy(policy: EffectivePolicy, paths: Sequence[str] = ()) -> dict[str, Any]:
    """Effective values with their origin, by path; only those that a level sets, or that are in ``paths``."""
    return {
        path: item
        for path, item in _flat(encode_effective(policy)).items()
        if item["from"] != Level.DEFAULT.value or path in paths
    }


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and "from" not in value:
            found.update({f"{name}.{leaf}": item for leaf, item in value.items()})
        elif isinstance(value, Mapping):
            found[name] = value
    return found


def _internal(field: str, value: str, level: Level) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the retention of an internal {field} cannot be changed",
        field=field,
        value=value,
        rule=f"a policy is set on a {field} of users",
        level=level.value,
        accepted=f"a {field} whose name does not begin with an underscore",
    )
