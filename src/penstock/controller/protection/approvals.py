"""Four eyes: requests, their approval, and their execution, exactly once.

The step that performs an approved action also marks its request as executed, in one batch. So after a crash it is either
both or neither, and the next sweep continues. Source: docs/design/0055-four-eyes.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, assert_never

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.approvals import ApprovalRecord, ApprovalRuleRecord, ApprovalState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import Stored, changing, create, stored
from penstock.controller.settings import DAY_MS
from penstock.core.cases.case import overlaps
from penstock.core.policies.approvals import (
    WITHDRAWN_OF_ONE,
    check_may_decide,
    check_requester,
    checked_actions,
    request_digest,
    target_of,
    too_many,
)
from penstock.model.answers.approvals import ApprovalRequest
from penstock.model.callers import Caller, calling, current_caller
from penstock.model.errors import (
    ApprovalRequiredError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.model.identity import Identity
from penstock.model.names import SYSTEM_SCOPE, StreamName
from penstock.model.retention import PolicyTarget
from penstock.ports.data.tables import TableCheck, TablePut

log = logging.getLogger(__name__)

_KEPT_MS = 30 * 86_400_000
"""How long a request that ended is listed. The audit stream keeps it longer."""

_FINAL = (ConflictError, InvalidArgumentError, NotFoundError, PermissionDeniedError)
"""Errors after which an approved action is not tried again: it would fail in the same way, or was approved for another
state."""

Facts = Callable[[str, PolicyTarget, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
Perform = Callable[[str, PolicyTarget, Mapping[str, Any]], Awaitable[object]]

_EXECUTING: ContextVar[str | None] = ContextVar("penstock_approved_request", default=None)


def text_of(target: PolicyTarget) -> str:
    return "" if target is None else str(target)


def _withdrew(record: ApprovalRecord, requester: str, now_ms: int) -> bool:
    """Whether the requester withdrew it within the last day."""
    is_own = record.state is ApprovalState.WITHDRAWN and record.requested_by == requester
    return is_own and now_ms - (record.decided_ms or record.requested_ms) < DAY_MS


class Approvals:
    """``ports.control.approvals.Approvals``, and the gate that every action of a person passes.

    ``facts`` returns the state that an action depends on; ``perform`` performs it, through the gate.
    """

    def __init__(self, ctx: Context, facts: Facts, perform: Perform) -> None:
        self._ctx = ctx
        self._facts = facts
        self._perform = perform

    # --- the gate -----------------------------------------------------------------------------------------------

    async def puts(
        self, action: str, target: PolicyTarget, arguments: Mapping[str, Any], *, targets: Sequence[str] | None = None
    ) -> Sequence[TablePut | TableCheck]:
        """What the batch of the action must contain. Raises ApprovalRequiredError: nothing may be done; the request for
        approval is recorded. ConflictError: what was approved has changed meanwhile."""
        if isinstance(target, StreamName) and target.is_internal:
            return ()
        needed, checks = await (self._rules(target) if targets is None else self._rules_of_case(targets))
        request = _EXECUTING.get()
        # What was approved is performed only as it was approved, also if it needs no approval any more.
        if request is None and action != "require" and action not in needed:
            return checks
        digest = request_digest(action, text_of(target), arguments, await self._facts(action, target, arguments))
        if request is None:
            raise await self._requested(action, target, arguments, digest)
        found = await self._load(request)
        record = found.value
        if record is None or record.state is not ApprovalState.APPROVED or record.digest != digest:
            raise ConflictError("what was approved has changed; request it again", request=request, action=action)
        executed = replace(record, state=ApprovalState.EXECUTED)
        return [*checks, found.put(executed), *self._ctx.audit.puts([_entry(request, executed)])]

    async def needs(self, action: str, target: PolicyTarget, *, targets: Sequence[str] | None = None) -> bool:
        """Whether the action needs approval now."""
        needed, _ = await (self._rules(target) if targets is None else self._rules_of_case(targets))
        return action in needed

    async def state(self, request: str) -> str | None:
        """The state of a request; None: it is not known any more."""
        found = (await self._load(request)).value
        return None if found is None else self._shown(request, found).state

    async def check_segment(self, stream: StreamName) -> None:
        """For clients that remove data by segment. Raises ApprovalRequiredError, without a request."""
        needed, _ = await self._rules(stream)
        if "truncate" in needed or "delete" in needed:
            raise ApprovalRequiredError(
                "removal by segment needs approval and cannot be requested; truncate or delete the stream instead",
                stream=str(stream),
            )

    async def check_table(self, scope: str, table: str) -> None:
        """The gate of the deletion of a key-value table, whose record lies in another table than the request. So the request
        stays approved until the deletion has ended. Raises ApprovalRequiredError, ConflictError."""
        if scope != SYSTEM_SCOPE:
            await self.puts("delete", scope, {"table": table})

    async def _rules(self, target: PolicyTarget) -> tuple[set[str], Sequence[TableCheck]]:
        """The actions that need approval at the level and above, and what the batch checks."""
        levels: list[PolicyTarget] = [None]
        if target is not None:
            levels.append(target.scope if isinstance(target, StreamName) else target)
        if isinstance(target, StreamName):
            levels.append(target)
        entries = await self._ctx.metadata.entries([keys.approval_rule(text_of(level)) for level in levels])
        needed: set[str] = set()
        for level, entry in zip(levels, entries, strict=True):
            rule = stored(entry, ApprovalRuleRecord).value
            if rule is not None and rule.incarnation == await self._incarnation(level):
                needed.update(rule.actions)
        return needed, [TableCheck(key=entry.key, version=entry.version) for entry in entries]

    async def _rules_of_case(self, targets: Sequence[str]) -> tuple[set[str], Sequence[TableCheck]]:
        """As ``_rules``, for all levels that cover any stream of the targets, and those below.

        Every change of a rule writes the server's record too, so one check covers all rules, also those set meanwhile: a
        batch takes few. Raises CorruptDataError, VersionTooNewError: a rule that cannot be read may require approval.
        """
        (server,) = await self._ctx.metadata.entries([keys.approval_rule("")])
        needed: set[str] = set()
        async for entry in self._ctx.metadata.scan_all(keys.APPROVAL_RULES):
            level = self._ctx.set_aside.text(entry, keys.APPROVAL_RULES)
            if level is None or not overlaps(targets, level):
                continue
            incarnation = await self._incarnation(target_of(level))
            if incarnation < 0:
                continue  # A rule of a stream that was deleted.
            rule = ApprovalRuleRecord.decode(entry.value)
            if rule.incarnation == incarnation:
                needed.update(rule.actions)
        return needed, [TableCheck(key=server.key, version=server.version)]

    async def _incarnation(self, level: PolicyTarget) -> int:
        if not isinstance(level, StreamName):
            return 0
        view = await self._ctx.streams.find(level)
        return -1 if view is None else view.record.incarnation

    async def _requested(
        self, action: str, target: PolicyTarget, arguments: Mapping[str, Any], digest: str
    ) -> ApprovalRequiredError:
        """Record the request, unless the same caller has recorded the same one, and return the error that names it."""
        # One call at a time: so concurrent repeats make one request, and the limit is exact.
        async with self._ctx.locks.hold("approval-requests"):
            return await self._requested_alone(action, target, arguments, digest)

    async def _requested_alone(
        self, action: str, target: PolicyTarget, arguments: Mapping[str, Any], digest: str
    ) -> ApprovalRequiredError:
        ctx, caller = self._ctx, current_caller()
        named = {"action": action, "target": text_of(target)}
        if caller is None or caller.identity is None:
            return ApprovalRequiredError(
                "this needs the approval of a second identity, and only a verified identity can request it", **named
            )
        now_ms = ctx.clock.now_ms()
        known = await self._all()
        pending = [item for item in known if self._is_open(item[1])]
        for request, record in pending:
            if (record.digest, record.requested_by) == (digest, caller.identity.name):
                return _required(request, named, record)
        waiting = ((record.requested_by, target_of(record.target)) for _, record in pending)
        limit = too_many(waiting, caller.identity.name, target)
        if limit is not None:
            return ApprovalRequiredError(
                "too many requests wait for approval; withdraw some, or have them decided", limit=limit, **named
            )
        if sum(_withdrew(record, caller.identity.name, now_ms) for _, record in known) >= WITHDRAWN_OF_ONE:
            return ApprovalRequiredError(
                "too many requests were withdrawn within a day; request it tomorrow", limit=WITHDRAWN_OF_ONE, **named
            )
        request = ctx.rng.uuid().hex[:16]
        record = ApprovalRecord(
            action=action,
            target=text_of(target),
            arguments=dict(arguments),
            digest=digest,
            state=ApprovalState.REQUESTED,
            requested_by=caller.identity.name,
            proof=caller.identity.proof,
            who=caller.who,
            why=caller.why,
            requested_ms=now_ms,
            expires_ms=now_ms + ctx.settings.approval_ms,
        )
        await ctx.metadata.put(create(keys.approval(request), record), *ctx.audit.puts([_entry(request, record)]))
        ctx.audit.soon()
        return _required(request, named, record)

    # --- rules --------------------------------------------------------------------------------------------------

    async def require(self, target: PolicyTarget, actions: Sequence[str]) -> None:
        """See ``ControlPlane.approvals.require``."""
        checked = checked_actions(actions)
        await self._check_target(target)
        await self._ctx.tasks.run(changing(lambda: self._require(target, checked)))

    async def _require(self, target: PolicyTarget, actions: tuple[str, ...]) -> None:
        ctx = self._ctx
        found: Stored[ApprovalRuleRecord] = await ctx.metadata.get(
            keys.approval_rule(text_of(target)), ApprovalRuleRecord
        )
        server: Stored[ApprovalRuleRecord] = await ctx.metadata.get(keys.approval_rule(""), ApprovalRuleRecord)
        # Written with every rule: see ``_rules_of_case``.
        touched = [] if target is None else [server.put(server.value or ApprovalRuleRecord(actions=(), incarnation=0))]
        incarnation = await self._incarnation(target)
        before = (
            set(found.value.actions) if found.value is not None and found.value.incarnation == incarnation else set()
        )
        gate: Sequence[TablePut | TableCheck] = ()
        if before - set(actions):
            gate = [
                item
                for item in await self.puts("require", target, {"actions": list(actions)})
                if not (isinstance(item, TableCheck) and item.key in (found.key, server.key))
            ]
        elif set(actions) - before:
            _identity("an action can need approval only where callers have verified identities")
        record = ApprovalRuleRecord(actions=actions, incarnation=incarnation)
        entry = AuditEntry(
            kind=AuditKind.APPROVAL,
            target=text_of(target),
            fields={"state": "rule", "before": sorted(before), "after": list(actions)},
        )
        await ctx.metadata.put(found.put(record), *touched, *gate, *ctx.audit.puts([entry]))
        ctx.audit.soon()

    async def required(self, target: PolicyTarget) -> Sequence[str]:
        """See ``ControlPlane.approvals.required``."""
        await self._check_target(target)
        needed, _ = await self._rules(target)
        return sorted(needed)

    async def _check_target(self, target: PolicyTarget) -> None:
        if isinstance(target, StreamName):
            await self._ctx.streams.get(target)
        elif target is not None:
            await self._ctx.streams.check_scope(target)

    # --- requests -----------------------------------------------------------------------------------------------

    async def _load(self, request: str) -> Stored[ApprovalRecord]:
        return await self._ctx.metadata.get(keys.approval(request), ApprovalRecord)

    async def _all(self) -> list[tuple[str, ApprovalRecord]]:
        found: list[tuple[str, ApprovalRecord]] = []
        async for entry in self._ctx.metadata.scan_all(keys.APPROVALS):
            request = self._ctx.set_aside.text(entry, keys.APPROVALS)
            record = None if request is None else self._ctx.set_aside.read(entry, ApprovalRecord)
            if request is not None and record is not None:
                found.append((request, record))
        return sorted(found, key=lambda item: (item[1].requested_ms, item[0]))

    def _is_open(self, record: ApprovalRecord) -> bool:
        """Whether it waits for a decision. It expires by the clock that is ahead: a request can be made again."""
        latest_ms = max(self._ctx.clock.now_ms(), self._ctx.retention_clock.now_ms())
        return record.state is ApprovalState.REQUESTED and latest_ms < record.expires_ms

    def _shown(self, request: str, record: ApprovalRecord) -> ApprovalRequest:
        if record.state is ApprovalState.REQUESTED and not self._is_open(record):
            record = replace(record, state=ApprovalState.EXPIRED)
        return record.info(request)

    async def list(self) -> Sequence[ApprovalRequest]:
        """See ``ControlPlane.approvals.list``."""
        return [self._shown(request, record) for request, record in await self._all()]

    async def get(self, request: str) -> ApprovalRequest:
        """See ``ControlPlane.approvals.get``."""
        found = (await self._load(request)).value
        if found is None:
            raise NotFoundError("no such request for approval", request=request[:60])
        return self._shown(request, found)

    async def approve(self, request: str, *, why: str = "") -> ApprovalRequest:
        """See ``ControlPlane.approvals.approve``."""
        identity = _identity("only a verified identity can approve")
        return await self._ctx.tasks.run(self._approve(request, identity, why))

    async def _approve(self, request: str, identity: Identity, why: str) -> ApprovalRequest:
        await changing(lambda: self._decide(request, ApprovalState.APPROVED, identity, why))
        self._ctx.audit.soon()
        await self._execute(request)
        return await self.get(request)

    async def refuse(self, request: str, *, why: str) -> ApprovalRequest:
        """See ``ControlPlane.approvals.refuse``."""
        return await self._end(request, ApprovalState.REFUSED, why)

    async def withdraw(self, request: str, *, why: str = "") -> ApprovalRequest:
        """See ``ControlPlane.approvals.withdraw``."""
        return await self._end(request, ApprovalState.WITHDRAWN, why)

    async def _end(self, request: str, state: ApprovalState, why: str) -> ApprovalRequest:
        identity = _identity("only a verified identity can decide about a request")
        await self._ctx.tasks.run(changing(lambda: self._decide(request, state, identity, why)))
        self._ctx.audit.soon()
        return await self.get(request)

    async def _decide(self, request: str, state: ApprovalState, identity: Identity, why: str) -> None:
        """Write the decision, by compare-and-set: of several at once, one decides, and the others see its result."""
        ctx, found = self._ctx, await self._load(request)
        record = found.value
        if record is None:
            raise NotFoundError("no such request for approval", request=request[:60])
        target = target_of(record.target)
        if state is not ApprovalState.WITHDRAWN:
            check_may_decide(identity, record.requested_by, target)
        elif identity.name != record.requested_by:
            raise PermissionDeniedError("only the requester can withdraw a request", identity=identity.name)
        if not self._is_open(record):
            if record.decided_by == identity.name and _is_same(record.state, state):
                return
            shown = self._shown(request, record)
            raise ConflictError(
                "the request has ended", request=request, state=shown.state, decided_by=shown.decided_by
            )
        if state is ApprovalState.APPROVED:
            if not self._may_perform():
                raise UnavailableError("the store is still starting; approve the request again later", request=request)
            self._check_requester(record)
            facts = await self._facts(record.action, target, record.arguments)
            if request_digest(record.action, record.target, record.arguments, facts) != record.digest:
                raise ConflictError("what the request depends on has changed; request it again", request=request)
        decided = replace(record, state=state, decided_by=identity.name, decided_why=why, decided_ms=ctx.clock.now_ms())
        await ctx.metadata.put(found.put(decided), *ctx.audit.puts([_entry(request, decided)]))

    # --- execution ----------------------------------------------------------------------------------------------

    async def _execute(self, request: str) -> None:
        """Perform an approved request once. If that is not possible yet, it stays approved, and a sweep tries again."""
        async with self._ctx.locks.hold(f"approval/{request}"):
            record = (await self._load(request)).value
            if record is None or record.state is not ApprovalState.APPROVED or not self._may_perform():
                return
            identity = Identity(name=record.requested_by, proof=record.proof)
            caller = Caller(who=record.who, why=record.why, via="approval", identity=identity)
            token, failure = _EXECUTING.set(request), ""
            try:
                # Check again: the requester may have lost the right between the approval and a repeated execution.
                self._check_requester(record)
                with calling(caller):
                    await self._perform(record.action, target_of(record.target), record.arguments)
            except _FINAL as error:
                failure = str(error)[:500]
            except PenstockError as error:
                log.warning("approved action waits", extra={"request": request, "error": str(error)})
                return
            finally:
                _EXECUTING.reset(token)
            await changing(lambda: self._performed(request, failure))
            self._ctx.audit.soon()

    def _may_perform(self) -> bool:
        """False: the store starts, and nobody knows yet whether requesters still have their rights."""
        return self._ctx.rights_known or not self._ctx.settings.waits_for_rights

    def _check_requester(self, record: ApprovalRecord) -> None:
        """Raises ConflictError if the requester has lost its right."""
        rights = self._ctx.rights
        grants = None if rights is None else rights.grants_of(record.requested_by, record.proof)
        if grants is None:
            return  # A token proved the identity. Its rights are in the token and not known here.
        requester = Identity(name=record.requested_by, proof=record.proof, grants=tuple(grants))
        check_requester(requester, record.action, target_of(record.target), record.arguments)

    async def _performed(self, request: str, failure: str) -> None:
        """End the request if the action did not: it failed, or there was nothing to do."""
        found = await self._load(request)
        record = found.value
        if record is None or record.state is not ApprovalState.APPROVED:
            return
        ended = replace(record, state=ApprovalState.FAILED if failure else ApprovalState.EXECUTED, failure=failure)
        await self._ctx.metadata.put(found.put(ended), *self._ctx.audit.puts([_entry(request, ended)]))

    async def sweep(self) -> None:
        """Continue approved requests, record those that expired, and forget those that ended long ago.

        A request that fails stops no other one. Raises the first PenstockError, after all of them.
        """
        failed: PenstockError | None = None
        now_ms = self._ctx.clock.now_ms()
        for request, record in await self._all():
            try:
                await self._swept(request, record, now_ms)
            except PenstockError as error:
                failed = failed or error
            except Exception:
                log.exception("request for approval failed with an unexpected error", extra={"request": request})
        if failed is not None:
            raise failed

    async def _swept(self, request: str, record: ApprovalRecord, now_ms: int) -> None:
        match record.state:
            case ApprovalState.APPROVED:
                await self._execute(request)
            case ApprovalState.REQUESTED:
                if not self._is_open(record):
                    await changing(lambda: self._expire(request))
            case (
                ApprovalState.EXECUTED
                | ApprovalState.FAILED
                | ApprovalState.REFUSED
                | ApprovalState.WITHDRAWN
                | ApprovalState.EXPIRED
            ):
                if now_ms - (record.decided_ms or record.expires_ms) > _KEPT_MS:
                    await self._ctx.metadata.remove_keys([keys.approval(request)])
            case _:
                assert_never(record.state)

    async def _expire(self, request: str) -> None:
        found = await self._load(request)
        record = found.value
        if record is None or record.state is not ApprovalState.REQUESTED:
            return
        expired = replace(record, state=ApprovalState.EXPIRED, decided_ms=self._ctx.clock.now_ms())
        await self._ctx.metadata.put(found.put(expired), *self._ctx.audit.puts([_entry(request, expired)]))
        self._ctx.audit.soon()


def _is_same(now: ApprovalState, wanted: ApprovalState) -> bool:
    """Whether a repeated decision has already been made."""
    approved = (ApprovalState.APPROVED, ApprovalState.EXECUTED, ApprovalState.FAILED)
    return now in approved if wanted is ApprovalState.APPROVED else now is wanted


def _identity(message: str) -> Identity:
    caller = current_caller()
    if caller is None or caller.identity is None:
        raise InvalidArgumentError(f"{message}: start the server with authentication")
    return caller.identity


def _required(request: str, named: Mapping[str, str], record: ApprovalRecord) -> ApprovalRequiredError:
    return ApprovalRequiredError(
        "this needs the approval of another identity (penstock approval approve); nothing was changed, and the request "
        "is recorded: do not repeat the call",
        request=request,
        **named,
        expires_ms=record.expires_ms,
    )


def _entry(request: str, record: ApprovalRecord) -> AuditEntry:
    fields = {
        "request": request,
        "state": record.state.value,
        "action": record.action,
        "arguments": dict(record.arguments),
        "digest": record.digest,
        "requested_by": record.requested_by,
        "decided_by": record.decided_by,
        "decided_why": record.decided_why,
        "failure": record.failure,
    }
    return AuditEntry(kind=AuditKind.APPROVAL, target=record.target, fields=fields)
