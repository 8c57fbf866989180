"""What an approval depends on, and how the store performs what was approved."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from penstock.codec.control.cases import CaseRecord
from penstock.codec.control.erasures import ErasureRecord
from penstock.codec.control.policy_document import decode_document, encode_document
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.retention.policies import document_of, load_levels, scope_document, server_document
from penstock.controller.tables.key_value_tables import table_version
from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError, TableNotFoundError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyTarget

if TYPE_CHECKING:
    from penstock.ports.control.plane import ControlPlane


async def facts_of(
    ctx: Context, plane: ControlPlane, action: str, target: PolicyTarget, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The state that an action depends on: the policies that apply, which stream has the name, and a hold to release.

    An approval is void once any of it has changed. Raises ScopeNotFoundError, StreamNotFoundError.
    """
    if action == "erase":
        return await _facts_of_erasure(ctx, target, arguments)
    facts: dict[str, Any] = {}
    if isinstance(target, StreamName):
        view = await ctx.streams.get(target)
        levels = await load_levels(ctx, view)
        facts["incarnation"] = view.record.incarnation
        facts["policies"] = [encode_document(item) for item in (document_of(view.record), levels.scope, levels.server)]
    else:
        facts["policies"] = [encode_document(await server_document(ctx))]
        if target is not None:
            facts["policies"].append(encode_document((await scope_document(ctx, target))[0]))
    if "table" in arguments:
        facts["table"] = await table_version(ctx.segments, str(target), arguments["table"])
    if action == "release":
        held = [item for item in await plane.holds.list(target) if item.id == arguments["hold"]]
        facts["hold"] = [[item.owner, item.reason, item.created_ms, item.until_ms] for item in held]
    if action == "require":
        facts["required"] = list(await plane.approvals.required(target))
    return facts


async def _facts_of_erasure(ctx: Context, target: PolicyTarget, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The approval depends on the stream and on the complete request or waiting case. It does not depend on policies,
    because holds and locks defer an erasure even after its approval."""
    if "case" in arguments:
        case = (await ctx.metadata.get(keys.case(arguments["case"]), CaseRecord)).value
        return {"case": None if case is None else [case.state.value, case.opened_ms]}
    name = StreamName.parse(str(target))
    found = (await ctx.metadata.get(keys.erasure(arguments["erasure"]), ErasureRecord)).value
    waiting = None if found is None or not found.is_requested or found.request is None else found.request["sha256"]
    return {"incarnation": (await ctx.streams.get(name)).record.incarnation, "request": waiting}


class Cases(Protocol):
    """Opens the cases that wait for approval."""

    async def open_approved(self, case: str) -> None: ...


class Erasures(Protocol):
    """Decides the erasures that wait for approval."""

    async def erase_approved(self, stream: StreamName, arguments: Mapping[str, Any]) -> object: ...


async def perform(
    plane: ControlPlane,
    erasures: Erasures,
    cases: Cases,
    action: str,
    target: PolicyTarget,
    arguments: Mapping[str, Any],
) -> None:
    """Make the call that was approved, with exactly its arguments. Raises what the call raises."""
    match action, target:
        case "truncate", StreamName():
            await plane.streams.truncate(target, StreamCut.from_text(arguments["cut"]))
        case "delete", StreamName():
            await plane.streams.delete(target, seal=arguments["seal"])
        case "erase", _ if "case" in arguments:
            await cases.open_approved(arguments["case"])
        case "erase", StreamName():
            await erasures.erase_approved(target, arguments)
        case "delete", str() if "table" in arguments:
            # Deleted before a crash: then nothing is left to do.
            with suppress(TableNotFoundError):
                await plane.tables.delete(target, arguments["table"])
        case "delete", str():
            await plane.scopes.delete(target)
        case "release", _:
            await plane.holds.release(arguments["hold"], owner=arguments["owner"])
        case "shorten", _:
            await plane.policies.set(target, decode_document(arguments["document"]))
        case "require", _:
            await plane.approvals.require(target, arguments["actions"])
        case _:
            raise ConflictError("this version cannot perform what was approved", action=action)
